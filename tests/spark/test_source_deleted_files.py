"""Files that their node deletes while a read is planned: retried for a limited time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.clock import StoppedClock
from tests.support.small_logs import LogWriter

from pyspark_raftlog.options import RaftlogOptions
from pyspark_raftlog.reader import RaftlogReader
from pyspark_raftlog.stream_reader import RaftlogStreamReader
from raftlog.errors import SegmentDeletedError


@pytest.fixture
def vanishing(tmp_path: Path) -> Iterator[tuple[Path, StoppedClock]]:
    """Partition whose middle segment is listed and cannot be opened before the first wait.

    A producer snapshot follows it, so a read of the end does not need that segment.
    """
    directory = tmp_path / "orders-0"
    for base_offset in (0, 4, 8):
        log = LogWriter(directory, base_offset=base_offset)
        for _ in range(4):
            log.append(b"x")
    (directory / f"{8:020d}.snapshot").write_bytes(b"\0\1\x48\x67\x4b\xc7\0\0\0\0")
    middle = directory / f"{4:020d}.log"
    hidden = tmp_path / "aside"
    middle.rename(hidden)
    middle.symlink_to(tmp_path / "nothing")

    def reappear() -> None:
        if len(clock.slept_ms) == 2:
            middle.unlink()
            hidden.rename(middle)

    clock = StoppedClock(while_asleep=reappear)
    yield directory, clock
    assert len(clock.slept_ms) == 2


def test_a_stream_retries_a_segment_that_vanishes_during_planning(
    vanishing: tuple[Path, StoppedClock],
) -> None:
    directory, clock = vanishing
    options = {"startingOffset": "earliest", "isolationLevel": "read_uncommitted"}
    options |= {"minPartitions": "4", "maxOffsetsPerTrigger": "10", "path": str(directory)}
    reader = RaftlogStreamReader(RaftlogOptions.parse(options), ("offset",), clock.as_clock())
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end["offset"] == 10
    assert len(reader.partitions(start, end)) == 4


def test_a_batch_read_retries_a_segment_that_vanishes_during_planning(
    vanishing: tuple[Path, StoppedClock],
) -> None:
    directory, clock = vanishing
    options = RaftlogOptions.parse({"path": str(directory), "minPartitions": "4"})
    assert len(RaftlogReader(options, ("offset",), clock.as_clock()).partitions()) == 4


def test_a_permanently_vanishing_segment_is_reported(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "orders-0")
    log.append(b"x")
    (log.directory / f"{1:020d}.log").symlink_to(tmp_path / "nothing")
    clock = StoppedClock()
    options = RaftlogOptions.parse({"path": str(log.directory)})
    with pytest.raises(SegmentDeletedError):
        RaftlogReader(options, ("offset",), clock.as_clock()).partitions()
    assert len(clock.slept_ms) == 4
