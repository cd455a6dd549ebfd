"""Signals that end a command that runs until it is stopped."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final

_STOPS: Final = (signal.SIGINT, signal.SIGTERM)


class TerminatedError(BaseException):
    """SIGTERM was received."""


class StopSignals:
    """SIGINT and SIGTERM raise ``KeyboardInterrupt`` and ``TerminatedError`` in the main thread.

    A signal during a block of ``uninterrupted`` raises after the block. A second signal ends the
    process immediately. In other threads, this class does nothing. C code that calls Python may
    drop the exception, so loops call ``raise_received``.
    """

    def __init__(self) -> None:
        self._is_deferred = False
        self._received: int | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in _STOPS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """Complete a block before a signal is raised."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False
        self.raise_received()

    def raise_received(self) -> None:
        """Raise the exception of a signal that was received before."""
        if self._received is not None:
            raise self._stop(self._received)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        for stop in _STOPS:
            signal.signal(stop, signal.SIG_DFL)
        self._received = number
        if not self._is_deferred:
            raise self._stop(number)

    def _stop(self, number: int) -> BaseException:
        return KeyboardInterrupt() if number == signal.SIGINT else TerminatedError()
