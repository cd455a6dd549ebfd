"""Reader of a running node: growth, rolls, deletions and torn tails, with no row read twice."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.log_builder import NO_OP, LogBuilder, begin, data_batch
from tests.support.memory_storage import MemoryFile, MemoryStorage
from tests.support.record_rows import listed

from raftlog.client import Isolation, LogReader, ReadEnd, open_path
from raftlog.errors import (
    CorruptBatchError,
    DataLossError,
    DivergedLogError,
    LogAccessError,
    SegmentDeletedError,
)
from raftlog.records.batch_columns import Column
from raftlog.types import SnapshotId

LOGS = Path(__file__).parents[1] / "data" / "kraft-logs"
METADATA = LOGS / "three-nodes-4.3.1/node-102/__cluster_metadata-0"
COMMITTED = Isolation.READ_COMMITTED
EVERYTHING = Isolation.READ_UNCOMMITTED
Row = tuple[int, bytes | None]


def rows(log: LogReader, start: int, end: int) -> list[Row]:
    found: list[Row] = []
    for scan in log.scan(start, end, columns=Column.OFFSET | Column.VALUE):
        assert scan.records.offset is not None
        assert scan.records.value is not None
        found += zip(scan.records.offset.to_pylist(), scan.records.value.to_pylist(), strict=True)
    return found


def opened(builder: LogBuilder) -> LogReader:
    return open_path(builder.directory, storage=builder.storage)


class Follower:
    """Loop of a stream: refresh, read the new rows, and check that none is lost or repeated."""

    def __init__(self, log: LogReader) -> None:
        self.log = log
        self.end: ReadEnd | None = None
        self.rows: list[Row] = []

    def look(self) -> None:
        self.log.refresh()
        start = self.log.log_start_offset if self.end is None else self.end.offset
        end = self.log.read_end(isolation=COMMITTED, previous=self.end)
        plan = self.log.plan(start, end.offset, isolation=COMMITTED, max_splits=2)
        for one in plan.splits:
            self.rows += rows(self.log, one.start_offset, one.end_offset)
        self.end = end


@pytest.mark.parametrize("seed", range(4))
def test_a_log_that_grows_byte_by_byte_is_read_correctly(seed: int) -> None:
    rng = random.Random(seed)
    storage = MemoryStorage()
    directory = "/node/__cluster_metadata-0"
    segments = sorted(METADATA.glob("*.log"))
    storage.write(f"{directory}/{segments[0].name}", b"")
    follower = Follower(open_path(directory, storage=storage))
    for number, segment in enumerate(segments):
        path = f"{directory}/{segment.name}"
        storage.write(path, b"")
        content = segment.read_bytes()
        position = 0
        while position < len(content):
            step = rng.choice([1, 7, 61, 500, 3000, 20_000])
            storage.append(path, content[position : position + step])
            position += step
            if rng.random() < 0.5:
                follower.look()
        if seed % 2:
            index = segment.with_suffix(".index")
            storage.write(f"{directory}/{index.name}", index.read_bytes())
        if number == 2:
            follower.look()  # then the node deletes segments that the reader has passed
            storage.rename(
                f"{directory}/{segments[0].name}", f"{directory}/{segments[0].name}.deleted"
            )
    follower.look()
    whole = open_path(str(METADATA))
    assert follower.rows == rows(whole, 0, whole.log_end_offset)


def test_a_batch_written_byte_by_byte_is_read_once_it_is_complete() -> None:
    builder = LogBuilder()
    builder.no_ops(3)
    whole = bytes(builder.storage.files[builder.path()])
    _, _, last = builder.positions[-1]
    log = opened(builder)
    for length in range(last, len(whole) + 1):
        builder.storage.write(builder.path(), whole[:length])
        log.refresh()
        end = log.read_end(isolation=COMMITTED)
        assert end.offset == (3 if length == len(whole) else 2)
        assert log.log_end_offset == end.offset
        assert log.tail is not None
        assert log.tail.byte_count == (0 if length == len(whole) else length - last)
        assert log.tail.error is None
        assert opened(builder).log_end_offset == end.offset


@pytest.mark.parametrize("kind", ["__cluster_metadata-0", "orders-0"])
def test_refreshing_costs_only_the_new_part(kind: str) -> None:
    builder = LogBuilder(directory=f"/node/{kind}", preallocated_bytes=100_000)
    builder.no_ops(3000)
    log = opened(builder)
    log.read_end(isolation=COMMITTED)
    storage = builder.storage
    storage.read_bytes()
    log.refresh()
    log.read_end(isolation=COMMITTED)
    assert storage.read_bytes() < 400  # the last header, twice, and nothing after it
    before = len(storage.files[builder.path()])
    builder.no_ops(50)
    new_bytes = len(storage.files[builder.path()]) - before
    log.refresh()
    end = log.read_end(isolation=COMMITTED)
    assert end.offset == builder.next_offset
    assert storage.read_bytes() < new_bytes + 1000
    plan = log.plan(3000, end.offset, isolation=COMMITTED)
    assert plan.splits[0].end_offset == 3050
    assert storage.read_bytes() == 0
    assert storage.open_files == 0


def test_preallocated_zeros_after_the_last_batch_are_no_damage() -> None:
    builder = LogBuilder(preallocated_bytes=10_000)
    builder.no_ops(300)
    path = builder.path()
    content = bytes(builder.storage.files[path])
    builder.storage.write(path, content + bytes(5_000_000))
    log = opened(builder)
    assert log.read_end(isolation=COMMITTED).offset == 300
    assert len(rows(log, 0, 300)) == 300
    # the node writes its next batch over the zeros
    other = LogBuilder()
    other.no_ops(302)
    more = bytes(other.storage.files[other.path()])
    builder.storage.write(path, more + bytes(5_000_000))
    log.refresh()
    assert log.read_end(isolation=COMMITTED).offset == 302


@pytest.mark.parametrize("nth_read", range(1, 6))
def test_a_batch_completed_before_zeros_during_a_read_is_no_damage(
    nth_read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = LogBuilder(directory="/node/orders-0", with_indexes=False)
    builder.data(b"a" * 300)
    content = builder.storage.files[builder.path()]
    position = len(content)
    batch = data_batch([b"b" * 300], base_offset=1)
    content.extend(bytes(4096))
    log = opened(builder)
    assert log.read_end(isolation=COMMITTED).offset == 1
    content[position : position + 200] = batch[:200]
    read_at, reads = MemoryFile.read_at, []

    def read_on(file: MemoryFile, at: int, byte_count: int) -> bytes:
        data = read_at(file, at, byte_count)
        reads.append(at)
        if reads.count(position) >= nth_read:
            content[position : position + len(batch)] = batch
        return data

    monkeypatch.setattr(MemoryFile, "read_at", read_on)
    for _ in range(2):
        log.refresh()
        end = log.read_end(isolation=COMMITTED).offset
        assert end in (1, 2)
        assert len(log.plan(0, end, isolation=COMMITTED).splits) == 1
    assert end == 2


def test_a_directory_replaced_by_another_cluster_is_detected() -> None:
    builder = LogBuilder()
    builder.no_ops(5)
    log = opened(builder)
    for cluster_id in ("A" * 22, "B" * 22):
        properties = f"version=1\ncluster.id={cluster_id}\nnode.id=1\n"
        builder.storage.write("/node/meta.properties", properties.encode())
        log.refresh()
        assert log.cluster_id == cluster_id


def test_a_roll_between_two_refreshes_is_followed() -> None:
    builder = LogBuilder()
    builder.no_ops(3)
    log = opened(builder)
    assert log.read_end(isolation=COMMITTED).offset == 3
    builder.no_ops(2)
    builder.roll()
    log.refresh()
    assert log.read_end(isolation=COMMITTED).offset == 5  # an empty active segment is normal
    builder.no_ops(4)
    builder.roll()
    builder.no_ops(1)
    log.refresh()
    assert log.read_end(isolation=COMMITTED).offset == 10
    assert [row[0] for row in rows(log, 0, 10)] == list(range(10))


class GrowingFile(MemoryFile):
    """File to which the node appends a little before each read."""

    def read_at(self, position: int, byte_count: int) -> bytes:
        assert isinstance(self._storage, GrowingStorage)
        self._storage.grow()
        return super().read_at(position, byte_count)


class GrowingStorage(MemoryStorage):
    def __init__(self, path: str, content: bytes, rng: random.Random) -> None:
        super().__init__()
        self.path, self.rest, self.rng = path, content, rng
        self.write(path, b"")

    def grow(self) -> None:
        step = self.rng.choice([0, 1, 60, 200, 5000])
        self.append(self.path, self.rest[:step])
        self.rest = self.rest[step:]

    def open_file(self, path: str) -> MemoryFile:
        self.is_directory(path)  # raises if it does not exist
        return GrowingFile(self, path, self.files[path])


@pytest.mark.parametrize("seed", range(6))
def test_a_node_that_writes_between_any_two_reads_is_read_correctly(seed: int) -> None:
    segment = METADATA / "00000000000000000000.log"
    directory = "/node/__cluster_metadata-0"
    storage = GrowingStorage(
        f"{directory}/{segment.name}", segment.read_bytes(), random.Random(seed)
    )
    follower = Follower(open_path(directory, storage=storage))
    while storage.rest:
        follower.look()
    follower.look()
    assert [row[0] for row in follower.rows] == list(range(436))


class BusyStorage(MemoryStorage):
    """Storage that changes the files whenever the reader accesses them."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Callable[[], object]] = []

    def open_file(self, path: str) -> MemoryFile:
        if self.steps:
            self.steps.pop(0)()
        return super().open_file(path)


