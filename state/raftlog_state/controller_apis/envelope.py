"""Envelope: requests of clients that a node has authenticated and forwards (KIP-590).

The node is a broker, or a standby whose listener for clients has received the request: to clients a
standby is a broker, and brokers forward. On its listener for voters, a standby is a controller and
responds with NOT_CONTROLLER, as Kafka's controllers do. The forwarded request has the rights of its
own principal, not the node's.

A request is sent again if the connection was lost before its response, or if the controller was no
longer active. It may have been executed in that case: a topic that it has created already exists.
The client never receives NOT_CONTROLLER, because it would assume that nothing was executed.

Source: Kafka ``EnvelopeUtils``, ``DefaultKafkaPrincipalBuilder``, ``ControllerApis``,
``ForwardingManager``, ``NodeToControllerChannelManager``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from kio.schema.envelope.v0 import request as requests
from kio.schema.envelope.v0 import response as responses
from kio.schema.errors import ErrorCode

from raftlog.errors import RaftlogError
from raftlog.records.fields import unsigned_varint
from raftlog.wire import (
    APIS,
    CONTROLLER_APIS,
    Api,
    ApiKey,
    Listener,
    ReceivedRequest,
    RequestHeader,
    decode,
    decode_response_header,
    encode,
    encode_response_header,
    receive_request,
)
from raftlog.wire.errors import WireError
from raftlog.wire.fields import Cursor, read_tagged
from raftlog_state.controller import ApiException
from raftlog_state.errors import ControllerTimeoutError, NotControllerError, UnknownServerError

from .audited_changes import describe_change
from .hosted_controller import DEFAULT_TIMEOUT_MS, ELEMENTS_MAX, HostedController
from .requests import USER, ControllerRequest, Principal, code_and_message

_Envelope: TypeAlias = ControllerRequest[requests.EnvelopeRequest]

_APIS: Final[Mapping[int, Api]] = {
    **CONTROLLER_APIS,
    ApiKey.DESCRIBE_CONFIGS: APIS[ApiKey.DESCRIBE_CONFIGS],
    ApiKey.UPDATE_FEATURES: APIS[ApiKey.UPDATE_FEATURES],
}
"""APIs of the listener for clients whose requests are forwarded.

Kafka: ``ApiKeys.forwardable``.
"""

_STANDBY_TAG: Final = 1_000
"""Tag of an empty field of a principal that a standby encodes. Kafka skips unknown tags."""

PAUSE_MS: Final = 100
"""Pause while no controller is known (Kafka: ``NodeToControllerRequestThread``)."""

_TOKEN_APIS: Final = (
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
)


class ApiHandler(Protocol):
    """Handler of a forwarded request's API, as in ``handlers``."""

    @property
    def request_class(self) -> type[Any]: ...

    @property
    def handle(self) -> Callable[..., Any]: ...

    @property
    def refuse(self) -> Callable[..., Any]: ...


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    """Request of a client at a broker or a standby.

    ``is_from_broker``: a broker has validated what only a broker knows.
    """

    body: Any
    version: int
    principal: Principal
    is_from_broker: bool


class EncodedPrincipal(NamedTuple):
    """User in an envelope; ``is_from_standby``: a standby has authenticated it, not a broker."""

    name: str
    is_token: bool
    is_from_standby: bool


class ClientRequest(ControllerRequest[Any], Protocol):
    """Request as a node has received it; ``frame`` has the header, too."""

    @property
    def header(self) -> RequestHeader: ...

    @property
    def frame(self) -> bytes: ...


async def forward_request(
    request: ClientRequest,
    send: Callable[[requests.EnvelopeRequest], Awaitable[responses.EnvelopeResponse]],
    *,
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
    pause_ms: int = PAUSE_MS,
) -> bytes:
    """Return the body of the active controller's response to a client's request.

    ``send`` sends to the controller that is active now. ``pause_ms``: pause before the request is
    sent again. Raises ``ControllerTimeoutError`` if there is no response until the timeout: the
    outcome is unknown; ``UnknownServerError`` if the controller does not accept requests of this
    node.
    """
    envelope = requests.EnvelopeRequest(
        request_data=request.frame,
        request_principal=encode_principal(request.principal.name),
        client_host_address=ipaddress.ip_address(request.principal.host).packed,
    )
    try:
        async with asyncio.timeout(timeout_ms / 1_000):
            response = await _first_response(envelope, send, pause_ms)
        if response.error_code is not ErrorCode.none or response.response_data is None:
            reason = f"The active controller has refused the envelope: {response.error_code.name}."
            raise UnknownServerError(reason=reason)
        data, header = response.response_data, request.header
        _, start = decode_response_header(data, header.api_key, header.api_version)
    except TimeoutError:
        reason = f"The active controller has not responded within {timeout_ms} ms."
        raise ControllerTimeoutError(reason=reason) from None
    except WireError as error:
        reason = "The response of the active controller cannot be read."
        raise UnknownServerError(reason=reason) from error
    return data[start:]


