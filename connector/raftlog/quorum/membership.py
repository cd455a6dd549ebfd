"""Changes of the voter set, one voter at a time (KIP-853).

Invariants:

1. A change starts only after this leader has committed a record of its epoch and the previous
   change is committed. So two sets that are in use at the same time differ by one voter, and every
   majority of one overlaps every majority of the other.
2. A voter set takes effect when it is appended. The response follows when it is committed, or
   reports that the outcome is unknown.
3. A new voter is added after it has reported a supported range of kraft.version and has caught up.
   A leader that is removed leads until its removal is committed, without counting itself, and
   then resigns.
4. Static voters (kraft.version 0) have no directory ids in the log. Each voter reports its own to
   the leader of an epoch, which keeps them in memory until an upgrade appends all of them.

Kafka: ``AddVoterHandler``, ``RemoveVoterHandler``, ``UpdateVoterHandler``, ``LeaderState``
(``maybeAppendUpgradedKRaftVersion``).
"""

from __future__ import annotations

from typing import Final

from raftlog.types import ZERO_UUID, ReplicaKey

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
"""A new voter must have caught up within this time (Kafka: an hour)."""
UPDATE_TIMEOUT_MS: Final = 30_000
"""Timeout of UpdateRaftVoter and RemoveRaftVoter, whose requests have no timeout field."""


