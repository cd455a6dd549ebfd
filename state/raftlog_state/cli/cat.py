"""``raftlog cat``: records, or batches, as they lie there."""

from __future__ import annotations

import argparse

from .output import Console, Output
from .parser import Parser, offset, redactor
from .source import log_of

ABOUT = """
Print the records of a log, one JSON line each:

  {"offset":4,"leaderEpoch":1,"timestamp":1795248204043,"type":"TOPIC_RECORD","version":0,
   "data":{...}}

type, version and data are what kafka-dump-log prints; timestamp is in milliseconds. Every record
of a file is printed as it is there, committed or not: stderr says which end was taken. Several
voters' copies, and nodes, give what is committed. Of an ordinary partition: key, value and
headers, as text if they are UTF-8, else base64 as keyBase64 and valueBase64. Of a .checkpoint:
its records; their offsets begin at 0 and mean nothing.
"""

EXAMPLES = """
raftlog cat __cluster_metadata-0 --type topic --type partition_change
raftlog cat __cluster_metadata-0 --from 1200 --to 1300 --control --noop
raftlog cat 00000000000000001022-0000000002.checkpoint | jq -r .type | sort | uniq -c
raftlog cat orders-0 --batches | jq 'select(.isTransactional)'
raftlog cat --bootstrap-server controller-1:9093 --from 1200 --type config
"""


def parser() -> Parser:
    """What ``raftlog cat`` takes."""
    command = Parser("cat", ABOUT, EXAMPLES, takes_nodes=True)
    command.add_argument(
        "--from",
        dest="start_offset",
        metavar="OFFSET",
        type=offset,
        help="the first offset to print; default: the first one on disk",
    )
    command.add_argument(
        "--to",
        dest="end_offset",
        metavar="OFFSET",
        type=offset,
        help="print the offsets below this one; default: to the end",
    )
    command.add_argument(
        "--type",
        dest="types",
        metavar="TYPE",
        action="append",
        default=[],
        help="print records of this type only; may be repeated. PARTITION_RECORD, PartitionRecord, "
        "partition and 3 are the same",
    )
    command.add_argument("--control", action="store_true", help="print control records too")
    command.add_argument("--noop", action="store_true", help="print NoOp records too")
    command.add_argument(
        "--batches", action="store_true", help="print batches instead, with their headers"
    )
    command.add_kind()
    command.add_redaction()
    command.add_decompression_limit()
    return command


def run(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print what was asked for. Returns the exit code."""
    if arguments.batches and (arguments.types or arguments.control or arguments.noop):
        parser().error("--batches prints whole batches: it takes no --type, --control or --noop")

    # Here, not above: `raftlog cat --help` needs neither numpy nor pyarrow.
    from .selection import select

    selection = select(arguments.types, control=arguments.control, noop=arguments.noop)
    hide = redactor(arguments)

    from .cat_log import print_batches, print_records

    start, end = arguments.start_offset, arguments.end_offset
    with log_of(arguments, parser()) as log:
        if arguments.batches:
            return print_batches(log, start, end, output, console)
        return print_records(log, start, end, selection, hide, output, console)
