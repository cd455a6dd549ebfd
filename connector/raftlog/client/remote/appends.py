"""Appends of many threads: what waits is bounded, counted, and sent by the loop.

Rules of this file:

1. An append that would exceed the bound waits for room until its deadline
   (``BufferAllocationError``, Kafka: ``max.block.ms``). Room is given back when
   an append has its answer.
2. Without ``close`` nothing that was queued is lost: the process waits for it at its end,
   at the latest until the last append's deadline (``Sender``). A fork has no thread, and is refused
   before it touches what its parent may have left locked.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, Final

from raftlog.append.requests import AppendRequest
from raftlog.client.clock import Clock
from raftlog.client.writer_thread import WAITING_BYTES_MAX
from raftlog.errors import BufferAllocationError, LogClosedError

from .connection import NetworkThread
from .sender import Sender


class Appends:
    """The appends of one handle. Safe for threads. The loop's part begins with the first one."""

    def __init__(
        self,
        path: str,
        network: NetworkThread,
        sender: Sender,
        clock: Clock,
    ) -> None:
        self._path = path
        self._network = network
        self._sender = sender
        self._clock = clock
        self._changed = threading.Condition()
        self._coming: list[AppendRequest] = []
        self._held_bytes = 0
        self._is_closed = False
        self._life: Future[None] | None = None

    def submit(self, request: AppendRequest) -> None:
        """Queue an append; its future will have the answer.

        Raises ``LogClosedError``, and ``BufferAllocationError`` if there was no room until the
        append's deadline.
        """
        if os.getpid() != self._network.process_id:
            reason = "it was connected before this process was forked"
            raise LogClosedError(path=self._path, reason=reason)
        byte_count = request.byte_count()
        with self._changed:
            self._check_open()
            while self._held_bytes and self._held_bytes + byte_count > WAITING_BYTES_MAX:
                left_ms = request.deadline_ms - self._clock.now_ms()
                if left_ms <= 0:
                    raise BufferAllocationError(
                        byte_count=byte_count, byte_count_max=WAITING_BYTES_MAX
                    )
                self._changed.wait(left_ms / 1000)
                self._check_open()
            if self._life is None:
                _running.add(self)
                self._life = self._network.start(self._sender.run())
            self._held_bytes += byte_count
            self._coming.append(request)
            if len(self._coming) == 1:
                self._network.call(self._hand_over)

        def answered(_: Future[Any]) -> None:
            with self._changed:
                self._held_bytes -= byte_count
                self._changed.notify_all()

        request.future.add_done_callback(answered)

    def close(self) -> None:
        """Take no more, and wait until all that is queued has its answer."""
        if os.getpid() != self._network.process_id:
            return  # what a fork copied is the parent's to send
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            life = self._life
        if life is not None and not self._network.is_this_thread:
            if not life.done():
                self._network.call(self._sender.close)
            wait((life,))
        _running.discard(self)

    def close_later(self, then: Callable[[], None]) -> None:
        """Take no more, wait for nothing, and call ``then`` when all has its answer."""
        if os.getpid() != self._network.process_id:
            return
        with self._changed:
            self._is_closed = True
            life = self._life
            if life is not None and not life.done():
                self._network.call(self._sender.close)

        def ended(_: Future[None]) -> None:
            _running.discard(self)
            then()

        if life is None:
            then()
        else:
            life.add_done_callback(ended)

    def _hand_over(self) -> None:
        with self._changed:
            coming, self._coming = self._coming, []
        self._sender.add(coming)

    def _check_open(self) -> None:
        if self._is_closed:
            raise LogClosedError(path=self._path, reason="close() was called")
        if self._life is not None and self._life.done():
            raise LogClosedError(path=self._path, reason="the sender has ended")


_running: Final[set[Appends]] = set()


@atexit.register
def _close_all() -> None:
    """Send what is still queued when the process ends in order."""
    for appends in list(_running):
        appends.close()
