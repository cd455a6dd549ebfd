"""Compaction of a stream that runs for long: rewritten bytes and files grow with the logarithm."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from tests.support.sweep_size import nightly_except

from raftlog_state.tables.stores.compaction import COMPACT_BYTES, FULL_BYTES, rewritten_bytes

APPENDS = 200
"""Appends from one compaction to the next."""


@dataclass
class Table:
    """Sizes of the files of a table, oldest first, and what its compactions have rewritten."""

    select_below: Callable[[int], int]
    files: list[int] = field(default_factory=list)
    appended_bytes: int = 0
    rewritten_bytes: int = 0

    def append(self, sizes: list[int]) -> None:
        self.files += sizes
        self.appended_bytes += sum(sizes)

    def compact(self) -> None:
        small_bytes = rewritten_bytes([self.files])
        if small_bytes is None:
            return
        below = self.select_below(small_bytes)
        kept = [size for size in self.files if size >= below]
        for files in bins([size for size in self.files if size < below]):
            if len(files) > 1:
                self.rewritten_bytes += sum(files)
            kept.append(sum(files))
        self.files = kept


def bins(files: list[int]) -> Iterator[list[int]]:
    """Yield files that become one of at most ``COMPACT_BYTES``."""
    found: list[int] = []
    for size in files:
        if found and sum(found) + size > COMPACT_BYTES:
            yield found
            found = []
        found.append(size)
    yield found


ENGINES: dict[str, Callable[[int], int]] = {
    "delta-rs": lambda small: min(small, COMPACT_BYTES) + 1,
    "Spark": lambda small: min(small, FULL_BYTES),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "append_bytes", nightly_except((1_000, 3 << 20), (1_000, 30_000, 400_000, 3 << 20))
)
@pytest.mark.parametrize("spread", [1, 20])
def test_bytes_are_rewritten_once_for_each_doubling_of_their_file(
    engine: str, append_bytes: int, spread: int
) -> None:
    chance = random.Random(append_bytes * spread)
    table = Table(ENGINES[engine])
    doublings = 1 + math.log2(max(2, FULL_BYTES / (append_bytes / spread)))
    for _ in range(400):
        sizes = [chance.randint(append_bytes // spread, append_bytes) for _ in range(APPENDS)]
        table.append(sizes)
        table.compact()
        assert table.rewritten_bytes <= table.appended_bytes * doublings
        small = sorted(size for size in table.files if size < FULL_BYTES)
        assert len(small) <= doublings
        assert sum(small) < COMPACT_BYTES
        assert max(table.files) <= COMPACT_BYTES
    # Those of 200 appends are put together first.
    steps = 2 + math.log2(max(1, FULL_BYTES / (APPENDS * append_bytes / 2)))
    assert table.rewritten_bytes <= table.appended_bytes * steps


@pytest.mark.parametrize("seed", range(20))
def test_files_are_put_together_that_are_as_large_as_another(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [int(2 ** chance.uniform(8, 26)) for _ in range(chance.randint(0, 40))]
    small_bytes = rewritten_bytes([sizes])
    chosen = [size for size in sizes if size < (small_bytes or 0)]
    others = sorted(size for size in sizes if size not in chosen)
    if small_bytes is not None and small_bytes < FULL_BYTES:
        assert sum(chosen) == small_bytes
        assert 2 * max(chosen) <= small_bytes
    if small_bytes is None or small_bytes < FULL_BYTES:
        for at, size in enumerate(others):
            if size < FULL_BYTES:
                assert size > sum(chosen) + sum(others[:at])


def test_the_largest_partition_decides() -> None:
    assert rewritten_bytes([]) is None
    assert rewritten_bytes([[], [10], [10, 11], [FULL_BYTES] * 9]) is None
    assert rewritten_bytes([[10, 10], [10, 11, 12, 100]]) == 33
