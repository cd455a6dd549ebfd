"""Copy of a log's files to an empty directory, where another log continues it.

Segments and snapshots are copied byte for byte, so that their CRCs stay valid. The last segment is
copied up to its last valid batch. Indexes are not copied, because the new log's writer rebuilds
them. Each file is synced; its name is durable when the caller syncs the directory.
"""

from __future__ import annotations

from typing import Final

from raftlog.limits import MIB
from raftlog.log.format.directory import (
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    checkpoint_name,
    offset_name,
)
from raftlog.log.reading.directory_log import DirectoryLog
from raftlog.records.batch_columns import Column
from raftlog.storage.protocol import WritableStorage

_CHUNK_BYTES: Final = 1 * MIB


def check_log(log: DirectoryLog, bases: tuple[int, ...]) -> None:
    """Read the segments ``bases`` and all snapshots of a log; raise the first damage found."""
    if bases:
        for _ in log.scan(bases[0], log.log_end_offset, columns=Column.NONE):
            pass
    for snapshot_id in log.snapshots:
        for _ in log.read_snapshot(snapshot_id).scan(columns=Column.NONE):
            pass


def copy_log(
    log: DirectoryLog,
    bases: tuple[int, ...],
    storage: WritableStorage,
    directory: str,
    *,
    end_offset: int,
    last_batch: bytes = b"",
) -> None:
    """Copy the segments ``bases``, all snapshots, and the producer snapshots up to ``end_offset``.

    ``last_batch`` is appended after the last segment, or is the first batch if there are none.
    """
    files = log.files
    last, tail = (bases or (end_offset,))[-1], log.tail if bases else None
    valid_bytes = 0 if tail is None else tail.position
    for base_offset in (*bases[:-1], last):
        is_last = base_offset == last
        _copy_file(
            log,
            files.segment_path(base_offset),
            storage,
            storage.join(directory, offset_name(base_offset, LOG_SUFFIX)),
            byte_count=valid_bytes if is_last else None,
            more=last_batch if is_last else b"",
        )
    for snapshot_id in files.listing.snapshots:
        target = storage.join(directory, checkpoint_name(snapshot_id))
        _copy_file(log, files.checkpoint_path(snapshot_id), storage, target)
        storage.set_read_only(target, owner_only=True)
    for offset in files.listing.producer_snapshots:
        if offset <= end_offset:
            name = offset_name(offset, PRODUCER_SNAPSHOT_SUFFIX)
            source = files.storage.join(files.directory, name)
            _copy_file(log, source, storage, storage.join(directory, name))


def _copy_file(
    log: DirectoryLog,
    source: str,
    storage: WritableStorage,
    target: str,
    *,
    byte_count: int | None = None,
    more: bytes = b"",
) -> None:
    """Copy the first ``byte_count`` bytes of a file (default: all), append ``more``, and sync."""
    with storage.create_file(target) as copy:
        position = 0
        if byte_count != 0:
            with log.files.open(source) as file:
                end = file.byte_count() if byte_count is None else byte_count
                while chunk := file.read_at(position, min(_CHUNK_BYTES, end - position)):
                    copy.write_at(position, chunk)
                    position += len(chunk)
        if more:
            copy.write_at(position, more)
        copy.sync()
