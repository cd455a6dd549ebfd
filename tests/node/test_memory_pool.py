"""Memory pool of requests, its shares by principal, and the minimum rate of peers."""

from __future__ import annotations

import asyncio
import math

from raftlog.node.pace import Pace
from raftlog.node.request_budget import RequestBudget


def test_a_large_frame_is_admitted_and_waiters_are_called_when_memory_is_free() -> None:
    share, called = RequestBudget(100).share_of("a"), []
    share.take(1000)
    assert not share.has_room
    share.wait(lambda: called.append("first"))
    share.give(40)
    assert called == []
    share.give(950)
    assert called == ["first"]
    assert share.has_room


def test_a_closed_connection_is_not_called() -> None:
    share, called = RequestBudget(1).share_of("a"), []

    def resume() -> None:
        called.append(1)

    share.take(5)
    share.wait(resume)
    share.forget(resume)
    share.give(5)
    assert called == []


def test_a_waiter_continues_when_memory_is_free() -> None:
    async def run() -> None:
        share, order = RequestBudget(20).share_of("a"), []
        share.take(10)

        async def go(name: str) -> None:
            await share.room()
            share.take(10)
            order.append(name)

        tasks = [asyncio.create_task(go(name)) for name in "abc"]
        await asyncio.sleep(0)
        assert not order
        tasks[1].cancel()
        for _ in range(2):
            share.give(10)
            for _ in range(5):
                await asyncio.sleep(0)
        assert order == ["a", "c"]

    asyncio.run(run())


def test_a_principal_may_use_all_free_memory_except_a_reserve() -> None:
    budget = RequestBudget(900)
    shares = [budget.share_of(name) for name in "abc"]
    held = [0, 0, 0]
    for at, share in enumerate(shares):
        while share.has_room:
            share.take(1)
            held[at] += 1
    assert held == [450, 225, 113]
    assert budget.has_room
    assert budget.share_of("a") is shares[0], "one share for all connections of a principal"
    called = []
    shares[2].wait(lambda: called.append("c"))
    shares[1].give(225)
    assert called == ["c"], "memory released by others is available"


def test_without_memory_one_frame_at_a_time_is_received() -> None:
    share, called = RequestBudget(10).share_of("a"), []
    waiting = [lambda name=name: called.append(name) for name in "ab"]
    share.take(10)
    assert share.may_overdraw(waiting[0])
    assert share.may_overdraw(waiting[0])
    assert not share.may_overdraw(waiting[1])
    share.wait(waiting[1])
    share.end_overdraft(waiting[1])
    assert called == []
    share.end_overdraft(waiting[0])
    assert called == ["b"]
    assert share.may_overdraw(waiting[1])
    share.forget(waiting[1])
    assert share.may_overdraw(waiting[0])


def test_a_byte_now_and_then_does_not_extend_the_deadline() -> None:
    pace = Pace(30, bytes_per_second_min=1_000)
    assert not pace.is_stalled(10_000)
    pace.await_peer(0)
    for now_s in range(0, 31, 10):
        pace.move(1, now_s)
        assert not pace.is_stalled(now_s)
    assert pace.is_stalled(31)


def test_a_peer_with_the_minimum_rate_has_no_deadline() -> None:
    pace = Pace(30, bytes_per_second_min=1_000)
    pace.await_peer(0)
    for now_s in range(1, 1_000):
        pace.await_peer(now_s)
        pace.move(1_000, now_s)
        assert not pace.is_stalled(now_s)
    pace.move(10**9, 1_000)
    assert not pace.is_stalled(1_030)
    assert pace.is_stalled(1_031), "a burst extends the time only up to the timeout"


def test_time_without_pending_bytes_is_not_counted() -> None:
    pace = Pace(30, bytes_per_second_min=1_000)
    pace.await_peer(0)
    pace.stop()
    assert not pace.is_stalled(100)
    pace.await_peer(100)
    assert not pace.is_stalled(130)
    assert pace.is_stalled(131)


def test_the_remaining_time_depends_on_the_bytes_since_the_last_check() -> None:
    pace = Pace(30, bytes_per_second_min=1_000)
    assert pace.look(100, 0) is None
    pace.await_peer(0)
    pace.move(50, 1)
    assert pace.look(100, 1) is None, "it is checked for the first time"
    pace.move(20, 2)
    assert pace.look(100, 3) == 10
    assert pace.look(100, 4) == math.inf
    pace.stop()
    assert pace.look(100, 5) is None
