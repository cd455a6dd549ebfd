"""Timeline collections, case by case; Kafka's names of its cases where it has them."""

from __future__ import annotations

import gc
import weakref

import pytest

from raftlog_state.errors import SnapshotEpochError
from raftlog_state.timeline import (
    Snapshot,
    SnapshotRegistry,
    TimelineDict,
    TimelineSet,
    TimelineValue,
)


@pytest.fixture
def registry() -> SnapshotRegistry:
    return SnapshotRegistry()


@pytest.fixture
def names(registry: SnapshotRegistry) -> TimelineDict[str, int]:
    return TimelineDict(registry)


def delta_sizes(registry: SnapshotRegistry) -> list[int]:
    """Return how many elements each snapshot stores."""
    snapshots = [registry.snapshot(epoch) for epoch in registry.epochs]
    return [sum(len(delta.values) for delta in one.deltas.values()) for one in snapshots]


def test_a_snapshot_stores_what_is_written_after_it_once(
    registry: SnapshotRegistry, names: TimelineDict[str, int]
) -> None:
    names.update({str(number): number for number in range(1_000)})
    registry.get_or_create_snapshot(1)
    assert delta_sizes(registry) == [0]
    for value in range(5):
        names["1"] = value
    registry.get_or_create_snapshot(2)
    names["1"] = names["new"] = 7
    assert delta_sizes(registry) == [1, 2]


def test_a_deleted_snapshot_leaves_to_the_one_before_what_that_lacks(
    registry: SnapshotRegistry, names: TimelineDict[str, int]
) -> None:
    names.update(a=1, b=1)
    for epoch, key in ((1, "a"), (2, "a"), (3, "b")):
        registry.get_or_create_snapshot(epoch)
        names[key] = 10 * epoch
    registry.delete_snapshot(2)
    assert delta_sizes(registry) == [1, 1]
    registry.delete_snapshot(3)
    assert delta_sizes(registry) == [2]
    assert names.at(1) == {"a": 1, "b": 1}
    names["c"] = 5
    assert names.at(1) == {"a": 1, "b": 1}, "later writes are kept for the newest snapshot"


def test_deleting_the_oldest_snapshots_frees_what_they_store(
    registry: SnapshotRegistry, names: TimelineDict[str, int]
) -> None:
    for epoch in range(10):
        registry.get_or_create_snapshot(epoch)
        names[str(epoch)] = epoch
    registry.delete_snapshots_up_to(9)
    assert registry.epochs == (9,)
    assert delta_sizes(registry) == [1]
    assert names.at(9) == {str(epoch): epoch for epoch in range(9)}


def test_a_revert_restores_removed_and_replaced_elements_and_drops_new_ones(
    registry: SnapshotRegistry, names: TimelineDict[str, int]
) -> None:
    names.update(removed=1, replaced=2, same=3)
    registry.get_or_create_snapshot(1)
    del names["removed"]
    names.update(replaced=20, new=4)
    registry.get_or_create_snapshot(2)
    names.update(removed=10, replaced=200)
    registry.revert_to_snapshot(1)
    assert names == {"removed": 1, "replaced": 2, "same": 3}
    assert registry.epochs == (1,)
    assert delta_sizes(registry) == [0]
    names["replaced"] = 5
    assert names.at(1)["replaced"] == 2, "the snapshot of a revert is still readable"


def test_after_a_revert_to_the_newest_snapshot_writes_are_kept_for_it_again(
    registry: SnapshotRegistry, names: TimelineDict[str, int]
) -> None:
    names["a"] = 1
    registry.get_or_create_snapshot(1)
    for value in (2, 3):
        names["a"] = value
        registry.revert_to_snapshot(1)
    names["a"] = 4
    assert names.at(1) == {"a": 1}


def test_revert_to_snapshot_leaves_collections_that_did_not_change(
    registry: SnapshotRegistry, names: TimelineDict[str, int]
) -> None:
    other = TimelineValue(registry, "first")
    registry.get_or_create_snapshot(1)
    names["a"] = 1
    registry.revert_to_snapshot(1)
    assert (other.value, dict(names)) == ("first", {})


