"""Open a log after a clean shutdown, verifying that it is unchanged since.

The number of bytes read does not grow with the log: the small files, the last index entry of the
last segment, and the batches after it, whose CRCs are checked. If anything differs from
``.kafka_cleanshutdown``, the result is None and the log is recovered. Nothing is written, and numpy
is not imported.
"""

from __future__ import annotations

from typing import Final

from raftlog.errors import CorruptBatchError, LogNotFoundError
from raftlog.log.epoch_cache import EpochCache
from raftlog.log.names import INDEX_SUFFIX, LOG_SUFFIX, offset_name
from raftlog.records.batch import RecordBatch, read_batch
from raftlog.storage.protocol import ReadableFile, Storage

from .batch_headers import header_at, iter_headers
from .checkpoint_files import CheckpointFiles
from .clean_shutdown import CleanShutdown
from .indexer import OFFSET_ENTRY
from .producer_state_manager import ProducerStateManager
from .producer_state_source import newest_producer_state
from .recovered import RecoveredLog, RecoveryReport, SegmentMetadata

_CHAIN_MAX: Final = 65_536
"""Batches after the last index entry; with more of them the index is taken for invalid."""


def open_clean(
    storage: Storage, directory: str, checkpoints: CheckpointFiles
) -> RecoveredLog | None:
    """Return the log as its last writer closed it; None if it was not closed or has changed."""
    clean, epochs, bases = checkpoints.clean, checkpoints.epochs, checkpoints.listing.segments
    if clean is None or epochs is None or checkpoints.damaged or not bases:
        return None
    if bases[-1] != clean.segment_base_offset or checkpoints.log_start_offset > clean.end_offset:
        return None
    if bases[0] < clean.end_offset and epochs != epochs.without_from(clean.end_offset):
        return None  # an epoch was begun since, without a record
    if not _ends_where_closed(storage, directory, clean, epochs):
        return None
    producer_state, _ = newest_producer_state(
        storage, directory, checkpoints.listing, clean.end_offset
    )
    if producer_state is None or producer_state.end_offset != clean.end_offset:
        return None
    return _load_if_unchanged(storage, directory, checkpoints, clean, producer_state, epochs)


def _load_if_unchanged(
    storage: Storage,
    directory: str,
    checkpoints: CheckpointFiles,
    clean: CleanShutdown,
    producer_state: ProducerStateManager,
    epochs: EpochCache,
) -> RecoveredLog | None:
    bases = checkpoints.listing.segments
    segments = []
    for base, end in zip(bases, (*bases[1:], clean.end_offset), strict=True):
        try:
            with storage.open_file(storage.join(directory, offset_name(base, LOG_SUFFIX))) as file:
                byte_count = file.byte_count()
        except LogNotFoundError:  # listed as a .swap file, which raftlog does not write
            return None
        segments.append(SegmentMetadata(base_offset=base, end_offset=end, byte_count=byte_count))
    return RecoveredLog(
        segments=tuple(segments),
        log_start_offset=max(checkpoints.log_start_offset, bases[0]),
        end_offset=clean.end_offset,
        epochs=epochs,
        producer_state=producer_state,
        recovery_point=clean.end_offset,
        was_clean=True,
        report=RecoveryReport(was_clean=True),
    )


def _ends_where_closed(
    storage: Storage, directory: str, clean: CleanShutdown, epochs: EpochCache
) -> bool:
    base = clean.segment_base_offset
    try:
        with storage.open_file(storage.join(directory, offset_name(base, LOG_SUFFIX))) as file:
            if file.byte_count() != clean.byte_count:
                return False
            if not clean.byte_count:
                return base == clean.end_offset
            position = _last_indexed(storage, directory, base, file)
            return _is_chain_valid(file, position, clean, epochs)
    except (CorruptBatchError, LogNotFoundError):
        return False


def _last_indexed(storage: Storage, directory: str, base: int, file: ReadableFile) -> int:
    """Return the position of the batch of the last index entry, if it is there; else 0."""
    try:
        with storage.open_file(storage.join(directory, offset_name(base, INDEX_SUFFIX))) as index:
            size = index.byte_count()
            entry = index.read_at(size - OFFSET_ENTRY.size, OFFSET_ENTRY.size) if size else b""
    except LogNotFoundError:
        return 0
    if len(entry) < OFFSET_ENTRY.size or size % OFFSET_ENTRY.size:
        return 0
    delta, position = OFFSET_ENTRY.unpack(entry)
    if not 0 < position < file.byte_count():
        return 0
    header = header_at(file, position, file.byte_count())
    return int(position) if header.last_offset == base + delta else 0


def _is_chain_valid(
    file: ReadableFile, position: int, clean: CleanShutdown, epochs: EpochCache
) -> bool:
    """Return whether contiguous batches with the right epochs fill ``position`` to the end."""
    next_offset = clean.segment_base_offset if position == 0 else None
    for count, header in enumerate(iter_headers(file, position, clean.byte_count)):
        data = file.read_at(header.position, header.byte_count)
        batch = read_batch(data, path=file.path, file_position=header.position)
        if not isinstance(batch, RecordBatch) or count == _CHAIN_MAX:
            return False
        if next_offset is not None and batch.base_offset != next_offset:
            return False
        is_epoch = epochs.epoch_at(batch.base_offset) == batch.leader_epoch
        if not is_epoch or epochs.epoch_at(batch.last_offset) != batch.leader_epoch:
            return False
        next_offset = batch.next_offset
    return next_offset == clean.end_offset
