"""Executor for work that would block the node's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")


class Executor:
    """Executor with a single thread, which bounds the memory of the work to that of one task."""

    def __init__(self) -> None:
        self._thread: Final = ThreadPoolExecutor(1, thread_name_prefix="raftlog-executor")

    async def __call__(self, work: Callable[[], T]) -> T:
        """Run ``work`` after the work submitted before; not at all if cancelled while it waits."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        """Cancel waiting work, and wait for the running one."""
        self._thread.shutdown(cancel_futures=True)
