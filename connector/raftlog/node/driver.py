"""Driver of a replica on an event loop: its inputs are time, syncs, requests and appends.

1. Everything except the wait for a sync happens on the event loop, so the replica needs no locks.
   One sync of the log at a time runs in another thread, for all records appended before it started.
   The sync of a snapshot that a state machine writes runs in a second thread, beside it.
2. The first ``LogError``, or a listener that raises ``RaftlogError``, ends the replica: pending
   appends fail with an unknown outcome, and ``ended`` has the error. Nothing is retried on a failed
   log, and a replica is not used after an incomplete step.
3. A leader whose disk is full resigns, if there are other voters: their disks may have space. It
   does so at most once in ``DISK_FULL_RESIGN_INTERVAL_MS``, in case all disks are full.
4. Waiters are checked after every step, delayed fetches of consumers by ``FetchPurgatory``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeAlias

from raftlog.append import AppendRequest, Failed, RequestResult, failed
from raftlog.client.log_handle import Clock
from raftlog.errors import (
    AppendUnknownError,
    DiskFullError,
    LogError,
    LogLockedError,
    RaftlogError,
)
from raftlog.log.writing.active_segment import PendingSync
from raftlog.quorum.effects import (
    AdvanceHighWatermark,
    LeaderChanged,
    LogMessage,
    ReadIndexConfirmed,
    Reply,
    RoleChanged,
    Send,
)
from raftlog.quorum.events import (
    Event,
    RequestDropped,
    RequestReceived,
    Resign,
    ShutDown,
    TimePassed,
)
from raftlog.quorum.messages import Request, Response
from raftlog.quorum.roles import Leader, Resigned
from raftlog.wire import LogIdentity

from .pending_appends import PendingAppends
from .purgatory import AppendPurgatory, Complete, FetchPurgatory
from .raft_client import RaftListener, RaftListeners, ReplicaRaftClient
from .replica import Outgoing, Replica, RunSync

DISK_FULL_RESIGN_INTERVAL_MS: Final = 30_000
"""Minimum time between two resignations of a leader whose disk is full."""
Notification: TypeAlias = AdvanceHighWatermark | LeaderChanged | RoleChanged | LogMessage
"""Outputs for logging and metrics."""
_Act: TypeAlias = Callable[[int, int], list[Outgoing]]


@dataclass(slots=True, eq=False)
class _Waiter:
    """Pending ``wait_until`` call."""

    is_due: Callable[[], bool]
    future: asyncio.Future[bool]


class Driver:
    """Driver of one replica, on the running event loop."""

    def __init__(
        self,
        replica: Replica,
        identity: LogIdentity,
        *,
        send: Callable[[Send], None],
        notify: Callable[[Notification], None],
        clock: Clock | None = None,
    ) -> None:
        """``send`` sends a request to another node, ``notify`` logs and counts."""
        self.replica: Final = replica
        self.identity: Final = identity
        self.ended: Final[asyncio.Future[RaftlogError]] = asyncio.get_running_loop().create_future()
        """Done when the replica has failed: its result is the error, its exception a bug."""
        self.sync_count = 0
        self._clock = Clock() if clock is None else clock
        self._send = send
        self._notify = notify
        self._loop = asyncio.get_running_loop()
        self._appends = PendingAppends(replica, self._complete_append)
        self._purgatory = AppendPurgatory(replica.log.path, self.now_ms, self._loop.call_later)
        self.fetches: Final = FetchPurgatory(
            replica, self.now_ms, self._loop.call_later, self._loop.call_soon
        )
        """Delayed fetches of consumers."""
        self._unsubmitted: list[AppendRequest] = []
        self._unsubmitted_bytes = 0
        self._submitting: asyncio.Handle | None = None
        self._replies: dict[int, Callable[[Response], None]] = {}
        self._next_request_id = 1
        self._waiters: list[_Waiter] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self._sync_threads = ThreadPoolExecutor(2, thread_name_prefix="raftlog-sync")
        self._syncing: asyncio.Future[None] | None = None
        self._snapshot_syncs: set[asyncio.Future[None]] = set()
        self.raft_client: Final = ReplicaRaftClient(
            replica, self.act, self.time_ms, self._resign_on_disk_full_soon
        )
        """Access to the log for state machines on this node."""
        self._listeners = RaftListeners(replica)
        self._is_notifying_later = False
        self._is_over = False
        self._resigned_ms: int | None = None

    # --- time -------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Return the quorum's clock: monotonic, with an arbitrary zero."""
        return int(self._clock.now_ms())

    def time_ms(self) -> int:
        """Return the wall-clock time, in milliseconds since 1970."""
        return self._clock.wall_ms()

    @property
    def is_over(self) -> bool:
        """Return whether the replica has ended, by a failure or by ``close``."""
        return self._is_over

    @property
    def waiting_append_count(self) -> int:
        return self._appends.waiting_count

    # --- events -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the replica."""
        self.handle(TimePassed())

    def handle(self, event: Event) -> None:
        """Pass an event to the replica, unless it has ended."""
        self.act(lambda now_ms, time_ms: self.replica.step(event, now_ms=now_ms, time_ms=time_ms))

    def act(self, act: _Act) -> None:
        """Call ``act`` with the quorum's time and the wall-clock time; execute its outputs."""
        if self.is_over:
            return
        try:
            self._act(act)
        except LogError as error:
            self._end(error)
        except Exception as bug:
            self._break(bug)
            raise

    def _act(self, act: _Act) -> None:
        may_complete_appends = False
        for one in act(self.now_ms(), self.time_ms()):
            self._listeners.handle(one)
            may_complete_appends |= self._dispatch(one)
        if may_complete_appends:
            self._appends.poll()
            self._notify_listeners()
        self._wake()
        self._set_timer()

    def register(self, listener: RaftListener) -> None:
        """Add a listener, which receives the newest snapshot and all committed records after it."""
        self._listeners.register(listener)
        self._notify_listeners()

    def _notify_listeners(self) -> None:
        """Deliver one chunk to each listener; continue in later iterations of the event loop."""
        if self.is_over:
            return
        try:
            has_more = self._listeners.poll()
        except RaftlogError as error:
            self._end(error)
            return
        except Exception as bug:
            self._break(bug)  # the listener has a part of a call
            raise
        if has_more and not self._is_notifying_later:
            self._is_notifying_later = True
            self._loop.call_soon(self._continue_notifying_listeners)

    def _continue_notifying_listeners(self) -> None:
        self._is_notifying_later = False
        self._notify_listeners()

    def receive(self, request: Request, reply: Callable[[Response], None]) -> int:
        """Pass a request to the replica; return its id for ``drop``.

        ``reply`` may be called before this returns.
        """
        request_id = self._next_request_id
        self._next_request_id += 1
        self._replies[request_id] = reply
        self.handle(RequestReceived(request_id, request))
        return request_id

    def is_waiting(self, request_id: int) -> bool:
        """Return whether a request has no response yet."""
        return request_id in self._replies

    def drop(self, request_id: int) -> None:
        """Drop a request, whose connection is closed."""
        if self._replies.pop(request_id, None) is not None:
            self.handle(RequestDropped(request_id))

    def append(
        self, request: AppendRequest, complete: Complete, *, timeout_ms: int | None = None
    ) -> None:
        """Append to the log of this leader, in the order of the calls.

        Appends of one iteration of the event loop, and within ``linger.ms`` of the log, are written
        together. ``complete`` is called with the result when it can no longer change, or after
        ``timeout_ms`` with an unknown outcome: perhaps before this returns, or in a step of the
        replica, so that it must not raise.
        """
        if self.is_over:
            complete(self._unknown())
            return
        self._purgatory.add(request, complete, timeout_ms)
        self._unsubmitted.append(request)
        self._submit_soon(request)

    def _submit_soon(self, request: AppendRequest) -> None:
        """Submit after ``linger.ms``; soon if a batch is full, or the request has no records."""
        config = self.replica.log.config
        if config.linger_ms and request.records:
            self._unsubmitted_bytes += request.byte_count()
            if self._unsubmitted_bytes < config.batch_bytes_max:
                if self._submitting is None:
                    delay_s = config.linger_ms / 1000
                    self._submitting = self._loop.call_later(delay_s, self._submit)
                return
        if isinstance(self._submitting, asyncio.TimerHandle):
            self._submitting.cancel()
            self._submitting = None
        if self._submitting is None:
            self._submitting = self._loop.call_soon(self._submit)

    def _submit(self) -> None:
        self._submitting, self._unsubmitted_bytes = None, 0
        requests, self._unsubmitted = self._unsubmitted, []
        self.act(
            lambda now_ms, time_ms: self._appends.submit(requests, now_ms=now_ms, time_ms=time_ms)
        )

    def clean(self) -> bool:
        """Delete segments and snapshots beyond the retention limits; return whether there were any.

        Raises ``DiskFullError`` and ``LogLockedError``: then nothing has changed.
        """
        if self.is_over:
            return False
        try:
            return self.replica.clean(time_ms=self.time_ms())
        except (DiskFullError, LogLockedError):
            raise
        except LogError as error:
            self._end(error)
            return False

    async def wait_until(self, is_due: Callable[[], bool], *, timeout_ms: int) -> bool:
        """Wait until ``is_due`` returns True; return False after the timeout, or if the replica has
        ended.

        ``is_due`` is checked now, and after every append, advance of the high watermark and leader
        change.
        """
        if is_due():
            return True
        if timeout_ms <= 0 or self.is_over:
            return False
        waiter = _Waiter(is_due, self._loop.create_future())
        self._waiters.append(waiter)
        timer = self._loop.call_later(timeout_ms / 1000, self._abandon, waiter)
        try:
            return await waiter.future
        finally:
            timer.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    # --- the end ----------------------------------------------------------------------------------

    async def hand_over(self, *, timeout_ms: int) -> bool:
        """Resign leadership and notify the voters; return whether that was done in time."""
        self._listeners.begin_shutdown()
        self.handle(ShutDown())
        return await self.wait_until(self._has_handed_over, timeout_ms=timeout_ms)

    def _has_handed_over(self) -> bool:
        """Return whether the node no longer leads, and all other voters are notified."""
        core = self.replica.core
        if isinstance(core.role, Resigned):
            return all(voter.key.node_id == core.node_id for voter in core.voters)
        return not isinstance(core.role, Leader)

    async def close(self) -> None:
        """Close the log, unless it failed. Pending appends fail with an unknown outcome."""
        for handle in (self._timer, self._submitting):
            if handle is not None:
                handle.cancel()
        while syncs := {*self._snapshot_syncs, *([self._syncing] if self._syncing else ())}:
            await asyncio.wait(syncs)
            await asyncio.sleep(0)  # let their callbacks run first
        has_failed = self._is_over
        self._end(None)
        if not has_failed:
            await self._loop.run_in_executor(self._sync_threads, self.replica.log.close)
        self._sync_threads.shutdown()

    def _end(self, error: RaftlogError | None) -> None:
        self._is_over = True
        if error is not None and not self.ended.done():
            self.ended.set_result(error)
        self._appends.abandon("the node is shutting down")
        self._purgatory.close(self._unknown)
        self.fetches.close()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.future.done():
                waiter.future.set_result(False)

    def _break(self, bug: Exception) -> None:
        """End the replica after a bug: a step may be incomplete."""
        if not self.ended.done():
            self.ended.set_exception(bug)
        self._end(None)

    def _unknown(self) -> RequestResult:
        reason = "the node is shutting down"
        return failed(AppendUnknownError(path=self.replica.log.path, reason=reason))

    # --- outputs ----------------------------------------------------------------------------------

    def _dispatch(self, outgoing: Outgoing) -> bool:
        """Execute one output of the replica; return whether it can complete appends."""
        match outgoing:
            case Send():
                self._send(outgoing)
            case Reply(request_id, response):
                reply = self._replies.pop(request_id, None)
                if reply is not None:
                    reply(response)
            case RunSync(ticket):
                self._run_sync(ticket)
            case ReadIndexConfirmed(ticket):
                self._appends.confirmed(ticket)
            case AdvanceHighWatermark() | LeaderChanged() | RoleChanged():
                self._notify(outgoing)
                return True
            case LogMessage():
                self._notify(outgoing)
        return False

    def _run_sync(self, ticket: PendingSync) -> None:
        assert self._syncing is None, "one sync at a time"
        self.sync_count += 1
        self._syncing = self._loop.run_in_executor(self._sync_threads, ticket.run)
        self._syncing.add_done_callback(lambda done: self._synced(ticket, done))

    def _synced(self, ticket: PendingSync, done: asyncio.Future[None]) -> None:
        self._syncing = None
        error = done.exception()
        if error is None:
            self.act(
                lambda now_ms, time_ms: self.replica.complete_sync(
                    ticket, now_ms=now_ms, time_ms=time_ms
                )
            )
        elif isinstance(error, LogError):
            self.replica.fail_sync(ticket, error)
            self._end(error)
        else:
            if isinstance(error, Exception):
                self._break(error)
            raise error

    def sync_snapshot(
        self, sync: Callable[[], None], when_done: Callable[[Exception | None], None]
    ) -> None:
        """Run the sync of a snapshot in another thread; then call ``when_done`` with its error."""

        def synced(done: asyncio.Future[None]) -> None:
            self._snapshot_syncs.discard(done)
            error = done.exception()
            if error is not None and not isinstance(error, Exception):
                raise error
            when_done(error)

        syncing = self._loop.run_in_executor(self._sync_threads, sync)
        self._snapshot_syncs.add(syncing)
        syncing.add_done_callback(synced)

    def _complete_append(self, request: AppendRequest, result: RequestResult) -> None:
        if isinstance(result, Failed) and isinstance(result.error, DiskFullError):
            self._resign_on_disk_full_soon()
        self._purgatory.complete(request, result)

    def _resign_on_disk_full_soon(self) -> None:
        self._loop.call_soon(self._resign_on_disk_full)

    def _resign_on_disk_full(self) -> None:
        """Resign, so that a voter with disk space may lead."""
        core, now_ms = self.replica.core, self.now_ms()
        last_ms = self._resigned_ms
        is_too_soon = last_ms is not None and now_ms - last_ms < DISK_FULL_RESIGN_INTERVAL_MS
        if self.is_over or not core.is_leader or len(core.voters) < 2 or is_too_soon:
            return
        self._resigned_ms = now_ms
        self._notify(LogMessage("resigning: the disk is full, and another voter may have space"))
        self.handle(Resign(core.epoch))

    # --- waiting ----------------------------------------------------------------------------------

    def _wake(self) -> None:
        for waiter in self._waiters:
            _complete_if_due(waiter)
        self.fetches.poll()

    def _abandon(self, waiter: _Waiter) -> None:
        if not waiter.future.done():
            waiter.future.set_result(False)

    def _set_timer(self) -> None:
        deadline_ms = self.replica.next_deadline_ms
        if deadline_ms == self._timer_ms and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_ms = deadline_ms
        if deadline_ms is not None:
            delay_ms = max(deadline_ms - self.now_ms(), 0)
            self._timer = self._loop.call_later(delay_ms / 1000, self._on_time)

    def _on_time(self) -> None:
        self._timer, self._timer_ms = None, None
        self.handle(TimePassed())


def _complete_if_due(waiter: _Waiter) -> None:
    """Complete a waiter if its condition holds."""
    if waiter.future.done():
        return
    try:
        is_due = waiter.is_due()
    except Exception as bug:  # noqa: BLE001 - the waiter's own, and no other's
        waiter.future.set_exception(bug)
        return
    if is_due:
        waiter.future.set_result(True)
