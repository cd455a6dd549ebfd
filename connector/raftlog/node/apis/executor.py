"""Work that would hold up the node's loop, done beside it: one piece at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")


class Executor:
    """One thread, from the first piece of work on. What one piece holds is all that they hold."""

    def __init__(self) -> None:
        self._thread: Final = ThreadPoolExecutor(1, thread_name_prefix="raftlog-executor")

    async def __call__(self, work: Callable[[], T]) -> T:
        """Do it, after what was asked before. Who is cancelled while it waits has asked nothing."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        """Begin nothing more, and wait for what was begun."""
        self._thread.shutdown(cancel_futures=True)
