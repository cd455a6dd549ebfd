"""Versions of the tables that a reader sees together.

Rules of this file:

1. ``state`` is pinned before ``changes``, and ``changes`` before ``log``, so no later table lacks
   what an earlier one includes.
2. A truncation changes ``state`` before ``changes``: after one in between, they are pinned again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .progress import Progress


class PinnedVersions(NamedTuple):
    """Versions, and the newest progress rows of ``state`` (``base``) and of ``changes``.

    A version is None if there is no such table.
    """

    base: Progress | None
    appended: Progress | None
    state_version: int | None
    changes_version: int
    log_version: int | None

    @property
    def newest(self) -> Progress | None:
        """The end of the tables."""
        found = [progress for progress in (self.base, self.appended) if progress is not None]
        return max(found, key=_order, default=None)

    @property
    def is_consistent(self) -> bool:
        """Whether ``changes`` continues ``state``: no truncation was between the two versions."""
        if self.appended is None:
            return self.base is None
        base = self.base or Progress()
        return self.appended.incarnation == base.incarnation and self.appended.offset >= base.offset


def pin(
    state_version: Callable[[], int | None], pin_others: Callable[[int | None], PinnedVersions]
) -> PinnedVersions:
    """Return versions that belong together.

    ``state_version`` returns the newest version of ``state``; ``pin_others`` pins the other tables
    after that of ``state`` which it is given.
    """
    version = state_version()
    while True:
        pinned = pin_others(version)
        if pinned.is_consistent:
            return pinned
        before, version = version, state_version()
        if version == before:
            return pinned


def _order(progress: Progress) -> tuple[int, int]:
    return progress.incarnation, progress.offset
