"""What was changed of a system's own programs, in the layers of an overlay, and putting it back.

Protected is what a script that grades is run by: programs, libraries, and the files that say where they are found. A
file whose content is as it was is left alone, whatever became of its mode: tasks are about those. So is what was added,
unless it would be found in the place of something of the system.
"""

import os
import re
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass

_CHUNK = 1 << 20
# A system of which more is gone or changed is not put back.
_MAX_CHANGES = 256
_MAX_BYTES = 1 << 28

_USR = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
PROTECTED = (
    *_USR,
    *(f"usr/{name}" for name in _USR),
    *("etc/alternatives", "etc/ld.so.cache", "etc/ld.so.preload", "etc/nsswitch.conf"),
    *("pyvenv.cfg", "usr/pyvenv.cfg"),
)
# Not part of a system as it comes, and yet decisive: what is loaded into every program, where python takes its modules
# from (the files and folders beside it, and the archive, come first), and modules that precede others of their name.
_DECISIVE = re.compile(
    r"etc/ld\.so\.preload|(usr/)?pyvenv\.cfg|(usr/)?s?bin/(lib\w*|pyvenv\.cfg|pybuilddir\.txt)|(usr/)?lib/python3[^/]*\.zip|"
    r"(usr/)?lib/python3[^/]*/(?!(.*/)?(dist-packages|site-packages|__pycache__)(/|$)).+"
)
_PROGRAM_FOLDERS = ("usr/sbin", "usr/bin", "sbin", "bin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """An overlay. point: where it is mounted, "" or "usr". lower, upper: descriptors of the folders that it shows, and
    of what was changed."""

    point: str
    lower: int
    upper: int

    def close(self) -> None:
        os.close(self.lower)
        os.close(self.upper)


class TooMuchChanged(Exception):
    """So much of the system is gone that it cannot be put back."""


def changes(layers: list[Layer]) -> dict[str, Layer]:
    """Paths, relative to the root, of protected files that are not what they were. Raises TooMuchChanged."""
    found: dict[str, Layer] = {}
    points = {layer.point for layer in layers if layer.point}
    for layer in layers:
        for path in PROTECTED:
            top = path.partition("/")[0]
            if layer.point:
                if top != layer.point:
                    continue
            elif top in points:
                continue
            inside = path[len(layer.point) :].lstrip("/")
            _check_parents(layer, inside)
            for changed in _changed(layer, inside):
                found[f"{layer.point}/{changed}".lstrip("/")] = layer
                if len(found) > _MAX_CHANGES:
                    raise TooMuchChanged(path)
    return found


def _check_parents(layer: Layer, path: str) -> None:
    """A folder above that was replaced hides what it held."""
    while path := path.rpartition("/")[0]:
        if _state(layer.upper, path) is not None and _state(layer.lower, path) is not None:
            _check_folder(layer, path)


def _check_folder(layer: Layer, path: str) -> None:
    now = _state(layer.upper, path)
    if now is None or not stat.S_ISDIR(now.st_mode) or _is_opaque(layer.upper, path):
        raise TooMuchChanged(path)


def _changed(layer: Layer, path: str) -> Iterator[str]:
    """Below `path`, in the layer."""
    now = _state(layer.upper, path)
    if now is None:
        return
    before = _state(layer.lower, path)
    if before is None:
        if _precedes(layer, path):
            yield path
        return
    if stat.S_ISDIR(before.st_mode):
        _check_folder(layer, path)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=layer.upper)
        try:
            names = os.listdir(folder)
        finally:
            os.close(folder)
        for name in names:
            yield from _changed(layer, f"{path}/{name}")
    elif not _is_same(layer, path, before, now):
        yield path


def _precedes(layer: Layer, path: str) -> bool:
    """Whether something that was added is found in the place of something of the system."""
    whole = f"{layer.point}/{path}".lstrip("/")
    if _DECISIVE.fullmatch(whole):
        return True
    folder, _, name = whole.rpartition("/")
    if folder not in _PROGRAM_FOLDERS:
        return False
    inside = (each[len(layer.point) :].lstrip("/") for each in _PROGRAM_FOLDERS if each.startswith(layer.point))
    return any(_state(layer.lower, f"{each}/{name}") is not None for each in inside)


def _state(folder: int, path: str) -> os.stat_result | None:
    try:
        return os.stat(path, dir_fd=folder, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_opaque(folder: int, path: str) -> bool:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        return os.getxattr(fd, "user.overlay.opaque") == b"y"
    except OSError:
        return False
    finally:
        os.close(fd)


def _is_same(layer: Layer, path: str, before: os.stat_result, now: os.stat_result) -> bool:
    if stat.S_IFMT(before.st_mode) != stat.S_IFMT(now.st_mode):
        return False
    if stat.S_ISLNK(now.st_mode):
        return os.readlink(path, dir_fd=layer.lower) == os.readlink(path, dir_fd=layer.upper)
    if not stat.S_ISREG(now.st_mode):
        return True
    return before.st_size == now.st_size and _is_same_content(layer, path)


def _is_same_content(layer: Layer, path: str) -> bool:
    with _opened(path, layer.lower) as one, _opened(path, layer.upper) as other:
        while True:
            data = one.read(_CHUNK)
            if data != other.read(_CHUNK):
                return False
            if not data:
                return True


def _opened(path: str, folder: int):  # type: ignore[no-untyped-def]
    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)

    return open(path, "rb", opener=opener)


def put_back(changed: dict[str, Layer]) -> None:
    """Within the sandbox's own file system, as its root. Raises TooMuchChanged, and OSError where that does not
    let it."""
    total = 0
    for path, layer in changed.items():
        inside = path[len(layer.point) :].lstrip("/")
        before = _state(layer.lower, inside)
        total += 0 if before is None else before.st_size
        if total > _MAX_BYTES:
            raise TooMuchChanged(path)
        _remove(f"/{path}")
        if before is None:
            continue
        if stat.S_ISLNK(before.st_mode):
            os.symlink(os.readlink(inside, dir_fd=layer.lower), f"/{path}")
            continue
        fd = os.open(f"/{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as copy, _opened(inside, layer.lower) as original:
            shutil.copyfileobj(original, copy, _CHUNK)
            os.fchmod(fd, stat.S_IMODE(before.st_mode))


def _remove(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        shutil.rmtree(path)
    else:
        os.unlink(path)
