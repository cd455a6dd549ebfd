"""Driver: runs a ``RaftNode`` on an asyncio loop, with timers, threads for syncs and a clock.

Everything except the wait for a sync happens on the event loop, so the node needs no locks. One
sync of the log at a time runs in another thread, for all records appended before it started. The
sync of a snapshot that a state machine writes runs in a second thread, beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from raftlog.client.log_handle import Clock
from raftlog.errors import LogError, RaftlogError
from raftlog.log.writing.active_segment import PendingSync
from raftlog.quorum.effects import Send
from raftlog.quorum.events import TimePassed
from raftlog.wire import LogIdentity

from .raft_client import RaftListener
from .raft_node import Notification, RaftNode
from .replica import Replica


class Driver:
    """``Runner`` of one node, on the running event loop."""

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
        self._loop = asyncio.get_running_loop()
        self.call_soon: Final = self._loop.call_soon
        self.call_later: Final = self._loop.call_later
        self.send: Final = send
        self.notify: Final = notify
        self.raft_node: Final = RaftNode(
            replica, identity, self, Clock() if clock is None else clock
        )
        self.ended: Final[asyncio.Future[RaftlogError]] = self._loop.create_future()
        """Done when the node has failed: its result is the error, its exception a bug."""
        self._submitting: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self._sync_threads = ThreadPoolExecutor(2, thread_name_prefix="raftlog-sync")
        self._syncing: asyncio.Future[None] | None = None
        self._snapshot_syncs: set[asyncio.Future[None]] = set()
        self._is_delivering_later = False

    def start(self) -> None:
        """Start the node."""
        self.raft_node.step(TimePassed())

    def register(self, listener: RaftListener) -> None:
        """Add a listener, which receives the newest snapshot and all committed records after it."""
        self.raft_node.listeners.register(listener)
        self._deliver()

    # --- outputs of the node ----------------------------------------------------------------------

    def stepped(self, *, may_deliver: bool) -> None:
        if may_deliver:
            self._deliver()
        self._set_timer()

    def _deliver(self) -> None:
        """Deliver one chunk to each listener; continue in later iterations of the event loop."""
        if self.raft_node.deliver() and not self._is_delivering_later:
            self._is_delivering_later = True
            self._loop.call_soon(self._continue_delivering)

    def _continue_delivering(self) -> None:
        self._is_delivering_later = False
        self._deliver()

    def _set_timer(self) -> None:
        deadline_ms = self.raft_node.next_deadline_ms
        if deadline_ms == self._timer_ms and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_ms = deadline_ms
        if deadline_ms is not None:
            delay_ms = max(deadline_ms - self.raft_node.now_ms(), 0)
            self._timer = self._loop.call_later(delay_ms / 1000, self._on_time)

    def _on_time(self) -> None:
        self._timer, self._timer_ms = None, None
        self.raft_node.step(TimePassed())

    def submit_in(self, delay_ms: int) -> None:
        if self._submitting is not None:
            self._submitting.cancel()
        if delay_ms:
            self._submitting = self._loop.call_later(delay_ms / 1000, self.raft_node.submit)
        else:
            self._submitting = self._loop.call_soon(self.raft_node.submit)

    def run_sync(self, ticket: PendingSync) -> None:
        assert self._syncing is None, "one sync at a time"
        self._syncing = self._loop.run_in_executor(self._sync_threads, ticket.run)
        self._syncing.add_done_callback(lambda done: self._synced(ticket, done))

    def _synced(self, ticket: PendingSync, done: asyncio.Future[None]) -> None:
        self._syncing = None
        error = done.exception()
        if error is None:
            self.raft_node.complete_sync(ticket)
        elif isinstance(error, LogError):
            self.raft_node.fail_sync(ticket, error)
        else:
            if isinstance(error, Exception):
                self.raft_node.fail(error)
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

    # --- the end ----------------------------------------------------------------------------------

    def failed(self, error: Exception) -> None:
        if isinstance(error, RaftlogError):
            self.ended.set_result(error)
        else:
            self.ended.set_exception(error)

    async def hand_over(self, *, timeout_ms: int) -> bool:
        """Resign leadership and notify the voters; return whether that was done in time."""
        self.raft_node.begin_shutdown()
        return await self.raft_node.wait_until(
            self.raft_node.has_handed_over, timeout_ms=timeout_ms
        )

    async def close(self) -> None:
        """Close the log, unless it failed. Pending appends fail with an unknown outcome."""
        for handle in (self._timer, self._submitting):
            if handle is not None:
                handle.cancel()
        while syncs := {*self._snapshot_syncs, *([self._syncing] if self._syncing else ())}:
            await asyncio.wait(syncs)
            await asyncio.sleep(0)  # let their callbacks run first
        has_failed = self.raft_node.is_over
        self.raft_node.end()
        if not has_failed:
            log = self.raft_node.replica.log
            await self._loop.run_in_executor(self._sync_threads, log.close)
        self._sync_threads.shutdown()
