"""Delayed requests: appends without a result, and fetches of consumers without records.

Invariants:

1. A delayed request has no task, future or timer. It is in a queue ordered by deadline; a fetch is
   also in a queue ordered by the offset that the high watermark must pass.
2. The time to add, complete or remove a request does not depend on how many are delayed: requests
   with the same deadline (in milliseconds) or offset share an entry in the queue.
3. Fetches are completed after the step that advanced the high watermark and after the responses to
   voters: in later turns, which are calls of ``RaftNode.pass_time``.
4. One turn checks at most ``FETCHES_PER_TURN_MAX`` fetches, and ends at most
   ``EXPIRED_PER_TURN_MAX`` appends and as many fetches whose deadline has passed.

Kafka: ``DelayedOperationPurgatory``, ``DelayedProduce``, ``DelayedFetch`` and ``TimingWheel``.
"""

from __future__ import annotations

import heapq
import sys
from collections import Counter, deque
from collections.abc import Callable
from itertools import islice
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from raftlog.append import AppendRequest, RequestResult, failed
from raftlog.errors import AppendUnknownError
from raftlog.limits import WAITING_FETCHES_MAX

from .replica import Replica

T = TypeVar("T")
Complete: TypeAlias = Callable[[RequestResult], None]


FETCHES_PER_TURN_MAX: Final = 64
EXPIRED_PER_TURN_MAX: Final = 64
_OFFSET_MAX: Final = 2**63
_EMPTY_MAX: Final = 64


class BucketQueue(Generic[T]):
    """Items ordered by a number, the lowest first; equal numbers are in the order of ``add``."""

    __slots__ = ("_buckets", "_numbers", "lowest")

    def __init__(self) -> None:
        self.lowest: int | None = None
        """The lowest number; None if there is no item. Only the queue changes it."""
        self._buckets: dict[int, dict[T, None]] = {}
        self._numbers: list[int] = []
        """Heap of the numbers of buckets, including removed buckets until there are too many."""

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def add(self, number: int, item: T) -> None:
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = {}
            heapq.heappush(self._numbers, number)
            if len(self._numbers) > 2 * len(self._buckets) + _EMPTY_MAX:
                self._numbers = sorted(self._buckets)
            if self.lowest is None or number < self.lowest:
                self.lowest = number
        bucket[item] = None

    def remove(self, number: int, item: T) -> None:
        """Remove an item, if it is in the queue."""
        bucket = self._buckets.get(number, {})
        bucket.pop(item, None)
        if not bucket:
            self._buckets.pop(number, None)
            if number == self.lowest:
                self.lowest = self._find_lowest()

    def _find_lowest(self) -> int | None:
        numbers = self._numbers
        while numbers and numbers[0] not in self._buckets:
            heapq.heappop(numbers)
        return numbers[0] if numbers else None

    def pop_below(self, bound: int, count_max: int = sys.maxsize) -> list[T]:
        """Remove and return the first items whose number is below ``bound``, in order."""
        found: list[T] = []
        if not self._buckets:
            return found
        while count_max and (lowest := self.lowest) is not None and lowest < bound:
            taken = list(islice(self._buckets[lowest], count_max))
            for item in taken:
                self.remove(lowest, item)
            found += taken
            count_max -= len(taken)
        return found


class Deadlines(BucketQueue[T]):
    """Items ordered by deadline."""

    __slots__ = ()

    def expire(self, now_ms: int, end: Callable[[T], None]) -> None:
        """Remove the first items whose deadline has passed, and call ``end`` with each one."""
        due = deque(self.pop_below(now_ms + 1, EXPIRED_PER_TURN_MAX))
        try:
            while due:
                end(due.popleft())
        finally:  # for the others too, if one raises
            for item in due:
                self.add(now_ms, item)


# --- Appends --------------------------------------------------------------------------------------


