"""``raftlog check``, ``configure`` and ``repair``: verify, configure and recover a log."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NoReturn

from raftlog.printable import compact_json

from .output import Console, Output
from .parser import Commands, add_color, offset
from .source import add_decompression_limit, add_kind, add_path, kind_of
from .text_table import BAD, GOOD

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftlog.client.embedded.repair import RecoveryReport, TruncatedTail


# --- raftlog check --------------------------------------------------------------------------------

CHECK_ABOUT = """
Read a whole log and report damage: batches with a wrong CRC or an invalid header, offset gaps and
regressions, leader epochs that decrease or contradict leader-epoch-checkpoint, index entries that
do not point to a batch, segments whose name is not their base offset, files that cannot be parsed,
and snapshots without header or footer. A metadata log is also replayed, and each snapshot is
compared with the replayed state. Several replicas of one log (comma-separated) are compared with
each other.

Prints one line per finding, then a summary. The exit code is 1 if there is damage. Notes do not
affect it: the torn tail of a running node, for instance, is normal.
"""

CHECK_EXAMPLES = """
raftlog check __cluster_metadata-0
raftlog check node-1/orders-0,node-2/orders-0,node-3/orders-0
raftlog check orders-0 --json | jq 'select(.severity == "damage")'
"""


def add_check(commands: Commands) -> None:
    """Add ``raftlog check``."""
    command = commands.add_parser("check", about=CHECK_ABOUT, examples=CHECK_EXAMPLES)
    command.set_defaults(run=run_check)
    add_path(command)
    add_kind(command)
    add_decompression_limit(command)
    command.add_argument(
        "--json",
        action="store_true",
        help="print findings and summary as JSON, one object per line",
    )
    add_color(command)


def run_check(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print the findings; return the exit code: 0 no damage, 1 damaged."""
    from raftlog_state.check import LogCheck, Severity

    check = LogCheck(
        arguments.path,
        on_progress=console.progress,
        kind=kind_of(arguments),
        decompressed_bytes_max=arguments.max_decompressed_bytes,
    )
    damage_count = note_count = 0
    for finding in check.run():
        if finding.severity is Severity.DAMAGE:
            damage_count += 1
        else:
            note_count += 1
        if arguments.json:
            output.line(finding.json())
        else:
            severity, *rest = finding.text().partition(":")
            style = BAD if finding.severity is Severity.DAMAGE else ""
            output.styled((severity, style), ("".join(rest), ""))
        if output.is_terminal():
            console.clear()
            output.flush()
    if arguments.json:
        summary = {"damage": damage_count, "notes": note_count, **check.summary()}
        output.line(compact_json({"summary": summary}))
    else:
        verdict, style = "valid", GOOD
        if damage_count:
            verdict = f"damaged ({damage_count} finding{'s' if damage_count > 1 else ''})"
            style = BAD
        output.styled((verdict, style), (f": {check.summary_text()}", ""))
    return 1 if damage_count else 0


# --- raftlog configure ----------------------------------------------------------------------------

CONFIGURE_ABOUT = """
Print the settings of a log created by `raftlog.open`, from its raftlog.properties; with NAME=VALUE,
change them first. Names and units are those of Kafka's topic configs; -1 means no limit.

A process that has the log open applies a change with its next append. Each node of a quorum has its
own settings: run the command on every host.

A log with values=kraft is trimmed only below its snapshots. A node of a quorum writes them as
configured in `[snapshots]` of its node.toml.
"""

CONFIGURE_EXAMPLES = """
raftlog configure decisions-0
raftlog configure decisions-0 max.message.bytes=67108864 retention.ms=604800000
"""


def add_configure(commands: Commands) -> None:
    """Add ``raftlog configure``."""
    command = commands.add_parser("configure", about=CONFIGURE_ABOUT, examples=CONFIGURE_EXAMPLES)
    command.set_defaults(run=run_configure)
    add_path(command)
    command.add_argument("--bootstrap-server", type=_refuse_nodes, help=argparse.SUPPRESS)
    command.add_argument("settings", metavar="NAME=VALUE", nargs="*", help="setting to change")


def _refuse_nodes(servers: str) -> NoReturn:
    """Raise the error of ``--bootstrap-server``, which no other command of a log lacks."""
    raise argparse.ArgumentTypeError(
        "each node of a quorum has settings of its own: run the command on every host, with the "
        "directory of the log as PATH; kafka-configs --describe prints those of a running node"
    )


def run_configure(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Change the given settings and print all; return the exit code."""
    changes = {}
    for setting in arguments.settings:
        name, equals, value = setting.partition("=")
        if not (name and equals):
            arguments.parser.error(f"{setting!r} is not NAME=VALUE")
        changes[name] = value

    from raftlog.client.embedded.directory import configure, read_settings

    path = arguments.path
    settings = configure(path, changes) if changes else read_settings(path)
    output.lines(f"{name}={value}" for name, value in settings.items())
    return 0


# --- raftlog repair -------------------------------------------------------------------------------

REPAIR_ABOUT = """
Recover a log created by `raftlog.open`, as its next writer would, and print what was done. A torn
tail that was never acknowledged is saved next to the log and truncated, and indexes are rebuilt.
Acknowledged records are never truncated: if they are damaged, the log becomes read-only.

--cut-at truncates the log at an offset, after a backup of everything from there on, and makes it
writable again. The records after the offset are lost: if there is a copy of the log, restore that
instead.

The exit code is 1 if the log is read-only.
"""

REPAIR_EXAMPLES = """
raftlog repair decisions-0
raftlog repair decisions-0 --cut-at 4711
"""


def add_repair(commands: Commands) -> None:
    """Add ``raftlog repair``."""
    command = commands.add_parser("repair", about=REPAIR_ABOUT, examples=REPAIR_EXAMPLES)
    command.set_defaults(run=run_repair)
    add_path(command)
    command.add_argument(
        "--cut-at",
        metavar="OFFSET",
        type=offset,
        help="truncate the log at the batch that contains this offset",
    )


def run_repair(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print what was found and done; return the exit code, 1 if the log is read-only."""
    from raftlog.client.embedded.repair import recover_log, repair_log

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
