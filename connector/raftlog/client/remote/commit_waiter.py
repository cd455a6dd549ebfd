"""Wait for committed records: a Fetch at the high watermark, which the leader delays.

The request has its own connection, because a node answers the requests of one connection in order:
on a shared connection an append would have to wait for it. All readers of one client share the
request, so that they need one connection, whatever their number. The response contains the records
that the readers read next, so that these are transferred only once.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any, Final

from raftlog.limits import MIB
from raftlog.wire import ApiKey, latest_schemas

from . import messages
from .connection import Connection, ConnectionLostError
from .login import SaslLogin
from .metadata import LeaderConnection, Metadata
from .tls import SslFactory, context_of

FETCH_BYTES: Final = 1 * MIB
WAIT_MS: Final = 1_000
"""Maximum delay of a Fetch without new records."""
_GRACE_S: Final = 1.0
"""How much longer the response may take before the node counts as lost."""
RECONNECT_S: Final = 1.0
"""Time between two attempts to connect, during which the readers poll. A node may limit the number
of connections, and the rate of new connections that all clients on this host share."""


class CommitWaiter:
    """Delayed Fetch of one client. Used on one event loop only."""

    def __init__(self, metadata: Metadata, tls: SslFactory | None, login: SaslLogin | None) -> None:
        self._metadata = metadata
        self._tls = tls
        self._login = login
        self._connection: Connection | None = None
        self._leader: Connection | None = None
        """Connection for all other requests to the same node as ``_connection``."""
        self._fetching: asyncio.Task[bool] | None = None
        self._connect_at_s = -math.inf
        """Loop time before which it does not connect."""
        self._offset = -1
        """Offset of the request in flight."""
        self.compacted_offset = 0
        """The greatest one in responses with records."""
        self.fetched: tuple[int, Any, int] | None = None
        """Offset and partition of the last response with records, and the leader's epoch. Set on
        the event loop, read by any thread."""

    async def wait(self, offset: int) -> bool:
        """Wait up to ``WAIT_MS`` until the record at ``offset`` is committed. Return False if
        waiting was not possible; then the caller should pause."""
        while self._fetching is not None and self._offset < offset:
            await asyncio.wait((self._fetching,))  # soon: its record is committed
        if self._fetching is None:
            self._offset = offset
            self._fetching = asyncio.get_running_loop().create_task(self._fetch(offset))
            self._fetching.add_done_callback(self._ended)
        elif self._offset > offset:
            return True  # another reader has read it
        return await asyncio.shield(self._fetching)

    def _ended(self, _: asyncio.Task[bool]) -> None:
        self._fetching = None

    async def _fetch(self, offset: int) -> bool:
        until = asyncio.get_running_loop().time() + _GRACE_S
        try:
            leader = await self._metadata.leader(until)
            connection = await self._connection_to(leader)
            if connection.throttle_left_s:
                return False
            response: Any = await connection.request(
                ApiKey.FETCH,
                messages.fetch_request(
                    leader.log,
                    offset,
                    leader_epoch=-1,
                    byte_count_max=FETCH_BYTES,
                    wait_ms=WAIT_MS,
                ),
                latest_schemas.FetchResponse,
                timeout_s=WAIT_MS / 1000 + _GRACE_S,
            )
            error, partition = messages.parse_partition(response, response.responses)
        except Exception:  # noqa: BLE001 - also of oauth_token; the reader's next request raises it
            return False
        if not error and partition.records:
            self.compacted_offset = max(self.compacted_offset, partition.compacted_offset)
            self.fetched = offset, partition, leader.epoch
        return not error

    async def _connection_to(self, leader: LeaderConnection) -> Connection:
        """Return the connection for delayed requests to the leader. Raises like ``open``, and
        ``ConnectionLostError`` if the last attempt was less than ``RECONNECT_S`` ago."""
        found = self._connection
        if found is None or not found.is_open or self._leader is not leader.connection:
            self.close()
            address, now_s = leader.connection.address, asyncio.get_running_loop().time()
            if now_s < self._connect_at_s:
                raise ConnectionLostError(f"{address}: the last attempt to connect was just before")
            self._connect_at_s = now_s + RECONNECT_S
            context = context_of(self._tls)
            found = await Connection.open(address, context, self._login, timeout_s=_GRACE_S)
            self._connection, self._leader = found, leader.connection
        return found

    def close(self) -> None:
        """Close the connection."""
        found, self._connection, self._leader = self._connection, None, None
        if found is not None:
            found.close("the client was closed, or the leader has changed")
