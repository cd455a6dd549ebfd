"""Files of a node, with file descriptors in reserve.

When the process has no descriptor left, files of the log are opened with reserved ones. The node
then accepts no connection until the reserve is full again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Final, TypeVar

from raftlog.closeable import Closeable

from .local_writing import PrivateLocalStorage

SPARE_DESCRIPTORS: Final = 16
NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)
_T = TypeVar("_T")


class ReservedDescriptorStorage(PrivateLocalStorage, Closeable):
    """Files of this machine, with descriptors in reserve after the first ``refill``."""

    def __init__(self, count: int = SPARE_DESCRIPTORS) -> None:
        super().__init__()
        self._count_max = count
        self._spare: list[int] = []

    def refill(self) -> bool:
        """Fill the reserve with the descriptors available; return whether it is full."""
        try:
            while len(self._spare) < self._count_max:
                self._spare.append(os.open(os.devnull, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)))
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the descriptors in reserve."""
        while self._spare:
            os.close(self._spare.pop())

    def _with_descriptor(self, opened: Callable[[], _T]) -> _T:
        while True:
            try:
                return opened()
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR or not self._spare:
                    raise
                os.close(self._spare.pop())
