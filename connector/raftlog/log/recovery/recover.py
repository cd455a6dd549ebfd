"""Recovery of a raftlog log after a clean or an unclean shutdown.

The durable offset is the offset below which everything is known to have been synced. For example,
with the recovery point at 300, and 400 published as synced before the crash:

    offsets   0 ............ 300 ............ 400 ............ 450
    files     segment 0      segment 300 (valid batches)       torn batch

    crash of the process   durable offset 400: the batches 400 to 449 were written but not
                           acknowledged, and are truncated with the torn batch
    crash of the machine   ``published`` is of another boot, durable offset 300: the valid
                           batches are kept and synced, the torn batch is truncated
    damage at offset 350   after a crash of the process, below the durable offset: the log is
                           opened read-only, nothing is written; after a crash of the machine,
                           above it: the log is truncated to 350

Invariants:

1. ``recover`` is idempotent, also after a crash in the middle of it.
2. Every valid, contiguous batch is kept, except after the synced end that a writer of this boot
   published. Truncated bytes are backed up first (Kafka truncates without a backup).
3. Nothing below the durable offset is deleted: if it is damaged, the log is opened read-only, and
   the report names the damage, the valid batches after it, and the remedy.
4. A directory without ``raftlog.properties``, such as Kafka's, is never written.
5. numpy is imported only where a segment is scanned.

Kafka: ``LogLoader``, ``LogSegment.recover``; for what can go wrong there: KAFKA-3919.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from raftlog.errors import CorruptBatchError, DiskFullError, LogNotFoundError, LogReadOnlyError
from raftlog.log.format.names import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, offset_name
from raftlog.log.writing.indexer import OFFSET_ENTRY, TIME_ENTRY
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.segment_lookup import header_at, iter_headers
from raftlog.storage.protocol import ReadableFile, WritableStorage

from .checkpoints import CheckpointFiles, open_clean, read_checkpoint_files
from .report import RecoveredLog, RecoveryReport, ScanEnd, SegmentMetadata

if TYPE_CHECKING:
    from .load_log import LoadedLog


# --- Rebuild offset and time indexes of sealed segments that recovery does not read ---------------
# Opening a log checks the last entry of each index, like Kafka's sanity check; ``raftlog repair``
# reads the whole segment. An index is rewritten only if the segment is valid to its end. A crash
# while it is written leaves an invalid index, which the next opening detects.
#
# Kafka: ``LogSegment.sanityCheck``, ``OffsetIndex.sanityCheck``, ``TimeIndex.sanityCheck``.


def rebuild_invalid_indexes(
    storage: WritableStorage,
    directory: str,
    segments: Sequence[SegmentMetadata],
    *,
    interval_bytes: int,
    log_start_offset: int,
) -> tuple[str, ...]:
    """Rebuild the indexes of sealed segments that fail the sanity check; return the files' paths.

    ``segments`` are all segments of the log; the last one is active and not checked.
    """
    rebuilt: list[str] = []
    for segment, following in pairwise(segments):
        if following.base_offset <= log_start_offset:
            continue  # below the log start
        if not _are_indexes_valid(storage, directory, segment, interval_bytes):
            with contextlib.suppress(DiskFullError):  # the next opening tries again
                rebuilt += rebuild_indexes(storage, directory, segment.base_offset, interval_bytes)
    return tuple(rebuilt)


def rebuild_indexes(
    storage: WritableStorage, directory: str, base_offset: int, interval_bytes: int
) -> tuple[str, ...]:
    """Read a whole segment and rewrite its indexes if they are wrong; return the files' paths.

    No writer may have the segment open.
    """
    from raftlog.log.recovery.recover_segment import (  # imports numpy
        IndexCheck,
        IndexRebuild,
        ScanPosition,
        ScanRules,
        SegmentEnd,
        recover_segment,
    )

    names = [offset_name(base_offset, suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
    paths = [storage.join(directory, name) for name in names]
    contents = [_content(storage, path) for path in paths]
    indexes = IndexRebuild(base_offset, interval_bytes=interval_bytes)
    check = IndexCheck(base_offset, *(content or b"" for content in contents))
    with storage.open_file(storage.join(directory, offset_name(base_offset, LOG_SUFFIX))) as log:
        scan = recover_segment(log, ScanPosition(position=0, next_offset=base_offset), ScanRules())
        while True:
            try:
                chunk = next(scan)
            except StopIteration as stop:
                end: SegmentEnd = stop.value
                break
            indexes.add_batches(chunk.batches)
            check.add_batches(chunk.batches)
    indexes.close()
    is_valid = None not in contents and check.is_valid_for(indexes)
    if end.end is not ScanEnd.END or is_valid:
        return ()
    rebuilt = [
        path
        for path, old, new in zip(
            paths, contents, (indexes.offset_index, indexes.time_index), strict=True
        )
        if old != new and _write(storage, path, new, exists=old is not None)
    ]
    storage.sync_directory(directory)
    return tuple(rebuilt)


def _content(storage: WritableStorage, path: str) -> bytes | None:
    try:
        with storage.open_file(path) as file:
            return file.read_at(0, file.byte_count())
    except LogNotFoundError:
        return None


def _write(storage: WritableStorage, path: str, data: bytes, *, exists: bool) -> bool:
    opened = storage.open_for_writing if exists else storage.create_file
    with opened(path) as file:
        file.truncate(len(data))
        file.write_at(0, data)
        file.sync()
    return True


def _are_indexes_valid(
    storage: WritableStorage, directory: str, segment: SegmentMetadata, interval_bytes: int
) -> bool:
    base_offset, end_offset = segment.base_offset, segment.end_offset
    paths = [
        storage.join(directory, offset_name(base_offset, suffix))
        for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)
    ]
    try:
        with storage.open_file(paths[0]) as log:
            entry = _last_entry(storage, paths[1], OFFSET_ENTRY.size)
            if entry:
                delta, position = OFFSET_ENTRY.unpack(entry)
                if not 0 < position < segment.byte_count:
                    return False
                header = header_at(log, position, segment.byte_count)
                if header.last_offset != base_offset + delta:
                    return False
            elif _has_entry_due(log, segment.byte_count, interval_bytes):
                return False
            entry = _last_entry(storage, paths[2], TIME_ENTRY.size)
            if entry:
                time_ms, delta = TIME_ENTRY.unpack(entry)
                return bool(time_ms >= 0 and 0 <= delta < end_offset - base_offset)
            has_time = segment.byte_count and header_at(log, 0, segment.byte_count)
            return not has_time or has_time.max_timestamp_ms < 0
    except (LogNotFoundError, CorruptBatchError, _PartialEntryError):
        return False


class _PartialEntryError(Exception):
    """An index whose size is not a multiple of the entry size."""


def _last_entry(storage: WritableStorage, path: str, entry_bytes: int) -> bytes:
    with storage.open_file(path) as index:
        byte_count = index.byte_count()
        if byte_count % entry_bytes:
            raise _PartialEntryError
        return index.read_at(max(0, byte_count - entry_bytes), entry_bytes)


def _has_entry_due(log: ReadableFile, byte_count: int, interval_bytes: int) -> bool:
    """Return whether any batch is due for an offset index entry."""
    return any(one.position > interval_bytes for one in iter_headers(log, 0, byte_count))


# --- Recovery -------------------------------------------------------------------------------------

__all__ = ["RecoveredLog", "RecoveryReport", "recover"]


def recover(storage: WritableStorage, directory: str, *, config: LogConfig) -> RecoveredLog:
    """Open the log in ``directory`` and repair what a crash left. The caller holds the log's lock.

    Raises ``LogNotFoundError`` and ``LogAccessError``; ``DiskFullError`` and ``DiskFailedError``
    during a repair: nothing is lost then, and the next opening repeats it.
    """
    checkpoints = read_checkpoint_files(storage, directory)
    recovered = open_clean(storage, directory, checkpoints) if checkpoints.is_raftlog else None
    if recovered is None:
        recovered = _recover_scanned(storage, directory, config, checkpoints)
    if recovered.report.read_only is None:
        recovered = _with_valid_indexes(storage, directory, config, recovered)
    return recovered


def _recover_scanned(
    storage: WritableStorage, directory: str, config: LogConfig, checkpoints: CheckpointFiles
) -> RecoveredLog:
    from raftlog.log.recovery.load_log import LogLoader  # imports numpy
    from raftlog.log.recovery.repair import RecoveryActions

    loaded = LogLoader(storage, directory, config, checkpoints).load()
    read_only = _read_only(directory, loaded, checkpoints)
    actions = RecoveryActions(storage, directory, checkpoints)
    if read_only is None:
        actions.apply(loaded)
    return RecoveredLog(
        segments=loaded.segments,
        log_start_offset=loaded.log_start_offset,
        end_offset=loaded.end_offset,
        epochs=loaded.epochs,
        producer_state=loaded.producer_state,
        recovery_point=loaded.end_offset if read_only is None else checkpoints.recovery_point,
        was_clean=False,
        report=RecoveryReport(
            was_clean=False,
            truncated=tuple(actions.truncated),
            rebuilt=tuple(actions.rebuilt),
            deleted_backups=actions.deleted_backups,
            anomalies=tuple(loaded.anomalies),
            read_only=read_only,
        ),
    )


def _with_valid_indexes(
    storage: WritableStorage, directory: str, config: LogConfig, recovered: RecoveredLog
) -> RecoveredLog:
    """Rebuild the invalid indexes of sealed segments."""
    rebuilt = rebuild_invalid_indexes(
        storage,
        directory,
        recovered.segments,
        interval_bytes=config.index_interval_bytes,
        log_start_offset=recovered.log_start_offset,
    )
    if not rebuilt:
        return recovered
    report = replace(recovered.report, rebuilt=(*recovered.report.rebuilt, *rebuilt))
    return replace(recovered, report=report)


def _read_only(
    directory: str, loaded: LoadedLog, checkpoints: CheckpointFiles
) -> LogReadOnlyError | None:
    """Return the error of every append if the log must not be written, or None."""
    if not checkpoints.is_raftlog:
        return LogReadOnlyError(
            path=directory,
            reason="it has no raftlog.properties: it is a Kafka log, which raftlog does not write",
            remedy="create a raftlog log in another directory",
        )
    if not loaded.is_damaged:
        return None
    if loaded.is_contradicted:
        assert loaded.stop is not None, "a contradiction ends the scan"
        return LogReadOnlyError(
            path=loaded.stop.path,
            offset=loaded.stop.found_base_offset,
            reason=f"{loaded.stop.reason}, and both segments were synced",
            remedy="run `raftlog check`, and move the segment that is not of this log elsewhere",
        )
    lost = f"offsets {loaded.end_offset} to {loaded.durable_offset - 1}, which were synced,"
    if loaded.stop is None:
        path, position, reason = directory, None, f"{lost} are missing"
    else:
        path, position = loaded.stop.path, loaded.stop.scan_position.position
        reason = f"{lost} are damaged or missing: {loaded.stop.reason}"
    return LogReadOnlyError(
        path=path,
        position=position,
        offset=loaded.end_offset,
        reason=reason,
        remedy="restore the file from a backup, or run `raftlog check` and then `raftlog repair "
        f"--cut-at {loaded.end_offset}`, which truncates the log there and keeps a backup",
    )
