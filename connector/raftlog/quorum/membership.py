"""Changing the voters, one at a time, while the quorum works (KIP-853).

Rules of this file:

1. A change begins only when this leader has committed something in its epoch, and the last change
   is committed: so any two sets that may decide at one time differ by one voter, and every majority
   of one meets every majority of the other.
2. A set holds from where it is appended. Who asked is answered when it is committed, or told that
   nobody knows yet.
3. Who joins is asked first which versions of KRaft it speaks, and has caught up. Who leaves may be
   the leader: it leads until that is committed, without counting itself, and resigns.

Kafka: ``AddVoterHandler``, ``RemoveVoterHandler``, ``UpdateVoterHandler``.
"""

from __future__ import annotations

from typing import Final

from .effects import AppendVoters, LogMessage, Reply, StartSync
from .events import AppendRefused
from .messages import (
    AddVoterRequest,
    ErrorCode,
    RemoveVoterRequest,
    UpdateVoterRequest,
    VersionsRequest,
    VersionsResponse,
    VoterChangeResponse,
)
from .roles import Leader, PendingVoterChange
from .state import ReplicaState
from .voters import Voter, VoterSet

CAUGHT_UP_WITHIN_MS: Final = 3_600_000
"""How long ago a replica may have had everything, to be let in (Kafka: an hour)."""
UPDATE_TIMEOUT_MS: Final = 30_000
"""How long who updates or removes a voter waits, since Kafka's requests name no time."""


