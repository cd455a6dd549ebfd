"""Opening of a path as a log.

The kind of the records is detected from the log's files, unless the caller declares it.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import Final, Self

from raftlog.errors import (
    CorruptBatchError,
    CorruptFileError,
    LogError,
    NotALogError,
    UnknownRecordKindError,
)
from raftlog.limits import (
    BATCH_HEADER_BYTES,
    DECOMPRESSED_BYTES_MAX,
    IDENTIFY_BATCHES_MAX,
    IDENTIFY_BYTES_MAX,
    IDENTIFY_RECORDS_MAX,
    INT32_MAX,
)
from raftlog.log.format.directory import (
    CHECKPOINT_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    QUORUM_STATE_NAME,
    RAFTLOG_PROPERTIES_NAME,
    UNNAMED_PARTITION,
    parse_checkpoint_name,
    parse_offset_name,
    parse_partition_name,
    parse_properties,
    read_listing,
)
from raftlog.log.segment import read_batch_at
from raftlog.records.batch import RecordBatch
from raftlog.records.control import LeaderChange, decode_control
from raftlog.records.header import BATCH_MAGIC, LENGTH_MAX, MAGIC_POSITION
from raftlog.records.record import Record
from raftlog.storage.protocol import ReadableFile, Storage
from raftlog.types import (
    CLUSTER_METADATA_TOPIC,
    CLUSTER_METADATA_TOPIC_ID,
    REMOTE_LOG_METADATA_TOPIC,
    SnapshotId,
    TopicPartition,
)

from .chunks import find_valid_batch
from .directory_log import DirectoryLog
from .files import LogFiles
from .reads import LogKind, SourceKind
from .remote_segments import RemoteSegments, has_remote_segments, parse_remote_directory
from .remote_tier import OpenStore

# --- Detection of files that are not segments at all: text, an archive, another program's log -----
# Damage rarely affects two fields, so one impossible field means a damaged segment. A file counts
# as foreign only if at least two of the base offset, length and magic in its first bytes are
# impossible in every message format, and no valid batch follows. Kafka: ``Records`` (base offset,
# length), ``DefaultRecordBatch`` and ``LegacyRecord`` (magic).

_PREFIX: Final = struct.Struct(
    ">"
    "q"  # base_offset
    "i"  # length
    "i"  # leader_epoch; before magic 2 a CRC
    "b"  # magic
)
assert _PREFIX.size == MAGIC_POSITION + 1
_LEGACY_LENGTH_MIN: Final = 14
_OFFSET_LIKELY_MAX: Final = 2**48
"""More records than any log has. Eight characters of text are a far larger number."""
_SHOWN_BYTES: Final = 24


def check_segment_format(file: ReadableFile, base_offset: int | None) -> None:
    """Raise ``NotALogError`` if ``file`` is not a segment, damaged or not.

    ``base_offset`` is the one in the file's name, or None.
    """
    head = file.read_at(0, _PREFIX.size)
    if not _is_foreign(head, base_offset):
        return
    if find_valid_batch(file, 0, next_offset=base_offset) is None:
        shown = ascii(file.read_at(0, _SHOWN_BYTES))[1:]
        raise NotALogError(
            path=file.path, reason=f"it begins with {shown}, and no record batch follows"
        )


def _is_foreign(head: bytes, base_offset: int | None) -> bool:
    first_offset, length, _, magic = _PREFIX.unpack(head.ljust(_PREFIX.size, b"\0"))
    if base_offset is None:
        is_offset_possible = 0 <= first_offset <= _OFFSET_LIKELY_MAX
    else:
        is_offset_possible = 0 <= first_offset - base_offset <= INT32_MAX
    if len(head) < _PREFIX.size or not any(head):  # a torn batch, or preallocated zeros
        return any(head) and not is_offset_possible
    is_length_possible = _LEGACY_LENGTH_MIN <= length <= LENGTH_MAX
    is_magic_possible = 0 <= magic <= BATCH_MAGIC
    return [is_offset_possible, is_length_possible, is_magic_possible].count(True) <= 1


# --- Detection of the kind of a log's records: cluster metadata contains secrets ------------------
# Invariants:
#
# 1. Detection fails closed. A log is metadata if its topic name or topic id is that of
#    ``__cluster_metadata``, if its records have the frame of metadata records, or if its
#    ``raftlog.properties`` has ``values=kraft``. No name and no property overrides this.
# 2. A log that has ``quorum-state``, snapshots or leader changes, but records without the frame, is
#    metadata, unless a valid ``raftlog.properties`` with ``bytes`` or ``msgpack`` explains them. If
#    the records contradict that file or cannot be decoded, or if the file is damaged,
#    ``UnknownRecordKindError`` is raised until the caller declares the kind.
# 3. Only samples of bounded size are read: the first batches of the first and the last segment, and
#    of the newest snapshot.

METADATA_PARTITION: Final = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
METADATA_DIRECTORY: Final = str(METADATA_PARTITION)
"""Name of the metadata log's directory, in the directory of a node."""

