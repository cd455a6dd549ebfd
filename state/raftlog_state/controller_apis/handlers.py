"""Handlers by API.

An error of a whole request, such as that of a node that is not the active controller, is a response
in which every part has this error.

Source: Kafka ``AbstractRequest.getErrorResponse``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.create_topics.v7.request import CreateTopicsRequest
from kio.schema.errors import ErrorCode

from raftlog.errors import RaftlogError
from raftlog.wire import ApiKey, latest_schemas
from raftlog_state.controller import ApiException

from .hosted_controller import HostedController
from .requests import ControllerRequest, code_and_message
from .topics import (
    handle_create_topics,
    handle_delete_topics,
    refuse_create_topics,
    refuse_delete_topics,
)


@dataclass(frozen=True, slots=True)
class Handler:
    """Handler of one API.

    ``request_class``: of its requests, in the newest version. ``refuse`` returns the response with
    an error of the whole request.
    """

    request_class: type[Any]
    handle: Callable[[HostedController, ControllerRequest[Any]], Awaitable[object]]
    refuse: Callable[[ControllerRequest[Any], ErrorCode, str | None], object]

    async def respond(
        self, controller: HostedController, request: ControllerRequest[Any]
    ) -> object:
        """Return the response to a request."""
        try:
            return await self.handle(controller, request)
        except (ApiException, RaftlogError) as error:
            return self.refuse(request, *code_and_message(error))


HANDLERS: Final[Mapping[ApiKey, Handler]] = {
    ApiKey.CREATE_TOPICS: Handler(CreateTopicsRequest, handle_create_topics, refuse_create_topics),
    ApiKey.DELETE_TOPICS: Handler(
        latest_schemas.DeleteTopicsRequest, handle_delete_topics, refuse_delete_topics
    ),
}
