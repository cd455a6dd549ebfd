"""Replica: the quorum core together with its log. It executes the core's effects on the log.

Invariants:

1. No threads, sockets or clock: the node and the simulator drive the same code.
2. Effects on files are executed immediately, and their results are passed to the core before the
   next event. Effects outside the process are returned in order; the caller runs syncs.
3. A ``LogError`` that is raised here ends the replica, because an effect may be incomplete. The
   node must stop; its next start opens the log again.
4. A full disk does not end the replica. A follower fetches again later. A write that must precede
   any further step (vote, epoch) is retried. Until it succeeds the replica is stalled: it processes
   no events, and only its log can be read.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, Self, TypeAlias

from raftlog.errors import (
    CorruptBatchError,
    CorruptFileError,
    CorruptSnapshotError,
    DiskFullError,
    DivergedLogError,
    FutureEpochError,
    LogError,
    LogGapError,
    LogLockedError,
    LogReadOnlyError,
    NotLeaderError,
)
from raftlog.log.format.directory import QUORUM_STATE_NAME
from raftlog.log.reading.bootstrap import bootstrap_voters
from raftlog.log.reading.transactions import ValueKind
from raftlog.log.writing.active_segment import PendingSync
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.quorum_log import QuorumLog
from raftlog.log.writing.snapshots import SnapshotWriter
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.core import QuorumCore
from raftlog.quorum.effects import (
    AdvanceHighWatermark,
    AdvanceLogStart,
    AppendAsFollower,
    AppendLeaderChange,
    AppendVoters,
    Effect,
    ElectionState,
    InstallSnapshot,
    LeaderChanged,
    LogMessage,
    PersistElection,
    ReadIndexConfirmed,
    RejoinElections,
    Reply,
    ReplyWithRecords,
    ReplyWithSnapshot,
    RoleChanged,
    Send,
    StartSync,
    StoreSnapshotBytes,
    TruncateFully,
    TruncateToEndOfEpoch,
)
from raftlog.quorum.events import (
    Appended,
    AppendRefused,
    Event,
    LogStartAdvanced,
    RequestReceived,
    ResponseReceived,
    SendFailed,
    SnapshotInstalled,
    SnapshotRefused,
    SyncCompleted,
    TimePassed,
    Truncated,
    VotersAppended,
)
from raftlog.quorum.roles import Follower, Leader
from raftlog.quorum.state import InitialState
from raftlog.quorum.voters import Endpoint, Voter, VoterSet, VoterSetHistory
from raftlog.records.control import KRaftVoters
from raftlog.storage.protocol import WritableStorage

from .control_values import (
    election_state,
    epoch_head,
    quorum_state,
    voter_set,
    voters_head,
    voters_in,
    voters_record,
)

if TYPE_CHECKING:
    from raftlog.log.reading.remote_tier import OpenStore
    from raftlog.log.remote.manifest import ManifestCache, Surroundings
    from raftlog.log.remote.tiering import RemoteLogRun

EVENTS_QUEUED_MAX: Final = 10_000
"""Maximum number of queued events while a replica is stalled; further events from the network are
dropped."""
DISK_FULL_RETRY_MS: Final = 500
"""Interval at which a stalled replica retries its write."""


@dataclass(frozen=True, slots=True)
class RunSync:
    """Request to run ``ticket`` in any thread, then ``Replica.complete_sync`` or ``fail_sync``."""

    ticket: PendingSync


Outgoing: TypeAlias = (
    Send
    | Reply
    | LeaderChanged
    | RoleChanged
    | AdvanceHighWatermark
    | ReadIndexConfirmed
    | LogMessage
    | RunSync
    | SnapshotInstalled
)
"""Outputs for the node: messages to other nodes, log lines, syncs, installed snapshots."""


class Replica:
    """One node's replica of the log. Not thread-safe."""

    core_type: ClassVar[type[QuorumCore]] = QuorumCore

    def __init__(self, core: QuorumCore, log: QuorumLog) -> None:
        self.core: Final = core
        self.log: Final = log
        self._events: deque[Event] = deque()
        self._effects: deque[Effect] = deque()
        self._retry_at_ms: int | None = None
        self._outgoing: list[Outgoing] = []
        self._is_syncing = False
        self._is_sync_due = False
        self._time_ms = 0
        """Wall-clock time of the step, for records and snapshots."""
        self.has_listeners = False
        """Whether a state machine follows the log."""

    @classmethod
    def open(
        cls,
        storage: WritableStorage,
        directory: str,
        *,
        local_voter: Voter,
        voters: VoterSet,
        kraft_version: int,
        log_config: LogConfig,
        topic_id: str,
        config: QuorumConfig,
        jitter_ms: Callable[[int], int],
        now_ms: int,
        time_ms: int,
        bootstrap: tuple[tuple[Endpoint, ...], ...] = (),
    ) -> Self:
        """Open the replica in a directory, or create it.

        ``voters`` and ``kraft_version`` apply unless the log or the bootstrap checkpoint has
        others. ``now_ms`` is the quorum's time, ``time_ms`` the wall-clock time for records.

        If the durable part of the log is damaged, it is truncated there, with a backup of the
        removed bytes, and the replica does not vote until it has caught up. If it is the only
        voter, damage raises ``LogReadOnlyError``, or ``CorruptBatchError`` below the part that
        recovery checks. Raises ``CorruptFileError`` if this replica's vote is lost, and
        ``ForeignBatchError`` if another process wrote to the log.
        """
        log = QuorumLog.open_or_create(
            storage, directory, config=log_config, topic_id=topic_id, now_ms=time_ms
        )
        formatted = bootstrap_voters(storage, directory)
        if formatted is not None:
            voters, kraft_version = voter_set(formatted[0]), formatted[1]
        damage: LogReadOnlyError | CorruptBatchError | None = log.report.read_only
        end_offset, history = log.end_offset, None
        if damage is None:
            try:
                history = _voter_history(log, voters, kraft_version)
            except CorruptBatchError as error:  # below the part that recovery checks
                damage, end_offset = error, log.valid_end_offset()
        if damage is not None:
            is_alone = _is_only_voter(log, local_voter.key.node_id, voters, kraft_version)
            log.close()
            if is_alone:
                raise damage  # no other replica has the damaged records
            log = QuorumLog.open_damaged(
                storage,
                directory,
                end_offset=end_offset,
                reason=damage.reason,
                now_ms=time_ms,
            )
            if log.report.read_only is not None:
                raise log.report.read_only
        if history is None:
            history = _voter_history(log, voters, kraft_version)
        initial_state = InitialState(
            local_voter=local_voter,
            log=log,
            election=_stored_election(log, storage.join(directory, QUORUM_STATE_NAME)),
            voters=history,
            config=config,
            jitter_ms=jitter_ms,
            bootstrap=bootstrap,
            is_recovering=log.is_out_of_election,
        )
        return cls(cls.core_type(initial_state, now_ms=now_ms), log)

    # --- events -----------------------------------------------------------------------------------

    def step(self, event: Event, *, now_ms: int, time_ms: int) -> list[Outgoing]:
        """Process one event and return the outputs for the node.

        While the replica is stalled, events are queued. After a storage error the replica has
        ended.
        """
        self._time_ms = time_ms
        if self._retry_at_ms is None:
            self._effects += self.core.step(event, now_ms=now_ms)
            self._process(now_ms)
        else:
            self._enqueue(event)
            if now_ms >= self._retry_at_ms:
                self._process(now_ms)
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    @property
    def is_stalled_on_disk_full(self) -> bool:
        """Return whether a full disk prevents a write that must precede any further step."""
        return self._retry_at_ms is not None

    def append_refusal(self) -> NotLeaderError | DiskFullError | None:
        """Return why users cannot append now; None if they can."""
        epoch = self.core.epoch
        if not self.core.is_leader:
            return NotLeaderError(epoch=epoch, current_epoch=epoch)
        if self.is_stalled_on_disk_full:
            reason = "the first batch of the leader's epoch could not be written"
            return DiskFullError(path=self.log.path, reason=reason)
        return None

    @property
    def next_deadline_ms(self) -> int | None:
        """Return the time by which the node must send ``TimePassed``, or None."""
        if self._retry_at_ms is not None:
            return self._retry_at_ms
        return self.core.next_deadline_ms

    def _enqueue(self, event: Event) -> None:
        """Queue an event while the replica is stalled; events from the network may be dropped."""
        if isinstance(event, RequestReceived | ResponseReceived | SendFailed):
            if len(self._events) < EVENTS_QUEUED_MAX:
                self._events.append(event)
        elif not isinstance(event, TimePassed):
            self._events.append(event)

    def _process(self, now_ms: int) -> None:
        """Process events and effects in order until the replica is stalled or there are no more."""
        while True:
            while self._effects:
                try:
                    self._execute(self._effects[0])
                except DiskFullError as error:
                    self._stall(error, now_ms)
                    return
                self._effects.popleft()
            if self._retry_at_ms is not None:
                self._retry_at_ms = None
                self._outgoing.append(LogMessage("resumed: the disk has space again"))
                self._events.append(TimePassed())
            if not self._events:
                return
            self._effects += self.core.step(self._events.popleft(), now_ms=now_ms)

    def _stall(self, error: DiskFullError, now_ms: int) -> None:
        if not isinstance(self._effects[0], PersistElection | AppendLeaderChange):
            raise error
        if not self.is_stalled_on_disk_full:
            self._outgoing.append(
                LogMessage(f"stalled until the disk has space: {error.message()}")
            )
        self._retry_at_ms = now_ms + DISK_FULL_RETRY_MS

    def begin_snapshot(self, end_offset: int, *, time_ms: int) -> SnapshotWriter | None:
        """Begin a snapshot of the committed records below ``end_offset``, with its voters.

        Works like ``ReplicatedLog.begin_snapshot``, but also returns None if the voters at
        ``end_offset`` are no longer known because there is a newer snapshot.
        """
        found = self._voters_at(end_offset)
        if found is None:
            return None
        kraft_version, voters = found
        self._drop_abandoned_snapshot()
        return self.log.begin_snapshot(
            self.log.snapshot_id_at(end_offset),
            now_ms=time_ms,
            kraft_version=kraft_version,
            voters=voters,
        )

    def clean(self, *, time_ms: int) -> bool:
        """Delete segments and snapshots beyond the retention limits; return whether there were any.

        Call it every few minutes. Works like ``ReplicatedLog.clean``. A ``DiskFullError`` or
        ``LogLockedError`` has changed nothing; call again later.
        """
        self._drop_abandoned_snapshot()
        return self.log.clean(now_ms=time_ms, voters_at=self._voters_at)

    def deletion_refusal(self) -> str | None:
        """Return why this log's records are not deleted on request; None if they are."""
        config = self.log.config
        if self.has_listeners or config.values is not ValueKind.BYTES:
            return "the snapshots of its state machine determine its start"
        if self.log.remote.is_damaged:
            return "its list of remote segments is damaged"
        return None if config.cleanup_policy.deletes else "its cleanup.policy is not delete"

    def begin_remote_run(
        self, open_store: OpenStore, context: Surroundings, *, cache: ManifestCache
    ) -> RemoteLogRun | None:
        """Begin a run like ``ReplicatedLog.begin_remote_run``. The leader copies and deletes; the
        others read which segments they may delete locally."""
        role = self.core.role
        return self.log.begin_remote_run(
            open_store,
            context,
            cache=cache,
            node_id=self.core.node_id,
            is_leader=isinstance(role, Leader) and role.has_committed_in_epoch,
        )

    def delete_records(self, offset: int, *, time_ms: int) -> int:
        """Start the log at the batch of a committed ``offset`` (``QuorumLog.delete_records``)."""
        self._drop_abandoned_snapshot()
        return self.log.delete_records(offset, now_ms=time_ms, voters_at=self._voters_at)

    def _drop_abandoned_snapshot(self) -> None:
        """Drop a partly fetched snapshot and its lock if its leader no longer leads."""
        role = self.core.role
        if not isinstance(role, Follower) or role.snapshot is None:
            self.log.drop_received_snapshot()

    def _voters_at(self, end_offset: int) -> tuple[int, KRaftVoters | None] | None:
        """Return kraft.version and the voters for a snapshot. With version 0 the voters are
        configured, and a snapshot contains none."""
        found = self.core.voters_at(end_offset)
        if found is None:
            return None
        voters, kraft_version = found
        return kraft_version, voters_record(voters) if kraft_version else None

    def appended(self, *, now_ms: int, time_ms: int) -> list[Outgoing]:
        """Sync and replicate users' records that were appended to ``log`` in the leader's epoch."""
        self._execute(StartSync())
        return self.step(Appended(), now_ms=now_ms, time_ms=time_ms)

    def complete_sync(self, ticket: PendingSync, *, now_ms: int, time_ms: int) -> list[Outgoing]:
        """Handle the end of a successful sync."""
        self._is_syncing = False
        self.log.complete_sync(ticket)
        if self._is_sync_due:
            self._is_sync_due = False
            self._execute(StartSync())
        if self._retry_at_ms is None and not self.core.awaits_sync:
            outgoing, self._outgoing = self._outgoing, []
            return outgoing
        return self.step(SyncCompleted(), now_ms=now_ms, time_ms=time_ms)

    def fail_sync(self, ticket: PendingSync, error: LogError) -> None:
        """Handle a failed sync: close the log. The replica has ended."""
        self.log.fail_sync(ticket, error)

    # --- effects ----------------------------------------------------------------------------------

    def _execute(self, effect: Effect) -> None:
        log = self.log
        match effect:  # the most frequent first
            case StartSync():
                self._start_sync()
            case Send() | Reply():
                self._outgoing.append(effect)
            case AdvanceHighWatermark(offset):
                log.advance_high_watermark(offset)
                self._outgoing.append(effect)
            case AppendAsFollower():
                self._append_as_follower(effect)
            case ReplyWithRecords():
                records = log.read_bytes(effect.start_offset, effect.max_bytes)
                response = effect.response.with_records(
                    records,
                    compacted_offset=log.compacted_offset,
                    tombstone_start_offset=log.tombstone_start_offset,
                    remote_store_id=log.remote_store_id,
                )
                self._outgoing.append(Reply(effect.request_id, response))
            case LeaderChanged() | RoleChanged() | ReadIndexConfirmed() | LogMessage():
                self._outgoing.append(effect)
            case PersistElection(state):
                log.write_election_state(quorum_state(state))
            case RejoinElections():
                log.rejoin_election()
            case ReplyWithSnapshot():
                self._reply_with_snapshot(effect)
            case _:
                self._change_log(effect)

    def _change_log(self, effect: Effect) -> None:
        """Execute an effect whose result is an event."""
        log = self.log
        match effect:
            case AppendLeaderChange():
                log.begin_epoch(
                    effect.epoch, epoch_head(effect, self.core.node_id), now_ms=self._time_ms
                )
                self._note_appended()
            case AppendVoters():
                self._append_voters(effect)
            case TruncateToEndOfEpoch(diverging):
                log.truncate_to_end_of_epoch(diverging)
                self._events.append(Truncated())
            case TruncateFully(offset):
                log.truncate_fully(offset)
            case AdvanceLogStart(offset):
                self._follow_log_start(offset)
            case StoreSnapshotBytes():
                self._store_snapshot_bytes(effect)
            case InstallSnapshot():
                self._install_snapshot(effect)
            case _:
                raise AssertionError(f"unknown effect: {effect}")

    def _append_as_follower(self, effect: AppendAsFollower) -> None:
        try:
            self.log.append_as_follower(
                effect.records,
                leader_epoch=effect.leader_epoch,
                compacted_offset=effect.compacted_offset,
                tombstone_start_offset=effect.tombstone_start_offset,
            )
        except (CorruptBatchError, LogGapError, DivergedLogError, FutureEpochError) as error:
            self._events.append(AppendRefused(error.message()))
        except DiskFullError as error:
            self._note_fetched_voters()  # a part may be appended
            self._events.append(AppendRefused(error.message(), is_disk_full=True))
        else:
            self._note_fetched_voters()

    def _append_voters(self, effect: AppendVoters) -> None:
        try:
            self.log.append_control(
                voters_head(effect.voter_set, effect.kraft_version), now_ms=self._time_ms
            )
        except DiskFullError as error:
            self._events.append(AppendRefused(error.message(), is_disk_full=True))
        else:
            self._note_appended()

    def _note_appended(self) -> None:
        self._events.append(Appended(self._appended_voters()))

    def _note_fetched_voters(self) -> None:
        voters = self._appended_voters()
        if voters:
            self._events.append(Appended(voters))

    def _appended_voters(self) -> tuple[VotersAppended, ...]:
        return tuple(voters_in(self.log.drain_control_records()))

    def _store_snapshot_bytes(self, effect: StoreSnapshotBytes) -> None:
        try:
            self.log.store_snapshot_bytes(effect.snapshot_id, effect.position, effect.data)
        except DiskFullError as error:
            refused = SnapshotRefused(effect.snapshot_id, error.message(), is_disk_full=True)
            self._events.append(refused)
        except LogLockedError:  # held by the writer of this node's own snapshot
            reason = "this node is writing a snapshot of its own"
            self._events.append(SnapshotRefused(effect.snapshot_id, reason))

    def _install_snapshot(self, effect: InstallSnapshot) -> None:
        if not self.log.is_receiving_snapshot:
            return  # its last bytes were refused, because the disk is full
        try:
            snapshot = self.log.install_snapshot(effect.snapshot_id)
        except CorruptSnapshotError as error:
            self._events.append(SnapshotRefused(effect.snapshot_id, error.message()))
            return
        voters = None if snapshot.voters is None else voter_set(snapshot.voters)
        kraft_version = snapshot.kraft_version or None
        installed = SnapshotInstalled(effect.snapshot_id, voters, kraft_version)
        self._events.append(installed)
        self._outgoing.append(installed)

    def _follow_log_start(self, offset: int) -> None:
        if self.deletion_refusal() is None:
            # if the disk is full or a snapshot is being written, the next response repeats it
            with contextlib.suppress(DiskFullError, LogLockedError):
                self.delete_records(offset, time_ms=self._time_ms)
        self._events.append(LogStartAdvanced())

    def _reply_with_snapshot(self, effect: ReplyWithSnapshot) -> None:
        response = effect.response
        data = self.log.read_snapshot_bytes(
            response.snapshot_id, response.position, effect.max_bytes
        )
        self._outgoing.append(Reply(effect.request_id, replace(response, data=data)))

    def _start_sync(self) -> None:
        if self._is_syncing:
            self._is_sync_due = True
        else:
            self._is_syncing = True
            self._outgoing.append(RunSync(self.log.start_sync()))