async def _first_response(
    envelope: requests.EnvelopeRequest,
    send: Callable[[requests.EnvelopeRequest], Awaitable[responses.EnvelopeResponse]],
    pause_ms: int,
) -> responses.EnvelopeResponse:
    """Send an envelope until the active controller responds."""
    while True:
        with contextlib.suppress(OSError, EOFError):
            response = await send(envelope)
            if response.error_code is not ErrorCode.not_controller:
                return response
        await asyncio.sleep(pause_ms / 1_000)


async def handle_envelope(
    controller: HostedController, request: _Envelope, handlers: Mapping[ApiKey, ApiHandler]
) -> responses.EnvelopeResponse:
    body = request.body
    if not request.principal.is_node:
        return refuse_envelope(request, ErrorCode.cluster_authorization_failed, None)
    try:
        received = receive_request(body.request_data, Listener.CLIENTS, _APIS)
        if not isinstance(received, ReceivedRequest):
            return refuse_envelope(request, ErrorCode.invalid_request, None)
        if body.request_principal is None:
            return refuse_envelope(request, ErrorCode.principal_deserialization_failure, None)
        user = parse_principal(body.request_principal)
        host = str(ipaddress.ip_address(body.client_host_address))
        header = received.header
        handler = handlers[ApiKey(header.api_key)]
        if user.is_token and header.api_key in _TOKEN_APIS:
            return refuse_envelope(request, ErrorCode.delegation_token_request_not_allowed, None)
        forwarded = ForwardedRequest(
            body=decode(
                handler.request_class,
                header.api_version,
                body.request_data,
                start=received.body_start,
                elements_max=ELEMENTS_MAX,
            ),
            version=header.api_version,
            principal=controller.forwarded_principal(request.principal, user.name, host),
            is_from_broker=not user.is_from_standby,
        )
    except (WireError, ValueError):  # the address is invalid
        return refuse_envelope(request, ErrorCode.invalid_request, None)
    ended = controller.forwarded_audit(
        request.principal,
        forwarded.principal,
        ApiKey(header.api_key).name,
        describe_change(header.api_key, forwarded.body),
    )
    try:
        response = await handler.handle(controller, forwarded)
    except NotControllerError:
        refused = refuse_envelope(request, ErrorCode.not_controller, None)
        ended(refused)
        return refused
    except (ApiException, RaftlogError) as error:
        response = handler.refuse(forwarded, *code_and_message(error))
    ended(response)
    head = encode_response_header(header.correlation_id, header.api_key, header.api_version)
    return responses.EnvelopeResponse(
        response_data=head + encode(response, header.api_version), error_code=ErrorCode.none
    )


def refuse_envelope(
    request: _Envelope, code: ErrorCode, message: str | None
) -> responses.EnvelopeResponse:
    return responses.EnvelopeResponse(response_data=None, error_code=code)


def encode_principal(name: str) -> bytes:
    """Return the bytes of a user that a standby, and no delegation token, has authenticated."""
    texts = (USER.encode(), name.encode())
    compact = b"".join(unsigned_varint(len(text) + 1) + text for text in texts)
    return b"\x00\x00" + compact + b"\x00\x01" + unsigned_varint(_STANDBY_TAG) + b"\x00"


def parse_principal(data: bytes) -> EncodedPrincipal:
    """Return the user.

    Raises ``MalformedMessageError``, also for another type of principal.
    """
    cursor = Cursor(data, "DefaultPrincipalData", None)
    version = int.from_bytes(cursor.take(2, "version"), "big", signed=True)
    if version != 0:
        cursor.fail(f"version {version} is not supported")
    kind, name = _text(cursor, "type"), _text(cursor, "name")
    is_token = cursor.take(1, "token_authenticated") != b"\x00"
    tagged: dict[str, Any] = {}
    read_tagged(cursor, {_STANDBY_TAG: ("is_from_standby", lambda _: True)}, tagged)
    if kind != USER:
        cursor.fail(f"the type of the principal is not {USER}")
    return EncodedPrincipal(name, is_token, "is_from_standby" in tagged)


def _text(cursor: Cursor, field: str) -> str:
    byte_count = cursor.unsigned(field) - 1
    if byte_count < 0:
        cursor.fail(f"{field} must not be null")
    try:
        return cursor.take(byte_count, field).decode()
    except UnicodeDecodeError:
        cursor.fail(f"{field} is not UTF-8")
