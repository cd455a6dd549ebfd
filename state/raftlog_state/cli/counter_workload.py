"""Counter workload: concurrent writers increment one counter, then the log is verified.

A record is an increment of ``raftlog.node.replicated_counter``. A writer that appends number N has
read N - 1 increments, and sets ``required_base_offset`` to the end that it read: of concurrent
appends one succeeds, and the log has every increment once, in order. Acknowledged increments are
recorded and searched for in the log at the end.

Writers retry while there is no leader; any other error ends the run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from raftlog.errors import (
    AppendUnknownError,
    QuorumUnavailableError,
    RaftlogError,
    UnexpectedEndOffsetError,
)
from raftlog.node.replicated_counter import decode_increment, encode_increment

if TYPE_CHECKING:
    from raftlog import ConnectedLog, EmbeddedLog

_POLL_INTERVAL_S: Final = 0.002
_COMMIT_TIMEOUT_S: Final = 10.0


@dataclass(slots=True)
class Tally:
    """Results of all writers. Thread-safe."""

    acknowledged: dict[int, int] = field(default_factory=dict)
    """Increments by offset."""
    latencies_ms: list[float] = field(default_factory=list)
    conflict_count: int = 0
    timeout_count: int = 0
    error: RaftlogError | None = None
    longest_gap_ms: float = 0.0
    _last_s: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def record_acknowledged(self, offset: int, number: int, began_s: float) -> None:
        """Record an acknowledged increment."""
        now_s = time.monotonic()
        with self._lock:
            self.acknowledged[offset] = number
            self.latencies_ms.append((now_s - began_s) * 1000)
            self.longest_gap_ms = max(self.longest_gap_ms, (now_s - self._last_s) * 1000)
            self._last_s = now_s

    def record_conflict(self) -> None:
        """Record an append that lost against a concurrent one."""
        with self._lock:
            self.conflict_count += 1

    def record_timeout(self) -> None:
        """Record a request without leader, or an append whose outcome is unknown."""
        with self._lock:
            self.timeout_count += 1

    def latency_ms(self, share: float) -> float:
        """Return a latency quantile: ``share`` of the appends took at most as long."""
        with self._lock:
            ordered = sorted(self.latencies_ms)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of ``verify``: the counter's value, offsets of lost and of out-of-order increments."""

    value: int
    lost: tuple[int, ...]
    out_of_order: tuple[int, ...]

    @property
    def is_correct(self) -> bool:
        return not self.lost and not self.out_of_order


class CounterWriter:
    """Writer of increments, with its own thread and connection."""

    def __init__(self, connect: Callable[[], ConnectedLog], tally: Tally, until_s: float) -> None:
        self._connect = connect
        self._tally = tally
        self._until_s = until_s
        self._stopped = threading.Event()
        self._value = 0
        self._end_offset = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop after the append in progress."""
        self._stopped.set()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the thread; return whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def _is_stopping(self) -> bool:
        return self._stopped.is_set() or time.monotonic() >= self._until_s

    def _run(self) -> None:
        try:
            with self._connect() as log:
                self._end_offset = log.log_start_offset
                self._catch_up(log, self._end_offset)
                while not self._is_stopping:
                    self._count_once(log)
        except RaftlogError as error:
            self._tally.error = error

    def _count_once(self, log: ConnectedLog) -> None:
        began_s, number = time.monotonic(), self._value + 1
        try:
            done = log.append(encode_increment(number), required_base_offset=self._end_offset)
        except UnexpectedEndOffsetError as error:
            self._tally.record_conflict()
            self._catch_up(log, error.log_end_offset)
        except (AppendUnknownError, QuorumUnavailableError):
            self._tally.record_timeout()
            self._catch_up(log, self._end_offset)
        else:
            self._value, self._end_offset = number, done.last_offset + 1
            self._tally.record_acknowledged(done.base_offset, number, began_s)

    def _catch_up(self, log: ConnectedLog, end_offset: int) -> None:
        """Read committed increments up to ``end_offset``, or until the commit timeout."""
        deadline_s = time.monotonic() + _COMMIT_TIMEOUT_S
        while True:
            try:
                self._read_committed(log)
            except QuorumUnavailableError:
                self._tally.record_timeout()
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
