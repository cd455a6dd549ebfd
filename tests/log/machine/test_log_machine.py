"""State machine test of a directory that two processes write, with faults in any order.

After each step the log is compared with a model in lists: what a reader returns, what a power loss
would leave now, and the state of commits and producers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from tests.log.machine.intents import DEADLINE_MS, INTENTS, Callers, Intent, Kind
from tests.log.machine.model import AppendedBatch, Entry, Model
from tests.simulated_disk.crash_model import Survival
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.crash_injection import crashes_after

from raftlog.append import AppendResult, Done, Failed, Operation, Request, RequestResult
from raftlog.client.embedded.directory import find_or_create
from raftlog.client.embedded.repair import repair_log
from raftlog.client.embedded.writer import GroupCommitter
from raftlog.clock import Clock
from raftlog.errors import (
    AppendUnknownError,
    DiskFailedError,
    LogReadOnlyError,
    RaftlogError,
)
from raftlog.log.format import directory
from raftlog.log.reading.log_reader import LogReader
from raftlog.log.reading.opening import open_log
from raftlog.log.recovery.recover import recover
from raftlog.log.writing.producer_state import ProducerStateManager
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.storage.protocol import Storage

T = TypeVar("T")
PATH = "/logs/orders-3"
HOUR_MS = 3_600_000
CONFIG = LogConfig(
    segment_bytes=900, index_interval_bytes=150, retention_bytes=2_500, retention_ms=HOUR_MS
)
WRITERS = st.integers(0, 1)
GROUPS = st.lists(INTENTS, min_size=1, max_size=4)
LARGE_GROUPS = st.lists(INTENTS, min_size=5, max_size=10)
DEATHS = st.sampled_from((None, *Survival))
CERTAIN = Intent(Kind.PLAIN, record_count=1, record_bytes=0, which=0, back=1)


class LogMachine(RuleBasedStateMachine):
    """``log`` is the model of acknowledged appends; ``disk`` is the view of an outside process."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_700_000_000_000
        self.clock = Clock(wall_ms=lambda: self.now_ms, now_ms=lambda: 0.0, pause=_never)
        self.disk = SimulatedDisk()
        self.disk.make_directory("/logs")
        self.disk.sync_directory("/")
        find_or_create(self.disk, PATH, CONFIG, self.clock)
        self.log = Model().with_entry(Entry(0, (None,), 1))
        self.callers = Callers()
        self.processes = [self.disk.another_process() for _ in range(2)]
        self.writers = [self._new_writer(process) for process in self.processes]
        self.reader: LogReader | None = None
        self.reader_end = 0

    # --- appends ----------------------------------------------------------------------------------

    @rule(writer_index=WRITERS, intents=GROUPS)
    def append(self, writer_index: int, intents: list[Intent]) -> None:
        requests, expected, logs = self._planned(intents)
        answers = self._done(writer_index, requests)
        for request, answer, right in zip(requests, answers, expected, strict=True):
            if isinstance(right, AppendedBatch):
                assert isinstance(answer, Done), (request, answer, right)
                result = answer.value
                assert isinstance(result, AppendResult)
                found = AppendedBatch(result.base_offset, result.last_offset, result.was_duplicate)
                assert found == right
            else:
                assert isinstance(answer, Failed), (request, answer, right)
                assert type(answer.error) is right, answer.error
        self.log = logs[-1]

    @rule(writer_index=WRITERS, intents=LARGE_GROUPS)
    def append_much(self, writer_index: int, intents: list[Intent]) -> None:
        self.append(writer_index, intents)

    @rule(writer_index=WRITERS)
    def claim(self, writer_index: int) -> None:
        assert self._run(writer_index, _claim) == self.log.epoch + 1
        self.log = self.log.claimed()

    # --- retention --------------------------------------------------------------------------------

    @rule(writer_index=WRITERS)
    def snapshot(self, writer_index: int) -> None:
        """Write a snapshot of the whole log, and delete the records before it."""
        self._run(writer_index, _snapshot)
        self.log = self.log.starting_at(self.log.end_offset)

    @rule(writer_index=WRITERS, hours=st.integers(0, 2))
    def retain(self, writer_index: int, hours: int) -> None:
        self.now_ms += hours * HOUR_MS
        before = self.log.start_offset
        was_cleaned = self._run(writer_index, lambda log, now_ms: log.clean(now_ms=now_ms))
        start_offset = self._run(writer_index, lambda log, _: log.log_start_offset)
        assert start_offset == before or (start_offset > before and was_cleaned)
        assert start_offset <= self.log.end_offset
        self.log = self.log.starting_at(start_offset)

    # --- restarts and crashes ---------------------------------------------------------------------

    @rule(writer_index=WRITERS)
    def close(self, writer_index: int) -> None:
        self.writers[writer_index].close()
        self.writers[writer_index] = self._new_writer(self.processes[writer_index])

    @rule(writer_index=WRITERS)
    def kill(self, writer_index: int) -> None:
        self.processes[writer_index].kill()
        self.writers[writer_index] = self._new_writer(self.processes[writer_index])

    @rule(survival=st.sampled_from(Survival), seed=st.integers(0, 9))
    def lose_power(self, survival: Survival, seed: int) -> None:
        self._lose_power(survival, seed)

    @rule(writer_index=WRITERS, intents=GROUPS, operations=st.integers(0, 40), death=DEATHS)
    def die_while_appending(
        self, writer_index: int, intents: list[Intent], operations: int, death: Survival | None
    ) -> None:
        requests, _, logs = self._planned(intents)
        self._die(lambda: self._done(writer_index, requests), writer_index, logs, operations, death)

    @rule(writer_index=WRITERS, operations=st.integers(0, 40), death=DEATHS)
    def die_while_claiming(
        self, writer_index: int, operations: int, death: Survival | None
    ) -> None:
        logs = [self.log, self.log.claimed()]
        self._die(lambda: self._run(writer_index, _claim), writer_index, logs, operations, death)

    @rule(writer_index=WRITERS, operations=st.integers(0, 40), death=DEATHS)
    def die_during_retention(
        self, writer_index: int, operations: int, death: Survival | None
    ) -> None:
        logs = [self.log, self.log.starting_at(self.log.end_offset)]
        self._die(lambda: self._run(writer_index, _snapshot), writer_index, logs, operations, death)

    @rule(writer_index=WRITERS, intents=GROUPS)
    def fail_a_sync(self, writer_index: int, intents: list[Intent]) -> None:
        """Fail a sync: no request succeeds, and the writer refuses further writes."""
        requests, _, logs = self._planned([CERTAIN, *intents])
        self.disk.fail_sync_once("*.log")
        answers = self._done(writer_index, requests)
        assert isinstance(answers[0], Failed)
        assert type(answers[0].error) in (AppendUnknownError, DiskFailedError)
        self.kill(writer_index)
        self._settle(logs)

    # --- changes of the files by others -----------------------------------------------------------

    @rule(data=st.binary(min_size=1, max_size=90))
    def write_after_the_end(self, data: bytes) -> None:
        """Write an unpublished batch as a writer that died leaves it; recovery truncates it."""
        with self.disk.open_for_writing(self._active_segment()) as file:
            file.write_at(file.byte_count(), data)

    @rule(back=st.integers(0, 8))
    def repair(self, back: int) -> None:
        """Truncate the end of the log deliberately."""
        self._repair(max(self.log.start_offset, 1, self.log.end_offset - back))

    @rule(from_end=st.integers(1, 60), bit=st.integers(0, 7))
    def damage_the_end(self, from_end: int, bit: int) -> None:
        """Damage the end of the log: nothing is dropped before an operator repairs it.

        Only while the synced end is known: a writer was open since the machine started.
        """
        self._run(0, self._check_log)
        for writer_index in range(2):
            self.kill(writer_index)
        path = self._active_segment()
        batches = list(
            open_log(self.disk, PATH).batches(self.log.start_offset, self.log.end_offset)
        )
        byte_count = len(self.disk.files()[path])
        if not batches or not byte_count or not batches[-1].base_offset:
            return
        offset = batches[-1].base_offset
        if offset < int(path.rsplit("/", 1)[-1][:20]) or from_end > batches[-1].byte_count:
            return
        end = batches[-1].position + batches[-1].byte_count
        self.disk.flip_bit(path, 8 * (end - from_end) + bit)
        requests, _, _ = self._planned([CERTAIN])
        (answer,) = self._done(0, requests)
        assert isinstance(answer, Failed)
        assert type(answer.error) is LogReadOnlyError, answer.error
        self._repair(offset)

    # --- checks -----------------------------------------------------------------------------------

    @rule(writer_index=WRITERS)
    def query(self, writer_index: int) -> None:
        """Check that a writer knows the appends of the others."""
        self._run(writer_index, self._check_log)

    @rule()
    def read_on(self) -> None:
        """Check that an open reader sees the log grow, and no record twice."""
        if self.reader is None:
            self.reader = open_log(self.disk, PATH)
        self.reader.refresh()
        assert self.reader.log_end_offset == self.log.end_offset >= self.reader_end
        first = max(self.reader_end, self.log.start_offset)
        found = _rows(self.reader, first, self.log.end_offset)
        assert found == [row for row in self.log.rows() if row[0] >= first]
        self.reader_end = self.log.end_offset

    @invariant()
    def a_reader_returns_acknowledged_records(self) -> None:
        start_offset, rows = _all_rows(self.disk)
        assert start_offset <= self.log.start_offset, "whole segments are deleted"
        assert [row for row in rows if row[0] >= self.log.start_offset] == self.log.rows()

    @invariant()
    def a_power_loss_keeps_acknowledged_records(self) -> None:
        disk = self.disk.copy()
        disk.crash(Survival.NOTHING)
        recovered = recover(disk, PATH, config=CONFIG)
        assert recovered.report.read_only is None, recovered.report
        assert recovered.log_start_offset == self.log.start_offset
        assert recovered.end_offset == self.log.end_offset
        assert recovered.epochs.latest_epoch == self.log.epoch
        self._check_memory(recovered.producer_state)

    # --- implementation ---------------------------------------------------------------------------

    def _new_writer(self, process: SimulatedDisk) -> GroupCommitter:
        return GroupCommitter(process, PATH, self.clock)

    def _planned(
        self, intents: Sequence[Intent]
    ) -> tuple[list[Request], list[AppendedBatch | type[RaftlogError]], list[Model]]:
        """Return requests, expected results, and the model before the first and after each."""
        requests: list[Request] = []
        answers: list[AppendedBatch | type[RaftlogError]] = []
        logs = [self.log]
        for intent in intents:
            request = self.callers.request(intent, logs[-1])
            answer, log = logs[-1].answer(request)
            requests.append(request)
            answers.append(answer)
            logs.append(log)
        return requests, answers, logs

    def _done(self, writer_index: int, requests: Sequence[Request]) -> list[RequestResult]:
        answers: dict[int, RequestResult] = {}
        self.writers[writer_index].write(
            requests, lambda one, answer: answers.update({id(one): answer})
        )
        return [answers[id(request)] for request in requests]

    def _run(self, writer_index: int, operation: Callable[[SingleVoterLog, int], T]) -> T:
        (answer,) = self._done(writer_index, [Operation(run=operation, deadline_ms=DEADLINE_MS)])
        assert isinstance(answer, Done), answer
        value: T = answer.value
        return value

    def _die(
        self,
        action: Callable[[], object],
        writer_index: int,
        logs: Sequence[Model],
        operations: int,
        death: Survival | None,
    ) -> None:
        """Kill a process, or the machine, after a number of operations of an action."""
        if not crashes_after(self.disk, operations, action):
            logs = logs[-1:]
        if death is None:
            self.kill(writer_index)
        else:
            self._lose_power(death, operations)
        self._settle(logs)

    def _lose_power(self, survival: Survival, seed: int) -> None:
        self.disk.crash(survival, seed)
        for writer_index in range(2):
            self.kill(writer_index)
        self.reader = None

    def _settle(self, logs: Sequence[Model]) -> None:
        """Find out which of these models the log matches, and that earlier reads saw no more."""
        rows_read = _all_rows(self.disk)[1]
        found = self._run(0, lambda log, _: (log.log_start_offset, log.end_offset))
        epoch = self._run(0, lambda log, _: log.epoch)
        fitting = [log for log in logs if (log.start_offset, log.end_offset) == found]
        assert fitting, f"{found}, and it was to be one of {logs}"
        self.log = fitting[-1]
        if self.log.start_offset == self.log.end_offset:  # an epoch may have begun without a record
            assert epoch in {log.epoch for log in logs}
            self.log = replace(self.log, noted_epoch=epoch)
        rows = self.log.rows()
        seen = [row for row in rows_read if row[0] >= self.log.start_offset]
        assert seen == rows[: len(seen)]
        self._run(0, self._check_log)

    def _repair(self, offset: int) -> None:
        done = repair_log(PATH, cut_at=offset, storage=self.disk, clock=self.clock)
        assert done.first_lost_offset <= offset
        assert done.recovered.report.read_only is None
        self.log = self.log.cut(done.first_lost_offset)
        if self.log.start_offset == self.log.end_offset:
            self.log = replace(self.log, noted_epoch=done.recovered.epochs.latest_epoch or 0)
        self.reader, self.reader_end = None, 0

    def _check_log(self, log: SingleVoterLog, _: int) -> None:
        assert (log.log_start_offset, log.end_offset) == (
            self.log.start_offset,
            self.log.end_offset,
        )
        assert log.synced_end_offset == log.last_stable_offset == log.end_offset
        assert log.epoch == self.log.epoch
        self._check_memory(log.producer_state)

    def _check_memory(self, producer_state: ProducerStateManager) -> None:
        commits = {
            one.name.application_id: (one.name, one.base_offset, one.last_offset)
            for one in producer_state.commits
        }
        assert commits == self.log.commits
        producers = {
            one.producer_id: (
                one.producer_epoch,
                [(batch.base_sequence, batch.base_offset) for batch in one.batches],
            )
            for one in producer_state.producers
        }
        assert producers == {
            producer_id: (epoch, [(one.base_sequence, one.base_offset) for one in batches])
            for producer_id, (epoch, batches) in self.log.producers.items()
        }

    def _active_segment(self) -> str:
        return max(path for path in self.disk.files() if path.endswith(".log"))


