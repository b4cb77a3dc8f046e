"""Putting a container's own programs back, before they grade what was done in it (see `layers`)."""

import io
import tarfile
from collections.abc import Callable, Iterable

from docker.api import APIClient
from docker.errors import NotFound

from envs.sandbox.layers import PROTECTED
from envs.sandbox.protocol import SandboxGone

_MODIFIED, _ADDED, _DELETED = 0, 1, 2
_MAX_CHANGES = 64
_MAX_BYTES = 1 << 28
_PRELOAD = "/etc/ld.so.preload"


def changed(api: APIClient, container: str) -> frozenset[str]:
    """Protected paths that are not as in the image, folders that only hold such aside."""
    found = set()
    for change in api.diff(container) or ():
        path, kind = str(change["Path"]), change["Kind"]
        if any(f"{path}/".startswith(f"/{name}/") for name in PROTECTED) and (kind != _ADDED or path == _PRELOAD):
            found.add(path)
    return frozenset(path for path in found if not any(other.startswith(f"{path}/") for other in found))


def put_back(api: APIClient, container: str, paths: Iterable[str], pristine: Callable[[], str]) -> None:
    """Give files the content that the image has, unless they still have it. pristine: the id of a container of the
    image that never ran. Raises SandboxGone if too much is gone."""
    wanted = sorted(paths)
    if len(wanted) > _MAX_CHANGES:
        raise SandboxGone("too much of the system has been changed")
    total = 0
    for path in wanted:
        original = b"" if path == _PRELOAD else _archive(api, pristine(), path)
        total += len(original or b"")
        if total > _MAX_BYTES:
            raise SandboxGone("too much of the system has been changed")
        if path == _PRELOAD:
            original = _empty(path)
        elif original is None or _contents(original) == _contents(_archive(api, container, path)):
            continue
        if any(member.isdir() for member in _members(original)) and _archive(api, container, path) is None:
            raise SandboxGone(f"{path} has been deleted")
        api.put_archive(container, path.rpartition("/")[0] or "/", original)


def _archive(api: APIClient, container: str, path: str) -> bytes | None:
    try:
        chunks, _ = api.get_archive(container, path)
        return b"".join(chunks)
    except NotFound:
        return None


def _members(archive: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return tar.getmembers()


def _contents(archive: bytes | None) -> list[tuple[str, bytes, str, bytes]]:
    """Names, kinds, targets of links, and contents, but no modes."""
    if archive is None:
        return []
    found = []
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar.getmembers():
            file = tar.extractfile(member) if member.isfile() else None
            found.append((member.name, member.type, member.linkname, b"" if file is None else file.read()))
    return found


def _empty(path: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo(path.rpartition("/")[2])
        info.mode = 0o644
        tar.addfile(info)
    return buffer.getvalue()
