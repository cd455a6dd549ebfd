"""Durations of syncs and appends as histograms, for the metrics of a node."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

DURATION_BUCKETS_S: Final = (
    0.0005,
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    5.0,
)
"""Default upper bounds of the buckets, in seconds."""
SHORT_SYNC_S_MAX: Final = 0.002
"""Maximum duration of a short sync, in seconds."""
_SHARE_WEIGHT: Final = 1 / 8


class DurationHistogram:
    """Number of durations in each bucket, and their sum. Not thread-safe."""

    def __init__(self, bounds_s: Sequence[float] = DURATION_BUCKETS_S) -> None:
        """``bounds_s``: upper bounds of the buckets, inclusive and ascending, in seconds."""
        self.bounds_s: Final = tuple(bounds_s)
        self.counts: Final = [0] * (len(self.bounds_s) + 1)
        """One count per bound, and one for longer durations."""
        self.sum_s = 0.0

    def add(self, elapsed_s: float) -> None:
        """Add a duration."""
        self.sum_s += elapsed_s
        self.counts[bisect_left(self.bounds_s, elapsed_s)] += 1


class SyncDurations(DurationHistogram):
    """Durations of syncs, and the share of short ones, which determines where the next one runs.

    It is a share and not a mean, because a few syncs during which the process got no processor
    would raise a mean.
    """

    def __init__(self, bounds_s: Sequence[float] = DURATION_BUCKETS_S) -> None:
        super().__init__(bounds_s)
        self._share = 1.0

    def add(self, elapsed_s: float) -> None:
        """Add the duration of a sync."""
        super().add(elapsed_s)
        self._share += _SHARE_WEIGHT * ((elapsed_s <= SHORT_SYNC_S_MAX) - self._share)

    @property
    def are_short(self) -> bool:
        """Return whether to run the next sync on the event loop."""
        return self._share >= 0.5
