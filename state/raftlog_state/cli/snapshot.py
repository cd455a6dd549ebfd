"""``raftlog snapshot``: write the cluster's state at an offset as a checkpoint."""

from __future__ import annotations

import argparse
import json

from .output import Console, Output
from .parser import Parser, offset
from .source import log_of

ABOUT = """
Write the state of a metadata log as a checkpoint: a file that kafka-dump-log and the metadata
shell read, and that a node of Apache Kafka boots from if it lies in its metadata directory.

TO is a directory, in which the file gets the name that Kafka gives it, or a name that ends in
.checkpoint. A file that is there is never replaced.

--at OFFSET is an end offset, as in a checkpoint's name: the state of all records below it. Without
it: all that is committed, as far as files tell; nodes know.

With --bootstrap-server the state of a quorum of raftlog's with values=kraft is written, too: to
keep it elsewhere. The nodes' own log is not trimmed by it.

A checkpoint holds secrets in clear, as Kafka's own do: passwords in configs, keys of SCRAM
credentials. Only its owner may read it, and --reveal says that you know.
"""

EXAMPLES = """
raftlog snapshot cluster-0 backup/ --reveal
raftlog snapshot __cluster_metadata-0 before.checkpoint --at 1022 --reveal
raftlog snapshot --bootstrap-server controller-1:9093 backup/ --reveal
"""


def parser() -> Parser:
    """What ``raftlog snapshot`` takes."""
    command = Parser("snapshot", ABOUT, EXAMPLES, takes_nodes=True)
    command.add_argument("to", metavar="TO", help="a directory, or a name that ends in .checkpoint")
    command.add_argument(
        "--at", metavar="OFFSET", type=offset, help="the state of all records below this offset"
    )
    command.add_argument(
        "--reveal", action="store_true", help="write secrets, without which no node can go on"
    )
    command.add_decompression_limit()
    return command


def run(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Write the checkpoint, and print where it is. Returns the exit code."""
    if arguments.path is None and arguments.bootstrap_server is None:
        parser().error("PATH and TO are required, or TO and --bootstrap-server")
    if not arguments.reveal:
        parser().error("a checkpoint holds secrets in clear: say --reveal if that is meant")

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
