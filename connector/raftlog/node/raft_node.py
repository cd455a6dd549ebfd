"""Node of a quorum without I/O: a replica, with the appends, requests and listeners on it.

Invariants:

1. A ``RaftNode`` has no thread, socket or timer. Its inputs are calls, its outputs are calls of its
   ``Runner``, in order: the driver of a process, a simulated node and the nodes of tests are
   runners of the same object. It is not thread-safe.
2. The first ``LogError``, or a listener that raises ``RaftlogError``, ends the node: pending
   appends complete with an unknown outcome, nothing is sent and no listener is called any more.
   Nothing is retried on a failed log, and a replica is not used after an incomplete step.
3. Pending appends, waiters and delayed fetches are checked after every step.
4. A leader whose disk is full resigns, if there are other voters: their disks may have space. It
   does so at most once in ``DISK_FULL_RESIGN_INTERVAL_MS``, in case all disks are full.

etcd: ``RawNode``. Kafka: ``KafkaRaftClient``, which ``KafkaRaftClientDriver`` runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

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
from raftlog.quorum.events import Event, RequestDropped, RequestReceived, Resign, ShutDown
from raftlog.quorum.messages import Request, Response
from raftlog.quorum.roles import Leader, Resigned
from raftlog.wire import LogIdentity

from .pending_appends import PendingAppends
from .purgatory import AppendPurgatory, Complete, FetchPurgatory, Timer
from .raft_client import CHUNK_BYTES_MAX, RaftListeners, ReplicaRaftClient
from .replica import Outgoing, Replica, RunSync

Notification: TypeAlias = AdvanceHighWatermark | LeaderChanged | RoleChanged | LogMessage
"""Outputs for logging and metrics."""
DISK_FULL_RESIGN_INTERVAL_MS: Final = 30_000
"""Minimum time between two resignations of a leader whose disk is full."""


class Runner(Protocol):
    """Outputs of a ``RaftNode``. No call may raise, except for a bug."""

    def send(self, request: Send, /) -> None:
        """Send a request to another node; its response, or ``SendFailed``, is a later event."""

    def run_sync(self, ticket: PendingSync, /) -> None:
        """Run ``ticket`` in any thread, then call ``complete_sync`` or ``fail_sync``. There is one
        at a time."""

    def notify(self, notification: Notification, /) -> None:
        """Log or count a change."""

    def stepped(self, *, may_deliver: bool) -> None:
        """Handle the end of a step: set a timer for ``next_deadline_ms``, and call ``deliver``
        until it returns False. ``may_deliver``: there may be records or leaders for listeners."""

    def submit_in(self, delay_ms: int, /) -> None:
        """Call ``submit`` after a delay, instead of after a longer one that was asked for before;
        without delay after the other appends that are received now."""

    def call_soon(self, call: Callable[[], None], /) -> object:
        """Call a function between later steps."""

    def call_later(self, delay_s: float, call: Callable[[], None], /) -> Timer:
        """Call a function after some seconds, as ``asyncio.loop.call_later``."""

    def failed(self, error: Exception, /) -> None:
        """Handle the end of the node: the first error of the log or a listener, or a bug."""


@dataclass(slots=True, eq=False)
class _Waiter:
    """Pending ``wait_until`` call."""

    is_due: Callable[[], bool]
    future: asyncio.Future[bool]


class RaftNode:
    """Replica with its pending appends, delayed requests, waiters and listeners."""

    def __init__(
        self,
        replica: Replica,
        identity: LogIdentity,
        runner: Runner,
        clock: Clock,
        *,
        chunk_bytes_max: int = CHUNK_BYTES_MAX,
    ) -> None:
        """``chunk_bytes_max``: bytes of one delivery to a listener."""
        self.replica: Final = replica
        self.identity: Final = identity
        self.fetches: Final = FetchPurgatory(
            replica, self.now_ms, runner.call_later, runner.call_soon
        )
        """Delayed fetches of consumers."""
        self.listeners: Final = RaftListeners(replica, chunk_bytes_max=chunk_bytes_max)
        self.raft_client: Final = ReplicaRaftClient(
            replica, self.act, self.time_ms, self._resign_soon_on_disk_full
        )
        """Access to the log for state machines on this node."""
        self.sync_count = 0
        """Number of syncs that were started."""
        self._clock = clock
        self._runner = runner
        self._appends = PendingAppends(replica, self._complete_append)
        self._purgatory = AppendPurgatory(replica.log.path, self.now_ms, runner.call_later)
        self._unsubmitted: list[AppendRequest] = []
        self._unsubmitted_bytes = 0
        self._submit_delay_ms: int | None = None
        self._replies: dict[int, Callable[[Response], None]] = {}
        self._next_request_id = 1
        self._waiters: list[_Waiter] = []
        self._resigned_ms: int | None = None
        self._is_over = False

    # --- state ------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Return the quorum's clock: monotonic, with an arbitrary zero."""
        return int(self._clock.now_ms())

    def time_ms(self) -> int:
        """Return the wall-clock time, in milliseconds since 1970."""
        return self._clock.wall_ms()

    @property
    def is_over(self) -> bool:
        """Return whether the node has ended, by a failure or by ``end``."""
        return self._is_over

    @property
    def next_deadline_ms(self) -> int | None:
        """Return the time by which ``step`` must handle ``TimePassed``, or None."""
        return self.replica.next_deadline_ms

    @property
    def waiting_append_count(self) -> int:
        """Return the number of submitted appends without a result."""
        return self._appends.waiting_count

    @property
    def unsubmitted_count(self) -> int:
        return len(self._unsubmitted)

    # --- events -----------------------------------------------------------------------------------

    def step(self, event: Event) -> None:
        """Pass an event to the replica, unless the node has ended."""
        self.act(lambda now_ms, time_ms: self.replica.step(event, now_ms=now_ms, time_ms=time_ms))

    def act(self, act: Callable[[int, int], list[Outgoing]]) -> None:
        """Call ``act`` with the quorum's time and the wall-clock time; execute its outputs."""
        if self._is_over:
            return
        try:
            self._act(act)
        except LogError as error:
            self.fail(error)
        except Exception as bug:
            self.fail(bug)
            raise

    def _act(self, act: Callable[[int, int], list[Outgoing]]) -> None:
        may_deliver = False
        for one in act(self.now_ms(), self.time_ms()):
            if self._is_over:
                return
            may_deliver |= self._dispatch(one)
        if self._is_over:
            return
        self._appends.poll()
        self._runner.stepped(may_deliver=may_deliver)
        if not self._is_over:
            self._wake()

    def _dispatch(self, outgoing: Outgoing) -> bool:
        """Execute one output of the replica; return whether it concerns listeners."""
        match outgoing:
            case Send():
                self._runner.send(outgoing)
            case Reply(request_id, response):
                reply = self._replies.pop(request_id, None)
                if reply is not None:
                    reply(response)
            case RunSync(ticket):
                self.sync_count += 1
                self._runner.run_sync(ticket)
            case ReadIndexConfirmed(ticket):
                self._appends.confirmed(ticket)
            case AdvanceHighWatermark() | LeaderChanged() | RoleChanged():
                self.listeners.handle(outgoing)
                self._runner.notify(outgoing)
                return True
            case LogMessage():
                self._runner.notify(outgoing)
        return False

    def complete_sync(self, ticket: PendingSync) -> None:
        """Handle the end of a successful sync."""
        self.act(
            lambda now_ms, time_ms: self.replica.complete_sync(
                ticket, now_ms=now_ms, time_ms=time_ms
            )
        )

    def fail_sync(self, ticket: PendingSync, error: LogError) -> None:
        """Handle a failed sync, which ends the node."""
        self.replica.fail_sync(ticket, error)
        self.fail(error)

    # --- requests of other nodes ------------------------------------------------------------------

    def receive(self, request: Request, reply: Callable[[Response], None]) -> int:
        """Pass a request to the replica; return its id for ``drop``.

        ``reply`` may be called before this returns.
        """
        request_id = self._next_request_id
        self._next_request_id += 1
        self._replies[request_id] = reply
        self.step(RequestReceived(request_id, request))
        return request_id

    def is_waiting(self, request_id: int) -> bool:
        """Return whether a request has no response yet."""
        return request_id in self._replies

    def drop(self, request_id: int) -> None:
        """Drop a request, whose connection is closed."""
        if self._replies.pop(request_id, None) is not None:
            self.step(RequestDropped(request_id))

    # --- appends ----------------------------------------------------------------------------------

    def append(
        self, request: AppendRequest, complete: Complete, *, timeout_ms: int | None = None
    ) -> None:
        """Append to the log of this leader, in the order of the calls.

        Appends until the next ``submit`` are written together: those received in one turn of the
        runner, and within ``linger.ms`` of the log. ``complete`` is called with the result when it
        can no longer change, or after ``timeout_ms`` with an unknown outcome: perhaps before this
        returns, or in a step of the replica, so that it must not raise.
        """
        if self._is_over:
            complete(self._unknown("the node is shutting down"))
            return
        self._purgatory.add(request, complete, timeout_ms)
        self._unsubmitted.append(request)
        delay_ms = self._linger_ms(request)
        if self._submit_delay_ms is None or delay_ms < self._submit_delay_ms:
            self._submit_delay_ms = delay_ms
            self._runner.submit_in(delay_ms)

    def _linger_ms(self, request: AppendRequest) -> int:
        """Return ``linger.ms``; 0 if a batch is full, or the request has no records."""
        config = self.replica.log.config
        if config.linger_ms and request.records:
            self._unsubmitted_bytes += request.byte_count()
            if self._unsubmitted_bytes < config.batch_bytes_max:
                return config.linger_ms
        return 0

    def submit(self) -> None:
        """Write the appends that were received since the last call."""
        self._submit_delay_ms, self._unsubmitted_bytes = None, 0
        requests, self._unsubmitted = self._unsubmitted, []
        self.act(
            lambda now_ms, time_ms: self._appends.submit(requests, now_ms=now_ms, time_ms=time_ms)
        )

    def _complete_append(self, request: AppendRequest, result: RequestResult) -> None:
        if isinstance(result, Failed) and isinstance(result.error, DiskFullError):
            self._resign_soon_on_disk_full()
        self._purgatory.complete(request, result)

    def _resign_soon_on_disk_full(self) -> None:
        self._runner.call_soon(self._resign_on_disk_full)

    def _resign_on_disk_full(self) -> None:
        """Resign, so that a voter with disk space may lead."""
        core, now_ms = self.replica.core, self.now_ms()
        last_ms = self._resigned_ms
        is_too_soon = last_ms is not None and now_ms - last_ms < DISK_FULL_RESIGN_INTERVAL_MS
        if self._is_over or not core.is_leader or len(core.voters) < 2 or is_too_soon:
            return
        self._resigned_ms = now_ms
        self._runner.notify(
            LogMessage("resigning: the disk is full, and another voter may have space")
        )
        self.step(Resign(core.epoch))

    def _unknown(self, reason: str) -> RequestResult:
        return failed(AppendUnknownError(path=self.replica.log.path, reason=reason))

    # --- listeners --------------------------------------------------------------------------------

    def deliver(self) -> bool:
        """Deliver one chunk to each listener; return whether there is more."""
        if self._is_over:
            return False
        try:
            return self.listeners.poll()
        except RaftlogError as error:
            self.fail(error)
            return False
        except Exception as bug:
            self.fail(bug)  # the listener has a part of a call
            raise

    def clean(self) -> bool:
        """Delete segments and snapshots beyond the retention limits; return whether there were any.

        Raises ``DiskFullError`` and ``LogLockedError``: then nothing has changed.
        """
        if self._is_over:
            return False
        try:
            return self.replica.clean(time_ms=self.time_ms())
        except (DiskFullError, LogLockedError):
            raise
        except LogError as error:
            self.fail(error)
            return False

    # --- waiting ----------------------------------------------------------------------------------

    async def wait_until(self, is_due: Callable[[], bool], *, timeout_ms: int) -> bool:
        """Wait until ``is_due`` returns True; return False after the timeout, or if the node has
        ended.

        ``is_due`` is checked now, and after every append, advance of the high watermark and leader
        change.
        """
        if is_due():
            return True
        if timeout_ms <= 0 or self._is_over:
            return False
        waiter = _Waiter(is_due, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        timer = self._runner.call_later(timeout_ms / 1000, lambda: _complete(waiter, False))
        try:
            return await waiter.future
        finally:
            timer.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _wake(self) -> None:
        for waiter in self._waiters:
            _complete_if_due(waiter)
        self.fetches.poll()

    # --- the end ----------------------------------------------------------------------------------

    def begin_shutdown(self) -> None:
        """Notify listeners, resign leadership and notify the voters."""
        self.listeners.begin_shutdown()
        self.step(ShutDown())

    def has_handed_over(self) -> bool:
        """Return whether the node no longer leads, and all other voters are notified."""
        core = self.replica.core
        if isinstance(core.role, Resigned):
            return all(voter.key.node_id == core.node_id for voter in core.voters)
        return not isinstance(core.role, Leader)

    def fail(self, error: Exception) -> None:
        """End the node after an error of the log or a listener, or a bug: a step may be
        incomplete. An error after its end is a consequence."""
        if self._is_over:
            return
        self._is_over = True
        self._runner.failed(error)
        self.end()

    def end(self, reason: str = "the node is shutting down") -> None:
        """Complete all that waits: appends with an unknown outcome for this reason. There are no
        outputs any more."""
        self._is_over = True
        self.listeners.close()
        self._appends.abandon(reason)
        self._purgatory.close(lambda: self._unknown(reason))
        self.fetches.close()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            _complete(waiter, False)


def _complete(waiter: _Waiter, value: bool) -> None:
    if not waiter.future.done():
        waiter.future.set_result(value)


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
