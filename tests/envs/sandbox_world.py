"""What the sandbox tests share: whether there is bubblewrap here, and a Docker engine of their own, with an image."""

import io
import os
import re
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from agentrl_jax.errors import ConfigError

PROGRAMS = (
    *(
        "awk",
        "basename",
        "bash",
        "cat",
        "chmod",
        "chown",
        "cp",
        "cut",
        "date",
        "dirname",
        "dd",
        "du",
        "echo",
        "env",
        "expr",
    ),
    *(
        "false",
        "find",
        "free",
        "grep",
        "head",
        "id",
        "kill",
        "ldd",
        "ln",
        "ls",
        "mkdir",
        "mktemp",
        "mknod",
        "mount",
        "mv",
    ),
    *("nproc", "printf", "ps", "python3", "readlink", "realpath", "rm", "rmdir", "sed", "seq", "sh", "sleep", "sort"),
    *(
        "stat",
        "tail",
        "tar",
        "tee",
        "test",
        "timeout",
        "touch",
        "tr",
        "true",
        "uname",
        "uniq",
        "unshare",
        "wc",
        "whoami",
    ),
    *(
        "expr",
        "xargs",
        "yes",
        "egrep",
        "fgrep",
        "gawk",
        "mawk",
        "tac",
        "nl",
        "paste",
        "comm",
        "cmp",
        "diff",
        "split",
        "md5sum",
    ),
)
_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"


def unless_missing(reason):
    """Skip a test, or fail it where `make test-services` has installed everything."""
    if os.environ.get("AGENTRL_SERVERS"):
        pytest.fail(f"{reason}: here nothing may be missing")
    pytest.skip(reason)


def bubblewrap_driver(root=None):
    from envs.sandbox.bubblewrap import BubblewrapDriver

    try:
        return BubblewrapDriver(root)
    except ConfigError as error:
        unless_missing(str(error))


@contextmanager
def running_engine():
    """The URL of a Docker engine that has the image local-os/default, made of this machine's programs."""
    missing = [name for name in ("dockerd", "containerd") if not shutil.which(name)]
    if missing or os.getuid():
        unless_missing(f"no {' or '.join(missing) or 'root'} here; tools/install_docker.sh installs an engine")
    # Below /var/tmp: a memory file system cannot hold the engine's layers.
    folder = Path(tempfile.mkdtemp(prefix="agentrl_jax-docker-", dir="/var/tmp"))
    url = f"unix://{folder}/docker.sock"
    command = [
        *("dockerd", "--host", url, "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"),
        *("--pidfile", f"{folder}/docker.pid", "--exec-opt", "native.cgroupdriver=cgroupfs", "--bridge=none"),
        *("--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false", "--userland-proxy=false"),
    ]
    log = (folder / "log").open("wb")
    with log, subprocess.Popen(command, stdout=log, stderr=log) as engine:
        try:
            with closing(_answering(url, engine, folder / "log")) as api:
                api.import_image_from_data(small_image(), repository="local-os/default", tag="latest")
            yield url
        finally:
            engine.terminate()
            engine.wait(30)
            for line in Path("/proc/mounts").read_text().splitlines():
                if line.split()[1].startswith(str(folder)):
                    subprocess.run(["umount", "-l", line.split()[1]], check=False)
            shutil.rmtree(folder, ignore_errors=True)


def _answering(url, engine, log):
    """A client, once the engine listens."""
    import docker

    for _ in range(400):
        if engine.poll() is not None:
            pytest.fail(f"dockerd ended: {log.read_text()[-2000:]}")
        with closing(socket.socket(socket.AF_UNIX)) as probe:
            if probe.connect_ex(url.removeprefix("unix://")) == 0:
                return docker.APIClient(base_url=url, version="auto")
        time.sleep(0.05)  # it has no other way to say so
    pytest.fail(f"dockerd does not answer: {log.read_text()[-2000:]}")


def small_image():
    """A root file system with PROGRAMS and python's modules, as an archive."""
    found = [path for name in PROGRAMS if (path := shutil.which(name, path=_PATH))]
    files = set(map(os.path.realpath, found))
    stdlib = Path(
        subprocess.check_output(
            ["/usr/bin/python3", "-Ic", "import os; print(os.path.dirname(os.__file__))"], text=True
        ).strip()
    )
    objects = [path for path in files if Path(path).read_bytes()[:4] == b"\x7fELF"] + list(
        map(str, stdlib.glob("lib-dynload/*.so"))
    )
    listed = subprocess.run(["ldd", *objects], capture_output=True, text=True, check=False).stdout
    libraries = set(re.findall(r"(?:=> |^\t)(/\S+) \(0x", listed, re.MULTILINE))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for link, target in (("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")):
            _add(tar, link, linkname=target)
        for folder in (
            "usr/bin",
            "usr/sbin",
            "usr/lib64",
            "usr/local/bin",
            "dev",
            "proc",
            "sys",
            "var/log",
            "etc",
            "home",
        ):
            _add(tar, folder, mode=0o755)
        _add(tar, "tmp", mode=0o1777)
        _add(tar, "root", mode=0o700)
        _add(tar, "etc/passwd", content=b"root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534::/:/bin/false\n")
        _add(tar, "etc/group", content=b"root:x:0:\nnogroup:x:65534:\n")
        # By their names in /usr, which is where links from / lead.
        copied = {_in_usr(path): path for path in files} | {_in_usr(path): os.path.realpath(path) for path in libraries}
        links = {f"usr/bin/{Path(path).name}": os.path.realpath(path) for path in found}
        for name, path in sorted(copied.items()):
            tar.add(path, arcname=name)
        for name, target in sorted(links.items()):
            if name not in copied:
                _add(tar, name, linkname=target)
        tar.add(stdlib, arcname=str(stdlib).lstrip("/"), filter=_modules)
    return buffer.getvalue()


def _in_usr(path):
    return path[1:] if path.startswith("/usr/") else f"usr{path}"


def _modules(info):
    is_left_out = re.search(
        r"/(__pycache__|test|idlelib|tkinter|lib2to3|ensurepip|config-[^/]*|dist-packages)(/|$)", info.name
    )
    return None if is_left_out else info


def _add(tar, name, *, mode=None, linkname=None, content=None):
    info = tarfile.TarInfo(name)
    if linkname is not None:
        info.type, info.linkname = tarfile.SYMTYPE, linkname
    elif content is None:
        info.type, info.mode = tarfile.DIRTYPE, mode
    else:
        info.size, info.mode = len(content), 0o644
    tar.addfile(info, io.BytesIO(content) if content is not None else None)


def cgroup_folders(keeper):
    """The control groups of a keeper's sandboxes."""
    # Not by a glob, which raises where groups of others go meanwhile.
    folders = (Path(above) / name for above, names, _ in os.walk("/sys/fs/cgroup") for name in names)
    return {folder for folder in folders if folder.name.startswith(f"agentrl_jax-{keeper}-")}


def processes_in(folders):
    """Process ids in control groups and those below them."""
    return [
        int(pid) for folder in folders for path in folder.glob("**/cgroup.procs") for pid in path.read_text().split()
    ]


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
