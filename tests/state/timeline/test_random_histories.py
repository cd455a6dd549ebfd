"""Random histories of timeline collections, against a model that copies everything."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from raftlog_state.errors import SnapshotEpochError
from raftlog_state.timeline import SnapshotRegistry, TimelineDict, TimelineSet, TimelineValue

Contents = tuple[dict[int, int], set[int], int]

KEYS = 12
STEPS = 400


class Histories:
    """Collections of one registry, and copies of their contents at each epoch."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.registry = SnapshotRegistry()
        self.dict: TimelineDict[int, int] = TimelineDict(self.registry)
        self.set: TimelineSet[int] = TimelineSet(self.registry)
        self.value = TimelineValue(self.registry, -1)
        self.now: Contents = ({}, set(), -1)
        self.copies: dict[int, Contents] = {}
        self.next_epoch = 0
        self.steps: tuple[Callable[[], None], ...] = (
            *(self.put,) * 6,
            *(self.remove,) * 3,
            *(self.flip,) * 4,
            *(self.assign,) * 2,
            *(self.snapshot,) * 4,
            self.load,
            self.clear,
            self.revert,
            self.revert,
            self.delete,
            self.delete_up_to,
            self.reset,
        )

    def run(self) -> None:
        """Take random steps, and compare all epochs after each."""
        for _ in range(STEPS):
            self.chance.choice(self.steps)()
            self.check()

    def put(self) -> None:
        key, value = self.chance.randrange(KEYS), self.chance.randrange(100)
        self.dict[key] = value
        self.now[0][key] = value

    def remove(self) -> None:
        key = self.chance.randrange(KEYS)
        assert self.dict.pop(key, None) == self.now[0].pop(key, None)

    def flip(self) -> None:
        element = self.chance.randrange(KEYS)
        for one in (self.set, self.now[1]):
            one.discard(element) if element in one else one.add(element)

    def assign(self) -> None:
        value = self.chance.randrange(100)
        self.value.value = value
        self.now = (self.now[0], self.now[1], value)

    def load(self) -> None:
        elements = {self.chance.randrange(KEYS): self.chance.randrange(100) for _ in range(3)}
        self.dict.load(elements)
        self.now[0].update(elements)
        self.set.load(list(elements))
        self.now[1].update(elements)

    def clear(self) -> None:
        self.dict.clear()
        self.set.clear()
        self.now = ({}, set(), self.now[2])

    def snapshot(self) -> None:
        epoch = self.next_epoch
        self.next_epoch += self.chance.randint(1, 3)
        self.registry.get_or_create_snapshot(epoch)
        self.copies[epoch] = _copy(self.now)

    def revert(self) -> None:
        epoch = self.any_epoch()
        if epoch is not None:
            self.registry.revert_to_snapshot(epoch)
            self.now = _copy(self.copies[epoch])
            self.copies = {one: copy for one, copy in self.copies.items() if one <= epoch}

    def delete(self) -> None:
        epoch = self.any_epoch()
        if epoch is not None:
            self.registry.delete_snapshot(epoch)
            del self.copies[epoch]

    def delete_up_to(self) -> None:
        epoch = self.chance.randrange(self.next_epoch + 1)
        self.registry.delete_snapshots_up_to(epoch)
        self.copies = {one: copy for one, copy in self.copies.items() if one >= epoch}

    def reset(self) -> None:
        if self.chance.random() < 0.1:
            self.registry.reset()
            self.now, self.copies = ({}, set(), -1), {}

    def any_epoch(self) -> int | None:
        return self.chance.choice(list(self.copies)) if self.copies else None

    def check(self) -> None:
        assert self.registry.epochs == tuple(self.copies)
        assert (dict(self.dict), set(self.set), self.value.value) == self.now
        assert (len(self.dict), len(self.set)) == (len(self.now[0]), len(self.now[1]))
        for epoch, (entries, elements, value) in self.copies.items():
            view, members = self.dict.at(epoch), self.set.at(epoch)
            assert (view, members, self.value.at(epoch)) == (entries, elements, value)
            assert (len(view), len(members)) == (len(entries), len(elements))
            assert [key in view for key in range(KEYS)] == [key in entries for key in range(KEYS)]
            assert sorted(members) == sorted(elements), "each element once"


def _copy(contents: Contents) -> Contents:
    return dict(contents[0]), set(contents[1]), contents[2]


@pytest.mark.parametrize("seed", range(20))
def test_every_epoch_has_the_contents_of_a_copy(seed: int) -> None:
    Histories(seed).run()


@pytest.mark.parametrize("seed", range(20))
def test_a_view_yields_its_contents_while_the_collection_changes(seed: int) -> None:
    histories = Histories(seed)
    histories.registry.get_or_create_snapshot(0)
    for _ in range(10):
        histories.put()
        histories.flip()
    histories.next_epoch = 1
    histories.snapshot()
    writes = (histories.put, histories.remove, histories.flip, histories.clear, histories.snapshot)
    for epoch in (1, 0):
        entries, elements = {}, []
        view = histories.dict.at(epoch)
        for key in view:
            entries[key] = view[key]
            histories.chance.choice(writes)()
        for element in histories.set.at(epoch):
            elements.append(element)
            histories.chance.choice(writes)()
        known = histories.copies.get(epoch, ({}, set(), -1))
        assert (entries, sorted(elements)) == (known[0], sorted(known[1]))


def test_an_unknown_epoch_is_an_error_that_names_the_known_ones() -> None:
    registry = SnapshotRegistry()
    collection: TimelineDict[int, int] = TimelineDict(registry)
    with pytest.raises(SnapshotEpochError, match="no snapshots"):
        collection.at(5)
    for epoch in (5, 7):
        registry.get_or_create_snapshot(epoch)
    for call in (
        collection.at,
        registry.snapshot,
        registry.revert_to_snapshot,
        registry.delete_snapshot,
    ):
        with pytest.raises(SnapshotEpochError, match=r"epoch 6 does not exist.*at 5, 7"):
            call(6)
    with pytest.raises(SnapshotEpochError, match="epoch 6 cannot be created before a later one"):
        registry.get_or_create_snapshot(6)
    assert registry.epochs == (5, 7)
