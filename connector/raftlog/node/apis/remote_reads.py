"""Reads of the remote segments of the log, below its local start.

Invariants:

1. A store takes longer than the event loop may wait, and may not answer at all. So reads run in at
   most ``reader_threads`` threads, and at most ``reader_max_pending_tasks`` more reads wait. The
   records stay in memory until they are sent.
2. A read has a result within ``fetch_max_wait_ms`` by the node's clock: ``RemoteStorageError`` if
   the store has not answered. Its thread is not available until the store answers.
3. A failed read is an error that clients retry, unless the segment is damaged or missing.

Kafka: ``RemoteLogManager.asyncRead``, ``RemoteStorageThreadPool``, ``DelayedRemoteFetch``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from raftlog.node.raft_node import RaftNode, RemoteStorage
from raftlog.node.store_threads import StoreThreads
from raftlog.printable import store_location
from raftlog.storage.errors import RemoteStorageError

if TYPE_CHECKING:
    from raftlog.log.reading.remote_reader import RemoteReader

T = TypeVar("T")


class RemoteReads:
    """Reads of one node's remote segments, on its event loop."""

    def __init__(self, raft_node: RaftNode) -> None:
        self._raft_node = raft_node
        remote = raft_node.remote
        self._threads = StoreThreads(
            0 if remote is None else remote.reader_threads, name="raftlog-remote-read"
        )
        self._readers: list[RemoteReader] = []
        """Readers that no thread is using."""

    @property
    def start_offset(self) -> int:
        """Start of the log, in its local segments or below them in remote storage."""
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
        """Greatest timestamp of a remote segment; -1 if there is no remote segment."""
        chain = self._raft_node.remote_chain
        segments = () if chain is None else chain.segments
        return max((one.max_timestamp_ms for one in segments), default=-1)

    def read(self, work: Callable[[RemoteReader], T]) -> asyncio.Future[T]:
        """Call ``work`` with a reader in a thread.

        The future gets the error of ``work``, or ``RemoteStorageError`` after the time limit or if
        too many reads wait.
        """
        remote = self._raft_node.remote
        assert remote is not None, "the log has remote segments"
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        limit = remote.reader_max_pending_tasks
        if self._threads.waiting_count >= limit:
            self._fail(result, f"{limit} reads are waiting (remote_log_reader_max_pending_tasks)")
            return result
        reading = self._threads.run(partial(self._call, remote, work))
        limit_ms = remote.fetch_max_wait_ms
        reason = f"no response within {limit_ms} ms (remote_fetch_max_wait_ms)"
        expire = partial(self._fail, result, reason)
        deadline_ms = self._raft_node.expire_after(limit_ms, expire)

        def read(done: asyncio.Future[T]) -> None:
            if done.cancelled():
                result.cancel()
            elif not result.done():
                error = done.exception()
                if error is None:
                    result.set_result(done.result())
                else:
                    self._raft_node.counts.remote.read_errors += 1
                    result.set_exception(error)

        def ended(_: asyncio.Future[T]) -> None:
            self._raft_node.expiries.remove(deadline_ms, expire)
            reading.cancel()

        reading.add_done_callback(read)
        result.add_done_callback(ended)
        return result

    def _call(self, remote: RemoteStorage, work: Callable[[RemoteReader], T]) -> T:
        try:
            reader = self._readers.pop()
        except IndexError:
            reader = self._raft_node.replica.log.remote.open_reader(remote.open_store)
        try:
            return work(reader)
        finally:
            self._readers.append(reader)

    def _fail(self, result: asyncio.Future[T], reason: str) -> None:
        if result.done():
            return
        chain = self._raft_node.remote_chain
        uri, directory = ("", "") if chain is None else (chain.uri, chain.directory)
        location = store_location(uri)
        self._raft_node.counts.remote.read_errors += 1
        result.set_exception(RemoteStorageError(location=location, name=directory, reason=reason))

    def close(self) -> None:
        """Cancel all reads, without waiting for a store that does not answer."""
        self._threads.close()
