"""Windows of tails: bounded parts of whole appends that together are everything."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from raftlog_state.tables.tails import TailRange, Window, windows_of

LIMIT = 100
Tails = dict[str, tuple[int, npt.NDArray[np.int64]]]


def random_tails(chance: random.Random) -> Tails:
    """Return tails in no order, some without appends, with fences and fenced appends."""
    tails: Tails = {}
    for name in "abcde"[: chance.randint(1, 5)]:
        before = chance.randint(-1, 1_000)
        sizes = [chance.choice((1, 2, 30, 99, 100, 101, 500)) for _ in range(chance.randint(0, 30))]
        offsets = (before + np.cumsum(sizes)).astype(int).tolist()
        offsets += [*[before] * chance.randint(0, 2), *offsets[3:5]]
        chance.shuffle(offsets)
        tails[name] = (before, np.array(offsets, np.int64))
    return tails


def append_sizes(tails: Tails, part: TailRange) -> list[int]:
    """Return the number of offsets of each append in a part."""
    assert part.last_offset is not None
    ends = {int(offset) for offset in tails[part.cluster_id][1]}
    found = sorted(end for end in ends if part.after_offset < end <= part.last_offset)
    return [after - before for before, after in pairwise([part.after_offset, *found])]


@pytest.mark.parametrize("seed", range(20))
def test_windows_have_each_append_of_each_cluster_once(seed: int) -> None:
    tails = random_tails(random.Random(seed))
    windows = [*windows_of(tails, LIMIT)]
    for name, (before, offsets) in tails.items():
        parts = [part for window in windows for part in window if part.cluster_id == name]
        assert [part.has_fences for part in parts] == [at == 0 for at in range(len(parts))]
        assert bool(parts) == bool(len(offsets))
        ends = [before, *(part.last_offset for part in parts)]
        assert [part.after_offset for part in parts] == ends[:-1]
        assert {*ends} <= {before, *offsets.tolist()}
        assert ends[-1] == max([before, *offsets.tolist()])


@pytest.mark.parametrize("seed", range(20))
def test_windows_are_as_large_as_they_may_be(seed: int) -> None:
    tails = random_tails(random.Random(seed))

    def sizes(window: Window) -> list[int]:
        return [size for part in window for size in append_sizes(tails, part)]

    windows = [sizes(window) for window in windows_of(tails, LIMIT)]
    assert all(sum(window) <= LIMIT or len(window) == 1 for window in windows)
    assert all(sum(first) + second[0] > LIMIT for first, second in pairwise(windows) if second)
