"""Seconds that each test file takes, compared with those recorded in ``tests/durations``.

With ``RAFTLOG_DURATIONS=<path>/<stage>.tsv`` a run of pytest writes its own seconds there and
compares them with ``tests/durations/<stage>.tsv``. Machines differ and are busy: the recorded
seconds are multiplied by the median ratio of all files first, so that a printed file has grown
relative to the others.
"""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import pytest

RECORDED: Final = Path(__file__).parents[1] / "durations"
"""Durations kept by ``make durations``: for each stage its test files and their seconds."""
GROWTH_MAX: Final = 1.2
GROWTH_S_MIN: Final = 1.0
"""Smallest increase in seconds that is reported."""
STABLE_S_MIN: Final = 0.5
"""Files below this are ignored for the speed of the machine."""


def seconds_by_file(reports: Iterable[pytest.TestReport]) -> dict[str, float]:
    """Return the seconds of setup, call and teardown of all tests, summed by file."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for report in reports:
        seconds[report.nodeid.partition("::")[0]] += report.duration
    return dict(seconds)


def read_durations(path: Path) -> dict[str, float]:
    """Return the seconds of each file that a file of durations holds; none if it does not exist."""
    if not path.exists():
        return {}
    rows = (line.split("\t") for line in path.read_text().splitlines())
    return {name: float(seconds) for name, seconds in rows}


def write_durations(path: Path, seconds: Mapping[str, float]) -> None:
    """Write one line per file, the longest first."""
    rows = sorted(seconds.items(), key=lambda row: (-row[1], row[0]))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{name}\t{value:.1f}\n" for name, value in rows if value >= 0.05))


def grown_files(before: Mapping[str, float], now: Mapping[str, float]) -> list[str]:
    """Return a line for each file that grew by a fifth, relative to all other files."""
    ratios = [
        now[name] / before[name]
        for name in now.keys() & before.keys()
        if before[name] >= STABLE_S_MIN
    ]
    speed = statistics.median(ratios) if ratios else 1.0
    lines = []
    for name, seconds in sorted(now.items()):
        expected = before.get(name, 0.0) * speed
        if seconds > expected * GROWTH_MAX and seconds - expected >= GROWTH_S_MIN:
            lines.append(f"{name}: {seconds:.1f} s, expected {expected:.1f} s")
    return lines


def sort_longest_first(items: list[pytest.Item]) -> None:
    """Sort tests by the recorded seconds of their xdist group, or of their file without one.

    Without it the longest test of ``make long`` would be the last, with one worker idle.
    """
    target = os.environ.get("RAFTLOG_DURATIONS")
    if not target:
        return
    recorded = read_durations(RECORDED / Path(target).name)
    files_by_unit: defaultdict[str, set[str]] = defaultdict(set)
    for item in items:
        files_by_unit[_unit(item)].add(_file(item))
    seconds = {
        unit: sum(recorded.get(file, 0.0) for file in files)
        for unit, files in files_by_unit.items()
    }
    items.sort(key=lambda item: -seconds[_unit(item)])


def _unit(item: pytest.Item) -> str:
    """Return what a worker runs as a whole: the group of a test, or its file."""
    group = item.get_closest_marker("xdist_group")
    return _file(item) if group is None else str(group.args[0])


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def report_durations(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the durations of this run if requested, and print the files that grew."""
    target = os.environ.get("RAFTLOG_DURATIONS")
    if not target or hasattr(terminalreporter.config, "workerinput"):
        return  # a worker of xdist has run only some of the tests
    reports = [
        report
        for outcome in ("passed", "failed", "skipped", "error", "")
        for report in terminalreporter.getreports(outcome)
        if isinstance(report, pytest.TestReport)
    ]
    now = seconds_by_file(reports)
    write_durations(Path(target), now)
    before = read_durations(RECORDED / Path(target).name)
    lines = grown_files(before, now) if before else []
    if lines:
        terminalreporter.section("files that take a fifth longer than recorded")
    for line in lines:
        terminalreporter.write_line(line)
