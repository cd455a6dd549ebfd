"""Addresses of a quorum's nodes, as named in a client's options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raftlog.errors import OptionError

# --- Addresses: ``host:port``, separated by commas (Kafka: ``bootstrap.servers``) -----------------
# An IPv6 address is in brackets, and the port is required. An address with a user name is refused.
# The error does not show it, since it may contain a password.

BOOTSTRAP_SERVERS: Final = "bootstrap.servers"
_PORT_MAX: Final = 65_535


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port of a node."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Return the distinct addresses in their order. Raises ``OptionError``."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise OptionError(option=BOOTSTRAP_SERVERS, reason="it is empty; give host:port,host:port")
    if "@" in text:
        reason = (
            "it has a user name; give host:port,host:port, and credentials by sasl or ssl options"
        )
        raise OptionError(option=BOOTSTRAP_SERVERS, reason=reason)
    return tuple(dict.fromkeys(map(_address, parts)))


def _address(text: str) -> Address:
    host, separator, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        separator = ""  # an IPv6 address without a port
    is_number = port.isascii() and port.isdigit()
    if not separator or not host or not is_number or not 0 < int(port) <= _PORT_MAX:
        reason = f"{text[:80]!r} is not host:port, as controller-1:9093 (IPv6: [address]:port)"
        raise OptionError(option=BOOTSTRAP_SERVERS, reason=reason)
    return Address(host, int(port))
