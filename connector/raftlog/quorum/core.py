"""One replica of a quorum as a state machine: events and the current time in, effects out.

Invariants:

1. ``step`` is deterministic: its result depends on the replica's state, the event, the time and
   the random numbers drawn. It uses no file, socket, clock or thread.
2. Each event type has one case in ``_handle_event``. After each event ``Elections``, ``Following``
   and the other parts are polled for actions that are due.

Kafka: ``KafkaRaftClient.poll`` and the methods that it calls (KIP-595, 630, 853, 996).
"""

from __future__ import annotations

from typing import assert_never

from .config import QuorumConfig
from .effects import Effect, LogMessage, Reply
from .elections import Elections
from .events import (
    Appended,
    AppendRefused,
    Event,
    LogStartAdvanced,
    ReadIndex,
    RequestDropped,
    RequestReceived,
    Resign,
    ResponseReceived,
    SendFailed,
    ShutDown,
    SnapshotInstalled,
    SnapshotRefused,
    SyncCompleted,
    TimePassed,
    Truncated,
    UpgradeKRaftVersion,
)
from .following import Following
from .leadership import Leadership
from .membership import Membership
from .messages import (
    AddVoterRequest,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    ErrorCode,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    LeaderAndEpoch,
    RemoveVoterRequest,
    UpdateVoterRequest,
    VersionsRequest,
    VersionsResponse,
    VoterChangeResponse,
    VoteRequest,
    VoteResponse,
)
from .request_manager import InFlightRequest
from .roles import Leader, Resigned, Role
from .state import InitialState, ReplicaState
from .voters import Endpoint, VoterSet