_KRAFT: Final = "kraft"
_OTHER_VALUES: Final = ("bytes", "msgpack")
_FRAME_VERSION: Final = 1
_API_KEYS_END: Final = 0x40
"""Greater than every api key of a metadata record so far, and still a varint of one byte."""
_VERSIONS_END: Final = 0x20
"""Greater than every version of a metadata record so far, and still a varint of one byte."""


class _Content(enum.Enum):
    """Content of the samples of a log's records."""

    FRAMED = "framed"
    """At least half of the data records have the frame of a metadata record, and no key."""
    OTHER = "other"
    """Data records without that frame."""
    CONTROL = "control"
    """No data records, but a leader change: the log of a Raft quorum."""
    NONE = "none"
    """No readable batch."""
    UNREADABLE = "unreadable"
    """There are valid batches, or there may be, but no sample can be decoded."""


def identify(
    files: LogFiles, directory_name: str, declared: LogKind | None
) -> tuple[TopicPartition, LogKind]:
    """Return the partition of a directory or a segment, and the kind of its records.

    ``declared`` is the kind that the caller declares; None to detect it. Raises
    ``UnknownRecordKindError``.
    """
    named = parse_partition_name(directory_name)
    if _is_cluster_metadata(files, named):
        return _metadata_partition(named), declared or LogKind.METADATA
    kind = declared
    if kind is None and named is not None and named.topic == REMOTE_LOG_METADATA_TOPIC:
        kind = LogKind.PARTITION  # its records have the metadata frame, but other types
    kind = kind or _guessed_kind(files, _content(files))
    if kind is LogKind.PARTITION or files.listing.is_embedded:
        return named or UNNAMED_PARTITION, kind
    return METADATA_PARTITION, kind


def identify_checkpoint(
    files: LogFiles, directory_name: str, declared: LogKind | None
) -> tuple[TopicPartition, LogKind]:
    """Return the partition of a checkpoint file and the kind of its records.

    They are metadata, unless ``raftlog.properties`` in its directory has other values and the
    records do not contradict them.
    """
    named = parse_partition_name(directory_name)
    kind = declared
    if kind is None:
        kind = LogKind.METADATA
        is_other = _values(files) in _OTHER_VALUES and not _is_cluster_metadata(files, named)
        if is_other and _content(files) is not _Content.FRAMED:
            kind = LogKind.PARTITION
    if kind is LogKind.METADATA or _is_cluster_metadata(files, named):
        return METADATA_PARTITION, kind
    return named or UNNAMED_PARTITION, kind


def _guessed_kind(files: LogFiles, content: _Content) -> LogKind:
    values = _values(files)
    if content is _Content.FRAMED or values == _KRAFT:
        return LogKind.METADATA
    if values in _OTHER_VALUES:
        return LogKind.PARTITION
    has_other = content in (_Content.OTHER, _Content.UNREADABLE)
    if values is not None:
        if has_other:
            raise _unknown(files, f"its {RAFTLOG_PROPERTIES_NAME} is damaged or has no 'values'")
        return LogKind.METADATA
    if _has_quorum_files(files) or content is _Content.CONTROL:
        if has_other:
            reason = "it has the files of a quorum, and its records are not cluster metadata"
            raise _unknown(files, reason)
        return LogKind.METADATA
    if content is _Content.UNREADABLE:
        raise _unknown(files, "none of its first batches can be decoded")
    return LogKind.PARTITION


