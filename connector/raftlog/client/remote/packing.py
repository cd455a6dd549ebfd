"""The appends of a client that wait to be sent: in their order, and which of them share a batch.

Rules of this file:

1. Nothing overtakes: a batch has what waits longest, and what follows it directly.
2. From its packing on an append cannot be cancelled. An append is refused only after it was removed
   from its batch; one that stays in a batch may still be written (``AppendUnknownError``).
3. A producer id serves one batch at a time. One whose batch may have been taken, and has no answer,
   is never used again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from raftlog.append.requests import AppendRequest
from raftlog.client.clock import Clock
from raftlog.errors import (
    AppendUnknownError,
    FutureEpochError,
    InvalidAppendError,
    NotLeaderError,
    RaftlogError,
    RecordBatchTooLargeError,
)
from raftlog.records.header import INT32_MAX

from .sendings import (
    MERGED_BYTES_MAX,
    MERGED_REQUESTS_MAX,
    Lane,
    LogSettings,
    Sending,
    alone,
    fail_request,
    may_share,
    merged,
    needs_lane,
    split_up,
    without,
)


class Packing:
    """What waits. Lives on the network's loop."""

    def __init__(self, settings: LogSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._queue: deque[AppendRequest] = deque()
        self._packed: deque[Sending] = deque()
        self._apart: set[AppendRequest] = set()
        self._lanes: list[Lane] = []

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._packed or self._queue)

    def add(self, requests: list[AppendRequest]) -> None:
        self._queue += requests

    def put_back(self, sending: Sending) -> None:
        """It could not be sent: it is the next one again."""
        self._packed.appendleft(sending)

    def take_apart(self, requests: tuple[AppendRequest, ...]) -> None:
        """They were refused together, and one of them is to blame: each is sent by itself."""
        self._apart.update(requests)
        self._queue.extendleft(reversed(requests))

    # --- the next batch ---------------------------------------------------------------------------

    def packed(self) -> Sending | None:
        """A batch that is built already, if one is still wanted."""
        while self._packed:
            sending = self._packed.popleft()
            if sending.is_wanted:
                return sending
            self.let_go(sending)
        return None

    def needs_lane(self, leader_epoch: int) -> bool | None:
        """Whether the next batch needs a producer id; None if there is no next batch."""
        while self._queue:
            first = self._queue[0]
            if not _take(first) or self._is_refused(first, leader_epoch):
                self._queue.popleft()
                continue
            return needs_lane(first)
        return None

    def pack(self, lane: Lane | None) -> Sending | None:
        """Make the next batch, under ``lane`` if it needs one; None if it is refused here."""
        try:
            return self._pack(lane)
        except (RecordBatchTooLargeError, InvalidAppendError) as error:
            fail_request(self._queue.popleft(), error)
            if lane is not None:
                self._lanes.append(lane)
            return None

    def _pack(self, lane: Lane | None) -> Sending:
        """Raises ``RecordBatchTooLargeError`` and, for too many headers, ``InvalidAppendError``:
        then it has taken nothing out of the queue."""
        now_ms, first = self._clock.wall_ms(), self._queue[0]
        if lane is None or not may_share(first):
            sending = alone(first, self._settings, now_ms, lane)
            self._queue.popleft()
            return sending
        group = list(self._group())
        shared = merged(group, self._settings, now_ms, lane)
        if shared is None and len(group) > 1:
            group = group[:1]
            shared = merged(group, self._settings, now_ms, lane)
        if shared is None and first.is_atomic:
            return alone(first, self._settings, now_ms, lane)  # raises: it is too large
        if shared is None:
            shared, *others = split_up(first, self._settings, now_ms, lane)
            self._packed.extend(others)
        for request in group:
            self._queue.popleft()
            self._apart.discard(request)
        return shared

    def _group(self) -> Iterator[AppendRequest]:
        """Appends from the front of the queue that may share a batch."""
        limit = min(MERGED_BYTES_MAX, self._settings.batch_bytes_max)
        byte_count = 0
        for ordinal, request in enumerate(self._queue):
            byte_count += request.byte_count()
            if ordinal and (
                not may_share(request)
                or request in self._apart
                or ordinal == MERGED_REQUESTS_MAX
                or byte_count > limit
                or not _take(request)
            ):
                return
            yield request
            if request in self._apart:
                return

    def _is_refused(self, request: AppendRequest, leader_epoch: int) -> bool:
        """Refuse an epoch that the wire cannot say, or that means "any" there."""
        epoch = request.epoch
        if epoch is None or 1 <= epoch <= INT32_MAX:
            return False
        kind = NotLeaderError if epoch < 1 else FutureEpochError
        fail_request(request, kind(epoch=epoch, current_epoch=leader_epoch))
        return True

    # --- producer ids -----------------------------------------------------------------------------

    def free_lane(self) -> Lane | None:
        """A producer id that serves no batch now."""
        return self._lanes.pop() if self._lanes else None

    def keep_lane(self, lane: Lane) -> None:
        """It serves no batch any more."""
        self._lanes.append(lane)

    def let_go(self, sending: Sending) -> None:
        """A batch is not sent any more. If it may have been taken, its producer id is spent."""
        lane, sending.lane = sending.lane, None
        if lane is not None and not sending.is_uncertain and sending.split is None:
            lane.advance(-sending.record_count)
            self._lanes.append(lane)

    # --- the sender has ended ---------------------------------------------------------------------

    def fail_all(self, error: RaftlogError) -> None:
        """Answer whatever waits."""
        while self._packed:
            self._packed.popleft().fail(error)
        while self._queue:
            request = self._queue.popleft()
            if _take(request):
                fail_request(request, error)

    # --- deadlines --------------------------------------------------------------------------------

    def expire(self, now_ms: float, path: str, unavailable: Callable[[], RaftlogError]) -> None:
        """Answer what waits and whose deadline has passed. ``path`` is for errors."""
        for sending in self._packed:
            self.expire_batch(sending, now_ms, path, unavailable)
        self._packed = self.wanted(self._packed)
        if not any(request.deadline_ms <= now_ms for request in self._queue):
            return
        waiting, self._queue = self._queue, deque()
        for request in waiting:
            if request.deadline_ms > now_ms:
                self._queue.append(request)
            elif _take(request):
                fail_request(request, unavailable())

    def expire_batch(
        self, sending: Sending, now_ms: float, path: str, unavailable: Callable[[], RaftlogError]
    ) -> None:
        """Answer the appends of a batch that is not in flight, and whose deadline has passed.

        An append is refused (``unavailable``) only if it cannot be written any more: the batch
        was never appended, and is built again without it.
        """
        late = sending.late(now_ms)
        if not late:
            return
        is_removed = not sending.is_uncertain and without(
            sending, late, self._settings, self._clock.wall_ms()
        )
        for request in late:
            error = unavailable()
            if not is_removed:
                reason = sending.last_problem or "its batch is still to be sent"
                error = AppendUnknownError(path=path, reason=reason)
            if sending.split is not None:
                sending.split.fail(error)
            else:
                fail_request(request, error)

    def wanted(self, sendings: deque[Sending]) -> deque[Sending]:
        """Return the batches with an append that has no answer; let the others go."""
        wanted: deque[Sending] = deque()
        for sending in sendings:
            if sending.is_wanted:
                wanted.append(sending)
            else:
                self.let_go(sending)
        return wanted


def _take(request: AppendRequest) -> bool:
    """Whether an append is still wanted; from now on it cannot be cancelled."""
    future = request.future
    return future.running() or (not future.done() and future.set_running_or_notify_cancel())
