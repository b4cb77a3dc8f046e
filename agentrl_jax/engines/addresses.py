"""Names of engines on a command line. No jax, no trio."""

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl_jax.errors import ConfigError
from agentrl_jax.types import Pool

LOCAL = "local"
"""The embedded engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """url: http://host:port. name: what turns record."""

    url: str
    name: str
    pool: Pool


def check_addresses(current: Sequence[str], lagging: Sequence[str]) -> None:
    """Raise ConfigError unless `current` is LOCAL alone, or both are servers, each named once."""
    if not current:
        raise ConfigError(f"--engines must name at least one engine: {LOCAL}, or sglang:http://host:port")
    if LOCAL not in current:
        parse_addresses(current, lagging)
    elif len(current) > 1 or lagging:
        raise ConfigError(
            f"--engines {LOCAL} is this process, with a lagging engine of its own: name no others, got "
            f"{' '.join((*current, *lagging))}"
        )


def parse_addresses(current: Sequence[str], lagging: Sequence[str]) -> tuple[ServerAddress, ...]:
    """Addresses such as sglang:http://host:port. Raises ConfigError: another kind, or one that is named twice."""
    addresses = []
    pools: tuple[tuple[str, Pool, Sequence[str]], ...] = (
        ("--engines", "current", current),
        ("--lagging-engines", "lagging", lagging),
    )
    for flag, pool, given in pools:
        for number, text in enumerate(given):
            kind, _, url = text.partition(":")
            if kind != "sglang" or not url.startswith(("http://", "https://")):
                raise ConfigError(f"{flag}: expected sglang:http://host:port, got {text!r}")
            addresses.append(ServerAddress(url=url.rstrip("/"), name=f"{pool}-{number}", pool=pool))
    urls = [address.url for address in addresses]
    twice = sorted({url for url in urls if urls.count(url) > 1})
    if twice:
        raise ConfigError(f"an engine serves one policy at a time, but {', '.join(twice)} is named twice")
    return tuple(addresses)
