"""Elections: pre-votes, votes, and the start and end of a leader's epoch.

Invariants:

1. A replica wins a pre-vote before it raises its epoch, so that a replica which was partitioned
   does not disrupt the quorum when it returns (KIP-996).
2. No request can exhaust the epochs. A later epoch is accepted only if it is credible
   (``ReplicaState.is_credible``), and from an unknown replica only while there is no active leader
   (``has_active_leader``).
3. Timeouts expire in ``poll``, which also resends requests that have no response yet. So every lost
   message is repeated.

Kafka: the election part of ``KafkaRaftClient``.
"""

from __future__ import annotations

from raftlog.types import OffsetAndEpoch, ReplicaKey

from .effects import LogMessage, Reply
from .messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    ErrorCode,
    LeaderAndEpoch,
    VoteRequest,
    VoteResponse,
)
from .roles import Candidate, Follower, Leader, Prospective, Resigned, Role, Unattached, Votes
from .state import ReplicaState


class Elections:
    """The part of a replica that votes, campaigns and resigns."""

    def __init__(self, state: ReplicaState) -> None:
        self._state = state

    # --- timers -----------------------------------------------------------------------------------

    def poll(self) -> None:
        """Handle expired timeouts and election results; send the requests that are due."""
        state, role = self._state, self._state.role
        match role:  # the most frequent first
            case Follower():
                if state.now_ms >= role.fetch_deadline_ms and state.can_campaign:
                    state.become_prospective()
                    self.poll()
            case Unattached():
                if state.can_campaign and state.now_ms >= role.election_deadline_ms:
                    state.become_prospective()
                    self.poll()
            case Prospective():
                self._poll_prospective(role)
            case Candidate():
                self._poll_candidate(role)
            case Resigned():
                self.poll_resigned()
            case _:
                pass

    def _poll_prospective(self, role: Prospective) -> None:
        state = self._state
        if not state.can_campaign:
            self._end_pre_vote(role)
        elif len(role.votes.granted) >= state.voter_set.majority_count:
            state.become_candidate()
            self.poll()
        elif self._is_vote_rejected(role.votes) or state.now_ms >= role.election_deadline_ms:
            self._end_pre_vote(role)
        else:
            self._send_vote_requests(role.votes, is_pre_vote=True)

    def _end_pre_vote(self, role: Prospective) -> None:
        """Follow the last known leader again, or become unattached without one."""
        state = self._state
        if role.leader_id is not None and role.leader_id != state.node_id:
            state.become_follower(role.epoch, role.leader_id, role.leader_endpoints)
        else:
            state.become_unattached(role.epoch, role.leader_id)

    def _poll_candidate(self, role: Candidate) -> None:
        state = self._state
        if not state.can_campaign:
            state.become_unattached(state.next_epoch)
        elif len(role.votes.granted) >= state.voter_set.majority_count:
            state.become_leader()
        elif state.now_ms >= role.election_deadline_ms:
            state.become_prospective()
            self.poll()
        else:
            self._send_vote_requests(role.votes, is_pre_vote=False)

    def poll_resigned(self) -> None:
        """Send EndQuorumEpoch to the voters that have not acknowledged it.

        A replica that is shutting down repeats it to all of them, because a voter that has
        acknowledged it may also end, before it is elected.

        Called again after ``Leadership.poll``, so that the request is sent in the step of the
        resignation.
        """
        state, role = self._state, self._state.role
        if not isinstance(role, Resigned):
            return
        if state.now_ms >= role.election_deadline_ms and not state.is_shutting_down:
            state.become_unattached(state.next_epoch)
            self.poll()  # the election timeout of a single voter is zero
            return
        for voter in state.other_voters:
            node_id = voter.key.node_id
            is_needed = state.is_shutting_down or node_id not in role.acknowledged_voters
            if is_needed and state.requests.is_ready(node_id, state.now_ms):
                request = EndQuorumEpochRequest(
                    epoch=role.epoch,
                    leader_id=state.node_id,
                    preferred_successors=role.preferred_successors,
                    leader_endpoints=state.local_voter.endpoints,
                )
                state.send(node_id, request)

    def _is_vote_rejected(self, votes: Votes) -> bool:
        voters = self._state.voter_set
        return len(voters) - len(votes.rejected) < voters.majority_count

    def _send_vote_requests(self, votes: Votes, *, is_pre_vote: bool) -> None:
        state = self._state
        for voter in state.other_voters:
            node_id = voter.key.node_id
            is_pending = node_id not in votes.granted and node_id not in votes.rejected
            if is_pending and state.requests.is_ready(node_id, state.now_ms):
                request = VoteRequest(
                    epoch=state.epoch,
                    candidate=state.key,
                    voter=voter.key,
                    last_offset=state.log.end_offset,
                    last_epoch=state.log.last_fetched_epoch,
                    is_pre_vote=is_pre_vote,
                )
                state.send(node_id, request)

    def deadline_ms(self) -> int | None:
        """Return when the timeout of the current role expires; None if it has none."""
        state, role = self._state, self._state.role
        match role:
            case Follower():
                return role.fetch_deadline_ms if state.can_campaign else None
            case Prospective() | Candidate():
                return role.election_deadline_ms
            case Unattached():
                return role.election_deadline_ms if state.can_campaign else None
            case Resigned():
                return None if state.is_shutting_down else role.election_deadline_ms
            case _:
                return None

    # --- requests ---------------------------------------------------------------------------------

    def on_vote_request(self, request_id: int, request: VoteRequest) -> None:
        """Respond to a vote or pre-vote request.

        A later epoch is accepted before the voter key is checked (Kafka: ``handleVoteRequest``).
        """
        state = self._state
        error = check_vote_request(request, epoch=state.epoch)
        is_granted, is_later = False, request.epoch > state.epoch
        if error is ErrorCode.NONE and is_later and not self._is_credible(request.epoch):
            error = ErrorCode.INVALID_REQUEST
        is_ignored = is_later and self._is_ignored(state.voters.contains(request.candidate))
        if error is ErrorCode.NONE and not is_ignored:
            if is_later:
                state.become_unattached(request.epoch)
            if not self._is_addressed(request.voter):
                error = ErrorCode.INVALID_VOTER_KEY
            elif state.is_recovering:
                error = ErrorCode.KAFKA_STORAGE_ERROR
            else:
                is_granted = self._grant_vote(request)
        response = VoteResponse(
            leader_and_epoch=state.leader_and_epoch, is_granted=is_granted, error=error
        )
        state.emit(Reply(request_id, response))

    def _grant_vote(self, request: VoteRequest) -> bool:
        state, role = self._state, self._state.role
        log_end = OffsetAndEpoch(epoch=state.log.last_fetched_epoch, offset=state.log.end_offset)
        if can_grant_vote(request, role=role, voted_key=state.voted_key, log_end=log_end):
            if not request.is_pre_vote:
                state.vote_for(request.candidate)
            return True
        if request.is_pre_vote and isinstance(role, Prospective):
            # The candidate no longer follows the leader. While it did, it may have rejected the
            # pre-vote of this replica, whose log is longer. So request the pre-vote again.
            # Otherwise, if only this replica has the last records and its fetch timeout expires
            # first, there is no leader until its election timeout and another fetch timeout have
            # passed. The rejection may arrive after this request, because it is sent on another
            # connection.
            role.votes.forget_rejection(request.candidate.node_id)
        return False

    def _is_credible(self, epoch: int) -> bool:
        state = self._state
        is_credible = state.is_credible(epoch)
        if not is_credible:
            reason = f"rejected a request with epoch {epoch}: too far ahead of epoch {state.epoch}"
            state.emit(LogMessage(f"invalid epoch: {reason}"))
        return is_credible

    def _is_ignored(self, is_known: bool) -> bool:
        """Return whether a replica's later epoch is ignored because there is an active leader."""
        return not is_known and self._state.has_active_leader

    def _is_addressed(self, voter: ReplicaKey | None) -> bool:
        """Return whether a request to this voter is for this replica (``isValidVoterKey``)."""
        return voter is None or voter.matches(self._state.key)

    def on_begin_epoch(self, request_id: int, request: BeginQuorumEpochRequest) -> None:
        state = self._state
        claimed = LeaderAndEpoch(
            epoch=request.epoch,
            leader_id=request.leader_id,
            leader_endpoints=request.leader_endpoints,
        )
        error = self._handle_leader_claim(claimed, from_leader=True)
        if error is ErrorCode.NONE and not self._is_addressed(request.voter):
            error = ErrorCode.INVALID_VOTER_KEY
        response = BeginQuorumEpochResponse(leader_and_epoch=state.leader_and_epoch, error=error)
        state.emit(Reply(request_id, response))

    def on_end_epoch(self, request_id: int, request: EndQuorumEpochRequest) -> None:
        state = self._state
        claimed = LeaderAndEpoch(epoch=request.epoch, leader_id=request.leader_id)
        error = self._handle_leader_claim(claimed, from_leader=False)
        role = state.role
        is_followed = isinstance(role, Follower) and role.leader_id == request.leader_id
        if error is ErrorCode.NONE and is_followed:
            assert isinstance(role, Follower)
            campaign_ms = state.now_ms + self._campaign_delay_ms(request)
            role.fetch_deadline_ms = min(role.fetch_deadline_ms, campaign_ms)
        state.emit(
            Reply(
                request_id,
                EndQuorumEpochResponse(leader_and_epoch=state.leader_and_epoch, error=error),
            )
        )

    def _handle_leader_claim(self, claimed: LeaderAndEpoch, *, from_leader: bool) -> ErrorCode:
        """Apply a replica's claim to be, or to have been, the leader of an epoch."""
        state = self._state
        if claimed.leader_id is None or claimed.leader_id < 0 or claimed.epoch < 0:
            return ErrorCode.INVALID_REQUEST
        if claimed.leader_id == state.node_id:
            return ErrorCode.INVALID_REQUEST
        if claimed.epoch < state.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if claimed.epoch > state.epoch:
            if not self._is_credible(claimed.epoch):
                return ErrorCode.INVALID_REQUEST
            if self._is_ignored(state.voters.contains_id(claimed.leader_id)):
                return ErrorCode.NOT_LEADER_OR_FOLLOWER
        state.maybe_transition(claimed, from_leader=from_leader)
        return ErrorCode.NONE

    def _campaign_delay_ms(self, request: EndQuorumEpochRequest) -> int:
        """Return how long to wait before campaigning after a leader's resignation.

        Zero for the first preferred successor; the others wait so that the vote is not split.
        """
        state = self._state
        successors = [key.node_id for key in request.preferred_successors]
        rank = successors.index(state.node_id) if state.node_id in successors else len(successors)
        if rank == 0:
            return 0
        delay_max_ms = min(state.config.retry_backoff_ms << rank, state.config.election_timeout_ms)
        return delay_max_ms + state.random_ms(delay_max_ms)

    # --- responses --------------------------------------------------------------------------------

    def on_vote_response(self, node_id: int, request: VoteRequest, response: VoteResponse) -> None:
        state, role = self._state, self._state.role
        is_expected = (isinstance(role, Prospective) and request.is_pre_vote) or (
            isinstance(role, Candidate) and not request.is_pre_vote
        )
        if not is_expected:
            return
        assert isinstance(role, Prospective | Candidate)
        if response.error is ErrorCode.NONE:
            state.damaged_voters.discard(node_id)
            role.votes.record(node_id, is_granted=response.is_granted)
        elif response.error is ErrorCode.KAFKA_STORAGE_ERROR:
            state.damaged_voters.add(node_id)
            role.votes.record(node_id, is_granted=False)
            state.emit(LogMessage(f"out of elections: {state.election_problem}"))
        elif response.error is ErrorCode.UNSUPPORTED_VERSION and isinstance(role, Prospective):
            self.on_pre_vote_unsupported()
        else:
            state.back_off(node_id)

    def on_pre_vote_unsupported(self) -> None:
        """Skip the pre-vote, because a voter does not support it (KIP-996)."""
        if isinstance(self._state.role, Prospective):
            self._state.become_candidate()

    def on_end_epoch_response(self, node_id: int, response: EndQuorumEpochResponse) -> None:
        role = self._state.role
        if not isinstance(role, Resigned):
            return
        role.refusing_voters.discard(node_id)
        if response.error is ErrorCode.NONE:
            role.acknowledged_voters.add(node_id)
        if response.error is not ErrorCode.NONE or self._state.is_shutting_down:
            self._state.back_off(node_id)

    def on_end_epoch_failed(self, node_id: int, *, is_refused: bool) -> None:
        """Record whether a voter's host refused the connection."""
        role = self._state.role
        if isinstance(role, Resigned) and is_refused:
            role.refusing_voters.add(node_id)
        elif isinstance(role, Resigned):
            role.refusing_voters.discard(node_id)


