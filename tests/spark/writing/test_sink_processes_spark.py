"""Drivers in processes of their own that race for the offsets of one log."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.quorum_processes import eventually
from tests.support.sink_driver import race
from tests.support.spark_session import has_java

import raftlog
from raftlog.client import open_path

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not has_java(), reason="Spark needs Java 17 or newer"),
]

HOME = Path(__file__).parents[3]
WINS_HERE = 3
LONGEST_S = 300


@pytest.mark.nightly
@pytest.mark.parametrize(("driver_count", "wins"), [(1, 8), (4, 3)])
def test_drivers_race_for_each_offset(
    spark: SparkSession, tmp_path: Path, driver_count: int, wins: int
) -> None:
    """Every loser gets a conflict and succeeds after retries; an offset has one winner.

    This process has another driver, which begins when one of the others has won an offset. Rivals
    of ``make test`` are jobs of one driver (``test_jobs_race_for_each_offset``), and processes
    without Spark (``tests/client/embedded/test_processes.py``).
    """
    path = tmp_path / "ids-0"
    raftlog.open(path).close()
    command = [sys.executable, "-m", "tests.support.sink_driver", "race", str(path)]
    drivers = [
        subprocess.Popen(
            [*command, f"driver {number}", str(wins)],
            cwd=HOME,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in range(driver_count)
    ]
    try:
        eventually(lambda: has_begun(path, drivers), "a driver wins", patience_s=LONGEST_S)
        won_here = race(spark, str(path), "this driver", WINS_HERE)
        won = dict.fromkeys(won_here, b"this driver")
        for number, driver in enumerate(drivers):
            out, err = driver.communicate(timeout=LONGEST_S)
            assert driver.returncode == 0, err.decode(errors="replace")[-4000:]
            offsets = list(map(int, out.split()))
            assert len(offsets) == wins
            assert not won.keys() & set(offsets), "an offset was won twice"
            won |= dict.fromkeys(offsets, b"driver %d" % number)
    finally:
        for driver in drivers:
            driver.kill()
            driver.communicate()
    with raftlog.open(path) as log:
        assert {record.offset: record.value for record in log.read()} == won
    assert sorted(won) == list(range(1, 1 + WINS_HERE + driver_count * wins))


def has_begun(path: Path, drivers: Sequence[subprocess.Popen[bytes]]) -> bool:
    """Return whether a driver has won an offset, or has failed."""
    return open_path(str(path)).log_end_offset > 1 or any(one.poll() for one in drivers)
