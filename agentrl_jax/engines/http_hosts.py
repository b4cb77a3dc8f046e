"""Whose pages may use a server that wants no token. No jax.

A browser lets any page that its reader has open send requests to this machine. Most say so: `Origin` names the page's
site, and `Sec-Fetch-Site` says that it is another one. A page can also have its own name resolve to a loopback address
once it has been loaded (DNS rebinding). To the browser the server is then that page's own site, and nothing of the
same-origin policy keeps the page from it; but the requests carry the page's name.
"""

from urllib.parse import urlsplit

from agentrl_jax.engines.http_server import HttpProblem, HttpRequest, is_loopback


def host_problem(request: HttpRequest, *own: str) -> HttpProblem | None:
    """Why a request is refused that a page of another host than a loopback one or `own` makes, or that names one; None:
    it is not.

    For servers that only this machine can reach, and that want no token. Requests that say nothing come from no
    browser; a reader who follows another site's link here does no harm.
    """
    headers = request.headers
    named = headers.get("host")
    if named is not None and not _is_ours(f"//{named}", own):
        return HttpProblem(403, f"this server is for this machine alone, and not known as {named[:100]!r}")
    origin = headers.get("origin")
    is_strange = headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate"
    if is_strange or (origin is not None and not _is_ours(origin, own)):
        return HttpProblem(
            403, f"this server is for this machine alone, and not for pages of {(origin or '?')[:100]!r}"
        )
    return None


def _is_ours(url: str, own: tuple[str, ...]) -> bool:
    try:
        name = urlsplit(url).hostname or ""
    except ValueError:
        name = ""
    name = name.removesuffix(".")
    return is_loopback(name) or name.endswith(".localhost") or name in map(str.lower, own)
