"""Points at which a test's Spark driver is killed, and runs of such a driver until it ends.

All processes are killed together, as on a host that is switched off: Spark's JVM, the driver and
the process that has reached the point.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Final

HOME = Path(__file__).parents[2]
ORDERS = int(os.environ.get("RAFTLOG_KILL_ORDERS", "0"))
"""Number of random orders of kill points; set by ``make crash``."""
DIED = -signal.SIGKILL
"""Exit status of a killed driver."""
_ARMED = "RAFTLOG_TEST_DIES_AT"
_LONGEST_S = 600
_IN_CREATE: Final = 0x100
_EVENT: Final = struct.Struct("=iIII")
"""``struct inotify_event``: watch, mask, cookie and the bytes of the name after it."""
_EVENTS_BYTES: Final = 64 * 1024


def arm(point: str, occurrence: int, counter: str) -> None:
    """Kill this driver when it, or a child process, reaches a point for the nth time.

    ``counter`` is the name of a file that does not exist yet, in which all processes count.
    """
    os.environ[_ARMED] = f"{point}|{occurrence}|{counter}|{os.getpid()}"


def reach(point: str) -> None:
    """Kill the driver if this is its point and it was reached often enough."""
    wanted, occurrence, counter, driver = os.environ[_ARMED].split("|")
    if point != wanted:
        return
    with open(counter, "ab") as file:
        file.write(b".")
    if os.path.getsize(counter) >= int(occurrence):
        _die(int(driver))


def arm_files(directory: Path, occurrence: int) -> None:
    """Kill this driver when the nth new Parquet file of a directory is created, while it is empty
    or incomplete.

    Spark creates it some time before the commit that adds it. The kernel reports each new file to
    a thread, also one that is renamed or deleted soon.
    """
    directory.mkdir(parents=True, exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    notifications = libc.inotify_init1(os.O_CLOEXEC)
    watched = libc.inotify_add_watch(notifications, os.fsencode(directory), _IN_CREATE)
    if notifications < 0 or watched < 0:
        raise OSError(ctypes.get_errno(), "inotify", str(directory))

    def watch() -> None:
        left = occurrence
        while left > 0:
            names = _created_names(os.read(notifications, _EVENTS_BYTES))
            left -= sum(name.endswith(b".parquet") for name in names)
        _die(os.getpid())

    Thread(target=watch, daemon=True).start()


def _created_names(events: bytes) -> Iterator[bytes]:
    """Yield the names in events of inotify."""
    at = 0
    while at < len(events):
        *_, name_bytes = _EVENT.unpack_from(events, at)
        at += _EVENT.size
        yield events[at : at + name_bytes].rstrip(b"\0")
        at += name_bytes


def _die(driver: int) -> None:
    """Kill the driver, its JVM, the processes in between and this process; this process last."""
    output = subprocess.check_output(["ps", "-A", "-o", "pid=,ppid="], text=True)
    pairs = (line.split() for line in output.splitlines())
    parents = {int(pid): int(parent) for pid, parent in pairs}
    here = above = os.getpid()
    others = [pid for pid, parent in parents.items() if parent == driver]
    while above != driver:
        above = parents[above]
        others.insert(0, above)
    for pid in dict.fromkeys(others):
        if pid != here:
            # it may be the ps process whose output was read
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    os.kill(here, signal.SIGKILL)


def run_driver(said: Path, module: str, *arguments: object) -> int:
    """Run a driver until it is killed or ends; return its status. ``said`` gets its output."""
    with (
        said.open("ab") as out,
        # Temporary files of killed processes are deleted with it. Short, since socket names are
        # limited.
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
