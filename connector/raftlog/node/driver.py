"""Driver: runs a ``RaftNode`` on an asyncio loop, with one timer, threads for syncs and a clock.

Everything except long syncs happens on the event loop, so the node needs no locks. There is one
sync of the log at a time, which covers all records appended before it started:

- On a disk that syncs fast, it runs on the event loop, after the messages of its step are sent, so
  that a leader's followers write at the same time (Kafka: the thread of ``KafkaRaftClient``; etcd:
  the goroutine of ``raftNode``). For a few records, switching to another thread and back takes
  longer than the sync, and many times as long on busy processors.
- On a slow disk, it runs in another thread while the event loop receives more requests.

If a fast disk stalls for longer than the fetch timeout, a leader loses its leadership, as in Kafka
and etcd, because its followers get no responses in that time.

A second thread syncs the snapshots that a state machine writes, a third one compacts, and a fourth
one copies segments to remote storage. The end of the node does not wait for the fourth thread,
because an object store may not answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, ParamSpec

from raftlog.clock import Clock
from raftlog.errors import LogError, RaftlogError
from raftlog.log.cleaning.compaction import Compaction, Throttle
from raftlog.log.writing.active_segment import PendingSync
from raftlog.quorum.effects import Send
from raftlog.quorum.events import Event, TimePassed
from raftlog.wire import LogIdentity

from .connection import FlushQueue
from .durations import DURATION_BUCKETS_S, SyncDurations
from .raft_node import Notification, RaftNode, RemoteStorage
from .replica import Replica
from .store_threads import StoreThreads

if TYPE_CHECKING:
    from raftlog.log.remote.tiering import RemoteLogRun

P = ParamSpec("P")


class Driver:
    """``Runner`` of one node, on the running event loop."""

    def __init__(
        self,
        replica: Replica,
        identity: LogIdentity,
        *,
        send: Callable[[Send], None],
        notify: Callable[[Notification], None],
        flush_queue: FlushQueue,
        clean_interval_ms: int,
        compaction_bytes_per_second: int = 0,
        clock: Clock | None = None,
        remote: RemoteStorage | None = None,
        buckets_s: Sequence[float] = DURATION_BUCKETS_S,
    ) -> None:
        """``send`` sends a request to another node; ``notify`` logs and counts. ``flush_queue`` has
        the connections to the node. ``compaction_bytes_per_second``: limit on the bytes that a
        compaction reads and writes; 0: no limit. ``buckets_s``: buckets for the durations of syncs
        and appends."""
        self._loop = asyncio.get_running_loop()
        self._flush_queue = flush_queue
        self.send: Final = send
        self.notify: Final = notify
        self.raft_node: Final = RaftNode(
            replica,
            identity,
            self,
            Clock() if clock is None else clock,
            clean_interval_ms=clean_interval_ms,
            remote=remote,
            buckets_s=buckets_s,
        )
        self.ended: Final[asyncio.Future[RaftlogError]] = self._loop.create_future()
        """Done when the node has failed: its result is the error; its exception is a bug."""
        self._timer: asyncio.Handle | None = None
        self._timer_ms = 0
        self._sync_threads = ThreadPoolExecutor(2, thread_name_prefix="raftlog-sync")
        self.sync_durations: Final = SyncDurations(buckets_s)
        self._syncing: asyncio.Future[float] | None = None
        self._loop_sync: PendingSync | None = None
        """Sync that runs on the event loop, at the end of ``_run`` or of its step."""
        self._is_loop_sync_queued = False
        self._is_running = False
        self._snapshot_syncs: set[asyncio.Future[None]] = set()
        self._cleaner_thread = ThreadPoolExecutor(1, thread_name_prefix="raftlog-cleaner")
        self._throttle: Final = Throttle(
            compaction_bytes_per_second, now_s=time.monotonic, pause=time.sleep
        )
        self._compacting: asyncio.Future[None] | None = None
        self._remote_thread = StoreThreads(1, name="raftlog-remote")
        self._is_closing = False

    def start(self) -> None:
        """Start the node."""
        self.handle(TimePassed())

    # --- inputs of the node -----------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """Pass an event that is not a request to the node."""
        self._run(self.raft_node.step, event)

    def _run(self, work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call an input of the node as a whole callback of the event loop: write the responses,
        then sync.

        There is no other iteration in between, nor before the messages that the sync permits: a
        follower's fetch, or a single voter's responses. Requests are not called this way, because
        all requests of an iteration share one sync.
        """
        self._is_running = True
        try:
            try:
                self._flush_queue.run(work, *args, **kwargs)
            finally:
                if self._loop_sync is not None and not self._is_loop_sync_queued:
                    self._flush_queue.run(self._sync_on_loop, self._loop_sync)
        finally:
            self._is_running = False
            self.set_timer()

    # --- outputs of the node ----------------------------------------------------------------------

    def set_timer(self) -> None:
        """Set the timer, unless the current one ends earlier; it is set again when that ends. So if
        every response postpones a deadline, they do not need a timer each."""
        if self._is_running:
            return  # called again at the end of ``_run``
        if self._loop_sync is not None and not self._is_loop_sync_queued:
            self._is_loop_sync_queued = True
            # after the flush of connections, at the end of this callback or already queued
            self._loop.call_soon(self._flush_queue.run, self._sync_on_loop, self._loop_sync)
        deadline_ms = self.raft_node.next_deadline_ms
        if deadline_ms is None or (self._timer is not None and self._timer_ms <= deadline_ms):
            return
        self._cancel_timer()
        self._timer_ms = deadline_ms
        delay_ms = deadline_ms - self.raft_node.now_ms()
        if delay_ms > 0:
            self._timer = self._loop.call_later(delay_ms / 1000, self._on_time)
        else:
            self._timer = self._loop.call_soon(self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._run(self.raft_node.pass_time)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def submit_soon(self) -> None:
        if self._is_running:
            self._loop.call_soon(self._submit)
        else:
            self._flush_queue.call_after(self._submit)

    def _submit(self) -> None:
        self._run(self.raft_node.submit)

    def run_sync(self, ticket: PendingSync) -> None:
        assert self._syncing is None, "one sync at a time"
        assert self._loop_sync is None, "one sync at a time"
        if self.sync_durations.are_short:
            self._loop_sync = ticket
            return
        self._syncing = self._loop.run_in_executor(self._sync_threads, self._run_timed, ticket)
        self._syncing.add_done_callback(lambda done: self._synced_in_thread(ticket, done))

    def _run_timed(self, ticket: PendingSync) -> float:
        """Run a sync in any thread; return how many seconds it took."""
        start_s = self._loop.time()
        ticket.run()
        return self._loop.time() - start_s

    def _sync_on_loop(self, ticket: PendingSync) -> None:
        self._loop_sync, self._is_loop_sync_queued = None, False
        if self.raft_node.is_over:
            return
        try:
            elapsed_s = self._run_timed(ticket)
        except LogError as error:
            self.raft_node.fail_sync(ticket, error)
        except Exception as bug:
            self.raft_node.fail(bug)
            raise
        else:
            self._synced(ticket, elapsed_s)

    def _synced_in_thread(self, ticket: PendingSync, done: asyncio.Future[float]) -> None:
        self._syncing = None
        error = done.exception()
        if error is None:
            self._synced(ticket, done.result())
        elif isinstance(error, LogError):
            self.raft_node.fail_sync(ticket, error)
        else:
            if isinstance(error, Exception):
                self.raft_node.fail(error)
            raise error

    def _synced(self, ticket: PendingSync, elapsed_s: float) -> None:
        self.sync_durations.add(elapsed_s)
        self.raft_node.complete_sync(ticket)

    def run_compaction(self, compaction: Compaction) -> None:
        def ran(done: asyncio.Future[None]) -> None:
            self._compacting = None
            error = done.exception()
            if error is None:
                self._run(self.raft_node.complete_compaction, compaction)
            elif isinstance(error, LogError):
                self._run(self.raft_node.fail_compaction, compaction, error)
            else:
                with compaction:
                    if isinstance(error, Exception):
                        self.raft_node.fail(error)
                    raise error

        work = partial(compaction.run, self._is_over, self._throttle)
        self._compacting = self._loop.run_in_executor(self._cleaner_thread, work)
        self._compacting.add_done_callback(ran)

    def run_remote(self, run: RemoteLogRun) -> None:
        is_running, closing = False, Lock()

        def work() -> None:
            nonlocal is_running
            is_running = True
            try:
                run.run(self._is_over)
            finally:
                with closing:
                    is_running = False
                    if self._is_over():  # ``ran`` may not be called, or only before
                        run.close()

        def ran(done: asyncio.Future[None]) -> None:
            if done.cancelled():
                with closing:
                    if not is_running:
                        run.close()
                return
            error = done.exception()
            if error is None or isinstance(error, RaftlogError):
                self._run(self.raft_node.complete_remote_run, run, error)
                return
            with run:
                if isinstance(error, Exception):
                    self.raft_node.fail(error)
                raise error

        self._remote_thread.run(work).add_done_callback(ran)

    def _is_over(self) -> bool:
        return self._is_closing or self.raft_node.is_over

    def sync_snapshot(
        self, sync: Callable[[], None], when_done: Callable[[Exception | None], None]
    ) -> None:
        """Run a snapshot's sync in another thread; then call ``when_done`` with its error."""

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
        """Resign leadership; return whether a later epoch began, or no other voter was running, in
        time."""
        self.raft_node.begin_shutdown()
        return await self.raft_node.wait_until(
            self.raft_node.has_handed_over, timeout_ms=timeout_ms
        )

    async def close(self) -> None:
        """Close the log, unless it failed. Pending appends fail with an unknown outcome, and a
        compaction is aborted. A run of remote storage is aborted as if by a crash: its thread ends
        after the request in progress."""
        self._is_closing = True
        self._remote_thread.close()
        while self._loop_sync is not None and not self.raft_node.is_over:
            await asyncio.sleep(0)
        while running := self._running_threads():
            await asyncio.wait(running)
            await asyncio.sleep(0)  # let their callbacks run first
        has_failed = self.raft_node.is_over
        self.raft_node.end()
        self._cancel_timer()
        if not has_failed:
            log = self.raft_node.replica.log
            await self._loop.run_in_executor(self._sync_threads, log.close)
        self._sync_threads.shutdown()
        self._cleaner_thread.shutdown()

    def _running_threads(self) -> set[asyncio.Future[Any]]:
        """Return the futures of the work in other threads."""
        found: set[asyncio.Future[Any]] = {*self._snapshot_syncs}
        return found | {one for one in (self._syncing, self._compacting) if one is not None}
