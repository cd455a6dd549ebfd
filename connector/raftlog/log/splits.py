"""Division of a range of offsets into splits.

Splits cover the range exactly, and none is empty. They end between batches, except at the ends of
the range.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .reads import ReadPlan, Split
from .transactions import TransactionSpan, spans_by_range

FindBatch = Callable[[int], tuple[int, int]]
"""Returns base and next offset of the batch that contains an offset, or of the next batch."""


def plan_range(
    start_offset: int,
    end_offset: int,
    spans: Sequence[TransactionSpan],
    find_batch: FindBatch,
    *,
    max_splits: int,
    max_records: int | None,
) -> ReadPlan:
    """Return the plan of a range: ``split_range``, and the transactions that each split touches."""
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
    """Divide [start_offset, end_offset) into about ``max_splits`` splits of similar size.

    There are more if ``max_records`` requires it. A batch is never divided.
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
