"""Recovery of a raftlog log after a clean or an unclean shutdown.

The durable offset is the offset below which everything is known to have been synced. For example,
with the recovery point at 300, and 400 published as synced before the crash:

    offsets   0 ............ 300 ............ 400 ............ 450
    files     segment 0      segment 300 (valid batches)       torn batch

    crash of the process   durable offset 400: the batches 400 to 449 were written but not
                           acknowledged, and are truncated with the torn batch
    crash of the machine   ``published`` is of another boot, so the durable offset is 300: the
                           valid batches are kept and synced, the torn batch is truncated
    damage at offset 350   after a crash of the process it is below the durable offset: the log is
                           opened read-only and nothing is written; after a crash of the machine it
                           is above it: the log is truncated to 350

Invariants:

1. ``recover`` is idempotent, even after a crash in the middle of it.
2. Every valid, contiguous batch is kept, except batches after the synced end that a writer of this
   boot published. Truncated bytes are backed up first (Kafka truncates without a backup).
3. Nothing below the durable offset is deleted. If it is damaged, the log is opened read-only, and
   the report names the damage, the valid batches after it, and the remedy.
4. A directory without ``raftlog.properties``, such as Kafka's, is never written.
5. numpy is imported only where a segment is scanned.

Kafka: ``LogLoader``, ``LogSegment.recover``. KAFKA-3919 shows what can go wrong there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Final, TypeVar

from raftlog.errors import (
    CorruptBatchError,
    CorruptFileError,
    DiskFullError,
    LogNotFoundError,
    LogReadOnlyError,
)
from raftlog.log.format.directory import (
    CHECKSUMS_NAME,
    CLEAN_SHUTDOWN_NAME,
    EPOCH_CHECKPOINT_NAME,
    INDEX_SUFFIX,
    INDEX_SUFFIXES,
    LOG_START_CHECKPOINT_NAME,
    LOG_SUFFIX,
    PARTITION_METADATA_NAME,
    PRODUCER_SNAPSHOT_SUFFIX,
    PUBLISHED_NAME,
    RAFTLOG_PROPERTIES_NAME,
    RECOVERY_POINT_CHECKPOINT_NAME,
    SWAP_SUFFIX,
    SYNCED_NAME,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    CleanShutdown,
    Listing,
    Published,
    checkpoint_name,
    offset_name,
    parse_clean_shutdown,
    parse_epoch_checkpoint,
    parse_partition_metadata,
    parse_published,
    parse_single_offset,
    read_listing,
    read_published,
    read_small_file,
)
from raftlog.log.format.epoch_cache import EpochCache
from raftlog.log.segment import (
    AbortedTransaction,
    Segment,
    SegmentMetadata,
    encode_aborted,
    parse_txn_index,
    read_batches,
    read_snapshot_head,
)
from raftlog.log.writing.atomic_files import (
    DAMAGED_SUFFIX,
    next_backup_ordinal,
    read_checked,
    read_checksums,
    replace_file,
)
from raftlog.log.writing.producer_state import ProducerStateManager
from raftlog.log.writing.properties import LogConfig, parse_log_properties
from raftlog.storage.protocol import Storage, WritableStorage

V = TypeVar("V")

# --- Results --------------------------------------------------------------------------------------
# The report names all changes and all damage. A file that it does not name is unchanged.


class ScanEnd(StrEnum):
    """Why the valid batches of a segment end."""

    END = "end of file"
    LIMIT = "end offset reached"
    """The next batch begins at or after the requested end offset."""
    TORN = "torn batch"
    """The file ends inside a batch."""
    ZEROS = "zeros"
    """Only zeros follow: the file was extended or preallocated, but not written."""
    DAMAGE = "damage"
    OFFSET_REGRESSION = "offset regression"
    """The next batch ends below the end of the one before it, so its offsets occur twice."""
    OVERLAP = "overlap"
    """The next batch begins below the end of the one before it and ends above it."""
    GAP = "gap"
    EPOCH_REGRESSION = "epoch regression"
    """The next batch has an older epoch than the one before it."""
    EPOCH_MISMATCH = "epoch mismatch"
    """The next batch's epoch is not the one that ``leader-epoch-checkpoint`` has for its offset, or
    is a new one that does not begin with a leader's control batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedTail:
    """Bytes that were truncated from a segment, or a whole segment that was deleted.

    ``first_offset`` is the first offset that the log no longer has. ``saved_as`` is the backup's
    path, or None if the bytes were all zeros or nothing was written.
    """

    path: str
    position: int
    byte_count: int
    first_offset: int
    reason: str
    saved_as: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanStop:
    """Place where the valid batches of a log stop, and why; or damage of another file.

    - ``kind`` is None for a file that is not a segment.
    - ``next_offset`` is the base offset that a batch at this place must have, and ``epoch`` the
      epoch of the batch before it. ``byte_count`` is the size of the rest of the file.
    - ``found_*`` describe the batch that is there, if it is whole and its CRC matches. Otherwise
      ``reason`` is the damage.
    - ``resumes_*`` is the next valid batch after the damage, if it was searched for.
    """

    kind: ScanEnd | None
    path: str
    position: int | None
    reason: str
    byte_count: int = 0
    next_offset: int | None = None
    epoch: int | None = None
    found_base_offset: int | None = None
    found_last_offset: int | None = None
    found_epoch: int | None = None
    resumes_position: int | None = None
    resumes_offset: int | None = None

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong: the file ends after a whole batch, or the limit was reached."""
        return self.kind in (ScanEnd.END, ScanEnd.LIMIT)

    @property
    def description(self) -> str:
        """The place and the reason as text for an operator."""
        at = "" if self.position is None else f" at byte {self.position}"
        text = f"{self.path}{at}: {self.reason}"
        if self.resumes_position is not None:
            text += (
                f"; the next valid batch has offset {self.resumes_offset}, at byte "
                f"{self.resumes_position}"
            )
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """What recovery did, for an operator.

    If the log must not be written, because of damage below the durable offset or because it is not
    a raftlog log, ``read_only`` is the error that every append raises. Nothing was changed then.
    ``deleted_backups``: older backups that were deleted to make room for new ones.
    """

    was_clean: bool
    truncated: tuple[TruncatedTail, ...] = ()
    rebuilt: tuple[str, ...] = ()
    deleted_backups: tuple[str, ...] = ()
    anomalies: tuple[ScanStop, ...] = ()
    read_only: LogReadOnlyError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredLog:
    """A recovered log: exactly what is on disk, and synced.

    If ``report.read_only`` is set, nothing was written, and the log ends before the damage.
    ``recovery_point`` is that of the checkpoint on disk.
    """

    segments: tuple[SegmentMetadata, ...]
    log_start_offset: int
    end_offset: int
    epochs: EpochCache
    producer_state: ProducerStateManager
    recovery_point: int
    report: RecoveryReport


# --- Checkpoint and metadata files, read before the segments --------------------------------------
# Nothing is written, and no damaged file stops a recovery. It is reported as an anomaly and its
# content is unknown; an unknown offset counts as 0. If the ``checksums`` file is damaged, the files
# that it covers are read without verification.


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFiles:
    """Content of the small files of one log.

    If unknown, ``log_start_offset`` and ``recovery_point`` are 0 and ``epochs`` is None.
    ``damaged``: names of the files that must be rewritten. ``is_after_boot``: the log was last
    written before the current boot of the machine. ``topic_id`` is from ``raftlog.properties``.
    """

    listing: Listing
    is_raftlog: bool
    log_start_offset: int
    recovery_point: int
    epochs: EpochCache | None
    published: Published | None
    is_after_boot: bool
    clean: CleanShutdown | None
    topic_id: str | None
    damaged: frozenset[str]
    anomalies: tuple[ScanStop, ...]

    @property
    def durable_offset(self) -> int:
        """The offset below which everything is known to have been synced (exclusive).

        A segment is created after the one before it was synced, so the last base offset counts,
        unless nothing was published in that segment.
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


