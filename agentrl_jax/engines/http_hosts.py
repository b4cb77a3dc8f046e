"""By which names a server without a token may be asked for. No jax.

A page can have its own name resolve to a loopback address once its reader's browser has loaded it (DNS rebinding). To
the browser the server is then that page's own site, and nothing of the same-origin policy keeps the page from it; but
the requests carry the page's name.
"""

from urllib.parse import urlsplit

from agentrl_jax.engines.http_server import HttpProblem, HttpRequest, is_loopback


def host_problem(request: HttpRequest, *own: str) -> HttpProblem | None:
    """Why a request is refused that names another host than a loopback one or `own`; None: it is not.

    For servers that only this machine can reach, and that want no token. Requests without a name come from no browser.
    """
    named = request.headers.get("host")
    if named is None:
        return None
    try:
        name = urlsplit(f"//{named}").hostname or ""
    except ValueError:
        name = ""
    name = name.removesuffix(".")
    if is_loopback(name) or name.endswith(".localhost") or name in map(str.lower, own):
        return None
    return HttpProblem(403, f"this server is for this machine alone, and not known as {named[:100]!r}")
