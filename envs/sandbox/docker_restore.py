"""Putting back, before scripts grade what was done in a container, what runs them: bash and python, with all they load.

It is taken once from an untouched container of the image, and written over what the agent has left, changed or not.
What else the scripts call is as the agent has left it: what was changed in a container takes an engine seconds to find.
"""

import io
import re
import tarfile
from collections.abc import Iterable

from docker.api import APIClient
from docker.errors import NotFound

_LIST = """loaded() { [ -e $1 ] && readlink -f $1 && ldd $1 | grep -o '/[^ ]*' | xargs -r readlink -f; }"""
LIST_SHELL = f"{_LIST}; loaded /bin/bash; :"
"""A script that prints the files of bash."""
LIST_PYTHON = (
    f"{_LIST}; loaded /usr/bin/python3; python3 -I -c 'import os; print(os.path.dirname(os.__file__))' 2>/dev/null || :"
)
"""A script that prints those of python, and last the folder of its modules."""

# Nothing is loaded from caches of compiled modules (see `os_interaction.grading`), and the others are not python's own,
# or of no use to a script that compares.
_LEFT_OUT = re.compile(
    r"/(__pycache__|dist-packages|site-packages|test|idlelib|tkinter|lib2to3|ensurepip|config-[^/]*)(/|$)"
)
_CACHE, _PRELOAD = "/etc/ld.so.cache", "/etc/ld.so.preload"


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
