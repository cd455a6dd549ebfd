"""The bytes of appended batches are not parsed: their metadata must equal what a reader finds."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from tests.support.appending import DIRECTORY, NOW_MS, TOPIC_ID, batches_of, disk_with_parent

from raftlog.append import AppendBatch, AppendRequest, Done, Failed, RequestResult
from raftlog.errors import OutOfOrderSequenceError
from raftlog.log.reading.transactions import (
    BatchMetadata,
    CommitName,
    Marker,
    ValueKind,
    batch_metadata,
    commit_transaction_name,
    marker_value,
)
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.records.builder import ProducerStamp
from raftlog.records.compression import Compression
from raftlog.records.encoding import RecordToAppend
from raftlog.records.record import NewRecord

BY_HAND = CommitName("app", "by hand", 3)
"""Named by markers among the user's records, not by the request."""
TRANSACTION_NAMES = (None, "name", commit_transaction_name(BY_HAND), "x" * 70_000)
REQUESTS = 60


class RecordingLog(SingleVoterLog):
    """Log that records the metadata of its appends."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.appended: list[BatchMetadata] = []

    def _note_written(self, data: bytes | memoryview, metadata: BatchMetadata) -> None:
        super()._note_written(data, metadata)
        self.appended.append(metadata)


def random_request(rng: Random, number: int, values: ValueKind) -> AppendRequest:
    """Return an append: plain, atomic, with a commit, a producer, or with transaction markers."""
    count = rng.choice((1, 1, 2, 5, 40))
    records: list[RecordToAppend] = [
        b"%d" % at if rng.random() < 0.5 else NewRecord(b"k", b"%d" % at, NOW_MS + rng.randrange(9))
        for at in range(count)
    ]
    commit, producer = None, None
    kind = rng.choice(("plain", "atomic", "commit", "producer", "both", "markers", "end"))
    if kind in ("commit", "both"):
        commit = CommitName("app", f"q{rng.randrange(3)}", number)
    if kind in ("producer", "both"):
        producer = ProducerStamp(number, 0, rng.randrange(5))
    if kind == "markers" and values is ValueKind.KRAFT:
        name = rng.choice(TRANSACTION_NAMES)
        begin = marker_value(Marker.BEGIN, name)
        if name and len(name) > 60_000:
            records.append(rng.randbytes(60_000))  # the transaction spans two batches
        end = marker_value(rng.choice((Marker.END, Marker.ABORT)))
        records = [*records[: rng.randrange(2)], begin, *records, end]
        records = records[: rng.choice((len(records), len(records), len(records) - 1))]
    elif kind == "end" and values is ValueKind.KRAFT:
        records = [marker_value(Marker.END)]
    return AppendRequest(
        records=records,
        commit=commit,
        producer=producer,
        is_atomic=kind == "atomic",
        deadline_ms=0,
    )


@pytest.mark.parametrize("values", [ValueKind.BYTES, ValueKind.KRAFT])
@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
@pytest.mark.parametrize("seed", range(4))
def test_the_metadata_of_appended_batches_is_that_of_their_bytes(
    seed: int, compression: Compression, values: ValueKind
) -> None:
    rng, disk = Random(seed), disk_with_parent()
    config = LogConfig(
        values=values, compression=compression, segment_bytes=3_000, batch_bytes_max=100_000
    )
    log = RecordingLog.create(disk, DIRECTORY, config=config, topic_id=TOPIC_ID, now_ms=NOW_MS)
    group = AppendBatch(log, NOW_MS)
    for number in range(REQUESTS):
        group.process(random_request(rng, number, values))  # some are refused
        if rng.random() < 0.2:
            group.write()
        if rng.random() < 0.05:
            group.write()
            log.claim(now_ms=NOW_MS)
            group = AppendBatch(log, NOW_MS)
    group.write()
    log.flush()
    read = [batch_metadata(one, values) for one in batches_of(disk)]
    assert log.appended == read
    assert sum(one.commit is not None for one in read) > 1
    assert sum(one.producer_id >= 0 for one in read) > 1
    if values is ValueKind.KRAFT:
        assert sum(bool(one.markers) for one in read) > 5
    reopened = SingleVoterLog.open(disk.another_process(), DIRECTORY, now_ms=NOW_MS)
    assert reopened.producer_state.encode_snapshot() == log.producer_state.encode_snapshot()


@pytest.mark.parametrize(("values", "marker_count"), [(ValueKind.BYTES, 0), (ValueKind.KRAFT, 2)])
def test_a_named_append_of_a_producer_is_recognized_by_name_and_ordered_by_sequence(
    values: ValueKind, marker_count: int
) -> None:
    config = LogConfig(values=values)
    disk = disk_with_parent()
    log = SingleVoterLog.create(disk, DIRECTORY, config=config, topic_id=TOPIC_ID, now_ms=NOW_MS)
    value = b"\x01\x14\x00\x00" if values is ValueKind.KRAFT else b"v"

    def append(version: int, sequence: int, *, is_written: bool) -> RequestResult:
        request = AppendRequest(
            records=[value],
            commit=CommitName("app", "query", version),
            producer=ProducerStamp(7, 0, sequence),
            deadline_ms=0,
        )
        result = group.process(request)
        if is_written:
            group.write()
        return result

    group = AppendBatch(log, NOW_MS)
    for is_written in (False, True):
        base = 2 * is_written
        count = 1 + marker_count
        first = append(base, base * count, is_written=is_written)
        gap = append(base + 1, base * count + count + 1, is_written=is_written)
        second = append(base + 1, base * count + count, is_written=is_written)
        by_another = append(base + 1, 99, is_written=is_written)
        assert isinstance(first, Done)
        assert isinstance(gap, Failed)
        assert isinstance(gap.error, OutOfOrderSequenceError)
        assert gap.error.expected_sequence == base * count + count
        assert isinstance(second, Done)
        assert second.value.base_offset == first.value.end_offset
        assert by_another == Done(replace(second.value, was_duplicate=True))
