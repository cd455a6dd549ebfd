"""A layered map is a dict with all changes, and shares what did not change."""

from __future__ import annotations

import gc
import sys
import tracemalloc
import weakref
from collections.abc import Callable, Mapping
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog_state.image.layered_map import LAYERED_MIN, LayeredMap, updated

KEYS = st.integers(0, 9)
VALUES = st.one_of(st.none(), st.integers(0, 3))


class Observed:
    """Key or value that can be observed."""


@pytest.mark.parametrize("wrap", [dict, MappingProxyType], ids=["copied", "never copied"])
@given(base=st.dictionaries(KEYS, st.integers(0, 3)), steps=st.lists(st.dictionaries(KEYS, VALUES)))
def test_a_layered_map_is_a_dict_with_all_changes(
    wrap: Callable[[dict[int, int]], Mapping[int, int]],
    base: dict[int, int],
    steps: list[dict[int, int | None]],
) -> None:
    found: Mapping[int, int] = LayeredMap(wrap(base))
    expected = dict(base)
    for changes in steps:
        before, was = found, dict(expected)
        found = updated(found, changes)
        expected = {
            key: value for key, value in {**expected, **changes}.items() if value is not None
        }
        assert dict(before) == was
        assert dict(found) == expected
        assert found == expected
        assert len(found) == len(expected) == len(list(found))
        assert [key in found for key in range(10)] == [key in expected for key in range(10)]
        assert [found.get(key) for key in range(10)] == [expected.get(key) for key in range(10)]
        assert [found.get(key, -1) for key in range(10)] == [
            expected.get(key, -1) for key in range(10)
        ]
    assert dict(LayeredMap(base)) == base


def test_a_layered_map_forgets_removed_entries_that_its_base_does_not_have() -> None:
    """Topics are created and deleted for as long as a process runs."""
    found: Mapping[object, int] = LayeredMap(MappingProxyType({}))
    key = Observed()
    seen = weakref.ref(key)
    found = updated(updated(found, {key: 1}), {key: None})
    del key
    gc.collect()
    assert seen() is None
    assert len(found) == 0


def test_the_memory_of_successive_mappings_is_that_of_their_changes() -> None:
    base = dict.fromkeys(range(2 * LAYERED_MIN), 0)
    tracemalloc.start()
    try:
        found = [updated(base, {0: 1})]
        found.extend(updated(base, {number: None}) for number in range(1, 100))
        for number in range(100):
            found.append(updated(found[-1], {number: number}))
        byte_count, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert byte_count < sys.getsizeof(base)
    assert [len(one) for one in (found[0], found[99], found[-1])] == [
        len(base),
        len(base) - 1,
        len(base),
    ]


def test_a_mapping_releases_a_replaced_value_after_a_bounded_number_of_changes() -> None:
    value = Observed()
    seen = weakref.ref(value)
    found: Mapping[int, object] = {**dict.fromkeys(range(LAYERED_MIN)), 0: value}
    del value
    found = updated(found, {0: 0})
    for number in range(1, int((2 * LAYERED_MIN) ** 0.5) + 1):
        assert seen() is not None
        found = updated(found, {number: 0})
    gc.collect()
    assert seen() is None
