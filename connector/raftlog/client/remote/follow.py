"""``raftlog.follow``: the metadata of a Kafka cluster, read from its live controllers.

Rules of this file:

1. Only reading: Kafka offers nobody a door to append to this log by.
"""

from __future__ import annotations

import os

from raftlog.client.arguments import milliseconds, whole_number
from raftlog.limits import DECOMPRESSED_BYTES_MAX, DECOMPRESSED_BYTES_OPTION_MAX

from .addresses import parse_addresses
from .leader_client import TIMEOUT_MS_DEFAULT, LeaderClient
from .remote_log import RemoteLog
from .tls import tls_from_files


def follow(
    bootstrap: str,
    *,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_certificate: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    tls_key_password: str | None = None,
    tls_check_host: bool = True,
    timeout_ms: float = TIMEOUT_MS_DEFAULT,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> RemoteLog:
    """Read the log of the nodes at ``host:port,host:port``: a ``LogReader`` as of a directory.

    Kafka's controllers (``controller.quorum.bootstrap.servers``), or the nodes of a quorum of
    raftlog's. Options are those of ``connect``; a compressed batch that expands to more than
    ``decompressed_bytes_max`` bytes is not read. One thread uses it; it ends with its last user.

    Raises ``OptionError``, ``QuorumUnavailableError``, ``AccessDeniedError``, ``NodeRefusedError``.
    """
    tls = tls_from_files(tls_ca, tls_certificate, tls_key, tls_key_password, tls_check_host)
    wait_ms = milliseconds(timeout_ms, "timeout_ms")
    limit = whole_number(
        decompressed_bytes_max,
        "decompressed_bytes_max",
        at_least=1,
        at_most=DECOMPRESSED_BYTES_OPTION_MAX,
    )
    quorum = LeaderClient(parse_addresses(bootstrap), tls, timeout_ms=wait_ms)
    return RemoteLog(quorum, decompressed_bytes_max=limit)