def _unknown(files: LogFiles, reason: str) -> UnknownRecordKindError:
    return UnknownRecordKindError(path=files.path, reason=reason)


# --- other files of the directory -----------------------------------------------------------------


def _is_cluster_metadata(files: LogFiles, named: TopicPartition | None) -> bool:
    is_named = named is not None and named.topic == CLUSTER_METADATA_TOPIC
    return is_named or files.topic_id() == CLUSTER_METADATA_TOPIC_ID


def _metadata_partition(named: TopicPartition | None) -> TopicPartition:
    is_named = named is not None and named.topic == CLUSTER_METADATA_TOPIC
    return named if is_named and named is not None else METADATA_PARTITION


def _values(files: LogFiles) -> str | None:
    """Return ``values`` of ``raftlog.properties``: "" if not set, None without the file."""
    try:
        pairs = files.parse_small(
            RAFTLOG_PROPERTIES_NAME, lambda data, path: dict(parse_properties(data, path))
        )
        return None if pairs is None else pairs.get("values", "")
    except CorruptFileError:
        return ""


def _has_quorum_files(files: LogFiles) -> bool:
    try:
        has_state = files.read_small(QUORUM_STATE_NAME) is not None
    except CorruptFileError:
        has_state = True
    return has_state or bool(files.listing.snapshots)


# --- the records ----------------------------------------------------------------------------------


def _content(files: LogFiles) -> _Content:
    """Return the content of all samples together. One sample with the frame decides."""
    found = set()
    for path in _sampled_paths(files):
        with files.open(path) as file:
            found.add(_content_of(file))
        if _Content.FRAMED in found:
            break
    order = (_Content.FRAMED, _Content.OTHER, _Content.UNREADABLE, _Content.CONTROL)
    return next((content for content in order if content in found), _Content.NONE)


def _sampled_paths(files: LogFiles) -> list[str]:
    segments = [base for base in files.listing.segments if not files.is_remote(base)]
    snapshots = files.listing.snapshots
    paths = [files.segment_path(base_offset) for base_offset in (*segments[:1], *segments[-1:])]
    paths += [files.checkpoint_path(snapshot_id) for snapshot_id in snapshots[-1:]]
    return list(dict.fromkeys(paths))


def _content_of(file: ReadableFile) -> _Content:
    has_leader = is_undecoded = False
    data_count = framed_count = 0
    for batch in _first_batches(file):
        if batch is None:
            is_undecoded = True
            break
        try:
            for record in batch.records(decompressed_bytes_max=IDENTIFY_BYTES_MAX):
                if batch.is_control:
                    control = decode_control(record.key, record.value)
                    has_leader |= isinstance(control, LeaderChange)
                    continue
                data_count += 1
                framed_count += batch.producer_id == -1 and _is_framed(record)
                if data_count == IDENTIFY_RECORDS_MAX:
                    break
        except CorruptBatchError:
            is_undecoded |= not batch.is_control
        if data_count == IDENTIFY_RECORDS_MAX:
            break
    if data_count:
        return _Content.FRAMED if framed_count * 2 >= data_count else _Content.OTHER
    if is_undecoded:
        return _Content.UNREADABLE
    return _Content.CONTROL if has_leader else _Content.NONE


def _is_framed(record: Record) -> bool:
    value = record.value
    if record.key is not None or value is None or len(value) < 3:
        return False
    return value[0] == _FRAME_VERSION and value[1] < _API_KEYS_END and value[2] < _VERSIONS_END


