"""Search for batches by timestamp.

Timestamps need not ascend, since producers and leaders have different clocks: the result is the
first batch in log order whose maximum timestamp is above a bound. An entry of the time index is
used only as a start position, and only if its batch has the entry's timestamp.
"""

from __future__ import annotations

import numpy as np

from raftlog.records.batch_columns import BatchColumns, Scan
from raftlog.records.header import INT64_MAX

from .chunks import HeaderDecoder, LogCursor, read_chunks
from .files import LogFiles


def offset_for_timestamp(scan: Scan, timestamp_ms: int) -> int | None:
    """Return the first offset of a scan whose timestamp is >= ``timestamp_ms``; None without one.

    The scan must have the columns OFFSET and TIMESTAMP.
    """
    records = scan.records
    assert records.timestamp_ms is not None, "the scan has this column"
    assert records.offset is not None, "the scan has this column"
    late = np.flatnonzero(records.timestamp_ms.to_numpy() >= timestamp_ms)
    return int(records.offset[int(late[0])].as_py()) if len(late) else None


def find_batch_after_timestamp(
    files: LogFiles,
    timestamp_ms: int,
    *,
    start_offset: int,
    end_offset: int,
    contiguous: bool,
    timestamp_ms_max: int = INT64_MAX,
) -> BatchColumns | None:
    """Return the first batch in [start_offset, end_offset) with a timestamp > ``timestamp_ms``.

    Batches with a maximum timestamp above ``timestamp_ms_max`` are skipped. None without one.
    Errors as ``LogCursor.read``.
    """
    for base_offset in files.listing.segments:
        following = files.segment_after(base_offset)
        end = end_offset if following is None else min(following, end_offset)
        if end <= start_offset:
            continue
        start = max(start_offset, base_offset)
        if not files.was_read_to(start, base_offset):
            start = max(start, _lower_bound_by_time_index(files, base_offset, timestamp_ms))
        if start >= end_offset:
            return None
        cursor = LogCursor(files, start, contiguous=contiguous)
        for chunk in cursor.read(HeaderDecoder(), end):
            claimed_ms = chunk.batches.max_timestamp_ms
            found = np.flatnonzero((claimed_ms > timestamp_ms) & (claimed_ms <= timestamp_ms_max))
            if len(found):
                batch = chunk.batches[found[:1]]
                # The next search, for a later timestamp, starts here.
                files.remember_position(
                    int(batch.base_offset[0]), base_offset, int(batch.position[0])
                )
                return batch
    return None


def _lower_bound_by_time_index(files: LogFiles, base_offset: int, timestamp_ms: int) -> int:
    """Return an offset below which no record of the segment is later than ``timestamp_ms``."""
    index = files.time_index(base_offset)
    ordinal = index.entry_before(timestamp_ms + 1)
    if ordinal is None:
        return base_offset
    last_offset = int(index.last_offsets[ordinal])
    with files.open(files.segment_path(base_offset)) as file:
        position = files.find(file, base_offset, last_offset)
        for _, chunk in read_chunks(
            file, position, HeaderDecoder(), start_offset=last_offset, end_offset=last_offset + 1
        ):
            if len(chunk.batches):
                is_valid = int(chunk.batches.last_offset[0]) == last_offset and int(
                    chunk.batches.max_timestamp_ms[0]
                ) == int(index.timestamps_ms[ordinal])
                return last_offset + 1 if is_valid else base_offset
    return base_offset
