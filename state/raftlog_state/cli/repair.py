"""``raftlog repair``: make a log of one's own fit to be written again."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from .output import Console, Output
from .parser import Parser, offset

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftlog.client.repair import RecoveryReport, TruncatedTail

ABOUT = """
Open a log that `raftlog.open` made as its next writer would, mend what a crash left, and tell what
was done: a torn tail that nobody was promised is saved beside the log and cut, indexes are built
anew. What was acknowledged once is never cut by that: if it is damaged, the log can only be read.

With --cut-at it is given up from that offset on: saved beside the log, cut, and the log can be
written again. Restore a copy instead if there is one.

The exit code is 1 if the log can only be read.
"""

EXAMPLES = """
raftlog repair decisions-0
raftlog repair decisions-0 --cut-at 4711
"""


def parser() -> Parser:
    """What ``raftlog repair`` takes."""
    command = Parser("repair", ABOUT, EXAMPLES)
    command.add_argument(
        "--cut-at",
        dest="cut_at",
        metavar="OFFSET",
        type=offset,
        help="give up the batch that holds this offset, and all behind it",
    )
    return command


def run(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print what was found and done. Returns the exit code: 1 if the log can only be read."""
    from raftlog.client.repair import recover_log, repair_log

    path = arguments.path
    if arguments.cut_at is not None:
        repaired = repair_log(path, cut_at=arguments.cut_at)
        _print_truncations(repaired.truncated, output)
        output.lines(f"set aside {name}" for name in repaired.set_aside)
        _print_deleted_backups(repaired.deleted_backups, output)
        first, end = repaired.first_lost_offset, repaired.end_offset_before
        lost = f"offsets {first} to {end - 1} are given up" if end > first else "no offset was lost"
        output.line(lost)
    report, start_offset, end_offset = recover_log(path)
    _print_result(report, output)
    extent = f"offsets from {start_offset} to {end_offset} (exclusive)"
    if report.read_only is None:
        output.line(f"can be written: {extent}")
        return 0
    output.line(f"can only be read: {extent}; {report.read_only.message()}")
    return 1


def _print_result(report: RecoveryReport, output: Output) -> None:
    output.lines(f"found {anomaly.description}" for anomaly in report.anomalies)
    _print_truncations(report.truncated, output)
    _print_deleted_backups(report.deleted_backups, output)
    output.lines(f"built {name} anew" for name in report.rebuilt)


def _print_deleted_backups(paths: Iterable[str], output: Output) -> None:
    output.lines(f"deleted {path}, the oldest saved copy: only so many are kept" for path in paths)


def _print_truncations(cut: Iterable[TruncatedTail], output: Output) -> None:
    for one in cut:
        saved = "" if one.saved_as is None else f", saved as {one.saved_as}"
        output.line(
            f"cut {one.byte_count} bytes off {one.path} at byte {one.position}, from offset "
            f"{one.first_offset} on{saved}: {one.reason}"
        )