class Membership:
    """The part of a leader that changes the voter set."""

    def __init__(self, state: ReplicaState) -> None:
        self._state = state

    # --- requests ---------------------------------------------------------------------------------

    def on_add(self, request_id: int, request: AddVoterRequest) -> None:
        voter = request.voter
        if self._reject_unready(request_id):
            return
        if self._state.voter_set.find(voter.key.node_id) is not None:
            reason = f"node {voter.key.node_id} is already a voter"
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
            reason = f"node {request.voter.node_id} with this directory id is not a voter"
            self._reply(request_id, ErrorCode.VOTER_NOT_FOUND, reason)
            return
        if len(voters) == 1:
            reason = f"node {request.voter.node_id} is the only voter: add another voter first"
            self._reply(request_id, ErrorCode.VOTER_NOT_FOUND, reason)
            return
        self._start_change(request_id, voters.without(request.voter.node_id))

    def on_update(self, request_id: int, request: UpdateVoterRequest) -> None:
        """Replace a voter's endpoints and versions, at its own request."""
        state, voter = self._state, request.voter
        if request.epoch != state.epoch:
            error = ErrorCode.FENCED_LEADER_EPOCH
            if request.epoch > state.epoch:
                error = ErrorCode.UNKNOWN_LEADER_EPOCH
            self._reply(request_id, error, f"the current epoch is {state.epoch}")
            return
        if self._reject_unready(request_id, allow_static=True):
            return
        found = state.voter_set.find(voter.key.node_id)
        if found is None or not found.key.matches(voter.key):
            reason = f"node {voter.key.node_id} with this directory id is not a voter"
            self._reply(request_id, ErrorCode.VOTER_NOT_FOUND, reason)
        elif not self._supports_kraft_version(voter):
            self._reply(request_id, ErrorCode.INVALID_REQUEST, self._kraft_version_reason())
        elif voter.key == state.key:  # a leader updates its own entry when its epoch begins
            reason = f"node {voter.key.node_id} is the leader: restart it to change its listeners"
            self._reply(request_id, ErrorCode.INVALID_REQUEST, reason)
        elif found == voter:
            self._reply(request_id, ErrorCode.NONE, None)
        elif state.voters.kraft_version < 1:
            self._leader().reported_voters[voter.key.node_id] = voter
            self._reply(request_id, ErrorCode.NONE, None)
        else:  # respond on append: the voter cannot fetch the record while it waits
            self._start_change(request_id, state.voter_set.with_voter(voter), ack_on_append=True)

    # --- kraft.version ----------------------------------------------------------------------------

    def upgrade_refusal(self, version: int) -> str | None:
        """Return why ``on_upgrade`` is refused, in Kafka's words; None if it is not."""
        current = self._state.voters.kraft_version
        if version == current:
            return None
        change = f"from version KRAFT_VERSION_{current} to KRAFT_VERSION_{version}"
        if version < current:
            return (
                f"Invalid upgrade of kraft.version {change} because the new version is a downgrade"
            )
        if (current, version) != (0, 1):
            return f"Invalid upgrade of kraft.version {change}"
        if not all(self._is_upgradable(voter.key, version) for voter in self._state.voter_set):
            return (
                f"Invalid upgrade of kraft.version to KRAFT_VERSION_{version} because not all of "
                "the voters support it"
            )
        return None

    def on_upgrade(self, version: int) -> None:
        """Append kraft.version and the voters with the ids and versions that they reported."""
        state, role = self._state, self._leader()
        assert self.upgrade_refusal(version) is None, "the upgrade is valid"
        if version == state.voters.kraft_version:
            return
        voters = VoterSet.of(role.reported_voters[one.key.node_id] for one in state.voter_set)
        state.emit(LogMessage(f"kraft.version {version} at offset {state.log.end_offset}"))
        state.emit(AppendVoters(role.epoch, voters, version))
        state.emit(StartSync())

    def _is_upgradable(self, key: ReplicaKey, version: int) -> bool:
        """Return whether a static voter has reported its directory id, and supports a version."""
        voter = self._leader().reported_voters.get(key.node_id)
        return (
            voter is not None
            and voter.key.directory_id != ZERO_UUID
            and voter.kraft_version_min <= version <= voter.kraft_version_max
        )

    def _reject_unready(self, request_id: int, *, allow_static: bool = False) -> bool:
        """Refuse a change that cannot start now, and return whether it was refused."""
        state, role = self._state, self._state.role
        if not isinstance(role, Leader):
            error, reason = ErrorCode.NOT_LEADER_OR_FOLLOWER, "this node is not the leader"
        elif not role.has_committed_in_epoch:
            error = ErrorCode.REQUEST_TIMED_OUT
            reason = "the leader has not committed a record of its epoch yet: try again"
        elif state.voters.kraft_version < 1 and not allow_static:
            error = ErrorCode.UNSUPPORTED_VERSION
            reason = (
                "the voter set is static (kraft.version 0): upgrade kraft.version to 1, or change "
                "the voters in the configuration"
            )
        elif role.voter_change is not None or state.is_voter_set_uncommitted:
            error, reason = ErrorCode.REQUEST_TIMED_OUT, "another voter change is pending"
        else:
            return False
        self._reply(request_id, error, reason)
        return True

    # --- progress of a change ---------------------------------------------------------------------

    def poll(self) -> None:
        state, role = self._state, self._state.role
        if not isinstance(role, Leader):
            return
        change = role.voter_change
        if change is not None:
            if change.offset is not None and change.offset < (state.high_watermark or 0):
                self._complete_change(role, ErrorCode.NONE, None)
            elif state.now_ms >= change.deadline_ms:
                self._complete_change(
                    role, ErrorCode.REQUEST_TIMED_OUT, "the voter change timed out"
                )
            elif change.new_voter is not None and change.offset is None:
                self._advance_new_voter(change, change.new_voter)
        if not state.is_voter and not state.is_voter_set_uncommitted:
            role.is_resign_requested = True

    def _advance_new_voter(self, change: PendingVoterChange, voter: Voter) -> None:
        """Request a new voter's versions; append the change when the voter has caught up."""
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
        """Fail the pending change if its record was not appended because the disk is full."""
        role = self._state.role
        change = role.voter_change if isinstance(role, Leader) else None
        if change is None or change.offset is None:
            return
        if change.offset != self._state.voters.latest_offset:
            assert isinstance(role, Leader)
            self._complete_change(role, ErrorCode.KAFKA_STORAGE_ERROR, event.reason)

    # --- start and completion ---------------------------------------------------------------------

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
        assert role.voter_change is not None, "no voter change is pending"
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
        return f"the voter must support kraft.version {self._state.voters.kraft_version}"
