"""Find records of a log that is open for writing by their time, as consumers ask (ListOffsets).

Rules of this file:

1. What is written is read back as any reader reads it; where to look is what the writer knows.
2. Control records have times like others (Kafka: ``LogSegment.findOffsetByTimestamp``).
"""

from __future__ import annotations

from raftlog.records.record import Record

from .segments import LogSegments


def record_for_timestamp(
    segments: LogSegments, timestamp_ms: int, *, start_offset: int, end_offset: int
) -> Record | None:
    """The first record in [start_offset, end_offset) whose time is ``timestamp_ms`` or later.

    ``end_offset`` is a batch boundary. Raises what reading raises.
    """
    from raftlog.log.files import LogFiles  # with what it needs for columns
    from raftlog.log.times import find_batch_after_timestamp

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
        start_offset = next_offset  # a batch may claim a time that none of its records has
    return None


def max_timestamp_ms(segments: LogSegments) -> int:
    """The greatest time of any batch on disk; -1 for none."""
    sealed = (segment.max_timestamp_ms for segment in segments.retention_segments())
    return max(segments.active.max_timestamp_ms, *sealed, -1)
