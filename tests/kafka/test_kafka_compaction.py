"""Kafka's cleaner and raftlog's compaction retain the same records of the same segments."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.log.cleaning.test_retained_records import bytes_of, filtered
from tests.support.kafka import HOME, KafkaNode, run_java, running_node
from tests.support.quorum_processes import eventually

import raftlog
from raftlog.errors import DataLossError
from raftlog.limits import MIB
from raftlog.log.cleaning.compaction import SegmentSizes, group_segments
from raftlog.log.cleaning.retained_records import OffsetMap, RetentionRules
from raftlog.log.format.directory import parse_offset_checkpoint
from raftlog.log.reading.chunks import HeaderDecoder
from raftlog.log.reading.files import LogCursor, LogFiles
from raftlog.log.segment import BatchCursor, SegmentMetadata, parse_txn_index
from raftlog.records.batch import RecordBatch, iter_batches
from raftlog.storage.local import LocalStorage
from raftlog.types import TopicPartition

pytestmark = pytest.mark.kafka

SEGMENT_BYTES = 1 * MIB
"""As in ``Compacted.java``."""
PARTITION = TopicPartition("compacted", 0)
Row = tuple[int, int, bytes | None, bytes | None]
LONG_AFTER_MS = 2**45
"""After every delete horizon."""


def run(node: KafkaNode, *words: str) -> None:
    run_java(node.jars, str(HOME / "tests" / "kafka" / "Compacted.java"), node.bootstrap, *words)


def cleaned_up_to(node: KafkaNode) -> int:
    """Return the first offset that Kafka's cleaner has not read."""
    path = node.log_dir / "cleaner-offset-checkpoint"
    data = path.read_bytes() if path.exists() else b""
    return parse_offset_checkpoint(data, str(path)).get(PARTITION, 0)


def _later_end(node: KafkaNode, offset: int) -> int | None:
    end = cleaned_up_to(node)
    return end if end > offset else None


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def batches(paths: list[Path]) -> Iterator[RecordBatch]:
    for path in paths:
        yield from iter_batches(path.read_bytes(), path=str(path))


def grouped(copy: Path, end_offset: int) -> list[int]:
    """Return the base offsets of the segments that raftlog makes of those before a compaction."""
    *sealed, active = segments(copy)
    bases = [int(one.stem) for one in (*sealed, active)]
    sizes = [
        SegmentSizes(
            SegmentMetadata(base_offset=base, end_offset=end, byte_count=path.stat().st_size),
            path.with_suffix(".index").stat().st_size,
            path.with_suffix(".timeindex").stat().st_size,
        )
        for path, base, end in zip(sealed, bases, bases[1:], strict=False)
        if base < end_offset
    ]
    groups = group_segments(
        sizes,
        segment_bytes=SEGMENT_BYTES,
        index_bytes=10 * MIB,
        first_uncleanable_offset=end_offset,
    )
    return [group[0].base_offset for group in groups]


def records_below(found: Iterator[RecordBatch], end_offset: int) -> list[Row]:
    return [
        (one.offset, one.timestamp_ms, one.key, one.value)
        for batch in found
        for one in batch.records()
        if one.offset < end_offset and not batch.is_control
    ]


def cursor_of(batch: RecordBatch) -> BatchCursor:
    """Return the bytes of a batch, between two of which Kafka's cleaner has left a gap."""
    return BatchCursor(data=bytes_of([batch]), next_offset=batch.base_offset)


def compacted(copy: Path, first_dirty_offset: int, end_offset: int) -> Iterator[RecordBatch]:
    """Return the batches that raftlog writes for the segments that Kafka has compacted."""
    aborted = [
        one
        for path in sorted(copy.glob("*.txnindex"))
        for one in parse_txn_index(path.read_bytes(), str(path))
    ]
    offsets = OffsetMap(first_dirty_offset, 1 << 30, aborted)
    read = list(batches(segments(copy)))
    for batch in read:
        if first_dirty_offset <= batch.last_offset < end_offset:
            assert offsets.add_all(cursor_of(batch))
    rules = RetentionRules(now_ms=LONG_AFTER_MS, delete_retention_ms=1)
    sealed = [batch for batch in read if batch.base_offset < end_offset]
    data, _ = filtered(map(cursor_of, sealed), offsets, rules)
    return iter_batches(data)


