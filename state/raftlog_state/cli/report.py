"""``raftlog report``: write what happened to a cluster as one HTML file."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO, Final

from .output import Console, Output
from .parser import OFFSET_FORMS, Commands, add_redaction, offset_spec, redactor
from .source import add_decompression_limit, add_source, open_states, states_in_range

if TYPE_CHECKING:
    from raftlog_state.report.page import Report

FORMATS: Final = (".html", ".svg", ".png")

ABOUT = f"""
Write an HTML report of what happened to a cluster between two states: one file that opens without a
network connection. It shows, over time, the leaders of the quorum, brokers (active, fenced, shut
down), partitions that are under-replicated or without a leader, ISR changes, elections, topics and
configs; and the differences between the two states. If FILE ends in .svg or .png, only the charts
are written.

The size of the file is bounded. Time is divided into at most 240 intervals. Of many topics, the
report shows those that were under-replicated for the longest time; of many brokers, those with the
most changes; of many changes, the first ones. The same log always yields the same file.

Requires pip install "raftlog[report]". Secrets are redacted. PATH can also be a directory of Delta
tables (pip install "raftlog[delta]"), which retain changes that were deleted from the log. Secrets
in tables stay as they were written, and the time of a state is that of its last change.
{OFFSET_FORMS}
"""

EXAMPLES = """
raftlog report /var/lib/kafka -o cluster.html
raftlog report /var/lib/kafka -o incident.html --from '2026-11-21 10:02' --to '2026-11-21 10:05'
raftlog report --bootstrap-server controller-1:9093 -o last-hour.html --from -1h
raftlog report node-1,node-2,node-3 -o charts.svg
raftlog report ./tables -o month.html --from 2026-11-01
"""


def add_report(commands: Commands) -> None:
    """Add ``raftlog report``."""
    command = commands.add_parser("report", about=ABOUT, examples=EXAMPLES)
    command.set_defaults(run=run_report)
    add_source(command)
    command.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        required=True,
        help="file to write or replace: .html, .svg or .png",
    )
    command.add_argument(
        "--from",
        dest="start_offset",
        metavar="OFFSET",
        type=offset_spec,
        help="start with the state of all records below this offset; default: the oldest state",
    )
    command.add_argument(
        "--to",
        dest="end_offset",
        metavar="OFFSET",
        type=offset_spec,
        help="end with the state of all records below this offset; default: the end of the log",
    )
    add_redaction(command)
    add_decompression_limit(command)


def run_report(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Write the report and print its path; return the exit code."""
    suffix = os.path.splitext(arguments.output)[1].lower()
    if suffix not in FORMATS:
        arguments.parser.error(f"--output must end in {', '.join(FORMATS)}")

    from raftlog_state.report.page import chart_library

    chart_library()  # fails now, and not after a long log has been read
    with _replacing(arguments.output) as file:
        report = _read(arguments, console)
        if suffix == ".png":
            data = report.png()
        elif suffix == ".svg":
            data = report.svg().encode()
        else:
            data = report.html().encode()
        with _output_errors(arguments.output):
            file.write(data)
            file.flush()
    output.line(arguments.output)
    return 0


def _read(arguments: argparse.Namespace, console: Console) -> Report:
    """Return the report on the source between ``--from`` and ``--to``."""
    from raftlog_state.log_report import first_state, report_between

    with open_states(arguments, redactor(arguments), console, from_oldest=True) as states:
        start = first_state(states, arguments.start_offset)
        return report_between(
            states, *states_in_range(states, start, arguments.end_offset, console)
        )


@contextlib.contextmanager
def _replacing(path: str) -> Iterator[BinaryIO]:
    """Create a file that replaces the one of that name when complete; an error deletes it."""
    part = f"{path}.part"
    with _output_errors(path):
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with contextlib.suppress(FileNotFoundError):  # else of a command that was killed
            os.unlink(part)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(descriptor, "wb") as file:
            yield file
        with _output_errors(path):
            os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


@contextlib.contextmanager
def _output_errors(path: str) -> Iterator[None]:
    """Raise ``OptionError`` for an error of the file system."""
    from raftlog.errors import OptionError

    try:
        yield
    except OSError as error:
        reason = f"{path}: {(error.strerror or str(error)).lower()}"
        raise OptionError(option="--output", reason=reason) from None
