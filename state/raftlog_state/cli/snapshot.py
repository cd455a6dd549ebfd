"""``raftlog snapshot``: write the cluster state at an offset to a snapshot file."""

from __future__ import annotations

import argparse
import json

from .output import Console, Output
from .parser import Parser, offset
from .source import log_of

ABOUT = """
Write the state of a metadata log to a snapshot: a .checkpoint file that kafka-dump-log and
kafka-metadata-shell read, and that a Kafka controller loads from its metadata directory.

TO is a directory, in which the file gets Kafka's name for it, or a file name that ends in
.checkpoint. An existing file is never replaced.

--at OFFSET is an end offset (exclusive), as in the name of a .checkpoint file: the state of all
records below it. Default: the end of one log directory, or the committed end of several voters'
directories and of running nodes.

With --bootstrap-server the source is a running Kafka cluster, or a raftlog quorum with
values=kraft. The log of the nodes is not trimmed.

A snapshot contains secrets in clear text, like Kafka's own: passwords in configs and the keys of
SCRAM credentials. Its file mode is 0600, and --reveal is required as a confirmation.
"""

EXAMPLES = """
raftlog snapshot cluster-0 backup/ --reveal
raftlog snapshot __cluster_metadata-0 before.checkpoint --at 1022 --reveal
raftlog snapshot --bootstrap-server controller-1:9093 backup/ --reveal
"""


def parser() -> Parser:
    """Return the parser of ``raftlog snapshot``."""
    command = Parser("snapshot", ABOUT, EXAMPLES, takes_nodes=True)
    command.add_argument(
        "to", metavar="TO", help="directory, or name of a file that ends in .checkpoint"
    )
    command.add_argument(
        "--at", metavar="OFFSET", type=offset, help="write the state of all records below OFFSET"
    )
    command.add_argument(
        "--reveal", action="store_true", help="confirm that the file contains secrets in clear text"
    )
    command.add_decompression_limit()
    return command


def run(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Write the snapshot and print its path and id; return the exit code."""
    if arguments.path is None and arguments.bootstrap_server is None:
        parser().error("PATH and TO are required, or TO and --bootstrap-server")
    if not arguments.reveal:
        parser().error("a snapshot contains secrets in clear text: confirm with --reveal")

    from raftlog_state.snapshot_writer import export_snapshot

    with log_of(arguments, parser()) as log:
        done = export_snapshot(log, arguments.to, end_offset=arguments.at)
    found = {
        "path": done.path,
        "end_offset": done.snapshot_id.end_offset,
        "leader_epoch": done.snapshot_id.epoch,
        "bytes": done.byte_count,
    }
    output.line(json.dumps(found, separators=(",", ":"), ensure_ascii=False))
    return 0
