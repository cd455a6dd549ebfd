"""Offsets and leader epochs, from batch to batch: no gap, no fall, and the epochs file agrees.

Rules of this file:

1. In a metadata log offsets are contiguous; in an ordinary one they ascend, since compaction leaves
   gaps.
2. ``leader-epoch-checkpoint`` speaks of offsets from its first entry on: what lies before was
   deleted, as far as Kafka is concerned (Kafka: ``LeaderEpochFileCache.truncateFromStart``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from raftlog.client import EpochCache
from raftlog.records.columns import BatchColumns

from .findings import Finding, Kind, damage, note


class HistoryCheck:
    """Follows a log from its first batch to its last.

    ``read_epochs`` reads the epochs file, None if there is none or it does not parse. It is read
    again before it is called wrong: its node may have written to both meanwhile.
    """

    def __init__(
        self, *, contiguous: bool, epochs_path: str, read_epochs: Callable[[], EpochCache | None]
    ) -> None:
        self._contiguous = contiguous
        self._epochs_path = epochs_path
        self._read_epochs = read_epochs
        self._epochs: EpochCache | None = None
        self._load_epoch_cache()
        self._next_offset: int | None = None
        self._last_epoch = -1
        self._reported: set[int] = set()

    @property
    def next_offset(self) -> int | None:
        """The offset behind the last batch, None before the first."""
        return self._next_offset

    def add(self, batches: BatchColumns, path: str) -> Iterator[Finding]:
        """Compare these batches with what came before."""
        if not len(batches):
            return
        yield from self._check_offsets(batches, path)
        yield from self._check_epoch_order(batches, path)
        yield from self._check_epoch_cache(batches, path)
        self._next_offset = int(batches.last_offset[-1]) + 1
        self._last_epoch = max(self._last_epoch, int(batches.leader_epoch.max()))

    def skip(self, next_offset: int) -> None:
        """Damage was reported up to this offset: it is not a gap as well."""
        if self._next_offset is None or next_offset > self._next_offset:
            self._next_offset = next_offset

    def finish(self) -> Iterator[Finding]:
        """What the epochs file says of offsets that the log does not have."""
        if self._epochs is None or self._next_offset is None or not self._epochs.entries:
            return
        last = self._epochs.entries[-1]
        if last.start_offset > self._next_offset:
            yield note(
                Kind.EPOCH,
                self._epochs_path,
                f"epoch {last.epoch} begins behind the end of the log ({self._next_offset})",
                offset=last.start_offset,
            )

    def _check_offsets(self, batches: BatchColumns, path: str) -> Iterator[Finding]:
        before = self._next_offset
        first = int(batches.base_offset[0]) if before is None else before
        expected = np.concatenate((np.array([first], np.int64), batches.last_offset[:-1] + 1))
        if self._contiguous:
            wrong = batches.base_offset != expected
        else:
            wrong = batches.base_offset < expected
        for at in np.flatnonzero(wrong).tolist():
            base_offset, wanted = int(batches.base_offset[at]), int(expected[at])
            if base_offset > wanted:
                reason = f"offsets {wanted} to {base_offset - 1} are missing before it"
            else:
                reason = f"it comes after offset {wanted - 1}: offsets go back"
            position = int(batches.position[at])
            yield damage(Kind.GAP, path, reason, position=position, offset=base_offset)

    def _check_epoch_order(self, batches: BatchColumns, path: str) -> Iterator[Finding]:
        epochs = batches.leader_epoch.astype(np.int64)
        highest = np.maximum.accumulate(np.concatenate((np.array([self._last_epoch]), epochs)))[:-1]
        regressed = (epochs < highest) & np.concatenate(
            (np.array([epochs[0] < highest[0]]), np.diff(epochs) != 0)
        )
        for at in np.flatnonzero(regressed).tolist():
            yield damage(
                Kind.EPOCH,
                path,
                f"leader epoch {epochs[at]} comes after {highest[at]}: it never falls",
                position=int(batches.position[at]),
                offset=int(batches.base_offset[at]),
            )

    def _check_epoch_cache(self, batches: BatchColumns, path: str) -> Iterator[Finding]:
        """One finding for each epoch about which the file is wrong."""
        cached = self._cached_epochs(batches)
        if (cached != batches.leader_epoch).any():
            self._load_epoch_cache()
            cached = self._cached_epochs(batches)
        for ordinal in np.flatnonzero(cached != batches.leader_epoch).tolist():
            epoch = int(batches.leader_epoch[ordinal])
            if epoch in self._reported or epoch < 0:
                continue
            self._reported.add(epoch)
            offset, position = int(batches.base_offset[ordinal]), int(batches.position[ordinal])
            yield damage(
                Kind.EPOCH,
                self._epochs_path,
                f"it says epoch {cached[ordinal]} where the batch at byte {position} of {path} "
                f"has epoch {epoch}",
                offset=offset,
            )

    def _load_epoch_cache(self) -> None:
        self._epochs = self._read_epochs()
        entries = self._epochs.entries if self._epochs else ()
        self._starts = np.array([entry.start_offset for entry in entries], np.int64)
        self._epoch_ids = np.array([entry.epoch for entry in entries], np.int64)

    def _cached_epochs(self, batches: BatchColumns) -> npt.NDArray[np.int64]:
        """The epoch of each batch by the file; the batch's own where the file does not say."""
        own = batches.leader_epoch.astype(np.int64)
        if not len(self._starts):
            return own
        at = np.searchsorted(self._starts, batches.base_offset, side="right") - 1
        return np.where(at >= 0, self._epoch_ids[at], own)
