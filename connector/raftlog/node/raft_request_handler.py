"""Handler of Raft requests: authorizes them, passes them to the replica and encodes its responses.

Replicas' requests require the right VOTE. If a certificate identifies a node, only that node's id
is accepted, because a fetch with a replica id acknowledges records for that replica. Error
responses contain the leader if Kafka's schemas have a field for it, and are logged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from kio.schema.errors import ErrorCode as WireCode

from raftlog.quorum import messages
from raftlog.quorum.messages import (
    AddVoterRequest,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    ErrorCode,
    FetchRequest,
    FetchSnapshotRequest,
    RemoveVoterRequest,
    UpdateVoterRequest,
    VersionsRequest,
    VoterChangeResponse,
    VoteRequest,
)
from raftlog.types import Operation, Resource, ResourceType
from raftlog.wire import (
    ApiKey,
    LogIdentity,
    ReplicaFetchCodec,
    RequestError,
    decode_fetch_request,
    decode_request,
    encode_error_response,
    encode_response,
    fetch_codec,
)

from .access import Principal
from .audit import AuditLog
from .client_quotas import ClientQuotas, QuotaType
from .connection import Connection
from .raft_node import RaftNode
from .request import Request

_FOR_LEADERS: Final = (ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER)
"""APIs whose requests only the leader accepts. Whatever the error, an admin client repeats them on
the same connection (Kafka: ``NetworkClient.leastLoadedNode``); when the connection is closed, it
tries another node."""
CONSUMER_REPLICA_ID: Final = -1
"""Replica id of a client that is not a replica."""


class RaftRequestHandler:
    """Handler of replicas' requests and of voter changes."""

    def __init__(
        self,
        raft_node: RaftNode,
        log_event: Callable[[str, str, str], None],
        audit: AuditLog,
        quotas: ClientQuotas,
    ) -> None:
        self._raft_node = raft_node
        self._quotas = quotas
        self._log_event = log_event
        self._audit = audit
        self._fetches = ReplicaFetchCodec(raft_node.identity)

    @property
    def _identity(self) -> LogIdentity:
        return self._raft_node.identity

    def handle_fetch(
        self, connection: Connection, request: Request[Any]
    ) -> fetch_codec.FetchRequest | None:
        """Handle a replica's fetch, like ``handle``; return a consumer's.

        Raises ``MalformedMessageError``.
        """
        version, data, start = request.version, request.frame, request.body_start
        known = self._fetches.known_request(version, data, start)
        if known is not None and request.principal.may_act_as(known.replica.node_id):
            self._pass_to_replica(connection, request, known, None)
            return None
        decoded = decode_fetch_request(version, data, start=start)
        if decoded.replica_id < 0:
            return decoded
        message = self._fetches.decode_request(version, data, start, decoded)
        self._authorize(connection, request, message, decoded.rack)
        return None

    def handle(self, connection: Connection, request: Request[Any]) -> None:
        """Pass a request to the replica, and send its response once there is one.

        Raises ``MalformedMessageError``.
        """
        key, version = ApiKey(request.header.api_key), request.version
        message = decode_request(
            key, version, request.frame, self._identity, start=request.body_start
        )
        self._authorize(connection, request, message)

    def _authorize(
        self,
        connection: Connection,
        request: Request[Any],
        message: messages.Request | RequestError,
        rack: str | None = None,
    ) -> None:
        """Pass a request to the replica, unless it is refused. ``rack``: the rack in a fetch; None
        if it is the same as in the previous fetch."""
        key = ApiKey(request.header.api_key)
        if not isinstance(message, RequestError) and not is_allowed(
            message, request.principal, self._identity.topic
        ):
            message = RequestError(
                api_key=key,
                error=WireCode.cluster_authorization_failed,
                reason="the principal is not authorized for this request",
            )
        if isinstance(message, RequestError):
            self._log_event("refused", connection.where, f"{key.name}: {message.reason}")
            self._audit.refused(request.principal, connection.where, message.reason, key.name)
            self._respond_error(request, message)
            return
        assert not isinstance(message, VersionsRequest), "Server responds to it"
        if rack is not None and isinstance(message, FetchRequest):
            self._raft_node.note_rack(message.replica.node_id, rack)
        ended: Callable[[object], None] | None = None
        if isinstance(message, AddVoterRequest | RemoveVoterRequest | UpdateVoterRequest):
            reason = f"{key.name} by principal {request.principal.name}"
            self._log_event("voters", connection.where, reason)
            ended = self._audit.change(
                request.principal, connection.where, key.name, asdict(message)
            )
        self._pass_to_replica(connection, request, message, ended)

    def _pass_to_replica(
        self,
        connection: Connection,
        request: Request[Any],
        message: messages.Request,
        ended: Callable[[object], None] | None,
    ) -> None:
        """``ended`` is called with the outcome of a voter change."""
        version = request.version
        ids: list[int] = []

        def reply(response: messages.Response) -> None:
            connection.raft_request_ids.difference_update(ids)
            request.attempt(partial(respond, response))

        def respond(response: messages.Response) -> None:
            if isinstance(response, messages.FetchResponse):
                request.respond(self._fetches.encode_response(response, version))
                return
            key = ApiKey(request.header.api_key)
            if ended is not None and isinstance(response, VoterChangeResponse):
                ended(response.error.name)
            if key in _FOR_LEADERS and _is_not_leader(response):
                # after NOT_CONTROLLER and the end of the connection Kafka's tools try another node
                reason = "this node is not the leader"
                error = RequestError(api_key=key, error=WireCode.not_controller, reason=reason)
                self._respond_error(request, error)
                connection.finish()
                return
            parts = encode_response(key, version, response, self._identity)
            if isinstance(message, FetchSnapshotRequest) and _is_of_consumer(message):
                self._quotas.throttle(request, QuotaType.FETCH, sum(map(len, parts)))
            request.respond(parts)

        request_id = self._raft_node.receive(message, reply)
        ids.append(request_id)
        if self._raft_node.is_waiting(request_id):
            connection.raft_request_ids.add(request_id)

    def _respond_error(self, request: Request[Any], error: RequestError) -> None:
        leader_and_epoch = self._raft_node.replica.core.leader_and_epoch
        request.respond(
            encode_error_response(error, request.version, leader_and_epoch, self._identity)
        )


