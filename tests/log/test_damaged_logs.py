"""Damage: a typed error with position and reason, after every valid record before it."""

from __future__ import annotations

import contextlib
import random
import struct
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.log_builder import LogBuilder, checkpoint_bytes, data_batch, voters_record
from tests.support.memory_storage import MemoryStorage
from tests.support.record_rows import listed

from raftlog.client import Isolation, LogReader, open_path
from raftlog.errors import (
    CorruptBatchError,
    CorruptFileError,
    CorruptSnapshotError,
    LogError,
    LogGapError,
    RaftlogError,
    UnsupportedMagicError,
)
from raftlog.log.format.directory import checkpoint_name
from raftlog.log.reading.directory_log import DirectoryLog
from raftlog.records.control import UnknownControl
from raftlog.types import ReplicaKey, SnapshotId

LOGS = Path(__file__).parents[1] / "data" / "kraft-logs"
SEGMENT = LOGS / "three-nodes-4.3.1/node-102/__cluster_metadata-0/00000000000000002232.log"
COMMITTED = Isolation.READ_COMMITTED
EVERYTHING = Isolation.READ_UNCOMMITTED


def opened(builder: LogBuilder) -> LogReader:
    return open_path(builder.directory, storage=builder.storage)


def read_until_error(log: LogReader, start: int, end: int) -> tuple[list[int], LogError | None]:
    """Return the offsets read before the error, and the error."""
    found: list[int] = []
    try:
        for scan in log.scan(start, end, chunk_bytes=300):
            found += listed(scan.records.offset)
    except LogError as error:
        return found, error
    return found, None


def segment_of(content: bytes, name: str = "00000000000000000000.log") -> LogReader:
    storage = MemoryStorage()
    storage.write(f"/node/__cluster_metadata-0/{name}", content)
    return open_path("/node/__cluster_metadata-0", storage=storage)


def small_log(count: int = 8) -> LogBuilder:
    builder = LogBuilder(with_indexes=False)
    for number in range(count):
        builder.data(*[b"\x01\x14\x00\x00"] * (1 + number % 3))
    return builder


# --- truncation and flipped bits ---


@pytest.mark.slow
def test_a_segment_truncated_at_every_byte_gives_every_batch_before_it() -> None:
    builder = small_log(4)
    content = bytes(builder.storage.files[builder.path()])
    ends = {position: base for base, _, position in builder.positions}
    expected = 0
    for length in range(1, len(content) + 1):
        expected = ends.get(length, expected)
        if length == len(content):
            expected = builder.next_offset
        log = segment_of(content[:length])
        assert log.log_end_offset == expected
        found, error = read_until_error(log, 0, expected)
        assert (found, error) == (list(range(expected)), None)


@pytest.mark.slow
def test_a_sealed_segment_truncated_at_every_byte_is_damage_or_a_gap() -> None:
    builder = small_log(4)
    content = bytes(builder.storage.files[builder.path()])
    path = builder.path()
    builder.roll()
    builder.data(b"\x01\x14\x00\x00")
    ends = {position: base for base, _, position in builder.positions[:4]}
    expected = 0
    for length in range(len(content)):
        expected = ends.get(length, expected)
        builder.storage.write(path, content[:length])
        log = opened(builder)
        assert log.log_end_offset == builder.next_offset
        found, error = read_until_error(log, 0, builder.next_offset)
        assert found == list(range(expected))
        last = max(position for position in ends if position <= length)
        # a truncation at a batch boundary, or zeros as of a preallocated file
        if not any(content[last:length]):
            assert isinstance(error, LogGapError)
            assert (error.expected_offset, error.offset) == (expected, 7)
        else:
            assert isinstance(error, CorruptBatchError)
            assert (error.path, error.offset) == (path, expected)
            assert error.position == last


@pytest.mark.slow
def test_a_flipped_bit_is_found_and_every_record_before_it_is_read() -> None:
    """Leader epochs are outside the CRC and may have any value: a flip there changes no record."""
    builder = small_log(4)
    content = bytes(builder.storage.files[builder.path()])
    starts = [position for _, _, position in builder.positions]
    bases = [base for base, _, _ in builder.positions]
    for position in range(len(content)):
        batch = max(n for n, start in enumerate(starts) if start <= position)
        inside = position - starts[batch]
        if 12 <= inside < 16:
            continue
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        try:
            log = segment_of(bytes(damaged))
            end = log.log_end_offset
            found, error = read_until_error(log, 0, builder.next_offset)
        except CorruptBatchError as nothing:
            assert batch == 0, "only a log without any valid batch cannot be opened"
            found, error, end = [], nothing, 0
        assert error is not None
        assert found == list(range(bases[batch]))
        is_last = batch == len(starts) - 1
        assert end == builder.next_offset or (is_last and end == bases[batch]) or not batch


