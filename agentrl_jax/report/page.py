"""One self-contained HTML file out of data and the assets of this package.

What agents and environments write is hostile: it reaches the page only inside a JSON data element whose every `<` is
an escape, and the scripts put it on the page as text. A content security policy allows this very script and this very
style, by their hashes, and nothing else: no request leaves the page.
"""

import re
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

from agentrl_jax.runlog import to_json

_SCRIPTS = ("dom", "format", "chart", "bars", "shell", "overview", "curves", "rollouts", "table", "viewer", "main")
"""In the order in which they are run; all share one scope."""

_STYLES = ("base", "charts", "episodes")


def render_page(title: str, data: Mapping[str, Any]) -> str:
    """The whole file. `data` is what the scripts read."""
    script = "\n".join(['"use strict";', "(() => {", *(_asset(f"{name}.js") for name in _SCRIPTS), "})();"])
    style = "\n".join(_asset(f"{name}.css") for name in _STYLES)
    policy = (
        f"default-src 'none'; script-src '{_source(script)}'; style-src '{_source(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    content = {
        "policy": escape(policy, quote=False),
        "title": escape(title),
        "style": style,
        "data": embedded_json(data),
        "script": script,
    }
    # One pass: what is put in is never searched for names itself.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: content[found[1]], _asset("report.html"))


def embedded_json(data: Any) -> str:
    """JSON that cannot end, or comment out, the script element around it; pure ASCII.

    >>> embedded_json({"text": "</script><!-- é"})
    '{"text":"\\\\u003c/script>\\\\u003c!-- \\\\u00e9"}'
    """
    return to_json(data).replace("<", "\\u003c")


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8").rstrip("\n")


def _source(text: str) -> str:
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()
