"""Leading: fetches, delayed fetches, the high watermark, check quorum.

Invariants:

1. A fetch from an offset acknowledges everything below it, but only if the logs agree up to that
   offset. The caller authenticates the replica that sends it.
2. The leader counts its own log up to the synced end. It replicates records before they are synced,
   so the local sync and the replication run in parallel.
3. A delayed fetch completes with records, ``fetch_hw_delay_ms`` after a new high watermark without
   records, after its maximum wait, or at the end of the leadership. While records are being
   appended, the high watermark is sent along with them, so that a commit takes each follower one
   fetch instead of two.
4. A read id is confirmed when a majority has acknowledged a BeginQuorumEpoch request that was sent
   after the id was registered. Until then another leader may have committed records that this one
   lacks (read index, section 6.4 of the Raft dissertation).

Kafka: ``KafkaRaftClient`` and ``LeaderState``.
"""

from __future__ import annotations

from dataclasses import replace

from raftlog.limits import BATCH_BYTES_MAX
from raftlog.types import Diverging, ReplicaKey, SnapshotNeeded

from .effects import (
    AdvanceHighWatermark,
    ReadIndexConfirmed,
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
from .roles import DelayedFetch, Leader
from .state import ReplicaState


class Leadership:
    """The part of a replica that is the leader."""

    def __init__(self, state: ReplicaState) -> None:
        self._state = state

    # --- timers -----------------------------------------------------------------------------------

    def poll(self) -> None:
        """Resign if there is a reason to; otherwise respond to expired fetches, notify voters."""
        state, role = self._state, self._state.role
        if not isinstance(role, Leader):
            return
        if (
            role.is_resign_requested
            or state.is_shutting_down
            or self._is_check_quorum_expired(role)
        ):
            state.become_resigned()
            return
        self._complete_expired(role)
        self._send_begin_quorum_epoch(role)

    def _is_check_quorum_expired(self, role: Leader) -> bool:
        """Return whether no majority has fetched for too long: there may be a newer leader."""
        state = self._state
        return state.now_ms >= role.check_quorum_deadline_ms and state.other_majority_count > 0

    def _complete_expired(self, role: Leader) -> None:
        now_ms, expired = self._state.now_ms, []
        for request_id, delayed in role.delayed_fetches.items():
            if now_ms >= delayed.deadline_ms:
                expired.append(request_id)
        for request_id in expired:
            self._complete(role, request_id, role.delayed_fetches.pop(request_id).request)

    def _send_begin_quorum_epoch(self, role: Leader) -> None:
        """Send BeginQuorumEpoch to voters that do not fetch, or that must confirm a read id.

        A voter that has not fetched for an interval may have restarted without knowing the leader.
        """
        state = self._state
        if state.now_ms >= role.begin_epoch_deadline_ms:
            interval_ms = state.config.begin_epoch_interval_ms
            role.begin_epoch_deadline_ms = state.now_ms + interval_ms
            for voter in state.other_voters:
                progress = role.progress.voter(state.voter_set, voter.key.node_id)
                fetched_ms = None if progress is None else progress.fetched_ms
                if fetched_ms is None or state.now_ms - fetched_ms >= interval_ms:
                    role.acknowledged_voters.discard(voter.key)
                    role.all_acknowledged = None
        newest, others = role.pending_reads[-1] if role.pending_reads else 0, state.other_voter_keys
        if not newest:
            if others is role.all_acknowledged:
                return
            if others <= role.acknowledged_voters:
                role.all_acknowledged = others
                return
        for voter in state.other_voters:
            key, node_id = voter.key, voter.key.node_id
            is_needed = (
                key not in role.acknowledged_voters or role.acknowledged_reads.get(key, 0) < newest
            )
            if is_needed and state.requests.is_ready(node_id, state.now_ms):
                role.sent_reads[key] = newest
                request = BeginQuorumEpochRequest(
                    epoch=role.epoch,
                    leader_id=state.node_id,
                    voter=voter.key,
                    leader_endpoints=state.local_voter.endpoints,
                )
                state.send(node_id, request)

    def deadline_ms(self) -> int | None:
        """Return the leader's next deadline; None if it has none, or the replica does not lead."""
        role = self._state.role
        if not isinstance(role, Leader):
            return None
        at_ms: int | None = None
        own = self._state.own_voter_set
        if own.other_majority_count:
            at_ms = role.check_quorum_deadline_ms
        if own.others and (at_ms is None or role.begin_epoch_deadline_ms < at_ms):
            at_ms = role.begin_epoch_deadline_ms
        for delayed in role.delayed_fetches.values():
            if at_ms is None or delayed.deadline_ms < at_ms:
                at_ms = delayed.deadline_ms
        change = role.voter_change
        if change is not None and (at_ms is None or change.deadline_ms < at_ms):
            at_ms = change.deadline_ms
        return at_ms

    def on_begin_epoch_response(
        self, node_id: int, request: BeginQuorumEpochRequest, response: BeginQuorumEpochResponse
    ) -> None:
        """Record the acknowledgement of the addressed voter, by node id and directory id."""
        role, key = self._state.role, request.voter
        if not isinstance(role, Leader) or key is None:
            return
        if response.error is ErrorCode.NONE:
            role.acknowledged_voters.add(key)
            role.acknowledged_reads[key] = role.sent_reads.get(key, 0)
            self._advance_reads(role)
        else:
            self._state.back_off(node_id)

    # --- read index -------------------------------------------------------------------------------

    def on_read_index(self, read_id: int) -> None:
        """Start to confirm the leadership for a read id; read ids increase.

        Only acknowledgements of requests sent from now on count for this read id.
        """
        role = self._state.role
        if isinstance(role, Leader):
            assert not role.pending_reads or read_id > role.pending_reads[-1], "read ids increase"
            role.pending_reads.append(read_id)
            self._advance_reads(role)

    def _advance_reads(self, role: Leader) -> None:
        """Confirm the read ids that a majority has acknowledged.

        Example: if two of four other voters are needed, and the four have acknowledged 7, 5, 4 and
        0, all ids up to 5 are confirmed. A single voter needs no acknowledgement.
        """
        acknowledged = sorted(
            (role.acknowledged_reads.get(voter.key, 0) for voter in self._state.other_voters),
            reverse=True,
        )
        needed = self._state.other_majority_count
        newest = role.pending_reads[-1] if role.pending_reads and not needed else 0
        if needed:
            newest = acknowledged[needed - 1] if needed <= len(acknowledged) else 0
        for read_id in [pending for pending in role.pending_reads if pending <= newest]:
            role.pending_reads.remove(read_id)
            self._state.emit(ReadIndexConfirmed(read_id))

    # --- fetches ----------------------------------------------------------------------------------

    def on_fetch(self, request_id: int, request: FetchRequest) -> None:
        """Delay a replica's fetch, or respond with an error, with the end of the epoch where its
        log diverges, with the id of a snapshot to fetch first, or with records.

        Only a fetch from a log that agrees with this one acknowledges records.
        """
        state, role = self._state, self._state.role
        error = self._fetch_error(request)
        if error is ErrorCode.NONE:
            error = self._leader_error(request.epoch)
        if error is ErrorCode.NONE and request.replica.node_id == state.node_id:
            error = ErrorCode.INVALID_REQUEST
        if error is not ErrorCode.NONE:
            state.emit(
                Reply(
                    request_id, FetchResponse(leader_and_epoch=state.leader_and_epoch, error=error)
                )
            )
            return
        assert isinstance(role, Leader)
        validation = state.log.validate_offset_and_epoch(
            offset=request.fetch_offset, epoch=request.last_fetched_epoch
        )
        if isinstance(validation, Diverging):
            state.emit(Reply(request_id, replace(self._response(role), diverging=validation.end)))
        elif isinstance(validation, SnapshotNeeded):
            response = replace(self._response(role), snapshot_id=validation.snapshot_id)
            state.emit(Reply(request_id, response))
        else:
            self._record_fetch(role, request)
            self._complete_or_delay(role, request_id, request)

    def _fetch_error(self, request: FetchRequest) -> ErrorCode:
        is_invalid = (
            request.replica.node_id < 0  # fetches of consumers do not reach the quorum
            or request.max_wait_ms < 0
            or request.fetch_offset < 0
            or request.last_fetched_epoch < 0
            or request.last_fetched_epoch > request.epoch
        )
        return ErrorCode.INVALID_REQUEST if is_invalid else ErrorCode.NONE

    def _leader_error(self, epoch: int) -> ErrorCode:
        """Return why a request with this epoch is refused (``validateLeaderOnlyRequest``)."""
        state = self._state
        if epoch < state.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > state.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if not isinstance(state.role, Leader):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.BROKER_NOT_AVAILABLE if state.is_shutting_down else ErrorCode.NONE

    def _record_fetch(self, role: Leader, request: FetchRequest) -> None:
        """Record what is durable on the replica, and its contact for the check quorum timer."""
        state, config = self._state, self._state.config
        role.progress.record_fetch(
            request.replica,
            request.fetch_offset,
            leader_end_offset=state.log.end_offset,
            now_ms=state.now_ms,
            log_start_offset=request.log_start_offset,
        )
        self._record_contact(role, request.replica)
        if not state.voter_set.has(request.replica):
            role.progress.clear_inactive_observers(
                state.voter_set,
                before_ms=state.now_ms - config.observer_session_timeout_ms,
                count_max=config.observers_max,
            )
        self.commit()

    def _record_contact(self, role: Leader, key: ReplicaKey) -> None:
        """Record that a voter follows this leader; a majority resets the check quorum timer."""
        state = self._state
        voter = state.voters.latest.find(key.node_id)
        if voter is None or not voter.key.matches(key):
            return
        role.acknowledged_voters.add(voter.key)
        role.fetched_voters.add(voter.key)
        if len(role.fetched_voters) >= state.other_majority_count:
            role.fetched_voters.clear()
            role.check_quorum_deadline_ms = state.now_ms + state.config.check_quorum_timeout_ms

    def _complete_or_delay(self, role: Leader, request_id: int, request: FetchRequest) -> None:
        state = self._state
        replica = request.replica
        for delayed_id, delayed in list(role.delayed_fetches.items()):
            other = delayed.request.replica
            if other.node_id == replica.node_id and other == replica:  # superseded by the new fetch
                del role.delayed_fetches[delayed_id]
                state.emit(Reply(delayed_id, self._response(role)))
        due_ms = self._due_ms(role, request, state.now_ms + request.max_wait_ms)
        if due_ms <= state.now_ms:
            self._complete(role, request_id, request)
        else:
            role.delayed_fetches[request_id] = DelayedFetch(request, due_ms)

    def _due_ms(self, role: Leader, request: FetchRequest, deadline_ms: int) -> int:
        """Return when to respond: now if the replica lacks records, soon if it lacks only the high
        watermark, otherwise at the deadline."""
        state = self._state
        if request.fetch_offset < state.log.end_offset:
            return state.now_ms
        known = request.high_watermark or 0
        if not role.has_committed_in_epoch or known >= (state.high_watermark or 0):
            return deadline_ms
        return min(deadline_ms, state.now_ms + state.config.fetch_hw_delay_ms)

    def _complete(self, role: Leader, request_id: int, request: FetchRequest) -> None:
        """Respond with the available records.

        The logs still agree up to the fetch offset: a leader's log is append-only.
        """
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
            leader_and_epoch=state.leader_and_epoch,
            high_watermark=state.high_watermark if role.has_committed_in_epoch else None,
            log_start_offset=state.log.earliest_offset,
        )

    def on_request_dropped(self, request_id: int) -> None:
        role = self._state.role
        if isinstance(role, Leader):
            delayed = role.delayed_fetches.pop(request_id, None)
            if delayed is not None:
                role.progress.record_lost(delayed.request.replica)

    def on_fetch_snapshot(self, request_id: int, request: FetchSnapshotRequest) -> None:
        """Respond with a snapshot's bytes from a position on."""
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
            leader_and_epoch=state.leader_and_epoch,
            snapshot_id=request.snapshot_id,
            error=error,
            byte_count=byte_count,
            position=request.position,
        )
        if error is not ErrorCode.NONE:
            state.emit(Reply(request_id, response))
            return
        assert isinstance(role, Leader)
        self._record_contact(role, request.replica)
        byte_count_max = min(request.max_bytes, BATCH_BYTES_MAX)
        state.emit(ReplyWithSnapshot(request_id, response, byte_count_max))

    # --- high watermark ---------------------------------------------------------------------------

    def commit(self) -> None:
        """Advance the high watermark to the durable end of a majority; complete delayed fetches.

        The high watermark advances only past the first record of this epoch: a record of an older
        epoch can be lost although a majority has it (Raft, figure 8).
        """
        state, role = self._state, self._state.role
        if not isinstance(role, Leader):
            return
        offset = self._committed_offset(role)
        if offset is not None:
            state.high_watermark = offset
            state.note_committed(offset)
            role.has_committed_in_epoch = True
            state.emit(AdvanceHighWatermark(offset))
            self._complete_ready(role)

    @property
    def can_commit(self) -> bool:
        """Whether ``commit`` advances the high watermark."""
        role = self._state.role
        return isinstance(role, Leader) and self._committed_offset(role) is not None

    def _committed_offset(self, role: Leader) -> int | None:
        """Return the high watermark to advance to; None if it does not advance."""
        state, high_watermark = self._state, self._state.high_watermark
        if high_watermark == state.log.end_offset:
            return None
        offset = role.progress.majority_end_offset(state.own_voter_set, state.log.synced_end_offset)
        is_later = offset > role.epoch_start_offset and offset > (high_watermark or 0)
        return offset if is_later else None

    def on_appended(self) -> None:
        """Complete delayed fetches with the appended records, before these are durable here."""
        role = self._state.role
        if isinstance(role, Leader):
            self._complete_ready(role)

    def on_log_start_advanced(self) -> None:
        """Complete all delayed fetches, once only: a replica that cannot follow the new log start
        must not fetch again and again."""
        role = self._state.role
        if isinstance(role, Leader):
            for delayed in role.delayed_fetches.values():
                delayed.deadline_ms = self._state.now_ms
            self._complete_expired(role)

    def has_log_start(self, offset: int) -> bool:
        """Return whether this replica leads, and no other voter has records below ``offset``."""
        state, role = self._state, self._state.role
        return isinstance(role, Leader) and all(
            (found := role.progress.voter(state.voter_set, voter.key.node_id)) is not None
            and (found.log_start_offset or 0) >= offset
            for voter in state.other_voters
        )

    def _complete_ready(self, role: Leader) -> None:
        """Respond to the delayed fetches for which there are records or a high watermark now."""
        for delayed in role.delayed_fetches.values():
            delayed.deadline_ms = self._due_ms(role, delayed.request, delayed.deadline_ms)
        self._complete_expired(role)
