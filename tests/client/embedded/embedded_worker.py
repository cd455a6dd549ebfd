"""Process that uses an embedded log, for tests that start and kill real processes.

``python -m tests.client.embedded.embedded_worker PATH WORK NAME COUNT`` prints each result of the
log immediately, one line each: ``offset value``.
"""

from __future__ import annotations

import os
import sys
import threading

import raftlog
from raftlog.errors import UnexpectedEndOffsetError

THREADS = 8
_POLL_S = 0.002


def print_line(offset: int, value: bytes) -> None:
    """Print a line with one write: threads do not mix lines, a kill leaves no half line."""
    os.write(1, b"%d %s\n" % (offset, value))


def append(log: raftlog.EmbeddedLog, name: str, count: int) -> None:
    """Append record by record, and print what was acknowledged."""
    for number in range(count):
        value = f"{name}-{number}".encode()
        print_line(log.append(value).base_offset, value)


def race(log: raftlog.EmbeddedLog, name: str, end_offset: int) -> None:
    """Compete for each offset until the log has this length; print the offsets won."""
    turn = 0
    while (at := log.end_offset) < end_offset:
        turn += 1
        value = f"{name}-{turn}".encode()
        try:
            result = log.append(value, required_base_offset=at)
        except UnexpectedEndOffsetError:
            continue
        assert result.base_offset == at
        print_line(at, value)


def follow(log: raftlog.EmbeddedLog, name: str, end_offset: int) -> None:
    """Read repeatedly until the log has this length; print the records."""
    at = log.log_start_offset
    waiting = threading.Event()
    while at < end_offset:
        reading = log.read(at)
        for record in reading:
            assert record.value is not None
            print_line(record.offset, record.value)
        at = reading.end_offset
        waiting.wait(_POLL_S)


WORK = {"append": append, "race": race, "follow": follow}


def main(path: str, work: str, name: str, count: str) -> None:
    with raftlog.open(path) as log:
        threads = [
            threading.Thread(target=WORK[work], args=(log, f"{name}-{number}", int(count)))
            for number in range(1 if work == "follow" else THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
