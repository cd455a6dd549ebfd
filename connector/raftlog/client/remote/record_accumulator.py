"""Appends of a client that wait to be sent, and the batches that are built of them.

Rules of this file:

1. ``append`` and ``close`` are thread-safe. All else is called on the network's loop only.
2. The bytes of appends without a result are bounded. ``append`` waits for room until the append's
   deadline (``BufferAllocationError``, Kafka: ``max.block.ms``).
3. Batches are sent in the order of their appends; those to be sent again return to their place.
4. From the time it is in a batch, an append cannot be cancelled. It is refused only after it was
   removed from its batch; one that stays in it may still be written (``AppendUnknownError``).
5. A producer id is used by one batch at a time. That of a batch which may be appended, and which
   has no result, is never used again.
"""

from __future__ import annotations

import itertools
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from raftlog.append import WAITING_BYTES_MAX, AppendRequest, BufferPool
from raftlog.client.log_handle import Clock
from raftlog.errors import (
    AppendUnknownError,
    FutureEpochError,
    InvalidAppendError,
    NotLeaderError,
    RaftlogError,
    RecordBatchTooLargeError,
)
from raftlog.limits import MIB
from raftlog.records.header import INT32_MAX

from .producer_batches import (
    LogSettings,
    ProducerBatch,
    ProducerState,
    can_share_batch,
    fail_request,
    needs_producer_id,
    remove_requests,
    shared_batch,
    single_batch,
    split_batches,
)

SHARED_BYTES_MAX: Final = MIB
"""Bound on a batch of several appends: a larger one is not faster."""
SHARED_REQUESTS_MAX: Final = 4096


