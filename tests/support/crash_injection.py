"""Processes that crash during an action."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

from tests.simulated_disk.simulated_disk import CrashPoint, SimulatedDisk

P = ParamSpec("P")


def crashes_after(
    disk: SimulatedDisk,
    operations: int,
    action: Callable[P, object],
    *args: P.args,
    **kwargs: P.kwargs,
) -> bool:
    """Run the action with a limit of disk operations; return whether it crashed at the limit.

    The caller ends the process: by ``kill``, or by a power loss.
    """
    disk.stop_at(disk.operation_count + operations)
    try:
        action(*args, **kwargs)
    except CrashPoint:
        return True
    finally:
        disk.stop_at(None)
    return False
