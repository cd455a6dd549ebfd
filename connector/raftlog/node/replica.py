"""A replica on its storage: the core decides, and what it asks for is done to the log, in order.

Rules of this file:

1. No thread, socket or clock: the node drives it, and so does the simulator, with the same files.
2. Effects on files are carried out at once, and what they answer is told to the core before the
   next event. What must leave the process is returned, in order; a sync is run by the driver.
3. A ``LogError`` that is raised here ends the replica: what it last asked for may be half done.
   Whoever drives it stops, and opens it again.
4. A full disk ends nothing. A follower asks again later. What a replica must write down before it
   may go on (its vote, its epoch) it tries again and again: until then it stands still, as if it
   were paused, and only its log can be read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self, TypeAlias

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
)
from raftlog.log.names import QUORUM_STATE_NAME
from raftlog.log.writing.bootstrap import bootstrap_voters
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.quorum_log import QuorumLog
from raftlog.log.writing.snapshot_writer import SnapshotWriter
from raftlog.log.writing.sync_state import PendingSync
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.core import QuorumCore
from raftlog.quorum.effects import (
    AdvanceHighWatermark,
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
    TruncateToEndOfEpoch,
)
from raftlog.quorum.events import (
    Appended,
    AppendRefused,
    Event,
    RequestReceived,
    ResponseReceived,
    SendFailed,
    SnapshotInstalled,
    SnapshotRefused,
    SyncCompleted,
    TimePassed,
    Truncated,
)
from raftlog.quorum.roles import Follower
from raftlog.quorum.state import InitialState
from raftlog.quorum.voters import Endpoint, Voter, VoterSet, VoterSetHistory
from raftlog.records.control import KRaftVoters
from raftlog.storage.protocol import WritableStorage

from .control_values import (
    election_state,
    epoch_head,
    quorum_state,
    voter_set,
    voters_in,
    voters_record,
)

EVENTS_QUEUED_MAX: Final = 10_000
"""So many events of the network wait for a replica that stands still; what is more is lost."""
DISK_FULL_RETRY_MS: Final = 500
"""How often a replica that stands still looks for room."""


@dataclass(frozen=True, slots=True)
class RunSync:
    """Run the ticket, in any thread; then ``Replica.complete_sync`` or ``fail_sync``."""

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
)
"""What the driver has to do: speak to others, tell users, sync."""


class Replica:
    """One node's part of a quorum. Not shared between threads."""

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
        self._now_ms = 0

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
        """Open what is in a directory, or make it. ``voters`` and ``kraft_version`` hold as long as
        the log says nothing else, nor the checkpoint that a dynamic quorum was formatted with.
        ``now_ms`` is the quorum's clock, ``time_ms`` that of records.

        A log that is damaged where it was durable is cut there, what goes is saved, and the replica
        does not vote until it has caught up; the only voter's, by what is left of the log, is
        ``LogReadOnlyError`` or, in front of what recovery looks at, ``CorruptBatchError``. Raises
        ``CorruptFileError`` if nobody knows any more whom this replica voted for.
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
            except CorruptBatchError as error:  # in front of what recovery looked at
                damage, end_offset = error, log.valid_end_offset()
        if damage is not None:
            is_alone = _voters_left(log, voters, kraft_version).node_ids == (
                local_voter.key.node_id,
            )
            log.close()
            if is_alone:
                raise damage  # nobody else has what is gone
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

    # --- what happens -----------------------------------------------------------------------------

    def step(self, event: Event, *, now_ms: int, time_ms: int) -> list[Outgoing]:
        """Take one event, and do what follows from it; what is left to do is returned.

        While it stands still events wait. Raises what the storage raises: then it is over.
        """
        self._now_ms = time_ms
        self._enqueue(event)
        if self._retry_at_ms is None or now_ms >= self._retry_at_ms:
            self._process(now_ms)
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    @property
    def is_stalled_on_disk_full(self) -> bool:
        """Whether its disk is too full for what it must write down before it may go on."""
        return self._retry_at_ms is not None

    @property
    def next_deadline_ms(self) -> int | None:
        """When ``TimePassed`` is to be told at the latest; None if nothing waits for time."""
        if self._retry_at_ms is not None:
            return self._retry_at_ms
        return self.core.next_deadline_ms

    def _enqueue(self, event: Event) -> None:
        """Let an event wait for its turn. What the network brings may be lost there, too."""
        if not self.is_stalled_on_disk_full:
            self._events.append(event)
        elif isinstance(event, RequestReceived | ResponseReceived | SendFailed):
            if len(self._events) < EVENTS_QUEUED_MAX:
                self._events.append(event)
        elif not isinstance(event, TimePassed):
            self._events.append(event)

    def _process(self, now_ms: int) -> None:
        """Do what is to be done, in order, as far as there is room to write it down."""
        while True:
            while self._effects:
                try:
                    self._execute(self._effects[0])
                except DiskFullError as error:
                    self._stall(error, now_ms)
                    return
                self._effects.popleft()
            if self.is_stalled_on_disk_full:
                self._retry_at_ms = None
                self._outgoing.append(LogMessage("there is room again: it goes on"))
                self._events.append(TimePassed())
            if not self._events:
                return
            self._effects += self.core.step(self._events.popleft(), now_ms=now_ms)

    def _stall(self, error: DiskFullError, now_ms: int) -> None:
        if not isinstance(self._effects[0], PersistElection | AppendLeaderChange):
            raise error
        if not self.is_stalled_on_disk_full:
            self._outgoing.append(LogMessage(f"it stands still: {error.message()}"))
        self._retry_at_ms = now_ms + DISK_FULL_RETRY_MS

    def begin_snapshot(self, end_offset: int, *, time_ms: int) -> SnapshotWriter | None:
        """Begin a snapshot of what is committed below ``end_offset``, with its voters.

        As ``ReplicatedLog.begin_snapshot``. None, too, if nobody knows any more who voted there:
        there is a newer one.
        """
        said = self._voters_at(end_offset)
        if said is None:
            return None
        kraft_version, voters = said
        self._drop_abandoned_snapshot()
        return self.log.begin_snapshot(
            self.log.snapshot_id_at(end_offset),
            now_ms=time_ms,
            kraft_version=kraft_version,
            voters=voters,
        )

    def clean(self, *, time_ms: int) -> bool:
        """Forget what retention does not keep; whether there was anything. To be called every few
        minutes. As ``ReplicatedLog.clean``; a ``DiskFullError`` or ``LogLockedError`` changes
        nothing: call again later."""
        self._drop_abandoned_snapshot()
        return self.log.clean(now_ms=time_ms, voters_at=self._voters_at)

    def _drop_abandoned_snapshot(self) -> None:
        """Release the lock of a snapshot that is fetched no more: its leader is not the leader."""
        role = self.core.role
        if not isinstance(role, Follower) or role.snapshot is None:
            self.log.drop_received_snapshot()

    def _voters_at(self, end_offset: int) -> tuple[int, KRaftVoters | None] | None:
        """What a snapshot says of voters: with kraft.version 0 they are configured, not said."""
        said = self.core.voters_at(end_offset)
        if said is None:
            return None
        voters, kraft_version = said
        return kraft_version, voters_record(voters) if kraft_version else None

    def appended(self, *, now_ms: int, time_ms: int) -> list[Outgoing]:
        """Users' records were appended to ``log``, in the epoch that is led."""
        self._execute(StartSync())
        return self.step(Appended(), now_ms=now_ms, time_ms=time_ms)

    def complete_sync(self, ticket: PendingSync, *, now_ms: int, time_ms: int) -> list[Outgoing]:
        """A sync that ``RunSync`` asked for has ended well."""
        self._is_syncing = False
        self.log.complete_sync(ticket)
        if self._is_sync_due:
            self._is_sync_due = False
            self._execute(StartSync())
        return self.step(SyncCompleted(), now_ms=now_ms, time_ms=time_ms)

    def fail_sync(self, ticket: PendingSync, error: LogError) -> None:
        """It has failed: the log is closed, and this replica is over."""
        self.log.fail_sync(ticket, error)

    # --- doing ------------------------------------------------------------------------------------

    def _execute(self, effect: Effect) -> None:
        log = self.log
        match effect:
            case (
                Send()
                | Reply()
                | LeaderChanged()
                | RoleChanged()
                | ReadIndexConfirmed()
                | LogMessage()
            ):
                self._outgoing.append(effect)
            case AdvanceHighWatermark(offset):
                log.advance_high_watermark(offset)
                self._outgoing.append(effect)
            case PersistElection(state):
                log.write_election_state(quorum_state(state))
            case RejoinElections():
                log.rejoin_election()
            case ReplyWithRecords():
                records = log.read_bytes(effect.start_offset, effect.max_bytes)
                response = replace(effect.response, records=records)
                self._outgoing.append(Reply(effect.request_id, response))
            case ReplyWithSnapshot():
                self._reply_with_snapshot(effect)
            case StartSync():
                self._start_sync()
            case _:
                self._change_log(effect)

    def _change_log(self, effect: Effect) -> None:
        """What is answered by an event."""
        log, now_ms = self.log, self._now_ms
        match effect:
            case AppendLeaderChange():
                log.begin_epoch(effect.epoch, epoch_head(effect, self.core.node_id), now_ms=now_ms)
                self._note_appended()
            case AppendVoters():
                self._append_voters(effect)
            case AppendAsFollower():
                self._append_as_follower(effect)
            case TruncateToEndOfEpoch(diverging):
                log.truncate_to_end_of_epoch(diverging)
                self._events.append(Truncated())
            case StoreSnapshotBytes():
                self._store_snapshot_bytes(effect)
            case InstallSnapshot():
                self._install_snapshot(effect)
            case _:
                raise AssertionError(f"an effect that nobody carries out: {effect}")

    def _append_as_follower(self, effect: AppendAsFollower) -> None:
        try:
            self.log.append_as_follower(effect.records, leader_epoch=effect.leader_epoch)
        except (CorruptBatchError, LogGapError, DivergedLogError, FutureEpochError) as error:
            self._events.append(AppendRefused(error.message()))
        except DiskFullError as error:
            self._note_appended()  # some of it may be there
            self._events.append(AppendRefused(error.message(), is_disk_full=True))
        else:
            self._note_appended()

    def _append_voters(self, effect: AppendVoters) -> None:
        try:
            self.log.append_control([voters_record(effect.voter_set)], now_ms=self._now_ms)
        except DiskFullError as error:
            self._events.append(AppendRefused(error.message(), is_disk_full=True))
        else:
            self._note_appended()

    def _note_appended(self) -> None:
        self._events.append(Appended(tuple(voters_in(self.log.drain_control_records()))))

    def _store_snapshot_bytes(self, effect: StoreSnapshotBytes) -> None:
        try:
            self.log.store_snapshot_bytes(effect.snapshot_id, effect.position, effect.data)
        except DiskFullError as error:
            refused = SnapshotRefused(effect.snapshot_id, error.message(), is_disk_full=True)
            self._events.append(refused)
        except LogLockedError:  # a snapshot of this node's own is being written
            reason = "this node is writing a snapshot of its own"
            self._events.append(SnapshotRefused(effect.snapshot_id, reason))

    def _install_snapshot(self, effect: InstallSnapshot) -> None:
        if not self.log.is_receiving_snapshot:
            return  # there was no room for its last bytes, and it was refused
        try:
            receiver = self.log.install_snapshot(effect.snapshot_id)
        except CorruptSnapshotError as error:
            self._events.append(SnapshotRefused(effect.snapshot_id, error.message()))
            return
        voters = None if receiver.voters is None else voter_set(receiver.voters)
        installed = SnapshotInstalled(effect.snapshot_id, voters, receiver.kraft_version)
        self._events.append(installed)

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
    """What the log says of voters, snapshot first; before that what configuration says."""
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
    """Epoch and vote of this replica. Raises ``CorruptFileError`` if they are not known."""
    written = log.read_election_state()
    if written is not None:
        return election_state(written)
    if log.last_fetched_epoch:
        raise CorruptFileError(
            path=path,
            reason="it is missing, and there is a log beside it: whom this node voted for is not "
            "known (`raftlog node recover --help` tells what can be done)",
        )
    return ElectionState(epoch=0)


def _voters_left(log: QuorumLog, voters: VoterSet, kraft_version: int) -> VoterSet:
    """Who votes, as far as a damaged log still says it."""
    try:
        return _voter_history(log, voters, kraft_version).latest
    except (CorruptBatchError, CorruptFileError):
        return voters
