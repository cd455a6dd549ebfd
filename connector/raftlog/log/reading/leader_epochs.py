"""Leader epochs of a log's batches, found with few reads.

``leader-epoch-checkpoint`` may be missing, older than the log, or truncated at a log start offset
below which segments are still on disk, so the batches are read. Epochs never decrease from batch to
batch: if two batches have the same epoch, all batches between them have it. Hence a binary search
over the offset index, with a scan between two entries:

  epoch     3     3     3     4     4     7
  batches   |=====|=====|==*==|=====|==*==|      * first batch of another epoch
  entries   ^     ^     ^     ^     ^
"""

from __future__ import annotations

import numpy as np

from raftlog.limits import BATCH_HEADER_BYTES
from raftlog.log.format.epoch_cache import EpochCache
from raftlog.log.format.index_entries import OffsetIndex
from raftlog.records.batch_columns import BatchColumns, Bools
from raftlog.records.header import BATCH_HEADER, BATCH_MAGIC
from raftlog.storage.protocol import ReadableFile

from .chunks import HeaderDecoder, read_chunks
from .files import LogFiles


def epochs_below(files: LogFiles, end_offset: int, end_epoch: int | None) -> EpochCache:
    """Return the epochs of all batches on disk below ``end_offset``.

    ``end_epoch`` is the epoch of the batch at ``end_offset``, if any. A segment with damage at a
    position that is read adds no entry.
    """
    segments = [base for base in files.listing.segments if base < end_offset]
    found: list[tuple[int, int]] = []
    for ordinal, base_offset in enumerate(segments):
        following = segments[ordinal + 1] if ordinal + 1 < len(segments) else None
        with files.open(files.segment_path(base_offset)) as file:
            first = _header_at(file, 0)
            if first is None:
                continue
            found.append(first)
            last_epoch = end_epoch if following is None else _first_epoch(files, following)
            if last_epoch == first[0]:
                continue
            found += _changes(files, file, base_offset, first[0], end_offset)
    return EpochCache.of(found)


def epoch_mismatches(batches: BatchColumns, epochs: EpochCache) -> tuple[Bools, Bools]:
    """Return which batches have another epoch than ``epochs``, and for which batches that is known.

    A batch's epoch is outside its CRC; ``epochs`` is a trusted checkpoint.
    """
    starts = np.array([entry.start_offset for entry in epochs.entries], np.int64)
    numbers = np.array([entry.epoch for entry in epochs.entries], np.int64)
    if not len(starts):
        none = np.zeros(len(batches), np.bool_)
        return none, none
    first = np.searchsorted(starts, batches.base_offset, side="right") - 1
    last = np.searchsorted(starts, batches.last_offset, side="right") - 1
    known: Bools = first >= 0
    wrong: Bools = known & ((numbers[first] != batches.leader_epoch) | (first != last))
    return wrong, known


def _first_epoch(files: LogFiles, base_offset: int) -> int | None:
    with files.open(files.segment_path(base_offset)) as file:
        head = _header_at(file, 0)
    return None if head is None else head[0]


def _header_at(file: ReadableFile, position: int) -> tuple[int, int] | None:
    """Return epoch and base offset by the header at ``position``."""
    head = file.read_at(position, BATCH_HEADER_BYTES)
    if len(head) < BATCH_HEADER_BYTES:
        return None
    base_offset, _, epoch, magic, *_ = BATCH_HEADER.unpack(head)
    return (epoch, base_offset) if magic == BATCH_MAGIC else None


def _changes(
    files: LogFiles, file: ReadableFile, base_offset: int, epoch: int, end_offset: int
) -> list[tuple[int, int]]:
    """Return the epochs that start inside a segment, by binary search in its offset index."""
    index = files.offset_index(base_offset)
    found: list[tuple[int, int]] = []
    position = 0
    while True:
        position = _last_of_epoch(files, file, index, position, epoch)
        change = _next_change(file, position, epoch, end_offset)
        if change is None:
            return found
        epoch, offset, position = change
        found.append((epoch, offset))


def _last_of_epoch(
    files: LogFiles, file: ReadableFile, index: OffsetIndex, position: int, epoch: int
) -> int:
    """Return the position of the last batch with this epoch that a valid index entry has."""
    low, high = int(np.searchsorted(index.positions, position, side="right")), len(index)
    while low < high:
        middle = (low + high) // 2
        at = int(index.positions[middle])
        head = _header_at(file, at) if files.is_entry_valid(file, index, middle) else None
        if head is not None and head[0] == epoch:
            position, low = at, middle + 1
        else:
            high = middle
    return position


def _next_change(
    file: ReadableFile, position: int, epoch: int, end_offset: int
) -> tuple[int, int, int] | None:
    """Return epoch, base offset and position of the next batch with another epoch."""
    for _, chunk in read_chunks(
        file, position, HeaderDecoder(), start_offset=None, end_offset=end_offset
    ):
        other = np.flatnonzero(chunk.batches.leader_epoch != epoch)
        if len(other):
            at = other[0]
            return (
                int(chunk.batches.leader_epoch[at]),
                int(chunk.batches.base_offset[at]),
                int(chunk.batches.position[at]),
            )
    return None
