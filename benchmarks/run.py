"""Run every benchmark in one process after another and write their figures into README.md.

Rules of this file: a benchmark is a script that prints with `--json` one JSON object a line:
{"what", "ours", "against", "unit", "other"}; `other` names what it is measured against in the same
run. Machines are noisy: the ratio is the figure, the absolute numbers are for orientation.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
SCRIPTS = (
    "decode.py",
    "typed_records.py",
    "append.py",
    "quorum.py",
    "spark_read.py",
    "spark_write.py",
)
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def measure(script: str, options: list[str]) -> list[dict[str, Any]]:
    print(f"running {script}", file=sys.stderr, flush=True)
    command = [sys.executable, str(HERE / script), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(done.stderr[-2000:], file=sys.stderr)
        print(f"{script} failed and is left out", file=sys.stderr)
        return []
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| what | unit | raftlog | against | | ratio |",
        "| --- | --- | ---: | --- | ---: | ---: |",
    ]
    for row in rows:
        ratio = row["ours"] / row["against"] if row.get("against") else None
        lines.append(
            f"| {row['what']} | {row['unit']} | {number(row['ours'])} | {row.get('other') or ''} "
            f"| {number(row.get('against'))} | {number(ratio)} |"
        )
    return lines


def bring_kafka() -> None:
    """Kafka's jars, where Maven is there: one benchmark stands beside kafka-dump-log."""
    from tests.support.kafka import kafka_jars

    if shutil.which("mvn"):
        kafka_jars()


def bring_etcd(directory: Path) -> list[str]:
    """Options that name etcd: the one that is installed, or Debian's package, taken apart."""
    if shutil.which("etcd"):
        return []
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        return []
    try:
        subprocess.run(["apt-get", "download", "etcd-server"], cwd=directory, check=True)
        (package,) = directory.glob("etcd-server_*.deb")
        subprocess.run(["dpkg", "-x", str(package), str(directory / "root")], check=True)
    except (subprocess.CalledProcessError, ValueError):
        return []
    return ["--etcd", str(directory / "root/usr/bin/etcd")]


def main() -> None:
    bring_kafka()
    with tempfile.TemporaryDirectory() as directory:
        options = {"quorum.py": bring_etcd(Path(directory))}
        rows = [row for script in SCRIPTS for row in measure(script, options.get(script, []))]
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    page = HERE / "README.md"
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    body = "\n".join([BEGIN, f"Measured on {machine}.", "", *table(rows), END])
    page.write_text(before + body + after)
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
