"""Whose turn it is to append: the lock that writers of an embedded log take for one group.

Rules of this file:

1. ``.append.lock`` is held for one group. Nobody waits in the kernel: a lock is tried, then tried
   again, with pauses that grow up to a few milliseconds, for as long as anybody still wants it.
2. Who gives the lock back and wants it again would nearly always be first. So a second file,
   ``.append.turn``, is a turnstile: it is taken before the lock is tried and given back as soon as
   the lock is held. Who waits for the lock holds the turnstile, and who comes back waits behind.
3. Locks end with their process, however it ends.
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
"""How long whoever makes, configures or repairs a log waits for its writers."""
_PAUSE_FIRST_S: Final = 0.000_1
_PAUSE_LONGEST_S: Final = 0.005


class FairLock:
    """The turns of one log. ``pause`` is given seconds."""

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
        """Wait for the lock; None as soon as ``is_wanted`` says no more.

        It is asked after each try. Raises ``LogAccessError`` if the files cannot be made.
        """
        turn = self._wait_for(self._turnstile_path, is_wanted)
        if turn is None:
            return None
        with turn:
            return self._wait_for(self._lock_path, is_wanted)

    def acquire_within(self, wait_ms: float, now_ms: Callable[[], float]) -> FileLock:
        """Wait for the lock, for so long by a clock that never goes back. Raises as
        ``acquire``, and ``LogLockedError``."""
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
