"""Exclusive locks on local files, between processes and within one.

On Linux these are open-file-description locks. They belong to one opening of the file: two openings
in one process exclude each other, and closing another opening does not release them, as it releases
POSIX locks of a process. They exclude Java's locks, which ``flock`` does not. Elsewhere it is
``flock``, which belongs to one opening too.

A lock is on the whole file and is never waited for. A forked child shares the opening and would
keep the lock after its parent was killed, so it closes its copy first. ``release`` unlocks before
it closes, since a child may not have closed its copy yet.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import sys
import weakref
from types import TracebackType
from typing import Final, Self

_OFD_SETLK: Final = 37
"""F_OFD_SETLK of Linux on every architecture; Python lacks it if libc's headers did."""
_FLOCK: Final = struct.Struct("@hhqqi4x")
"""``struct flock`` with 64-bit offsets: type, whence, start, length, process id (must be 0)."""
_LOCK_ALL: Final = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_UNLOCK_ALL: Final = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)
_HELD_BY_ANOTHER: Final = (errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK)


def lock_descriptor(descriptor: int) -> bool:
    """Lock the whole file; False if another opening of it has a lock. Raises ``OSError``."""
    try:
        if sys.platform == "linux":
            fcntl.fcntl(descriptor, _OFD_SETLK, _LOCK_ALL)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD_BY_ANOTHER:
            return False
        raise
    return True


def _unlock_descriptor(descriptor: int) -> None:
    if sys.platform == "linux":
        fcntl.fcntl(descriptor, _OFD_SETLK, _UNLOCK_ALL)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


class LocalLock:
    """Lock that is held until it is released or until no process has its opening."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        _held.add(self)

    def release(self) -> None:
        """Unlock and close. No-op in a forked child, whose parent has the lock."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        with contextlib.suppress(OSError):  # closing releases it unless a child shares it
            _unlock_descriptor(descriptor)
        os.close(descriptor)

    def close_in_child(self) -> None:
        """Close the copy of a forked child; the parent keeps the lock."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


_held: Final[weakref.WeakSet[LocalLock]] = weakref.WeakSet()


def _close_all_in_child() -> None:
    for lock in list(_held):
        lock.close_in_child()


os.register_at_fork(after_in_child=_close_all_in_child)
