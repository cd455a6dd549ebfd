"""Run all benchmarks, one process after another, and write their figures into README.md.

With `--json` a benchmark prints one JSON object per line, a `Row`. Machines are noisy:
compare the ratios, not the absolute numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

HOME = Path(__file__).parents[1]
PAGE = HOME / "benchmarks" / "README.md"
SCRIPTS = (
    "install",
    "decode",
    "typed_records",
    "replay",
    "cleaning",
    "group_offsets",
    "append",
    "timeline",
    "controller",
    "quorum",
    "produce",
    "fetch",
    "remote_read",
    "spark_read",
    "spark_write",
    "many_logs",
    "history",
    "freshness",
    "restart",
    "micro_batches",
    "many_clusters",
    "scale",
    "bulk_load",
)
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"

Row: TypeAlias = dict[str, Any]


def row(
    what: str, measured: float, unit: str, against: float | None = None, other: str | None = None
) -> Row:
    """Return one row of the table; ``other`` names what ``against`` was measured with."""
    return {
        "what": what,
        "measured": measured,
        "unit": unit,
        "against": against,
        "other": other if against else None,
    }


def print_row(found: Row, *, as_json: bool, decimals: int = 0) -> None:
    """Print a row as JSON, or as a line of text."""
    if as_json:
        print(json.dumps(found), flush=True)
        return
    line = f"{found['what']}: {found['measured']:,.{decimals}f} {found['unit']}"
    if found["against"]:
        ratio = found["measured"] / found["against"]
        line += f"; {found['other']} {found['against']:,.{decimals}f}: {ratio:.2f} times"
    print(line, flush=True)


def jars(argument: str | None) -> Path | None:
    """Return the directory of Kafka's jars; None without them or without Java. Those of the default
    place are verified."""
    from tests.support.jars import BUILD, KAFKA_VERSION, kafka, verified

    ours = kafka(KAFKA_VERSION)
    given = argument or os.environ.get("RAFTLOG_KAFKA_JARS")
    found = Path(given) if given else BUILD / ours.name
    if not shutil.which("java") or not any(found.glob("kafka-tools-*.jar")):
        return None
    return found if given else verified(ours)


def main_beside_kafka(
    summary: str,
    measure: Callable[[int, int, Path | None], Iterable[Row]],
    *,
    records: int,
    decimals: int = 0,
) -> None:
    """Run a benchmark that a class of Kafka runs, too: of a number of records, in rounds.

    ``measure`` gets both numbers, and the directory of Kafka's jars.
    """
    parser = argparse.ArgumentParser(description=summary.partition("\n")[0])
    parser.add_argument("--records", type=int, default=records)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jars", help="the directory of Apache Kafka's jars")
    parser.add_argument("--json", action="store_true", help="print one JSON object a figure")
    arguments = parser.parse_args()
    for found in measure(arguments.records, arguments.rounds, jars(arguments.jars)):
        print_row(found, as_json=arguments.json, decimals=decimals)


def measure(script: str, options: list[str]) -> list[Row]:
    print(f"running {script}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", f"benchmarks.{script}", "--json", *options]
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(done.stderr[-2000:], file=sys.stderr)
        print(f"{script} failed and is left out", file=sys.stderr)
        return []
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def table(rows: list[Row]) -> list[str]:
    lines = [
        "| what | unit | raftlog | against | | ratio |",
        "| --- | --- | ---: | --- | ---: | ---: |",
    ]
    for one in rows:
        ratio = one["measured"] / one["against"] if one["against"] else None
        lines.append(
            f"| {one['what']} | {one['unit']} | {number(one['measured'])} "
            f"| {one['other'] or ''} | {number(one['against'])} | {number(ratio)} |"
        )
    return lines


def download_kafka() -> None:
    """Download Kafka's jars if Maven is installed: kafka-dump-log is measured for comparison."""
    from tests.support.kafka import kafka_jars

    if shutil.which("mvn"):
        kafka_jars()


def main() -> None:
    download_kafka()
    options = {"spark_read": ["--kafka"]} if shutil.which("mvn") else {}
    rows = [one for script in SCRIPTS for one in measure(script, options.get(script, []))]
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    body = "\n".join([BEGIN, f"Measured on {machine}.", "", *table(rows), END])
    PAGE.write_text(before + body + after)
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
