"""Putting back, before scripts grade what was done in a container, what runs them: bash and python, with all they load.

It is taken once from an untouched container of the image, and written over what the agent has left, changed or not;
what was added to python's modules, or would be taken for them, is removed. What else the scripts call is as the agent
has left it: what was changed in a container takes an engine seconds to find.
"""

import io
import re
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass

from docker.api import APIClient
from docker.errors import NotFound

from envs.sandbox.protocol import SandboxGone

_LIST = """follow() {
p=$1; while [ -L $p ]; do echo $p; t=$(readlink $p); case $t in /*) p=$t;; *) p=${p%/*}/$t;; esac; done
}
loaded() {
[ -e $1 ] || return; for f in /bin /sbin /lib /lib64 $1; do follow $f; done
readlink -f $1; ldd $1 | grep -o '/[^ ]*' | while read -r f; do follow $f; readlink -f $f; done
}
"""
LIST_SHELL = f"{_LIST}loaded /bin/bash; loaded /bin/rm; :"
"""A script that prints the files of bash and of rm, and the links that lead to them."""
LIST_PYTHON = (
    f"{_LIST}loaded /usr/bin/python3; python3 -I -c 'import os; print(os.path.dirname(os.__file__))' 2>/dev/null || :"
)
"""A script that prints those of python, and last the folder of its modules."""

# Nothing is loaded from caches of compiled modules (see `os_interaction.grading`), and the others are not python's own,
# or of no use to a script that compares.
_LEFT_OUT = re.compile(
    r"/(__pycache__|dist-packages|site-packages|test|idlelib|tkinter|lib2to3|ensurepip|config-[^/]*)(/|$)"
)
_CACHE, _PRELOAD = "/etc/ld.so.cache", "/etc/ld.so.preload"
# python takes its modules from these first.
_BESIDE = "/usr/bin/{lib,lib64,pyvenv.cfg,pybuilddir.txt} /usr/pyvenv.cfg"
LIST_MODULES = (
    f'shopt -s dotglob nullglob globstar; /bin/rm -rf -- {_BESIDE} "${{1%/*}}"/python3*.zip; '
    "cd -- \"$1\" && printf '%s\\0' **"
)
"""A script that removes what precedes python's modules, and prints all that is in their folder, its argument."""
REMOVE = 'cd -- "$1" && shift && /bin/rm -rf -- "$@"'
"""A script that removes files and folders of the folder that is its first argument."""
_MAX_ADDED = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Pristine:
    """Archives of an image's bash and python, with all that they load. modules: python's folder of them, empty without
    python; known: what is in that, relative to it."""

    shell: bytes
    python: bytes
    modules: str
    known: frozenset[str]


def pristine(api: APIClient, container: str, shell: str, python: str) -> Pristine:
    """From a container that nobody has used. shell, python: what LIST_SHELL and LIST_PYTHON print there."""
    archive = fetch(api, container, python.split())
    modules = python.split()[-1] if python.strip() else ""
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        inside = [f"/{name}".removeprefix(f"{modules}/") for name in files.getnames()]
    known = {name.rsplit("/", level)[0] for name in inside for level in range(name.count("/") + 1)}
    return Pristine(
        shell=fetch(api, container, shell.split()),
        python=archive,
        modules=modules,
        known=frozenset(known),
    )


def added(listed: bytes, pristine: Pristine) -> list[str]:
    """Of what LIST_MODULES prints: what is not python's own. Raises SandboxGone for more than a few."""
    names = [name.decode("utf-8", "surrogateescape") for name in listed.split(b"\0")[:-1]]
    found = [name for name in names if name not in pristine.known and not _LEFT_OUT.search(f"/{name}")]
    if len(found) > _MAX_ADDED:
        raise SandboxGone(f"{len(found)} files were added to python's modules")
    return found


def fetch(api: APIClient, container: str, paths: Iterable[str]) -> bytes:
    """An archive of them, as they are in `container`, to be written to its root. The loader preloads nothing."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in dict.fromkeys((*paths, _CACHE)):
            _add(archive, api, container, path)
        archive.addfile(tarfile.TarInfo(_PRELOAD.lstrip("/")))
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, api: APIClient, container: str, path: str) -> None:
    parent = path.rpartition("/")[0].lstrip("/")
    try:
        chunks, _ = api.get_archive(container, path)
    except NotFound:
        return
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as found:
        for member in found.getmembers():
            if member.isdir() or _LEFT_OUT.search(f"/{member.name}"):
                continue
            content = found.extractfile(member) if member.isreg() else None
            member.name = f"{parent}/{member.name}"
            archive.addfile(member, content)
