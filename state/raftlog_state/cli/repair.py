"""``raftlog repair``: recover a log after a crash, or truncate it where it is damaged."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from .output import Console, Output
from .parser import Parser, offset

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftlog.client.repair import RecoveryReport, TruncatedTail

ABOUT = """
Recover a log created by `raftlog.open`, as its next writer would, and print what was done: a torn
tail that was never acknowledged is saved next to the log and truncated, and indexes are rebuilt.
Acknowledged records are not truncated: if they are damaged, the log is read-only.

With --cut-at the log is truncated at that offset, after a backup of everything from there on, and
is writable again. These records are lost: restore a copy of the log instead if there is one.

The exit code is 1 if the log is read-only.
"""

EXAMPLES = """
raftlog repair decisions-0
raftlog repair decisions-0 --cut-at 4711
"""


def parser() -> Parser:
    """Return the parser of ``raftlog repair``."""
    command = Parser("repair", ABOUT, EXAMPLES)
    command.add_argument(
        "--cut-at",
        dest="cut_at",
        metavar="OFFSET",
        type=offset,
        help="truncate the log at the batch that contains this offset",
    )
    return command


def run(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print what was found and done; return the exit code, 1 if the log is read-only."""
    from raftlog.client.repair import recover_log, repair_log

    path = arguments.path
    if arguments.cut_at is not None:
        repaired = repair_log(path, cut_at=arguments.cut_at)
        _print_truncations(repaired.truncated, output)
        output.lines(f"renamed to a backup: {name}" for name in repaired.set_aside)
        _print_deleted_backups(repaired.deleted_backups, output)
        first, end = repaired.first_lost_offset, repaired.end_offset_before
        lost = f"offsets {first} to {end - 1} are lost" if end > first else "no offsets are lost"
        output.line(lost)
    report, start_offset, end_offset = recover_log(path)
    _print_result(report, output)
    extent = f"offsets from {start_offset} to {end_offset} (exclusive)"
    if report.read_only is None:
        output.line(f"writable: {extent}")
        return 0
    output.line(f"read-only: {extent}; {report.read_only.message()}")
    return 1


def _print_result(report: RecoveryReport, output: Output) -> None:
    output.lines(f"found {anomaly.description}" for anomaly in report.anomalies)
    _print_truncations(report.truncated, output)
    _print_deleted_backups(report.deleted_backups, output)
    output.lines(f"rebuilt {name}" for name in report.rebuilt)


def _print_deleted_backups(paths: Iterable[str], output: Output) -> None:
    output.lines(f"deleted {path}, the oldest backup: their number is limited" for path in paths)


def _print_truncations(tails: Iterable[TruncatedTail], output: Output) -> None:
    for tail in tails:
        saved = "" if tail.saved_as is None else f", saved as {tail.saved_as}"
        output.line(
            f"truncated {tail.path} to {tail.position} bytes ({tail.byte_count} removed), at "
            f"offset {tail.first_offset}{saved}: {tail.reason}"
        )
