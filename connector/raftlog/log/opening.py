"""Opening of a path as a log.

The kind of the records is detected by ``identity``, unless the caller declares it.
"""

from __future__ import annotations

from typing import Final

from raftlog.errors import NotALogError
from raftlog.limits import DECOMPRESSED_BYTES_MAX
from raftlog.storage.protocol import ReadableFile, Storage
from raftlog.types import SnapshotId

from .directory_log import DirectoryLog
from .files import LogFiles, read_batch_at
from .foreign import check_segment_format
from .identity import METADATA_PARTITION, identify, identify_checkpoint
from .names import (
    CHECKPOINT_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    parse_checkpoint_name,
    parse_offset_name,
    parse_partition_name,
    read_listing,
)
from .reads import LogKind, SourceKind

_NAMES_SHOWN: Final = 5


def open_log(
    storage: Storage,
    path: str,
    *,
    kind: LogKind | None = None,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> DirectoryLog:
    """Open a log's directory, a node's log directory, a segment or a checkpoint.

    ``kind`` is the kind of the records; None to detect it. ``decompressed_bytes_max`` limits the
    decompressed records of one batch, in bytes.

    Raises:
        LogNotFoundError: nothing is at ``path``.
        LogAccessError: a file cannot be read.
        NotALogError: ``path`` is not a log.
        UnknownRecordKindError: the kind of the records cannot be detected.
    """
    log = _open(storage, path, kind)
    log.files.decompressed_bytes_max = decompressed_bytes_max
    return log


def _open(storage: Storage, path: str, kind: LogKind | None) -> DirectoryLog:
    if storage.is_directory(path):
        return _open_directory(storage, path, kind)
    _, name = storage.split(path)
    bare = name.removesuffix(DELETED_SUFFIX)
    if bare.endswith(LOG_SUFFIX):
        return _open_segment(storage, path, bare, kind)
    if bare.endswith(CHECKPOINT_SUFFIX):
        return _open_checkpoint(storage, path, bare, kind)
    raise NotALogError(path=path, reason="it is neither a segment nor a checkpoint")


def _open_directory(storage: Storage, path: str, kind: LogKind | None) -> DirectoryLog:
    names = storage.list_names(path)
    listing = read_listing(names)
    if listing.segments or listing.snapshots:
        return _directory_log(storage, path, path, kind)
    if str(METADATA_PARTITION) in names:
        directory = storage.join(path, str(METADATA_PARTITION))
        listing = read_listing(storage.list_names(directory))
        if listing.segments or listing.snapshots:
            return _directory_log(storage, path, directory, kind)
        raise NotALogError(path=directory, reason="it contains neither a segment nor a checkpoint")
    partitions = [name for name in names if parse_partition_name(name) is not None]
    if partitions:
        shown = ", ".join(partitions[:_NAMES_SHOWN])
        raise NotALogError(
            path=path, reason=f"it has no __cluster_metadata-0, only other partitions: {shown}"
        )
    raise NotALogError(path=path, reason="it contains neither a segment nor a checkpoint")


def _directory_log(
    storage: Storage, path: str, directory: str, kind: LogKind | None
) -> DirectoryLog:
    files = LogFiles.of_directory(storage, directory)
    topic_partition, kind = identify(files, storage.split(directory)[1], kind)
    return DirectoryLog(
        files,
        path=path,
        topic_partition=topic_partition,
        kind=kind,
        source=SourceKind.DIRECTORY,
    )


def _open_segment(storage: Storage, path: str, name: str, kind: LogKind | None) -> DirectoryLog:
    with storage.open_file(path) as file:
        if file.byte_count() == 0:
            raise NotALogError(path=path, reason="the file is empty")
        base_offset = parse_offset_name(name, LOG_SUFFIX)
        first = read_batch_at(file, 0)
        if first is None:
            check_segment_format(file, base_offset)
    if base_offset is None:
        base_offset = 0 if first is None else first.base_offset
    files = LogFiles.of_segment(storage, path, base_offset)
    topic_partition, kind = identify(files, storage.split(files.directory)[1], kind)
    return DirectoryLog(
        files,
        path=path,
        topic_partition=topic_partition,
        kind=kind,
        source=SourceKind.SEGMENT,
    )


def _open_checkpoint(storage: Storage, path: str, name: str, kind: LogKind | None) -> DirectoryLog:
    with storage.open_file(path) as file:
        if file.byte_count() == 0:
            raise NotALogError(path=path, reason="the file is empty")
        snapshot_id = parse_checkpoint_name(name) or _unnamed_snapshot(file)
    files = LogFiles.of_checkpoint(storage, path, snapshot_id)
    topic_partition, kind = identify_checkpoint(files, storage.split(files.directory)[1], kind)
    return DirectoryLog(
        files,
        path=path,
        topic_partition=topic_partition,
        kind=kind,
        source=SourceKind.CHECKPOINT,
    )


def _unnamed_snapshot(file: ReadableFile) -> SnapshotId:
    """Return the id of a checkpoint whose name has none: epoch of its first batch, end offset 0.

    The epoch of a ``bootstrap.checkpoint`` is 0.
    """
    first = read_batch_at(file, 0)
    return SnapshotId(0 if first is None else first.leader_epoch, 0)
