"""Retries of reads that fail because the node deletes files meanwhile.

Few and with a short backoff, since the query waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from raftlog.errors import DataLossError, RaftlogError

from .clock import Clock

ATTEMPTS_MAX: Final = 5
RETRY_BACKOFF_MS: Final = 20

T = TypeVar("T")


def retry(action: Callable[[], T], clock: Clock, *, is_new_read: bool = False) -> T:
    """Call ``action`` until it succeeds; it must list the files again each time.

    ``is_new_read``: also retry after ``DataLossError``, since a read that is being planned can
    start at the new log start offset.

    Raises the last error after ``ATTEMPTS_MAX`` attempts.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            return action()
        except RaftlogError as error:
            is_retriable = error.retriable or (is_new_read and isinstance(error, DataLossError))
            if not is_retriable or attempt == ATTEMPTS_MAX:
                raise
            clock.sleep_ms(RETRY_BACKOFF_MS)
    raise AssertionError("the loop returns or raises")
