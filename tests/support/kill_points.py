"""Points at which a Spark driver of a test dies, and the runs of such a driver until it is done.

Everything dies at once, as on a host that is switched off: Spark's JVM, the driver and the process
that is at the point.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

HOME = Path(__file__).parents[2]
ORDERS = int(os.environ.get("RAFTLOG_KILL_ORDERS", "0"))
"""In how many orders, drawn at random, points are died at; ``make crash`` says it."""
DIED = -signal.SIGKILL
"""The status of a driver that died."""
_ARMED = "RAFTLOG_TEST_DIES_AT"
_LONGEST_S = 600


def arm(point: str, occurrence: int, counter: str) -> None:
    """Let this driver die where it, or a process below it, is at a point for the nth time.

    ``counter`` is the name of a file that is not there yet: what all those processes count in.
    """
    os.environ[_ARMED] = f"{point}|{occurrence}|{counter}|{os.getpid()}"


def reach(point: str) -> None:
    """Die, if it is this point for as often as was asked."""
    wanted, occurrence, counter, driver = os.environ[_ARMED].split("|")
    if point != wanted:
        return
    with open(counter, "ab") as file:
        file.write(b".")
    if os.path.getsize(counter) >= int(occurrence):
        _die(int(driver))


def _die(driver: int) -> None:
    """The driver, its JVM, what is between them and this process; this process last."""
    told = subprocess.check_output(["ps", "-A", "-o", "pid=,ppid="], text=True)
    pairs = (line.split() for line in told.splitlines())
    parents = {int(pid): int(parent) for pid, parent in pairs}
    here = above = os.getpid()
    others = [pid for pid, parent in parents.items() if parent == driver]
    while above != driver:
        above = parents[above]
        others.insert(0, above)
    for pid in dict.fromkeys(others):
        if pid != here:
            with contextlib.suppress(ProcessLookupError):  # it may be the ps that told
                os.kill(pid, signal.SIGKILL)
    os.kill(here, signal.SIGKILL)


def run_driver(said: Path, module: str, *arguments: object) -> int:
    """Run a driver until it dies or is done; its status. ``said`` gets what it says."""
    with (
        said.open("ab") as out,
        # What the dead leave lying about goes with it. Short: sockets have their names in it.
        tempfile.TemporaryDirectory(prefix="raftlog-", ignore_cleanup_errors=True) as place,
    ):
        done = subprocess.run(
            [sys.executable, "-m", module, *map(str, arguments)],
            cwd=HOME,
            env={
                **os.environ,
                "TMPDIR": place,
                "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={place}",
            },
            stdout=out,
            stderr=out,
            timeout=_LONGEST_S,
            check=False,
        )
    return done.returncode
