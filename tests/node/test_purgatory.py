"""Delayed requests: when each is completed, what is checked, and what is kept."""

from __future__ import annotations

import random
from collections.abc import Callable
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
        assert queue.lowest == min(kept.values(), default=None)


def test_a_queue_keeps_few_numbers_of_removed_items() -> None:
    queue: BucketQueue[str] = BucketQueue()
    queue.add(-1, "oldest")
    for number in range(10_000):
        queue.add(number, "item")
        queue.remove(number, "item")
    assert len(queue._numbers) < 100
    assert queue.pop_below(10_000, 2) == ["oldest"]


def test_items_expire_at_their_deadline_in_the_order_of_their_deadlines() -> None:
    deadlines, expired = Deadlines[str](), list[str]()
    deadlines.add(507, "a")
    for ordinal in range(100):
        deadlines.add(600 + ordinal, "removed")
        deadlines.remove(600 + ordinal, "removed")
    deadlines.add(707, "b")
    deadlines.add(507, "c")
    deadlines.add(107, "first")
    for now_ms, found, following in (
        (106, [], 107),
        (506, ["first"], 507),
        (507, ["a", "c"], 707),
        (2_000, ["b"], None),
    ):
        deadlines.expire(now_ms, expired.append)
        assert (expired, deadlines.lowest) == (found, following)
        expired.clear()


def test_many_items_expire_in_several_turns() -> None:
    deadlines, expired = Deadlines[int](), list[int]()
    count = 2 * EXPIRED_PER_TURN_MAX + 1
    for item in range(count):
        deadlines.add(500, item)
    for turn in (1, 2, 3):
        assert deadlines.lowest == 500
        deadlines.expire(500, expired.append)
        assert expired == list(range(min(turn * EXPIRED_PER_TURN_MAX, count)))
    assert deadlines.lowest is None


def test_an_item_whose_end_raises_delays_no_other() -> None:
    def expire(item: int) -> None:
        expired.append(item)
        if item == 1:
            raise ValueError("a bug")

    deadlines, expired = Deadlines[int](), list[int]()
    for item in range(4):
        deadlines.add(500, item)
    with pytest.raises(ValueError, match="a bug"):
        deadlines.expire(500, expire)
    assert deadlines.lowest == 500
    deadlines.expire(500, expire)
    assert expired == [0, 1, 2, 3]


# --- appends --------------------------------------------------------------------------------------


def test_an_append_is_answered_once_with_its_result_or_at_its_deadline() -> None:
    found: list[tuple[str, RequestResult]] = []

    def add(name: str, timeout_ms: int | None) -> AppendRequest:
        request = AppendRequest(records=(b"x",), deadline_ms=1e12)
        purgatory.add(
            request, lambda result: found.append((name, result)), now_ms=7, timeout_ms=timeout_ms
        )
        return request

    purgatory = AppendPurgatory("/data/orders-0")
    a, b, c = add("a", 700), add("b", 700), add("c", 900)
    patient = add("patient", None)
    add("without time", 0)
    assert isinstance(found.pop()[1], Failed)
    purgatory.complete(a, Done(1))
    purgatory.complete(c, Done(2))
    purgatory.expire(706)
    assert [name for name, _ in found] == ["a", "c"]
    assert purgatory.deadlines.lowest == 707
    purgatory.expire(707)
    assert purgatory.deadlines.lowest is None
    purgatory.complete(b, Done(3))
    purgatory.complete(a, Done(4))
    purgatory.complete(patient, Done(5))
    add("last", None)
    purgatory.close(lambda: Done(6))
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
    """Leader of one, and its delayed fetches. The time is 7 ms."""

    def __init__(self) -> None:
        self.one = OneReplica()
        self.one.elect()
        self.purgatory = FetchPurgatory(self.one.replica)

    @property
    def high_watermark(self) -> int:
        return self.one.replica.core.high_watermark or 0

    @property
    def is_leader(self) -> bool:
        return self.one.replica.core.is_leader

    def delay(self, due_above: int, name: str = "client", timeout_ms: int = 500) -> Fetch:
        fetch = Fetch(self, due_above, name)
        self.purgatory.add(fetch, 7 + timeout_ms)
        return fetch

    def append(self) -> None:
        self.one.log.append(self.one.replica.core.epoch, [b"x"])
        self.one.poll()

    def turn(self, now_ms: int = 7) -> None:
        """Poll as after a step, and take the next turn."""
        self.purgatory.poll()
        self.purgatory.pass_time(now_ms)


