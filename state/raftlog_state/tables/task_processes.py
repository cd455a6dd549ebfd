"""``TaskProcesses``: processes of this host that replay the buckets of a load without Spark.

Rules of this file:

1. A process reads ranges from a pipe until the pipe is closed, so it ends with the process that
   started it, even if that one is killed with SIGKILL. (Processes of
   ``concurrent.futures.ProcessPoolExecutor`` then run forever, because each holds the other end of
   its queue, too.)
2. Signals of a terminal are for the loading process, which kills the others.
3. The processes are spawned, not forked, because Arrow and delta-rs have threads. The first range
   starts them.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Final

from raftlog_state.errors import TablesError

from .bucket_replay import BucketResult, replay_bucket
from .range_routing import NotSplit, RoutedRange

_IGNORED: Final = (signal.SIGINT, signal.SIGTERM)


class TaskProcesses:
    """Context with ``count`` processes, including this one. Used by one thread."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._processes: dict[Connection, BaseProcess] = {}

    def __enter__(self) -> TaskProcesses:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes.values():
            process.kill()
        for connection, process in self._processes.items():
            process.join()
            connection.close()

    def run(self, routed: RoutedRange, buckets: Sequence[int]) -> Iterator[BucketResult | NotSplit]:
        """Replay buckets, and yield each result when it is complete.

        Raises:
            TablesError: a process has ended.
            OSError: a file of the range cannot be read or written.
        """
        if self._count == 1:
            yield from (replay_bucket(routed, bucket) for bucket in buckets)
            return
        self._start(min(self._count, len(buckets)))
        waiting = deque(buckets)
        idle = list(self._processes)
        busy: list[Connection] = []
        while waiting or busy:
            while waiting and idle:
                busy.append(idle.pop())
                with self._end_reported(busy[-1], routed):
                    busy[-1].send((routed, waiting.popleft()))
            for connection in wait(busy):
                assert isinstance(connection, Connection)
                with self._end_reported(connection, routed):
                    found: BucketResult | NotSplit | OSError = connection.recv()
                if isinstance(found, OSError):
                    raise found
                busy.remove(connection)
                idle.append(connection)
                yield found

    def _start(self, count: int) -> None:
        """Start the processes that are not running yet."""
        spawn = multiprocessing.get_context("spawn")
        while len(self._processes) < count:
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()  # so that the end of the process is the end of the pipe
            self._processes[ours] = process

    @contextmanager
    def _end_reported(self, connection: Connection, routed: RoutedRange) -> Iterator[None]:
        """Raise ``TablesError`` if the process of a connection has ended."""
        try:
            yield
        except (EOFError, ConnectionError):
            process = self._processes[connection]
            process.join()
            raise TablesError(
                place=routed.task.directory,
                reason=f"a process of the load has ended with exit code {process.exitcode}",
                remedy="run it again: the load is continued; if the kernel ended the process "
                "because memory was short (-9), with fewer workers",
            ) from None


def _serve(connection: Connection) -> None:
    """Replay the buckets that the parent sends, until its end of the pipe is closed."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    with suppress(EOFError, ConnectionError):
        while True:
            routed, bucket = connection.recv()
            connection.send(_outcome(routed, bucket))


def _outcome(routed: RoutedRange, bucket: int) -> BucketResult | NotSplit | OSError:
    try:
        return replay_bucket(routed, bucket)
    except OSError as error:
        return error
