"""Writers that append to a quorum continuously, and record what was acknowledged.

Each appender is a thread with its own handle. Every value is appended once under a commit name, so
that a retry cannot duplicate it and its outcome is always known in the end. Half of them append
with a required offset: of two rivals with the same one, one wins.
"""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import raftlog
from raftlog.errors import DataLossError, RaftlogError, UnexpectedEndOffsetError

TIMEOUT_MS: Final = 60_000


@dataclass(slots=True)
class Acknowledgements:
    """Acknowledgements of appenders. ``acknowledged``: value by offset; ``moments_s``: when."""

    acknowledged: dict[int, bytes] = field(default_factory=dict)
    moments_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    refused_count: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, offset: int, value: bytes) -> None:
        with self._lock:
            assert offset not in self.acknowledged, f"offset {offset} was given twice"
            self.acknowledged[offset] = value
            self.moments_s.append(time.monotonic())

    def note_refusal(self) -> None:
        with self._lock:
            self.refused_count += 1

    def note_failure(self, text: str) -> None:
        with self._lock:
            self.failures.append(text)

    def longest_silence_s(self, since_s: float) -> float:
        """Return the longest time without an acknowledgement since a moment, in seconds."""
        moments = [since_s, *sorted(one for one in self.moments_s if one >= since_s)]
        gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
        return max(gaps, default=0.0)


class Load:
    """Appenders on a quorum, in a ``with`` statement."""

    def __init__(self, bootstrap: str, appender_count: int = 4, *, value_bytes: int = 1) -> None:
        """Values have at least ``value_bytes``."""
        self._value_bytes = value_bytes
        self.book: Final = Acknowledgements()
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._append, args=(number,), name=f"appender-{number}")
            for number in range(appender_count)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the appenders, after their current appends."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def count(self) -> int:
        """Return the number of acknowledged appends so far."""
        return len(self.book.acknowledged)

    def _append(self, number: int) -> None:
        try:
            with raftlog.connect(self._bootstrap) as log:
                version = 0
                while not self._stop.is_set():
                    version += 1
                    self._append_one(log, number, version)
        except RaftlogError as error:
            self.book.note_failure(f"appender {number}: {error}")

    def _append_one(self, log: raftlog.ConnectedLog, number: int, version: int) -> None:
        value = (b"%d-%d" % (number, version)).ljust(self._value_bytes, b".")
        name = (f"appender-{number}", "load", version)
        has_required_offset = number % 2 == 1
        while not self._stop.is_set():
            base = log.end_offset if has_required_offset else None
            try:
                done = log.append(
                    value, commit=name, required_base_offset=base, timeout_ms=TIMEOUT_MS
                )
            except UnexpectedEndOffsetError:
                self.book.note_refusal()
                continue
            self.book.note(done.base_offset, value)
            return


def check_nothing_is_lost(bootstrap: str, book: Acknowledgements, *, is_whole: bool = True) -> None:
    """Check that everything acknowledged is in the log, once, and no appender failed.

    A log that starts above offset 0 has deleted its beginning on purpose.
    """
    assert not book.failures, book.failures
    start_offset, found = _values_by_offset(bootstrap, is_whole=is_whole)
    promised = {at: value for at, value in book.acknowledged.items() if at >= start_offset}
    missing = {offset: value for offset, value in promised.items() if offset not in found}
    assert not missing, f"{len(missing)} acknowledged records are lost, {min(missing)} first"
    wrong = {at for at, value in promised.items() if found[at] != value}
    assert not wrong, f"other records are at offsets {sorted(wrong)[:5]}"
    values = list(found.values())
    assert len(values) == len(set(values)), "a record was written twice"


def _values_by_offset(bootstrap: str, *, is_whole: bool) -> tuple[int, dict[int, bytes | None]]:
    """Return the start of the log, and the values from there on.

    Retention may delete the start while it is read: the log is read again from its new one. Without
    appends it ends.
    """
    with raftlog.connect(bootstrap) as log:
        start_offset = 0 if is_whole else log.log_start_offset
        try:
            return start_offset, {record.offset: record.value for record in log.read(start_offset)}
        except DataLossError:
            if is_whole:
                raise
    return _values_by_offset(bootstrap, is_whole=False)