def test_a_collection_created_after_a_snapshot_is_empty_there(registry: SnapshotRegistry) -> None:
    registry.get_or_create_snapshot(1)
    later: TimelineSet[int] = TimelineSet(registry)
    value = TimelineValue(registry, "first")
    later.add(3)
    value.value = "second"
    assert (set(later.at(1)), value.at(1)) == (set(), "first")
    registry.revert_to_snapshot(1)
    assert (set(later), value.value) == (set(), "first")


def test_views_of_a_deleted_or_reverted_snapshot_raise(
    registry: SnapshotRegistry, names: TimelineDict[str, int]
) -> None:
    names["a"] = 1
    for epoch in (1, 2):
        registry.get_or_create_snapshot(epoch)
    deleted, reverted = names.at(1), names.at(2)
    registry.delete_snapshots_up_to(2)
    registry.get_or_create_snapshot(3)
    registry.revert_to_snapshot(2)
    assert reverted["a"] == 1
    for read in (lambda: deleted["a"], lambda: len(deleted), lambda: list(deleted)):
        with pytest.raises(SnapshotEpochError, match="epoch 1 was deleted"):
            read()


def test_get_or_create_snapshot_returns_an_existing_one_unchanged(
    registry: SnapshotRegistry, names: TimelineDict[str, int]
) -> None:
    first = registry.get_or_create_snapshot(1)
    names["a"] = 1
    registry.get_or_create_snapshot(2)
    assert registry.get_or_create_snapshot(1) is first
    assert dict(names.at(1)) == {}


def test_iteration_yields_what_is_there_when_it_is_reached(names: TimelineDict[str, int]) -> None:
    names.update(a=1, b=2, c=3)
    seen = []
    for key in names:
        seen.append(key)
        names.pop("b", None)
        names[f"new {key}"] = 0
    assert seen == ["a", "c"]
    assert sorted(names) == ["a", "c", "new a", "new c"]


def test_reset_deletes_snapshots_and_elements(
    registry: SnapshotRegistry, names: TimelineDict[str, int]
) -> None:
    value = TimelineValue(registry, 5)
    value.value = 6
    names["a"] = 1
    view = names.at(registry.get_or_create_snapshot(7).epoch)
    registry.reset()
    assert (registry.epochs, dict(names), value.value) == ((), {}, 5)
    with pytest.raises(SnapshotEpochError):
        len(view)
    registry.get_or_create_snapshot(1)


def test_a_registry_does_not_keep_dropped_collections(registry: SnapshotRegistry) -> None:
    dropped: TimelineDict[int, int] = TimelineDict(registry)
    dropped[1] = 1
    del dropped
    gc.collect()
    registry.reset()
    assert len(registry._tables) == 0


def test_deleted_snapshots_and_what_they_store_are_not_kept(
    registry: SnapshotRegistry, names: TimelineDict[str, int]
) -> None:
    class Stored:
        """Value that a weak reference can refer to."""

    rare: TimelineDict[str, object] = TimelineDict(registry)
    rare["a"] = value = Stored()
    stored = weakref.ref(value)
    del value
    first = 7_000_000
    registry.get_or_create_snapshot(first)
    view = rare.at(first)
    rare["a"] = "after"
    for epoch in range(first + 1, first + 10):
        names["b"] = epoch
        registry.get_or_create_snapshot(epoch)
        registry.delete_snapshots_up_to(epoch)
    registry.get_or_create_snapshot(first + 10)
    registry.revert_to_snapshot(first + 9)
    gc.collect()
    kept = [one.epoch for one in gc.get_objects() if isinstance(one, Snapshot)]
    assert [epoch for epoch in sorted(kept) if epoch >= first] == [first, first + 9]
    assert stored() is None
    with pytest.raises(SnapshotEpochError):
        len(view)


def test_set_operators_return_plain_sets(registry: SnapshotRegistry) -> None:
    members: TimelineSet[int] = TimelineSet(registry)
    members |= {1, 2, 3}
    registry.get_or_create_snapshot(1)
    members -= {3}
    assert members & {2, 3} == {2}
    assert members.at(1) - {1} == {2, 3}
    assert members.at(1) > set(members)


def test_empty_collections_have_nothing_to_take(
    registry: SnapshotRegistry, names: TimelineDict[str, int]
) -> None:
    with pytest.raises(KeyError):
        names.popitem()
    with pytest.raises(KeyError):
        TimelineSet(registry).pop()
    with pytest.raises(KeyError):
        del names["absent"]