class QuorumCore:
    """State machine of one replica. Not thread-safe.

    1. The first ``step`` also returns the effects of the initialization.
    2. ``now_ms`` never decreases from step to step; its zero point is arbitrary.
    3. After the caller has carried out the effects of a step, only the leader's own appends change
       the log before the next step. ``Appended`` reports them.
    """

    def __init__(self, initial_state: InitialState, *, now_ms: int) -> None:
        self._state = ReplicaState(initial_state, now_ms=now_ms)
        self._elections = Elections(self._state)
        self._leadership = Leadership(self._state)
        self._membership = Membership(self._state)
        self._following = Following(self._state, initial_state.bootstrap)

    # --- state ------------------------------------------------------------------------------------

    @property
    def node_id(self) -> int:
        return self._state.node_id

    @property
    def config(self) -> QuorumConfig:
        return self._state.config

    @property
    def role(self) -> Role:
        return self._state.role

    @property
    def epoch(self) -> int:
        return self._state.epoch

    @property
    def leader_id(self) -> int | None:
        """Leader of this epoch; None while this replica does not know it."""
        return self._state.leader_and_epoch.leader_id

    def endpoints_of(self, node_id: int) -> tuple[Endpoint, ...]:
        """Return the known endpoints of a node; empty if unknown."""
        return self._state.endpoints_of(node_id)

    @property
    def leader_and_epoch(self) -> LeaderAndEpoch:
        """Epoch and leader, as every response reports them."""
        return self._state.leader_and_epoch

    @property
    def is_leader(self) -> bool:
        return isinstance(self._state.role, Leader)

    @property
    def voters(self) -> VoterSet:
        return self._state.voter_set

    def has_log_start(self, offset: int) -> bool:
        """Return whether this replica leads, and no other voter has records below ``offset``."""
        return self._leadership.has_log_start(offset)

    @property
    def kraft_version(self) -> int:
        """The latest kraft.version, which may be uncommitted."""
        return self._state.voters.kraft_version

    def upgrade_refusal(self, version: int) -> str | None:
        """Return why this leader cannot raise kraft.version to ``version``; None if it can, or if
        that is the version already."""
        return self._membership.upgrade_refusal(version)

    def voters_at(self, end_offset: int) -> tuple[VoterSet, int] | None:
        """Return the voters and the kraft.version of the log below ``end_offset``.

        None if the history no longer covers that offset because a newer snapshot replaced it.
        """
        return self._state.voters.at(end_offset)

    @property
    def high_watermark(self) -> int | None:
        """End offset (exclusive) of the committed records; None while unknown."""
        return self._state.high_watermark

    @property
    def committed_at_start(self) -> int | None:
        """High watermark of the quorum when this replica first learned it, from a leader or as the
        leader; None before. It may exceed the log's end, which the replica's own high watermark
        never does."""
        return self._state.committed_at_start

    @property
    def election_problem(self) -> str | None:
        """Description, for the operator, of damaged voters; None if no voter is damaged."""
        return self._state.election_problem

    @property
    def damaged_voter_count(self) -> int:
        """Number of voters that do not vote because their logs are damaged, as far as known."""
        return len(self._state.damaged_voters) + self._state.is_recovering

    def has_replica_below(self, offset: int) -> bool:
        """Return whether a replica that fetches from this leader has not fetched up to an offset.

        A replica that has not fetched for the fetch timeout does not count.
        """
        state = self._state
        if not isinstance(state.role, Leader):
            return False
        since_ms = state.now_ms - state.config.fetch_timeout_ms
        return any(
            one.end_offset is not None
            and one.fetched_ms is not None
            and one.end_offset < offset
            and one.fetched_ms >= since_ms
            for one in state.role.progress.replicas
        )

    @property
    def is_recovering(self) -> bool:
        """Whether this replica stays out of elections because its log was damaged."""
        return self._state.is_recovering

    @property
    def awaits_sync(self) -> bool:
        """Whether ``SyncCompleted`` has an effect now. It has none on a leader whose followers have
        not fetched the synced records: their next fetches commit these, since a fetch reads the
        synced end too."""
        return not self.is_leader or self._leadership.can_commit

    @property
    def next_deadline_ms(self) -> int | None:
        """Latest time for the next ``TimePassed``; None while no timer is running."""
        state = self._state
        at_ms = state.requests.next_deadline_ms(state.now_ms)
        of_role = self._leadership if self.is_leader else self._elections
        role_ms = of_role.deadline_ms()
        if at_ms is None or (role_ms is not None and role_ms < at_ms):
            return role_ms
        return at_ms

    # --- events -----------------------------------------------------------------------------------

    def step(self, event: Event, *, now_ms: int) -> list[Effect]:
        """Handle one event at ``now_ms``; return the effects, to be carried out in this order."""
        state = self._state
        assert now_ms >= state.now_ms, "now_ms must not decrease"
        state.now_ms = now_ms
        for expired in state.requests.expire(now_ms):
            state.back_off(expired.node_id)
        self._handle_event(event)
        role = state.role
        if not isinstance(role, Leader):
            self._elections.poll()
            role = state.role
        if isinstance(role, Leader):
            if role.voter_change is not None or not state.is_voter:
                self._membership.poll()
            self._leadership.poll()
            role = state.role
        if isinstance(role, Resigned):
            self._elections.poll_resigned()
            role = state.role
        if not isinstance(role, Leader):
            self._following.poll()
        state.check_invariants()
        return state.take_effects()

    def _handle_event(self, event: Event) -> None:
        match event:  # the most frequent first
            case Appended():
                self._on_appended(event)
            case SyncCompleted():
                if isinstance(self._state.role, Leader):
                    self._leadership.commit()
                else:
                    self._following.on_sync_completed()
            case RequestReceived():
                self._on_request(event)
            case ResponseReceived(correlation_id):
                in_flight = self._state.requests.complete(correlation_id)
                if in_flight is not None:
                    self._on_response(in_flight, event)
            case TimePassed():
                pass
            case RequestDropped(request_id):
                self._leadership.on_request_dropped(request_id)
            case SendFailed(correlation_id):
                self._on_send_failed(self._state.requests.complete(correlation_id), event)
            case AppendRefused():
                self._following.on_append_refused(event)
                self._membership.on_append_refused(event)
            case Truncated():
                self._following.on_truncated()
            case SnapshotInstalled():
                self._following.on_snapshot_installed(event)
            case SnapshotRefused():
                self._following.on_snapshot_refused(event)
            case ReadIndex(read_id):
                self._leadership.on_read_index(read_id)
            case LogStartAdvanced():
                self._leadership.on_log_start_advanced()
                self._following.on_log_start_advanced()
            case Resign(epoch):
                role = self._state.role
                if isinstance(role, Leader) and role.epoch == epoch:
                    role.is_resign_requested = True
            case UpgradeKRaftVersion(version):
                self._membership.on_upgrade(version)
            case ShutDown():
                self._state.is_shutting_down = True
            case _:
                assert_never(event)

    def _on_request(self, event: RequestReceived) -> None:
        request, request_id = event.request, event.request_id
        match request:
            case FetchRequest():
                self._leadership.on_fetch(request_id, request)
            case VoteRequest():
                self._elections.on_vote_request(request_id, request)
            case BeginQuorumEpochRequest():
                self._elections.on_begin_epoch(request_id, request)
            case EndQuorumEpochRequest():
                self._elections.on_end_epoch(request_id, request)
            case FetchSnapshotRequest():
                self._leadership.on_fetch_snapshot(request_id, request)
            case AddVoterRequest():
                self._membership.on_add(request_id, request)
            case RemoveVoterRequest():
                self._membership.on_remove(request_id, request)
            case UpdateVoterRequest():
                self._membership.on_update(request_id, request)
            case VersionsRequest():
                local_voter = self._state.local_voter
                self._state.emit(
                    Reply(
                        request_id,
                        VersionsResponse(
                            kraft_version_min=local_voter.kraft_version_min,
                            kraft_version_max=local_voter.kraft_version_max,
                        ),
                    )
                )
            case _:
                assert_never(request)

    def _on_response(self, in_flight: InFlightRequest, event: ResponseReceived) -> None:
        """Handle a response to the current role.

        A response that has a later epoch, or names a leader that was unknown, changes the role and
        has no other effect, because the role that sent the request has ended.
        """
        response, node_id = event.response, in_flight.node_id
        if isinstance(response, VersionsResponse):
            self._membership.on_versions(node_id, response)
            return
        if response.error is ErrorCode.NONE and response.leader_and_epoch.epoch < self._state.epoch:
            self._state.back_off(node_id)  # success from an older epoch: ignore it
            return
        if not self._accept_epoch(node_id=node_id, epoch=response.leader_and_epoch.epoch):
            return
        if self._state.maybe_transition(response.leader_and_epoch):
            return
        match in_flight.request, response:
            case FetchRequest(), FetchResponse():
                self._following.on_fetch_response(node_id, response)
            case VoteRequest() as request, VoteResponse():
                self._elections.on_vote_response(node_id, request, response)
            case BeginQuorumEpochRequest() as request, BeginQuorumEpochResponse():
                self._leadership.on_begin_epoch_response(node_id, request, response)
            case EndQuorumEpochRequest(), EndQuorumEpochResponse():
                self._elections.on_end_epoch_response(node_id, response)
            case UpdateVoterRequest(), VoterChangeResponse():
                self._following.on_update_response(response)
            case FetchSnapshotRequest(), FetchSnapshotResponse():
                self._following.on_snapshot_response(node_id, response)
            case _:
                self._state.back_off(node_id)

    def _accept_epoch(self, *, node_id: int, epoch: int) -> bool:
        """Accept the epoch of a response as proven, unless it is a reserved one."""
        state = self._state
        if epoch <= state.epoch:
            return True
        is_credible = state.is_credible(epoch, is_response=True)
        if is_credible:
            state.prove_epoch(epoch)
        else:
            state.emit(LogMessage(f"invalid epoch: ignored a response with reserved epoch {epoch}"))
            state.back_off(node_id)
        return is_credible

    def _on_send_failed(self, in_flight: InFlightRequest | None, event: SendFailed) -> None:
        if in_flight is None:
            return
        request = in_flight.request
        is_pre_vote = isinstance(request, VoteRequest) and request.is_pre_vote
        if is_pre_vote and event.is_version_unsupported:
            self._elections.on_pre_vote_unsupported()
        else:
            if isinstance(request, EndQuorumEpochRequest):
                self._elections.on_end_epoch_failed(in_flight.node_id, is_refused=event.is_refused)
            self._state.back_off(in_flight.node_id)

    def _on_appended(self, event: Appended) -> None:
        for found in event.voters:
            if found.voters is not None:
                self._state.voters.add_voters(found.offset, found.voters)
            if found.kraft_version is not None:
                self._state.voters.add_kraft_version(found.offset, found.kraft_version)
        self._leadership.commit()
        self._leadership.on_appended()
