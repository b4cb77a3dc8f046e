"""Secrets that stand in files: what a command line says, every user of its machine can read. No jax."""

import os
import stat
from pathlib import Path

from agentrl_jax.errors import ConfigError


def chosen_token(token: str | None, file: Path | None, *, flag: str = "--token") -> str | None:
    """The token that is given, or stands in `file`; None if there is neither. flag: the one of `token`.

    Raises ConfigError if both are given, or `file` cannot be read, is empty, or can be read by other users.
    """
    if file is None:
        return token
    if token is not None:
        raise ConfigError(f"{flag} and {flag}-file say the same: leave one of them out")
    try:
        with file.open(encoding="ascii") as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            found = opened.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{flag}-file {file}: expected a file with a token, in ASCII: {error}") from error
    if mode & 0o077:
        raise ConfigError(f"{flag}-file {file}: other users may use it (mode {mode:o}); chmod 600 keeps it yours")
    if not found:
        raise ConfigError(f"{flag}-file {file} is empty")
    return found
