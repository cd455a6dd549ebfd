"""``raftlog check``: verify a log."""

from __future__ import annotations

import argparse
import json

from .output import Console, Output
from .parser import Parser, kind_of

ABOUT = """
Read a whole log and report damage: batches with a wrong CRC or invalid header, offset gaps and
regressions, leader epochs that decrease or contradict leader-epoch-checkpoint, index entries that
point at no batch, segments whose name is not their base offset, files that cannot be parsed,
snapshots without header or footer. A metadata log is also replayed, and each snapshot is compared
with the replayed state. Several replicas of one log (comma-separated) are compared with each other.

Prints one line a finding, then a summary. The exit code is 1 if there is damage. Notes do not
affect it: the torn tail of a running node, for instance, is normal.
"""

EXAMPLES = """
raftlog check __cluster_metadata-0
raftlog check node-1/orders-0,node-2/orders-0,node-3/orders-0
raftlog check orders-0 --json | jq 'select(.severity == "damage")'
"""


def parser() -> Parser:
    """Return the parser of ``raftlog check``."""
    command = Parser("check", ABOUT, EXAMPLES)
    command.add_kind()
    command.add_decompression_limit()
    command.add_argument(
        "--json", action="store_true", help="print findings and summary as JSON, one object a line"
    )
    return command


def run(arguments: argparse.Namespace, output: Output, console: Console) -> int:
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
        output.line(finding.json() if arguments.json else finding.text())
        if output.is_terminal():
            console.clear()
            output.flush()
    if arguments.json:
        summary = {"damage": damage_count, "notes": note_count, **check.summary()}
        output.line(json.dumps({"summary": summary}, separators=(",", ":"), ensure_ascii=False))
    else:
        verdict = "valid"
        if damage_count:
            verdict = f"damaged ({damage_count} finding{'s' if damage_count > 1 else ''})"
        output.line(f"{verdict}: {check.summary_text()}")
    return 1 if damage_count else 0