def test_a_log_that_rolls_while_it_is_read_is_followed() -> None:
    storage = BusyStorage()
    builder = LogBuilder(storage)
    builder.no_ops(5)
    log = opened(builder)

    def roll() -> None:
        builder.no_ops(5)
        builder.roll()
        builder.no_ops(5)

    storage.steps = [roll]
    found = rows(log, 0, 15)  # planned by a process that saw a later end
    assert [row[0] for row in found] == list(range(15))


def test_a_requested_segment_deleted_before_it_is_opened_is_data_loss() -> None:
    storage = BusyStorage()
    builder = LogBuilder(storage)
    builder.no_ops(5)
    builder.roll()
    builder.no_ops(5)
    log = opened(builder)
    storage.steps = [lambda: builder.delete_segment(0)]
    with pytest.raises(DataLossError) as caught:
        rows(log, 2, 10)
    assert caught.value.condition == "OFFSETS_DELETED"
    assert "begins at 5" in str(caught.value)
    assert [row[0] for row in rows(log, 5, 10)] == [5, 6, 7, 8, 9]


def test_an_open_segment_that_is_renamed_is_read_to_its_end() -> None:
    builder = LogBuilder()
    for _ in range(4):
        builder.no_ops(40)
        builder.roll()
    builder.no_ops(5)
    log = opened(builder)
    scans = log.scan(0, 165, chunk_bytes=200)
    first = next(scans)
    builder.delete_segment(0, keep_renamed=True)
    offsets = listed(first.records.offset)
    for scan in scans:
        offsets += listed(scan.records.offset)
    assert offsets == list(range(165))
    log.refresh()
    assert log.log_start_offset == 40


