"""The one place that knows how a log is reached: by its files, or by the nodes of a quorum.

Rules of this file:

1. A load, a save or a start names one of the two, ``path`` or ``bootstrap.servers``; all that
   follows asks here, and is the same for both.
2. What travels to executors is text: addresses, and paths of certificates that must be there, too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from raftlog import ValueKind
from raftlog.client.remote.addresses import BOOTSTRAP_SERVERS, parse_addresses
from raftlog.client.remote.tls import NO_TLS, TlsOptions
from raftlog.errors import LogNotFoundError, OptionError

from .option_values import Parse, text

if TYPE_CHECKING:
    from raftlog import ConnectedLog, EmbeddedLog
    from raftlog.client import LogReader

    AnyLog: TypeAlias = EmbeddedLog | ConnectedLog

_HOST_CHECK: Final = "ssl.endpoint.identification.algorithm"


@dataclass(frozen=True, slots=True)
class Nodes:
    """A quorum instead of files: its addresses stand where the path would."""

    tls: TlsOptions = NO_TLS


class Reached(Protocol):
    """Options that say where a log is. ``path``: its files, or addresses if there are ``nodes``."""

    @property
    def path(self) -> str: ...
    @property
    def nodes(self) -> Nodes | None: ...


@dataclass(frozen=True, slots=True)
class Settings:
    """What a writer must know of a log. ``byte_count_max`` is of one batch."""

    values: ValueKind
    byte_count_max: int
    is_compressed: bool


# --- doors ----------------------------------------------------------------------------------------


def open_reader(where: Reached) -> LogReader:
    """The log for reading. Raises what ``open_path`` or ``raftlog.follow`` raise."""
    if where.nodes is None:
        from raftlog.client import open_path

        return open_path(where.path)
    import raftlog

    tls = where.nodes.tls
    return raftlog.follow(
        where.path,
        tls_ca=tls.ca,
        tls_certificate=tls.certificate,
        tls_key=tls.key,
        tls_key_password=tls.key_password,
        tls_check_host=tls.check_host,
    )


def open_log(where: Reached) -> AnyLog:
    """The log for appending; one of files must be there. Raises what opening or connecting does."""
    import raftlog

    if where.nodes is None:
        return raftlog.open(where.path, create=False)
    tls = where.nodes.tls
    return raftlog.connect(
        where.path,
        tls_ca=tls.ca,
        tls_certificate=tls.certificate,
        tls_key=tls.key,
        tls_key_password=tls.key_password,
        tls_check_host=tls.check_host,
    )


def settings_of(where: Reached) -> Settings:
    """How the log takes records. Raises ``LogNotFoundError``, ``NotALogError``,
    ``CorruptFileError``, and what connecting raises."""
    if where.nodes is not None:
        with open_log(where) as log:
            return settings_of_open(log)
    from raftlog.client.configuring import settings_of as settings_in

    try:
        settings = settings_in(where.path)
    except LogNotFoundError:
        remedy = "check the path, or make a log there first: raftlog.open(path).close()"
        raise LogNotFoundError(path=where.path, remedy=remedy) from None
    return Settings(
        ValueKind(settings["values"]),
        int(settings["max.message.bytes"]),
        settings["compression.type"] != "none",
    )


def settings_of_open(log: Any) -> Settings:
    """Those of a quorum's log that is connected."""
    return Settings(log.values, log.batch_bytes_max, log.is_compressed)


# --- options --------------------------------------------------------------------------------------


def _https_or_none(name: str, value: str) -> bool:
    match value.strip().lower():
        case "https":
            return True
        case "none" | "":
            return False
        case _:
            raise OptionError(option=name, reason="must be https or none")


_NODE_OPTIONS: Final[Mapping[str, tuple[str, Parse]]] = {
    BOOTSTRAP_SERVERS: ("bootstrap_servers", text),
    "ssl.ca.location": ("tls_ca", text),
    "ssl.certificate.location": ("tls_certificate", text),
    "ssl.key.location": ("tls_key", text),
    "ssl.key.password": ("tls_key_password", text),
    _HOST_CHECK: ("tls_check_host", _https_or_none),
}
DOOR_OPTIONS: Final[Mapping[str, tuple[str, Parse]]] = {
    "path": ("path", text),
    **_NODE_OPTIONS,
    **{f"kafka.{name}": taken for name, taken in _NODE_OPTIONS.items()},
}
"""Documented name (or alias, as Spark's Kafka source has them) to what ``take_door`` looks for."""


def take_door(given: dict[str, Any], call: str) -> tuple[str, Nodes | None]:
    """Path and nodes of parsed options, which are taken out of ``given``.

    Raises ``OptionError`` if both are given or none; ``call`` is what a path is given to.
    """
    path = given.pop("path", "").strip()
    servers = given.pop("bootstrap_servers", "").strip()
    tls = {name: given.pop(name) for _, (name, _) in _NODE_OPTIONS.items() if name in given}
    if not servers:
        if tls:
            raise OptionError(option=BOOTSTRAP_SERVERS, reason="is missing beside ssl.* options")
        if not path:
            raise OptionError(
                option="path", reason=f"is missing; call {call}, or give {BOOTSTRAP_SERVERS}"
            )
        return path, None
    if path:
        raise OptionError(
            option=BOOTSTRAP_SERVERS, reason="says where the log is, and so does path"
        )
    parse_addresses(servers)
    files = {
        name.removeprefix("tls_"): os.path.abspath(value)
        if name in ("tls_ca", "tls_certificate", "tls_key")
        else value
        for name, value in tls.items()
    }
    return servers, Nodes(TlsOptions(**files))
