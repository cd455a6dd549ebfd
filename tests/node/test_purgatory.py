"""Delayed requests: when each is completed, what is checked, and what is kept."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import closing
from typing import Final

import pytest

from raftlog.append import AppendRequest, Done, Failed, RequestResult
from raftlog.errors import AppendUnknownError
from raftlog.limits import WAITING_FETCHES_MAX
from raftlog.node.purgatory import (
    EXPIRED_PER_TURN_MAX,
    FETCHES_PER_TURN_MAX,
    AppendPurgatory,
    BucketQueue,
    Deadlines,
    FetchPurgatory,
)
from raftlog.quorum.events import TimePassed
from tests.support.one_replica import OneReplica

Timer = tuple[float, asyncio.TimerHandle, Callable[[], None]]
"""Time in milliseconds, handle, and what the timer calls."""


class Timers:
    """Timers on a time that a test advances."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.now_ms = 7
        self.set_count = 0
        self._loop = loop
        self._timers: list[Timer] = []

    def call_later(self, delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        self.set_count += 1
        timer = self._loop.call_later(1e6, call)
        self._timers.append((self.now_ms + 1000 * delay_s, timer, call))
        return timer

    @property
    def pending_count(self) -> int:
        return sum(1 for _, timer, _ in self._timers if not timer.cancelled())

    def pass_first(self) -> None:
        """Advance the time to the first timer, and run it."""
        if self._timers:
            self._run(min(self._timers, key=lambda one: one[0]))

    def pass_until(self, time_ms: int) -> None:
        """Advance the time, and run the timers on the way."""
        while due := [one for one in self._timers if one[0] <= time_ms]:
            self._run(min(due, key=lambda one: one[0]))
        self.now_ms = time_ms

    def _run(self, first: Timer) -> None:
        self._timers.remove(first)
        due_ms, timer, call = first
        self.now_ms = max(self.now_ms, round(due_ms))
        if not timer.cancelled():
            call()


@pytest.mark.parametrize("seed", range(20))
def test_items_are_popped_by_number_and_then_in_their_order(seed: int) -> None:
    rng = random.Random(seed)
    queue: BucketQueue[int] = BucketQueue()
    kept: dict[int, int] = {}
    for item in range(2_000):
        match rng.randrange(4):
            case 0 | 1:
                kept[item] = rng.randrange(rng.choice((5, 1_000)))
                queue.add(kept[item], item)
            case 2 if kept:
                removed = rng.choice(list(kept))
                queue.remove(kept.pop(removed), removed)
            case _:
                bound, count_max = rng.randrange(5), rng.choice((3, 20, 2_000))
                popped = queue.pop_below(bound, count_max)
                expected = sorted(one for one, number in kept.items() if number < bound)
                assert popped == sorted(expected, key=kept.__getitem__)[:count_max]
                for one in popped:
                    del kept[one]
        assert queue.lowest() == min(kept.values(), default=None)


def test_a_queue_keeps_few_numbers_of_removed_items() -> None:
    queue: BucketQueue[str] = BucketQueue()
    queue.add(-1, "oldest")
    for number in range(10_000):
        queue.add(number, "item")
        queue.remove(number, "item")
    assert len(queue._numbers) < 100
    assert queue.pop_below(10_000, 2) == ["oldest"]


def test_deadlines_share_one_timer() -> None:
    with closing(asyncio.new_event_loop()) as loop:
        timers, expired = Timers(loop), list[str]()
        deadlines = Deadlines[str](lambda: timers.now_ms, timers.call_later, expired.append)
        assert deadlines.add("a", 500) == 507
        for at in range(100):
            deadlines.remove(deadlines.add(f"done {at}", 600 + at), f"done {at}")
        deadlines.add("b", 700)
        deadlines.add("c", 500)
        assert timers.set_count == 1
        deadlines.add("first", 100)
        assert timers.pending_count == 1, "the one for the earliest deadline"
        timers.pass_until(506)
        assert expired == ["first"]
        timers.pass_until(507)
        assert expired == ["first", "a", "c"]
        timers.pass_until(2_000)
        assert expired == ["first", "a", "c", "b"]
        assert timers.pending_count == 0


def test_many_items_expire_in_several_iterations() -> None:
    with closing(asyncio.new_event_loop()) as loop:
        timers, expired = Timers(loop), list[int]()
        deadlines = Deadlines[int](lambda: timers.now_ms, timers.call_later, expired.append)
        count = 2 * EXPIRED_PER_TURN_MAX + 1
        for item in range(count):
            deadlines.add(item, 500)
        for turn in (1, 2, 3, 4):
            timers.pass_first()
            assert expired == list(range(min(turn * EXPIRED_PER_TURN_MAX, count)))
        assert timers.set_count == 3


def test_an_item_whose_end_raises_delays_no_other() -> None:
    def expire(item: int) -> None:
        expired.append(item)
        if item == 1:
            raise ValueError("a bug")

    with closing(asyncio.new_event_loop()) as loop:
        timers, expired = Timers(loop), list[int]()
        deadlines = Deadlines[int](lambda: timers.now_ms, timers.call_later, expire)
        for item in range(4):
            deadlines.add(item, 500)
        with pytest.raises(ValueError, match="a bug"):
            timers.pass_first()
        timers.pass_first()
        assert expired == [0, 1, 2, 3]


# --- appends --------------------------------------------------------------------------------------


def test_an_append_is_answered_once_with_its_result_or_at_its_deadline() -> None:
    found: list[tuple[str, RequestResult]] = []

    def add(name: str, timeout_ms: int | None) -> AppendRequest:
        request = AppendRequest(records=(b"x",), deadline_ms=1e12)
        purgatory.add(request, lambda result: found.append((name, result)), timeout_ms)
        return request

    with closing(asyncio.new_event_loop()) as loop:
        timers = Timers(loop)
        purgatory = AppendPurgatory("/data/orders-0", lambda: timers.now_ms, timers.call_later)
        a, b, c = add("a", 700), add("b", 700), add("c", 900)
        patient = add("patient", None)
        add("without time", 0)
        assert isinstance(found.pop()[1], Failed)
        purgatory.complete(a, Done(1))
        purgatory.complete(c, Done(2))
        timers.pass_until(706)
        assert [name for name, _ in found] == ["a", "c"]
        timers.pass_until(707)
        purgatory.complete(b, Done(3))
        purgatory.complete(a, Done(4))
        purgatory.complete(patient, Done(5))
        add("last", None)
        purgatory.close(lambda: Done(6))
        assert timers.pending_count == 0
    (late,) = (result for name, result in found if name == "b")
    assert isinstance(late, Failed)
    assert isinstance(late.error, AppendUnknownError)
    assert [one for one in found if one[0] != "b"] == [
        ("a", Done(1)),
        ("c", Done(2)),
        ("patient", Done(5)),
        ("last", Done(6)),
    ]


# --- fetches --------------------------------------------------------------------------------------


class Fetch:
    """Fetch that is due once the high watermark is above ``due_above``."""

    def __init__(self, node: Waiting, due_above: int, name: str = "client") -> None:
        self.principal_name: Final = name
        self.awaited_offset = node.high_watermark
        self.looks: list[int] = []
        self.completed_count = 0
        self.has_bug = False
        self.on_complete: Callable[[], None] = lambda: None
        self._node = node
        self._due_above = due_above

    def is_due(self) -> bool:
        if self.has_bug:
            self._node.purgatory.remove(self)
            return False
        self.looks.append(self._node.high_watermark)
        self.awaited_offset = self._node.high_watermark
        return self._node.high_watermark > self._due_above or not self._node.is_leader

    def complete(self) -> None:
        self.completed_count += 1
        self.on_complete()


class Waiting:
    """Leader of one, and its delayed fetches. A later iteration runs in ``turn``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.one = OneReplica()
        self.one.elect()
        self.timers = Timers(loop)
        self.turns: list[Callable[[], None]] = []
        self.purgatory = FetchPurgatory(
            self.one.replica, lambda: self.timers.now_ms, self.timers.call_later, self.turns.append
        )

    @property
    def high_watermark(self) -> int:
        return self.one.replica.core.high_watermark or 0

    @property
    def is_leader(self) -> bool:
        return self.one.replica.core.is_leader

    def delay(self, due_above: int, name: str = "client", timeout_ms: int = 500) -> Fetch:
        fetch = Fetch(self, due_above, name)
        self.purgatory.add(fetch, timeout_ms)
        return fetch

    def append(self) -> None:
        self.one.log.append(self.one.replica.core.epoch, [b"x"])
        self.one.poll()

    def turn(self) -> None:
        """Poll as after a step, and run the next iteration of the event loop."""
        self.purgatory.poll()
        turns, self.turns[:] = self.turns[:], []
        for call in turns:
            call()


def with_node(check: Callable[[Waiting], None]) -> None:
    with closing(asyncio.new_event_loop()) as loop:
        check(Waiting(loop))


def test_a_delayed_fetch_is_checked_when_records_arrive() -> None:
    def check(node: Waiting) -> None:
        end = node.high_watermark
        fetch = node.delay(end + 1)
        for _ in range(100):
            node.one.raft_node.step(TimePassed())
            node.purgatory.poll()
        assert (fetch.looks, node.turns) == ([], [])
        node.append()
        node.turn()
        assert (fetch.looks, fetch.completed_count) == ([end + 1], 0)
        for _ in range(100):
            node.turn()
        assert fetch.looks == [end + 1]
        node.append()
        node.purgatory.poll()
        assert fetch.completed_count == 0, "not within the step"
        node.turn()
        assert (fetch.looks, fetch.completed_count) == ([end + 1, end + 2], 1)
        assert node.purgatory.waiting_count == 0

    with_node(check)


def test_all_delayed_fetches_are_checked_in_one_iteration() -> None:
    def check(node: Waiting) -> None:
        fetches = [node.delay(node.high_watermark) for _ in range(50)]
        node.append()
        for _ in range(3):
            node.purgatory.poll()
        assert len(node.turns) == 1
        node.turn()
        assert [one.completed_count for one in fetches] == [1] * 50

    with_node(check)


def test_many_delayed_fetches_are_checked_in_several_iterations() -> None:
    def check(node: Waiting) -> None:
        count = 2 * FETCHES_PER_TURN_MAX + 1
        fetches = [node.delay(node.high_watermark, name=str(ordinal)) for ordinal in range(count)]
        node.append()
        for turn in (1, 2, 3):
            node.turn()
            completed = [one.completed_count for one in fetches]
            assert completed.count(1) == min(turn * FETCHES_PER_TURN_MAX, count)
        assert node.turns == []

    with_node(check)


def test_a_change_of_leaders_reaches_the_fetches_of_later_iterations() -> None:
    def check(node: Waiting) -> None:
        far = 2**62
        fetches = [node.delay(far, name=str(at)) for at in range(2 * FETCHES_PER_TURN_MAX)]
        node.append()
        node.turn()
        node.one.shut_down()
        for _ in range(3):
            node.turn()
        assert [one.completed_count for one in fetches] == [1] * len(fetches)
        assert node.purgatory.waiting_count == 0

    with_node(check)


def test_a_fetch_that_is_removed_before_its_check_affects_no_other() -> None:
    def check(node: Waiting) -> None:
        far = 2**62
        fetches = [node.delay(node.high_watermark) for _ in range(3)]
        late = node.delay(far)
        node.append()
        node.purgatory.poll()
        fetches[0].on_complete = lambda: node.purgatory.remove(fetches[1])
        node.purgatory.remove(late)
        node.turn()
        assert [one.completed_count for one in fetches] == [1, 0, 1]
        assert (late.looks, late.completed_count) == ([], 0)
        assert node.purgatory.waiting_count == 0

    with_node(check)


def test_a_delayed_fetch_is_completed_at_its_deadline_on_a_change_of_leaders_or_at_the_end() -> (
    None
):
    def check(node: Waiting) -> None:
        far = 2**62
        late, removed, follower = node.delay(far), node.delay(far), node.delay(far, timeout_ms=900)
        node.purgatory.remove(removed)
        node.purgatory.remove(removed)
        node.timers.pass_until(507)
        assert [one.completed_count for one in (late, removed, follower)] == [1, 0, 0]
        node.one.shut_down()
        node.turn()
        assert follower.completed_count == 1
        last = node.delay(far)
        node.purgatory.close()
        after = node.delay(far)
        assert (last.completed_count, after.completed_count) == (1, 1)
        assert node.timers.pending_count == 0
        assert node.purgatory.waiting_count == 0

    with_node(check)


def test_excess_fetches_of_a_principal_wait_for_their_deadline() -> None:
    def check(node: Waiting) -> None:
        fetches = [node.delay(node.high_watermark) for _ in range(WAITING_FETCHES_MAX + 1)]
        other = node.delay(node.high_watermark, "another")
        node.append()
        for _ in fetches:
            node.turn()
        assert [one.completed_count for one in fetches] == [1] * WAITING_FETCHES_MAX + [0]
        assert (fetches[-1].looks, other.completed_count) == ([], 1)
        again = node.delay(node.high_watermark)
        node.append()
        node.turn()
        assert again.completed_count == 1
        node.timers.pass_until(507)
        assert fetches[-1].completed_count == 1
        assert not node.purgatory._counts

    with_node(check)


def test_a_fetch_whose_check_fails_affects_no_other() -> None:
    def check(node: Waiting) -> None:
        first, broken, last = (node.delay(node.high_watermark) for _ in range(3))
        broken.has_bug = True
        node.append()
        node.turn()
        assert [one.completed_count for one in (first, broken, last)] == [1, 0, 1]
        assert node.purgatory.waiting_count == 0

    with_node(check)
