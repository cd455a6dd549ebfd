"""Requests as handlers receive them, and Kafka's error codes for their parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, Protocol, TypeVar

from kio.schema.errors import ErrorCode

from raftlog.errors import RaftlogError
from raftlog.types import CLUSTER, Operation, Resource
from raftlog.wire.log_identity import milliseconds
from raftlog_state.controller import ApiException

Body = TypeVar("Body", covariant=True)
T = TypeVar("T")
R = TypeVar("R")

MESSAGE_LENGTH_MAX: Final = 4_096
"""Length of an error message, which may contain names from the request."""
PARTS_PER_STEP: Final = 5_000
"""Parts of a request or response that are converted between other events."""
TIMEOUT_MS_MAX: Final = 3_600_000
"""Longest time that a request may wait, during which memory for its response is reserved."""


USER: Final = "User"
"""Type of a principal, the only one that Kafka's brokers know."""


def principal_text(name: str) -> str:
    """Return a user as Kafka writes a principal."""
    return f"{USER}:{name}"


class Principal(Protocol):
    """Authenticated sender of a request, with its rights on the listener."""

    @property
    def name(self) -> str: ...

    @property
    def host(self) -> str:
        """Address of the client, in the form that Kafka's ACLs use."""
        ...

    def may(
        self, operation: Operation, resource: Resource = CLUSTER, *, is_sensitive: bool = False
    ) -> bool:
        """Return whether an operation on a resource is allowed.

        Without an ACL for it, information that ``is_sensitive`` is described only to
        administrators.
        """
        ...

    @property
    def has_acls(self) -> bool:
        """Whether its requests are also subject to ACLs."""
        ...

    @property
    def may_have_tokens(self) -> bool:
        """Whether it may create, renew and expire delegation tokens of its own."""
        ...

    @property
    def is_node(self) -> bool:
        """Whether it may send requests of a node."""
        ...

    def may_act_as(self, node_id: int) -> bool:
        """Return whether it may send requests of this node."""
        ...


class ControllerRequest(Protocol[Body]):
    """Decoded request of one API."""

    @property
    def body(self) -> Body: ...

    @property
    def version(self) -> int: ...

    @property
    def principal(self) -> Principal: ...


async def map_in_steps(convert: Callable[[T], R], parts: Sequence[T]) -> list[R]:
    """Convert the parts of a request or response, handling other events in between."""
    found: list[R] = []
    for start in range(0, len(parts), PARTS_PER_STEP):
        if start:
            await asyncio.sleep(0)
        found += map(convert, parts[start : start + PARTS_PER_STEP])
    return found


def timeout_ms(timeout: timedelta) -> int:
    """Return a request's timeout in milliseconds, within bounds."""
    return max(0, min(milliseconds(timeout), TIMEOUT_MS_MAX))


def code_and_message(error: Exception | None) -> tuple[ErrorCode, str | None]:
    """Return Kafka's error code and message of a refused or failed part of a request.

    None: the part succeeded.
    """
    if error is None:
        return ErrorCode.none, None
    if isinstance(error, ApiException):
        return ErrorCode(error.kafka_code), error.reason[:MESSAGE_LENGTH_MAX]
    if isinstance(error, RaftlogError) and error.kafka_code is not None:
        return ErrorCode(error.kafka_code), error.message()[:MESSAGE_LENGTH_MAX]
    return ErrorCode.unknown_server_error, None


_UNAUTHORIZED: Final = {
    ErrorCode.topic_authorization_failed: "Topic authorization failed.",
    ErrorCode.group_authorization_failed: "Group authorization failed.",
    ErrorCode.cluster_authorization_failed: "Cluster authorization failed.",
}


def unauthorized(code: ErrorCode | None = None) -> ApiException:
    """Return the refusal of a principal without the required right; None: on the cluster."""
    code = ErrorCode.cluster_authorization_failed if code is None else code
    remedy = "grant the right by an ACL, or in [access] of the node's configuration"
    return ApiException("the request", _UNAUTHORIZED[code], remedy, code)
