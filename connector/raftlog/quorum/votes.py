"""Whether to vote for somebody: the rules of Raft, KIP-853 and KIP-996 in one function.

Rules of this file:

1. Pure: a request and facts go in, an answer comes out; the caller has taken up the request's epoch
   already and has looked at its fields.
2. "Up to date": the candidate's (epoch of the last record, end offset) is not below this log's.
"""

from __future__ import annotations

from raftlog.types import OffsetAndEpoch, ReplicaKey

from .messages import ErrorCode, VoteRequest
from .roles import Candidate, Follower, Leader, Resigned, Role


def check_vote_request(request: VoteRequest, *, epoch: int) -> ErrorCode:
    """What is wrong with a request for a vote, the epoch of this replica being ``epoch``."""
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
    """Whether a replica of this role, vote and log says yes, the epochs being equal."""
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
