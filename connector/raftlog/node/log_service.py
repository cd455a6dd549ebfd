"""What answering requests needs of a node: its replica, a place for appends, and news.

Rules of this file:

1. Everything is asked on the node's own loop. What is read of the replica is true until the next
   ``await``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from raftlog.client.requests import AppendRequest, RequestResult
from raftlog.quorum.messages import Request, Response
from raftlog.wire import LogIdentity

from .replica import Replica


class LogService(Protocol):
    """A node as those see it who answer for it."""

    @property
    def identity(self) -> LogIdentity: ...

    @property
    def replica(self) -> Replica: ...

    def now_ms(self) -> int:
        """The quorum's clock: it never goes back, and its zero means nothing."""
        ...

    def time_ms(self) -> int:
        """The time of day, in milliseconds since 1970."""
        ...

    def append(self, request: AppendRequest) -> asyncio.Future[RequestResult]:
        """Append at this leader: placed in the order of these calls, those of one moment together,
        and answered when the answer can no longer change."""
        ...

    async def ask(self, request: Request) -> Response:
        """Ask the replica, as another one would."""
        ...

    async def wait_until(
        self,
        is_due: Callable[[], bool],
        *,
        timeout_ms: int,
        after: Callable[[], int] | None = None,
    ) -> bool:
        """Wait until something holds, which is looked at now, and after every append, advance of
        the high watermark and change of leaders. False if it did not in time, or if the node stops.

        With ``after`` it is looked at only once the high watermark is above that offset, and after
        a change of leaders or of the log's start: for those that wait for records.
        """
        ...
