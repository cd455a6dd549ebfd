"""A replica of a quorum: events and the time go in, effects come out.

Rules of this file:

1. ``step`` is a function of what the replica knows, the event, the time and the numbers that it
   draws: no file, no socket, no clock, no thread. The same events give the same effects.
2. Each kind of event has one line in ``_handle_event``; after each the parts look at what is due.

Kafka: ``KafkaRaftClient.poll`` and what it calls (KIP-595, 630, 853, 996).
"""

from __future__ import annotations

from typing import assert_never

from .effects import Effect, LogMessage, Reply
from .elections import Elections
from .events import (
    Appended,
    AppendRefused,
    Event,
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
from .roles import Leader, Role
from .state import InitialState, ReplicaState
from .voters import VoterSet


class QuorumCore:
    """One replica. Not shared between threads.

    1. The first ``step`` also returns what the start asked for.
    2. ``now_ms`` never falls from step to step; its zero means nothing.
    3. Between the effects of one step and the next step nothing else changes the log, but appends
       of the leader's own, which are told by ``Appended``.
    """

    def __init__(self, initial_state: InitialState, *, now_ms: int) -> None:
        self._state = ReplicaState(initial_state, now_ms=now_ms)
        self._elections = Elections(self._state)
        self._leadership = Leadership(self._state)
        self._membership = Membership(self._state)
        self._following = Following(self._state, initial_state.bootstrap)

    # --- what it is -------------------------------------------------------------------------------

    @property
    def node_id(self) -> int:
        return self._state.node_id

    @property
    def role(self) -> Role:
        return self._state.role

    @property
    def epoch(self) -> int:
        return self._state.epoch

    @property
    def leader_id(self) -> int | None:
        """Who leads this epoch, as far as this replica knows."""
        return self._state.leader_and_epoch.leader_id

    @property
    def leader_and_epoch(self) -> LeaderAndEpoch:
        """The epoch and its leader, as far as others may be told of them."""
        return self._state.leader_and_epoch

    @property
    def is_leader(self) -> bool:
        return isinstance(self._state.role, Leader)

    @property
    def voters(self) -> VoterSet:
        return self._state.voter_set

    def voters_at(self, end_offset: int) -> tuple[VoterSet, int] | None:
        """The voters and the kraft.version of the log below ``end_offset``.

        None if that lies before what is known: there is a newer snapshot.
        """
        return self._state.voters.at(end_offset)

    @property
    def high_watermark(self) -> int | None:
        """Everything below is committed; None while that is not known."""
        return self._state.high_watermark

    @property
    def election_problem(self) -> str | None:
        """Which copies are damaged, so that their voters do not vote; None if none is."""
        return self._state.election_problem

    @property
    def damaged_voter_count(self) -> int:
        """How many voters do not vote since their copies are damaged, as far as it knows."""
        return len(self._state.damaged_voters) + self._state.is_recovering

    @property
    def is_recovering(self) -> bool:
        """Whether it takes no part in elections because its log was damaged."""
        return self._state.is_recovering

    @property
    def next_deadline_ms(self) -> int | None:
        """When ``TimePassed`` is to be told at the latest; None if nothing waits for time."""
        state = self._state
        times = (
            self._elections.deadline_ms(),
            self._leadership.deadline_ms(),
            self._membership.deadline_ms(),
            state.requests.next_deadline_ms(state.now_ms),
        )
        return min((at for at in times if at is not None), default=None)

    # --- what happens -----------------------------------------------------------------------------

    def step(self, event: Event, *, now_ms: int) -> list[Effect]:
        """Take one event at ``now_ms``; what is to be done, in this order."""
        state = self._state
        assert now_ms >= state.now_ms, "time never falls"
        state.now_ms = now_ms
        for expired in state.requests.expire(now_ms):
            state.back_off(expired.node_id)
        self._handle_event(event)
        self._elections.poll()
        self._membership.poll()
        self._leadership.poll()
        self._elections.poll_resigned()
        self._following.poll()
        return state.take_effects()

    def _handle_event(self, event: Event) -> None:
        match event:
            case TimePassed():
                pass
            case RequestReceived():
                self._on_request(event)
            case RequestDropped(request_id):
                self._leadership.on_request_dropped(request_id)
            case ResponseReceived(correlation_id):
                in_flight = self._state.requests.complete(correlation_id)
                if in_flight is not None:
                    self._on_response(in_flight, event)
            case SendFailed(correlation_id):
                self._on_send_failed(self._state.requests.complete(correlation_id), event)
            case Appended():
                self._on_appended(event)
            case AppendRefused():
                self._following.on_append_refused(event)
                self._membership.on_append_refused(event)
            case SyncCompleted():
                self._leadership.commit()
                self._following.on_sync_completed()
            case Truncated():
                self._following.on_truncated()
            case SnapshotInstalled():
                self._following.on_snapshot_installed(event)
            case SnapshotRefused():
                self._following.on_snapshot_refused(event)
            case ReadIndex(read_id):
                self._leadership.on_read_index(read_id)
            case Resign(epoch):
                role = self._state.role
                if isinstance(role, Leader) and role.epoch == epoch:
                    role.is_resign_requested = True
            case ShutDown():
                self._state.is_shutting_down = True
            case _:
                assert_never(event)

    def _on_request(self, event: RequestReceived) -> None:
        request, request_id = event.request, event.request_id
        match request:
            case VoteRequest():
                self._elections.on_vote_request(request_id, request)
            case BeginQuorumEpochRequest():
                self._elections.on_begin_epoch(request_id, request)
            case EndQuorumEpochRequest():
                self._elections.on_end_epoch(request_id, request)
            case FetchRequest():
                self._leadership.on_fetch(request_id, request)
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
        """An answer that tells of a later epoch, or of a leader that was not known, is news enough:
        what it answers belongs to a role that is over."""
        response, node_id = event.response, in_flight.node_id
        if isinstance(response, VersionsResponse):
            self._membership.on_versions(node_id, response)
            return
        if response.error is ErrorCode.NONE and response.leader_and_epoch.epoch < self._state.epoch:
            self._state.back_off(node_id)  # nobody agrees to what he has not heard of
            return
        if not self._accept_epoch(node_id, response.leader_and_epoch.epoch):
            return
        if self._state.maybe_transition(response.leader_and_epoch):
            return
        match in_flight.request, response:
            case VoteRequest() as request, VoteResponse():
                self._elections.on_vote_response(node_id, request, response)
            case BeginQuorumEpochRequest() as request, BeginQuorumEpochResponse():
                self._leadership.on_begin_epoch_response(node_id, request, response)
            case EndQuorumEpochRequest(), EndQuorumEpochResponse():
                self._elections.on_end_epoch_response(node_id, response)
            case FetchRequest(), FetchResponse():
                self._following.on_fetch_response(node_id, response)
            case UpdateVoterRequest(), VoterChangeResponse():
                pass  # the log will say it
            case FetchSnapshotRequest(), FetchSnapshotResponse():
                self._following.on_snapshot_response(node_id, response)
            case _:
                self._state.back_off(node_id)

    def _accept_epoch(self, node_id: int, epoch: int) -> bool:
        """Take the epoch of an answer for proven, unless none could be elected after it."""
        state = self._state
        if epoch <= state.epoch:
            return True
        is_credible = state.is_credible(epoch, is_answer=True)
        if is_credible:
            state.prove_epoch(epoch)
        else:
            state.emit(LogMessage(f"incredible epoch: {epoch} of an answer is not believed"))
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
            self._state.back_off(in_flight.node_id)

    def _on_appended(self, event: Appended) -> None:
        for found in event.voters:
            if found.voters is not None:
                self._state.voters.add_voters(found.offset, found.voters)
            if found.kraft_version is not None:
                self._state.voters.add_kraft_version(found.offset, found.kraft_version)
        self._leadership.commit()
        self._leadership.on_appended()
        self._following.advance_high_watermark()
