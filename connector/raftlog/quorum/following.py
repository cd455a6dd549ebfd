"""Fetching from a leader: records, truncation, snapshots, the high watermark.

Invariants:

1. The fetch offset is the durable end of the log, so no fetch is sent while fetched records are not
   synced.
2. A response is handled only if it belongs to its node's one in-flight request, which was sent in
   the current epoch and role (``RequestManager``).
3. The log is truncated only to the diverging epoch that the leader returns, and never below the
   high watermark.
4. The log start follows the leader's (KIP-107), but not beyond the high watermark. It does not
   follow a leader that copies segments to a different object store.
5. No records are appended if the leader's log no longer has tombstones of keys that this log may
   still have.
6. The high watermark passes records only once they are synced here too (Kafka:
   ``KafkaRaftClient.handleFetchResponse``). Fetched records take one step, for their sync; their
   append takes another one only if they include voters.

Kafka: the follower part of ``KafkaRaftClient``.
"""

from __future__ import annotations

from raftlog.types import ZERO_UUID

from .effects import (
    AdvanceHighWatermark,
    AdvanceLogStart,
    AppendAsFollower,
    InstallSnapshot,
    LogMessage,
    RejoinElections,
    StartSync,
    StoreSnapshotBytes,
    TruncateFully,
    TruncateToEndOfEpoch,
)
from .events import AppendRefused, SnapshotInstalled, SnapshotRefused
from .messages import (
    ErrorCode,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    UpdateVoterRequest,
    VoterChangeResponse,
)
from .roles import Follower, SnapshotFetch, Unattached
from .state import ReplicaState
from .voters import Endpoint


