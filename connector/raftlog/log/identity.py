"""Decide what the records of a log are: a cluster's metadata, whose values hold secrets, or not.

Rules of this file:

1. It fails closed. Bytes are looked at before names: a log is metadata if its topic or topic id is
   that of ``__cluster_metadata``, if its records are framed as metadata records, or if its
   ``raftlog.properties`` says ``kraft``. No name and no property outweighs that.
2. A valid ``raftlog.properties`` that says ``bytes`` or ``msgpack`` explains ``quorum-state``, a
   checkpoint or a leader change beside records that are not framed. Without it they are a metadata
   log's. If the records contradict that, or cannot be decoded, or if the file is damaged, the log
   is refused (``UnknownRecordKindError``) until the caller declares its kind.
3. Only samples are read, of bounded size: the first batches of the first and the last segment, and
   of the newest snapshot.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Final, Self

from raftlog.errors import CorruptBatchError, CorruptFileError, UnknownRecordKindError
from raftlog.limits import (
    BATCH_HEADER_BYTES,
    IDENTIFY_BATCHES_MAX,
    IDENTIFY_BYTES_MAX,
    IDENTIFY_RECORDS_MAX,
)
from raftlog.records.batch import RecordBatch
from raftlog.records.control import LeaderChange, decode_control
from raftlog.records.record import Record
from raftlog.storage.protocol import ReadableFile
from raftlog.types import CLUSTER_METADATA_TOPIC, CLUSTER_METADATA_TOPIC_ID, TopicPartition

from .files import LogFiles, read_batch_at
from .names import (
    PARTITION_METADATA_NAME,
    QUORUM_STATE_NAME,
    RAFTLOG_PROPERTIES_NAME,
    parse_partition_name,
)
from .reads import LogKind
from .resync import find_valid_batch
from .small_files import parse_partition_metadata, parse_properties
from .text_files import read_small_file

METADATA_PARTITION: Final = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
UNNAMED_PARTITION: Final = TopicPartition("raftlog", 0)

_KRAFT: Final = "kraft"
_OTHER_VALUES: Final = ("bytes", "msgpack")
_FRAME_VERSION: Final = 1
_API_KEYS_END: Final = 0x40
"""Above every api key of a metadata record so far, and still a varint of one byte."""
_VERSIONS_END: Final = 0x20
"""Above every version of a metadata record so far, likewise."""


class _Content(enum.Enum):
    """What samples of a log's records are."""

    FRAMED = "framed"
    """At least half of the data records have the frame of a metadata record, and no key."""
    OTHER = "other"
    """Data records of another kind."""
    CONTROL = "control"
    """No data record, but a leader change: a Raft log's."""
    NONE = "none"
    """No batch that can be read at all."""
    UNREADABLE = "unreadable"
    """Valid batches are there, or may be, and none of the samples can be decoded."""


def identify(
    files: LogFiles, directory_name: str, declared: LogKind | None
) -> tuple[TopicPartition, LogKind]:
    """Return the partition of a directory or a segment, and its kind.

    ``declared`` is what the caller says it is: then nothing is guessed. Raises
    ``UnknownRecordKindError``.
    """
    named = parse_partition_name(directory_name)
    if _is_cluster_metadata(files, named):
        return _metadata_partition(named), declared or LogKind.METADATA
    kind = declared or _guessed_kind(files, _content(files))
    if kind is LogKind.PARTITION or files.listing.is_embedded:
        return named or UNNAMED_PARTITION, kind
    return METADATA_PARTITION, kind


def identify_checkpoint(
    files: LogFiles, directory_name: str, declared: LogKind | None
) -> tuple[TopicPartition, LogKind]:
    """Return the partition and the kind of one checkpoint: metadata, unless the
    ``raftlog.properties`` beside it says otherwise and its records do not contradict that."""
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
            raise _unknown(files, f"its {RAFTLOG_PROPERTIES_NAME} is damaged or names no values")
        return LogKind.METADATA
    if _has_quorum_files(files) or content is _Content.CONTROL:
        if has_other:
            reason = "a quorum's files are beside it, and its records are not a cluster's metadata"
            raise _unknown(files, reason)
        return LogKind.METADATA
    if content is _Content.UNREADABLE:
        raise _unknown(files, "none of its first batches can be decoded")
    return LogKind.PARTITION


def _unknown(files: LogFiles, reason: str) -> UnknownRecordKindError:
    return UnknownRecordKindError(path=files.path, reason=reason)


# --- the files beside it --------------------------------------------------------------------------


def _is_cluster_metadata(files: LogFiles, named: TopicPartition | None) -> bool:
    is_named = named is not None and named.topic == CLUSTER_METADATA_TOPIC
    return is_named or _topic_id(files) == CLUSTER_METADATA_TOPIC_ID


def _metadata_partition(named: TopicPartition | None) -> TopicPartition:
    is_named = named is not None and named.topic == CLUSTER_METADATA_TOPIC
    return named if is_named and named is not None else METADATA_PARTITION


def _values(files: LogFiles) -> str | None:
    """What ``raftlog.properties`` says that values are: empty if it does not, None without it."""
    path = files.storage.join(files.directory, RAFTLOG_PROPERTIES_NAME)
    try:
        data = read_small_file(files.storage, path)
        return None if data is None else dict(parse_properties(data, path)).get("values", "")
    except CorruptFileError:
        return ""


def _topic_id(files: LogFiles) -> str | None:
    path = files.storage.join(files.directory, PARTITION_METADATA_NAME)
    try:
        data = read_small_file(files.storage, path)
        return None if data is None else parse_partition_metadata(data, path).topic_id
    except CorruptFileError:
        return None  # damaged: the records tell


def _has_quorum_files(files: LogFiles) -> bool:
    path = files.storage.join(files.directory, QUORUM_STATE_NAME)
    try:
        has_state = read_small_file(files.storage, path) is not None
    except CorruptFileError:
        has_state = True
    return has_state or bool(files.listing.snapshots)


# --- the records ----------------------------------------------------------------------------------


def _content(files: LogFiles) -> _Content:
    """What the samples are together: one that is framed decides."""
    found = set()
    for path in _sampled_paths(files):
        with files.open(path) as file:
            found.add(_content_of(file))
        if _Content.FRAMED in found:
            break
    order = (_Content.FRAMED, _Content.OTHER, _Content.UNREADABLE, _Content.CONTROL)
    return next((content for content in order if content in found), _Content.NONE)


def _sampled_paths(files: LogFiles) -> list[str]:
    segments, snapshots = files.listing.segments, files.listing.snapshots
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
    """The first valid batches, also those after damage; None if they are too far to look for."""
    position = 0
    for _ in range(IDENTIFY_BATCHES_MAX):
        batch = read_batch_at(file, position)
        if batch is None:
            head = _FilePrefix(file, position + IDENTIFY_BYTES_MAX)
            if not any(file.read_at(position, BATCH_HEADER_BYTES)):
                return  # the end, or a preallocated file's zeros
            found = find_valid_batch(head, position, None)
            if found is None:
                if file.byte_count() > head.byte_count():
                    yield None
                return
            batch = read_batch_at(file, found)
            assert batch is not None, "it was found to be valid"
        yield batch
        position = batch.position + batch.byte_count


class _FilePrefix:
    """A file up to a position, as if it ended there."""

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
