"""``LogReader.range_size``: bytes and batches between two offsets, beside those of a whole read."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.log.remote.tiered_logs import InterruptedWrites, cleaned, reader, store_on, tiered_log
from tests.support.small_logs import TIME_MS, LogWriter, write_epochs

from raftlog.client import LogReader, RangeSize, open_path
from raftlog.limits import MIB
from raftlog.log.reading.directory_log import DirectoryLog
from raftlog.log.reading.opening import open_log
from raftlog.log.reading.range_size import size_in_files
from raftlog.storage.local import LocalStorage
from raftlog.storage.objects import ObjectStore
from raftlog.storage.protocol import ReadableFile

NODES = Path(__file__).parents[1] / "data" / "kraft-logs" / "three-nodes-4.3.1"


def expected(log: LogReader, start: int, end: int) -> RangeSize:
    batches = list(log.batches(start, end))
    return RangeSize(
        byte_count=sum(batch.byte_count for batch in batches),
        batch_count=len(batches),
        first_timestamp_ms=batches[0].base_timestamp_ms if batches else None,
    )


def ranges(log: LogReader, seed: int) -> Iterator[tuple[int, int]]:
    rng = random.Random(seed)
    yield log.log_start_offset, log.log_end_offset
    for _ in range(20):
        start, end = sorted(rng.randint(0, log.log_end_offset) for _ in range(2))
        yield start, end


@pytest.mark.parametrize("paths", [[100], [100, 101, 102]], ids=["directory", "voters"])
def test_the_size_of_a_range_is_that_of_its_batches(paths: list[int]) -> None:
    log = open_path(",".join(str(NODES / f"node-{number}") for number in paths))
    for start, end in ranges(log, 1):
        found = log.range_size(start, end)
        assert found == expected(log, start, end), (start, end)


def test_the_bytes_of_a_long_range_are_known_without_its_number_of_batches(tmp_path: Path) -> None:
    """By positions in three segments, of which the last one ends with a batch that was cut off."""
    directory = tmp_path / "orders-0"
    end = 0
    for _ in range(3):
        writer = LogWriter(directory, base_offset=end)
        for number in range(8):
            end = writer.append(bytes(MIB), b"", timestamp_ms=TIME_MS + number)
    write_epochs(directory, [(1, 0)])
    with (directory / f"{32:020d}.log").open("ab") as segment:
        segment.write(b"\x00" * 7 + b"\x30")
    log = open_path(str(directory))
    assert log.log_end_offset == end == 48
    for start, until in ((0, 48), (3, 48), (1, 47), (14, 48), (46, 48)):
        read = expected(log, start, until)
        found = log.range_size(start, until)
        assert (found.byte_count, found.first_timestamp_ms) == (
            read.byte_count,
            read.first_timestamp_ms,
        )
        is_long = (until - start) // 2 >= 17
        assert found.batch_count == (None if is_long else read.batch_count)


@pytest.mark.parametrize("seed", range(8))
def test_the_bytes_of_a_long_range_do_not_need_its_last_offset(tmp_path: Path, seed: int) -> None:
    """Kafka's compaction leaves holes, also before an empty active segment."""
    rng, directory, end = random.Random(seed), tmp_path / "orders-0", 0
    for _ in range(4):
        writer = LogWriter(directory, base_offset=end)
        for _ in range(rng.randrange(6)):
            writer.append(*[b"value"] * rng.randint(1, 3))
            writer.end_offset += rng.choice((0, 2, 5))
        end = writer.end_offset + rng.choice((0, 3))
    LogWriter(directory, base_offset=end)
    write_epochs(directory, [(1, 0)])
    log = open_log(LocalStorage(), str(directory))
    assert log.log_end_offset == end
    for start, until in ((n, end) for n in range(end)):
        assert_size_by_positions(log, start, until)
    for _, (start, until) in zip(range(30), ranges(log, seed), strict=False):
        assert_size_by_positions(log, start, until)


def assert_size_by_positions(log: DirectoryLog, start: int, end: int) -> None:
    byte_count, batch_count = size_in_files(
        log.files, start, end, contiguous=False, walked_bytes_max=0
    )
    read = expected(log, start, end)
    assert byte_count == read.byte_count, (start, end)
    assert batch_count == (None if byte_count else 0)


class CountedReads(InterruptedWrites):
    """Store that counts the objects that are opened."""

    def __init__(self, objects: ObjectStore) -> None:
        super().__init__(objects, lambda _: None, at_name="")
        self.opened: list[str] = []

    def open_object(self, name: str) -> ReadableFile:
        self.opened.append(name)
        return super().open_object(name)


def test_the_bytes_of_remote_segments_are_known_without_a_request_for_each() -> None:
    disk, log = tiered_log()
    cleaned(log, store_on(disk), seed=1)
    store = CountedReads(store_on(disk))
    read = reader(disk, store)
    remote = [one for one in read.files.listing.segments if read.files.is_remote(one)]
    assert len(remote) > 2
    end = read.log_end_offset
    byte_count = expected(read, 0, end).byte_count
    store.opened.clear()
    found = size_in_files(read.files, 0, end, contiguous=False, walked_bytes_max=0)
    assert found == (byte_count, None)
    assert len([name for name in store.opened if name.endswith(".log")]) == 1
