"""Which files a compaction rewrites: those that together are as large as a larger one.

Rules of this file:

1. A file of ``FULL_BYTES`` or more is not rewritten.
2. Each time a row is rewritten, its file becomes at least twice as large. If ``n`` bytes are
   written in appends of ``a`` bytes, at most ``n * (1 + log2(FULL_BYTES / a))`` bytes are therefore
   rewritten. If many appends are compacted together, ``a`` is their sum.
3. Of the other files, each is larger than all smaller ones together, so there are at most ``1 +
   log2(FULL_BYTES / a)`` of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import Final

COMPACT_BYTES: Final = 64 << 20
"""Compacted files are at most this large."""
FULL_BYTES: Final = COMPACT_BYTES // 2


def rewritten_bytes(partitions: Iterable[Iterable[int]]) -> int | None:
    """Return the size below which files are rewritten, within each partition; None: no file.

    ``partitions``: the file sizes of each one. If a partition has smaller files than another, more
    of them may be rewritten than necessary.
    """
    return max(filter(None, map(_rewritten_bytes, partitions)), default=None)


def _rewritten_bytes(sizes: Iterable[int]) -> int | None:
    """Return the sum of the files that are rewritten as one; each other file is larger."""
    small = sorted(size for size in sizes if size < FULL_BYTES)
    sums = [0, *accumulate(small)]
    counts = (at for at in range(1, len(small)) if small[at] <= sums[at])
    last = max(counts, default=None)
    return None if last is None else sums[last + 1]