def check_table(table: raftlog.Table, copy: Path, compacted_end: int) -> None:
    """Compare a table that was read before the compaction, and a new one, with the copy's records.

    The copy is older than the compaction. States that Kafka no longer has are refused.
    """
    last: dict[bytes | None, bytes | None] = {}
    for batch in batches(segments(copy)):
        last |= {one.key: one.value for one in batch.records()}
    expected = {key: value for key, value in last.items() if value is not None}
    table.refresh()
    assert table == expected
    with raftlog.table(table.path) as later:
        assert later == expected
    assert table.as_of(table.end_offset) == expected
    with pytest.raises(DataLossError, match="OFFSETS_COMPACTED"):
        table.as_of(compacted_end - 1)


def base_offsets(cursor: LogCursor) -> list[int]:
    """Return the base offsets of the batches that a cursor reads up to the end of the log."""
    found = [chunk.batches.base_offset.tolist() for chunk in cursor.read(HeaderDecoder())]
    return [base for bases in found for base in bases]


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_the_same_records_are_retained_in_two_compactions(tmp_path: Path, codec: str) -> None:
    """The second one also drops the tombstones that the first one gave a delete horizon, and
    replaces the segment that a reader has read in part after the first one."""
    with running_node(tmp_path, "log.cleaner.backoff.ms=100") as node:
        directory = node.log_dir / "compacted-0"
        run(node, "create")
        end = 0
        cursor: LogCursor | None = None
        table: raftlog.Table | None = None
        for ordinal in range(2):
            run(node, "wait")
            run(node, "produce", str(ordinal), codec)
            table = table or raftlog.table(directory, follow=False)
            copy = tmp_path / f"copy-{ordinal}"
            shutil.copytree(directory, copy)
            before = end
            run(node, "clean")
            end = eventually(partial(_later_end, node, before), "Kafka's cleaner compacts the log")
            by_kafka = records_below(batches(segments(directory)), end)
            by_raftlog = records_below(compacted(copy, before, end), end)
            assert by_raftlog == by_kafka
            assert 200 < len(by_kafka) < len(records_below(batches(segments(copy)), end))
            check_table(table, copy, end)
            bases = [int(one.stem) for one in segments(directory)]
            assert [one for one in bases if one < end] == grouped(copy, end)
            assert not ordinal or len(bases) < len(segments(copy)), "small ones became one"
            has_tombstone = any(one[3] is None for one in by_kafka)
            assert has_tombstone
            if ordinal:
                assert min(one[0] for one in by_kafka if one[3] is None) >= before
            if cursor is None:
                files = LogFiles.of_directory(LocalStorage(), str(directory))
                cursor = LogCursor(files, 0, contiguous=False)
            left = cursor.next_offset
            assert base_offsets(cursor) == [
                one.base_offset for one in batches(segments(directory)) if one.last_offset >= left
            ]
            assert not ordinal or before <= left < end, "the first compaction has not read to it"


def test_the_same_records_of_committed_transactions_are_retained(tmp_path: Path) -> None:
    """Those of aborted ones are dropped, and supersede nothing."""
    with running_node(tmp_path, "log.cleaner.backoff.ms=100") as node:
        directory = node.log_dir / "compacted-0"
        run(node, "create")
        run(node, "produce", "1", "none")
        run(node, "transact", "2")
        run(node, "produce", "3", "none")
        copy = tmp_path / "copy"
        shutil.copytree(directory, copy)
        assert any(path.stat().st_size for path in copy.glob("*.txnindex")), "some were aborted"
        run(node, "clean")
        end = eventually(partial(_later_end, node, 0), "Kafka's cleaner compacts the log")
        by_kafka = records_below(batches(segments(directory)), end)
        assert records_below(compacted(copy, 0, end), end) == by_kafka
        transactional = [one for one in batches(segments(directory)) if one.is_transactional]
        assert len(transactional) > 20
        with raftlog.table(directory) as table:
            assert len(table)
