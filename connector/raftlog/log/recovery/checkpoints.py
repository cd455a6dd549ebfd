"""Read the checkpoint and metadata files of a log's directory, before its segments.

Nothing is written, and no damaged file stops a recovery: it becomes an anomaly, its content is
unknown, and an unknown offset counts as 0. If the ``checksums`` file is damaged, the files that it
covers are read without verification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from raftlog.errors import (
    CorruptBatchError,
    CorruptFileError,
    LogNotFoundError,
    SegmentDeletedError,
)
from raftlog.limits import BATCH_BYTES_MAX, LOG_OVERHEAD_BYTES, SMALL_FILE_BYTES_MAX
from raftlog.log.format.directory import (
    CHECKSUMS_NAME,
    CLEAN_SHUTDOWN_NAME,
    EPOCH_CHECKPOINT_NAME,
    LOG_START_CHECKPOINT_NAME,
    PARTITION_METADATA_NAME,
    PRODUCER_SNAPSHOT_SUFFIX,
    PUBLISHED_NAME,
    RAFTLOG_PROPERTIES_NAME,
    RECOVERY_POINT_CHECKPOINT_NAME,
    SYNCED_NAME,
    CleanShutdown,
    Listing,
    Published,
    checkpoint_name,
    offset_name,
    parse_clean_shutdown,
    parse_partition_metadata,
    parse_published,
    parse_single_offset,
    read_listing,
    read_published,
)
from raftlog.log.format.epoch_cache import EpochCache, parse_epoch_checkpoint
from raftlog.log.segment import Segment, SegmentMetadata
from raftlog.log.writing.log_directory import read_checked, read_checksums
from raftlog.log.writing.producer_state import ProducerStateManager
from raftlog.log.writing.properties import parse_log_properties
from raftlog.records.batch import RecordBatch, read_batch
from raftlog.records.control import SnapshotHeader, decode_control
from raftlog.storage.protocol import Storage, WritableStorage

from .report import RecoveredLog, RecoveryReport, ScanStop

V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFiles:
    """Content of the small files of one log.

    ``log_start_offset`` and ``recovery_point`` are 0, and ``epochs`` is None, if unknown.
    ``damaged``: names of the files that must be rewritten. ``is_after_boot``: the log was written
    before this boot of the machine, and not since.
    """

    listing: Listing
    is_raftlog: bool
    log_start_offset: int
    recovery_point: int
    epochs: EpochCache | None
    published: Published | None
    is_after_boot: bool
    clean: CleanShutdown | None
    damaged: frozenset[str]
    anomalies: tuple[ScanStop, ...]

    @property
    def durable_offset(self) -> int:
        """The offset below which everything is known to have been synced (exclusive).

        A segment is created after the one before it was synced, so the last base offset counts; but
        not that of a segment that nothing was published in.
        """
        last = max(self.listing.segments, default=0)
        published_end = 0
        if self.published is not None:
            last = min(last, self.published.segment_base_offset)
            published_end = self.published.end_offset
        return max(
            self.recovery_point,
            self.log_start_offset,
            last,
            max((one.end_offset for one in self.listing.snapshots), default=0),
            published_end,
        )


class CheckpointReader:
    """Reads the small files of one directory and collects their damage."""

    def __init__(self, storage: Storage, directory: str, *, is_raftlog: bool) -> None:
        self.anomalies: list[ScanStop] = []
        self.damaged: set[str] = set()
        self._storage = storage
        self._directory = directory
        self._is_checked = True
        try:
            if read_checksums(storage, directory) is None and is_raftlog:
                path = storage.join(directory, CHECKSUMS_NAME)
                raise CorruptFileError(path=path, reason="it is missing")
        except CorruptFileError as error:
            self._is_checked = False
            self.add_damage(CHECKSUMS_NAME, error)

    def read(self, name: str, parse: Callable[[bytes, str], V]) -> V | None:
        """Return a file's parsed content; None if it is missing or damaged."""
        path = self._storage.join(self._directory, name)
        try:
            data = read_checked(self._storage, path) if self._is_checked else self._bytes(path)
            return None if data is None else parse(data, path)
        except CorruptFileError as error:
            self.add_damage(name, error)
            return None

    def add_damage(self, name: str, error: CorruptFileError) -> None:
        """Record that a file of the directory is damaged."""
        self.damaged.add(name)
        anomaly = ScanStop(kind=None, path=error.path, position=error.position, reason=error.reason)
        self.anomalies.append(anomaly)

    def _bytes(self, path: str) -> bytes | None:
        try:
            with self._storage.open_file(path) as file:
                return file.read_at(0, SMALL_FILE_BYTES_MAX)
        except (LogNotFoundError, SegmentDeletedError):
            return None


