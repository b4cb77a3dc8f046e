"""The file system that sandboxes of bubblewrap start from: this machine's programs, and nothing else of it.

/usr is shared, without /usr/local. Of /etc only what programs need to run is copied, by an allow list; accounts are
made up. All else that a machine has is empty.
"""

import os
import shutil
import stat
from pathlib import Path

from agentrl_jax.errors import ConfigError

_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_FOLDERS = ("dev", "etc", "home", "media", "mnt", "opt", "proc", "run", "srv", "usr", "var")
_VAR_FOLDERS = ("backups", "cache", "lib", "log", "mail", "opt", "spool")
# As on a machine that was installed some time ago; tasks count, search and measure what is there.
_INSTALLED_S = 1_704_067_200
_DATE = "2024-01-01 00:00:00"
_PACKAGES = (
    *(
        "base-files",
        "bash",
        "bsdutils",
        "coreutils",
        "dash",
        "debconf",
        "debianutils",
        "diffutils",
        "dpkg",
        "findutils",
    ),
    *(
        "gawk",
        "git",
        "grep",
        "gzip",
        "hostname",
        "init-system-helpers",
        "libc-bin",
        "libc6",
        "libgcc-s1",
        "libgpg-error0",
    ),
    *("libpcre2-8-0", "libselinux1", "libsystemd0", "login", "mawk", "mount", "ncurses-bin", "passwd", "perl-base"),
    *(
        "procps",
        "python3",
        "sed",
        "sysvinit-utils",
        "tar",
        "tree",
        "unzip",
        "util-linux",
        "vim",
        "wget",
        "zip",
        "zlib1g",
    ),
)
_STEPS = ("install {} <none> 1.0", "status half-installed {} 1.0", "status unpacked {} 1.0", "status installed {} 1.0")
_LOGS = {
    "alternatives.log": f"update-alternatives {_DATE}: run with --install /usr/bin/awk awk /usr/bin/mawk 5\n",
    "apt/history.log": "",
    "btmp": "",
    "dpkg.log": "".join(f"{_DATE} {step.format(f'{name}:amd64')}\n" for name in _PACKAGES for step in _STEPS),
    "faillog": "",
    "lastlog": "",
    "wtmp": "",
}
_LOCAL_FOLDERS = ("bin", "etc", "games", "include", "lib", "sbin", "share", "src")
_STICKY = 0o1777
# Of /etc: nothing that describes this machine, its networks, its accounts or its services.
_ETC = (
    *("adduser.conf", "alternatives", "bash.bashrc", "bash_completion.d", "debian_version", "deluser.conf"),
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "login.defs", "lsb-release", "magic", "magic.mime"),
    *("mime.types", "mke2fs.conf", "nanorc", "networks", "os-release", "pam.conf", "pam.d", "profile", "protocols"),
    *("rpc", "security", "services", "shells", "skel", "terminfo", "vim", "wgetrc"),
)
_ETC_PATTERNS = ("python3*", "java-*-openjdk", "perl")
# Name, user, group, home.
_SYSTEM_ACCOUNTS = (
    *(("daemon", 1, 1, "/usr/sbin"), ("bin", 2, 2, "/bin"), ("sys", 3, 3, "/dev"), ("games", 5, 60, "/usr/games")),
    *(("man", 6, 12, "/var/cache/man"), ("mail", 8, 8, "/var/mail"), ("www-data", 33, 33, "/var/www")),
    *(("backup", 34, 34, "/var/backups"), ("nobody", 65534, 65534, "/nonexistent")),
)
_GROUPS = (
    *(("root", 0), ("daemon", 1), ("bin", 2), ("sys", 3), ("adm", 4), ("tty", 5), ("disk", 6), ("man", 12)),
    *(("mail", 8), ("sudo", 27), ("www-data", 33), ("backup", 34), ("shadow", 42), ("staff", 50), ("games", 60)),
    *(("users", 100), ("nogroup", 65534)),
)
_BASHRC = "# Read by interactive shells.\n"
_PROFILE = '[ -n "$BASH" ] && [ -f ~/.bashrc ] && . ~/.bashrc\n'


def check_host(root: Path = Path("/")) -> None:
    """Raises ConfigError unless the programs of the machine at `root` can be shared."""
    apart = [name for name in _LINKS if (root / name).is_dir() and not (root / name).is_symlink()]
    if apart:
        raise ConfigError(
            f"sandboxes share /usr, but on this machine /{apart[0]} is a folder of its own: name a file system to use "
            "with --sandbox bubblewrap:FOLDER"
        )
    missing = [name for name in ("bash", "env", "sleep") if not (root / "usr/bin" / name).exists()]
    if missing:
        raise ConfigError(f"sandboxes share /usr, but there is no /usr/bin/{missing[0]} on this machine")


