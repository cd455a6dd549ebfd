"""Nodes of a quorum as a client's options name them: addresses and TLS."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final

from raftlog.errors import OptionError

# --- Addresses: ``host:port``, separated by commas (Kafka: ``bootstrap.servers``) -----------------
# An IPv6 address is in brackets, and the port is required. An address with a user name is refused,
# and not shown in the error, since it may contain a password.

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
        reason = "it has a user name; give host:port,host:port, and certificates by ssl options"
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
        reason = f"{text[:80]!r} is not host:port (for IPv6: [address]:port)"
        raise OptionError(option=BOOTSTRAP_SERVERS, reason=reason)
    return Address(host, int(port))


# --- TLS: the CA that a client trusts and its own certificate, as PEM files -----------------------
# Without a CA connections are plain text. With one a node's certificate is verified, and its host
# name unless that is disabled. Options hold paths, since they are sent to other processes; the
# password of the key is not in their ``repr``.


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """Paths of PEM files: the CA that signed the nodes' certificates; this client's certificate
    (with its chain) and key, if the nodes require one.

    ``check_host``: whether a node's certificate must name the host that is connected to (Kafka:
    ``ssl.endpoint.identification.algorithm``).
    """

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    check_host: bool = True

    def __post_init__(self) -> None:
        if self.ca is None and any((self.certificate, self.key, self.key_password)):
            reason = "it is required with a client certificate: only verified nodes get that"
            raise OptionError(option="tls_ca", reason=reason)
        if self.certificate is None and (self.key or self.key_password):
            raise OptionError(option="tls_certificate", reason="it is required with tls_key")


NO_TLS = TlsOptions()


def tls_from_files(
    ca: str | os.PathLike[str] | None,
    certificate: str | os.PathLike[str] | None,
    key: str | os.PathLike[str] | None,
    key_password: str | None,
    check_host: bool,
) -> TlsOptions:
    """Return the TLS options in the arguments of a call. Raises ``OptionError``."""
    return TlsOptions(
        ca=_path(ca),
        certificate=_path(certificate),
        key=_path(key),
        key_password=key_password,
        check_host=check_host,
    )


def _path(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)
