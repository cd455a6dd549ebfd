"""``raftlog diff``: what differs between two offsets."""

from __future__ import annotations

import argparse

from raftlog.errors import OptionError

from .output import Console, Output
from .parser import Parser, offset, redactor
from .source import log_of

ABOUT = """
Print the rows of state that differ between two offsets, one JSON line each: entity, key, op
(c made, u changed, d gone), and the row after, the row before, or each changed field before and
after.

Both offsets are end offsets, as --at of `raftlog state`: what is printed is what the records did
that `raftlog cat --from A --to B` prints.
"""

EXAMPLES = """
raftlog diff __cluster_metadata-0 --from 1200 --to 1300
raftlog diff --bootstrap-server controller-1:9093 --from 1200
raftlog diff __cluster_metadata-0 --from 1200 | jq 'select(.entity == "partition") | .changed.isr'
"""


def parser() -> Parser:
    """What ``raftlog diff`` takes."""
    command = Parser("diff", ABOUT, EXAMPLES, takes_nodes=True)
    command.add_argument(
        "--from",
        dest="start_offset",
        metavar="OFFSET",
        type=offset,
        required=True,
        help="compare the state of all records below this offset",
    )
    command.add_argument(
        "--to",
        dest="end_offset",
        metavar="OFFSET",
        type=offset,
        help="with the state of all records below this one; default: the end",
    )
    command.add_redaction()
    command.add_decompression_limit()
    return command


def run(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print the differences. Returns the exit code."""
    hide = redactor(arguments)
    start, end = arguments.start_offset, arguments.end_offset
    if end is not None and end < start:
        parser().error(f"--to {end} lies before --from {start}")

    from raftlog_state.delta import diff
    from raftlog_state.image_reader import ImageReader

    from .state_text import change_line

    with log_of(arguments, parser()) as log:
        images = ImageReader(log, hide, console)
        if end is None:
            end = images.end_offset()
            if end < start:
                raise OptionError(option="--from", reason=f"it lies behind the end, offset {end}")
        before = images.image_at(start)
        after = images.image_at(end)
    for change in diff(before, after):
        output.line(change_line(change))
    return 0