def read_checkpoint_files(storage: WritableStorage, directory: str) -> CheckpointFiles:
    """Read the small files of a directory.

    Raises ``LogNotFoundError`` and ``LogAccessError`` only.
    """
    names = storage.list_names(directory)
    listing = read_listing(names)
    is_raftlog = RAFTLOG_PROPERTIES_NAME in names
    reader = CheckpointReader(storage, directory, is_raftlog=is_raftlog)
    log_start = reader.read(LOG_START_CHECKPOINT_NAME, parse_single_offset)
    recovery_point = reader.read(RECOVERY_POINT_CHECKPOINT_NAME, parse_single_offset)
    epochs = reader.read(EPOCH_CHECKPOINT_NAME, parse_epoch_checkpoint)
    clean = reader.read(CLEAN_SHUTDOWN_NAME, lambda data, _: parse_clean_shutdown(data))
    reader.read(PARTITION_METADATA_NAME, parse_partition_metadata)
    reader.read(RAFTLOG_PROPERTIES_NAME, parse_log_properties)
    # `synced` is a replica's, `published` an embedded log's.
    names_published = [name for name in (SYNCED_NAME, PUBLISHED_NAME) if name in names]
    in_this_boot = [
        read_published(storage, directory, storage.boot_id(), name) for name in names_published
    ]
    published = next((one for one in in_this_boot if one is not None), None)
    last_published = [
        reader.read(name, lambda data, _: parse_published(data)) for name in names_published
    ]
    return CheckpointFiles(
        listing=listing,
        is_raftlog=is_raftlog,
        log_start_offset=log_start or 0,
        recovery_point=recovery_point or 0,
        epochs=epochs if epochs is not None and epochs.entries else None,
        published=published,
        is_after_boot=published is None and any(one is not None for one in last_published),
        clean=clean,
        damaged=frozenset(reader.damaged),
        anomalies=tuple(reader.anomalies),
    )


# --- Find the newest stored producer state, so that only the batches after it must be replayed ----
# A source is a producer snapshot or the header of a checkpoint. Each has a CRC, so one that parses
# is used; one that does not is an anomaly, and the next older one is tried. ``offset_max`` must be
# known to be of this history: a source above it may have been written for a tail that was truncated
# since.


def newest_producer_state(
    storage: Storage, directory: str, listing: Listing, offset_max: int
) -> tuple[ProducerStateManager | None, tuple[ScanStop, ...]]:
    """Return the newest valid producer state up to ``offset_max``, and the damaged sources."""
    anomalies: list[ScanStop] = []
    for offset, is_checkpoint, name in _sources(listing, offset_max):
        path = storage.join(directory, name)
        try:
            with storage.open_file(path) as file:
                if is_checkpoint:
                    producer_state = _of_checkpoint(file.read_at(0, BATCH_BYTES_MAX), path, offset)
                else:
                    data = file.read_at(0, file.byte_count())
                    producer_state = ProducerStateManager.decode_snapshot(data, path, offset)
        except CorruptFileError as error:
            anomalies.append(
                ScanStop(kind=None, path=path, position=error.position, reason=error.reason)
            )
            continue
        if producer_state is not None:
            return producer_state, tuple(anomalies)
    return None, tuple(anomalies)


def _sources(listing: Listing, offset_max: int) -> Iterator[tuple[int, bool, str]]:
    """Yield end offset, kind and name, newest first; a producer snapshot before a checkpoint."""
    found = [
        (offset, False, offset_name(offset, PRODUCER_SNAPSHOT_SUFFIX))
        for offset in listing.producer_snapshots
    ]
    found += [(one.end_offset, True, checkpoint_name(one)) for one in listing.snapshots]
    found.sort(key=lambda source: (-source[0], source[1]))
    return (source for source in found if source[0] <= offset_max)


def _of_checkpoint(data: bytes, path: str, offset: int) -> ProducerStateManager | None:
    """Return the producer state in a checkpoint's header; None if Kafka wrote the checkpoint.

    Raises ``CorruptFileError``.
    """
    try:
        batch = read_batch(data, path=path) if len(data) > LOG_OVERHEAD_BYTES else None
        if not isinstance(batch, RecordBatch) or not batch.is_control:
            raise CorruptFileError(path=path, reason="its first batch is incomplete or not control")
        first = next(batch.records(), None)
        header = None if first is None else decode_control(first.key, first.value)
    except CorruptBatchError as error:
        raise CorruptFileError(path=path, position=0, reason=error.reason) from None
    if not isinstance(header, SnapshotHeader):
        raise CorruptFileError(path=path, reason="its first record is not a SnapshotHeader")
    return ProducerStateManager.from_header_field(header.tagged_fields, path, offset)


# --- Open a log after a clean shutdown, verifying that it is unchanged since ----------------------
# The number of bytes read does not grow with the log: the small files, the last index entry of the
# last segment, and the batches after it, whose CRCs are checked. If anything differs from
# ``.kafka_cleanshutdown``, the result is None and the log is recovered. Nothing is written, and
# numpy is not imported.

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
            byte_count = Segment.of_file(storage, directory, base).byte_count
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
    """Return whether the last segment has its size, and its last batches are valid to the end.

    Those from the batch of the last index entry on; without a valid entry, all of the segment's.
    """
    try:
        segment = Segment.of_file(storage, directory, clean.segment_base_offset)
        if segment.byte_count != clean.byte_count:
            return False
        next_offset = segment.base_offset
        for count, batch in enumerate(segment.batches_after_index(epochs)):
            first_epoch, last_epoch = map(epochs.epoch_at, (batch.base_offset, batch.last_offset))
            if count == _CHAIN_MAX or not first_epoch == last_epoch == batch.leader_epoch:
                return False
            next_offset = batch.next_offset
    except (CorruptBatchError, LogNotFoundError):
        return False
    return next_offset == clean.end_offset