def test_a_segment_that_a_cleaner_is_replacing_is_found() -> None:
    builder = LogBuilder(directory="/node/orders-0")
    builder.data(b"a")
    builder.roll()
    builder.data(b"b")
    builder.storage.rename(builder.path(base_offset=0), builder.path(".log.swap", 0))
    log = opened(builder)
    assert log.log_start_offset == 0
    assert [row[0] for row in rows(log, 0, 2)] == [0, 1]
    builder.storage.rename(builder.path(".log.swap", 0), builder.path(base_offset=0))
    assert [row[0] for row in rows(log, 0, 2)] == [0, 1]


def test_a_segment_merged_into_the_previous_one_by_a_cleaner_is_read_there() -> None:
    builder = LogBuilder(directory="/node/orders-0")
    values = [b"%04d" % number for number in range(700)]
    for value in values[:600]:
        builder.data(value)
    builder.roll()
    for value in values[600:]:
        builder.data(value)
    builder.roll()
    log = opened(builder)
    found: list[Row] = []
    for scan in log.scan(0, 700, columns=Column.OFFSET | Column.VALUE, chunk_bytes=20_000):
        assert scan.records.offset is not None
        assert scan.records.value is not None
        found += zip(scan.records.offset.to_pylist(), scan.records.value.to_pylist(), strict=True)
        if found[-1][0] == 599:  # the first segment is still open; merge half of it and the second
            old, second = (
                bytes(builder.storage.files[builder.path(base_offset=b)]) for b in (0, 600)
            )
            size = len(old) // 600
            kept = b"".join(old[at : at + size] for at in range(0, len(old), 2 * size))
            builder.storage.write(builder.path(base_offset=0), kept + second)
            builder.delete_segment(600)
    assert found == list(enumerate(values))


