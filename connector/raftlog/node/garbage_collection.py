"""Policy of a node's process for Python's cyclic garbage collection.

Rows of metadata have no cycles, and there are millions of them. Each full collection of Python
visits all of them again: 184 ms of CPU time with 100,000 partitions, during which a node answers
nothing. So if many objects survive a full collection, they are frozen (``gc.freeze``), and the next
one visits only objects that were created since: 18 ms, whatever the number of partitions.

A frozen object is still freed when its last reference is deleted. But if it is part of a cycle, it
stays in memory until the process ends, like about 2 KB of each connection that is open when
survivors are frozen (``asyncio``'s transport). Clients that open and close connections must not use
up memory. So survivors are frozen only if there are ``SURVIVORS_MIN`` of them besides those of
connections, which only metadata reaches. The incremental collections of Python 3.14 are not
changed.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SURVIVORS_MIN: Final = 20_000
"""Minimum of objects and elements to freeze; fewer take a full collection about 10 ms at most."""
CONNECTION_OBJECTS_MAX: Final = 150
"""Objects and elements of an open connection: 67 without TLS, which adds a second transport."""
_OLDEST: Final = 2


@contextmanager
def survivors_frozen() -> Iterator[None]:
    """Freeze all current objects, and survivors of each full collection in the block if many.

    This affects the whole process, so it is not for use in libraries.
    """
    gc.collect()
    gc.freeze()
    gc.callbacks.append(_freeze_survivors)
    try:
        yield
    finally:
        gc.callbacks.remove(_freeze_survivors)
        gc.unfreeze()


def _freeze_survivors(phase: str, info: dict[str, int]) -> None:
    is_full = phase == "stop" and info["generation"] == _OLDEST
    if is_full and _visited_count(gc.get_objects(_OLDEST)) >= SURVIVORS_MIN:
        gc.freeze()


def _visited_count(objects: list[object]) -> int:
    """Return the number of objects, and of the elements of those that may have many, without those
    of open connections."""
    count = len(objects)
    for one in objects:
        if isinstance(one, dict | list | set):
            count += len(one)
        elif isinstance(one, asyncio.BaseTransport):
            count -= CONNECTION_OBJECTS_MAX
    return count