@settings(max_examples=100)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_any_damage_to_a_real_segment_is_a_typed_error_or_the_same_records(
    seed: int, count: int
) -> None:
    rng = random.Random(seed)
    content = bytearray(SEGMENT.read_bytes()[:6000])
    for _ in range(count):
        content[rng.randrange(len(content))] = rng.randrange(256)
    with contextlib.suppress(RaftlogError):
        log = segment_of(bytes(content), SEGMENT.name)
        end = log.log_end_offset
        log.read_end(isolation=EVERYTHING)
        log.plan(2232, end, isolation=EVERYTHING, max_splits=3)
        log.next_boundary(2232, end_offset=end, max_records=10)
        log.offset_for_timestamp(0)
        found, _ = read_until_error(log, 2232, end)
        assert found == list(range(2232, 2232 + len(found)))


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_a_log_or_a_typed_error(content: bytes) -> None:
    with contextlib.suppress(LogError):
        log = segment_of(content)
        read_until_error(log, 0, log.log_end_offset)


# --- wrong fields ---


def test_a_length_that_hides_later_batches_is_damage_and_no_torn_tail() -> None:
    builder = small_log()
    _, _, position = builder.positions[3]
    struct.pack_into(">i", builder.storage.files[builder.path()], position + 8, 100_000)
    log = opened(builder)
    assert log.log_end_offset == builder.next_offset
    found, error = read_until_error(log, 0, builder.next_offset)
    assert found == list(range(builder.positions[3][0]))
    assert isinstance(error, CorruptBatchError)
    assert (error.position, error.offset) == (position, builder.positions[3][0])
    assert "a valid batch begins" in str(error)


@pytest.mark.parametrize("directory", ["/node/__cluster_metadata-0", "/node/orders-0"])
@pytest.mark.parametrize("zeros", [0, 8192])
def test_a_torn_batch_with_whole_batches_in_its_records_is_torn(directory: str, zeros: int) -> None:
    builder = LogBuilder(directory=directory, with_indexes=False)
    builder.no_ops(2)
    content = builder.storage.files[builder.path()]
    before = len(content)
    inner = b"".join(data_batch([b"copied"], base_offset=3 + at) for at in range(20))
    builder.data(inner, b"x" * 30)
    whole = bytes(content)
    for cut in range(before + 70, len(whole), 41):
        builder.storage.write(builder.path(), whole[:cut] + bytes(zeros))
        log = opened(builder)
        assert log.log_end_offset == 2
        assert log.read_end(isolation=COMMITTED).offset == 2
        assert log.tail is not None
        assert (log.tail.position, log.tail.byte_count) == (before, cut - before + zeros)
        assert read_until_error(log, 0, 2) == ([0, 1], None)
    builder.storage.write(builder.path(), whole)
    assert opened(builder).log_end_offset == 4


def test_a_length_that_hides_later_batches_is_found_although_records_contain_batches() -> None:
    builder = small_log(3)
    inner = b"".join(data_batch([b"copied"], base_offset=50 + at) for at in range(20))
    builder.data(inner)
    builder.no_ops(2)
    offset, _, position = builder.positions[3]
    struct.pack_into(">i", builder.storage.files[builder.path()], position + 8, 100_000)
    log = opened(builder)
    assert log.log_end_offset == builder.next_offset
    found, error = read_until_error(log, 0, builder.next_offset)
    assert found == list(range(offset))
    assert isinstance(error, CorruptBatchError)
    assert f"a valid batch begins at byte {builder.positions[4][2]}" in str(error)


@pytest.mark.parametrize("length", [-1, 0, 13, 48, 2**31 - 1])
def test_impossible_lengths_are_damage(length: int) -> None:
    builder = small_log()
    _, _, position = builder.positions[3]
    struct.pack_into(">i", builder.storage.files[builder.path()], position + 8, length)
    found, error = read_until_error(opened(builder), 0, builder.next_offset)
    assert found == list(range(builder.positions[3][0]))
    assert isinstance(error, CorruptBatchError)
    assert error.position == position


