"""Rules of granting votes and pre-votes (Raft, KIP-853, KIP-996), as pure functions."""

from __future__ import annotations

from raftlog.types import OffsetAndEpoch, ReplicaKey

from .messages import ErrorCode, VoteRequest
from .roles import Candidate, Follower, Leader, Resigned, Role


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

    The caller has moved the replica to the request's epoch. A candidate's log is up to date if its
    (epoch of the last record, end offset) is not less than this replica's.
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