def _never(_: float) -> None:
    raise AssertionError("the lock must be free between two steps")


def _claim(log: SingleVoterLog, now_ms: int) -> int:
    return log.claim(now_ms=now_ms)


def _snapshot(log: SingleVoterLog, now_ms: int) -> None:
    log.flush()
    snapshot_id = log.snapshot_id_at(log.end_offset)
    writer = log.begin_snapshot(snapshot_id, now_ms=now_ms)
    if writer is not None:
        with writer:
            writer.freeze()
    log.delete_before(snapshot_id)


def _rows(log: LogReader, start: int, end: int) -> list[tuple[int, int, bytes | None]]:
    return [
        (record.offset, batch.leader_epoch, None if batch.is_control else record.value)
        for batch in log.batches(start, end)
        for record in batch.records()
        if start <= record.offset < end
    ]


def _all_rows(storage: Storage) -> tuple[int, list[tuple[int, int, bytes | None]]]:
    log = open_log(storage, PATH)
    return log.log_start_offset, _rows(log, log.log_start_offset, log.log_end_offset)


def _run_machine(example_count: int, step_count: int, *, derandomize: bool = True) -> None:
    run_state_machine_as_test(
        LogMachine,
        settings=settings(
            max_examples=example_count,
            stateful_step_count=step_count,
            derandomize=derandomize,
            report_multiple_bugs=False,
        ),
    )


@pytest.fixture(autouse=True)
def _no_other_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for a torn line of ``published`` to change: no other process writes here."""
    monkeypatch.setattr(directory, "_READS_MAX", 2)


def test_the_log_matches_its_model_after_any_steps() -> None:
    _run_machine(12, 25)


@pytest.mark.parametrize(
    "run_count",
    [pytest.param(12, marks=pytest.mark.slow), pytest.param(60, marks=pytest.mark.nightly)],
)
def test_the_log_matches_its_model_in_long_runs(run_count: int) -> None:
    """``RAFTLOG_MACHINE_EXAMPLES`` is the number of runs; if it is set, they are random."""
    examples = os.environ.get("RAFTLOG_MACHINE_EXAMPLES")
    _run_machine(int(examples or run_count), 45, derandomize=examples is None)
