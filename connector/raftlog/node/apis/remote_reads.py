"""Reads of the remote segments of the log, below its local start.

They run in one thread, one after the other: a store takes longer than the event loop may wait, and
what is read stays in memory until it is sent. A failed read is an error that clients retry.

Kafka: ``RemoteLogManager.asyncRead``, ``DelayedRemoteFetch``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from raftlog.node.raft_node import RaftNode

if TYPE_CHECKING:
    from raftlog.log.reading.remote_reader import RemoteReader

T = TypeVar("T")


class RemoteReads:
    """Reads of one node's remote segments, on its event loop."""

    def __init__(self, raft_node: RaftNode) -> None:
        self._raft_node = raft_node
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="raftlog-remote-read")
        self._reader: RemoteReader | None = None

    @property
    def start_offset(self) -> int:
        """Start of the log: that of its local segments, or below it, in remote storage."""
        local_start = self._raft_node.replica.log.log_start_offset
        chain = self._raft_node.remote_chain
        return local_start if chain is None else chain.start_with(local_start)

    @property
    def copied_end_offset(self) -> int:
        """The offset below which everything was copied; -1 without remote storage."""
        chain = self._raft_node.remote_chain
        return -1 if chain is None else chain.copied_end_offset

    @property
    def max_timestamp_ms(self) -> int:
        """Greatest timestamp of a remote segment; -1 without one."""
        chain = self._raft_node.remote_chain
        segments = () if chain is None else chain.segments
        return max((one.max_timestamp_ms for one in segments), default=-1)

    def read(self, work: Callable[[RemoteReader], T]) -> asyncio.Future[T]:
        """Call ``work`` with the reader in the thread."""
        return asyncio.get_running_loop().run_in_executor(self._thread, self._call, work)

    def _call(self, work: Callable[[RemoteReader], T]) -> T:
        if self._reader is None:
            remote = self._raft_node.remote
            assert remote is not None, "the log has remote segments"
            self._reader = self._raft_node.replica.log.open_remote_reader(remote.open_store)
        return work(self._reader)

    def close(self) -> None:
        """End the thread after the read in progress."""
        self._thread.shutdown(wait=False, cancel_futures=True)
