"""``ControllerRegistrationManager``: registers the controller of a node with the active controller.

Each process of a node has an incarnation id. The manager sends registrations until the metadata
contains one with this id: after a start, after metadata.version begins to support registrations,
and after another process has registered this node.

Source: Kafka ``ControllerRegistrationManager`` (KIP-919).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from kio.schema.controller_registration.v0 import request as requests
from kio.schema.controller_registration.v0.response import ControllerRegistrationResponse
from kio.schema.errors import ErrorCode

from raftlog.wire.errors import WireError
from raftlog.wire.log_identity import int16, node, uuid_or_none, uuid_text
from raftlog_state.controller import KNOWN_FEATURES, ControllerListener
from raftlog_state.image import ControllerRow, MetadataImage
from raftlog_state.image.record_versions import LEVEL_CONTROLLERS

Send: TypeAlias = Callable[
    [requests.ControllerRegistrationRequest], Awaitable[ControllerRegistrationResponse]
]

TIMEOUT_S: Final = 60
"""Time after which a request is sent again. The active controller answers within half of it."""
BACKOFF_S: Final = 0.1
BACKOFF_S_MAX: Final = 120.0
"""Pauses after the first failure and after many failures (Kafka: ``resendExponentialBackoff``)."""


def registration_request(
    node_id: int, incarnation_id: str, listener: requests.Listener
) -> requests.ControllerRegistrationRequest:
    """Return the registration of a node's controller, with the features of this release."""
    return requests.ControllerRegistrationRequest(
        controller_id=node(node_id),
        incarnation_id=uuid_or_none(incarnation_id),
        zk_migration_ready=False,
        listeners=(listener,),
        features=tuple(
            requests.Feature(
                name=name, min_supported_version=int16(low), max_supported_version=int16(high)
            )
            for name, (low, high) in sorted(KNOWN_FEATURES.items())
        ),
    )


class ControllerRegistrationManager:
    """Metadata publisher that registers the controller of its node. Use it on the event loop.

    ``send`` returns the response of the active controller. Raises ``OSError``, ``EOFError`` and
    ``WireError``.
    """

    def __init__(
        self,
        request: requests.ControllerRegistrationRequest,
        *,
        send: Send,
        listener: ControllerListener,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._request: Final = request
        self._send: Final = send
        self._listener: Final = listener
        self._sleep: Final = sleep
        self._seen: tuple[int | None, str | None] = (None, None)
        """The metadata.version, and the registered incarnation."""
        self._sending: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return "ControllerRegistrationManager"

    def on_metadata_update(self, update: object, image: MetadataImage, manifest: object) -> None:
        """Send a registration if the image lacks this process's one and supports registrations."""
        del update, manifest
        row = image.find(ControllerRow, int(self._request.controller_id))
        seen = (image.metadata_version, None if row is None else row.incarnation_id)
        if seen == self._seen:
            return
        self._seen = seen
        if self._is_due and (self._sending is None or self._sending.done()):
            self._sending = asyncio.get_running_loop().create_task(self._register())

    def on_controller_change(self, leader: object) -> None:
        """Do nothing: a registration is sent to whichever node leads at the time."""

    def close(self) -> None:
        """Send no more registrations."""
        if self._sending is not None:
            self._sending.cancel()

    @property
    def _is_due(self) -> bool:
        level, incarnation_id = self._seen
        is_registered = incarnation_id == uuid_text(self._request.incarnation_id)
        return level is not None and level >= LEVEL_CONTROLLERS and not is_registered

    async def _register(self) -> None:
        """Send registrations until one is acknowledged, or no longer due."""
        backoff_s = BACKOFF_S
        while self._is_due:
            reason = await self._refusal()
            if reason is None:
                return
            self._listener.log(f"The registration of this controller failed: {reason}")
            await self._sleep(backoff_s)
            backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)

    async def _refusal(self) -> str | None:
        """Send a registration; return why it failed, None if the active controller has it."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                response = await self._send(self._request)
        except (OSError, EOFError, WireError) as error:  # a timeout is an OSError
            return str(error) or type(error).__name__
        if response.error_code is ErrorCode.none:
            return None
        return response.error_message or response.error_code.name