class Following:
    """The part of a replica that fetches from a leader, or looks for one."""

    def __init__(
        self, state: ReplicaState, bootstrap: tuple[tuple[Endpoint, ...], ...] = ()
    ) -> None:
        self._state = state
        self._bootstrap = bootstrap
        self._next_target = 0

    # --- requests ---------------------------------------------------------------------------------

    def poll(self) -> None:
        state, role = self._state, self._state.role
        if isinstance(role, Follower) and (role.is_appending or role.is_deleting):
            return
        if state.log.synced_end_offset < state.log.end_offset:
            return  # syncing what it appended as leader, see ``ReplicaState._transition_to``
        if isinstance(role, Unattached) and state.must_discover_leader:
            self._discover_leader()
        elif isinstance(role, Follower):
            if state.now_ms >= role.fetch_deadline_ms and not state.can_campaign:
                role.has_fetched_from_leader = False  # grant the pre-votes of other candidates
                self._discover_leader()  # observers receive no BeginQuorumEpoch of a new leader
                return
            if not state.requests.is_ready(role.leader_id, state.now_ms):
                return
            if self._must_update_voter(role):
                state.send(role.leader_id, self._update_voter_request(role), role.leader_endpoints)
            elif role.snapshot is None:
                state.send(role.leader_id, self._fetch_request(), role.leader_endpoints)
            elif not role.snapshot.is_installing:
                request = self._fetch_snapshot_request(role.snapshot)
                state.send(role.leader_id, request, role.leader_endpoints)

    def _must_update_voter(self, role: Follower) -> bool:
        """Return whether the voter set lists outdated endpoints or versions of this voter, or
        whether the leader of static voters does not have this voter's directory id yet."""
        state = self._state
        if not role.has_fetched_from_leader or state.now_ms < role.update_after_ms:
            return False
        if state.voters.kraft_version < 1:
            has_directory_id = state.key.directory_id != ZERO_UUID
            return has_directory_id and state.is_voter and not role.has_updated_leader
        return state.is_voter_outdated

    def _update_voter_request(self, role: Follower) -> UpdateVoterRequest:
        """Return the request; the next one is sent two fetch timeouts later at the earliest."""
        state = self._state
        role.update_after_ms = state.now_ms + 2 * state.config.fetch_timeout_ms
        return UpdateVoterRequest(epoch=role.epoch, voter=state.local_voter)

    def on_update_response(self, response: VoterChangeResponse) -> None:
        """Record that the leader has this static voter's id, or that its release needs none."""
        role = self._state.role
        if isinstance(role, Follower):
            role.has_updated_leader |= response.error in (
                ErrorCode.NONE,
                ErrorCode.UNSUPPORTED_VERSION,
            )

    def _discover_leader(self) -> None:
        """Send a fetch to the next known node; any response names the leader.

        The nodes are the voters, the bootstrap servers (ids -2, -3, ...) and the leader that timed
        out: it may have restarted, and may be a voter that is not in this log yet. One request is
        in flight at a time; after a failure, the next one is sent after the backoff.
        """
        state, role = self._state, self._state.role
        targets = [(voter.key.node_id, voter.endpoints) for voter in state.other_voters]
        if isinstance(role, Follower) and role.leader_id not in dict(targets):
            targets.append((role.leader_id, role.leader_endpoints))
        targets += [(-2 - at, endpoints) for at, endpoints in enumerate(self._bootstrap)]
        if not targets or any(
            not state.requests.is_ready(node_id, state.now_ms) for node_id, _ in targets
        ):
            return
        node_id, endpoints = targets[self._next_target % len(targets)]
        self._next_target += 1
        state.send(node_id, self._fetch_request(), endpoints)

    def _fetch_request(self) -> FetchRequest:
        state = self._state
        return FetchRequest(
            replica=state.key,
            epoch=state.epoch,
            fetch_offset=state.log.end_offset,
            last_fetched_epoch=state.log.last_fetched_epoch,
            max_bytes=state.config.fetch_max_bytes,
            max_wait_ms=state.config.fetch_max_wait_ms,
            high_watermark=state.high_watermark,
            log_start_offset=state.log.earliest_offset,
        )

    def _fetch_snapshot_request(self, snapshot: SnapshotFetch) -> FetchSnapshotRequest:
        state = self._state
        return FetchSnapshotRequest(
            replica=state.key,
            epoch=state.epoch,
            snapshot_id=snapshot.snapshot_id,
            position=snapshot.position,
            max_bytes=state.config.snapshot_max_bytes,
        )

    # --- records ----------------------------------------------------------------------------------

    def on_fetch_response(self, node_id: int, response: FetchResponse) -> None:
        """Fetch a snapshot, truncate the log, append records, or advance the high watermark."""
        state, role = self._state, self._state.role
        if not isinstance(role, Follower) or node_id != role.leader_id:
            state.back_off(node_id)
            return
        if response.error is not ErrorCode.NONE:
            state.back_off(node_id)
            return
        state.note_committed(response.high_watermark)
        if response.snapshot_id is not None:
            self._begin_snapshot(role, response)
            return
        self._record_contact(role)
        if response.diverging is not None:
            role.is_appending = True
            state.emit(TruncateToEndOfEpoch(response.diverging))
            return
        missed_offset, log = response.tombstone_start_offset, state.log
        is_below = log.end_offset < missed_offset <= response.compacted_offset
        if is_below and log.misses_tombstones(missed_offset):
            role.is_appending = True
            state.emit(TruncateFully(missed_offset))
            return
        store_id = response.remote_store_id
        role.has_other_remote_store = store_id != 0 and log.remote_store_id not in (0, store_id)
        role.leader_high_watermark = response.high_watermark
        role.leader_log_start_offset = response.log_start_offset
        if response.records:
            role.is_appending = True
            state.emit(
                AppendAsFollower(
                    records=response.records,
                    leader_epoch=role.epoch,
                    compacted_offset=response.compacted_offset,
                    tombstone_start_offset=missed_offset,
                )
            )
            state.emit(StartSync())
        else:
            self.advance_high_watermark()

    def _record_contact(self, role: Follower) -> None:
        role.has_fetched_from_leader = True
        self._state.prove_epoch(role.epoch)
        role.fetch_deadline_ms = self._state.now_ms + role.fetch_timeout_ms

    def advance_high_watermark(self) -> None:
        """Advance to the leader's high watermark, at most to the end of the log.

        The high watermark never decreases. It is not below the log start offset either, because
        everything below the log start is committed.
        """
        state, role = self._state, self._state.role
        if not isinstance(role, Follower) or role.leader_high_watermark is None:
            return
        if state.is_recovering and state.log.synced_end_offset >= role.leader_high_watermark:
            state.is_recovering = False  # the log has all committed records again, durably
            state.emit(RejoinElections())
            state.emit(LogMessage("fetched all committed records; this node votes again"))
        offset = min(role.leader_high_watermark, state.log.end_offset)
        if offset > (state.high_watermark or 0) and offset >= state.log.log_start_offset:
            state.high_watermark = offset
            state.emit(AdvanceHighWatermark(offset))
        self._advance_log_start(role)

    def _advance_log_start(self, role: Follower) -> None:
        """Delete the records that the leader has deleted, if they are committed and durable here.

        If something prevents the deletion, such as a full disk, a later response retries it.
        """
        log, offset = self._state.log, role.leader_log_start_offset
        if not offset or role.is_deleting or role.has_other_remote_store:
            return
        known = log.earliest_offset
        committed = min(self._state.high_watermark or 0, log.synced_end_offset)
        if (known is None or known < offset) and offset <= committed:
            role.is_deleting = True
            self._state.emit(AdvanceLogStart(offset))

    def on_log_start_advanced(self) -> None:
        role = self._state.role
        if isinstance(role, Follower):
            role.is_deleting = False

    def on_append_refused(self, event: AppendRefused) -> None:
        """Fetch again later: the records are damaged or do not fit the log, or the disk is full."""
        state, role = self._state, self._state.role
        if isinstance(role, Follower):
            state.emit(LogMessage(f"refused records from the leader: {event.reason}"))
            state.back_off(role.leader_id, is_disk_full=event.is_disk_full)

    def on_sync_completed(self) -> None:
        state, role = self._state, self._state.role
        if isinstance(role, Follower) and state.log.synced_end_offset == state.log.end_offset:
            role.is_appending = False
            self.advance_high_watermark()

    def on_truncated(self) -> None:
        state, role = self._state, self._state.role
        state.voters.truncate_new_entries(state.log.end_offset)
        if isinstance(role, Follower):
            role.is_appending = False

    # --- snapshots --------------------------------------------------------------------------------

    def _begin_snapshot(self, role: Follower, response: FetchResponse) -> None:
        """Start fetching the leader's snapshot, unless it ends below this log's committed end."""
        state, snapshot_id = self._state, response.snapshot_id
        assert snapshot_id is not None
        committed = max(state.high_watermark or 0, state.log.log_start_offset)
        if snapshot_id.end_offset < committed or not 0 <= snapshot_id.epoch <= role.epoch:
            state.back_off(role.leader_id)
            return
        self._record_contact(role)
        role.snapshot = SnapshotFetch(snapshot_id=snapshot_id)

    def on_snapshot_response(self, node_id: int, response: FetchSnapshotResponse) -> None:
        """Store the next bytes of the snapshot; after the last ones, install it."""
        state, role = self._state, self._state.role
        if not isinstance(role, Follower) or node_id != role.leader_id or role.snapshot is None:
            return
        snapshot = role.snapshot
        if response.error is not ErrorCode.NONE:
            role.snapshot = None
            state.back_off(node_id)
            return
        is_expected = (
            response.snapshot_id == snapshot.snapshot_id
            and response.position == snapshot.position
            and bool(response.data)
            and snapshot.position + len(response.data) <= response.byte_count
        )
        if not is_expected:
            state.back_off(node_id)
            return
        self._record_contact(role)
        state.emit(StoreSnapshotBytes(snapshot.snapshot_id, snapshot.position, response.data))
        snapshot.position += len(response.data)
        if snapshot.position == response.byte_count:
            snapshot.is_installing = True
            state.emit(InstallSnapshot(snapshot.snapshot_id))

    def on_snapshot_installed(self, event: SnapshotInstalled) -> None:
        state, role = self._state, self._state.role
        end_offset = event.snapshot_id.end_offset
        state.voters.reset(end_offset - 1, event.voters, event.kraft_version)
        if end_offset > (state.high_watermark or 0):
            state.high_watermark = end_offset
            state.emit(AdvanceHighWatermark(end_offset))
        if isinstance(role, Follower):
            role.snapshot = None

    def on_snapshot_refused(self, event: SnapshotRefused) -> None:
        state, role = self._state, self._state.role
        state.emit(LogMessage(f"snapshot {event.snapshot_id} was refused: {event.reason}"))
        if isinstance(role, Follower):
            role.snapshot = None
            state.back_off(role.leader_id, is_disk_full=event.is_disk_full)
