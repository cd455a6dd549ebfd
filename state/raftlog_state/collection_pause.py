"""Pause of Python's cyclic garbage collection while many long-lived objects are created.

Records, rows and changes have no cycles, and a batch has hundreds of thousands of them. Garbage
collections that traversed all of them again and again took a third of a replay's time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Run no garbage collection in the block, which should be short. Also usable as a decorator.

    Reference counts free objects as usual. If threads overlap, collection resumes when the first of
    them ends.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
