"""Exclusive locks on real files that hold between processes and inside one.

Rules of this file:

1. Linux: open-file-description locks. They belong to one opening of the file, so two openings in
   one process exclude each other, and closing another opening does not drop them, as it drops the
   locks that POSIX gives to the process. They exclude Java's locks, which ``flock`` does not.
2. Elsewhere: ``flock``, which belongs to one opening too.
3. A lock is on the whole file, and never waits. A forked child shares the opening: so a lock is
   given back by unlocking, not by closing alone, and only by the process that took it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import sys
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
        self._process_id = os.getpid()

    def release(self) -> None:
        """Unlock and close. In a forked child: close, the lock is its parent's."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        if os.getpid() == self._process_id:
            with contextlib.suppress(OSError):  # then closing it has to do
                _unlock_descriptor(descriptor)
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