def _voter_history(log: QuorumLog, voters: VoterSet, kraft_version: int) -> VoterSetHistory:
    """Return the voter sets in the snapshot and the log; ``voters`` apply before the first one."""
    history = VoterSetHistory(voters, kraft_version)
    head = log.snapshot_voters()
    if head is not None:
        offset, named, version = head
        history.reset(offset, None if named is None else voter_set(named), version)
    for found in voters_in(log.control_records()):
        if found.voters is not None:
            history.add_voters(found.offset, found.voters)
        if found.kraft_version is not None:
            history.add_kraft_version(found.offset, found.kraft_version)
    return history


def _stored_election(log: QuorumLog, path: str) -> ElectionState:
    """Read this replica's epoch and vote, and check its log against them.

    Raises ``CorruptFileError`` if they are lost, and ``ForeignBatchError``.
    """
    written = log.read_election_state()
    log.check_own_batches()
    if written is not None:
        return election_state(written)
    if log.last_fetched_epoch:
        raise CorruptFileError(
            path=path,
            reason="the file is missing but the log is not empty, so the vote of this node is "
            "unknown (see `raftlog node recover --help`)",
        )
    return ElectionState(epoch=0)


def _is_only_voter(log: QuorumLog, node_id: int, voters: VoterSet, kraft_version: int) -> bool:
    """Return whether no other replica has the damaged records of this log.

    The readable part of the log may contain only old voters. If another node leads the stored
    epoch, that node has all records that were committed before.
    """
    with contextlib.suppress(CorruptFileError):
        election = log.read_election_state()
        if election is not None and election.leader_id not in (None, node_id):
            return False
    with contextlib.suppress(CorruptBatchError, CorruptFileError):
        voters = _voter_history(log, voters, kraft_version).latest
    return voters.node_ids == (node_id,)