def test_old_formats_are_reported() -> None:
    builder = small_log()
    _, _, position = builder.positions[3]
    builder.storage.files[builder.path()][position + 16] = 1
    found, error = read_until_error(opened(builder), 0, builder.next_offset)
    assert len(found) == builder.positions[3][0]
    assert isinstance(error, UnsupportedMagicError)


def test_a_missing_segment_in_the_middle_is_a_gap() -> None:
    builder = small_log(3)
    builder.roll()
    missing = builder.base_offset
    builder.no_ops(4)
    builder.roll()
    builder.no_ops(4)
    builder.delete_segment(missing)
    found, error = read_until_error(opened(builder), 0, builder.next_offset)
    assert found == list(range(missing))
    assert isinstance(error, LogGapError)
    assert (error.expected_offset, error.offset, error.position) == (missing, missing + 4, 0)
    assert error.path == builder.path()
    found, error = read_until_error(opened(builder), missing, missing + 2)
    assert (found, type(error)) == ([], LogGapError)


def test_a_missing_segment_of_an_ordinary_partition_looks_like_compaction() -> None:
    builder = LogBuilder(directory="/node/orders-0")
    builder.data(b"a")
    builder.roll()
    builder.data(b"b")
    builder.roll()
    builder.data(b"c")
    builder.delete_segment(1)
    assert read_until_error(opened(builder), 0, 3) == ([0, 2], None)


@pytest.mark.parametrize("directory", ["/node/__cluster_metadata-0", "/node/orders-0"])
@pytest.mark.parametrize("wrong", [1, 2])
def test_decreasing_offsets_are_damage(directory: str, wrong: int) -> None:
    builder = LogBuilder(directory=directory, with_indexes=False)
    builder.no_ops(4)
    builder.storage.append(builder.path(), data_batch([b"x"], base_offset=4 - wrong))
    builder.storage.append(builder.path(), data_batch([b"x"], base_offset=5 - wrong))
    found, error = read_until_error(opened(builder), 0, 5)
    assert found == [0, 1, 2, 3]
    assert isinstance(error, LogGapError)
    assert (error.expected_offset, error.offset) == (4, 4 - wrong)
    assert "offsets must increase" in str(error)


@pytest.mark.parametrize("directory", ["/node/__cluster_metadata-0", "/node/orders-0"])
@pytest.mark.parametrize("bit", [0, 1, 5, 20, 40, 62])
def test_an_increased_base_offset_does_not_end_a_range(directory: str, bit: int) -> None:
    """Base offsets are outside the CRC: only their order shows an error."""
    builder = LogBuilder(directory=directory, with_indexes=False)
    builder.no_ops(30)
    base_offset, _, position = builder.positions[8]
    content = builder.storage.files[builder.path()]
    struct.pack_into(">q", content, position, base_offset + (1 << bit))
    found, error = read_until_error(opened(builder), 0, 20)
    # A partition may have the batch itself at any offset; the decrease after it is found.
    assert found[:8] == list(range(8))
    assert isinstance(error, LogError)


def test_a_segment_that_starts_below_its_name_is_damage() -> None:
    log = segment_of(data_batch([b"x"], base_offset=3), "00000000000000000005.log")
    found, error = read_until_error(log, 5, 6)
    assert found == []
    assert isinstance(error, LogError)


# --- wrong indexes ---


def wrong_indexes(builder: LogBuilder, rng: random.Random) -> bytes:
    kind = rng.randrange(4)
    entries = sorted(rng.randrange(1, 200) for _ in range(8))
    if kind == 0:  # positions in the middle of batches
        return b"".join(struct.pack(">ii", e, e * 37 + 5) for e in entries)
    if kind == 1:  # correct positions under wrong offsets
        return b"".join(
            struct.pack(">ii", n + 1, builder.positions[e][2]) for n, e in enumerate(entries) if e
        )
    if kind == 2:
        return rng.randbytes(160)
    return struct.pack(">ii", 5, 1 << 30)  # far beyond the file


