"""State of a replica, and all of its role transitions.

Invariants:

1. Epochs never decrease. A vote lasts as long as its epoch, whatever the role. ``PersistElection``
   precedes every message that depends on the epoch or the vote.
2. A transition resets the in-flight requests of the old role and completes its delayed ones.
3. Effects are emitted in the order in which they must be carried out.

Kafka: ``QuorumState``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from raftlog.limits import EPOCH_MAX, EPOCH_RESERVED_FROM, EPOCH_STEP_MAX
from raftlog.types import NodeId, ReplicaKey, SnapshotId, ValidOffsetAndEpoch

from .config import QuorumConfig
from .effects import (
    AppendLeaderChange,
    Effect,
    ElectionState,
    LeaderChanged,
    LogMessage,
    PersistElection,
    Reply,
    RoleChanged,
    Send,
    StartSync,
)
from .messages import ErrorCode, FetchResponse, LeaderAndEpoch, Request, VoterChangeResponse
from .progress import Progress
from .request_manager import RequestManager
from .roles import (
    TRANSITIONS,
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Role,
    RoleType,
    Unattached,
    Votes,
)
from .voters import NO_OFFSET, Endpoint, OwnVoterSet, Voter, VoterSet, VoterSetHistory

_OWN_ROLES: Final = (Leader, Resigned)
"""Roles in which a replica is or was the leader of its epoch. A tuple, because each step would
build a union again."""


class LogView(Protocol):
    """Read-only view of a replica's log, from memory and without I/O.

    Only the replica's effects and the leader's appends change the log. Invariant:
    ``log_start_offset`` and ``synced_end_offset`` are <= ``end_offset``. A follower's log may start
    above ``synced_end_offset``, because its high watermark is the leader's.
    """

    @property
    def log_start_offset(self) -> int:
        """Offset of the first record in local segments (Kafka: ``localLogStartOffset``)."""
        ...

    @property
    def earliest_offset(self) -> int | None:
        """Offset of the first record in local or remote segments (Kafka: ``logStartOffset``), which
        replicas send each other; None while it is unknown."""
        ...

    @property
    def remote_store_id(self) -> int:
        """Number of the object store that segments are copied to; 0 without remote storage."""
        ...

    @property
    def end_offset(self) -> int:
        """Offset of the next record to append."""
        ...

    @property
    def synced_end_offset(self) -> int:
        """End offset (exclusive) of the durable records."""
        ...

    @property
    def last_fetched_epoch(self) -> int:
        """Epoch of the last record, or of the snapshot at the log's start, or 0 without either."""
        ...

    @property
    def snapshots(self) -> tuple[SnapshotId, ...]:
        """Snapshots that replicas may fetch, ascending."""
        ...

    def misses_tombstones(self, tombstone_start_offset: int) -> bool:
        """Return whether the log may have keys whose tombstones a leader's log no longer has. The
        leader's log has all tombstones from the given offset on."""
        ...

    def snapshot_byte_count(self, snapshot_id: SnapshotId) -> int | None:
        """Return the size of a snapshot file in bytes; None if there is no such snapshot."""
        ...

    def validate_offset_and_epoch(self, *, offset: int, epoch: int) -> ValidOffsetAndEpoch:
        """Return whether a follower with last epoch ``epoch`` may fetch from ``offset``.

        Kafka: ``ReplicatedLog.validateOffsetAndEpoch``.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialState:
    """Initial state of a replica: its identity, its durable state and its configuration.

    ``jitter_ms(n)`` returns a random number from ``[0, n)``. ``bootstrap`` contains the endpoints
    of the bootstrap servers; an observer learns the leader from them if no known voter responds.
    ``is_recovering`` is True if the log lost durable records: the replica must not vote until it
    has fetched them again.
    """

    local_voter: Voter
    log: LogView
    election: ElectionState
    voters: VoterSetHistory
    config: QuorumConfig
    jitter_ms: Callable[[int], int]
    bootstrap: tuple[tuple[Endpoint, ...], ...] = ()
    is_recovering: bool = False


class ReplicaState:
    """State of a replica, and the effects emitted so far in the current step."""

    def __init__(self, initial_state: InitialState, *, now_ms: int) -> None:
        self.local_voter: Final = initial_state.local_voter
        self.log: Final = initial_state.log
        self.voters: Final = initial_state.voters
        self._last_own_voter_set = OwnVoterSet.of(self.voters.latest, self.local_voter)
        self.config: Final = initial_state.config
        self.requests: Final = RequestManager()
        self.now_ms = now_ms
        self.high_watermark: int | None = None
        self.committed_at_start: int | None = None
        """See ``QuorumCore``; no transition depends on it."""
        self.is_shutting_down = False
        self.is_recovering = initial_state.is_recovering
        """Whether it lost acknowledged records; it does not vote or campaign until caught up."""
        self.damaged_voters: set[int] = set()
        """Other voters whose last vote response reported a damaged log, until a leader is known."""
        self.voted_key: ReplicaKey | None = initial_state.election.voted_key
        self._jitter_ms = initial_state.jitter_ms
        self._persisted = initial_state.election
        self._proven_epoch = max(initial_state.election.epoch, initial_state.log.last_fetched_epoch)
        self._checked_high_watermark = 0
        self._effects: list[Effect] = []
        self._last_role: Role | None = None
        self._last_leader_and_epoch = LeaderAndEpoch(epoch=0)
        """Leader and epoch of that role, which are constant as long as a leader leads."""
        self.role: Role = self._first_role(initial_state.election)
        self._emit_role_changed(None)
        self._persist()
        self._emit_leader_changed()
        if self.is_recovering:
            self.emit(LogMessage(f"out of elections: {self.election_problem}"))

    def _first_role(self, election: ElectionState) -> Role:
        """Return the role after a start (Kafka: ``QuorumState.initialize``).

        A former leader starts as resigned: if unsynced records were lost and it led the same epoch
        again, it would append different records with the same offset and epoch. A replica that
        voted for itself starts as a candidate.
        """
        if election.epoch < self.log.last_fetched_epoch:
            self.voted_key = None
            return self._unattached(self.log.last_fetched_epoch)
        epoch, leader_id = election.epoch, election.leader_id
        if leader_id == self.node_id:
            return self._resigned(epoch, ())
        if not self.can_campaign and leader_id is None:
            return self._unattached(epoch)
        if (
            leader_id is None
            and election.voted_key is not None
            and election.voted_key.matches(self.key)
        ):
            self.voted_key = self.key
            return self._candidate(epoch)
        leader = None if leader_id is None else self.voter_set.find(leader_id)
        if leader is not None:
            return self._follower(epoch, NodeId(leader.key.node_id), leader.endpoints)
        return self._unattached(epoch, None if leader_id is None else NodeId(leader_id))

    # --- properties -------------------------------------------------------------------------------

    @property
    def key(self) -> ReplicaKey:
        return self.local_voter.key

    @property
    def node_id(self) -> int:
        return self.local_voter.key.node_id

    @property
    def epoch(self) -> int:
        return self.role.epoch

    @property
    def voter_set(self) -> VoterSet:
        return self.voters.latest

    @property
    def is_voter(self) -> bool:
        return self.own_voter_set.is_voter

    @property
    def is_voter_outdated(self) -> bool:
        """Whether the voter set lists other endpoints or versions for this voter."""
        return self.own_voter_set.is_outdated

    @property
    def is_voter_set_uncommitted(self) -> bool:
        """Whether the latest voter set is not known to be committed."""
        return self.voters.latest_offset >= (self.high_watermark or 0)

    @property
    def is_leaving(self) -> bool:
        """Whether the latest voter set removes this replica and is not known to be committed.

        This replica may be the only one with that set, and the others may need its vote or its log.
        So it campaigns, although its own vote does not count (Raft dissertation, section 4.2.2,
        figure 4.6).
        """
        if self.is_voter or not self.is_voter_set_uncommitted:
            return False
        previous = self.voters.previous
        return previous is not None and previous.has(self.key)

    @property
    def can_campaign(self) -> bool:
        """Whether this replica may become prospective and candidate.

        It cannot in epoch ``EPOCH_MAX``, because a batch cannot have a later epoch.
        """
        is_eligible = self.is_voter or self.is_leaving
        has_epochs = self._persisted.epoch < EPOCH_MAX
        return is_eligible and has_epochs and not self.is_shutting_down and not self.is_recovering

    @property
    def must_discover_leader(self) -> bool:
        """Whether this replica must send fetches to other nodes to learn the leader.

        Observers receive no BeginQuorumEpoch; voters that cannot campaign have no election timeout.
        """
        return not self.is_voter or not self.can_campaign

    @property
    def leader_and_epoch(self) -> LeaderAndEpoch:
        """Epoch and leader, as every response reports them; one object while they are the same."""
        role = self.role
        if isinstance(role, Leader) and role is self._last_role:
            return self._last_leader_and_epoch
        leader_id = role.leader_id
        found = LeaderAndEpoch(
            epoch=role.epoch,
            leader_id=leader_id,
            leader_endpoints=() if leader_id is None else self.endpoints_of(leader_id),
        )
        self._last_role, self._last_leader_and_epoch = role, found
        return found

    @property
    def election_problem(self) -> str | None:
        """Description, for the operator, of voters that do not vote; None if all do."""
        damaged = {
            node_id for node_id in self.damaged_voters if self.voter_set.find(node_id) is not None
        }
        if self.is_recovering:
            damaged.add(self.node_id)
        if not damaged:
            return None
        nodes, voters = ", ".join(map(str, sorted(damaged))), self.voter_set
        text = (
            f"the log of node {nodes} lacks records, by damage or because it is fetched again: "
            "it does not vote until it has fetched all committed records from a leader"
        )
        needed = voters.majority_count
        if len(voters) - len(damaged) >= needed:
            return text
        return (
            f"{text}. No leader can be elected: {needed} votes of {len(voters)} are needed, and "
            f"{len(voters) - len(damaged)} can be granted. Restore a damaged node from a backup, "
            "or stop it and run `raftlog node recover --allow-data-loss`, so that it votes with "
            "the records that it still has"
        )

    def endpoints_of(self, node_id: int) -> tuple[Endpoint, ...]:
        """Return the known endpoints of a node; empty if unknown."""
        if node_id == self.node_id:
            return self.local_voter.endpoints
        role = self.role
        if isinstance(role, Follower | Prospective) and role.leader_id == node_id:
            return role.leader_endpoints
        voter = self.voter_set.find(node_id)
        return () if voter is None else voter.endpoints

    @property
    def other_voters(self) -> tuple[Voter, ...]:
        return self.own_voter_set.others

    @property
    def other_voter_keys(self) -> frozenset[ReplicaKey]:
        return self.own_voter_set.other_keys

    @property
    def other_majority_count(self) -> int:
        """Number of voters besides this replica that are needed for a majority.

        A leader that is being removed is not counted, so the others alone must form a majority.
        """
        return self.own_voter_set.other_majority_count

    @property
    def own_voter_set(self) -> OwnVoterSet:
        """The latest voter set as this replica sees it; derived once per set, for speed."""
        own = self._last_own_voter_set
        if own.voter_set is not self.voters.latest:
            own = self._last_own_voter_set = OwnVoterSet.of(self.voters.latest, self.local_voter)
        return own

    # --- credible epochs --------------------------------------------------------------------------

    @property
    def next_epoch(self) -> int:
        """The current epoch + 1, at most ``EPOCH_MAX``."""
        return min(self.epoch + 1, EPOCH_MAX)

    def is_credible(self, epoch: int, *, is_response: bool = False) -> bool:
        """Return whether a message may raise this replica's epoch to ``epoch``.

        An epoch never decreases, so one message with a forged or corrupt epoch must not exhaust
        the epochs. The highest credible epoch of

        - a request (Vote, BeginQuorumEpoch, EndQuorumEpoch) is the newest proven epoch +
          ``EPOCH_STEP_MAX``. Proven are the epochs of the log, of the stored election state, of
          this replica's own leadership, and of responses.
        - a response is ``EPOCH_RESERVED_FROM`` - 1: a replica that missed many elections learns the
          epoch from the responses to its pre-votes and fetches.
        - either is at least this replica's epoch + 1, for the next election.
        """
        limit = EPOCH_RESERVED_FROM - 1
        if not is_response:
            limit = min(limit, self._proven_epoch + EPOCH_STEP_MAX)
        return epoch <= max(limit, self.next_epoch)

    def prove_epoch(self, epoch: int) -> None:
        """Record that this replica leads ``epoch``, or that a replica in ``epoch`` responded."""
        self._proven_epoch = max(self._proven_epoch, epoch)

    @property
    def has_active_leader(self) -> bool:
        """Whether it is the leader, or a follower whose fetch timeout has not expired.

        While there is an active leader, a later epoch is ignored if it is from a replica that is in
        no voter set of this log. Usually that replica was removed or never was a voter (Raft
        dissertation, section 4.2.3). But it may be a voter that was added after the end of this log
        and needs this replica's vote: with two of three voters left, the added one may be the only
        one with all committed records (KIP-853). So its epoch is accepted as soon as the fetch
        timeout expires.
        """
        role = self.role
        if isinstance(role, Follower):
            return role.has_fetched_from_leader and self.now_ms < role.fetch_deadline_ms
        return isinstance(role, Leader)

    def check_invariants(self) -> None:
        """Assert the invariants that hold after every step, whatever the other replicas sent."""
        role, high_watermark, log = self.role, self.high_watermark, self.log
        end_offset, stored, voted_key = log.end_offset, self._persisted, self.voted_key
        assert role.epoch == stored.epoch, "the epoch of the role is the stored one"
        is_stored = voted_key is stored.voted_key or voted_key == stored.voted_key
        assert is_stored, "the vote is the stored one"
        assert role.epoch >= log.last_fetched_epoch, "the log has no later epoch"
        is_own = role.leader_id == self.local_voter.key.node_id
        assert is_own is isinstance(role, _OWN_ROLES)
        if isinstance(role, Leader):
            assert role.epoch_start_offset <= end_offset, "its epoch begins in its log"
        elif isinstance(role, Candidate):
            assert voted_key == self.key, "a candidate votes for itself"
        if self.is_recovering:
            campaigns_or_leads = isinstance(role, Prospective | Candidate | Leader)
            assert not campaigns_or_leads, "a replica that lost records neither campaigns nor leads"
        assert max(log.log_start_offset, log.synced_end_offset) <= end_offset
        if high_watermark is not None:
            assert self._checked_high_watermark <= high_watermark <= end_offset
            self._checked_high_watermark = high_watermark

    # --- effects ----------------------------------------------------------------------------------

    def note_committed(self, leader_high_watermark: int | None) -> None:
        """Record the first high watermark that is learned from a leader, or as the leader."""
        if self.committed_at_start is None:
            self.committed_at_start = leader_high_watermark

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def take_effects(self) -> list[Effect]:
        taken, self._effects = self._effects, []
        return taken

    def send(self, node_id: int, request: Request, endpoints: tuple[Endpoint, ...] = ()) -> None:
        """Send a request to a node without an in-flight request."""
        deadline_ms = self.now_ms + self.config.request_timeout_ms
        correlation_id = self.requests.start(node_id, request, deadline_ms=deadline_ms)
        self.emit(
            Send(
                correlation_id=correlation_id,
                node_id=node_id,
                endpoints=endpoints or self.endpoints_of(node_id),
                request=request,
            )
        )

    def back_off(self, node_id: int, *, is_disk_full: bool = False) -> None:
        """Send no request to this node for a backoff, which is longer if the disk is full."""
        config = self.config
        backoff_ms = config.disk_full_backoff_ms if is_disk_full else config.retry_backoff_ms
        self.requests.back_off(node_id, self.now_ms + backoff_ms)

    # --- transitions ------------------------------------------------------------------------------

    def become_unattached(self, epoch: int, leader_id: NodeId | None = None) -> None:
        self._transition_to(self._unattached(epoch, leader_id))

    def become_follower(
        self, epoch: int, leader_id: NodeId, endpoints: tuple[Endpoint, ...] = ()
    ) -> None:
        assert leader_id != self.node_id, "a replica cannot follow itself"
        self._transition_to(
            self._follower(epoch, leader_id, endpoints or self.endpoints_of(leader_id))
        )

    def become_prospective(self) -> None:
        role = self.role
        endpoints = role.leader_endpoints if isinstance(role, Follower) else ()
        self._transition_to(
            Prospective(
                epoch=self.epoch,
                election_deadline_ms=self.election_deadline_ms(),
                leader_id=role.leader_id,
                leader_endpoints=endpoints,
                votes=self._first_votes(),
            )
        )

    def become_candidate(self) -> None:
        """Raise the epoch and vote for itself in it."""
        self._transition_to(self._candidate(self.next_epoch), voted_key=self.key)

    def become_leader(self) -> None:
        """Become the leader of a won election, and append the first records of its epoch."""
        role = self.role
        assert isinstance(role, Candidate), "only a candidate becomes leader"
        self.prove_epoch(role.epoch)
        granting = tuple(
            voter.key for voter in self.voter_set if voter.key.node_id in role.votes.granted
        )
        start_offset = self.log.end_offset
        self._transition_to(
            Leader(
                epoch=role.epoch,
                leader_id=NodeId(self.node_id),
                epoch_start_offset=start_offset,
                check_quorum_deadline_ms=self.now_ms + self.config.check_quorum_timeout_ms,
                begin_epoch_deadline_ms=self.now_ms,
                progress=Progress(),
                reported_voters={self.node_id: self.local_voter},
            )
        )
        voter_set, must_write_voters = self._initial_voters()
        self.emit(
            AppendLeaderChange(
                epoch=role.epoch,
                voters=tuple(voter.key for voter in self.voter_set),
                granting_voters=granting,
                kraft_version=self.voters.kraft_version if must_write_voters else None,
                voter_set=voter_set if must_write_voters else None,
            )
        )
        self.emit(StartSync())

    def _initial_voters(self) -> tuple[VoterSet, bool]:
        """Return the voter set at the start of this leader's epoch, and whether to append it.

        It is appended if the log has no voter set yet, or if its entry for this node is outdated.
        """
        voters = self.voter_set
        if self.voters.kraft_version < 1:
            return voters, False
        found = voters.find(self.node_id)
        if found is not None and found != self.local_voter:
            return voters.with_voter(self.local_voter), True
        return voters, self.voters.latest_offset == NO_OFFSET

    def become_resigned(self) -> None:
        role = self.role
        assert isinstance(role, Leader), "only a leader resigns"
        # longest log first, voters that have not fetched last; the first campaigns without delay
        successors = []
        for voter in self.other_voters:
            progress = role.progress.voter(self.voter_set, voter.key.node_id)
            successors.append((-(progress.end_offset or 0) if progress else 1, voter.key))
        successors.sort(key=lambda successor: (successor[0], successor[1].node_id))
        self._transition_to(self._resigned(role.epoch, tuple(key for _, key in successors)))

    def vote_for(self, candidate: ReplicaKey) -> None:
        """Vote for a candidate of this epoch; the vote cannot change within the epoch.

        A stored vote without a directory id becomes a vote for the first candidate that matches.
        """
        assert self.voted_key is None or self.voted_key.matches(candidate), "one vote per epoch"
        role = self.role
        assert isinstance(role, Unattached | Prospective), "only unattached and prospective vote"
        self.voted_key = candidate
        if isinstance(role, Unattached):
            role.election_deadline_ms = self.election_deadline_ms()
        self._persist()

    def maybe_transition(
        self, leader_and_epoch: LeaderAndEpoch, *, from_leader: bool = False
    ) -> bool:
        """Apply the epoch and leader of a message; return whether the role changed.

        A prospective replica does not return to the leader that timed out because another voter
        still names it, but only on a message from that leader itself (``from_leader``).
        """
        epoch, leader_id = leader_and_epoch.epoch, leader_and_epoch.leader_id
        if epoch < self.epoch:
            return False
        names_leader = leader_id is not None and leader_id != self.node_id
        if epoch > self.epoch:
            if names_leader:
                assert leader_id is not None
                self.become_follower(epoch, NodeId(leader_id), leader_and_epoch.leader_endpoints)
            else:
                self.become_unattached(epoch)
            return True
        role = self.role
        if role.leader_id not in (None, leader_id):
            return False  # an epoch has at most one leader
        if isinstance(role, Prospective) and role.leader_id == leader_id and not from_leader:
            return False
        if names_leader and isinstance(role, Unattached | Prospective | Candidate):
            assert leader_id is not None
            self.become_follower(epoch, NodeId(leader_id), leader_and_epoch.leader_endpoints)
            return True
        return False

    def election_deadline_ms(self) -> int:
        """Return the deadline of a new, random election timeout; now for a single voter."""
        if self.is_voter and len(self.voter_set) == 1:
            return self.now_ms
        timeout_ms = self.config.election_timeout_ms
        return self.now_ms + timeout_ms + self._jitter_ms(timeout_ms)

    def random_ms(self, bound_ms: int) -> int:
        """Return a random number from ``[0, bound_ms)``."""
        return self._jitter_ms(bound_ms)

    def _transition_to(self, role: Role, voted_key: ReplicaKey | None = None) -> None:
        """Change the role. Epoch and vote are persisted before the responses that depend on them.

        ``voted_key``: the vote in the new role's epoch, if it differs from the current vote.
        """
        old = self.role
        is_same_role = type(old) is type(role)
        assert is_same_role or (type(old), type(role)) in TRANSITIONS, (
            f"{type(old).__name__} does not become {type(role).__name__}"
        )
        assert role.epoch >= old.epoch, "epochs never decrease"
        if role.epoch > old.epoch:
            self.voted_key = None
        if voted_key is not None:
            self.voted_key = voted_key
        self.role = role
        self._emit_role_changed(type(old))
        if isinstance(role, Leader | Follower):
            self.damaged_voters.clear()
        self.requests.reset()
        self._persist()
        if isinstance(old, Leader):
            self._fail_pending_requests(old)
        is_fetching = isinstance(role, Unattached | Follower)
        if is_fetching and self.log.synced_end_offset < self.log.end_offset:
            self.emit(StartSync())  # a fetch acknowledges the log up to its end as durable
        if (old.epoch, old.leader_id) != (role.epoch, role.leader_id):
            self._emit_leader_changed()

    def _fail_pending_requests(self, old: Leader) -> None:
        """Respond to the delayed fetches and the voter change of a leadership that has ended."""
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        for request_id in old.delayed_fetches:
            self.emit(
                Reply(
                    request_id, FetchResponse(leader_and_epoch=self.leader_and_epoch, error=error)
                )
            )
        if old.voter_change is not None:
            reason = "this node is no longer the leader; the voter change may still be committed"
            response = VoterChangeResponse(
                leader_and_epoch=self.leader_and_epoch, error=error, reason=reason
            )
            self.emit(Reply(old.voter_change.request_id, response))

    def _persist(self) -> None:
        """Persist epoch, vote and leader if they changed.

        Prospective and resigned are not persisted, so that the stored leader is kept.
        """
        role = self.role
        if isinstance(role, Prospective | Resigned):
            state = ElectionState(
                epoch=role.epoch, leader_id=self._persisted.leader_id, voted_key=self.voted_key
            )
        else:
            state = ElectionState(
                epoch=role.epoch, leader_id=role.leader_id, voted_key=self.voted_key
            )
        if state != self._persisted:
            self._persisted = state
            self.emit(PersistElection(state))

    def _emit_leader_changed(self) -> None:
        role = self.role
        start = role.epoch_start_offset if isinstance(role, Leader) else None
        leader_id = None if isinstance(role, Resigned) else role.leader_id
        self.emit(LeaderChanged(epoch=role.epoch, leader_id=leader_id, epoch_start_offset=start))

    def _emit_role_changed(self, old: RoleType | None) -> None:
        role = self.role
        self.emit(RoleChanged(old=old, new=type(role), epoch=role.epoch, leader_id=role.leader_id))

    # --- new roles --------------------------------------------------------------------------------

    def _unattached(self, epoch: int, leader_id: NodeId | None = None) -> Unattached:
        return Unattached(
            epoch=epoch, election_deadline_ms=self.election_deadline_ms(), leader_id=leader_id
        )

    def _candidate(self, epoch: int) -> Candidate:
        return Candidate(
            epoch=epoch,
            election_deadline_ms=self.election_deadline_ms(),
            votes=self._first_votes(),
        )

    def _first_votes(self) -> Votes:
        """Return the votes at the start of a campaign: the replica's own, if it is a voter."""
        return Votes(granted={self.node_id} if self.is_voter else set())

    def _follower(self, epoch: int, leader_id: NodeId, endpoints: tuple[Endpoint, ...]) -> Follower:
        timeout_ms = self.config.fetch_timeout_ms + self._jitter_ms(self.config.fetch_jitter_ms)
        return Follower(
            epoch=epoch,
            leader_id=leader_id,
            leader_endpoints=endpoints,
            fetch_timeout_ms=timeout_ms,
            fetch_deadline_ms=self.now_ms + timeout_ms,
            update_after_ms=0 if self.voters.kraft_version else self.now_ms + timeout_ms,
        )

    def _resigned(self, epoch: int, preferred_successors: tuple[ReplicaKey, ...]) -> Resigned:
        return Resigned(
            epoch=epoch,
            election_deadline_ms=self.election_deadline_ms(),
            preferred_successors=preferred_successors,
            leader_id=NodeId(self.node_id),
        )
