"""A group of appends is one write, and its identities are checked before they are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.simulated_disk.simulated_tree import OperationKind
from tests.support.appending import (
    DIRECTORY,
    NOW_MS,
    TOPIC_ID,
    batch,
    created_replica,
    disk_with_parent,
    reopened,
)

from raftlog.append import (
    AppendBatch,
    AppendRequest,
    AppendResult,
    Done,
    Failed,
    RequestResult,
    fail_if_unwritten,
)
from raftlog.errors import (
    DiskFullError,
    ForeignCommitError,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    StaleCommitError,
)
from raftlog.log.format.directory import LOG_SUFFIX
from raftlog.log.reading.transactions import CommitName
from raftlog.log.writing.active_segment import WRITE_BYTES_MAX
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.records.builder import ProducerStamp


def opened(disk: SimulatedDisk, **more: Any) -> SingleVoterLog:
    return SingleVoterLog.create(
        disk,
        DIRECTORY,
        config=LogConfig(**more),
        topic_id=TOPIC_ID,
        now_ms=NOW_MS,
    )


def request(*values: bytes, **more: Any) -> AppendRequest:
    return AppendRequest(records=values or (b"value",), deadline_ms=0, **more)


def produced(sequence: int, producer_id: int = 7, epoch: int = 0, count: int = 1) -> AppendRequest:
    stamp = ProducerStamp(producer_id, epoch, sequence)
    return request(*[b"value"] * count, producer=stamp)


def named(version: int, query_id: str = "q") -> AppendRequest:
    return request(commit=CommitName("app", query_id, version))


def results_of(log: SingleVoterLog, *requests: AppendRequest) -> list[RequestResult]:
    """Return the results of a group, as its callers compute them."""
    group = AppendBatch(log, NOW_MS)
    results: list[RequestResult] = []
    try:
        results += [group.process(one) for one in requests]
        group.write()
    except DiskFullError as full:
        results = [fail_if_unwritten(one, log.end_offset, full) for one in results]
    return results


def offsets_of(results: Sequence[RequestResult]) -> list[tuple[int, int, bool]]:
    found = []
    for one in results:
        assert isinstance(one, Done), one
        assert isinstance(one.value, AppendResult)
        found.append((one.value.base_offset, one.value.last_offset, one.value.was_duplicate))
    return found


def errors_of(results: list[RequestResult]) -> list[type[Exception] | None]:
    return [type(one.error) if isinstance(one, Failed) else None for one in results]


def test_a_group_of_all_kinds_of_appends_is_one_write() -> None:
    disk = disk_with_parent()
    log = opened(disk)
    before = disk.operation_count
    results = results_of(
        log,
        request(),
        produced(0),
        produced(1, count=3),
        named(1),
        request(required_base_offset=7),
        produced(4),
        named(2),
        produced(0, producer_id=8),
        request(),
    )
    assert [one[0] for one in offsets_of(results)] == [1, 2, 3, 6, 7, 8, 9, 10, 11]
    assert disk.operation_count == before + 1
    log.flush()
    again = reopened(disk.another_process())
    assert again.producer_state.encode_snapshot() == log.producer_state.encode_snapshot()
    assert again.producer_state.last_commit("app") == log.producer_state.last_commit("app")


def test_the_identities_of_a_group_are_checked_against_each_other() -> None:
    log = opened(disk_with_parent())
    results = results_of(
        log,
        produced(0, count=2),
        produced(0, count=2),
        produced(3),
        produced(2),
        produced(0, epoch=1),
        produced(3),
        named(5),
        named(5),
        named(4),
        named(6, "other"),
        named(6),
    )
    errors = errors_of(results)
    assert errors == [
        None,
        None,
        OutOfOrderSequenceError,
        None,
        None,
        InvalidProducerEpochError,
        None,
        None,
        StaleCommitError,
        ForeignCommitError,
        None,
    ]
    accepted = [one for one in results if isinstance(one, Done)]
    assert offsets_of(accepted) == [
        (1, 2, False),
        (1, 2, True),
        (3, 3, False),
        (4, 4, False),
        (5, 5, False),
        (5, 5, True),
        (6, 6, False),
    ]
    assert log.end_offset == 7


def test_after_a_write_the_identities_are_those_of_the_log() -> None:
    log = opened(disk_with_parent())
    group = AppendBatch(log, NOW_MS)
    assert offsets_of([group.process(produced(0))]) == [(1, 1, False)]
    group.write()
    repeated = [group.process(produced(0)), group.process(produced(1))]
    assert offsets_of(repeated) == [(1, 1, True), (2, 2, False)]


def test_without_disk_space_no_result_depends_on_an_unwritten_append() -> None:
    disk = disk_with_parent()
    log = opened(disk)
    assert errors_of(results_of(log, produced(0), named(1))) == [None, None]
    files = disk.files()
    disk.leave_room(30)
    requests = (
        produced(1),
        produced(1),
        produced(3),
        produced(0, epoch=2),
        produced(2),
        named(2),
        named(2),
        named(1),
        request(required_base_offset=99),
    )
    assert errors_of(results_of(log, *requests)) == [DiskFullError] * len(requests)
    assert (log.end_offset, disk.files()) == (3, files)
    old = results_of(log, produced(0))
    assert offsets_of(old) == [(1, 1, True)]
    disk.full_at(None)
    results = results_of(log, produced(1), produced(2), named(2))
    assert offsets_of(results) == [(3, 3, False), (4, 4, False), (5, 5, False)]
    log.flush()
    assert reopened(disk.another_process()).end_offset == 6


def test_the_first_appends_of_a_group_are_written_if_only_they_fit() -> None:
    disk = disk_with_parent()
    log = opened(disk)
    disk.leave_room(250)
    requests = [produced(0), produced(1), produced(2), produced(3), produced(1)]
    results = results_of(log, *requests)
    assert errors_of(results) == [None, None, None, DiskFullError, None]
    assert offsets_of([results[4]]) == [(2, 2, True)]
    assert log.end_offset == 4
    disk.full_at(None)
    assert offsets_of(results_of(log, produced(3))) == [(4, 4, False)]
    log.flush()
    again = reopened(disk.another_process())
    assert again.producer_state.encode_snapshot() == log.producer_state.encode_snapshot()


def log_writes(disk: SimulatedDisk, append: Callable[[], object]) -> list[int]:
    """Return the size of each write to a ``.log`` file."""
    recording = disk.record()
    append()
    return [
        len(one.data)
        for one in recording.operations
        if one.kind is OperationKind.WRITE and one.path.endswith(LOG_SUFFIX)
    ]


def test_the_bytes_of_one_write_are_bounded() -> None:
    disk = disk_with_parent()
    log = opened(disk)
    sizes = [WRITE_BYTES_MAX // 4 - 100] * 8
    sizes[2] = 2 * WRITE_BYTES_MAX
    requests = [
        request(bytes(size), producer=ProducerStamp(at, 0, 0)) for at, size in enumerate(sizes)
    ]
    writes = log_writes(disk, lambda: results_of(log, *requests))
    assert log.end_offset == 9
    quarter, whole = writes[0] // 2, writes[1]
    assert writes == [2 * quarter, whole, 4 * quarter, quarter]
    assert 4 * quarter < WRITE_BYTES_MAX < whole


def test_a_group_is_written_to_several_segments() -> None:
    disk = disk_with_parent()
    log = opened(disk, segment_bytes=1_000)
    requests = [produced(at) for at in range(40)]
    writes = log_writes(disk, lambda: results_of(log, *requests))
    assert log.end_offset == 41
    assert 3 < len(writes) < 8
    assert max(writes) <= 1_000
    log.flush()
    again = reopened(disk.another_process())
    assert again.producer_state.encode_snapshot() == log.producer_state.encode_snapshot()


def test_a_follower_writes_what_it_fetched_once_in_each_epoch() -> None:
    disk = disk_with_parent()
    log = created_replica(disk, config=LogConfig())
    start = log.end_offset
    data = b"".join(batch(b"x", base_offset=start + at, epoch=2 + at // 30) for at in range(40))
    writes = log_writes(disk, lambda: log.append_as_follower(data, leader_epoch=3))
    assert writes == [len(data) * 3 // 4, len(data) // 4]
    assert [one.start_offset for one in log.epochs.entries[-2:]] == [start, start + 30]
