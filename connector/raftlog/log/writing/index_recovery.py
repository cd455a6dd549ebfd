"""Rebuild offset and time indexes of sealed segments that recovery does not read.

Opening a log checks the last entry of each index, like Kafka's sanity check; ``raftlog repair``
reads the whole segment. An index is rewritten only if the segment is valid to its end. A crash
while it is written leaves an invalid index, which the next opening detects.

Kafka: ``LogSegment.sanityCheck``, ``OffsetIndex.sanityCheck``, ``TimeIndex.sanityCheck``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import pairwise

from raftlog.errors import CorruptBatchError, DiskFullError, LogNotFoundError
from raftlog.log.names import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, offset_name
from raftlog.storage.protocol import ReadableFile, WritableStorage

from .batch_headers import header_at, iter_headers
from .indexer import OFFSET_ENTRY, TIME_ENTRY
from .recovered import ScanEnd, SegmentMetadata


def rebuild_invalid_indexes(
    storage: WritableStorage,
    directory: str,
    segments: Sequence[SegmentMetadata],
    *,
    interval_bytes: int,
    log_start_offset: int,
) -> tuple[str, ...]:
    """Rebuild the indexes of sealed segments that fail the sanity check; return the files' paths.

    ``segments`` are all segments of the log; the last one is active and not checked.
    """
    rebuilt: list[str] = []
    for segment, following in pairwise(segments):
        if following.base_offset <= log_start_offset:
            continue  # below the log start
        if not _are_indexes_valid(storage, directory, segment, interval_bytes):
            with contextlib.suppress(DiskFullError):  # the next opening tries again
                rebuilt += rebuild_indexes(storage, directory, segment.base_offset, interval_bytes)
    return tuple(rebuilt)


def rebuild_indexes(
    storage: WritableStorage, directory: str, base_offset: int, interval_bytes: int
) -> tuple[str, ...]:
    """Read a whole segment and rewrite its indexes if they are wrong; return the files' paths.

    No writer may have the segment open.
    """
    from .index_rebuild import IndexCheck, IndexRebuild  # imports numpy
    from .segment_recovery import ScanPosition, ScanRules, SegmentEnd, recover_segment

    names = [offset_name(base_offset, suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
    paths = [storage.join(directory, name) for name in names]
    contents = [_content(storage, path) for path in paths]
    indexes = IndexRebuild(base_offset, interval_bytes=interval_bytes)
    check = IndexCheck(base_offset, *(content or b"" for content in contents))
    with storage.open_file(storage.join(directory, offset_name(base_offset, LOG_SUFFIX))) as log:
        scan = recover_segment(log, ScanPosition(position=0, next_offset=base_offset), ScanRules())
        while True:
            try:
                chunk = next(scan)
            except StopIteration as stop:
                end: SegmentEnd = stop.value
                break
            indexes.add_batches(chunk.batches)
            check.add_batches(chunk.batches)
    indexes.close()
    is_valid = None not in contents and check.is_valid_for(indexes)
    if end.end is not ScanEnd.END or is_valid:
        return ()
    rebuilt = [
        path
        for path, old, new in zip(
            paths, contents, (indexes.offset_index, indexes.time_index), strict=True
        )
        if old != new and _write(storage, path, new, exists=old is not None)
    ]
    storage.sync_directory(directory)
    return tuple(rebuilt)


def _content(storage: WritableStorage, path: str) -> bytes | None:
    try:
        with storage.open_file(path) as file:
            return file.read_at(0, file.byte_count())
    except LogNotFoundError:
        return None


def _write(storage: WritableStorage, path: str, data: bytes, *, exists: bool) -> bool:
    opened = storage.open_for_writing if exists else storage.create_file
    with opened(path) as file:
        file.truncate(len(data))
        file.write_at(0, data)
        file.sync()
    return True


def _are_indexes_valid(
    storage: WritableStorage, directory: str, segment: SegmentMetadata, interval_bytes: int
) -> bool:
    base_offset, end_offset = segment.base_offset, segment.end_offset
    paths = [
        storage.join(directory, offset_name(base_offset, suffix))
        for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)
    ]
    try:
        with storage.open_file(paths[0]) as log:
            entry = _last_entry(storage, paths[1], OFFSET_ENTRY.size)
            if entry:
                delta, position = OFFSET_ENTRY.unpack(entry)
                if not 0 < position < segment.byte_count:
                    return False
                header = header_at(log, position, segment.byte_count)
                if header.last_offset != base_offset + delta:
                    return False
            elif _has_entry_due(log, segment.byte_count, interval_bytes):
                return False
            entry = _last_entry(storage, paths[2], TIME_ENTRY.size)
            if entry:
                time_ms, delta = TIME_ENTRY.unpack(entry)
                return bool(time_ms >= 0 and 0 <= delta < end_offset - base_offset)
            has_time = segment.byte_count and header_at(log, 0, segment.byte_count)
            return not has_time or has_time.max_timestamp_ms < 0
    except (LogNotFoundError, CorruptBatchError, _PartialEntryError):
        return False


class _PartialEntryError(Exception):
    """An index whose size is not a multiple of the entry size."""


def _last_entry(storage: WritableStorage, path: str, entry_bytes: int) -> bytes:
    with storage.open_file(path) as index:
        byte_count = index.byte_count()
        if byte_count % entry_bytes:
            raise _PartialEntryError
        return index.read_at(max(0, byte_count - entry_bytes), entry_bytes)


def _has_entry_due(log: ReadableFile, byte_count: int, interval_bytes: int) -> bool:
    """Return whether any batch is due for an offset index entry."""
    return any(one.position > interval_bytes for one in iter_headers(log, 0, byte_count))
