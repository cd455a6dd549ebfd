"""Seconds from `pip install` of the wheel to the first answer of the command line.

The wheel and its dependencies are downloaded before, so that no network is measured. Each round has
two new environments: in one, pyarrow is installed alone, the largest dependency, and imported. CPU
time is that of the processes, with their children.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.run import HOME, Row, print_row, row
from benchmarks.typed_records import seconds_of

LOG = HOME / "tests/data/kraft-logs/three-nodes-4.3.1/node-100"
ROUNDS = 3


def timed(*words: str | Path) -> tuple[float, float]:
    """Return the elapsed time and the CPU time of a program, in seconds."""
    started = time.monotonic()
    cpu = seconds_of(list(map(str, words)))
    return time.monotonic() - started, cpu


def download(directory: Path) -> Path:
    """Build the wheel, and put it and its dependencies into a directory; return the wheel."""
    pip = (sys.executable, "-m", "pip")
    timed(*pip, "wheel", "--no-deps", "-w", directory / "built", HOME)
    (wheel,) = (directory / "built").glob("*.whl")
    timed(*pip, "download", "-d", directory / "wheels", wheel)
    return wheel


def installed(
    directory: Path, name: str, wheels: Path, what: str | Path
) -> tuple[Path, float, float]:
    """Install a package into a new environment; return it and the times of the installation."""
    site = directory / name
    timed(sys.executable, "-m", "venv", site)
    times = timed(
        *(site / "bin/pip", "install", "--no-index", "--disable-pip-version-check"),
        *("--find-links", wheels, what),
    )
    return site, *times


def measure(rounds: int) -> Iterator[Row]:
    """Yield a row of the installation and the first answer, and one of the second answer."""
    ours: list[tuple[float, float]] = []
    others: list[tuple[float, float]] = []
    answers: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        wheel = download(home)
        wheels = home / "wheels"
        for number in range(rounds):
            site, elapsed, cpu = installed(home, f"ours-{number}", wheels, wheel)
            command = (site / "bin/raftlog", "state", LOG, "topics")
            first = timed(*command)
            ours.append((elapsed + first[0], cpu + first[1]))
            answers.append(timed(*command)[1])
            site, elapsed, cpu = installed(home, f"other-{number}", wheels, "pyarrow")
            first = timed(site / "bin/python", "-c", "import pyarrow")
            others.append((elapsed + first[0], cpu + first[1]))
    other = "pip install pyarrow, import pyarrow"
    for position, unit in ((0, "s"), (1, "CPU s")):
        yield row(
            "`pip install` of the wheel, then the first `raftlog state`",
            statistics.median(one[position] for one in ours),
            unit,
            statistics.median(one[position] for one in others),
            other,
        )
    yield row("the second `raftlog state`", statistics.median(answers), "CPU s")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true", help="print one JSON object a figure")
    arguments = parser.parse_args()
    os.environ.pop("PYTHONPATH", None)  # as a user, without the sources of this folder
    for found in measure(arguments.rounds):
        print_row(found, as_json=arguments.json, decimals=2)


if __name__ == "__main__":
    main()