def test_a_directory_that_always_loses_listed_files_is_reported() -> None:
    class Vanishing(MemoryStorage):
        def list_names(self, directory: str) -> list[str]:
            return ["00000000000000000000.log"]

    storage = Vanishing()
    storage.write("/node/__cluster_metadata-0/other", b"")
    log = open_path("/node/__cluster_metadata-0", storage=storage)
    with pytest.raises(SegmentDeletedError) as caught:
        log.read_end(isolation=COMMITTED)
    assert caught.value.retriable


def test_a_trimmed_log_is_read_on_and_deleted_offsets_are_reported() -> None:
    builder = LogBuilder()
    builder.no_ops(5)
    builder.roll()
    builder.no_ops(5)
    log = opened(builder)
    first = log.read_end(isolation=COMMITTED)
    for _ in range(3):
        builder.roll()
        builder.no_ops(5)
    builder.checkpoint(end_offset=20)
    for base_offset in (0, 5, 10):
        builder.delete_segment(base_offset)
    log.refresh()
    end = log.read_end(isolation=COMMITTED, previous=first)
    assert (log.log_start_offset, end.offset) == (15, 25)
    with pytest.raises(DataLossError):
        log.plan(first.offset, end.offset, isolation=COMMITTED)
    assert log.plan(20, 25, isolation=COMMITTED).splits


def test_a_snapshot_is_listed_once_it_is_complete() -> None:
    builder = LogBuilder()
    builder.no_ops(5)
    part = builder.file("00000000000000000005-0000000001-83746.checkpoint.part")
    builder.storage.write(part, b"unfinished")
    log = opened(builder)
    assert list(log.snapshots) == []
    builder.storage.delete(part)
    builder.checkpoint()
    log.refresh()
    assert list(log.snapshots) == [SnapshotId(epoch=1, end_offset=5)]


def test_a_log_may_be_empty_after_a_snapshot() -> None:
    builder = LogBuilder(start_offset=100)
    snapshot_id = builder.checkpoint(epoch=3)
    log = opened(builder)
    end = log.read_end(isolation=COMMITTED)
    assert (log.log_start_offset, log.log_end_offset, end.offset, end.epoch) == (100, 100, 100, 3)
    assert log.newest_snapshot() == snapshot_id
    builder.delete_segment(100)
    log.refresh()
    assert log.read_end(isolation=COMMITTED).offset == 100
    assert log.plan(100, 100, isolation=COMMITTED).splits == ()


# --- truncation ---


