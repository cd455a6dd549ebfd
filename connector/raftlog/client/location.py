"""Location of a log, its files or the nodes of a quorum, and opening it by location.

Options, such as Spark's, have either ``path`` or ``bootstrap.servers``. Names are Kafka's, not case
sensitive, with an optional prefix ``kafka.``. A location is text that can be sent to other
processes: addresses, and paths of certificates, which must exist on every machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from raftlog.errors import OptionError
from raftlog.limits import DECOMPRESSED_BYTES_MAX

from .arguments import refuse_schemes
from .directory import open_path
from .remote.addresses import BOOTSTRAP_SERVERS, parse_addresses
from .remote.tls import NO_TLS, TlsOptions

if TYPE_CHECKING:
    from raftlog.log.reading.log_reader import LogReader
    from raftlog.log.reading.reads import LogKind

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
"""Options for a quorum's nodes, by Kafka's names (for PEM files by librdkafka's)."""


@dataclass(frozen=True, slots=True)
class QuorumNodes:
    """TLS options for the nodes of a quorum, whose addresses are the location's ``path``."""

    tls: TlsOptions = NO_TLS


class HasLocation(Protocol):
    """Object with a location. ``path`` is that of files, or addresses if ``nodes`` is set."""

    @property
    def path(self) -> str: ...
    @property
    def nodes(self) -> QuorumNodes | None: ...


@dataclass(frozen=True, slots=True)
class LogLocation:
    """Location of a log. ``path`` is that of files, or addresses if ``nodes`` is set."""

    path: str
    nodes: QuorumNodes | None = None


def parse_location(options: Mapping[str, str], *, call: str = "it names the log") -> LogLocation:
    """Return the location in options; other options are ignored.

    ``call`` is how the user can give a path, for the error message. Raises ``OptionError`` unless
    exactly one of ``path`` and ``bootstrap.servers`` is given, and for invalid values.
    """
    given = {name.lower().removeprefix(PREFIX): value for name, value in options.items()}
    path, servers = given.get(PATH, "").strip(), given.get(BOOTSTRAP_SERVERS, "").strip()
    if not servers:
        if any(name in given for name in NODE_OPTIONS):
            raise OptionError(option=BOOTSTRAP_SERVERS, reason="is required with ssl options")
        if not path:
            reason = f"is missing: {call}, or give {BOOTSTRAP_SERVERS}"
            raise OptionError(option=PATH, reason=reason)
        refuse_schemes(path)
        return LogLocation(path)
    if path:
        reason = "cannot be given together with path: give one of them"
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
    """Open the log for reading.

    ``kind`` is the kind of records in files, None to detect it; nodes report theirs. Raises as
    ``open_path`` or ``raftlog.follow``.
    """
    if where.nodes is None:
        return open_path(where.path, kind=kind, decompressed_bytes_max=decompressed_bytes_max)
    from .remote.follow import follow

    return follow(where.path, decompressed_bytes_max=decompressed_bytes_max, **_tls(where.nodes))


def open_log(where: HasLocation) -> AnyLog:
    """Open an existing log for appending. Raises as ``raftlog.open`` or ``raftlog.connect``."""
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
