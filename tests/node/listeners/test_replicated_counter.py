"""The replicated counter: every node has the same count, whichever leads and from any start."""

from __future__ import annotations

import pytest

from raftlog.errors import NotLeaderError, StateMachineError
from tests.support.one_replica import OneReplica
from tests.support.replicated_counter import ReplicatedCounter, encode_increment
from tests.support.shared_log import SharedLog


def counters(shared: SharedLog, *node_ids: int) -> list[ReplicatedCounter]:
    found = []
    for node_id in node_ids:
        counter = ReplicatedCounter(shared.node(node_id))
        shared.node(node_id).register(counter)
        found.append(counter)
    return found


def test_only_the_leader_increments_and_all_count() -> None:
    shared = SharedLog()
    one, two, three = counters(shared, 1, 2, 3)
    shared.elect(2)
    with pytest.raises(NotLeaderError):
        two.increment()
    shared.deliver()
    assert [two.increment(), two.increment()] == [1, 2]
    with pytest.raises(NotLeaderError):
        one.increment()
    assert two.value == 0, "appended is not committed"
    shared.deliver()
    assert (one.value, two.value, three.value) == (2, 2, 2)
    shared.elect(1)
    shared.deliver()
    with pytest.raises(NotLeaderError):
        two.increment()
    assert one.increment() == 3
    shared.deliver()
    assert (one.value, two.value, three.value) == (3, 3, 3)


def test_increments_undone_by_another_leader_are_counted_again_from_the_committed_end() -> None:
    shared = SharedLog()
    one, two = counters(shared, 1, 2)
    shared.elect(1)
    shared.deliver()
    one.increment()
    shared.deliver()
    shared.committed_max = shared.end_offset
    assert one.increment() == 2
    shared.elect(2)
    shared.committed_max = None
    shared.deliver()
    assert (one.value, two.value) == (1, 1)
    assert two.increment() == 2
    shared.deliver()
    assert (one.value, two.value) == (2, 2)


def test_an_increment_waits_until_all_earlier_records_are_read() -> None:
    shared = SharedLog()
    (one,) = counters(shared, 1)
    shared.elect(1)
    shared.deliver()
    shared.node(1).append(shared.epoch, [b"somebody else's"])
    assert one.increment() is None
    shared.deliver()
    assert one.increment() == 1


def test_a_counter_continues_from_a_snapshot() -> None:
    shared = SharedLog()
    (one,) = counters(shared, 1)
    shared.elect(1)
    shared.deliver()
    for _ in range(5):
        one.increment()
    shared.deliver()
    assert one.snapshot()
    assert not one.snapshot(), "there is one already"
    shared.delete_before(shared.snapshots[-1])
    (two,) = counters(shared, 2)
    one.increment()
    shared.deliver()
    assert (one.value, two.value) == (6, 6)


def test_a_counter_on_a_replica_survives_restarts_and_snapshots() -> None:
    host = OneReplica()
    for life in range(1, 4):
        counter = ReplicatedCounter(host.log)
        host.register(counter)
        host.elect()
        assert counter.value == 3 * (life - 1)
        assert [counter.increment() for _ in range(3)][-1] == 3 * life
        host.poll()
        assert counter.value == 3 * life
        assert counter.snapshot()
        host.replica.log.delete_before(host.replica.log.snapshots[-1])
        host = host.restarted()


def test_a_full_disk_delays_an_increment() -> None:
    host = OneReplica()
    counter = ReplicatedCounter(host.log)
    host.register(counter)
    host.elect()
    host.disk.leave_room(10)
    assert counter.increment() is None
    host.disk.full_at(None)
    assert counter.increment() == 1


def test_a_lost_increment_is_detected_immediately() -> None:
    shared = SharedLog()
    counters(shared, 1)
    shared.elect(1)
    shared.deliver()
    shared.node(1).append(shared.epoch, [encode_increment(2)])
    with pytest.raises(StateMachineError, match="has number 2 and follows number 0"):
        shared.deliver()


def test_a_stopped_node_does_not_increment() -> None:
    shared = SharedLog()
    (one,) = counters(shared, 1)
    shared.elect(1)
    shared.deliver()
    shared.node(1).shut_down()
    assert one.is_stopping
    with pytest.raises(NotLeaderError):
        one.increment()
