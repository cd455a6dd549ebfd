"""Concurrent clients that increment one counter, and the check of the log afterwards.

A record is an increment of ``ReplicatedCounter``. A writer that appends number N has read N - 1
increments, and sets ``required_base_offset`` to the end that it read: of concurrent appends one
succeeds, and the log has every increment once, in order. Writers retry while there is no leader;
any other error ends the run.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from typing import Final

import raftlog
from raftlog import ConnectedLog, EmbeddedLog
from raftlog.errors import (
    AppendUnknownError,
    QuorumUnavailableError,
    RaftlogError,
    UnexpectedEndOffsetError,
)
from tests.support.replicated_counter import decode_increment, encode_increment

_POLL_INTERVAL_S: Final = 0.002
_COMMIT_TIMEOUT_S: Final = 10.0


@dataclass(slots=True)
class Tally:
    """Results of all writers. Thread-safe."""

    acknowledged: dict[int, int] = field(default_factory=dict)
    """Increments by offset."""
    error: RaftlogError | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def record_acknowledged(self, offset: int, number: int) -> None:
        """Record an acknowledged increment."""
        with self._lock:
            self.acknowledged[offset] = number


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of ``verify``: the counter's value, offsets of lost and of out-of-order increments."""

    value: int
    lost: tuple[int, ...]
    out_of_order: tuple[int, ...]


class CounterWriter:
    """Writer of increments, with its own thread and connection."""

    def __init__(self, bootstrap_servers: str, tally: Tally, until_s: float) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._tally = tally
        self._until_s = until_s
        self._value = 0
        self._end_offset = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread, which ends at the time given to the constructor."""
        self._thread.join()

    @property
    def _is_stopping(self) -> bool:
        return time.monotonic() >= self._until_s

    def _run(self) -> None:
        try:
            with raftlog.connect(self._bootstrap_servers) as log:
                self._end_offset = log.log_start_offset
                self._catch_up(log, self._end_offset)
                while not self._is_stopping:
                    self._count_once(log)
        except RaftlogError as error:
            self._tally.error = error

    def _count_once(self, log: ConnectedLog) -> None:
        number = self._value + 1
        try:
            done = log.append(encode_increment(number), required_base_offset=self._end_offset)
        except UnexpectedEndOffsetError as error:
            self._catch_up(log, error.log_end_offset)
        except (AppendUnknownError, QuorumUnavailableError):
            self._catch_up(log, self._end_offset)
        else:
            self._value, self._end_offset = number, done.last_offset + 1
            self._tally.record_acknowledged(done.base_offset, number)

    def _catch_up(self, log: ConnectedLog, end_offset: int) -> None:
        """Read committed increments up to ``end_offset``, or until the commit timeout."""
        deadline_s = time.monotonic() + _COMMIT_TIMEOUT_S
        while True:
            with contextlib.suppress(QuorumUnavailableError):
                self._read_committed(log)
            if self._end_offset >= end_offset or self._is_stopping or time.monotonic() > deadline_s:
                return
            time.sleep(_POLL_INTERVAL_S)

    def _read_committed(self, log: ConnectedLog) -> None:
        reading = log.read(self._end_offset)
        for record in reading:
            number = decode_increment(record.value)
            if number is not None:
                self._value = number
        self._end_offset = reading.end_offset


def verify(log: ConnectedLog | EmbeddedLog, tally: Tally) -> Verdict:
    """Read the whole log and compare it with the acknowledged increments."""
    value = 0
    missing = dict(tally.acknowledged)
    out_of_order = []
    for record in log.read():
        number = decode_increment(record.value)
        if number is None:
            continue  # not an increment
        if value and number != value + 1:
            out_of_order.append(record.offset)
        value = number
        if missing.get(record.offset) == number:
            del missing[record.offset]
    start_offset = log.log_start_offset
    lost = tuple(offset for offset in sorted(missing) if offset >= start_offset)
    return Verdict(value, lost, tuple(out_of_order))