def test_truncated_and_rewritten_records_are_read_again() -> None:
    builder = LogBuilder()
    builder.no_ops(5)
    builder.data(begin("lost"), NO_OP)
    log = opened(builder)
    assert log.read_end(isolation=Isolation.READ_UNCOMMITTED).offset == 7
    builder.truncate_to(3)
    log.refresh()
    assert log.read_end(isolation=COMMITTED).offset == 3
    builder.lead(2)
    builder.no_ops(9)
    log.refresh()
    end = log.read_end(isolation=COMMITTED)
    assert (end.offset, end.epoch) == (13, 2)
    assert [entry.epoch for entry in log.epochs.entries] == [1, 2]


def test_a_truncation_is_found_though_the_file_is_as_long_again() -> None:
    builder = LogBuilder()
    builder.no_ops(5)
    log = opened(builder)
    first = log.read_end(isolation=COMMITTED)
    builder.truncate_to(2)
    builder.epoch = 2
    builder.no_ops(10)
    log.refresh()
    assert log.read_end(isolation=COMMITTED).epoch == 2
    with pytest.raises(DivergedLogError) as caught:
        log.read_end(isolation=COMMITTED, previous=first)
    assert (caught.value.offset, caught.value.expected_epoch, caught.value.epoch) == (4, 1, 2)


def test_a_decreased_end_is_kept_until_the_log_exceeds_it_again() -> None:
    builder = LogBuilder()
    builder.no_ops(5)
    log = opened(builder)
    first = log.read_end(isolation=COMMITTED)
    builder.truncate_to(3)
    log.refresh()
    kept = log.read_end(isolation=COMMITTED, previous=first)
    assert (kept.offset, kept.epoch) == (5, 1)
    assert "the end is now 3" in kept.explanation
    again = log.read_end(isolation=COMMITTED, previous=kept)
    assert again == kept, "another refresh without changes gives the same"
    builder.no_ops(4)
    log.refresh()
    assert log.read_end(isolation=COMMITTED, previous=kept).offset == 7


def test_a_later_epoch_that_starts_below_the_previous_end_is_a_conflict() -> None:
    builder = LogBuilder()
    builder.no_ops(5)
    log = opened(builder)
    first = log.read_end(isolation=COMMITTED)
    builder.truncate_to(3)
    builder.lead(2)
    log.refresh()
    with pytest.raises(DivergedLogError):
        log.read_end(isolation=COMMITTED, previous=first)


def test_a_range_truncated_meanwhile_is_reported() -> None:
    builder = LogBuilder()
    builder.no_ops(5)
    log = opened(builder)
    builder.truncate_to(3)
    scans = log.scan(0, 5)
    assert listed(next(scans).records.offset) == [0, 1, 2]
    with pytest.raises(DataLossError) as caught:
        next(scans)
    assert caught.value.condition == "LOG_TRUNCATED"


# --- storage errors ---


def test_a_file_without_permission_is_distinguished_from_a_missing_one() -> None:
    builder = LogBuilder()
    builder.no_ops(5)
    builder.roll()
    builder.no_ops(5)
    builder.storage.refused.add(builder.path(base_offset=0))
    log = opened(builder)
    assert log.log_end_offset == 10
    with pytest.raises(LogAccessError) as caught:
        rows(log, 0, 10)
    assert caught.value.path == builder.path(base_offset=0)
    assert len(rows(log, 5, 10)) == 5
    builder.storage.refused.add(builder.directory)
    with pytest.raises(LogAccessError):
        opened(builder)
    with pytest.raises(LogAccessError):
        log.refresh()


def test_damage_after_the_end_is_reported_and_the_rest_is_read() -> None:
    builder = LogBuilder()
    builder.no_ops(5)
    builder.storage.files[builder.path()][-1] ^= 1
    log = opened(builder)
    end = log.read_end(isolation=COMMITTED)
    assert end.offset == 4
    assert "damaged: CRC mismatch" in end.explanation
    assert log.tail is not None
    assert isinstance(log.tail.error, CorruptBatchError)
    assert log.tail.error.offset == 4
    assert len(rows(log, 0, 4)) == 4