@pytest.mark.parametrize("seed", range(12))
def test_a_wrong_index_never_returns_wrong_records(seed: int) -> None:
    rng = random.Random(seed)
    builder = LogBuilder(with_indexes=False)
    builder.no_ops(220)
    builder.storage.write(builder.path(".index"), wrong_indexes(builder, rng))
    builder.storage.write(builder.path(".timeindex"), rng.randbytes(240))
    log = opened(builder)
    assert log.log_end_offset == 220
    for _ in range(4):
        start, end = sorted(rng.sample(range(221), 2))
        assert read_until_error(log, start, end) == (list(range(start, end)), None)
        wanted_ms = 1000 + 10 * (start + 1)
        assert log.offset_for_timestamp(wanted_ms) == start


def test_damaged_small_files_do_not_prevent_reading() -> None:
    builder = LogBuilder()
    builder.no_ops(30)
    names = ("leader-epoch-checkpoint", "quorum-state", "partition.metadata")
    for name in names:
        builder.storage.write(builder.file(name), b"{")
    builder.storage.write("/node/meta.properties", b"version=9")
    log = opened(builder)
    assert log.read_end(isolation=COMMITTED).offset == 30
    assert read_until_error(log, 0, 30)[0] == list(range(30))
    with pytest.raises(CorruptFileError) as quorum:
        _ = log.quorum_state
    assert quorum.value.path == builder.file("quorum-state")
    with pytest.raises(CorruptFileError) as properties:
        _ = log.cluster_id
    assert properties.value.path == "/node/meta.properties"


def test_a_missing_or_wrong_epoch_checkpoint_is_rebuilt_from_batches() -> None:
    builder = LogBuilder()
    for epoch in (1, 2, 5, 6):
        builder.lead(epoch)
        builder.no_ops(150)
        if epoch == 2:
            builder.roll()
    expected = [(1, 0), (2, 151), (5, 302), (6, 453)]

    def epochs() -> list[tuple[int, int]]:
        entries = opened(builder).epochs.entries
        return [(entry.epoch, entry.start_offset) for entry in entries]

    assert epochs() == expected
    for content in (b"", b"0\n1\n1 0\n", b"0\n2\n1 0\n4 77\n", b"garbage"):
        builder.storage.write(builder.file("leader-epoch-checkpoint"), content)
        assert epochs() == expected
    builder.delete_segment(0)
    content = b"0\n4\n1 0\n2 151\n5 302\n6 453\n"
    builder.storage.write(builder.file("leader-epoch-checkpoint"), content)
    assert epochs() == expected  # older epochs are known from the checkpoint only
    builder.storage.delete(builder.file("leader-epoch-checkpoint"))
    assert epochs() == expected[2:]


# --- snapshots ---


def snapshot_of(content: bytes) -> tuple[int, LogError | None]:
    """Return the number of records read, and the error."""
    storage = MemoryStorage()
    name = checkpoint_name(SnapshotId(epoch=1, end_offset=50))
    storage.write(f"/node/__cluster_metadata-0/{name}", content)
    log = open_path("/node/__cluster_metadata-0", storage=storage)
    count = 0
    try:
        for scan in log.read_snapshot(log.snapshots[0]).scan(chunk_bytes=100):
            count += len(scan.records)
    except LogError as error:
        return count, error
    return count, None


def test_a_complete_snapshot_is_complete() -> None:
    assert snapshot_of(checkpoint_bytes(records=3)) == (5, None)
    assert snapshot_of(checkpoint_bytes(records=0)) == (2, None)


def test_a_snapshot_truncated_at_every_byte_is_incomplete_and_gives_the_records_before() -> None:
    content = checkpoint_bytes(records=3)
    whole, _ = snapshot_of(content)
    counts = set()
    for length in range(1, len(content)):
        count, error = snapshot_of(content[:length])
        assert isinstance(error, CorruptSnapshotError)
        assert error.path.endswith(".checkpoint")
        counts.add(count)
    assert counts == {0, 1, 4}
    assert whole == 5


def test_a_snapshot_without_a_footer_is_incomplete() -> None:
    count, error = snapshot_of(checkpoint_bytes(footer=False))
    assert count == 4
    assert "SnapshotFooter" in str(error)


def test_a_snapshot_without_a_header_is_damaged() -> None:
    count, error = snapshot_of(data_batch([b"x"], base_offset=0))
    assert count == 0
    assert "control batch" in str(error)


