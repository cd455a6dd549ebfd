"""Dispatch of a change to the function of its type."""

from __future__ import annotations

import functools

from .change_requests import ChangeRequest
from .pending_state import PendingState


@functools.singledispatch
def write(change: ChangeRequest, state: PendingState) -> None:
    """Validate a change against ``state`` and write its records.

    Raises ``ApiException``, after which the caller must undo the records written so far
    (``PendingState.atomic``).
    """
    raise AssertionError(f"no function handles {type(change).__name__}")
