"""Interface of a node for the handlers of client requests: replica, appends, waiting for changes.

All calls are on the node's event loop. State read from the replica is valid until the next
``await``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from raftlog.append.requests import AppendRequest, RequestResult
from raftlog.quorum.messages import Request, Response
from raftlog.wire import LogIdentity

from .replica import Replica


class LogService(Protocol):
    """Node as seen by its request handlers."""

    @property
    def identity(self) -> LogIdentity: ...

    @property
    def replica(self) -> Replica: ...

    def now_ms(self) -> int:
        """Return the quorum's clock: monotonic, with an arbitrary zero."""
        ...

    def time_ms(self) -> int:
        """Return the wall-clock time, in milliseconds since 1970."""
        ...

    def append(self, request: AppendRequest) -> asyncio.Future[RequestResult]:
        """Append to the log of this leader, in the order of the calls.

        Appends of one iteration of the event loop are written together. The result is set when it
        can no longer change.
        """
        ...

    async def ask(self, request: Request) -> Response:
        """Send a request to the replica, as another replica would."""
        ...

    async def wait_until(
        self,
        is_due: Callable[[], bool],
        *,
        timeout_ms: int,
        after: Callable[[], int] | None = None,
    ) -> bool:
        """Wait until ``is_due`` returns True; return False after the timeout, or if the node stops.

        ``is_due`` is checked now, and after every append, advance of the high watermark and leader
        change. With ``after``, for waiting fetches, it is checked only once the high watermark is
        above that offset, and after a change of the leader or of the log's start.
        """
        ...
