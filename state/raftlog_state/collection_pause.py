"""Pause of Python's cyclic garbage collection while many objects are created that stay.

Records, rows and changes have no cycles, and a batch has hundreds of thousands of them. Collections
that look through all of them again and again took a third of the time of a replay.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Run no garbage collection in the block, which should be short; also as a decorator.

    Reference counts free objects as always. If threads overlap, collection starts again with the
    first of them.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
