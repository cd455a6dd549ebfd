"""Delayed requests: appends without a result, and fetches of consumers without records.

Invariants:

1. A delayed request has no task, future or timer of its own. It is in a queue by its deadline, and
   a fetch also in one by the offset that the high watermark must pass. One timer is set, for the
   earliest deadline.
2. Adding, completing and removing a request takes the same time however many are delayed: requests
   with the same deadline, to the millisecond, or offset share an entry of the queue.
3. Fetches are completed in later iterations of the event loop: after the step that advanced the
   high watermark, and after the responses to voters.
4. One iteration checks at most ``FETCHES_PER_TURN_MAX`` fetches, and ends at most
   ``EXPIRED_PER_TURN_MAX`` requests whose deadline has passed.

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


class Timer(Protocol):
    """Pending call, as ``asyncio.TimerHandle``."""

    def cancel(self) -> None: ...


CallLater: TypeAlias = Callable[[float, Callable[[], None]], Timer]
"""Calls a function after some seconds, as ``asyncio.loop.call_later``."""
FETCHES_PER_TURN_MAX: Final = 64
EXPIRED_PER_TURN_MAX: Final = 64
_OFFSET_MAX: Final = 2**63
_EMPTY_MAX: Final = 64


class BucketQueue(Generic[T]):
    """Items by a number, the lowest first; items of one number in the order of ``add``."""

    __slots__ = ("_buckets", "_numbers")

    def __init__(self) -> None:
        self._buckets: dict[int, dict[T, None]] = {}
        self._numbers: list[int] = []
        """Heap of the numbers of buckets, and of removed buckets until there are too many."""

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def add(self, number: int, item: T) -> None:
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = {}
            heapq.heappush(self._numbers, number)
            if len(self._numbers) > 2 * len(self._buckets) + _EMPTY_MAX:
                self._numbers = sorted(self._buckets)
        bucket[item] = None

    def remove(self, number: int, item: T) -> None:
        """Remove an item, if it is in the queue."""
        bucket = self._buckets.get(number, {})
        bucket.pop(item, None)
        if not bucket:
            self._buckets.pop(number, None)

    def lowest(self) -> int | None:
        """Return the lowest number, None if there is no item."""
        numbers = self._numbers
        while numbers and numbers[0] not in self._buckets:
            heapq.heappop(numbers)
        return numbers[0] if numbers else None

    def pop_below(self, bound: int, count_max: int = sys.maxsize) -> list[T]:
        """Remove and return the first items whose number is lower than ``bound``, in order."""
        found: list[T] = []
        while count_max and (lowest := self.lowest()) is not None and lowest < bound:
            taken = list(islice(self._buckets[lowest], count_max))
            for item in taken:
                self.remove(lowest, item)
            found += taken
            count_max -= len(taken)
        return found


class Deadlines(Generic[T]):
    """Items by their deadline, with one timer for the earliest."""

    def __init__(
        self, now_ms: Callable[[], int], call_later: CallLater, expire: Callable[[T], None]
    ) -> None:
        """``expire`` is called with each item that is not removed before its deadline."""
        self._now_ms = now_ms
        self._call_later = call_later
        self._expire = expire
        self._queue: Final[BucketQueue[T]] = BucketQueue()
        self._timer: Timer | None = None
        self._timer_ms = 0

    def add(self, item: T, timeout_ms: int) -> int:
        """Add an item; return its deadline."""
        deadline_ms = self._now_ms() + timeout_ms
        self._queue.add(deadline_ms, item)
        if self._timer is None or deadline_ms < self._timer_ms:
            self._set_timer(deadline_ms, timeout_ms)
        return deadline_ms

    def remove(self, deadline_ms: int, item: T) -> None:
        """Remove an item. The timer remains, at most until the deadline: it would be set again for
        the next item."""
        self._queue.remove(deadline_ms, item)

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, deadline_ms: int, timeout_ms: int) -> None:
        self.close()
        self._timer_ms = deadline_ms
        self._timer = self._call_later(timeout_ms / 1000, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        now_ms = self._now_ms()
        due = deque(self._queue.pop_below(now_ms + 1, EXPIRED_PER_TURN_MAX))
        try:
            while due:
                self._expire(due.popleft())
        finally:  # also of the others, if one raises
            for item in due:
                self._queue.add(now_ms, item)
            lowest = self._queue.lowest()
            if lowest is not None and (self._timer is None or lowest < self._timer_ms):
                self._set_timer(lowest, max(lowest - now_ms, 0))


# --- Appends --------------------------------------------------------------------------------------


class AppendPurgatory:
    """Callbacks of appends without a result. Each is called once: with the result, or at its
    deadline."""

    def __init__(self, path: str, now_ms: Callable[[], int], call_later: CallLater) -> None:
        self._path = path
        self._appends: Final[dict[AppendRequest, tuple[Complete, int]]] = {}
        """Callback and deadline, -1 without one."""
        self._deadlines: Final = Deadlines[AppendRequest](now_ms, call_later, self._expire)

    def add(
        self, request: AppendRequest, complete: Complete, timeout_ms: int | None = None
    ) -> None:
        """Register an append. Without time ``complete`` is called before this returns: an append
        that is not awaited may be committed, too."""
        if timeout_ms is None:
            self._appends[request] = complete, -1
        elif timeout_ms <= 0:
            complete(self._timed_out())
        else:
            self._appends[request] = complete, self._deadlines.add(request, timeout_ms)

    def complete(self, request: AppendRequest, result: RequestResult) -> None:
        """Handle the result of an append, unless its deadline has passed."""
        found = self._appends.pop(request, None)
        if found is None:
            return
        complete, deadline_ms = found
        if deadline_ms >= 0:
            self._deadlines.remove(deadline_ms, request)
        complete(result)

    def close(self, result: Callable[[], RequestResult]) -> None:
        """Complete all appends."""
        self._deadlines.close()
        for request in list(self._appends):
            self.complete(request, result())

    def _expire(self, request: AppendRequest) -> None:
        self.complete(request, self._timed_out())

    def _timed_out(self) -> RequestResult:
        reason = "it was not committed within the timeout of the request"
        return failed(AppendUnknownError(path=self._path, reason=reason))


# --- Fetches --------------------------------------------------------------------------------------


class WaitingFetch(Protocol):
    """Fetch of a consumer that is delayed."""

    @property
    def principal_name(self) -> str:
        """The principal whose delayed fetches are counted."""

    @property
    def awaited_offset(self) -> int:
        """The offset that the high watermark must pass before ``is_due`` can change."""

    def is_due(self) -> bool:
        """Return whether to respond now. Raises nothing: after a bug it removes the fetch."""

    def complete(self) -> None:
        """Respond. Raises nothing."""


class FetchPurgatory:
    """Delayed fetches of one node.

    A fetch is checked when the high watermark passes its offset, and when the leader or the start
    of the log changes. Beyond ``WAITING_FETCHES_MAX`` fetches of a principal it is checked only
    after such a change, and completes at its deadline.
    """

    def __init__(
        self,
        replica: Replica,
        now_ms: Callable[[], int],
        call_later: CallLater,
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self._replica = replica
        self._call_soon = call_soon
        self._waiting: Final[dict[WaitingFetch, tuple[int, int]]] = {}
        """Deadline and offset."""
        self._counts: Final[Counter[str]] = Counter()
        """Number of fetches by principal."""
        self._offsets: Final[BucketQueue[WaitingFetch]] = BucketQueue()
        self._deadlines: Final = Deadlines[WaitingFetch](now_ms, call_later, self._complete)
        self._seen = self._look()
        self._due: Final[deque[WaitingFetch]] = deque()
        """To be checked, and those of them that were removed."""
        self._is_check_due = False
        self._is_closed = False

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def add(self, fetch: WaitingFetch, timeout_ms: int) -> None:
        """Delay a fetch that is not due; after ``close`` it is completed."""
        if self._is_closed:
            fetch.complete()
            return
        if not self._waiting:
            self._seen = self._look()
        name = fetch.principal_name
        is_one_too_many = self._counts[name] >= WAITING_FETCHES_MAX
        self._counts[name] += 1
        offset = _OFFSET_MAX if is_one_too_many else fetch.awaited_offset
        self._waiting[fetch] = self._deadlines.add(fetch, timeout_ms), offset
        self._offsets.add(offset, fetch)

    def remove(self, fetch: WaitingFetch) -> None:
        """Remove a fetch, if it is delayed: its connection is lost."""
        found = self._waiting.pop(fetch, None)
        if found is None:
            return
        deadline_ms, offset = found
        self._deadlines.remove(deadline_ms, fetch)
        self._offsets.remove(offset, fetch)
        name = fetch.principal_name
        self._counts[name] -= 1
        if not self._counts[name]:
            del self._counts[name]

    def poll(self) -> None:
        """Check the fetches that may be due, in later iterations; after a step of the replica."""
        lowest = self._offsets.lowest()
        if lowest is not None and lowest < (bound := self._bound()):
            self._seen = self._look()
            self._due.extend(self._offsets.pop_below(bound))
            if not self._is_check_due:
                self._is_check_due = True
                self._call_soon(self._check)

    def close(self) -> None:
        """Complete all fetches, at the end of the replica."""
        self._is_closed = True
        self._deadlines.close()
        for fetch in list(self._waiting):
            self._complete(fetch)

    def _look(self) -> tuple[object, ...]:
        """Return what changes the response to any fetch."""
        core, log = self._replica.core, self._replica.log
        return core.epoch, core.leader_id, type(core.role), log.log_start_offset, log.is_closed

    def _bound(self) -> int:
        """Return the offset below which fetches may be due."""
        is_changed = self._look() != self._seen
        return _OFFSET_MAX + 1 if is_changed else self._replica.core.high_watermark or 0

    def _check(self) -> None:
        for _ in range(min(len(self._due), FETCHES_PER_TURN_MAX)):
            fetch = self._due.popleft()
            if fetch in self._waiting:
                self._check_one(fetch)
        self._is_check_due = bool(self._due)
        if self._is_check_due:
            self._call_soon(self._check)

    def _check_one(self, fetch: WaitingFetch) -> None:
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
