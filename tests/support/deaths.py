"""Processes that die in the middle of what they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

from tests.simulated_disk.simulated import CrashPoint, SimulatedDisk

P = ParamSpec("P")


def dies_after(
    disk: SimulatedDisk,
    operations: int,
    action: Callable[P, object],
    *args: P.args,
    **kwargs: P.kwargs,
) -> bool:
    """Whether the action died: it may do so many operations of the disk, and wanted one more.

    What it leaves is for the caller to end: by ``kill``, or by a power loss.
    """
    disk.stop_at(disk.operation_count + operations)
    try:
        action(*args, **kwargs)
    except CrashPoint:
        return True
    finally:
        disk.stop_at(None)
    return False