class Membership:
    """The part of a leader that changes who votes."""

    def __init__(self, state: ReplicaState) -> None:
        self._state = state

    # --- asking -----------------------------------------------------------------------------------

    def on_add(self, request_id: int, request: AddVoterRequest) -> None:
        voter = request.voter
        if self._reject_unready(request_id):
            return
        if self._state.voter_set.find(voter.key.node_id) is not None:
            reason = f"{voter.key.node_id} is a voter already"
            self._reply(request_id, ErrorCode.DUPLICATE_VOTER, reason)
            return
        role = self._leader()
        role.voter_change = PendingVoterChange(
            request_id=request_id,
            deadline_ms=self._state.now_ms + max(request.timeout_ms, 0),
            voters=self._state.voter_set.with_voter(voter),
            new_voter=voter,
            ack_when_committed=request.ack_when_committed,
        )

    def on_remove(self, request_id: int, request: RemoveVoterRequest) -> None:
        if self._reject_unready(request_id):
            return
        voters = self._state.voter_set
        found = voters.find(request.voter.node_id)
        if found is None or found.key != request.voter:
            reason = f"{request.voter.node_id} with this directory id is not a voter"
            self._reply(request_id, ErrorCode.VOTER_NOT_FOUND, reason)
            return
        if len(voters) == 1:
            reason = f"{request.voter.node_id} is the only voter"
            self._reply(request_id, ErrorCode.VOTER_NOT_FOUND, reason)
            return
        self._start_change(request_id, voters.without(request.voter.node_id))

    def on_update(self, request_id: int, request: UpdateVoterRequest) -> None:
        state, voter = self._state, request.voter
        if request.epoch != state.epoch:
            error = ErrorCode.FENCED_LEADER_EPOCH
            if request.epoch > state.epoch:
                error = ErrorCode.UNKNOWN_LEADER_EPOCH
            self._reply(request_id, error, f"the epoch is {state.epoch}")
            return
        if self._reject_unready(request_id):
            return
        found = state.voter_set.find(voter.key.node_id)
        if found is None or found.key != voter.key:
            reason = f"{voter.key.node_id} with this directory id is not a voter"
            self._reply(request_id, ErrorCode.VOTER_NOT_FOUND, reason)
        elif not self._supports_kraft_version(voter):
            self._reply(request_id, ErrorCode.INVALID_REQUEST, self._kraft_version_reason())
        elif voter.key == state.key:  # a leader writes its own entry when its epoch begins
            reason = f"{voter.key.node_id} leads: its listeners change when it starts with others"
            self._reply(request_id, ErrorCode.INVALID_REQUEST, reason)
        elif found == voter:
            self._reply(request_id, ErrorCode.NONE, None)
        else:  # answered at once: who is asked to wait cannot fetch what it waits for
            self._start_change(request_id, state.voter_set.with_voter(voter), ack_on_append=True)

    def _reject_unready(self, request_id: int) -> bool:
        """Answer a change that cannot begin now; whether it was."""
        state, role = self._state, self._state.role
        if not isinstance(role, Leader):
            error, reason = ErrorCode.NOT_LEADER_OR_FOLLOWER, "this node does not lead"
        elif not role.has_committed_in_epoch:
            error, reason = ErrorCode.REQUEST_TIMED_OUT, "nothing is committed in this epoch yet"
        elif state.voters.kraft_version < 1:
            error = ErrorCode.UNSUPPORTED_VERSION
            reason = "the voters are configured (kraft.version 0), not kept in the log"
        elif role.voter_change is not None or state.is_voter_set_uncommitted:
            error, reason = ErrorCode.REQUEST_TIMED_OUT, "another change of voters is under way"
        else:
            return False
        self._reply(request_id, error, reason)
        return True

    # --- what time and others bring ---------------------------------------------------------------

    def poll(self) -> None:
        state, role = self._state, self._state.role
        if not isinstance(role, Leader):
            return
        change = role.voter_change
        if change is not None:
            if change.offset is not None and change.offset < (state.high_watermark or 0):
                self._complete_change(role, ErrorCode.NONE, None)
            elif state.now_ms >= change.deadline_ms:
                self._complete_change(role, ErrorCode.REQUEST_TIMED_OUT, "it took too long")
            elif change.new_voter is not None and change.offset is None:
                self._advance_new_voter(change, change.new_voter)
        if not state.is_voter and not state.is_voter_set_uncommitted:
            role.is_resign_requested = True

    def _advance_new_voter(self, change: PendingVoterChange, voter: Voter) -> None:
        """Go on with a voter that joins: ask what it speaks, wait until it has caught up."""
        state, node_id = self._state, voter.key.node_id
        if not change.is_probed:
            if state.requests.is_ready(node_id, state.now_ms):
                state.send(node_id, VersionsRequest(), voter.endpoints)
        elif self._has_caught_up(voter):
            self._append_change(change)

    def _has_caught_up(self, voter: Voter) -> bool:
        state, role = self._state, self._leader()
        progress = role.progress.find(voter.key)
        return (
            progress is not None
            and progress.caught_up_ms is not None
            and progress.caught_up_ms > state.now_ms - CAUGHT_UP_WITHIN_MS
        )

    def on_versions(self, node_id: int, response: VersionsResponse) -> None:
        role = self._state.role
        change = role.voter_change if isinstance(role, Leader) else None
        if change is None or change.new_voter is None or change.new_voter.key.node_id != node_id:
            return
        assert isinstance(role, Leader)
        version = self._state.voters.kraft_version
        if response.kraft_version_min <= version <= response.kraft_version_max:
            change.is_probed = True
        else:
            self._complete_change(role, ErrorCode.INVALID_REQUEST, self._kraft_version_reason())

    def on_append_refused(self, event: AppendRefused) -> None:
        """There was no room for the record of the change."""
        role = self._state.role
        change = role.voter_change if isinstance(role, Leader) else None
        if change is None or change.offset is None:
            return
        if change.offset != self._state.voters.latest_offset:
            assert isinstance(role, Leader)
            self._complete_change(role, ErrorCode.KAFKA_STORAGE_ERROR, event.reason)

    def deadline_ms(self) -> int | None:
        role = self._state.role
        if isinstance(role, Leader) and role.voter_change is not None:
            return role.voter_change.deadline_ms
        return None

    # --- doing ------------------------------------------------------------------------------------

    def _start_change(
        self, request_id: int, voters: VoterSet, *, ack_on_append: bool = False
    ) -> None:
        change = PendingVoterChange(
            request_id=request_id,
            deadline_ms=self._state.now_ms + UPDATE_TIMEOUT_MS,
            voters=voters,
            new_voter=None,
            ack_when_committed=not ack_on_append,
        )
        self._leader().voter_change = change
        self._append_change(change)

    def _append_change(self, change: PendingVoterChange) -> None:
        state, role = self._state, self._leader()
        change.offset = state.log.end_offset
        what = state.voter_set.describe_change(change.voters)
        state.emit(LogMessage(f"voters at offset {change.offset}: {what}"))
        state.emit(AppendVoters(role.epoch, change.voters))
        state.emit(StartSync())
        if not change.ack_when_committed:
            self._complete_change(role, ErrorCode.NONE, None)

    def _complete_change(self, role: Leader, error: ErrorCode, reason: str | None) -> None:
        assert role.voter_change is not None, "it was pending"
        request_id, role.voter_change = role.voter_change.request_id, None
        self._reply(request_id, error, reason)

    def _reply(self, request_id: int, error: ErrorCode, reason: str | None) -> None:
        response = VoterChangeResponse(
            leader_and_epoch=self._state.leader_and_epoch, error=error, reason=reason
        )
        self._state.emit(Reply(request_id, response))

    def _leader(self) -> Leader:
        role = self._state.role
        assert isinstance(role, Leader), "only a leader changes voters"
        return role

    def _supports_kraft_version(self, voter: Voter) -> bool:
        version = self._state.voters.kraft_version
        return voter.kraft_version_min <= version <= voter.kraft_version_max

    def _kraft_version_reason(self) -> str:
        return f"the log needs kraft.version {self._state.voters.kraft_version}"
