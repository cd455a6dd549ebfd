"""Node of a quorum without I/O: a replica, with the appends, requests and listeners on it.

Invariants:

1. A ``RaftNode`` has no thread, socket or timer. Its inputs are calls, and its outputs are calls to
   its ``Runner``, in order: a process's driver, a simulated node and the nodes in tests are runners
   of the same object. It is not thread-safe. One deadline, ``next_deadline_ms``, covers everything
   that waits for a time or for a later turn of the runner.
2. The first ``LogError``, or a listener that raises ``RaftlogError``, ends the node: pending
   appends complete with an unknown outcome, nothing more is sent, and no listener is called again.
   Nothing is retried on a failed log, and a replica is not used after an incomplete step.
3. Pending appends, waiters and delayed fetches are checked after every step.
4. A compaction runs in another thread. Its segments are replaced in later turns, one per turn.
5. A leader whose disk is full resigns if there are other voters, because their disks may have
   space. It does so at most once in ``DISK_FULL_RESIGN_INTERVAL_MS``, in case all disks are full.

etcd: ``RawNode``. Kafka: ``KafkaRaftClient``, which ``KafkaRaftClientDriver`` runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from raftlog.append import AppendRequest, Done, RequestResult, failed
from raftlog.clock import Clock
from raftlog.errors import (
    AppendUnknownError,
    CorruptBatchError,
    CorruptFileError,
    DiskFailedError,
    DiskFullError,
    LogError,
    LogLockedError,
    RaftlogError,
)
from raftlog.log.writing.active_segment import PendingSync
from raftlog.printable import store_location
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
    LogStartAdvanced,
    RequestDropped,
    RequestReceived,
    Resign,
    ShutDown,
    SnapshotInstalled,
    TimePassed,
)
from raftlog.quorum.messages import Request, Response
from raftlog.quorum.roles import Follower, Leader, Resigned
from raftlog.storage.errors import RemoteStoreDiffersError
from raftlog.wire import LogIdentity

from .durations import DURATION_BUCKETS_S, DurationHistogram
from .pending_appends import PendingAppends
from .purgatory import (
    AppendPurgatory,
    Complete,
    Deadlines,
    FetchPurgatory,
    ThrottledChannel,
    ThrottledChannels,
    WaitingFetch,
)
from .raft_client import CHUNK_BYTES_MAX, RaftListener, RaftListeners, ReplicaRaftClient
from .replica import Outgoing, Replica, RunSync

if TYPE_CHECKING:
    from raftlog.log.cleaning.compaction import Compaction
    from raftlog.log.format.remote_chain import RemoteChain
    from raftlog.log.reading.remote_tier import OpenStore
    from raftlog.log.remote.manifest import ManifestCache, Surroundings
    from raftlog.log.remote.tiering import RemoteCounts, RemoteLogRun


@dataclass(frozen=True, slots=True)
class LogCleaned:
    """Segments or snapshots beyond the retention limits were deleted."""

    log_start_offset: int


@dataclass(frozen=True, slots=True)
class LogCompacted:
    """Segments were compacted: their number, and their bytes before and after."""

    segment_count: int
    byte_count_before: int
    byte_count_after: int


@dataclass(frozen=True, slots=True)
class SegmentsCopied:
    """Segments were copied to remote storage, or deleted there."""

    counts: RemoteCounts


@dataclass(slots=True)
class RemoteTotals:
    """Work of all runs of remote storage since the start, and what the last run left undone."""

    copied_segments: int = 0
    copied_bytes: int = 0
    deleted_segments: int = 0
    errors: int = 0
    read_errors: int = 0
    lag_segments: int = 0
    lag_bytes: int = 0

    def add(self, counts: RemoteCounts, *, has_failed: bool) -> None:
        """Add a run."""
        self.copied_segments += counts.copied_segments
        self.copied_bytes += counts.copied_bytes
        self.deleted_segments += counts.deleted_segments
        self.errors += has_failed
        self.set_lag(counts)

    def set_lag(self, counts: RemoteCounts) -> None:
        """Set what a run left undone or has not copied yet."""
        self.lag_segments, self.lag_bytes = counts.lag_segments, counts.lag_bytes


class NodeCounts:
    """What a node has done since its start, for its metrics."""

    def __init__(self, buckets_s: Sequence[float]) -> None:
        self.syncs = 0
        """Syncs of the log that were started."""
        self.append_durations: Final = DurationHistogram(buckets_s)
        """From the receipt of an append to its commit."""
        self.compactions = self.compacted_bytes_before = self.compacted_bytes_after = 0
        """Compactions, and the bytes of the segments that they replaced, before and after."""
        self.follower_fetches = self.redirected_fetches = 0
        """Consumer fetches that this node answered as a follower, and those that it redirected to a
        follower as the leader."""
        self.remote: Final = RemoteTotals()


@dataclass(frozen=True, slots=True)
class RemoteStorage:
    """Access to object stores: the function that opens one, and the clock and random source.

    For clients' reads it has the number of threads, how many reads may wait for one, and the time
    after which a read fails (Kafka: ``remote.log.reader.threads``,
    ``remote.log.reader.max.pending.tasks``, ``remote.fetch.max.wait.ms``).
    """

    open_store: OpenStore
    surroundings: Surroundings
    reader_threads: int
    reader_max_pending_tasks: int
    fetch_max_wait_ms: int


@dataclass(frozen=True, slots=True)
class CleaningRefused:
    """Nothing was deleted, compacted or copied; the next attempt is after the interval."""

    error: RaftlogError


Notification: TypeAlias = (
    AdvanceHighWatermark
    | LeaderChanged
    | RoleChanged
    | LogMessage
    | LogCleaned
    | LogCompacted
    | SegmentsCopied
    | CleaningRefused
)
"""Outputs for logging and metrics."""
_END: Final = object()
DISK_FULL_RESIGN_INTERVAL_MS: Final = 30_000
"""Minimum time between two resignations of a leader whose disk is full."""
RACKS_MAX: Final = 256
"""Maximum number of nodes, voters and observers, whose racks are stored."""


class Runner(Protocol):
    """Outputs of a ``RaftNode``. No call may raise, except for a bug."""

    def send(self, request: Send, /) -> None:
        """Send a request to another node; its response, or ``SendFailed``, is a later event."""

    def run_sync(self, ticket: PendingSync, /) -> None:
        """Run ``ticket`` in any thread, then call ``complete_sync`` or ``fail_sync``. There is only
        one at a time."""

    def run_compaction(self, compaction: Compaction, /) -> None:
        """Run ``compaction`` in any thread until it ends or ``is_over``, then call
        ``complete_compaction`` or ``fail_compaction``. There is one at a time."""

    def run_remote(self, run: RemoteLogRun, /) -> None:
        """Run ``run`` in any thread until it ends or ``is_over``, then call
        ``complete_remote_run``. There is one at a time."""

    def notify(self, notification: Notification, /) -> None:
        """Log or count a change."""

    def set_timer(self) -> None:
        """Call ``pass_time`` at ``next_deadline_ms``, or in a later turn if that is now. This is
        the last output of each step, and the output of a new deadline between steps."""

    def submit_soon(self) -> None:
        """Call ``submit`` after the other appends that are being received now."""

    def failed(self, error: Exception, /) -> None:
        """Handle the end of the node: the first error of the log or a listener, or a bug."""


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
        clean_interval_ms: int | None = None,
        remote: RemoteStorage | None = None,
        buckets_s: Sequence[float] = DURATION_BUCKETS_S,
    ) -> None:
        """``chunk_bytes_max``: maximum bytes of one delivery to a listener.
        ``clean_interval_ms``: time between two checks of the retention limits; None without
        checks. ``remote``: None for a node that does not use remote storage. ``buckets_s``:
        buckets for the durations of appends."""
        self.replica: Final = replica
        self.identity: Final = identity
        self.fetches: Final = FetchPurgatory(replica)
        """Delayed fetches of consumers."""
        self.racks: Final[dict[int, str]] = {}
        """Racks of other nodes by node id, as named in their last fetch from this node; nodes
        without a rack are not included."""
        self.throttled: Final = ThrottledChannels()
        """Connections that are muted because their clients exceed a quota."""
        self.expiries: Final = Deadlines[Callable[[], None]]()
        """Functions to call when the time limit of a read from remote storage has passed."""
        self.listeners: Final = RaftListeners(replica, chunk_bytes_max=chunk_bytes_max)
        self.raft_client: Final = ReplicaRaftClient(
            replica, self.act, self.time_ms, self._resign_soon_on_disk_full
        )
        """Access to the log for state machines on this node."""
        self.remote: Final = remote
        self.counts: Final = NodeCounts(buckets_s)
        self._remote_run: RemoteLogRun | None = None
        self._remote_steps_before = 0
        """The run's steps at the last check."""
        self._remote_run_epoch = self._remote_list_epoch = -1
        """The epoch when the run began, and that of the last successful run."""
        self._is_remote_run_outdated = False
        """Whether a snapshot was installed since the run began."""
        self._manifest_cache: ManifestCache = {}
        self._clock = clock
        self._runner = runner
        self._clean_interval_ms = clean_interval_ms
        self._clean_at_ms: int | None = None
        self._compaction: Compaction | None = None
        self._replacing: Iterator[None] | None = None
        """Remaining steps of a compaction that has run."""
        self._clean_later()
        self._appends = PendingAppends(replica, self._complete_append)
        self._purgatory = AppendPurgatory(replica.log.path)
        self._deadlines: Final[tuple[Deadlines[Any], ...]] = (
            self._purgatory.deadlines,
            self.fetches.deadlines,
            self.throttled.deadlines,
            self.expiries,
        )
        self._unsubmitted: list[AppendRequest] = []
        self._unsubmitted_bytes = 0
        self._submit_at_ms: int | None = None
        """End of the linger time of the appends that were received since the last ``submit``."""
        self._is_submitting_soon = self._is_delivery_left = self._is_resigning_soon = False
        self._replies: dict[int, Callable[[Response], None]] = {}
        self._next_request_id = 1
        self._waiters: dict[asyncio.Future[None], int] = {}
        """Futures of ``wait_until`` calls, with their deadlines."""
        self._resigned_ms: int | None = None
        self._is_over = False

    # --- state ------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Return the time of the quorum's clock, which is monotonic with an arbitrary zero."""
        return int(self._clock.now_ms())

    def time_ms(self) -> int:
        """Return the wall-clock time, in milliseconds since 1970."""
        return self._clock.wall_ms()

    @property
    def remote_chain(self) -> RemoteChain | None:
        """Remote segments of the log, as of the last run."""
        return None if self.remote is None else self.replica.log.remote.chain()

    @property
    def has_current_remote_list(self) -> bool:
        """Whether the list of remote segments was read in this epoch. An older one may contain
        segments that the leader of an earlier epoch has deleted."""
        return self._remote_list_epoch == self.replica.core.epoch

    @property
    def is_over(self) -> bool:
        """Return whether the node has ended, by a failure or by ``end``."""
        return self._is_over

    @property
    def next_deadline_ms(self) -> int | None:
        """Return the time of the next ``pass_time``: now if some work was left for a later turn;
        None if nothing waits."""
        if self._is_over:
            return None
        if self._is_delivery_left or self._is_resigning_soon or self.fetches.has_checks_left:
            return self.now_ms()
        if self._replacing is not None:
            return self.now_ms()
        at_ms = self.replica.next_deadline_ms
        for deadlines in self._deadlines:
            other_ms = deadlines.lowest
            if other_ms is not None and (at_ms is None or other_ms < at_ms):
                at_ms = other_ms
        for other_ms in (self._submit_at_ms, self._clean_at_ms, *self._waiters.values()):
            if other_ms is not None and (at_ms is None or other_ms < at_ms):
                at_ms = other_ms
        return at_ms

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
        self.act(self.replica.step, event)

    def pass_time(self) -> None:
        """Do what is due at this time. A call before ``next_deadline_ms`` does nothing."""
        if self._is_over:
            return
        now_ms = self.now_ms()
        try:
            if self._is_resigning_soon:
                self._resign_on_disk_full()
            if self._is_delivery_left:
                self.deliver()
            self.fetches.pass_time(now_ms)
            self._purgatory.expire(now_ms)
            self.throttled.expire(now_ms)
            self.expiries.expire(now_ms, lambda expire: expire())
            self._wake(now_ms)
            if _is_due(self._submit_at_ms, now_ms):
                self.submit()
            if _is_due(self._clean_at_ms, now_ms):
                self._clean_later()
                self.clean()
                self.compact()
                self._look_at_remote_run()
                self.copy_to_remote()
            if self._replacing is not None:
                self._replace_next(self._replacing)
            if _is_due(self.replica.next_deadline_ms, now_ms):
                self.step(TimePassed())
        finally:  # even after a bug in the end of a request
            self._set_timer()

    def _set_timer(self) -> None:
        if not self._is_over:
            self._runner.set_timer()

    def act(self, act: Callable[..., list[Outgoing]], *arguments: object) -> None:
        """Call ``act`` with its arguments, and with the quorum's time as ``now_ms`` and the
        wall-clock time as ``time_ms``; execute its outputs."""
        if self._is_over:
            return
        try:
            now_ms, time_ms = int(self._clock.now_ms()), self._clock.wall_ms()
            self._execute(act(*arguments, now_ms=now_ms, time_ms=time_ms))
        except LogError as error:
            self.fail(error)
        except Exception as bug:
            self.fail(bug)
            raise

    def _execute(self, outputs: list[Outgoing]) -> None:
        may_deliver = False
        for one in outputs:
            if self._is_over:
                return
            may_deliver |= self._dispatch(one)
        if self._is_over:
            return
        self._appends.poll()
        if may_deliver:
            self.deliver()
        if not self._is_over:
            if self._waiters:
                self._wake()
            if self.fetches.deadlines.lowest is not None:
                self.fetches.poll()
            self._runner.set_timer()

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
                self.counts.syncs += 1
                self._runner.run_sync(ticket)
            case ReadIndexConfirmed(ticket):
                self._appends.confirmed(ticket)
            case AdvanceHighWatermark():
                self._runner.notify(outgoing)
                return self.replica.has_listeners
            case LeaderChanged() | RoleChanged():
                self.listeners.handle(outgoing)
                self._runner.notify(outgoing)
                return True
            case LogMessage():
                self._runner.notify(outgoing)
            case SnapshotInstalled():
                # the log now starts later; if this node leads, its clients need what is before that
                self._is_remote_run_outdated = self._remote_run is not None
                self.copy_to_remote()
        return False

    def complete_sync(self, ticket: PendingSync) -> None:
        """Handle the end of a successful sync."""
        self.act(self.replica.complete_sync, ticket)

    def fail_sync(self, ticket: PendingSync, error: LogError) -> None:
        """Handle a failed sync, which ends the node."""
        self.replica.fail_sync(ticket, error)
        self.fail(error)

    # --- requests of other nodes ------------------------------------------------------------------

    def note_rack(self, node_id: int, rack: str) -> None:
        """Record the rack that a replica named in a fetch; empty for none."""
        self.racks.pop(node_id, None)
        if rack and len(self.racks) < RACKS_MAX:
            self.racks[node_id] = rack

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
        """Drop a request whose connection is closed."""
        if self._replies.pop(request_id, None) is not None:
            self.step(RequestDropped(request_id))

    # --- appends ----------------------------------------------------------------------------------

    def append(
        self, request: AppendRequest, complete: Complete, *, timeout_ms: int | None = None
    ) -> None:
        """Append to this leader's log, in the order of the calls.

        All appends until the next ``submit`` are written together: those received in one turn of
        the runner, or within the log's ``linger.ms``. ``complete`` is called with the result when
        that can no longer change, or with an unknown outcome after ``timeout_ms``. It may be called
        before this returns or in a step of the replica, so it must not raise.
        """
        if self._is_over:
            complete(self._unknown("the node is shutting down"))
            return
        request.received_ms = self._clock.now_ms()
        now_ms = int(request.received_ms)
        self._purgatory.add(request, complete, now_ms=now_ms, timeout_ms=timeout_ms)
        self._unsubmitted.append(request)
        linger_ms = self._linger_ms(request)
        if not linger_ms and not self._is_submitting_soon:
            self._is_submitting_soon = True
            self._runner.submit_soon()
        elif linger_ms:
            if self._submit_at_ms is None:
                self._submit_at_ms = now_ms + linger_ms
            self._set_timer()  # also for a timeout before that

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
        self._submit_at_ms, self._unsubmitted_bytes = None, 0
        self._is_submitting_soon = False
        requests, self._unsubmitted = self._unsubmitted, []
        self.act(self._appends.submit, requests)

    def _complete_append(self, request: AppendRequest, result: RequestResult) -> None:
        if isinstance(result, Done):
            if result.value.last_offset >= result.value.base_offset:
                elapsed_ms = self._clock.now_ms() - request.received_ms
                self.counts.append_durations.add(elapsed_ms / 1_000)
        elif isinstance(result.error, DiskFullError):
            self._resign_soon_on_disk_full()
        self._purgatory.complete(request, result)

    def _resign_soon_on_disk_full(self) -> None:
        self._is_resigning_soon = True
        self._set_timer()

    def _resign_on_disk_full(self) -> None:
        """Resign, so that a voter with disk space can lead."""
        self._is_resigning_soon = False
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

    def register(self, listener: RaftListener) -> None:
        """Add a listener, which receives the newest snapshot and all committed records after it."""
        self.listeners.register(listener)
        self.deliver()
        self._set_timer()

    def deliver(self) -> None:
        """Deliver one chunk to each listener. ``pass_time`` delivers the rest."""
        if self._is_over:
            return
        self._is_delivery_left = False
        try:
            is_left = self.listeners.poll()
        except RaftlogError as error:
            self.fail(error)
        except Exception as bug:
            self.fail(bug)  # the listener has handled only a part of a call
            raise
        else:
            # a call from a listener may have caused more for a listener that was called earlier
            self._is_delivery_left |= is_left

    def clean(self) -> bool:
        """Delete segments and snapshots beyond the retention limits; return whether there were any.
        If the disk is full or another process holds the lock, nothing changes."""
        is_changed = False
        if not self._is_over:
            try:
                is_changed = self.replica.clean(time_ms=self.time_ms())
            except (DiskFullError, LogLockedError) as error:
                self._runner.notify(CleaningRefused(error))
            except LogError as error:
                self.fail(error)
        if is_changed:
            self._runner.notify(LogCleaned(self.replica.log.log_start_offset))
        return is_changed

    def compact(self) -> None:
        """Begin the compaction that is due, unless one is running.

        While a replica is fetching compacted records, the leader retains tombstones. Otherwise a
        replica that is slower than ``delete.retention.ms`` would fetch its log from the start
        repeatedly.
        """
        if self._is_over or self._compaction is not None:
            return
        try:
            self._compaction = self.replica.log.begin_compaction(
                now_ms=self.time_ms(), keeps_tombstones=self.keeps_tombstones
            )
        except (CorruptBatchError, CorruptFileError, DiskFullError) as error:
            self._runner.notify(CleaningRefused(error))
        except LogError as error:
            self.fail(error)
        if self._compaction is not None:
            self._runner.run_compaction(self._compaction)

    @property
    def keeps_tombstones(self) -> bool:
        """Whether a compaction keeps tombstones, since a replica is fetching compacted records."""
        return self.replica.core.has_replica_below(self.replica.log.compacted_offset)

    def complete_compaction(self, compaction: Compaction) -> None:
        """Handle the end of a compaction's run; its segments are replaced in later turns."""
        if self._is_over:
            self._close_compaction(compaction)
            return
        self._replacing = self.replica.log.replace_compacted(compaction)
        self._set_timer()

    def fail_compaction(self, compaction: Compaction, error: LogError) -> None:
        """Handle a failed run, which has changed nothing. The next one is after the interval."""
        self._close_compaction(compaction)
        if self._is_over:
            return
        if isinstance(error, DiskFailedError):
            self.fail(error)
        else:
            self._runner.notify(CleaningRefused(error))

    def _replace_next(self, steps: Iterator[None]) -> None:
        """Replace the next segment, or end the compaction."""
        compaction = self._compaction
        assert compaction is not None, "its segments are being replaced"
        try:
            if next(steps, _END) is not _END:
                return
        except DiskFullError as error:  # each earlier step is complete
            self._runner.notify(CleaningRefused(error))
        except LogError as error:
            self.fail(error)
            return
        self._close_compaction(compaction)
        if compaction.replaced_byte_counts:
            before, after = map(sum, zip(*compaction.replaced_byte_counts, strict=True))
            count = len(compaction.replaced_byte_counts)
            self.counts.compactions += 1
            self.counts.compacted_bytes_before += before
            self.counts.compacted_bytes_after += after
            self._runner.notify(LogCompacted(count, before, after))

    def _close_compaction(self, compaction: Compaction) -> None:
        self._compaction = self._replacing = None
        with contextlib.suppress(LogError):  # the next one deletes the files
            compaction.close()

    def copy_to_remote(self) -> None:
        """Begin a run of remote storage, unless one is running. If the properties that name the
        log's objects are damaged, there is no run; local and remote segments can still be read."""
        if self._is_over or self._remote_run is not None or self.remote is None:
            return
        self._remote_steps_before = 0
        role = self.replica.core.role
        if isinstance(role, Follower) and role.has_other_remote_store:
            self.counts.remote.errors += 1
            self._runner.notify(CleaningRefused(self._other_store(role)))
            return
        try:
            self._remote_run = self.replica.begin_remote_run(
                self.remote.open_store, self.remote.surroundings, cache=self._manifest_cache
            )
        except (CorruptFileError, DiskFullError) as error:
            self.counts.remote.errors += 1
            self._runner.notify(CleaningRefused(error))
        except LogError as error:
            self.fail(error)
        if self._remote_run is not None:
            self._remote_run_epoch = self.replica.core.epoch
            self._runner.run_remote(self._remote_run)

    def _other_store(self, role: Follower) -> RemoteStoreDiffersError:
        log = self.replica.log
        location = store_location(log.config.remote_storage_uri)
        return RemoteStoreDiffersError(path=log.path, location=location, leader_id=role.leader_id)

    def _look_at_remote_run(self) -> None:
        """Report a run without progress since the last check: it does not end, so nothing is copied
        and no error is raised."""
        run = self._remote_run
        if run is None:
            return
        if run.step_count == self._remote_steps_before:
            self.counts.remote.errors += 1
            self.counts.remote.set_lag(run.counts)
            self._runner.notify(CleaningRefused(run.no_response()))
        self._remote_steps_before = run.step_count

    def complete_remote_run(self, run: RemoteLogRun, error: RaftlogError | None = None) -> None:
        """Handle the end of a run: local segments that were copied may now be deleted. A failed run
        changes nothing here. The next run is after the interval, or now if a snapshot was installed
        during this one, which may have read the manifest before that."""
        self._remote_run = None
        with run:
            self.counts.remote.add(run.counts, has_failed=error is not None)
            if self._is_over:
                return
            if isinstance(error, DiskFailedError):
                self.fail(error)
            elif error is not None:
                self._runner.notify(CleaningRefused(error))
            else:
                self._complete_remote(run)
        if self._is_remote_run_outdated:
            self._is_remote_run_outdated = False
            self.copy_to_remote()

    def _complete_remote(self, run: RemoteLogRun) -> None:
        try:
            self.replica.log.complete_remote_run(run)
            self._remote_list_epoch = self._remote_run_epoch
        except DiskFullError as error:
            self._runner.notify(CleaningRefused(error))
        except LogError as error:
            self.fail(error)
        if run.counts.copied_segments or run.counts.deleted_segments:
            self._runner.notify(SegmentsCopied(run.counts))
        self.clean()

    def delete_records(self, offset: int) -> int:
        """Delete this leader's records below the batch of a committed ``offset``; return that
        batch's offset, or ``offset`` itself if the log has remote storage.

        The followers learn the new start from their fetches. Raises ``DiskFullError`` and
        ``LogLockedError``, and any other ``LogError``, which ends the node.
        """
        log = self.replica.log
        before = log.log_start_offset, log.earliest_offset
        try:
            start = self.replica.delete_records(offset, time_ms=self.time_ms())
        except (DiskFullError, LogLockedError):
            raise
        except LogError as error:
            self.fail(error)
            raise
        if log.log_start_offset > before[0]:
            self._runner.notify(LogCleaned(log.log_start_offset))
        if (log.log_start_offset, log.earliest_offset) != before:
            self.step(LogStartAdvanced())
        return start

    def _clean_later(self) -> None:
        if self._clean_interval_ms is not None:
            self._clean_at_ms = self.now_ms() + self._clean_interval_ms

    # --- waiting ----------------------------------------------------------------------------------

    def delay(self, fetch: WaitingFetch, timeout_ms: int) -> None:
        """Delay a consumer's fetch until it is due, but at most for ``timeout_ms``."""
        self.fetches.add(fetch, self.now_ms() + timeout_ms)
        self._set_timer()

    def throttle(self, channel: ThrottledChannel, throttle_ms: int) -> None:
        """Mute a connection for a time, unless it is already muted for longer."""
        self.throttled.add(channel, self.now_ms() + throttle_ms)
        self._set_timer()

    def expire_after(self, timeout_ms: int, expire: Callable[[], None]) -> int:
        """Call ``expire``, which must not raise, after a time unless it is removed from
        ``expiries``; return its deadline there."""
        deadline_ms = self.now_ms() + timeout_ms
        self.expiries.add(deadline_ms, expire)
        self._set_timer()
        return deadline_ms

    async def wait_until(self, is_due: Callable[[], bool], *, timeout_ms: int) -> bool:
        """Wait until ``is_due`` returns True; return False after the timeout or if the node has
        ended.

        ``is_due`` is called now and after steps, in the caller's task, so it may miss a state that
        has changed back.
        """
        deadline_ms = self.now_ms() + timeout_ms
        while not is_due():
            if self._is_over or self.now_ms() >= deadline_ms:
                return False
            stepped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters[stepped] = deadline_ms
            self._set_timer()
            try:
                await stepped
            finally:
                self._waiters.pop(stepped, None)
        return True

    def _wake(self, deadline_ms_max: float = math.inf) -> None:
        """Continue all waits, or only those whose deadline has passed."""
        for stepped in [one for one, at_ms in self._waiters.items() if at_ms <= deadline_ms_max]:
            del self._waiters[stepped]
            if not stepped.done():
                stepped.set_result(None)

    # --- the end ----------------------------------------------------------------------------------

    def begin_shutdown(self) -> None:
        """Notify listeners, resign leadership and notify the voters."""
        self.listeners.begin_shutdown()
        self.step(ShutDown())

    def has_handed_over(self) -> bool:
        """Return whether the node does not wait for a successor: it does not lead the current
        epoch, or it has resigned and the hosts of all other voters refuse connections, so no other
        voter is running."""
        core, role = self.replica.core, self.replica.core.role
        if isinstance(role, Resigned):
            return all(
                voter.key.node_id == core.node_id or voter.key.node_id in role.refusing_voters
                for voter in core.voters
            )
        return not isinstance(role, Leader)

    def fail(self, error: Exception) -> None:
        """End the node after an error of the log or a listener, or a bug, because a step may be
        incomplete. Errors after its end are consequences."""
        if self._is_over:
            return
        self._is_over = True
        self._runner.failed(error)
        self.end()

    def end(self, reason: str = "the node is shutting down") -> None:
        """Complete everything that waits; appends get an unknown outcome with this reason. There
        are no outputs after this."""
        self._is_over = True
        if self._replacing is not None and self._compaction is not None:
            self._close_compaction(self._compaction)
        self.listeners.close()
        self._appends.abandon(reason)
        self._purgatory.close(lambda: self._unknown(reason))
        self.fetches.close()
        self._wake()


def _is_due(deadline_ms: int | None, now_ms: int) -> bool:
    return deadline_ms is not None and deadline_ms <= now_ms
