"""Does a controller, an env worker or an engine answer? `python -m launch.cluster.health URL [TOKEN | @FILE]`.

The exit code is 0 if URL, asked with the bearer token TOKEN, or the one that stands in FILE, answers with a status
below 400 within five seconds.
"""

import sys
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

_LIMIT_S = 5.0


def is_healthy(url: str, token: str | None) -> bool:
    """Says why not."""
    request = Request(url, headers={} if token is None else {"Authorization": f"Bearer {token}"})
    try:
        with urlopen(request, timeout=_LIMIT_S) as answer:
            return bool(answer.status < 400)
    except (HTTPException, OSError) as error:  # URLError and HTTPError are such
        print(f"{url}: {error}", file=sys.stderr)
        return False


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not 1 <= len(given) <= 2 or not given[0].startswith(("http://", "https://")):
        print("usage: python -m launch.cluster.health http://HOST:PORT/PATH [TOKEN | @FILE]", file=sys.stderr)
        return 2
    try:
        return int(not is_healthy(given[0], _token(given[1]) if len(given) == 2 else None))
    except OSError as error:
        print(f"{given[1]}: {error}", file=sys.stderr)
        return 2


def _token(text: str) -> str:
    return Path(text[1:]).read_text(encoding="ascii").strip() if text.startswith("@") else text


if __name__ == "__main__":
    raise SystemExit(main())
