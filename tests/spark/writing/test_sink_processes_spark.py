"""Drivers in processes of their own that race for the offsets of one log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.spark_session import has_java

import raftlog

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not has_java(), reason="Spark needs Java 17 or newer"),
]

HOME = Path(__file__).parents[3]
WINS = 3
LONGEST_S = 300


@pytest.mark.parametrize("driver_count", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_drivers_race_for_each_offset(tmp_path: Path, driver_count: int) -> None:
    """Every loser gets a conflict and succeeds after retries; an offset has one winner."""
    path = tmp_path / "ids-0"
    raftlog.open(path).close()
    command = [sys.executable, "-m", "tests.support.sink_driver", "race", str(path)]
    drivers = [
        subprocess.Popen(
            [*command, f"driver {number}", str(WINS)],
            cwd=HOME,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in range(driver_count)
    ]
    won: dict[int, bytes] = {}
    try:
        for number, driver in enumerate(drivers):
            out, err = driver.communicate(timeout=LONGEST_S)
            assert driver.returncode == 0, err.decode(errors="replace")[-4000:]
            offsets = list(map(int, out.split()))
            assert len(offsets) == WINS
            assert not won.keys() & set(offsets), "an offset was won twice"
            won |= dict.fromkeys(offsets, b"driver %d" % number)
    finally:
        for driver in drivers:
            driver.kill()
            driver.communicate()
    with raftlog.open(path) as log:
        assert {record.offset: record.value for record in log.read()} == won
    assert sorted(won) == list(range(1, 1 + driver_count * WINS))
