"""``raftlog check``: look for damage."""

from __future__ import annotations

import argparse
import json

from .output import Console, Output
from .parser import Parser, kind_of

ABOUT = """
Read everything and look for damage: the CRC and the frame of every batch, offsets that skip or go
back, leader epochs that fall or that leader-epoch-checkpoint denies, index entries that name no
batch, segments that are not named after their first offset, files that do not parse, checkpoints
without header or footer; and of a metadata log, replay it, and compare each checkpoint with what
the log says. Of several copies of one log (commas between them), also where they diverge.

One line for each finding, then a summary. Damage makes the exit code 1; a note does not: the torn
tail of a running node, for instance, is normal.
"""

EXAMPLES = """
raftlog check __cluster_metadata-0
raftlog check node-1/orders-0,node-2/orders-0,node-3/orders-0
raftlog check orders-0 --json | jq 'select(.severity == "damage")'
"""


def parser() -> Parser:
    """What ``raftlog check`` takes."""
    command = Parser("check", ABOUT, EXAMPLES)
    command.add_kind()
    command.add_decompression_limit()
    command.add_argument("--json", action="store_true", help="print findings as JSON lines")
    return command


def run(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print what is found. Returns the exit code: 0 sound, 1 damaged."""
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
        verdict = "sound"
        if damage_count:
            verdict = f"damaged ({damage_count} finding{'s' if damage_count > 1 else ''})"
        output.line(f"{verdict}: {check.summary_text()}")
    return 1 if damage_count else 0