class _CheckpointReader:
    """Reads the small files of one directory and collects their damage."""

    def __init__(self, storage: Storage, directory: str, *, is_raftlog: bool) -> None:
        self.anomalies: list[ScanStop] = []
        self.damaged: set[str] = set()
        self._storage = storage
        self._directory = directory
        self._read_bytes = read_checked
        try:
            if read_checksums(storage, directory) is None and is_raftlog:
                path = storage.join(directory, CHECKSUMS_NAME)
                raise CorruptFileError(path=path, reason="it is missing")
        except CorruptFileError as error:
            self._read_bytes = read_small_file
            self._add_damage(CHECKSUMS_NAME, error)

    def read(self, name: str, parse: Callable[[bytes, str], V]) -> V | None:
        """Return a file's parsed content; None if it is missing or damaged."""
        path = self._storage.join(self._directory, name)
        try:
            data = self._read_bytes(self._storage, path)
            return None if data is None else parse(data, path)
        except CorruptFileError as error:
            self._add_damage(name, error)
            return None

    def _add_damage(self, name: str, error: CorruptFileError) -> None:
        self.damaged.add(name)
        anomaly = ScanStop(kind=None, path=error.path, position=error.position, reason=error.reason)
        self.anomalies.append(anomaly)


def read_checkpoint_files(storage: WritableStorage, directory: str) -> CheckpointFiles:
    """Read the small files of a directory.

    Raises only ``LogNotFoundError`` and ``LogAccessError``.
    """
    names = storage.list_names(directory)
    listing = read_listing(names)
    is_raftlog = RAFTLOG_PROPERTIES_NAME in names
    reader = _CheckpointReader(storage, directory, is_raftlog=is_raftlog)
    log_start = reader.read(LOG_START_CHECKPOINT_NAME, parse_single_offset)
    recovery_point = reader.read(RECOVERY_POINT_CHECKPOINT_NAME, parse_single_offset)
    epochs = reader.read(EPOCH_CHECKPOINT_NAME, parse_epoch_checkpoint)
    clean = reader.read(CLEAN_SHUTDOWN_NAME, lambda data, _: parse_clean_shutdown(data))
    reader.read(PARTITION_METADATA_NAME, parse_partition_metadata)
    properties = reader.read(RAFTLOG_PROPERTIES_NAME, parse_log_properties)
    # A replica writes `synced`, an embedded log `published`.
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
        topic_id=None if properties is None else properties.topic_id,
        damaged=frozenset(reader.damaged),
        anomalies=tuple(reader.anomalies),
    )


