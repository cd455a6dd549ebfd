"""``raftlog.follow``: the metadata log of a Kafka cluster, read from its live controllers.

Reading only: Kafka has no request to append to this log.
"""

from __future__ import annotations

import os

from raftlog.client.arguments import milliseconds, whole_number
from raftlog.limits import DECOMPRESSED_BYTES_MAX, DECOMPRESSED_BYTES_OPTION_MAX

from .addresses import parse_addresses
from .leader_client import TIMEOUT_MS_DEFAULT, LeaderClient
from .log import RemoteLog
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
    """Open the log of a quorum for reading, as a ``LogReader``.

    The nodes are Kafka's controllers or a raftlog quorum. The reader is for one thread; its
    connections are closed when it is garbage collected.

    Args:
        bootstrap: ``host:port`` of one or more nodes, separated by commas; of controllers those in
            ``controller.quorum.bootstrap.servers``.
        tls_ca, tls_certificate, tls_key, tls_key_password, tls_check_host, timeout_ms: as for
            ``connect``.
        decompressed_bytes_max: the largest size in bytes of a decompressed batch; a
            larger one raises ``DecompressionLimitError`` when it is read.

    Raises:
        OptionError: an argument is invalid, or a file cannot be used.
        QuorumUnavailableError: no leader answered within ``timeout_ms``.
        AccessDeniedError: a certificate was not accepted, or this client has no access to the log.
        NodeRefusedError: the nodes refuse a request, or have more than one topic.
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
