"""Does a controller or an env worker answer? `python -m launch.cluster.health URL [TOKEN]`, for checks of containers.

The exit code is 0 if URL, asked with the bearer token TOKEN, answers with a status below 400 within five seconds.
"""

import sys
from collections.abc import Sequence
from http.client import HTTPException
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
        print("usage: python -m launch.cluster.health http://HOST:PORT/PATH [TOKEN]", file=sys.stderr)
        return 2
    return int(not is_healthy(given[0], given[1] if len(given) == 2 else None))


if __name__ == "__main__":
    raise SystemExit(main())
