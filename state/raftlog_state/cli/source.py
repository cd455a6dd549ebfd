"""Where a command reads from: a path, or nodes that run.

Rules of this file:

1. One of the two is named, never both: a log in files and that of a cluster may be different ones.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from .parser import Parser

if TYPE_CHECKING:
    from raftlog.client import LogReader
    from raftlog.client.remote.quorum import Quorum


def log_of(arguments: argparse.Namespace, parser: Parser) -> LogReader:
    """The log that PATH or ``--bootstrap-server`` names. Raises ``WrongCallError``, ``OptionError``
    and what opening a log raises."""
    if arguments.bootstrap_server is None:
        if arguments.path is None:
            parser.error("PATH or --bootstrap-server is required")

        from raftlog.client import open_path

        return open_path(arguments.path)
    if arguments.path is not None:
        parser.error("PATH or --bootstrap-server, not both")

    from raftlog.client.remote.remote_log import RemoteLog

    return RemoteLog(quorum_of(arguments))


def quorum_of(arguments: argparse.Namespace) -> Quorum:
    """The nodes that ``Parser.add_nodes``' options name. Raises ``OptionError``."""
    from raftlog.client.arguments import milliseconds
    from raftlog.client.remote.addresses import parse_addresses
    from raftlog.client.remote.quorum import Quorum
    from raftlog.client.remote.tls import TlsOptions

    tls = TlsOptions(
        ca=arguments.tls_ca, certificate=arguments.tls_certificate, key=arguments.tls_key
    )
    timeout_ms = milliseconds(arguments.timeout_ms, "--timeout-ms")
    return Quorum(parse_addresses(arguments.bootstrap_server), tls, timeout_ms=timeout_ms)