def _first_batches(file: ReadableFile) -> Iterator[RecordBatch | None]:
    """Yield the first valid batches, including batches after damage.

    If damage is longer than the search for the next batch, the last value is None.
    """
    position = 0
    for _ in range(IDENTIFY_BATCHES_MAX):
        batch = read_batch_at(file, position)
        if batch is None:
            head = _FilePrefix(file, position + IDENTIFY_BYTES_MAX)
            if not any(file.read_at(position, BATCH_HEADER_BYTES)):
                return  # the end of the file, or preallocated zeros
            found = find_valid_batch(head, position, next_offset=None)
            if found is None:
                if file.byte_count() > head.byte_count():
                    yield None
                return
            batch = read_batch_at(file, found)
            assert batch is not None, "find_valid_batch validated it"
        yield batch
        position = batch.position + batch.byte_count


class _FilePrefix:
    """File that ends at a given position."""

    def __init__(self, file: ReadableFile, end: int) -> None:
        self.path = file.path
        self._file = file
        self._end = end

    def byte_count(self) -> int:
        return min(self._file.byte_count(), self._end)

    def read_at(self, position: int, byte_count: int) -> bytes:
        return self._file.read_at(position, max(0, min(byte_count, self._end - position)))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# --- Opening --------------------------------------------------------------------------------------

_NAMES_SHOWN: Final = 5
_NAMES_READ: Final = 100
"""Names in a directory without a log that are checked for directories of nodes."""


def open_log(
    storage: Storage,
    path: str,
    *,
    kind: LogKind | None = None,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    open_store: OpenStore | None = None,
) -> DirectoryLog:
    """Open a log's directory, a node's log directory, a segment or a checkpoint.

    ``kind`` is the kind of the records; None to detect it. ``decompressed_bytes_max`` limits the
    decompressed records of one batch, in bytes. ``open_store`` opens the object store of a tiered
    log; without it only the log's local segments are read.

    Raises:
        LogNotFoundError: nothing is at ``path``.
        LogAccessError: a file cannot be read.
        NotALogError: ``path`` is not a log.
        UnknownRecordKindError: the kind of the records cannot be detected.
    """
    log = _open(storage, path, kind, open_store)
    log.files.decompressed_bytes_max = decompressed_bytes_max
    return log


def _open(
    storage: Storage, path: str, kind: LogKind | None, open_store: OpenStore | None
) -> DirectoryLog:
    if storage.is_directory(path):
        return _open_directory(storage, path, kind, open_store)
    _, name = storage.split(path)
    bare = name.removesuffix(DELETED_SUFFIX)
    if bare.endswith(LOG_SUFFIX):
        return _open_segment(storage, path, bare, kind)
    if bare.endswith(CHECKPOINT_SUFFIX):
        return _open_checkpoint(storage, path, bare, kind)
    raise NotALogError(path=path, reason="it is neither a segment nor a checkpoint")


def _open_directory(
    storage: Storage, path: str, kind: LogKind | None, open_store: OpenStore | None
) -> DirectoryLog:
    names = storage.list_names(path)
    listing = read_listing(names)
    is_node = METADATA_DIRECTORY in names  # then a snapshot is not its log, but an export
    if listing.segments or (listing.snapshots and not is_node):
        return _directory_log(path, LogFiles(storage, path, listing, open_store), kind)
    if is_node:
        directory = storage.join(path, METADATA_DIRECTORY)
        files = LogFiles.of_directory(storage, directory, open_store)
        if files.listing.segments or files.listing.snapshots:
            return _directory_log(path, files, kind)
        raise NotALogError(path=directory, reason="it contains neither a segment nor a checkpoint")
    if has_remote_segments(names):
        return _remote_log(storage, path, kind)
    nodes = [name for name in names[:_NAMES_READ] if _is_log_directory(storage, path, name)]
    if nodes:
        shown = ", ".join(nodes[:_NAMES_SHOWN])
        raise NotALogError(
            path=path,
            reason=f"it contains the log directories of several nodes: {shown}",
            remedy=f"give one of them, such as {storage.join(path, nodes[0])}, or several voters "
            "of one cluster, comma-separated or as a pattern with *",
        )
    partitions = [name for name in names if parse_partition_name(name) is not None]
    if len(partitions) == 1 and _is_raftlog(storage, path, partitions[0]):  # of a raftlog node
        directory = storage.join(path, partitions[0])
        return _directory_log(path, LogFiles.of_directory(storage, directory, open_store), kind)
    if partitions:
        shown = ", ".join(partitions[:_NAMES_SHOWN])
        raise NotALogError(
            path=path,
            reason=f"it has no __cluster_metadata-0, only other partitions: {shown}",
            remedy=f"give the directory of one, such as {storage.join(path, partitions[0])}",
        )
    copied = [name for name in names if parse_remote_directory(name) is not None]
    if copied:
        shown = ", ".join(copied[:_NAMES_SHOWN])
        raise NotALogError(
            path=path,
            reason=f"it contains partitions of remote storage: {shown}",
            remedy=f"give the directory of one, such as {storage.join(path, copied[0])}, or write "
            "the log of a backup with `raftlog restore`",
        )
    raise NotALogError(path=path, reason="it contains neither a segment nor a checkpoint")