def build(target: Path, host: Path = Path("/")) -> None:
    """Write everything but /usr into the empty folder `target`."""
    for name in _LINKS:
        if (host / name).is_symlink():
            (target / name).symlink_to(os.readlink(host / name))
    for name in _FOLDERS:
        (target / name).mkdir()
    for name in _VAR_FOLDERS:
        (target / "var" / name).mkdir()
    (target / "var/log/apt").mkdir()
    for name, text in _LOGS.items():
        (target / "var/log" / name).write_text(text)
    (target / "var/run").symlink_to("/run")
    (target / "run/lock").mkdir()
    (target / "var/lock").symlink_to("/run/lock")
    for path in (target / "tmp", target / "var/tmp"):
        path.mkdir()
        path.chmod(_STICKY)
    home = target / "root"
    home.mkdir(mode=0o700)
    (home / ".bashrc").write_text(_BASHRC)
    (home / ".profile").write_text(_PROFILE)
    _copy_etc(host / "etc", target / "etc")
    _write_accounts(target / "etc")
    for folder, _, names in os.walk(target, topdown=False):
        for touched in (folder, *(os.path.join(folder, name) for name in names)):
            os.utime(touched, (_INSTALLED_S, _INSTALLED_S), follow_symlinks=False)


def build_masks(target: Path, host: Path = Path("/")) -> list[Path]:
    """The layers that go over the host's /usr, topmost first: they replace /usr/local, and make the sandbox's root
    the owner of the first level of folders."""
    over, hide = target / "over", target / "hide"
    over.mkdir()
    hide.mkdir()
    for path in (host / "usr").iterdir():
        if path.is_dir() and not path.is_symlink():
            (over / path.name).mkdir(mode=stat.S_IMODE(path.stat().st_mode))
    # A character device 0/0 is how overlays say that something is not there.
    os.mknod(hide / "local", stat.S_IFCHR, os.makedev(0, 0))
    (over / "local").mkdir(exist_ok=True)
    for name in _LOCAL_FOLDERS:
        (over / "local" / name).mkdir()
    return [over, hide]


def _copy_etc(source: Path, target: Path) -> None:
    paths = [source / name for name in _ETC]
    for pattern in _ETC_PATTERNS:
        paths += source.glob(pattern)
    for path in paths:
        copy = target / path.name
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, copy, symlinks=True, ignore=_unreadable)
        elif path.is_symlink() or (path.is_file() and _is_public(path)):
            shutil.copy(path, copy, follow_symlinks=False)


def _unreadable(folder: str, names: list[str]) -> set[str]:
    paths = {name: Path(folder, name) for name in names}
    return {name for name, path in paths.items() if not path.is_symlink() and not _is_public(path)}


def _is_public(path: Path) -> bool:
    """Whether everybody may read it: what is kept from others on this machine is kept from sandboxes."""
    wanted = stat.S_IROTH | (stat.S_IXOTH if path.is_dir() else 0)
    return path.stat().st_mode & wanted == wanted


def _write_accounts(etc: Path) -> None:
    passwd = ["root:x:0:0:root:/root:/bin/bash"]
    passwd += [f"{name}:x:{uid}:{gid}:{name}:{home}:/usr/sbin/nologin" for name, uid, gid, home in _SYSTEM_ACCOUNTS]
    names = [line.split(":")[0] for line in passwd]
    files = {
        "passwd": passwd,
        "group": [f"{name}:x:{gid}:" for name, gid in _GROUPS],
        "shadow": [f"{name}:*:19000:0:99999:7:::" for name in names],
        "gshadow": [f"{name}:*::" for name, _ in _GROUPS],
        "hosts": ["127.0.0.1\tlocalhost", "::1\tlocalhost"],
        "hostname": ["sandbox"],
        "resolv.conf": [],
        "nsswitch.conf": [f"{name}: files" for name in ("passwd", "group", "shadow", "hosts", "services", "protocols")],
        "environment": [],
        "fstab": [],
        "timezone": ["Etc/UTC"],
        "sudoers": ["Defaults\tenv_reset", "root\tALL=(ALL:ALL) ALL", "%sudo\tALL=(ALL:ALL) ALL"],
        "issue": ["Debian GNU/Linux"],
    }
    for name, lines in files.items():
        path = etc / name
        path.write_text("".join(f"{line}\n" for line in lines))
        path.chmod({"shadow": 0o640, "gshadow": 0o640, "sudoers": 0o440}.get(name, 0o644))
    for name in ("default", "cron.d", "init.d", "logrotate.d", "opt", "sudoers.d", "profile.d", "ssl"):
        (etc / name).mkdir(exist_ok=True)
    (etc / "default/useradd").write_text("SHELL=/bin/sh\n")
    (etc / "localtime").symlink_to("/usr/share/zoneinfo/Etc/UTC")
    (etc / "mtab").symlink_to("/proc/self/mounts")
