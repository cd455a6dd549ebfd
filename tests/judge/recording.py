"""Clients of running nodes that record their calls and the results.

Invariants:

1. Clients are threads that share handles in pairs, so that appends of two threads are in one batch.
2. Timeouts are random and often shorter than an election: the runs search for deadlines that pass
   in the middle of an append.
3. Every value is appended by one call only: retrying a refused append would write it twice.
"""

from __future__ import annotations

import random
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final, Self

import raftlog
from raftlog.errors import AppendError, AppendUnknownError, RaftlogError, UnexpectedEndOffsetError
from raftlog.records.record import Record
from tests.judge.history import Append, Call, FinalLog, Outcome, ReadRange

TIMEOUTS_MS: Final = (150, 400, 1_500, 6_000)
CLIENTS_PER_HANDLE: Final = 2
READ_RECORDS_MAX: Final = 200


@dataclass(slots=True)
class Recorder:
    """Clients of one quorum; a context manager that stops and joins them."""

    bootstrap: str
    client_count: int = 6
    seed: int = 0
    history: list[Call] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _handles: ExitStack = field(default_factory=ExitStack)
    _failures: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        handles = [
            self._handles.enter_context(raftlog.connect(self.bootstrap))
            for _ in range(0, self.client_count, CLIENTS_PER_HANDLE)
        ]
        self._threads = [
            threading.Thread(target=self._run, args=(handles[number // CLIENTS_PER_HANDLE], number))
            for number in range(self.client_count)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._handles.close()

    def counts(self) -> dict[str, int]:
        """Return how many calls ended in each way."""
        names = [f"{type(call).__name__} {call.outcome.value}" for call in list(self.history)]
        return {name: names.count(name) for name in sorted(set(names))}

    def check_clients(self) -> None:
        """Fail if a client ended with an unexpected error."""
        assert not self._failures, self._failures

    def _run(self, log: raftlog.ConnectedLog, number: int) -> None:
        client = _Client(log, number, random.Random(f"{self.seed} {number}"), self.history)
        try:
            while not self._stop.is_set():
                client.call()
        except Exception as error:  # noqa: BLE001 a thread's end must be seen by the test
            self._failures.append(f"client {number}: {error!r}")


class _Client:
    def __init__(
        self, log: raftlog.ConnectedLog, number: int, rng: random.Random, history: list[Call]
    ) -> None:
        self._log, self._number, self._rng, self._history = log, number, rng, history
        self._end_offset = 0
        """End of the log when it was last read."""
        self._count = 0

    def call(self) -> None:
        """Make one call and record it."""
        kind = self._rng.choice(("append", "append", "token", "token", "check", "read"))
        if kind == "read":
            self._read()
        else:
            self._append(kind)

    def _append(self, kind: str) -> None:
        values = [] if kind == "check" else self._values()
        required = None if kind == "append" else self._end_offset
        facts: dict[str, Any] = {}
        invoked = time.monotonic_ns()
        try:
            done = self._log.append(
                values,
                required_base_offset=required,
                atomic=True,
                timeout_ms=self._rng.choice(TIMEOUTS_MS),
            )
        except UnexpectedEndOffsetError as error:
            outcome = Outcome.REFUSED
            facts["observed_end_offset"] = self._end_offset = error.log_end_offset
        except AppendUnknownError:
            outcome = Outcome.UNKNOWN
        except (AppendError, RaftlogError):
            outcome = Outcome.REFUSED
        else:
            outcome = Outcome.OK
            facts["base_offset"] = done.base_offset if values else done.end_offset
            self._end_offset = done.end_offset
        self._history.append(
            Append(
                client=self._number,
                invoked=invoked,
                returned=time.monotonic_ns(),
                outcome=outcome,
                values=tuple(values),
                required_base_offset=required,
                **facts,
            )
        )

    def _values(self) -> list[bytes]:
        self._count += 1
        return [
            b"%d-%d-%d" % (self._number, self._count, at)
            for at in range(self._rng.choice((1, 1, 3)))
        ]

    def _read(self) -> None:
        """Read the last records up to an end that may be stale."""
        invoked = time.monotonic_ns()
        try:
            end_offset = self._log.end_offset
            start_offset = max(self._log.log_start_offset, end_offset - READ_RECORDS_MAX)
            found = tuple(
                (record.offset, value_of(record))
                for record in self._log.read(start_offset, end_offset)
            )
        except RaftlogError:
            return
        self._end_offset = max(self._end_offset, end_offset)
        self._history.append(
            ReadRange(
                client=self._number,
                invoked=invoked,
                returned=time.monotonic_ns(),
                outcome=Outcome.OK,
                start_offset=start_offset,
                end_offset=end_offset,
                records=found,
            )
        )


def final_log(bootstrap: str) -> FinalLog:
    """Return the whole log of a quorum that has settled."""
    with raftlog.connect(bootstrap) as log:
        reader = log.reader()
        values: dict[int, bytes] = {}
        ends = {reader.log_start_offset}
        for batch in reader.batches(reader.log_start_offset, reader.log_end_offset):
            ends.add(batch.last_offset + 1)
            if not batch.is_control:
                values.update((record.offset, value_of(record)) for record in batch.records())
    return FinalLog(values, frozenset(ends))


def value_of(record: Record) -> bytes:
    assert record.value is not None, "every client appends values"
    return record.value
