"""Parsing of addresses and voters: ``host:port``, ``1@host:port``, ``1@host:port:directory-id``.

An IPv6 address is in brackets. Port 0 is not allowed, because addresses are advertised. Any other
form raises ``ValueError`` with the expected form. Names are not resolved: only ``localhost`` and
loopback addresses count as loopback.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

from raftlog.quorum.voters import Endpoint, Voter, VoterSet, is_host
from raftlog.types import ZERO_UUID, ReplicaKey

CONTROLLER_NAME: Final = "CONTROLLER"
"""Name of the voters' listener in endpoints (Kafka: ``controller.listener.names``)."""
CLIENTS_NAME: Final = "CLIENTS"

NODE_ID_MAX: Final = 2**31 - 1
_PORT_MAX: Final = 65_535
_DIRECTORY_ID: Final = re.compile(r"[A-Za-z0-9_-]{21}[AQgw]")
"""Base64 of 16 bytes: 22 characters, of which the last one holds two bits."""


def parse_address(text: str) -> tuple[str, int]:
    """Return the host and port in ``host:port`` or ``[::1]:port``. Raises ``ValueError``."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 0 < _number(port) <= _PORT_MAX:
        raise ValueError(f"expected HOST:PORT with a port from 1 to {_PORT_MAX}")
    if host.startswith("[") and host.endswith("]"):
        inside = host[1:-1]
        if ":" not in inside or not is_host(inside):
            raise ValueError("expected [HOST]:PORT, but the host is not an IPv6 address")
        return str(ipaddress.IPv6Address(inside)), _number(port)
    if ":" in host:
        raise ValueError("write an IPv6 address in brackets: [::1]:9192")
    if not is_host(host):
        raise ValueError("expected HOST:PORT, but the host name is invalid")
    return host, _number(port)


def address_text(host: str, port: int) -> str:
    """Return ``host:port`` in the form that ``parse_address`` accepts."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_static_voters(texts: Iterable[str]) -> VoterSet:
    """Parse voters in the form ``1@host:port`` (Kafka: ``controller.quorum.voters``)."""
    return _voter_set(_voter(text.strip(), has_directory=False) for text in texts)


def parse_initial_voters(text: str) -> VoterSet:
    """Parse ``1@host:port:directory-id,...`` (Kafka: ``kafka-storage --initial-controllers``,
    ``DynamicVoters``)."""
    return _voter_set(_voter(one.strip(), has_directory=True) for one in text.split(","))


def parse_voters(text: str) -> VoterSet:
    """Parse ``1@host:port,...``, each voter with or without ``:directory-id``."""
    return _voter_set(
        _voter(one.strip(), has_directory=is_directory_id(one.strip().rpartition(":")[2]))
        for one in text.split(",")
    )


def is_directory_id(text: str) -> bool:
    """Return whether a text is a valid directory id in Kafka's form (Kafka: ``Uuid``)."""
    return _DIRECTORY_ID.fullmatch(text) is not None and text != ZERO_UUID


def is_loopback(host: str) -> bool:
    """Return whether a host is ``localhost`` or a loopback address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Return whether a host is a wildcard address, which cannot be advertised."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _voter_set(voters: Iterable[Voter]) -> VoterSet:
    found = list(voters)
    ids = [voter.key.node_id for voter in found]
    twice = next((one for one in ids if ids.count(one) > 1), None)
    if twice is not None:
        raise ValueError(f"duplicate node id {twice}")
    addresses = [voter.endpoints[0] for voter in found]
    if len(set(addresses)) < len(addresses):
        raise ValueError("two voters have the same address")
    directories = [voter.key.directory_id for voter in found]
    named = [one for one in directories if one != ZERO_UUID]
    if len(set(named)) < len(named):
        raise ValueError("two voters have the same directory id")
    return VoterSet.of(found)


def _voter(text: str, *, has_directory: bool) -> Voter:
    form = "ID@HOST:PORT:DIRECTORY_ID" if has_directory else "ID@HOST:PORT"
    node_id, at, place = text.partition("@")
    directory_id = ZERO_UUID
    if has_directory:
        place, _, directory_id = place.rpartition(":")
    if not at or not node_id.isascii() or not node_id.isdigit() or _number(node_id) > NODE_ID_MAX:
        raise ValueError(f"{text!r} is not {form}")
    if has_directory and not is_directory_id(directory_id):
        raise ValueError(
            f"{text!r} is not {form}: a directory id has 22 characters, as printed by `raftlog "
            "node format`"
        )
    try:
        host, port = parse_address(place)
    except ValueError as error:
        raise ValueError(f"{text!r} is not {form}: {error}") from None
    endpoints = (Endpoint(CONTROLLER_NAME, host, port),)
    return Voter(key=ReplicaKey(_number(node_id), directory_id), endpoints=endpoints)


def _number(digits: str) -> int:
    return int(digits[:12])  # 12 digits exceed every bound