# --- Find the newest stored producer state, so that only the batches after it must be replayed ----
# A source is a producer snapshot or the header of a checkpoint. Each has a CRC, so the newest one
# that parses is used; those that do not parse are reported as anomalies. ``offset_max`` must be
# known to belong to this history, because a source above it may have been written for a tail that
# was truncated since.


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
                    header, _ = read_snapshot_head(file)
                    producer_state = ProducerStateManager.from_header_field(
                        header.tagged_fields, path, offset
                    )
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


# --- Recovery -------------------------------------------------------------------------------------


def recover(storage: WritableStorage, directory: str, *, config: LogConfig) -> RecoveredLog:
    """Open the log in ``directory`` and recover it after a crash. The caller holds the log's lock.

    Raises ``LogNotFoundError`` and ``LogAccessError``. Raises ``DiskFullError`` and
    ``DiskFailedError`` during a recovery; nothing is lost then, and the next opening repeats it.
    """
    complete_swaps(storage, directory)
    checkpoints = read_checkpoint_files(storage, directory)
    recovered = _open_clean(storage, directory, checkpoints) if checkpoints.is_raftlog else None
    if recovered is None:
        from raftlog.log.recovery.load_log import LogLoader  # imports numpy

        recovered = LogLoader(storage, directory, config, checkpoints).load()
    if recovered.report.read_only is None:
        recovered = _with_valid_indexes(storage, directory, config, recovered)
    return recovered


def complete_swap(
    storage: WritableStorage, directory: str, base_offset: int, replaced: Sequence[int]
) -> None:
    """Delete the segments that a ``.swap`` file replaces, and rename it over the first one.

    ``replaced``: the base offsets of the other ones, ascending. Their aborted transactions, whose
    markers the compaction has retained, are added to the first one's ``.txnindex`` (Kafka:
    ``CleanedTransactionMetadata``). Durable on return. Raises the storage's errors.
    """
    _join_txn_indexes(storage, directory, base_offset, replaced)
    for base in replaced:
        for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
            with contextlib.suppress(LogNotFoundError):
                storage.unlink(storage.join(directory, offset_name(base, suffix)))
    storage.sync_directory(directory)
    path = storage.join(directory, offset_name(base_offset, LOG_SUFFIX))
    storage.rename(path + SWAP_SUFFIX, path)
    storage.sync_directory(directory)


def _join_txn_indexes(
    storage: WritableStorage, directory: str, base_offset: int, others: Sequence[int]
) -> None:
    """Add the entries of other segments to a segment's ``.txnindex``. Skip damaged files."""
    aborted: dict[int, AbortedTransaction] = {}
    counts = []
    for base in (base_offset, *others):
        path = storage.join(directory, offset_name(base, TXN_INDEX_SUFFIX))
        with contextlib.suppress(LogNotFoundError, CorruptFileError):
            with storage.open_file(path) as file:
                found = parse_txn_index(file.read_at(0, file.byte_count()), path)
            aborted |= {one.last_offset: one for one in found}
        counts.append(len(aborted))
    if counts[-1] > counts[0]:
        path = storage.join(directory, offset_name(base_offset, TXN_INDEX_SUFFIX))
        replace_file(storage, path, b"".join(map(encode_aborted, aborted.values())))


