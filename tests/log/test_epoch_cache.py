"""Leader epochs of a log: Kafka's answers, and its file."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.errors import CorruptFileError
from raftlog.log.format.directory import parse_epoch_checkpoint
from raftlog.log.format.epoch_cache import EpochCache, EpochEntry
from raftlog.types import OffsetAndEpoch

CACHE = EpochCache.of([(2, 10), (4, 20), (7, 30)])
EPOCHS_AND_OFFSETS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 40)), max_size=8)


@pytest.mark.parametrize(
    ("asked", "epoch", "offset"),
    [(1, 1, 10), (2, 2, 20), (3, 2, 20), (5, 4, 30), (7, 7, 45)],
)
def test_end_offsets_of_epochs_equal_kafkas_answers(asked: int, epoch: int, offset: int) -> None:
    assert CACHE.end_offset_for(asked, 45) == OffsetAndEpoch(epoch=epoch, offset=offset)


@pytest.mark.parametrize("asked", [8, -1])
def test_unknown_epochs_have_no_end_offset(asked: int) -> None:
    assert CACHE.end_offset_for(asked, 45) is None
    assert EpochCache().end_offset_for(asked, 45) is None


def test_the_epoch_of_a_record() -> None:
    assert [CACHE.epoch_at(offset) for offset in (9, 10, 19, 20, 30, 99)] == [None, 2, 2, 4, 7, 7]


def test_a_later_claim_is_replaced_by_an_assignment() -> None:
    assert CACHE.assign(5, 25).entries[-2:] == (
        EpochEntry(epoch=4, start_offset=20),
        EpochEntry(epoch=5, start_offset=25),
    )
    assert CACHE.assign(9, 20).entries == (
        EpochEntry(epoch=2, start_offset=10),
        EpochEntry(epoch=9, start_offset=20),
    )
    assert CACHE.assign(7, 33) is CACHE


@given(EPOCHS_AND_OFFSETS)
def test_entries_ascend_whatever_is_assigned(assigned: list[tuple[int, int]]) -> None:
    entries = EpochCache.of(assigned).entries
    for earlier, later in itertools.pairwise(entries):
        assert earlier.epoch < later.epoch
        assert earlier.start_offset < later.start_offset


def test_kafkas_checkpoint_is_read(data: Path) -> None:
    directory = data / "kraft-logs/three-nodes-4.3.1/node-102/__cluster_metadata-0"
    cache = parse_epoch_checkpoint((directory / "leader-epoch-checkpoint").read_bytes(), "x")
    pairs = [(entry.epoch, entry.start_offset) for entry in cache.entries]
    assert pairs == [(1, 0), (2, 721), (3, 3131), (4, 3132)]


def test_an_empty_checkpoint_has_no_epochs() -> None:
    assert parse_epoch_checkpoint(b"", "x") == EpochCache()
    assert parse_epoch_checkpoint(b"0\n0\n", "x") == EpochCache()


@pytest.mark.parametrize(
    "content",
    [
        b"1\n0\n",
        b"0",
        b"0\n2\n1 0\n",
        b"0\n1\n1 0\n2 5\n",
        b"0\n1\n1\n",
        b"0\n1\none 0\n",
        b"0\n2\n2 0\n1 5\n",
        b"0\n2\n1 5\n2 5\n",
        b"\xff\xfe",
        b"0\n-1\n",
    ],
)
def test_a_damaged_checkpoint_is_reported(content: bytes) -> None:
    with pytest.raises(CorruptFileError) as caught:
        parse_epoch_checkpoint(content, "leader-epoch-checkpoint")
    assert caught.value.path == "leader-epoch-checkpoint"


@given(st.binary(max_size=40) | st.text("0123 -\n", max_size=40).map(str.encode))
def test_arbitrary_bytes_are_epochs_or_a_typed_error(content: bytes) -> None:
    with contextlib.suppress(CorruptFileError):
        parse_epoch_checkpoint(content, "x")


class Counted(int):
    """Integer that counts its comparisons."""

    comparisons = 0

    def _counted(self, answer: bool) -> bool:
        Counted.comparisons += 1
        return answer

    def __lt__(self, other: int) -> bool:
        return self._counted(int(self) < int(other))

    def __le__(self, other: int) -> bool:
        return self._counted(int(self) <= int(other))

    def __gt__(self, other: int) -> bool:
        return self._counted(int(self) > int(other))

    def __ge__(self, other: int) -> bool:
        return self._counted(int(self) >= int(other))

    def __eq__(self, other: object) -> bool:
        return self._counted(int(self) == other)

    __hash__ = int.__hash__


def test_assigning_an_epoch_takes_a_few_comparisons_however_many_there_are() -> None:
    """A quorum that elects a leader once a minute has 500,000 epochs after a year."""
    count = 2_000
    Counted.comparisons = 0
    pairs = [(Counted(epoch), Counted(10 * epoch)) for epoch in range(count)]
    cache = EpochCache.of(pairs)
    assert len(cache.entries) == count
    one_by_one = EpochCache()
    for epoch, start_offset in pairs:
        one_by_one = one_by_one.assign(epoch, start_offset)
    assert one_by_one.entries == cache.entries
    assert Counted.comparisons < 20 * count


@given(EPOCHS_AND_OFFSETS, EPOCHS_AND_OFFSETS)
def test_assigning_many_epochs_equals_assigning_each(
    first: list[tuple[int, int]], then: list[tuple[int, int]]
) -> None:
    cache = EpochCache.of(first)
    one_by_one = cache
    for epoch, start_offset in then:
        kept = [e for e in one_by_one.entries if e.epoch < epoch and e.start_offset < start_offset]
        last = one_by_one.entries[-1] if one_by_one.entries else None
        is_known = last is not None and last.epoch == epoch and last.start_offset <= start_offset
        if not is_known:
            one_by_one = EpochCache((*kept, EpochEntry(epoch=epoch, start_offset=start_offset)))
    assert cache.assign_all(then) == one_by_one
