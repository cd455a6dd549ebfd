"""Where somebody listens, as text: ``host:port``, ``1@host:port`` and ``1@host:port:directory-id``.

Rules of this file:

1. A host with colons is an IPv6 address, in brackets. Ports are from 1 on: an address is told to
   others, so nobody may choose it later.
2. Everything that is not one of these forms is a ``ValueError`` that says which one was expected.
3. Nothing is looked up: only ``localhost`` and addresses of loopback count as this machine's.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

from raftlog.quorum.voters import Endpoint, Voter, VoterSet, is_host
from raftlog.types import ZERO_UUID, ReplicaKey

CONTROLLER_NAME: Final = "CONTROLLER"
"""What the listener for voters is called in endpoints (Kafka: ``controller.listener.names``)."""
CLIENTS_NAME: Final = "CLIENTS"

NODE_ID_MAX: Final = 2**31 - 1
_PORT_MAX: Final = 65_535
_DIRECTORY_ID: Final = re.compile(r"[A-Za-z0-9_-]{21}[AQgw]")
"""Sixteen bytes in 22 letters: the last one holds two bits."""


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[::1]:port``."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 0 < _number(port) <= _PORT_MAX:
        raise ValueError(f"an address is HOST:PORT with a port from 1 to {_PORT_MAX}")
    if host.startswith("[") and host.endswith("]"):
        inside = host[1:-1]
        if ":" not in inside or not is_host(inside):
            raise ValueError("what stands in brackets is no IPv6 address")
        return str(ipaddress.IPv6Address(inside)), _number(port)
    if ":" in host:
        raise ValueError("an IPv6 address is written in brackets: [::1]:9192")
    if not is_host(host):
        raise ValueError("an address is HOST:PORT, and this is no host")
    return host, _number(port)


def address_text(host: str, port: int) -> str:
    """``host:port``, as ``parse_address`` reads it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_static_voters(texts: Iterable[str]) -> VoterSet:
    """Voters of ``1@host:port`` each (Kafka: ``controller.quorum.voters``)."""
    return _voter_set(_voter(text.strip(), has_directory=False) for text in texts)


def parse_initial_voters(text: str) -> VoterSet:
    """Voters of ``1@host:port:directory-id,...`` (Kafka: ``kafka-storage --initial-controllers``,
    ``DynamicVoters``)."""
    return _voter_set(_voter(one.strip(), has_directory=True) for one in text.split(","))


def is_directory_id(text: str) -> bool:
    """Whether it is an id as Kafka writes it, that may name a directory (Kafka: ``Uuid``)."""
    return _DIRECTORY_ID.fullmatch(text) is not None and text != ZERO_UUID


def is_loopback(host: str) -> bool:
    """Whether only this machine gets there."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Whether it means every address of this machine, and so none that others could be told."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _voter_set(voters: Iterable[Voter]) -> VoterSet:
    found = list(voters)
    ids = [voter.key.node_id for voter in found]
    twice = next((one for one in ids if ids.count(one) > 1), None)
    if twice is not None:
        raise ValueError(f"node id {twice} is there twice")
    places = [voter.endpoints[0] for voter in found]
    if len(set(places)) < len(places):
        raise ValueError("two voters have one address")
    directories = [voter.key.directory_id for voter in found]
    named = [one for one in directories if one != ZERO_UUID]
    if len(set(named)) < len(named):
        raise ValueError("two voters have one directory id")
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
            f"{text!r} is not {form}: a directory id has 22 letters, as `raftlog node format` "
            "prints it"
        )
    try:
        host, port = parse_address(place)
    except ValueError as error:
        raise ValueError(f"{text!r} is not {form}: {error}") from None
    endpoints = (Endpoint(CONTROLLER_NAME, host, port),)
    return Voter(key=ReplicaKey(_number(node_id), directory_id), endpoints=endpoints)


def _number(digits: str) -> int:
    return int(digits[:12])  # enough to be too large