# --- Rules of granting votes and pre-votes (Raft, KIP-853, KIP-996), as pure functions ------------


def check_vote_request(request: VoteRequest, *, epoch: int) -> ErrorCode:
    """Return the error of a vote request, or NONE, for a replica in ``epoch``."""
    is_invalid = (
        request.last_offset < 0
        or request.last_epoch < 0
        or request.candidate.node_id < 0
        or request.last_epoch > request.epoch
        or (request.last_epoch == request.epoch and not request.is_pre_vote)
    )
    if is_invalid:
        return ErrorCode.INVALID_REQUEST
    if request.epoch < epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    return ErrorCode.NONE


def can_grant_vote(
    request: VoteRequest, *, role: Role, voted_key: ReplicaKey | None, log_end: OffsetAndEpoch
) -> bool:
    """Return whether a replica with this role, vote and log end grants a valid request.

    The caller has already moved the replica to the request's epoch. A candidate's log is up to date
    if its pair (epoch of the last record, end offset) is not less than this replica's.
    """
    candidate_end = OffsetAndEpoch(epoch=request.last_epoch, offset=request.last_offset)
    is_up_to_date = candidate_end >= log_end
    if isinstance(role, Leader):
        return False
    if request.is_pre_vote:
        return is_up_to_date and not (isinstance(role, Follower) and role.has_fetched_from_leader)
    if isinstance(role, Candidate | Resigned | Follower):
        return False
    if voted_key is not None:
        return voted_key.matches(request.candidate)
    return role.leader_id is None and is_up_to_date
