"""Dispatch of a change to the function of its type."""

from __future__ import annotations

import functools

from raftlog_state.steps import Steps

from .change_requests import ChangeRequest
from .pending_state import PendingState


@functools.singledispatch
def write_in_steps(change: ChangeRequest, state: PendingState) -> Steps:
    """Validate a change against ``state`` and write its records; return the steps that are left.

    Raises ``ApiException``, after which the caller must undo the records written so far
    (``PendingState.atomic``).
    """
    raise AssertionError(f"no function handles {type(change).__name__}")
