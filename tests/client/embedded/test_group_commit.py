"""What a group of appends does to the disk, and its results when the disk fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.client.embedded.conftest import PATH, Machine
from tests.simulated_disk.crash_model import Survival
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.simulated_disk.simulated_tree import OperationKind
from tests.support.appending import append_batches
from tests.support.batch_encoding import NewRecordBatch, encode_batch

from raftlog.append import AppendRequest, AppendResult, Done, Failed, Request, RequestResult
from raftlog.client.embedded.directory import configure
from raftlog.client.embedded.handle import EmbeddedLog
from raftlog.client.embedded.writer import GroupCommitter
from raftlog.clock import Clock
from raftlog.errors import (
    AppendUnknownError,
    DiskFailedError,
    DiskFullError,
    LogClosedError,
    LogReadOnlyError,
    UnexpectedEndOffsetError,
)
from raftlog.log.reading.transactions import CommitName, Marker, marker_value
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.records import NewRecord
from raftlog.records.batch import RecordBatch

SEGMENT = f"{PATH}/{0:020d}.log"
CLOCK = Clock(wall_ms=lambda: 1_700_000_000_000, now_ms=lambda: 0.0)


def request(*values: bytes, commit: int | None = None, base: int | None = None) -> AppendRequest:
    name = None if commit is None else CommitName("app", "query", commit)
    return AppendRequest(
        records=values, commit=name, required_base_offset=base, deadline_ms=1_000_000
    )


def done(writer: GroupCommitter, requests: Sequence[Request]) -> list[RequestResult]:
    """Return the results of a group, in the order of its requests."""
    answers: dict[int, RequestResult] = {}
    writer.write(requests, lambda one, answer: answers.update({id(one): answer}))
    return [answers[id(one)] for one in requests]


def errors(answers: Sequence[RequestResult]) -> list[type[Exception] | None]:
    return [type(one.error) if isinstance(one, Failed) else None for one in answers]


@pytest.fixture
def writer(machine: Machine) -> GroupCommitter:
    """Writer of a log that has one record."""
    machine.open().close()
    committer = GroupCommitter(machine.disk, PATH, CLOCK)
    assert errors(done(committer, [request(b"first")])) == [None]
    return committer


def values(machine: Machine) -> list[bytes | None]:
    return [record.value for record in machine.open().read()]


def test_a_changed_linger_reaches_an_open_writer(machine: Machine, writer: GroupCommitter) -> None:
    lingers: list[float] = []
    writer.on_linger = lingers.append
    done(writer, [request(b"a")])
    assert lingers == []
    configure(PATH, {"linger.ms": "250"}, storage=machine.disk.another_process(), clock=CLOCK)
    done(writer, [request(b"b")])
    assert lingers == [250]


@pytest.mark.parametrize("problem", ["full", "damaged"])
def test_failed_retention_does_not_fail_appends(machine: Machine, problem: str) -> None:
    config = LogConfig(segment_bytes=300, retention_bytes=600)
    machine.open(config=config).close()
    now_ms = 0.0
    writer = GroupCommitter(machine.disk, PATH, replace(CLOCK, now_ms=lambda: now_ms))
    for number in range(19):
        done(writer, [request(b"%020d" % number)])
    kept = {path: data for path, data in machine.disk.files().items() if path.endswith(".log")}
    if problem == "full":
        machine.disk.full_at(sum(map(len, machine.disk.files().values())) + 100)
    else:
        memories = [path for path in machine.disk.files() if path.endswith(".snapshot")]
        for path in memories[:-1]:
            machine.disk.unlink(path)
        machine.disk.flip_bit(sorted(kept)[1], 8 * 80)
    now_ms = 900_000.0
    assert errors(done(writer, [request(b"x")])) == [None]
    assert kept.keys() <= machine.disk.files().keys()
    machine.disk.full_at(None)


# --- cost of a group ------------------------------------------------------------------------------


def test_a_group_shares_one_batch_one_write_and_one_sync(
    machine: Machine, writer: GroupCommitter
) -> None:
    recording = machine.disk.record()
    answers = done(writer, [request(b"%d" % number) for number in range(64)])
    assert [one.value.base_offset for one in answers if isinstance(one, Done)] == list(range(2, 66))
    kinds = [one.kind for one in recording.operations if one.path == SEGMENT]
    assert kinds == [OperationKind.WRITE, OperationKind.SYNC]
    published = [one.kind for one in recording.operations if one.path == f"{PATH}/published"]
    assert published == [OperationKind.WRITE]


def test_a_group_without_appends_writes_nothing(machine: Machine, writer: GroupCommitter) -> None:
    done(writer, [request(b"x", commit=1)])
    recording = machine.disk.record()
    answers = done(writer, [request(b"y", base=1), request(b"x", commit=1), request(base=3)])
    assert [isinstance(one, Done) for one in answers] == [False, True, True]
    assert recording.operations == []


def test_named_and_conditional_appends_have_batches_of_their_own(
    machine: Machine, writer: GroupCommitter
) -> None:
    done(writer, [request(b"a"), request(b"b", commit=1), request(b"c"), request(b"d", base=5)])
    log = SingleVoterLog.open(machine.disk.another_process(), PATH, now_ms=0)
    assert [one.name.version for one in log.producer_state.commits] == [1]
    reader = machine.open()
    assert [record.value for record in reader.read(2)] == [b"a", b"b", b"c", b"d"]
    assert [(b.base_offset, b.record_count) for b in _batches(reader)] == [
        (0, 1),
        (1, 1),
        (2, 1),
        (3, 1),
        (4, 1),
        (5, 1),
    ]


def test_of_conflicting_appends_in_one_group_the_first_wins(
    machine: Machine, writer: GroupCommitter
) -> None:
    answers = done(writer, [request(b"%d" % turn, base=2) for turn in range(3)])
    assert errors(answers) == [None, UnexpectedEndOffsetError, UnexpectedEndOffsetError]
    assert values(machine) == [b"first", b"0"]


def _batches(log: EmbeddedLog) -> list[RecordBatch]:
    from raftlog.client import open_path

    found = open_path(PATH, storage=log._storage)
    return list(found.batches(0, found.log_end_offset))


# --- disk failures --------------------------------------------------------------------------------


def test_a_failed_sync_makes_its_group_unknown_and_closes_the_log(
    machine: Machine, writer: GroupCommitter
) -> None:
    machine.disk.fail_sync_once("*.log")
    asking = AppendRequest(records=(), required_base_offset=3, deadline_ms=1e12)
    answers = done(
        writer, [request(b"lost"), asking, request(b"refused", base=99), request(b"lost too")]
    )
    assert errors(answers)[0] is errors(answers)[3] is AppendUnknownError
    assert errors(answers)[1] is DiskFailedError, "nothing of it can be in the log"
    assert errors(done(writer, [request(b"later")])) == [LogClosedError]
    assert values(machine) == [b"first"], "readers see only durable records"
    writer.close()
    log = machine.open()
    assert log.append(b"next", required_base_offset=2).base_offset == 2
    assert values(machine) == [b"first", b"next"]


@pytest.mark.parametrize("pattern", ["*.log", "*/published"])
def test_a_failed_write_makes_its_group_unknown(
    machine: Machine, writer: GroupCommitter, pattern: str
) -> None:
    machine.disk.fail_write_once(pattern)
    (answer,) = done(writer, [request(b"lost")])
    assert errors([answer])[0] in (AppendUnknownError, DiskFailedError)
    writer.close()
    assert values(machine) == [b"first"]
    assert machine.open().append(b"next", required_base_offset=2).base_offset == 2


def test_on_a_full_disk_fitting_requests_are_appended_and_others_refused(
    machine: Machine, writer: GroupCommitter
) -> None:
    used = sum(len(data) for data in machine.disk.files().values())
    machine.disk.full_at(used + 2000)
    answers = done(writer, [request(b"fits", commit=1), request(bytes(5000)), request(b"no")])
    assert errors(answers) == [None, DiskFullError, DiskFullError]
    assert values(machine) == [b"first", b"fits"]
    machine.disk.full_at(None)
    (answer,) = done(writer, [request(b"again", base=3)])
    assert answer == Done(AppendResult(3, 3, 1))
    assert values(machine) == [b"first", b"fits", b"again"]


@pytest.mark.parametrize("record_count", [0, 1, 3])
def test_a_rejection_because_of_records_that_do_not_fit_is_a_full_disk(
    machine: Machine, writer: GroupCommitter, record_count: int
) -> None:
    used = sum(len(data) for data in machine.disk.files().values())
    machine.disk.full_at(used + 2000)
    at_end = AppendRequest(
        records=(b"x",) * record_count, required_base_offset=2, deadline_ms=1_000_000
    )
    answers = done(writer, [request(bytes(5000)), at_end])
    assert errors(answers) == [DiskFullError, DiskFullError]
    assert values(machine) == [b"first"]


@pytest.mark.parametrize("record_count", [0, 1, 3])
def test_a_rejection_because_of_written_records_is_kept_on_a_full_disk(
    machine: Machine, writer: GroupCommitter, record_count: int
) -> None:
    used = sum(len(data) for data in machine.disk.files().values())
    machine.disk.full_at(used + 2000)
    below_end = AppendRequest(
        records=(b"x",) * record_count, required_base_offset=1, deadline_ms=1_000_000
    )
    answers = done(writer, [below_end, request(bytes(5000))])
    assert errors(answers) == [UnexpectedEndOffsetError, DiskFullError]


def test_a_request_written_in_part_on_a_full_disk_is_partially_written(
    machine: Machine, writer: GroupCommitter
) -> None:
    used = sum(len(data) for data in machine.disk.files().values())
    machine.disk.full_at(used + 9 * 1024 * 1024)
    half = bytes(4 * 1024 * 1024 + 1)
    (answer,) = done(writer, [AppendRequest(records=(half, half, half), deadline_ms=1_000_000)])
    assert errors([answer]) == [AppendUnknownError]
    assert isinstance(answer, Failed)
    assert "were appended, and then the disk was full" in str(answer.error)


def test_a_transaction_written_in_part_on_a_full_disk_is_unknown(
    machine: Machine,
) -> None:
    machine.open(values="kraft").close()
    writer = GroupCommitter(machine.disk, PATH, CLOCK)
    done(writer, [request(b"first")])
    used = sum(len(data) for data in machine.disk.files().values())
    machine.disk.full_at(used + 9 * 1024 * 1024)
    half = bytes(4 * 1024 * 1024 + 1)
    records = (marker_value(Marker.BEGIN, "x"), half, half, half, marker_value(Marker.END))
    (answer, later) = done(
        writer, [AppendRequest(records=records, deadline_ms=1_000_000), request(b"later")]
    )
    assert errors([answer, later]) == [AppendUnknownError, DiskFullError]
    assert isinstance(answer, Failed)
    assert "were appended, and then the disk was full" in str(answer.error)


def test_a_failed_write_of_a_named_commit_is_unknown(
    machine: Machine, writer: GroupCommitter
) -> None:
    machine.disk.fail_write_once("*.log")
    answers = done(writer, [request(b"named", commit=1), request(b"later")])
    assert errors(answers) == [AppendUnknownError, AppendUnknownError]  # one write for both


def test_a_failed_write_of_a_named_commit_of_a_kraft_log_is_unknown(machine: Machine) -> None:
    """A request with markers is written while ``process`` executes it."""
    machine.open(values="kraft").close()
    writer = GroupCommitter(machine.disk, PATH, CLOCK)
    done(writer, [request(b"first")])
    machine.disk.fail_write_once("*.log")
    answers = done(writer, [request(b"named", commit=1), request(b"later")])
    assert errors(answers) == [AppendUnknownError, DiskFailedError], "the second was not written"


def test_acknowledged_appends_survive_any_power_loss(
    machine: Machine, writer: GroupCommitter
) -> None:
    answers = done(writer, [request(b"a", commit=1), request(b"b")])
    assert errors(answers) == [None, None]
    for survival in Survival:
        for seed in range(3):
            disk = machine.disk.copy()
            disk.crash(survival, seed)
            log = GroupCommitter(disk, PATH, CLOCK)
            (again, more) = done(log, [request(b"a", commit=1), request(b"c")])
            assert again == Done(AppendResult(2, 2, 1, was_duplicate=True))
            assert more == Done(AppendResult(4, 4, 1))


# --- several processes ----------------------------------------------------------------------------


def test_an_unsynced_tail_of_a_dead_writer_is_backed_up_and_never_read(
    machine: Machine, writer: GroupCommitter
) -> None:
    dying = machine.disk.another_process()
    log = SingleVoterLog.open(dying, PATH, now_ms=0)
    batch = NewRecordBatch(records=(NewRecord(None, b"unsynced"),), base_timestamp_ms=0)
    append_batches(log, encode_batch(batch, base_offset=2, leader_epoch=1))
    assert values(machine) == [b"first"]
    dying.kill()
    assert values(machine) == [b"first"]
    assert errors(done(writer, [request(b"next", base=2)])) == [None]
    assert values(machine) == [b"first", b"next"]
    saved = [path for path in machine.disk.files() if ".log.cut-" in path]
    assert len(saved) == 1
    assert b"unsynced" in machine.disk.files()[saved[0]]


def test_two_writers_see_each_others_appends(machine: Machine, writer: GroupCommitter) -> None:
    other = GroupCommitter(machine.disk.another_process(), PATH, CLOCK)
    for turn in range(5):
        (mine,) = done(writer, [request(b"mine", commit=2 * turn)])
        (repeat, other_s) = done(
            other, [request(b"mine", commit=2 * turn), request(b"its", commit=2 * turn + 1)]
        )
        assert isinstance(mine, Done)
        assert isinstance(repeat, Done)
        assert repeat.value.base_offset == mine.value.base_offset
        assert repeat.value.was_duplicate
        assert isinstance(other_s, Done)
    writer.close()
    assert errors(done(other, [request(b"last", base=12)])) == [None]
    other.close()
    log = SingleVoterLog.open(machine.disk, PATH, now_ms=0)
    assert (log.end_offset, log.report.was_clean) == (13, True)


def test_damage_below_the_acknowledged_end_stops_writes_but_not_reads(
    machine: Machine, writer: GroupCommitter
) -> None:
    done(writer, [request(b"second")])
    disk: SimulatedDisk = machine.disk
    last = disk.files()[SEGMENT].rindex(b"second")
    disk.flip_bit(SEGMENT, 8 * last)
    other = GroupCommitter(disk.another_process(), PATH, CLOCK)
    answers = done(other, [request(b"x"), request(b"y", base=3)])
    assert errors(answers) == [LogReadOnlyError, LogReadOnlyError]
    assert isinstance(answers[0], Failed)
    assert "raftlog repair" in str(answers[0].error)
    log = machine.open()
    assert [record.value for record in log.read(0, 2)] == [b"first"]
