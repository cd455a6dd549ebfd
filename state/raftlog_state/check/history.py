"""Check of offsets and leader epochs from batch to batch, and against the epoch cache.

Offsets of a metadata log are contiguous; those of an ordinary partition ascend, with gaps where
compaction removed records. ``leader-epoch-checkpoint`` applies from the start offset of its first
entry on (Kafka: ``LeaderEpochFileCache.truncateFromStart``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from raftlog.client import EpochCache
from raftlog.records.batch_columns import BatchColumns

from .findings import Finding, Kind, damage, note


class HistoryCheck:
    """Check of a log's offsets and epochs, fed with its batches in order.

    ``read_epochs`` returns the epoch cache, None if the file is missing or corrupt. It is called
    again before a mismatch is reported: a running node may have written to file and log meanwhile.
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
        """Offset after the last batch, None before the first batch."""
        return self._next_offset

    def add(self, batches: BatchColumns, path: str) -> Iterator[Finding]:
        """Check the next batches."""
        if not len(batches):
            return
        yield from self._check_offsets(batches, path)
        yield from self._check_epoch_order(batches, path)
        yield from self._check_epoch_cache(batches, path)
        self._next_offset = int(batches.last_offset[-1]) + 1
        self._last_epoch = max(self._last_epoch, int(batches.leader_epoch.max()))

    def skip(self, next_offset: int) -> None:
        """Skip damage up to this offset, so that it is not reported as a gap, too."""
        if self._next_offset is None or next_offset > self._next_offset:
            self._next_offset = next_offset

    def finish(self) -> Iterator[Finding]:
        """Report epochs that begin after the end of the log."""
        if self._epochs is None or self._next_offset is None or not self._epochs.entries:
            return
        last = self._epochs.entries[-1]
        if last.start_offset > self._next_offset:
            yield note(
                Kind.EPOCH,
                self._epochs_path,
                f"epoch {last.epoch} begins after the end of the log ({self._next_offset})",
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
                reason = f"offset gap: offsets {wanted} to {base_offset - 1} are missing"
            else:
                reason = f"offset regression: the previous offset is {wanted - 1}"
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
                f"leader epoch {epochs[at]} after leader epoch {highest[at]}: it must not decrease",
                position=int(batches.position[at]),
                offset=int(batches.base_offset[at]),
            )

    def _check_epoch_cache(self, batches: BatchColumns, path: str) -> Iterator[Finding]:
        """Report one finding for each epoch that the file contradicts."""
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
                f"epoch {cached[ordinal]} here, but the batch at byte {position} of {path} has "
                f"epoch {epoch}",
                offset=offset,
            )

    def _load_epoch_cache(self) -> None:
        self._epochs = self._read_epochs()
        entries = self._epochs.entries if self._epochs else ()
        self._starts = np.array([entry.start_offset for entry in entries], np.int64)
        self._epoch_ids = np.array([entry.epoch for entry in entries], np.int64)

    def _cached_epochs(self, batches: BatchColumns) -> npt.NDArray[np.int64]:
        """Return each batch's epoch in the file, or the batch's own before the first entry."""
        own = batches.leader_epoch.astype(np.int64)
        if not len(self._starts):
            return own
        at = np.searchsorted(self._starts, batches.base_offset, side="right") - 1
        return np.where(at >= 0, self._epoch_ids[at], own)
