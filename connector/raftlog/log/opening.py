"""Find out what a path is, and open it.

Rules of this file:

1. A metadata log is known by the name of its directory, by its topic id, by the quorum state or a
   checkpoint beside it; a lone segment, if nothing beside it tells, by its first batch. An
   embedded log says itself what its values are.
2. Whatever is no log is ``NotALogError`` with a hint at what to give instead.
"""

from __future__ import annotations

from typing import Final

from raftlog.errors import CorruptBatchError, CorruptFileError, NotALogError
from raftlog.records.control import LeaderChange, decode_control
from raftlog.storage.protocol import ReadableFile, Storage
from raftlog.types import (
    CLUSTER_METADATA_TOPIC,
    CLUSTER_METADATA_TOPIC_ID,
    SnapshotId,
    TopicPartition,
)

from .files import LogFiles, read_batch_at, read_small_file
from .foreign import refuse_foreign
from .names import (
    CHECKPOINT_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    PARTITION_METADATA_NAME,
    QUORUM_STATE_NAME,
    RAFTLOG_PROPERTIES_NAME,
    parse_checkpoint_name,
    parse_offset_name,
    parse_partition_name,
    read_listing,
)
from .reads import LogKind, SourceKind
from .single import SingleLog
from .small_files import parse_partition_metadata, parse_properties

METADATA_PARTITION: Final = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
UNNAMED_PARTITION: Final = TopicPartition("raftlog", 0)
_API_KEYS_END: Final = 0x40
"""Above every api key of a metadata record so far, and still a varint of one byte."""
_NAMES_SHOWN: Final = 5


def open_log(storage: Storage, path: str) -> SingleLog:
    """Open a log's directory, a node's log directory, a segment or a checkpoint.

    Raises ``LogNotFoundError``, ``LogAccessError``, ``NotALogError``.
    """
    if storage.is_directory(path):
        return _open_directory(storage, path)
    _, name = storage.split(path)
    bare = name.removesuffix(DELETED_SUFFIX)
    if bare.endswith(LOG_SUFFIX):
        return _open_segment(storage, path, bare)
    if bare.endswith(CHECKPOINT_SUFFIX):
        return _open_checkpoint(storage, path, bare)
    raise NotALogError(path=path, reason="it is a file of another kind")


def _open_directory(storage: Storage, path: str) -> SingleLog:
    names = storage.list_names(path)
    listing = read_listing(names)
    if listing.segments or listing.snapshots:
        return _directory_log(storage, path, path)
    if str(METADATA_PARTITION) in names:
        directory = storage.join(path, str(METADATA_PARTITION))
        listing = read_listing(storage.list_names(directory))
        if listing.segments or listing.snapshots:
            return _directory_log(storage, path, directory)
        raise NotALogError(path=directory, reason="it holds neither a segment nor a checkpoint")
    partitions = [name for name in names if parse_partition_name(name) is not None]
    if partitions:
        shown = ", ".join(partitions[:_NAMES_SHOWN])
        raise NotALogError(
            path=path, reason=f"it has no __cluster_metadata-0, but partitions such as {shown}"
        )
    raise NotALogError(path=path, reason="it holds neither a segment nor a checkpoint")


def _directory_log(storage: Storage, path: str, directory: str) -> SingleLog:
    files = LogFiles.of_directory(storage, directory)
    topic_partition, kind = _identity(files, storage.split(directory)[1])
    return SingleLog(
        files,
        path=path,
        topic_partition=topic_partition,
        kind=kind,
        source=SourceKind.DIRECTORY,
    )


