"""Handler of Raft requests: authorizes them, passes them to the replica and encodes its responses.

Requests of replicas require the right VOTE. If a certificate identifies a node, only that node's id
is accepted, because a fetch with a replica id acknowledges records for that replica. Error
responses contain the leader where Kafka's schemas have a field for it, and are logged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kio.schema.errors import ErrorCode as WireCode

from raftlog.errors import WireError
from raftlog.quorum.messages import (
    AddVoterRequest,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    ErrorCode,
    FetchRequest,
    FetchSnapshotRequest,
    RemoveVoterRequest,
    Request,
    Response,
    UpdateVoterRequest,
    VersionsRequest,
    VoterChangeResponse,
    VoteRequest,
)
from raftlog.wire import (
    ApiKey,
    LogIdentity,
    RequestError,
    decode_request,
    encode_error_response,
    encode_response,
    latest_schemas,
)

from .access import Principal, Rights
from .connection import Asked, Connection
from .driver import Driver

_FOR_LEADERS: Final = (ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER)
"""APIs whose requests only the leader accepts. An admin client repeats them on its connection,
whatever the error (Kafka: ``NetworkClient.leastLoadedNode``); after the connection is closed it
tries another node."""
CONSUMER_REPLICA_ID: Final = -1
"""Replica id of a client that is not a replica."""


class RaftRequestHandler:
    """Handler of the requests of replicas and of changes of voters."""

    def __init__(self, driver: Driver, log_event: Callable[[str, str, str], None]) -> None:
        self._driver = driver
        self._log_event = log_event

    @property
    def _identity(self) -> LogIdentity:
        return self._driver.identity

    def handle(
        self, connection: Connection, asked: Asked, decoded: latest_schemas.FetchRequest | None
    ) -> None:
        """Pass a request to the replica, and send its response once there is one.

        ``decoded``: the body, if it is decoded already. Raises ``MalformedMessageError``.
        """
        header = asked.header
        key, version = ApiKey(header.api_key), header.api_version
        request = decode_request(
            key, version, asked.frame, self._identity, start=asked.body_start, decoded=decoded
        )
        if not isinstance(request, RequestError) and not is_allowed(request, asked.origin.caller):
            request = RequestError(
                api_key=key,
                error=WireCode.cluster_authorization_failed,
                reason="the principal is not authorized for this request",
            )
        if isinstance(request, RequestError):
            self._log_event("refused", connection.where, f"{key.name}: {request.reason}")
            leader_and_epoch = self._driver.replica.core.leader_and_epoch
            asked.answer(encode_error_response(request, version, leader_and_epoch, self._identity))
            return
        assert not isinstance(request, VersionsRequest), "answered by Server"
        if isinstance(request, AddVoterRequest | RemoveVoterRequest | UpdateVoterRequest):
            self._log_event(
                "voters", connection.where, f"{key.name} by principal {asked.origin.caller.name}"
            )
        self._ask(connection, asked, request)

    def _ask(self, connection: Connection, asked: Asked, request: Request) -> None:
        version, key = asked.header.api_version, asked.header.api_key
        numbers: list[int] = []

        def reply(response: Response) -> None:
            connection.requests_under_way.difference_update(numbers)
            if key in _FOR_LEADERS and _is_not_leader(response):
                self._refuse_not_leader(connection, asked)
                return
            try:
                body = encode_response(key, version, response, self._identity)
            except WireError as error:  # must not propagate into the replica's step
                connection.refuse(error.message())
            else:
                asked.answer(body)

        number = self._driver.receive(request, reply)
        numbers.append(number)
        if self._driver.is_waiting(number):
            connection.requests_under_way.add(number)

    def _refuse_not_leader(self, connection: Connection, asked: Asked) -> None:
        """Send NOT_CONTROLLER, after which Kafka's tools try another node, and close."""
        header = asked.header
        refusal = RequestError(
            api_key=ApiKey(header.api_key),
            error=WireCode.not_controller,
            reason="this node is not the leader",
        )
        leader_and_epoch = self._driver.replica.core.leader_and_epoch
        asked.answer(
            encode_error_response(refusal, header.api_version, leader_and_epoch, self._identity)
        )
        connection.finish()


def is_allowed(request: Request, caller: Principal) -> bool:
    """Return whether a principal may send a request, under the node id in the request."""
    match request:
        case AddVoterRequest() | RemoveVoterRequest():
            return Rights.ADMIN in caller.rights
        case FetchSnapshotRequest() if request.replica.node_id == CONSUMER_REPLICA_ID:
            return Rights.READ in caller.rights
        case VersionsRequest():
            return True
        case _:
            is_proven = caller.node_id is None or caller.node_id == _claimed_node_id(request)
            return Rights.VOTE in caller.rights and is_proven


def _is_not_leader(response: Response) -> bool:
    """Return whether a change of voters failed because this node is not the leader."""
    return (
        isinstance(response, VoterChangeResponse)
        and response.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    )


def _claimed_node_id(request: Request) -> int | None:
    """Return the node id that a request claims for its sender, or None."""
    match request:
        case VoteRequest():
            return request.candidate.node_id
        case BeginQuorumEpochRequest() | EndQuorumEpochRequest():
            return request.leader_id
        case FetchRequest() | FetchSnapshotRequest():
            return request.replica.node_id
        case UpdateVoterRequest():
            return request.voter.key.node_id
        case _:
            return None
