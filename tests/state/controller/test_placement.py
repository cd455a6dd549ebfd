"""New replicas are on different brokers, spread over racks, and led by live ones."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from tests.support.cluster_changes import broker, cluster, pending

from raftlog_state.controller.placement import place_partitions
from raftlog_state.image import BrokerRow


def assigned(
    brokers: list[BrokerRow], partition_count: int, replication_factor: int, seed: int = 1
) -> list[tuple[int, ...]]:
    state = pending(cluster(*brokers, brokers=0), seed=seed)
    return list(place_partitions(state, "topic", partition_count, replication_factor))


BROKERS = st.lists(
    st.tuples(st.sampled_from([None, "a", "b", "c"]), st.booleans()), min_size=1, max_size=9
).filter(lambda found: not all(fenced for _, fenced in found))


@given(BROKERS, st.integers(0, 40), st.data())
def test_replicas_differ_and_leaders_are_alive(
    described: list[tuple[str | None, bool]], partition_count: int, data: st.DataObject
) -> None:
    rows = [
        broker(number, rack=rack, fenced=fenced)
        for number, (rack, fenced) in enumerate(described, start=1)
    ]
    factor = data.draw(st.integers(1, len(rows)))
    found = assigned(rows, partition_count, factor, seed=data.draw(st.integers(0, 99)))
    alive = {row.broker_id for row in rows if not row.fenced}
    assert len(found) == partition_count
    for replicas in found:
        assert len(set(replicas)) == len(replicas) == factor
        assert replicas[0] in alive


@given(st.integers(0, 999))
def test_replicas_are_on_as_many_racks_as_possible(seed: int) -> None:
    rows = [broker(number, rack="abc"[number % 3]) for number in range(1, 10)]
    racks = {row.broker_id: row.rack for row in rows}
    for replicas in assigned(rows, 18, 3, seed):
        assert {racks[one] for one in replicas} == {"a", "b", "c"}


@given(st.integers(0, 999))
def test_replicas_are_spread_evenly_over_brokers(seed: int) -> None:
    found = assigned([broker(number) for number in range(1, 6)], 50, 3, seed)
    leaders = Counter(replicas[0] for replicas in found)
    assert set(leaders.values()) == {10}
    assert set(Counter(one for replicas in found for one in replicas).values()) == {30}


def test_stopping_brokers_and_cordoned_directories_get_no_replica() -> None:
    leaving = broker(2, in_controlled_shutdown=True)
    full = broker(3)
    cordoned = broker(4, cordoned_log_dirs=broker(4).log_dirs)
    found = assigned([broker(1), leaving, full, cordoned], 8, 2)
    assert {one for replicas in found for one in replicas} == {1, 3}