def test_a_snapshot_with_non_consecutive_batches_is_damaged() -> None:
    content = checkpoint_bytes(footer=False) + data_batch([b"x"], base_offset=9)
    count, error = snapshot_of(content)
    assert count == 4
    assert "offset 9 follows 3" in str(error)


def test_a_flipped_bit_in_a_snapshot_is_found() -> None:
    content = checkpoint_bytes(records=2)
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 4
        _, error = snapshot_of(bytes(damaged))
        assert error is not None, f"byte {position}"


def test_damage_before_a_range_hides_its_transactions() -> None:
    builder = LogBuilder(directory="/node/orders-0", with_indexes=False)
    builder.data(b"a", producer_id=7)
    for _ in range(5):
        builder.data(b"b")
    builder.end_producer(7, commit=False)
    builder.data(b"c")
    _, _, position = builder.positions[2]
    builder.storage.files[builder.path()][position + 16] = 9
    log = opened(builder)
    assert log.log_end_offset == 8
    with pytest.raises(CorruptBatchError):
        log.plan(4, 8, isolation=COMMITTED)
    assert log.plan(4, 8, isolation=EVERYTHING).splits
    with pytest.raises(CorruptBatchError):
        log.plan(0, 8, isolation=COMMITTED)
    # a stream reads up to the damage first
    assert log.next_boundary(0, end_offset=8) == 2
    assert log.plan(0, 2, isolation=COMMITTED).splits
    with pytest.raises(CorruptBatchError):
        log.next_boundary(2, end_offset=8)
    assert read_until_error(log, 0, 8)[0] == [0, 1]


@pytest.mark.parametrize("holdback_ms", [0, 5])
def test_a_read_with_an_end_after_damage_raises_the_damage(holdback_ms: int) -> None:
    builder = small_log()
    _, _, position = builder.positions[3]
    builder.storage.files[builder.path()][position + (16 if holdback_ms else 70)] ^= 1
    log = opened(builder)
    end = log.read_end(isolation=COMMITTED, holdback_ms=holdback_ms, now_ms=builder.time_ms + 9)
    assert end.offset == builder.next_offset
    found, error = read_until_error(log, 0, end.offset)
    assert found == list(range(builder.positions[3][0]))
    assert isinstance(error, CorruptBatchError)
    assert error.position == position


def test_a_batch_with_wrong_records_under_a_valid_crc_is_damage() -> None:
    for records_after in (0, 3):
        builder = LogBuilder(with_indexes=False)
        builder.no_ops(3)
        lying = bytearray(data_batch([b"\x01\x14\x00\x00"] * 2, base_offset=3))
        struct.pack_into(">i", lying, 57, 1)  # one record less than the batch has
        struct.pack_into(">I", lying, 17, crc32c(bytes(lying[21:])))
        builder.append(bytes(lying), last_offset=4)
        builder.no_ops(records_after)
        log = opened(builder)
        assert log.read_end(isolation=COMMITTED).offset == 5 + records_after
        found, error = read_until_error(log, 0, 5 + records_after)
        assert found == [0, 1, 2]
        assert isinstance(error, CorruptBatchError)
        assert error.offset == 3
        assert log.next_boundary(0, end_offset=5) == 3


def test_a_malformed_control_record_hides_the_voters_and_no_records() -> None:
    builder = LogBuilder()
    builder.lead(1)
    builder.control(UnknownControl(6, b"\0\0\0\x06", b"\0\0\xff\xff"))
    builder.no_ops(2)
    log = opened(builder)
    assert log.read_end(isolation=COMMITTED).offset == 4
    assert read_until_error(log, 0, 4) == ([0, 1, 2, 3], None)
    assert isinstance(log, DirectoryLog)
    with pytest.raises(CorruptBatchError, match="KRAFT_VOTERS"):
        log.voters()
    builder.control(voters_record([ReplicaKey(4)]))
    log.refresh()
    voters = log.voters()
    assert voters is not None
    assert voters.voters == (ReplicaKey(4),)


def test_a_transaction_begun_in_a_deleted_segment_does_not_move_the_end_below_the_start() -> None:
    builder = LogBuilder(directory="/node/orders-0")
    first = builder.data(b"a", producer_id=7)
    builder.producer_snapshot({7: first})
    builder.roll()
    builder.data(b"b")
    builder.delete_segment(0)
    end = opened(builder).read_end(isolation=COMMITTED)
    assert end.offset == 1
