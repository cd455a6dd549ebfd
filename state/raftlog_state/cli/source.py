"""Source of a command: either PATH or ``--bootstrap-server``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final

from .parser import NODES_TIMEOUT_MS, Parser, kind_of

if TYPE_CHECKING:
    from raftlog.client import LogReader
    from raftlog.client.remote.leader_client import LeaderClient

_NODE_OPTIONS: Final = ("tls_ca", "tls_certificate", "tls_key", "timeout_ms")


@contextmanager
def log_of(arguments: argparse.Namespace, parser: Parser) -> Iterator[LogReader]:
    """Open the log that PATH or ``--bootstrap-server`` names.

    Raises ``WrongCallError``, ``OptionError`` and the errors of ``open_path``.
    """
    if arguments.bootstrap_server is None:
        if arguments.path is None:
            parser.error("PATH or --bootstrap-server is required")
        for name in _NODE_OPTIONS:
            if getattr(arguments, name) is not None:
                parser.error(f"--{name.replace('_', '-')} requires --bootstrap-server")

        from raftlog.client import open_path

        limit = arguments.max_decompressed_bytes
        yield open_path(arguments.path, kind=kind_of(arguments), decompressed_bytes_max=limit)
        return
    if arguments.path is not None:
        parser.error("PATH and --bootstrap-server are mutually exclusive")
    if getattr(arguments, "record_kind", None) is not None:
        parser.error("--as requires PATH: nodes report the kind of their log")

    from raftlog.client.remote.log import RemoteLog

    with closing(quorum_of(arguments)) as quorum:
        yield RemoteLog(quorum, decompressed_bytes_max=arguments.max_decompressed_bytes)


def quorum_of(arguments: argparse.Namespace) -> LeaderClient:
    """Return a client for the nodes in ``Parser.add_nodes``' options. Raises ``OptionError``."""
    from raftlog.client.arguments import milliseconds
    from raftlog.client.remote.addresses import parse_addresses
    from raftlog.client.remote.leader_client import LeaderClient
    from raftlog.client.remote.tls import TlsOptions

    tls = TlsOptions(
        ca=arguments.tls_ca, certificate=arguments.tls_certificate, key=arguments.tls_key
    )
    asked_ms = NODES_TIMEOUT_MS if arguments.timeout_ms is None else arguments.timeout_ms
    timeout_ms = milliseconds(asked_ms, "--timeout-ms")
    return LeaderClient(parse_addresses(arguments.bootstrap_server), tls, timeout_ms=timeout_ms)
