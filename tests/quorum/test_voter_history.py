"""VoterSetHistory against a model that searches a list from its start."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.quorum.voters import NO_OFFSET, Voter, VoterSet, VoterSetHistory
from raftlog.types import ReplicaKey


def voters(*node_ids: int) -> VoterSet:
    return VoterSet.of(Voter(key=ReplicaKey(node_id)) for node_id in node_ids)


@dataclass
class Model:
    """Entries (offset, voter set or version) in order, the first at offset -1."""

    sets: list[tuple[int, VoterSet]] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)

    def at(self, end_offset: int) -> tuple[VoterSet, int]:
        below = [found for offset, found in self.sets if offset < max(end_offset, 0)]
        version = [found for offset, found in self.versions if offset < max(end_offset, 0)]
        return below[-1], version[-1]


sets = st.lists(st.integers(1, 9), min_size=1, max_size=5, unique=True).map(
    lambda found: voters(*found)
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("voters"), sets),
        st.tuples(st.just("version"), st.integers(0, 1)),
        st.tuples(st.just("records"), st.integers(1, 4)),
        st.tuples(st.just("truncate"), st.integers(0, 4)),
        st.tuples(st.just("restart"), st.tuples(st.none() | sets, st.none() | st.integers(0, 1))),
    ),
    max_size=25,
)


@settings(max_examples=40)
@given(sets, steps)
def test_the_history_has_the_voter_sets_of_the_log(
    first: VoterSet, script: list[tuple[str, object]]
) -> None:
    history = VoterSetHistory(first)
    model = Model([(NO_OFFSET, first)], [(NO_OFFSET, 0)])
    start = end = 0
    for what, value in script:
        if what == "voters":
            assert isinstance(value, VoterSet)
            history.add_voters(end, value)
            model.sets.append((end, value))
            end += 1
        elif what == "version":
            assert isinstance(value, int)
            history.add_kraft_version(end, value)
            model.versions.append((end, value))
            end += 1
        elif what == "records":
            assert isinstance(value, int)
            end += value
        elif what == "truncate":
            assert isinstance(value, int)
            end = max(end - value, start)
            history.truncate_new_entries(end)
            model.sets = [one for one in model.sets if one[0] < end] or model.sets[:1]
            model.versions = [one for one in model.versions if one[0] < end] or model.versions[:1]
        else:
            assert isinstance(value, tuple)
            named, version = value
            end += 3
            start = end
            history.reset(end - 1, named, version)
            model.sets = model.sets if named is None else [(end - 1, named)]
            model.versions = model.versions if version is None else [(end - 1, version)]
        assert history.latest == model.sets[-1][1]
        assert history.latest_offset == model.sets[-1][0]
        assert history.kraft_version == model.versions[-1][1]
        for offset in range(start, end + 1):
            assert history.at(offset) == model.at(offset)


def test_a_voter_set_applies_from_its_offset_until_it_is_truncated() -> None:
    history = VoterSetHistory(voters(1, 2, 3))
    history.add_voters(7, voters(1, 2, 3, 4))
    assert history.latest == voters(1, 2, 3, 4)
    assert history.at(7) == (voters(1, 2, 3), 0)
    assert history.at(8) == (voters(1, 2, 3, 4), 0)
    history.truncate_new_entries(8)
    assert history.latest == voters(1, 2, 3, 4)
    history.truncate_new_entries(7)
    assert (history.latest, history.latest_offset) == (voters(1, 2, 3), NO_OFFSET)


def test_voter_sets_are_values_and_majorities_are_more_than_half() -> None:
    found = voters(3, 1, 2)
    assert found.node_ids == (1, 2, 3)
    assert found.with_voter(Voter(key=ReplicaKey(4))).node_ids == (1, 2, 3, 4)
    assert found.without(2).node_ids == (1, 3)
    assert found.node_ids == (1, 2, 3)
    assert [voters(*range(1, n + 1)).majority_count for n in range(1, 6)] == [1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (ReplicaKey(1, "a"), True),
        (ReplicaKey(1, "b"), False),
        (ReplicaKey(1), False),
        (ReplicaKey(2, "b"), True),
        (ReplicaKey(3, "a"), False),
    ],
)
def test_a_voter_is_identified_by_node_and_directory(key: ReplicaKey, expected: bool) -> None:
    found = VoterSet.of([Voter(key=ReplicaKey(1, "a")), Voter(key=ReplicaKey(2))])
    assert found.has(key) is expected
