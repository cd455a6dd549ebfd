"""The one place that knows how a log is reached: by its files, or by the nodes of a quorum.

Rules of this file:

1. Whoever is given options, as Spark has them, names one of the two: ``path`` or
   ``bootstrap.servers``. Names are Kafka's, matched without case; ``kafka.`` may stand before them.
2. What is known of a place is text, which travels: addresses, and paths of certificates that must
   be there on every machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from raftlog.errors import OptionError
from raftlog.limits import DECOMPRESSED_BYTES_MAX

from .directory import open_path
from .paths import refuse_schemes
from .remote.addresses import BOOTSTRAP_SERVERS, parse_addresses
from .remote.tls import NO_TLS, TlsOptions

if TYPE_CHECKING:
    from raftlog.log.reader import LogReader
    from raftlog.log.reads import LogKind

    from .embedded import EmbeddedLog
    from .remote.handle import ConnectedLog

    AnyLog: TypeAlias = EmbeddedLog | ConnectedLog

PATH: Final = "path"
PREFIX: Final = "kafka."
_FILES: Final = {
    "ssl.ca.location": "ca",
    "ssl.certificate.location": "certificate",
    "ssl.key.location": "key",
}
_PASSWORD: Final = "ssl.key.password"
_CHECK_HOST: Final = "ssl.endpoint.identification.algorithm"
NODE_OPTIONS: Final = (BOOTSTRAP_SERVERS, *_FILES, _PASSWORD, _CHECK_HOST)
"""What is said of nodes, by Kafka's names (those of librdkafka where they are of PEM files)."""


@dataclass(frozen=True, slots=True)
class QuorumNodes:
    """A quorum instead of files: its addresses stand where the path would."""

    tls: TlsOptions = NO_TLS


class HasLocation(Protocol):
    """What says where a log is. ``path``: of its files, or addresses if there are ``nodes``."""

    @property
    def path(self) -> str: ...
    @property
    def nodes(self) -> QuorumNodes | None: ...


@dataclass(frozen=True, slots=True)
class LogLocation:
    """Where a log is."""

    path: str
    nodes: QuorumNodes | None = None


def parse_location(options: Mapping[str, str], *, call: str = "it names the log") -> LogLocation:
    """The place that options name; others among them are passed over.

    Raises ``OptionError`` if none is named, or two; ``call`` says where a path would have been.
    """
    given = {name.lower().removeprefix(PREFIX): value for name, value in options.items()}
    path, servers = given.get(PATH, "").strip(), given.get(BOOTSTRAP_SERVERS, "").strip()
    if not servers:
        if any(name in given for name in NODE_OPTIONS):
            raise OptionError(option=BOOTSTRAP_SERVERS, reason="is missing beside ssl options")
        if not path:
            reason = f"is missing: {call}, or give {BOOTSTRAP_SERVERS}"
            raise OptionError(option=PATH, reason=reason)
        refuse_schemes(path)
        return LogLocation(path)
    if path:
        reason = "says where the log is, and so does path: give one of them"
        raise OptionError(option=BOOTSTRAP_SERVERS, reason=reason)
    parse_addresses(servers)
    files = {field: os.path.abspath(given[name]) for name, field in _FILES.items() if name in given}
    tls = TlsOptions(
        **files, key_password=given.get(_PASSWORD), check_host=_check_host(given.get(_CHECK_HOST))
    )
    return LogLocation(servers, QuorumNodes(tls))


def open_reader(
    where: HasLocation,
    kind: LogKind | None = None,
    *,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> LogReader:
    """Return the log for reading.

    ``kind`` declares what records in files are; nodes say it of theirs. Raises what ``open_path``
    or ``raftlog.follow`` raise.
    """
    if where.nodes is None:
        return open_path(where.path, kind=kind, decompressed_bytes_max=decompressed_bytes_max)
    from .remote.follow import follow

    return follow(where.path, decompressed_bytes_max=decompressed_bytes_max, **_tls(where.nodes))


def open_log(where: HasLocation) -> AnyLog:
    """The log for appending; one of files must be there. Raises what opening or connecting does."""
    if where.nodes is None:
        from .embedded import open_embedded

        return open_embedded(where.path, create=False)
    from .remote.handle import connect

    return connect(where.path, **_tls(where.nodes))


def _tls(nodes: QuorumNodes) -> dict[str, Any]:
    tls = nodes.tls
    return {
        "tls_ca": tls.ca,
        "tls_certificate": tls.certificate,
        "tls_key": tls.key,
        "tls_key_password": tls.key_password,
        "tls_check_host": tls.check_host,
    }


def _check_host(algorithm: str | None) -> bool:
    match (algorithm or "https").strip().lower():
        case "https":
            return True
        case "none":
            return False
        case _:
            raise OptionError(option=_CHECK_HOST, reason="must be https or none")
