"""Files of metadata records in batches: what a reader finds in them, and errors without a file."""

from __future__ import annotations

import io
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftlog.client import open_path
from raftlog.errors import (
    DiskFullError,
    FileExistsLogError,
    OptionError,
    RecordBatchTooLargeError,
)
from raftlog.limits import BATCH_HEADER_BYTES
from raftlog.records.control import LeaderChange, decode_control
from raftlog.types import SnapshotId
from raftlog_state import write_batch_file
from raftlog_state.records import DecodedRecord, NoOpRecord, TopicRecord, decode, encode

SEGMENT = f"{7:020}.log"
SNAPSHOT = f"{100:020}-{3:010}.checkpoint"
RECORDS = [
    DecodedRecord(0, TopicRecord(name=f"topic-{number}", topic_id=f"{number:021}Q"))
    for number in range(50)
]
SMALL = BATCH_HEADER_BYTES + 200


def test_a_segment_has_a_leader_and_records_from_the_offset_in_its_name(tmp_path: Path) -> None:
    path = tmp_path / SEGMENT
    done = write_batch_file(
        path, RECORDS, leader_epoch=4, leader_id=2, written_ms=5, batch_bytes_max=SMALL
    )
    data = path.read_bytes()
    assert (done.path, done.byte_count) == (str(path), len(data))
    log = open_path(str(path))
    batches = list(log.batches(log.log_start_offset, log.log_end_offset))
    assert (log.log_start_offset, log.log_end_offset) == (7, 7 + 1 + 50)
    assert (done.base_offset, done.end_offset) == (7, 7 + 1 + 50)
    assert done.batch_count == len(batches) > 5
    assert {(one.leader_epoch, one.base_timestamp_ms) for one in batches} == {(4, 5)}
    assert [one.is_control for one in batches] == [True] + [False] * (len(batches) - 1)
    assert max(one.byte_count for one in batches) <= SMALL
    (first,) = batches[0].records()
    change = decode_control(first.key, first.value)
    assert isinstance(change, LeaderChange)
    assert change.leader_id == 2
    values = [record.value for one in batches[1:] for record in one.records()]
    assert [decode(value or b"") for value in values] == RECORDS
    assert path.stat().st_mode & 0o077 == 0


def test_a_snapshot_has_its_frame_and_the_epoch_of_its_name(tmp_path: Path) -> None:
    path = tmp_path / SNAPSHOT
    done = write_batch_file(path, iter(RECORDS), written_ms=5, batch_bytes_max=SMALL)
    snapshot = open_path(str(path)).read_snapshot(SnapshotId(end_offset=100, epoch=3))
    assert (done.base_offset, done.end_offset) == (0, 52)
    assert snapshot.last_contained_log_timestamp_ms == 5
    batches = list(snapshot.batches())
    assert {one.leader_epoch for one in batches} == {3}
    values = [record.value for one in batches if not one.is_control for record in one.records()]
    assert values == [encode(one) for one in RECORDS]


def test_a_file_without_records_is_empty_or_has_its_frame_only(tmp_path: Path) -> None:
    assert write_batch_file(tmp_path / SEGMENT, []).batch_count == 0
    assert (tmp_path / SEGMENT).read_bytes() == b""
    assert write_batch_file(tmp_path / SNAPSHOT, []).batch_count == 2


def test_there_is_no_file_if_the_records_raise_or_one_is_too_large(tmp_path: Path) -> None:
    def failing() -> Iterator[DecodedRecord]:
        yield from RECORDS
        raise io.UnsupportedOperation

    with pytest.raises(io.UnsupportedOperation):
        write_batch_file(tmp_path / SEGMENT, failing(), batch_bytes_max=SMALL)
    large = DecodedRecord(0, TopicRecord(name="x" * 200, topic_id=f"{1:021}Q"))
    with pytest.raises(RecordBatchTooLargeError):
        write_batch_file(tmp_path / SEGMENT, [*RECORDS, large], batch_bytes_max=SMALL)
    assert list(tmp_path.iterdir()) == []
    write_batch_file(tmp_path / SEGMENT, [DecodedRecord(0, NoOpRecord())])
    before = (tmp_path / SEGMENT).read_bytes()
    with pytest.raises(FileExistsLogError, match="write to another name, or delete the file"):
        write_batch_file(tmp_path / SEGMENT, RECORDS)
    assert (tmp_path / SEGMENT).read_bytes() == before
    (tmp_path / f"{SNAPSHOT}.part").touch()
    with pytest.raises(FileExistsLogError, match="if it was killed, delete the file"):
        write_batch_file(tmp_path / SNAPSHOT, RECORDS)
    assert (tmp_path / f"{SNAPSHOT}.part").read_bytes() == b"", "it is another writer's"


def test_a_full_disk_leaves_no_file(tmp_path: Path) -> None:
    large = DecodedRecord(0, TopicRecord(name="x" * 20_000, topic_id=f"{1:021}Q"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(DiskFullError):
            write_batch_file(tmp_path / SEGMENT, [*RECORDS, large], batch_bytes_max=30_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_another_writer_creates_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    def records() -> Iterator[DecodedRecord]:
        yield from RECORDS
        (tmp_path / SEGMENT).write_bytes(b"another")

    with pytest.raises(FileExistsLogError):
        write_batch_file(tmp_path / SEGMENT, records())
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [(SEGMENT, b"another")]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("leader_epoch", -1),
        ("leader_epoch", 2**31),
        ("leader_id", -1),
        ("leader_id", 2**31),
        ("written_ms", -1),
        ("written_ms", 1.5),
        ("written_ms", 2**63),
        ("batch_bytes_max", 255),
        ("batch_bytes_max", 2**40),
    ],
)
def test_a_number_out_of_range_is_refused(option: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=f"option {option}: it must be "):
        write_batch_file(tmp_path / SEGMENT, RECORDS, **{option: value})
    assert list(tmp_path.iterdir()) == []


def test_offsets_are_not_higher_than_readers_accept(tmp_path: Path) -> None:
    end_offset_max = 2**63 - 2**31
    path = tmp_path / f"{end_offset_max - len(RECORDS):020}.log"
    with pytest.raises(OptionError, match="too high for the records"):
        write_batch_file(path, [*RECORDS, RECORDS[0]], batch_bytes_max=SMALL)
    assert list(tmp_path.iterdir()) == []
    assert write_batch_file(path, RECORDS, batch_bytes_max=SMALL).end_offset == end_offset_max
    assert open_path(str(path)).log_end_offset == end_offset_max


def test_the_smallest_limit_is_enough_for_control_records(tmp_path: Path) -> None:
    no_ops = [DecodedRecord(0, NoOpRecord())]
    done = write_batch_file(tmp_path / SEGMENT, no_ops, leader_id=2**31 - 1, batch_bytes_max=256)
    assert done.batch_count == 2
    assert write_batch_file(tmp_path / SNAPSHOT, no_ops, batch_bytes_max=256).batch_count == 3


@pytest.mark.parametrize("name", ["records.log", "a.checkpoint", "7.log", ".log"])
def test_another_name_is_refused_with_an_example(name: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=f"{0:020}.log"):
        write_batch_file(tmp_path / name, RECORDS)
    with pytest.raises(OptionError, match="a snapshot has no leader"):
        write_batch_file(tmp_path / SNAPSHOT, RECORDS, leader_id=1)
    assert list(tmp_path.iterdir()) == []