def _open_segment(storage: Storage, path: str, name: str) -> SingleLog:
    with storage.open_file(path) as file:
        if file.byte_count() == 0:
            raise NotALogError(path=path, reason="the file is empty")
        base_offset = parse_offset_name(name, LOG_SUFFIX)
        first = read_batch_at(file, 0)
        if first is None:
            refuse_foreign(file, base_offset)
    if base_offset is None:
        base_offset = 0 if first is None else first.base_offset
    files = LogFiles.of_segment(storage, path, base_offset)
    topic_partition, kind = _identity(files, storage.split(files.directory)[1])
    return SingleLog(
        files,
        path=path,
        topic_partition=topic_partition,
        kind=kind,
        source=SourceKind.SEGMENT,
    )


def _open_checkpoint(storage: Storage, path: str, name: str) -> SingleLog:
    with storage.open_file(path) as file:
        if file.byte_count() == 0:
            raise NotALogError(path=path, reason="the file is empty")
        snapshot_id = parse_checkpoint_name(name) or _unnamed_snapshot(file)
    return SingleLog(
        LogFiles.of_checkpoint(storage, path, snapshot_id),
        path=path,
        topic_partition=METADATA_PARTITION,
        kind=LogKind.METADATA,
        source=SourceKind.CHECKPOINT,
    )


def _unnamed_snapshot(file: ReadableFile) -> SnapshotId:
    """The id of a checkpoint whose name is not Kafka's: its batches say an epoch, and nothing says
    where it ends. A bootstrap.checkpoint is of epoch 0."""
    first = read_batch_at(file, 0)
    return SnapshotId(0 if first is None else first.leader_epoch, 0)


def _identity(files: LogFiles, directory_name: str) -> tuple[TopicPartition, LogKind]:
    """Which partition a directory holds, and of which kind."""
    named = parse_partition_name(directory_name)
    if files.listing.is_embedded:
        kind = LogKind.METADATA if _declared_values(files) == "kraft" else LogKind.PARTITION
        return named or UNNAMED_PARTITION, kind
    if named is not None and named.topic == CLUSTER_METADATA_TOPIC:
        return named, LogKind.METADATA
    topic_id = _topic_id(files)
    if topic_id == CLUSTER_METADATA_TOPIC_ID or (topic_id is None and _has_quorum_files(files)):
        return METADATA_PARTITION, LogKind.METADATA
    if named is not None:
        return named, LogKind.PARTITION
    if topic_id is None and _begins_like_metadata(files):
        return METADATA_PARTITION, LogKind.METADATA
    return UNNAMED_PARTITION, LogKind.PARTITION


def _declared_values(files: LogFiles) -> str | None:
    """What an embedded log says its values are; None if it cannot be read."""
    data = files.read_small(RAFTLOG_PROPERTIES_NAME)
    path = files.storage.join(files.directory, RAFTLOG_PROPERTIES_NAME)
    try:
        return None if data is None else dict(parse_properties(data, path)).get("values")
    except CorruptFileError:
        return None  # damaged: its records can be read all the same


def _topic_id(files: LogFiles) -> str | None:
    path = files.storage.join(files.directory, PARTITION_METADATA_NAME)
    data = read_small_file(files.storage, path)
    try:
        return None if data is None else parse_partition_metadata(data, path).topic_id
    except CorruptFileError:
        return None  # damaged, and not needed to read the log


def _has_quorum_files(files: LogFiles) -> bool:
    return bool(files.listing.snapshots) or files.read_small(QUORUM_STATE_NAME) is not None


def _begins_like_metadata(files: LogFiles) -> bool:
    """Whether the first batch is a leader change, or holds framed values without keys."""
    if not files.listing.segments:
        return False
    with files.open(files.segment_path(files.listing.segments[0])) as file:
        batch = read_batch_at(file, 0)
    if batch is None or batch.is_transactional or batch.producer_id != -1:
        return False
    try:
        record = next(batch.records(), None)
        if record is None:
            return False
        if batch.is_control:
            return isinstance(decode_control(record.key, record.value), LeaderChange)
    except CorruptBatchError:
        return False
    value = record.value or b""
    return record.key is None and len(value) >= 3 and value[0] == 1 and value[1] < _API_KEYS_END
