"""What must not reach a file that people pass on: tokens on command lines, passwords in addresses. Pure functions."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

HIDDEN = "***"
"""What stands in the place of a secret."""

# As addresses are read: up to the last @ before a path, so that a password with one in it is hidden whole.
# The name alone that ssh asks for is no secret, and a saved address is of no use without it.
_USER_INFO = re.compile(r"(?<=://)(?!(?<=ssh://)[^\s/?#'\":@]+@)[^\s/?#'\"]+(?=@)")
_SECRET_FLAG = re.compile(r"--(?:[\w.-]*[._-])?(?:token|password|secret|key)", re.IGNORECASE)


def without_passwords(text: str) -> str:
    """`text` with the user information of every address in it hidden.

    >>> without_passwords("lost http://any:abc@host:5020/api")
    'lost http://***@host:5020/api'
    """
    return _USER_INFO.sub(HIDDEN, text) if "@" in text else text


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """A command line with the values of secret flags, and passwords in addresses, hidden.

    >>> without_secrets(["train", "--remote.listen.token", "abc", "--controller-token=abc", "--token-file", "t"])
    ['train', '--remote.listen.token', '***', '--controller-token=***', '--token-file', 't']
    """
    shown: list[str] = []
    for argument in arguments:
        flag, equals, _ = argument.partition("=")
        if shown and _SECRET_FLAG.fullmatch(shown[-1]):
            shown.append(HIDDEN)
        elif equals and _SECRET_FLAG.fullmatch(flag):
            shown.append(f"{flag}={HIDDEN}")
        else:
            shown.append(without_passwords(argument))
    return shown


def redacted(value: Any) -> Any:
    """Nested plain values with `without_passwords` applied to every text.

    >>> redacted({"engines": ["sglang:http://u:p@host:30000", 1.5]})
    {'engines': ['sglang:http://***@host:30000', 1.5]}
    """
    if isinstance(value, str):
        return without_passwords(value)
    if isinstance(value, Mapping):
        return {key: redacted(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redacted(item) for item in value]
    return value
