"""Timestamp look-ups in a log that is open for writing (ListOffsets).

Control records have timestamps too (Kafka: ``LogSegment.findOffsetByTimestamp``).
"""

from __future__ import annotations

from raftlog.records.record import Record

from .segments import LogSegments


def record_for_timestamp(
    segments: LogSegments, timestamp_ms: int, *, start_offset: int, end_offset: int
) -> Record | None:
    """Return the first record in [start_offset, end_offset) whose timestamp is >= ``timestamp_ms``.

    ``end_offset`` must be a batch boundary. Raises ``CorruptBatchError`` and what the storage
    raises.
    """
    from raftlog.log.reading.files import LogFiles  # imports numpy
    from raftlog.log.reading.timestamps import find_batch_after_timestamp

    files = LogFiles.of_directory(segments.directory.storage, segments.directory.path)
    while start_offset < end_offset:
        found = find_batch_after_timestamp(
            files,
            timestamp_ms - 1,
            start_offset=start_offset,
            end_offset=end_offset,
            contiguous=True,
        )
        if found is None:
            return None
        base_offset, next_offset = int(found.base_offset[0]), int(found.next_offset[0])
        for batch in segments.batches(base_offset, next_offset):
            for record in batch.records():
                if record.offset >= start_offset and record.timestamp_ms >= timestamp_ms:
                    return record
        start_offset = next_offset  # a header's timestamp may exceed all of its records'
    return None


def max_timestamp_ms(segments: LogSegments) -> int:
    """Return the greatest timestamp of any batch on disk; -1 if no batch has one."""
    sealed = (segment.max_timestamp_ms for segment in segments.retention_segments())
    return max(segments.active.max_timestamp_ms, *sealed, -1)
