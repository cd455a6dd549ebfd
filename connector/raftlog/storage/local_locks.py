"""Exclusive locks on real files that hold between processes and inside one.

Rules of this file:

1. Linux: open-file-description locks. They belong to one opening of the file, so two openings in
   one process exclude each other, and closing another opening does not drop them, as it drops the
   locks that POSIX gives to the process. They exclude Java's locks, which ``flock`` does not.
2. Elsewhere: ``flock``, which belongs to one opening too.
3. A lock is on the whole file, and never waits. A forked child shares the opening, and would keep
   the lock alive when its parent is killed: so it closes its own at once. A lock is given back by
   unlocking, not by closing alone, since a child may be in the middle of that.
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
"""Linux's F_OFD_SETLK on every processor. Python has the name only where libc's header had it."""
_FLOCK: Final = struct.Struct("@hhqqi4x")
"""``struct flock`` with 64-bit offsets: type, whence, start, length, process id (must be 0)."""
_LOCK_ALL: Final = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_UNLOCK_ALL: Final = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)
_HELD_BY_ANOTHER: Final = (errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK)


def lock_descriptor(descriptor: int) -> bool:
    """Lock the whole file; False if another opening of it holds a lock. Raises ``OSError``."""
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
    """A lock that is held until it is released, or until nobody has its opening any more."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        _held.add(self)

    def release(self) -> None:
        """Unlock and close. In a forked child nothing is left to do: the lock is its parent's."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        with contextlib.suppress(OSError):  # then closing it has to do
            _unlock_descriptor(descriptor)
        os.close(descriptor)

    def close_in_child(self) -> None:
        """Close a forked child's share, which leaves its parent's lock alone."""
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
