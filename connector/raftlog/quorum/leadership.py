"""Leading: fetches that are answered or parked, what they commit, and when to stop.

Rules of this file:

1. A fetch from an offset says that everything below it is durable there, if the logs agree up to
   it; only then does it count. Whether the one who asks is who it says is the caller's to prove.
2. The leader counts itself as far as it is synced, and sends what is not synced yet: both at once.
3. A parked fetch ends by records, a new high watermark, time, or the end of the leadership.

Kafka: ``KafkaRaftClient`` and ``LeaderState``.
"""

from __future__ import annotations

from dataclasses import replace

from raftlog.limits import BATCH_BYTES_MAX
from raftlog.types import Diverging, ReplicaKey, SnapshotNeeded

from .effects import (
    AdvanceHighWatermark,
    LeadershipConfirmed,
    Reply,
    ReplyWithRecords,
    ReplyWithSnapshot,
)
from .messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    ErrorCode,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
)
from .roles import Leader, ParkedFetch
from .state import ReplicaState


class Leadership:
    """The part of a replica that leads."""

    def __init__(self, state: ReplicaState) -> None:
        self._state = state

    # --- what time asks for -----------------------------------------------------------------------

    def poll(self) -> None:
        state, role = self._state, self._state.role
        if not isinstance(role, Leader):
            return
        if role.is_resign_requested or state.is_shutting_down or self._is_deserted(role):
            state.become_resigned()
            return
        self._answer_late(role)
        self._tell_voters(role)

    def _is_deserted(self, role: Leader) -> bool:
        """Whether no majority fetched for too long: another may have been elected."""
        state = self._state
        if not self._others_needed():
            return False
        return state.now_ms >= role.check_quorum_deadline_ms

    def _others_needed(self) -> int:
        """How many voters besides itself make a majority."""
        state = self._state
        return state.voter_set.majority_count - (1 if state.is_voter else 0)

    def _answer_late(self, role: Leader) -> None:
        late = [at for at, one in role.parked.items() if self._state.now_ms >= one.deadline_ms]
        for request_id in late:
            self._answer(role, request_id, role.parked.pop(request_id).request)

    def _tell_voters(self, role: Leader) -> None:
        """Tell those who do not fetch that this is the leader."""
        state = self._state
        if state.now_ms >= role.begin_epoch_deadline_ms:
            interval_ms = state.config.begin_epoch_interval_ms
            role.begin_epoch_deadline_ms = state.now_ms + interval_ms
            for voter in state.other_voters:
                progress = role.progress.voter(state.voter_set, voter.key.node_id)
                fetched_ms = None if progress is None else progress.fetched_ms
                if fetched_ms is None or state.now_ms - fetched_ms >= interval_ms:
                    role.begun.discard(voter.key)
        newest = role.tickets[-1] if role.tickets else 0
        for voter in state.other_voters:
            key, node_id = voter.key, voter.key.node_id
            is_needed = key not in role.begun or role.confirmed.get(key, 0) < newest
            if is_needed and state.requests.is_ready(node_id, state.now_ms):
                role.asked[key] = newest
                request = BeginQuorumEpochRequest(
                    epoch=role.epoch,
                    leader_id=state.node_id,
                    voter=voter.key,
                    leader_endpoints=state.me.endpoints,
                )
                state.send(node_id, request)

    def deadline_ms(self) -> int | None:
        role = self._state.role
        if not isinstance(role, Leader):
            return None
        times = [one.deadline_ms for one in role.parked.values()]
        if self._others_needed():
            times.append(role.check_quorum_deadline_ms)
        if self._state.other_voters:
            times.append(role.begin_epoch_deadline_ms)
        return min(times, default=None)

    def on_begin_epoch_response(
        self, node_id: int, request: BeginQuorumEpochRequest, response: BeginQuorumEpochResponse
    ) -> None:
        """Success is the answer of the voter that was addressed, by node id and directory id."""
        role, key = self._state.role, request.voter
        if not isinstance(role, Leader) or key is None:
            return
        if response.error is ErrorCode.NONE:
            role.begun.add(key)
            role.confirmed[key] = role.asked.get(key, 0)
            self._confirm(role)
        else:
            self._state.back_off(node_id)

    # --- whether it still leads -------------------------------------------------------------------

    def on_confirm(self, ticket: int) -> None:
        """Ask the voters; tickets rise. What they answered before says nothing of now."""
        role = self._state.role
        if isinstance(role, Leader):
            assert not role.tickets or ticket > role.tickets[-1], "tickets rise"
            role.tickets.append(ticket)
            self._confirm(role)

    def _confirm(self, role: Leader) -> None:
        """Answer the tickets that a majority has answered."""
        answered = sorted(
            (role.confirmed.get(voter.key, 0) for voter in self._state.other_voters),
            reverse=True,
        )
        needed = self._others_needed()
        newest = role.tickets[-1] if role.tickets and not needed else 0
        if needed:
            newest = answered[needed - 1] if needed <= len(answered) else 0
        for ticket in [one for one in role.tickets if one <= newest]:
            role.tickets.remove(ticket)
            self._state.emit(LeadershipConfirmed(ticket))

    # --- fetches ----------------------------------------------------------------------------------

    def on_fetch(self, request_id: int, request: FetchRequest) -> None:
        state, role = self._state, self._state.role
        error = self._fetch_error(request)
        if error is ErrorCode.NONE:
            error = self._leader_error(request.epoch)
        if error is ErrorCode.NONE and request.replica.node_id == state.node_id:
            error = ErrorCode.INVALID_REQUEST
        if error is not ErrorCode.NONE:
            state.emit(Reply(request_id, FetchResponse(standing=state.standing, error=error)))
            return
        assert isinstance(role, Leader)
        answer = state.log.validate_fetch(request.fetch_offset, request.last_fetched_epoch)
        if isinstance(answer, Diverging):
            state.emit(Reply(request_id, replace(self._response(role), diverging=answer.end)))
        elif isinstance(answer, SnapshotNeeded):
            response = replace(self._response(role), snapshot_id=answer.snapshot_id)
            state.emit(Reply(request_id, response))
        else:
            self._note(role, request)
            self._serve(role, request_id, request)

    def _fetch_error(self, request: FetchRequest) -> ErrorCode:
        is_senseless = (
            request.replica.node_id < 0  # who is no replica asks the node, not the quorum
            or request.max_wait_ms < 0
            or request.fetch_offset < 0
            or request.last_fetched_epoch < 0
            or request.last_fetched_epoch > request.epoch
        )
        return ErrorCode.INVALID_REQUEST if is_senseless else ErrorCode.NONE

    def _leader_error(self, epoch: int) -> ErrorCode:
        """Why a request of this epoch is not this replica's to answer."""
        state = self._state
        if epoch < state.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > state.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if not isinstance(state.role, Leader):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.BROKER_NOT_AVAILABLE if state.is_shutting_down else ErrorCode.NONE

    def _note(self, role: Leader, request: FetchRequest) -> None:
        """Count the fetch: what is durable there, and that the leader is not deserted."""
        state, config = self._state, self._state.config
        role.progress.note_fetch(
            request.replica,
            request.fetch_offset,
            leader_end_offset=state.log.end_offset,
            now_ms=state.now_ms,
        )
        self._note_contact(role, request.replica)
        if not state.voter_set.has(request.replica):
            role.progress.forget_observers(
                state.voter_set,
                before_ms=state.now_ms - config.observer_forgotten_ms,
                count_max=config.observers_max,
            )
        self.commit()

    def _note_contact(self, role: Leader, key: ReplicaKey) -> None:
        state = self._state
        voter = state.voter_set.find(key.node_id)
        if voter is None or not voter.key.matches(key):
            return
        role.begun.add(voter.key)
        role.fetched_since.add(voter.key)
        if len(role.fetched_since) >= self._others_needed():
            role.fetched_since.clear()
            role.check_quorum_deadline_ms = state.now_ms + state.config.check_quorum_timeout_ms

    def _serve(self, role: Leader, request_id: int, request: FetchRequest) -> None:
        state = self._state
        for parked_id, parked in list(role.parked.items()):
            if parked.request.replica == request.replica:  # it has asked again: the first is moot
                del role.parked[parked_id]
                state.emit(Reply(parked_id, self._response(role)))
        if self._is_ready(role, request) or request.max_wait_ms == 0:
            self._answer(role, request_id, request)
        else:
            deadline_ms = state.now_ms + request.max_wait_ms
            role.parked[request_id] = ParkedFetch(request, deadline_ms)

    def _is_ready(self, role: Leader, request: FetchRequest) -> bool:
        """Whether there is something that this replica does not know."""
        state = self._state
        if request.fetch_offset < state.log.end_offset:
            return True
        told = request.high_watermark or 0
        return role.is_established and told < (state.high_watermark or 0)

    def _answer(self, role: Leader, request_id: int, request: FetchRequest) -> None:
        """Answer with what there is; the logs are known to agree, since this one only grows."""
        self._state.emit(
            ReplyWithRecords(
                request_id,
                self._response(role),
                request.fetch_offset,
                min(request.max_bytes, BATCH_BYTES_MAX),
            )
        )

    def _response(self, role: Leader) -> FetchResponse:
        state = self._state
        return FetchResponse(
            standing=state.standing,
            high_watermark=state.high_watermark if role.is_established else None,
            log_start_offset=state.log.log_start_offset,
        )

    def on_dropped(self, request_id: int) -> None:
        role = self._state.role
        if isinstance(role, Leader):
            role.parked.pop(request_id, None)

    def on_fetch_snapshot(self, request_id: int, request: FetchSnapshotRequest) -> None:
        state, role = self._state, self._state.role
        error, byte_count = self._leader_error(request.epoch), 0
        if error is ErrorCode.NONE:
            found = state.log.snapshot_byte_count(request.snapshot_id)
            if found is None:
                error = ErrorCode.SNAPSHOT_NOT_FOUND
            elif not 0 <= request.position < found:
                error = ErrorCode.POSITION_OUT_OF_RANGE
            else:
                byte_count = found
        response = FetchSnapshotResponse(
            standing=state.standing,
            snapshot_id=request.snapshot_id,
            error=error,
            byte_count=byte_count,
            position=request.position,
        )
        if error is not ErrorCode.NONE:
            state.emit(Reply(request_id, response))
            return
        assert isinstance(role, Leader)
        self._note_contact(role, request.replica)
        byte_count_max = min(request.max_bytes, BATCH_BYTES_MAX)
        state.emit(ReplyWithSnapshot(request_id, response, byte_count_max))

    # --- what is committed ------------------------------------------------------------------------

    def commit(self) -> None:
        """Raise the high watermark to what a majority holds, and tell those who wait.

        Only behind the first record of this epoch: one of an older epoch that a majority holds may
        still be lost (Raft's figure 8).
        """
        state, role = self._state, self._state.role
        if not isinstance(role, Leader):
            return
        offset = role.progress.majority_end_offset(
            state.voter_set, state.key, state.log.synced_end_offset
        )
        if offset > role.epoch_start_offset and offset > (state.high_watermark or 0):
            state.high_watermark = offset
            role.is_established = True
            state.emit(AdvanceHighWatermark(offset))
            self._answer_ready(role)

    def on_appended(self) -> None:
        """The log has grown: those who wait get it, before it is durable here."""
        role = self._state.role
        if isinstance(role, Leader):
            self._answer_ready(role)

    def _answer_ready(self, role: Leader) -> None:
        ready = [at for at, one in role.parked.items() if self._is_ready(role, one.request)]
        for request_id in ready:
            self._answer(role, request_id, role.parked.pop(request_id).request)