class RecordAccumulator:
    """Queue of one handle's appends. ``path`` is for errors.

    ``wake_up`` is called by an ``append`` after which ``collect`` must be called on the loop.
    """

    def __init__(
        self, path: str, settings: LogSettings, clock: Clock, wake_up: Callable[[], None]
    ) -> None:
        self._path = path
        self._settings = settings
        self._clock = clock
        self._wake_up = wake_up
        self._pool = BufferPool(path, WAITING_BYTES_MAX, clock.now_ms)
        self._new: list[AppendRequest] = []
        # Below: used on the loop only.
        self._queue: deque[AppendRequest] = deque()
        self._built: list[ProducerBatch] = []
        self._ordinals = itertools.count()
        self._separate: set[AppendRequest] = set()
        self.idle_producers: list[ProducerState] = []
        """Producer ids that no batch uses."""

    # --- any thread -------------------------------------------------------------------------------

    def append(self, request: AppendRequest) -> None:
        """Queue an append, whose future gets the result.

        Raises ``LogClosedError``, and ``BufferAllocationError`` if there is no room until the
        append's deadline.
        """
        self._pool.check_process("it was connected")
        byte_count = request.byte_count()
        with self._pool.changed:
            self._pool.wait_for_room(byte_count, request.deadline_ms)
            if not self._new:
                self._wake_up()
            self._pool.allocate(byte_count)
            self._new.append(request)
        request.future.add_done_callback(partial(self._release_room, byte_count))

    def close(self, reason: str = "close() was called") -> None:
        """Refuse further appends."""
        with self._pool.changed:
            self._pool.close(reason)

    def _release_room(self, byte_count: int, _: Any) -> None:
        with self._pool.changed:
            self._pool.release(byte_count)

    # --- the next batch ---------------------------------------------------------------------------

    @property
    def has_undrained(self) -> bool:
        """Whether an append or a batch waits to be sent."""
        return bool(self._built or self._queue)

    def collect(self) -> None:
        """Move new appends to the queue."""
        with self._pool.changed:
            new, self._new = self._new, []
        self._queue += new

    def next_built(self) -> ProducerBatch | None:
        """Return the next batch that is built already, if its appends still have no result."""
        while self._built:
            batch = self._built.pop(0)
            if not batch.is_done:
                return batch
            self.release(batch)
        return None

    def needs_producer_id(self, leader_epoch: int) -> bool | None:
        """Return whether the next batch needs a producer id; None if there is no next batch."""
        while self._queue:
            first = self._queue[0]
            if not _start(first) or self._is_refused(first, leader_epoch):
                self._pop()
                continue
            return needs_producer_id(first)
        return None

    def drain(self, producer_state: ProducerState | None) -> ProducerBatch | None:
        """Build the next batch of the queue; None if its append is refused."""
        try:
            batches = self._build(producer_state)
        except (RecordBatchTooLargeError, InvalidAppendError) as error:
            fail_request(self._pop(), error)
            if producer_state is not None:
                self.idle_producers.append(producer_state)
            return None
        for batch in batches:
            batch.ordinal = next(self._ordinals)
        for batch in batches[1:]:
            self.reenqueue(batch)
        return batches[0]

    def _build(self, producer_state: ProducerState | None) -> list[ProducerBatch]:
        """Build the next batch, or the batches of an append that does not fit into one.

        Raises ``RecordBatchTooLargeError`` and, for too many headers, ``InvalidAppendError``: then
        the queue is unchanged.
        """
        now_ms, first, settings = self._clock.wall_ms(), self._queue[0], self._settings
        if producer_state is None or not can_share_batch(first):
            batches = [single_batch(first, settings, now_ms, producer_state)]
            self._pop()
            return batches
        group = list(self._group())
        shared = shared_batch(group, settings, now_ms, producer_state)
        if shared is None and len(group) > 1:
            group = group[:1]
            shared = shared_batch(group, settings, now_ms, producer_state)
        if shared is not None:
            batches = [shared]
        elif first.is_atomic:
            return [single_batch(first, settings, now_ms, producer_state)]  # raises: too large
        else:
            batches = split_batches(first, settings, now_ms, producer_state)
        for _ in group:
            self._pop()
        return batches

    def _pop(self) -> AppendRequest:
        """Remove the first append of the queue."""
        request = self._queue.popleft()
        self._separate.discard(request)
        return request

    def _group(self) -> Iterator[AppendRequest]:
        """Yield appends from the front of the queue that may share a batch."""
        limit = min(SHARED_BYTES_MAX, self._settings.batch_bytes_max)
        byte_count = 0
        for ordinal, request in enumerate(self._queue):
            byte_count += request.byte_count()
            if ordinal and (
                not can_share_batch(request)
                or request in self._separate
                or ordinal == SHARED_REQUESTS_MAX
                or byte_count > limit
                or not _start(request)
            ):
                return
            yield request
            if request in self._separate:
                return

    def _is_refused(self, request: AppendRequest, leader_epoch: int) -> bool:
        """Refuse an epoch that a batch cannot have, or with which it would have no condition."""
        epoch = request.epoch
        if epoch is None or 1 <= epoch <= INT32_MAX:
            return False
        kind = NotLeaderError if epoch < 1 else FutureEpochError
        fail_request(request, kind(epoch=epoch, current_epoch=leader_epoch))
        return True

    # --- batches that were not appended -----------------------------------------------------------

    def reenqueue(self, batch: ProducerBatch) -> None:
        """Return a batch to its place, to be sent or to be sent again."""
        insort(self._built, batch, key=lambda one: one.ordinal)

    def split_and_reenqueue(self, batch: ProducerBatch) -> None:
        """Send each append of a refused batch separately, since only one of them is the reason."""
        self._separate.update(batch.requests)
        self._queue.extendleft(reversed(batch.requests))

    def release(self, batch: ProducerBatch, *, is_appended: bool = False) -> None:
        """Free the producer id of a batch that is not sent again, unless the outcome is unknown."""
        state, batch.producer_state = batch.producer_state, None
        if state is None:
            return
        if not is_appended:
            if batch.may_be_appended or batch.split is not None:
                return
            state.advance(-batch.record_count)
        self.idle_producers.append(state)

    def fail_all(self, error: RaftlogError) -> None:
        """Fail everything that waits: access is denied, or the sender has ended."""
        built, self._built = self._built, []
        for batch in built:
            reason = f"{batch.last_problem}; then: {error.message()}"
            unknown = AppendUnknownError(path=self._path, reason=reason)
            batch.fail(unknown if batch.may_be_appended else error)
        while self._queue:
            request = self._pop()
            if _start(request):
                fail_request(request, error)

    # --- deadlines --------------------------------------------------------------------------------

    def expire(self, now_ms: float, unavailable: Callable[[], RaftlogError]) -> None:
        """Fail the waiting appends whose deadline has passed, and remove batches without others."""
        built, self._built = self._built, []
        for batch in built:
            self._expire_batch(batch, now_ms, unavailable)
            if batch.is_done:
                self.release(batch)
            else:
                self._built.append(batch)
        if not any(request.deadline_ms <= now_ms for request in self._queue):
            return
        for _ in range(len(self._queue)):
            request = self._queue[0]
            if request.deadline_ms > now_ms:
                self._queue.rotate(-1)
            elif _start(self._pop()):
                fail_request(request, unavailable())

    def _expire_batch(
        self, batch: ProducerBatch, now_ms: float, unavailable: Callable[[], RaftlogError]
    ) -> None:
        """Fail the appends of a batch that is not in flight whose deadline has passed.

        An append is refused (``unavailable``) only if it cannot be written any more: the batch
        was never appended, and is built again without it.
        """
        expired = batch.expired_requests(now_ms)
        if not expired:
            return
        is_removed = not batch.may_be_appended and remove_requests(
            batch, expired, self._settings, self._clock.wall_ms()
        )
        for request in expired:
            error = unavailable()
            if not is_removed:
                reason = batch.last_problem or "its batch is still to be sent"
                error = AppendUnknownError(path=self._path, reason=reason)
            if batch.split is not None:
                batch.split.fail(error)
            else:
                fail_request(request, error)


def _start(request: AppendRequest) -> bool:
    """Return whether an append is not cancelled. From now on it cannot be."""
    future = request.future
    return future.running() or (not future.done() and future.set_running_or_notify_cancel())
