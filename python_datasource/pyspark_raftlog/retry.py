"""Ask a log again while its node deletes files under our hands.

Rules of this file: an answer is asked for a few times, a moment apart, and never for long: whoever
asks holds up a query.
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
    """What ``action`` returns; it must look at the files anew each time.

    ``is_new_read``: nothing was promised yet, so that records which were deleted while the read was
    planned are no loss either: another look finds where the log begins now.

    Raises the last error if that does not end.
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
