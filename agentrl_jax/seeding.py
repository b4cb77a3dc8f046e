"""Seeds derived from names, so that what happens does not depend on when or where it happens."""

from hashlib import blake2b


def derive_seed(*parts: int | str) -> int:
    """Return a seed in [0, 2**63) that is a stable hash of `parts`.

    It is the same in every process and on every machine (Python's own `hash` is not). Parts are typed and
    delimited: `("a", "bc")` and `("ab", "c")` differ, and so do `1` and `"1"`.

    >>> derive_seed(7, "rollout", 3) == derive_seed(7, "rollout", 3)
    True
    >>> derive_seed(1) == derive_seed("1")
    False
    """
    digest = blake2b(digest_size=8)
    for part in parts:
        encoded = f"{type(part).__name__}:{part}".encode()
        digest.update(len(encoded).to_bytes(4, "little") + encoded)
    return int.from_bytes(digest.digest(), "little") >> 1
