"""What other nodes ask over the wire, brought to the replica and back.

Rules of this file:

1. Who asks as a replica must have the right to vote, and where a certificate proves a node, it may
   speak for that node alone: a fetch with a node's id acknowledges records in its name.
2. Refusals say who leads as far as Kafka's answers have a place for it, and are told to people.
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
"""A tool that asks these keeps asking the node that it is connected to, whatever that answers
(Kafka: ``NetworkClient.leastLoadedNode``): behind a closed connection it looks for another one."""
CONSUMER_REPLICA_ID: Final = -1
"""The replica id of who is no replica."""


class RaftRequestHandler:
    """Answers what replicas ask."""

    def __init__(self, driver: Driver, log_event: Callable[[str, str, str], None]) -> None:
        self._driver = driver
        self._log_event = log_event

    @property
    def _identity(self) -> LogIdentity:
        return self._driver.identity

    def handle(
        self, connection: Connection, asked: Asked, decoded: latest_schemas.FetchRequest | None
    ) -> None:
        """Ask the replica; its answer goes out when it comes. ``decoded`` is the body, if it was
        read before. Raises ``MalformedMessageError``."""
        header = asked.header
        key, version = ApiKey(header.api_key), header.api_version
        request = decode_request(
            key, version, asked.frame, self._identity, start=asked.body_start, decoded=decoded
        )
        if not isinstance(request, RequestError) and not is_allowed(request, asked.origin.caller):
            request = RequestError(
                api_key=key,
                error=WireCode.cluster_authorization_failed,
                reason="the caller has no right to it",
            )
        if isinstance(request, RequestError):
            self._log_event("refused", connection.where, f"{key.name}: {request.reason}")
            leader_and_epoch = self._driver.replica.core.leader_and_epoch
            asked.answer(encode_error_response(request, version, leader_and_epoch, self._identity))
            return
        assert not isinstance(request, VersionsRequest), "a listener answers that"
        if isinstance(request, AddVoterRequest | RemoveVoterRequest | UpdateVoterRequest):
            self._log_event(
                "voters", connection.where, f"{asked.origin.caller.name} asks {key.name}"
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
            except WireError as error:  # raised here it would go to whoever made the replica step
                connection.refuse(error.message())
            else:
                asked.answer(body)

        number = self._driver.receive(request, reply)
        numbers.append(number)
        if self._driver.is_waiting(number):
            connection.requests_under_way.add(number)

    def _refuse_not_leader(self, connection: Connection, asked: Asked) -> None:
        """Another node leads: NOT_CONTROLLER is what Kafka's tools try elsewhere after."""
        header = asked.header
        refusal = RequestError(
            api_key=ApiKey(header.api_key),
            error=WireCode.not_controller,
            reason="this node does not lead",
        )
        leader_and_epoch = self._driver.replica.core.leader_and_epoch
        asked.answer(
            encode_error_response(refusal, header.api_version, leader_and_epoch, self._identity)
        )
        connection.finish()


def is_allowed(request: Request, caller: Principal) -> bool:
    """Whether the caller may ask this, and in that name."""
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
    """Whether another node leads, if anybody does."""
    return (
        isinstance(response, VoterChangeResponse)
        and response.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    )


def _claimed_node_id(request: Request) -> int | None:
    """In whose name something is asked."""
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