def test_a_delayed_fetch_is_checked_when_records_arrive() -> None:
    node = Waiting()
    end = node.high_watermark
    fetch = node.delay(end + 1)
    for _ in range(100):
        node.one.raft_node.step(TimePassed())
        node.purgatory.poll()
    assert not fetch.looks
    assert not node.purgatory.has_checks_left
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


def test_all_delayed_fetches_are_checked_in_one_turn() -> None:
    node = Waiting()
    fetches = [node.delay(node.high_watermark) for _ in range(50)]
    node.append()
    for _ in range(3):
        node.purgatory.poll()
    assert node.purgatory.has_checks_left
    node.turn()
    assert not node.purgatory.has_checks_left
    assert [one.completed_count for one in fetches] == [1] * 50


def test_many_delayed_fetches_are_checked_in_several_turns() -> None:
    node = Waiting()
    count = 2 * FETCHES_PER_TURN_MAX + 1
    fetches = [node.delay(node.high_watermark, name=str(ordinal)) for ordinal in range(count)]
    node.append()
    for turn in (1, 2, 3):
        node.turn()
        completed = [one.completed_count for one in fetches]
        assert completed.count(1) == min(turn * FETCHES_PER_TURN_MAX, count)
    assert not node.purgatory.has_checks_left


def test_a_change_of_leaders_reaches_the_fetches_of_later_turns() -> None:
    node = Waiting()
    far = 2**62
    fetches = [node.delay(far, name=str(at)) for at in range(2 * FETCHES_PER_TURN_MAX)]
    node.append()
    node.turn()
    node.one.shut_down()
    for _ in range(3):
        node.turn()
    assert [one.completed_count for one in fetches] == [1] * len(fetches)
    assert node.purgatory.waiting_count == 0


def test_a_fetch_that_is_removed_before_its_check_affects_no_other() -> None:
    node = Waiting()
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


def test_a_delayed_fetch_is_completed_at_its_deadline_on_a_change_of_leaders_or_at_the_end() -> (
    None
):
    node = Waiting()
    far = 2**62
    late, removed, follower = node.delay(far), node.delay(far), node.delay(far, timeout_ms=900)
    node.purgatory.remove(removed)
    node.purgatory.remove(removed)
    node.turn(506)
    assert late.completed_count == 0
    assert node.purgatory.deadlines.lowest == 507
    node.turn(507)
    assert [one.completed_count for one in (late, removed, follower)] == [1, 0, 0]
    node.one.shut_down()
    node.turn()
    assert follower.completed_count == 1
    last = node.delay(far)
    node.purgatory.close()
    after = node.delay(far)
    assert (last.completed_count, after.completed_count) == (1, 1)
    assert node.purgatory.waiting_count == 0


def test_excess_fetches_of_a_principal_wait_for_their_deadline() -> None:
    node = Waiting()
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
    node.turn(507)
    assert fetches[-1].completed_count == 1
    assert not node.purgatory._counts


def test_a_fetch_whose_check_fails_affects_no_other() -> None:
    node = Waiting()
    first, broken, last = (node.delay(node.high_watermark) for _ in range(3))
    broken.has_bug = True
    node.append()
    node.turn()
    assert [one.completed_count for one in (first, broken, last)] == [1, 0, 1]
    assert node.purgatory.waiting_count == 0