class AppendPurgatory:
    """Callbacks of appends without a result. Each is called once, with the result or at its
    deadline."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._appends: Final[dict[AppendRequest, tuple[Complete, int]]] = {}
        """Callback and deadline (-1 without one)."""
        self.deadlines: Final = Deadlines[AppendRequest]()

    def add(
        self,
        request: AppendRequest,
        complete: Complete,
        *,
        now_ms: int,
        timeout_ms: int | None = None,
    ) -> None:
        """Register an append. If it has no time to wait, ``complete`` is called before this
        returns; the append may be committed nevertheless."""
        if timeout_ms is None:
            self._appends[request] = complete, -1
        elif timeout_ms <= 0:
            complete(self._timed_out())
        else:
            self._appends[request] = complete, now_ms + timeout_ms
            self.deadlines.add(now_ms + timeout_ms, request)

    def complete(self, request: AppendRequest, result: RequestResult) -> None:
        """Handle the result of an append, unless its deadline has passed."""
        found = self._appends.pop(request, None)
        if found is None:
            return
        complete, deadline_ms = found
        if deadline_ms >= 0:
            self.deadlines.remove(deadline_ms, request)
        complete(result)

    def expire(self, now_ms: int) -> None:
        """Complete the first appends whose deadline has passed."""
        self.deadlines.expire(now_ms, self._expire)

    def close(self, result: Callable[[], RequestResult]) -> None:
        """Complete all appends."""
        for request in list(self._appends):
            self.complete(request, result())

    def _expire(self, request: AppendRequest) -> None:
        self.complete(request, self._timed_out())

    def _timed_out(self) -> RequestResult:
        reason = "it was not committed within the timeout of the request"
        return failed(AppendUnknownError(path=self._path, reason=reason))


# --- Throttled connections ------------------------------------------------------------------------


class ThrottledChannel(Protocol):
    """Connection of a client that exceeds a quota."""

    def mute(self) -> bool:
        """Start and read no more requests until ``unmute``; return False if it is lost."""

    def unmute(self) -> None:
        """Start requests again. Raises nothing."""


class ThrottledChannels:
    """Muted connections, by the end of their throttle time (Kafka: ``ThrottledChannelReaper``)."""

    def __init__(self) -> None:
        self._ends: Final[dict[ThrottledChannel, int]] = {}
        self.deadlines: Final = Deadlines[ThrottledChannel]()

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, channel: ThrottledChannel, deadline_ms: int) -> None:
        """Mute a connection until a time, unless it is already muted for longer."""
        before_ms = self._ends.get(channel, -1)
        if before_ms >= deadline_ms or (before_ms < 0 and not channel.mute()):
            return
        self.remove(channel)
        self._ends[channel] = deadline_ms
        self.deadlines.add(deadline_ms, channel)

    def remove(self, channel: ThrottledChannel) -> None:
        """Remove a lost connection, if it is muted."""
        deadline_ms = self._ends.pop(channel, None)
        if deadline_ms is not None:
            self.deadlines.remove(deadline_ms, channel)

    def expire(self, now_ms: int) -> None:
        """Unmute the first connections whose throttle time has ended."""
        self.deadlines.expire(now_ms, self._unmute)

    def _unmute(self, channel: ThrottledChannel) -> None:
        del self._ends[channel]
        channel.unmute()


# --- Fetches --------------------------------------------------------------------------------------


class WaitingFetch(Protocol):
    """Delayed fetch of a consumer."""

    @property
    def principal_name(self) -> str:
        """The principal whose delayed fetches are counted."""

    @property
    def awaited_offset(self) -> int:
        """The offset that the high watermark must pass before ``is_due`` can change."""

    def is_due(self) -> bool:
        """Return whether to respond now. Raises nothing; after a bug it removes the fetch."""

    def complete(self) -> None:
        """Respond. Raises nothing."""


class FetchPurgatory:
    """Delayed fetches of one node.

    A fetch is checked when the high watermark passes its offset, and when the leader or the log's
    start changes. If a principal has more than ``WAITING_FETCHES_MAX`` fetches, the excess ones are
    checked only after such a change, and complete at their deadline.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._waiting: Final[dict[WaitingFetch, tuple[int, int]]] = {}
        """Deadline and offset."""
        self._counts: Final[Counter[str]] = Counter()
        """Number of fetches by principal."""
        self._offsets: Final[BucketQueue[WaitingFetch]] = BucketQueue()
        self.deadlines: Final = Deadlines[WaitingFetch]()
        self._seen = self._look()
        self._due: Final[deque[WaitingFetch]] = deque()
        """Fetches to be checked, including fetches that have been removed since."""
        self._is_closed = False

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def has_checks_left(self) -> bool:
        """Return whether fetches may be due, so that ``pass_time`` must be called soon."""
        return bool(self._due)

    def add(self, fetch: WaitingFetch, deadline_ms: int) -> None:
        """Delay a fetch that is not due; after ``close`` complete it."""
        if self._is_closed:
            fetch.complete()
            return
        if not self._waiting:
            self._seen = self._look()
        name = fetch.principal_name
        is_one_too_many = self._counts[name] >= WAITING_FETCHES_MAX
        self._counts[name] += 1
        offset = _OFFSET_MAX if is_one_too_many else fetch.awaited_offset
        self._waiting[fetch] = deadline_ms, offset
        self.deadlines.add(deadline_ms, fetch)
        self._offsets.add(offset, fetch)

    def remove(self, fetch: WaitingFetch) -> None:
        """Remove a fetch whose connection is lost, if it is delayed."""
        found = self._waiting.pop(fetch, None)
        if found is None:
            return
        deadline_ms, offset = found
        self.deadlines.remove(deadline_ms, fetch)
        self._offsets.remove(offset, fetch)
        name = fetch.principal_name
        self._counts[name] -= 1
        if not self._counts[name]:
            del self._counts[name]

    def poll(self) -> None:
        """Find the fetches that may be due after a step of the replica."""
        lowest = self._offsets.lowest
        if lowest is not None and lowest < (bound := self._bound()):
            self._seen = self._look()
            self._due.extend(self._offsets.pop_below(bound))

    def pass_time(self, now_ms: int) -> None:
        """Complete the first fetches that are due, and those whose deadline has passed."""
        for _ in range(min(len(self._due), FETCHES_PER_TURN_MAX)):
            fetch = self._due.popleft()
            if fetch in self._waiting:
                self._check(fetch)
        self.deadlines.expire(now_ms, self._complete)

    def close(self) -> None:
        """Complete all fetches, at the end of the replica."""
        self._is_closed = True
        for fetch in list(self._waiting):
            self._complete(fetch)

    def _look(self) -> tuple[object, ...]:
        """Return the state that affects the response to every fetch."""
        core, log = self._replica.core, self._replica.log
        return core.epoch, core.leader_id, type(core.role), log.log_start_offset, log.is_closed

    def _bound(self) -> int:
        """Return the offset below which fetches may be due."""
        is_changed = self._look() != self._seen
        return _OFFSET_MAX + 1 if is_changed else self._replica.core.high_watermark or 0

    def _check(self, fetch: WaitingFetch) -> None:
        if fetch.is_due():
            self._complete(fetch)
            return
        if fetch not in self._waiting:
            return
        deadline_ms, offset = self._waiting[fetch]
        offset = offset if offset == _OFFSET_MAX else fetch.awaited_offset
        self._waiting[fetch] = deadline_ms, offset
        self._offsets.add(offset, fetch)

    def _complete(self, fetch: WaitingFetch) -> None:
        if fetch in self._waiting:
            self.remove(fetch)
            fetch.complete()
