"""Find batches by the time of their records.

Rules of this file:

1. What is looked for is the first batch, in the order of the log, whose greatest timestamp is above
   a bound: timestamps need not ascend, since each is some producer's or leader's own clock.
2. The time index says where in a segment to begin looking, never more: an entry is used only if
   the batch that it names has the timestamp that it says. What lies behind it is read.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from raftlog.records.columns import BatchColumns, Scan

from .chunks import HeaderDecoder, read_chunks
from .cursor import LogCursor
from .files import LogFiles

INT64_MAX: Final = 2**63 - 1


def offset_for_timestamp(scan: Scan, timestamp_ms: int) -> int | None:
    """The first offset among the records of a scan with a timestamp at or behind ``timestamp_ms``.

    It has both columns. None if there is none.
    """
    records = scan.records
    assert records.timestamp_ms is not None, "it was asked for"
    assert records.offset is not None, "it was asked for"
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
    """The first batch in [start_offset, end_offset) with a record later than ``timestamp_ms``.

    Batches that claim a time above ``timestamp_ms_max`` are passed over. None if there is none.
    Raises what reading raises.
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
                # The next look for a later time goes on here.
                files.remember_position(
                    int(batch.base_offset[0]), base_offset, int(batch.position[0])
                )
                return batch
    return None


def _lower_bound_by_time_index(files: LogFiles, base_offset: int, timestamp_ms: int) -> int:
    """An offset below which the segment holds nothing later, by a true entry of its time index."""
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
