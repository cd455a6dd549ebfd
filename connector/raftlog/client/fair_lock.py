"""Fair file lock that the writers of an embedded log take for each group of appends.

``.append.lock`` is held while one group is written. It is polled, with pauses that grow to a few
milliseconds, rather than waited for in the kernel, so that a waiter can give up at its deadline.

A writer that releases the lock and takes it again would nearly always win. So ``.append.turn`` is a
turnstile: it is taken before the lock is tried, and released once the lock is held. The next writer
holds the turnstile while it waits for the lock, and the one that returns waits for the turnstile.

The operating system releases both locks when their process ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from raftlog.errors import LogLockedError
from raftlog.storage.protocol import FileLock, WritableStorage

LOCK_NAME: Final = ".append.lock"
TURNSTILE_NAME: Final = ".append.turn"

LOCK_WAIT_MS: Final = 30_000
"""Wait for the lock by creation, configuration and repair of a log."""
_PAUSE_FIRST_S: Final = 0.000_1
_PAUSE_LONGEST_S: Final = 0.005


class FairLock:
    """Lock of one log. ``pause`` takes seconds."""

    def __init__(
        self,
        storage: WritableStorage,
        directory: str,
        *,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._lock_path = storage.join(directory, LOCK_NAME)
        self._turnstile_path = storage.join(directory, TURNSTILE_NAME)
        self._pause = pause

    def acquire(self, is_wanted: Callable[[], bool]) -> FileLock | None:
        """Wait for the lock. Returns None once ``is_wanted``, called after each try, is false.

        Raises ``LogAccessError`` if the lock files cannot be created.
        """
        turn = self._wait_for(self._turnstile_path, is_wanted)
        if turn is None:
            return None
        with turn:
            return self._wait_for(self._lock_path, is_wanted)

    def acquire_within(self, wait_ms: float, now_ms: Callable[[], float]) -> FileLock:
        """Wait for the lock for ``wait_ms`` of the monotonic clock ``now_ms``.

        Raises as ``acquire``, and ``LogLockedError``.
        """
        until_ms = now_ms() + wait_ms
        lock = self.acquire(lambda: now_ms() < until_ms)
        if lock is None:
            raise LogLockedError(path=self._directory, waited_ms=round(wait_ms))
        return lock

    def _wait_for(self, path: str, is_wanted: Callable[[], bool]) -> FileLock | None:
        pause_s = _PAUSE_FIRST_S
        while True:
            lock = self._storage.try_lock(path)
            if lock is not None or not is_wanted():
                return lock
            self._pause(pause_s)
            pause_s = min(pause_s * 1.5, _PAUSE_LONGEST_S)