def complete_swaps(storage: WritableStorage, directory: str) -> None:
    """Complete replacements of segments by a compacted one that a crash has interrupted.

    A damaged ``.swap`` file replaces nothing and is renamed. A Kafka log is left unchanged.
    """
    names = storage.list_names(directory)
    listing = read_listing(names)
    if RAFTLOG_PROPERTIES_NAME not in names or not listing.swapped:
        return
    storage.sync_directory(directory)  # a killed writer may not have synced the name
    for base_offset in sorted(listing.swapped):
        path = storage.join(directory, offset_name(base_offset, LOG_SUFFIX)) + SWAP_SUFFIX
        end_offset = base_offset
        try:
            with storage.open_file(path) as file:
                for batch in read_batches(file, 0, file.byte_count(), next_offset=base_offset):
                    end_offset = batch.next_offset
        except CorruptBatchError:
            ordinal = next_backup_ordinal(names)
            storage.rename(path, f"{path}{DAMAGED_SUFFIX}-{ordinal}")
            storage.sync_directory(directory)
            continue
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            with contextlib.suppress(LogNotFoundError):
                storage.unlink(storage.join(directory, offset_name(base_offset, suffix)))
        replaced = [one for one in listing.segments if base_offset < one < end_offset]
        complete_swap(storage, directory, base_offset, replaced)


def _with_valid_indexes(
    storage: WritableStorage, directory: str, config: LogConfig, recovered: RecoveredLog
) -> RecoveredLog:
    """Rebuild the indexes of sealed segments that fail the sanity check.

    The last entry of each index is checked, like Kafka's sanity check; ``raftlog repair`` reads the
    whole segment. A crash during a rebuild leaves an invalid index, which the next opening detects.
    """
    rebuilt: list[str] = []
    for one, following in pairwise(recovered.segments):
        if following.base_offset <= recovered.log_start_offset:
            continue  # below the log start
        segment = Segment(storage, directory, one.base_offset, one.byte_count)
        interval_bytes = config.index_interval_bytes
        if not segment.has_valid_indexes(one.end_offset, interval_bytes=interval_bytes):
            from raftlog.log.recovery.recover_segment import rebuild_indexes  # imports numpy

            with contextlib.suppress(DiskFullError):  # the next opening tries again
                rebuilt += rebuild_indexes(storage, directory, one.base_offset, interval_bytes)
    if not rebuilt:
        return recovered
    report = replace(recovered.report, rebuilt=(*recovered.report.rebuilt, *rebuilt))
    return replace(recovered, report=report)


# --- Open a log after a clean shutdown, verifying that it is unchanged since ----------------------
# The number of bytes read does not grow with the log: the small files, the last index entry of the
# last segment, and the batches after it, whose CRCs are checked. If anything differs from
# ``.kafka_cleanshutdown``, the result is None, and the log must be recovered. Nothing is written,
# and numpy is not imported.

_CHAIN_MAX: Final = 65_536
"""Maximum number of batches after the last index entry; with more, the index counts as invalid."""


def _open_clean(
    storage: Storage, directory: str, checkpoints: CheckpointFiles
) -> RecoveredLog | None:
    """Return the log as its last writer closed it; None if not closed, or changed since."""
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
    segments = []
    for base, end in zip(bases, (*bases[1:], clean.end_offset), strict=True):
        try:
            byte_count = Segment.of_file(storage, directory, base).byte_count
        except LogNotFoundError:  # listed as a .swap file of a Kafka log
            return None
        segments.append(SegmentMetadata(base_offset=base, end_offset=end, byte_count=byte_count))
    return RecoveredLog(
        segments=tuple(segments),
        log_start_offset=max(checkpoints.log_start_offset, bases[0]),
        end_offset=clean.end_offset,
        epochs=epochs,
        producer_state=producer_state,
        recovery_point=checkpoints.recovery_point,
        report=RecoveryReport(was_clean=True),
    )


def _ends_where_closed(
    storage: Storage, directory: str, clean: CleanShutdown, epochs: EpochCache
) -> bool:
    """Return whether the last segment has the recorded size, and valid batches up to its end.

    The batches from the last valid index entry on are checked; without one, all of the segment's.
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
