"""Exhaustion of this process's file descriptors."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from typing import Final

MARGIN: Final = 32


@contextlib.contextmanager
def occupy_descriptors(count: int) -> Iterator[list[int]]:
    """Open all file descriptors of this process but ``count``; return them, to be closed by the
    test or at its end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = [int(name) for name in os.listdir("/dev/fd")]
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(open_now) + MARGIN, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(count):
            os.close(taken.pop())
        yield taken
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