def is_allowed(message: messages.Request, principal: Principal, topic: str) -> bool:
    """Return whether a principal may send a message with the node id in it. ``topic`` is the
    log's."""
    match message:
        case AddVoterRequest() | RemoveVoterRequest():
            return principal.may(Operation.ALTER)
        case FetchSnapshotRequest() if _is_of_consumer(message):
            return principal.may(Operation.READ, Resource(ResourceType.TOPIC, topic))
        case VersionsRequest():
            return True
        case _:
            return principal.may_act_as(_claimed_node_id(message))


def _is_of_consumer(message: FetchSnapshotRequest) -> bool:
    return message.replica.node_id == CONSUMER_REPLICA_ID


def _is_not_leader(response: messages.Response) -> bool:
    """Return whether a voter change failed because this node is not the leader."""
    return (
        isinstance(response, VoterChangeResponse)
        and response.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    )


def _claimed_node_id(message: messages.Request) -> int:
    """Return the node id that a message claims for its sender; -1 without a claim."""
    match message:
        case VoteRequest():
            return message.candidate.node_id
        case BeginQuorumEpochRequest() | EndQuorumEpochRequest():
            return message.leader_id
        case FetchRequest() | FetchSnapshotRequest():
            return message.replica.node_id
        case UpdateVoterRequest():
            return message.voter.key.node_id
        case _:
            return CONSUMER_REPLICA_ID
