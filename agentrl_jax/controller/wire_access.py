"""Who may use the controller: a token that clients send, and networks whose machines need none."""

import base64
from collections.abc import Mapping
from hmac import compare_digest
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from agentrl_jax.controller.remote_config import ListenConfig
from agentrl_jax.engines.http_server import is_loopback
from agentrl_jax.errors import ConfigError


class Access:
    """Decides by a request's `authorization` header and its peer's address. Raises ConfigError for an address that
    others can reach and no token, and for a token, its file or a network that is none."""

    def __init__(self, config: ListenConfig) -> None:
        config = config.with_token()
        self._token = config.token
        self._trusted = [_network(text) for text in config.trusted]
        if config.token is not None and not (config.token and config.token.isascii() and config.token.isprintable()):
            raise ConfigError("the token must consist of printable ASCII characters, at least one")
        if config.token is None and config.trusted:
            raise ConfigError("trusted networks have no effect without a token: everybody is trusted then")
        if config.token is None and not is_loopback(config.host):
            raise ConfigError(
                f"{config.host} can be reached from other machines, which could then run sessions and pose as workers: "
                "give a token that clients and workers must send, or stay on 127.0.0.1"
            )

    def admits(self, headers: Mapping[str, str], peer: str) -> bool:
        """Whether a request with these headers (names in lower case) from this address may be answered."""
        return self._token is None or self._is_trusted(peer) or self.has_token(headers)

    def has_token(self, headers: Mapping[str, str]) -> bool:
        """Whether a request brings the token that is asked for."""
        if self._token is None:
            return False
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "basic":
            given = _password(given)
        return compare_digest(given.encode(), self._token.encode())

    def _is_trusted(self, peer: str) -> bool:
        try:
            address: IPv4Address | IPv6Address = ip_address(peer)
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._trusted)


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise ConfigError(f"expected a network such as 10.0.0.0/8, got {text!r}: {error}") from error


def _password(credentials: str) -> str:
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except ValueError:  # binascii.Error and UnicodeDecodeError are such
        return ""
