"""One change into the state: a single function, with one implementation for each kind of change."""

from __future__ import annotations

import functools

from .change_requests import ChangeRequest
from .pending_state import PendingState


@functools.singledispatch
def write(change: ChangeRequest, state: PendingState) -> None:
    """Check a change against the state and write its records into ``state``.

    Raises ``ApiException``; what was written until then is the caller's to take back
    (``PendingState.atomic``).
    """
    raise AssertionError(f"no writer for {type(change).__name__}")
