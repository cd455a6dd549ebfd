"""``raftlog diff``: print the differences between the states at two offsets."""

from __future__ import annotations

import argparse

from raftlog.errors import OptionError

from .output import Console, Output
from .parser import Parser, offset, redactor
from .source import log_of

ABOUT = """
Print the rows that differ between the cluster states at two offsets, one JSON object a line:
entity, key, op (c created, u updated, d deleted), and the row after, the row before, or each
changed field before and after.

Both offsets are end offsets (exclusive), like --at of `raftlog state`: the differences are the
effect of the records that `raftlog cat --from A --to B` prints.
"""

EXAMPLES = """
raftlog diff __cluster_metadata-0 --from 1200 --to 1300
raftlog diff --bootstrap-server controller-1:9093 --from 1200
raftlog diff __cluster_metadata-0 --from 1200 | jq 'select(.entity == "partition") | .changed.isr'
"""


def parser() -> Parser:
    """Return the parser of ``raftlog diff``."""
    command = Parser("diff", ABOUT, EXAMPLES, takes_nodes=True)
    command.add_argument(
        "--from",
        dest="start_offset",
        metavar="OFFSET",
        type=offset,
        required=True,
        help="first state: all records below this offset",
    )
    command.add_argument(
        "--to",
        dest="end_offset",
        metavar="OFFSET",
        type=offset,
        help="second state: all records below this offset; default: the end of the log",
    )
    command.add_redaction()
    command.add_decompression_limit()
    return command


def run(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print the differences; return the exit code."""
    hide = redactor(arguments)
    start, end = arguments.start_offset, arguments.end_offset
    if end is not None and end < start:
        parser().error(f"--to {end} is less than --from {start}")

    from raftlog_state.delta import diff
    from raftlog_state.image_reader import ImageReader

    from .state_text import change_line

    with log_of(arguments, parser()) as log:
        images = ImageReader(log, hide, console)
        if end is None:
            end = images.end_offset()
            if end < start:
                raise OptionError(
                    option="--from", reason=f"exceeds the end offset of the log, {end}"
                )
        before = images.image_at(start)
        after = images.image_at(end)
    for change in diff(before, after):
        output.line(change_line(change))
    return 0
