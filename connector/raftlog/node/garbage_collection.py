"""Policy of the process of a node for Python's cyclic garbage collection.

Rows of metadata have no cycles, and there are millions of them. Each full collection of Python
visits all of them again: 184 ms of CPU time with 100,000 partitions, in which a node answers
nothing. So the survivors of a full collection are frozen (``gc.freeze``) if they are many, and the
next one visits only what was created since: 18 ms, whatever the number of partitions.

A frozen object is freed as always when its last reference is deleted. If it is in a cycle then, it
stays until the process ends: so do some 2 KB of each connection that is open when survivors are
frozen (``asyncio``'s transport). So they are not frozen unless there are ``SURVIVORS_MIN`` besides
those of connections, which only metadata has: clients that open and close connections must not use
up memory. Incremental collections, of Python 3.14, are not changed.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SURVIVORS_MIN: Final = 20_000
"""Objects and elements that are frozen after a full collection; fewer take at most some 10 ms."""
CONNECTION_OBJECTS_MAX: Final = 150
"""Objects and elements of an open connection: 67 without TLS, which has a second transport."""
_OLDEST: Final = 2


@contextmanager
def survivors_frozen() -> Iterator[None]:
    """Freeze what there is now, and many survivors of each full collection in the block.

    It concerns the whole process, and so is not for use in libraries.
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
    """Return the number of objects and of elements of those that may have many, without those of
    open connections."""
    count = len(objects)
    for one in objects:
        if isinstance(one, dict | list | set):
            count += len(one)
        elif isinstance(one, asyncio.BaseTransport):
            count -= CONNECTION_OBJECTS_MAX
    return count
