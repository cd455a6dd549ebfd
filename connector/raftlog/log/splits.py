"""Divide a range of offsets into splits: arithmetic, with one question to the log.

Rules of this file:

1. Slices cover the range exactly, none is empty.
2. A cut lies where a batch begins; only the range's own ends may lie elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .reads import ReadPlan, Split
from .transactions import TransactionSpan, spans_by_range

FindBatch = Callable[[int], tuple[int, int]]
"""Gives base offset and next offset of the batch that holds an offset, or of the next one."""


def plan_range(
    start_offset: int,
    end_offset: int,
    spans: Sequence[TransactionSpan],
    find_batch: FindBatch,
    *,
    max_splits: int,
    max_records: int | None,
) -> ReadPlan:
    """The splits of a range as ``split_range`` cuts it, each with the transactions it touches."""
    ranges = split_range(
        start_offset, end_offset, find_batch, max_splits=max_splits, max_records=max_records
    )
    splits = tuple(
        Split(start, end, touching)
        for (start, end), touching in zip(ranges, spans_by_range(spans, ranges), strict=True)
    )
    return ReadPlan(start_offset, end_offset, splits)


def split_range(
    start_offset: int,
    end_offset: int,
    find_batch: FindBatch,
    *,
    max_splits: int,
    max_records: int | None,
) -> list[tuple[int, int]]:
    """Cut [start_offset, end_offset) into about ``max_splits`` splits of like many offsets.

    More splits than that only where ``max_records`` asks for it. One batch is never cut.
    """
    splits: list[tuple[int, int]] = []
    start = start_offset
    while start < end_offset:
        left = max(max_splits - len(splits), 1)
        wanted = -(-(end_offset - start) // left)
        if max_records is not None:
            wanted = min(wanted, max_records)
        end = end_offset
        if start + wanted < end_offset:
            base_offset, next_offset = find_batch(start + wanted)
            end = base_offset if base_offset > start else min(next_offset, end_offset)
        splits.append((start, end))
        start = end
    return splits
