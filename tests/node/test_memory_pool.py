"""Memory pool of requests, its shares by principal, and the minimum rate of peers."""

from __future__ import annotations

import math

from raftlog.node.connection import TransferDeadline
from raftlog.node.memory_pool import MemoryPool


def test_a_large_frame_is_admitted_and_waiters_are_called_when_memory_is_free() -> None:
    share, called = MemoryPool(100).share_of("a"), []
    share.allocate(1000)
    assert not share.has_room
    share.wait(lambda: called.append("first"))
    share.release(40)
    assert called == []
    share.release(950)
    assert called == ["first"]
    assert share.has_room


def test_a_closed_connection_is_not_called() -> None:
    share, called = MemoryPool(1).share_of("a"), []

    def resume() -> None:
        called.append(1)

    share.allocate(5)
    share.wait(resume)
    share.cancel_wait(resume)
    share.release(5)
    assert called == []


def test_a_principal_may_use_all_free_memory_except_a_reserve() -> None:
    pool = MemoryPool(900)
    shares = [pool.share_of(name) for name in "abc"]
    held = [0, 0, 0]
    for at, share in enumerate(shares):
        while share.has_room:
            share.allocate(1)
            held[at] += 1
    assert held == [450, 225, 113]
    assert pool.free_byte_count > 0
    assert pool.share_of("a") is shares[0], "one share for all connections of a principal"
    called = []
    shares[2].wait(lambda: called.append("c"))
    shares[1].release(225)
    assert called == ["c"], "memory released by others is available"


def test_without_memory_one_frame_at_a_time_is_received() -> None:
    share, called = MemoryPool(10).share_of("a"), []
    waiting = [lambda name=name: called.append(name) for name in "ab"]
    share.allocate(10)
    assert share.may_overdraw(waiting[0])
    assert share.may_overdraw(waiting[0])
    assert not share.may_overdraw(waiting[1])
    share.wait(waiting[1])
    share.end_overdraft(waiting[1])
    assert called == []
    share.end_overdraft(waiting[0])
    assert called == ["b"]
    assert share.may_overdraw(waiting[1])
    share.cancel_wait(waiting[1])
    assert share.may_overdraw(waiting[0])


def test_a_byte_now_and_then_does_not_extend_the_deadline() -> None:
    deadline = TransferDeadline(30, bytes_per_second_min=1_000)
    assert not deadline.is_stalled(10_000)
    deadline.start(0)
    for now_s in range(0, 31, 10):
        deadline.extend(1, now_s)
        assert not deadline.is_stalled(now_s)
    assert deadline.is_stalled(31)


def test_a_peer_with_the_minimum_rate_has_no_deadline() -> None:
    deadline = TransferDeadline(30, bytes_per_second_min=1_000)
    deadline.start(0)
    for now_s in range(1, 1_000):
        deadline.start(now_s)
        deadline.extend(1_000, now_s)
        assert not deadline.is_stalled(now_s)
    deadline.extend(10**9, 1_000)
    assert not deadline.is_stalled(1_030)
    assert deadline.is_stalled(1_031), "a burst extends the time only up to the timeout"


def test_time_without_pending_bytes_is_not_counted() -> None:
    deadline = TransferDeadline(30, bytes_per_second_min=1_000)
    deadline.start(0)
    deadline.stop()
    assert not deadline.is_stalled(100)
    deadline.start(100)
    assert not deadline.is_stalled(130)
    assert deadline.is_stalled(131)


def test_the_remaining_time_depends_on_the_bytes_since_the_last_check() -> None:
    deadline = TransferDeadline(30, bytes_per_second_min=1_000)
    assert deadline.measure_remaining_s(100, 0) is None
    deadline.start(0)
    deadline.extend(50, 1)
    assert deadline.measure_remaining_s(100, 1) is None, "it is checked for the first time"
    deadline.extend(20, 2)
    assert deadline.measure_remaining_s(100, 3) == 10
    assert deadline.measure_remaining_s(100, 4) == math.inf
    deadline.stop()
    assert deadline.measure_remaining_s(100, 5) is None