def _is_log_directory(storage: Storage, path: str, name: str) -> bool:
    """Return whether a name in a directory is the log directory of a controller or broker."""
    try:
        return METADATA_DIRECTORY in storage.list_names(storage.join(path, name))
    except LogError:  # a file, or not readable
        return False


def _is_raftlog(storage: Storage, path: str, name: str) -> bool:
    """Return whether a name in a directory is a log that raftlog created."""
    try:
        return RAFTLOG_PROPERTIES_NAME in storage.list_names(storage.join(path, name))
    except LogError:  # a file, or not readable
        return False


def _directory_log(path: str, files: LogFiles, kind: LogKind | None) -> DirectoryLog:
    name = files.storage.split(files.directory)[1]
    identified = files.retry_on_deletion(lambda: identify(files, name, kind))
    return DirectoryLog(files, path, *identified, source=SourceKind.DIRECTORY)


def _remote_log(storage: Storage, path: str, kind: LogKind | None) -> DirectoryLog:
    """Return the log whose segments a broker, or a backup, has copied to remote storage."""
    files = LogFiles.of_directory(RemoteSegments(storage, path), path)
    partition = parse_remote_directory(storage.split(path)[1])
    identified = identify(files, str(partition or UNNAMED_PARTITION), kind)
    return DirectoryLog(files, path, *identified, source=SourceKind.DIRECTORY)


def _open_segment(storage: Storage, path: str, name: str, kind: LogKind | None) -> DirectoryLog:
    with _open_file(storage, path) as file:
        base_offset = parse_offset_name(name, LOG_SUFFIX)
        first = read_batch_at(file, 0)
        if first is None:
            check_segment_format(file, base_offset)
    if base_offset is None:
        base_offset = 0 if first is None else first.base_offset
    files = LogFiles.of_segment(storage, path, base_offset)
    identified = identify(files, storage.split(files.directory)[1], kind)
    return DirectoryLog(files, path, *identified, source=SourceKind.SEGMENT)


def _open_checkpoint(storage: Storage, path: str, name: str, kind: LogKind | None) -> DirectoryLog:
    with _open_file(storage, path) as file:
        snapshot_id = parse_checkpoint_name(name) or _unnamed_snapshot(file)
    files = LogFiles.of_checkpoint(storage, path, snapshot_id)
    identified = identify_checkpoint(files, storage.split(files.directory)[1], kind)
    return DirectoryLog(files, path, *identified, source=SourceKind.CHECKPOINT)


def _open_file(storage: Storage, path: str) -> ReadableFile:
    file = storage.open_file(path)
    if not file.byte_count():
        file.close()
        raise NotALogError(path=path, reason="the file is empty")
    return file


def _unnamed_snapshot(file: ReadableFile) -> SnapshotId:
    """Return an id for a checkpoint without one in its name: end offset 0, first batch's epoch.

    The epoch of a ``bootstrap.checkpoint`` is 0.
    """
    first = read_batch_at(file, 0)
    return SnapshotId(epoch=0 if first is None else first.leader_epoch, end_offset=0)
