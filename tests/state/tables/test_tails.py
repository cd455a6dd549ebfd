"""Windows of tails: bounded parts of whole appends that together are everything."""

from __future__ import annotations

import random
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.support.sweep_size import nightly_except

from raftlog_state.tables.stores.protocol import rows_where
from raftlog_state.tables.tails import TailRange, TailRows, Window, windows_of

LIMIT = 100
Tails = dict[str, TailRows]


def random_tails(chance: random.Random) -> Tails:
    """Return tails, some without appends, with fences, fenced appends and long transactions."""
    tails: Tails = {}
    for name in "abcde"[: chance.randint(1, 5)]:
        before = chance.randint(-1, 1_000)
        sizes = [chance.choice((1, 2, 30, 99, 100, 101, 500)) for _ in range(chance.randint(0, 30))]
        rows: list[tuple[int, int, int]] = []
        ends = [before] * chance.randint(0, 2)
        rows += [(end, end, -1) for end in ends]
        last = before
        for size in sizes:
            rows += random_append(chance, last, size)
            last = rows[-1][0]
            ends += [last] * chance.choice((1, 1, 1, 2))
        rows.sort()
        chance.shuffle(ends)
        columns = np.array(rows, np.int64).reshape(-1, 3).T
        tails[name] = TailRows(before, tuple(columns), np.array(ends, np.int64))
    return tails


def random_append(chance: random.Random, last: int, size: int) -> list[tuple[int, int, int]]:
    """Return the rows of an append after an offset: visible offset, offset and seq."""
    first = last + 1
    kind = chance.choice(("records", "transaction", "snapshot"))
    if kind == "snapshot":
        return [(first, first, seq) for seq in range(-1, size - 1)]
    end = first + size - 1
    return [
        (end if kind == "transaction" else offset, offset, 0) for offset in range(first, end + 1)
    ]


def rows_of(tails: Tails, part: TailRange) -> list[tuple[int, int, int]]:
    """Return the rows of a part, as a store finds them."""
    visible_offset, offset, seq = tails[part.cluster_id].columns
    is_fence = (seq == -1) & (visible_offset == part.after_offset)
    rows = pa.table(
        {
            "cluster_id": [part.cluster_id] * len(seq),
            "entity": pc.if_else(pa.array(is_fence), "progress", "topic"),
            "visible_offset": visible_offset,
            "offset": offset,
            "seq": seq,
        }
    )
    found = rows_where(rows, any_of=part.any_of).select(["visible_offset", "offset", "seq"])
    return [*zip(*(column.to_pylist() for column in found.columns), strict=True)]


def reads(windows: list[Window]) -> list[list[TailRange]]:
    return [*chain.from_iterable(windows)]


@pytest.mark.parametrize("seed", nightly_except(range(6), range(20)))
def test_reads_have_each_row_of_each_cluster_once_and_in_order(seed: int) -> None:
    tails = random_tails(random.Random(seed))
    windows = [*windows_of(tails, LIMIT)]
    for name, (_, columns, _) in tails.items():
        parts = [part for read in reads(windows) for part in read if part.cluster_id == name]
        assert [part.has_fences for part in parts] == [at == 0 for at in range(len(parts))]
        found = [row for part in parts for row in rows_of(tails, part)]
        assert found == [*zip(*(column.tolist() for column in columns), strict=True)]


@pytest.mark.parametrize("seed", nightly_except(range(6), range(20)))
def test_windows_have_whole_appends(seed: int) -> None:
    tails = random_tails(random.Random(seed))
    for window in windows_of(tails, LIMIT):
        parts = [part for read in window for part in read]
        for part in parts:
            ends = tails[part.cluster_id].ends.tolist()
            assert {part.after_offset, part.last_offset} <= {part.after_offset, *ends}
        if len(window) > 1:
            [(_, after_offset, last_offset)] = {part[:3] for part in parts}
            inside = (end for end in tails[parts[0].cluster_id].ends if end > after_offset)
            assert last_offset == min(inside), "only one append is divided"


@pytest.mark.parametrize("seed", nightly_except(range(6), range(20)))
def test_reads_are_bounded_and_windows_as_large_as_they_may_be(seed: int) -> None:
    tails = random_tails(random.Random(seed))

    def count(part: TailRange) -> int:
        return sum(row[0] > part.after_offset for row in rows_of(tails, part))

    windows = [*windows_of(tails, LIMIT)]
    assert all(sum(map(count, read)) <= LIMIT for read in reads(windows))
    for first, second in pairwise(windows):
        part = second[0][0]
        ends = tails[part.cluster_id].ends
        if len(ends[ends > part.after_offset]):
            end = int(ends[ends > part.after_offset].min())
            next_append = part._replace(last_offset=end, part=())
            size = sum(map(count, chain.from_iterable(first)))
            assert size + count(next_append) > LIMIT
