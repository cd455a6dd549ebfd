"""Files of a log's directory, except segments and their indexes: names, and content as values.

Parsers take a file's bytes and path, and raise only ``CorruptFileError``. Encoders return the bytes
that Kafka writes. An absent value is None, never -1 or the zero uuid. Only ``read_small_file`` and
``read_published`` take a storage.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from crc32c import crc32c

from raftlog.errors import CorruptFileError, LogNotFoundError, SegmentDeletedError
from raftlog.fast_dataclass import fast_init
from raftlog.limits import EPOCH_MAX, INT32_MAX, INT64_MAX, SMALL_FILE_BYTES_MAX
from raftlog.storage.protocol import ReadableFile, Storage
from raftlog.types import ZERO_UUID, SnapshotId, TopicPartition

from .epoch_cache import EpochCache, EpochEntry

# --- Names of a log's files (Kafka: ``LogFileUtils``, ``Snapshots``) ------------------------------
# A file belongs to the log only if its name has exactly Kafka's form. All other names, including
# ``.deleted``, ``.part`` and ``.cleaned``, are ignored. Snapshot id (0, 0) is the bootstrap
# checkpoint, which is local and uncommitted; it does not count as a snapshot (KIP-853).

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
INDEX_SUFFIXES: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
PRODUCER_SNAPSHOT_SUFFIX: Final = ".snapshot"
CHECKPOINT_SUFFIX: Final = ".checkpoint"
DELETED_SUFFIX: Final = ".deleted"
SWAP_SUFFIX: Final = ".swap"
CLEANED_SUFFIX: Final = ".cleaned"
INCOMPLETE_SUFFIX: Final = ".part"
"""raftlog's, not Kafka's: suffix of a directory whose creation has not finished."""
CLEANER_LOCK_NAME: Final = ".cleaner.lock"
"""raftlog's, not Kafka's: lock file of a compaction, held while it writes ``.cleaned`` files."""

EPOCH_CHECKPOINT_NAME: Final = "leader-epoch-checkpoint"
PARTITION_METADATA_NAME: Final = "partition.metadata"
QUORUM_STATE_NAME: Final = "quorum-state"
OUT_OF_ELECTION_NAME: Final = "withdrawn"
"""raftlog's, not Kafka's: file with the reason why the replica of this directory does not vote."""
META_PROPERTIES_NAME: Final = "meta.properties"
NODE_LOCK_NAME: Final = ".lock"
"""Lock file that a running node holds in its directory, as in Kafka."""
RAFTLOG_PROPERTIES_NAME: Final = "raftlog.properties"
"""raftlog's, not Kafka's: properties of a log. A directory without this file is never written."""
REMOTE_SEGMENTS_NAME: Final = "remote-log-segments"
"""raftlog's, not Kafka's: the list of the log's segments in an object store (``remote_chain``)."""

BOOTSTRAP_ID: Final = SnapshotId(epoch=0, end_offset=0)
UNNAMED_PARTITION: Final = TopicPartition("raftlog", 0)
"""Partition of a log whose directory is not named ``<topic>-<partition>``."""

# Kafka writes offsets with 20 digits and epochs with 10; int64 has 19 and int32 has 10.
_BASE_OFFSET = re.compile(r"([0-9]{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)")
_CHECKPOINT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
_PARTITION = re.compile(
    r"(?P<topic>[A-Za-z0-9._-]{1,249})-(?P<partition>[0-9]{1,10})"
    r"(\.[A-Za-z0-9]+-(delete|future|stray))?"
)


def offset_name(base_offset: int, suffix: str) -> str:
    """Return the name of a segment's file: the base offset with 20 digits, and the suffix."""
    return f"{base_offset:020d}{suffix}"


def checkpoint_name(snapshot_id: SnapshotId) -> str:
    """Return the name of a snapshot file: end offset (exclusive), then epoch."""
    return f"{snapshot_id}{CHECKPOINT_SUFFIX}"


def parse_offset_name(name: str, suffix: str) -> int | None:
    """Return the base offset in the name of a segment's file with this suffix, else None."""
    match = _BASE_OFFSET.fullmatch(name)
    if match is None or match[2] != suffix or int(match[1]) > INT64_MAX:
        return None
    return int(match[1])


def parse_checkpoint_name(name: str) -> SnapshotId | None:
    """Return the id in a snapshot file's name, (0, 0) included, else None."""
    match = _CHECKPOINT.fullmatch(name)
    if match is None or int(match[1]) > INT64_MAX or int(match[2]) > INT32_MAX:
        return None
    return SnapshotId(epoch=int(match[2]), end_offset=int(match[1]))


def parse_partition_name(name: str) -> TopicPartition | None:
    """Return the topic and partition in a directory's name, else None.

    The name of a directory that is stray, being deleted or being moved to another disk continues
    with a unique id and a word for that state (Kafka: ``LocalLog.logDirNameWithSuffix``, which
    truncates long topics).
    """
    match = _PARTITION.fullmatch(name)
    if match is None or int(match["partition"]) > INT32_MAX:
        return None
    return TopicPartition(match["topic"], int(match["partition"]))


@dataclass(frozen=True, slots=True)
class Listing:
    """Files of a log from one directory listing, in ascending order, without those being deleted.

    ``is_embedded``: this is an embedded log, whose writers publish its end. ``swapped``: segments
    that have a ``.swap`` file, which is complete and replaces one or more segments. A compaction
    deletes the old files before it renames the ``.swap`` file to its final name. ``is_tiered``: the
    directory has a list of remote segments.
    """

    segments: tuple[int, ...] = ()
    snapshots: tuple[SnapshotId, ...] = ()
    producer_snapshots: tuple[int, ...] = ()
    swapped: frozenset[int] = frozenset()
    is_embedded: bool = False
    is_tiered: bool = False

    @property
    def start_offset(self) -> int:
        """First offset on disk; without segments, the newest snapshot's end offset."""
        if self.segments:
            return self.segments[0]
        return self.snapshots[-1].end_offset if self.snapshots else 0


def read_listing(names: list[str]) -> Listing:
    """Build a listing from the names in a directory."""
    offsets: dict[str, list[int]] = {LOG_SUFFIX: [], PRODUCER_SNAPSHOT_SUFFIX: []}
    snapshots = []
    swapping = set()
    for name in names:
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            swapping.add(parse_offset_name(name.removesuffix(SWAP_SUFFIX), LOG_SUFFIX))
        snapshot_id = parse_checkpoint_name(name)
        if snapshot_id is not None and snapshot_id != BOOTSTRAP_ID:
            snapshots.append(snapshot_id)
        for suffix, found in offsets.items():
            base_offset = parse_offset_name(name, suffix)
            if base_offset is not None:
                found.append(base_offset)
    swapped = frozenset(base_offset for base_offset in swapping if base_offset is not None)
    return Listing(
        segments=tuple(sorted({*offsets[LOG_SUFFIX], *swapped})),
        snapshots=tuple(sorted(snapshots)),
        producer_snapshots=tuple(sorted(offsets[PRODUCER_SNAPSHOT_SUFFIX])),
        swapped=swapped,
        is_embedded=RAFTLOG_PROPERTIES_NAME in names,
        is_tiered=REMOTE_SEGMENTS_NAME in names,
    )


# --- Reading and parsing of small text files ------------------------------------------------------

_NUMBER = re.compile(r"-?\d{1,19}", re.ASCII)


def decoded_text(data: bytes, path: str) -> str:
    """Decode UTF-8. Raises ``CorruptFileError`` with the position of the first invalid byte."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptFileError(path=path, position=error.start, reason="it is not text") from None


def whole_number(text: str, path: str, what: str) -> int:
    """Parse a decimal integer as Java prints it. Raises ``CorruptFileError``."""
    if _NUMBER.fullmatch(text.strip()) is None:
        raise CorruptFileError(path=path, reason=f"{what} is {text[:20]!r}, not a number")
    return int(text)


def read_small(file: ReadableFile) -> bytes:
    """Return the content of a small file, or the first ``SMALL_FILE_BYTES_MAX + 1`` bytes of a
    larger one.

    The size is read first, so that the buffer fits the file: once a buffer of 16 MiB has been
    freed, glibc allocates all smaller ones from its heap, where it keeps up to 32 MiB of freed
    memory.
    """
    return file.read_at(0, min(file.byte_count(), SMALL_FILE_BYTES_MAX + 1))


def read_small_file(storage: Storage, path: str) -> bytes | None:
    """Return the content of a small file; None if it does not exist.

    Raises ``CorruptFileError`` if it is larger than ``SMALL_FILE_BYTES_MAX``.
    """
    try:
        with storage.open_file(path) as file:
            data = read_small(file)
    except (LogNotFoundError, SegmentDeletedError):
        return None
    if len(data) > SMALL_FILE_BYTES_MAX:
        raise CorruptFileError(path=path, reason=f"it is larger than {SMALL_FILE_BYTES_MAX} bytes")
    return data


# --- The small files ``quorum-state``, ``meta.properties`` and ``partition.metadata`` -------------
# Kafka: ``FileQuorumStateStore`` (``QuorumStateData``), ``MetaProperties``, ``PartitionMetadata``.


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumState:
    """Persistent election state of a voter. ``voters``: only in version 0, where it may be null."""

    version: int
    leader_epoch: int
    leader_id: int | None
    voted_id: int | None
    voted_directory_id: str | None = None
    cluster_id: str | None = None
    voters: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaProperties:
    """Owner of a log directory. In version 0 the key of the node id is ``broker.id``."""

    version: int
    cluster_id: str | None
    node_id: int | None
    directory_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadata:
    """Topic id of a partition's directory."""

    version: int
    topic_id: str


def parse_quorum_state(data: bytes, path: str) -> QuorumState:
    """Parse ``quorum-state``: a JSON object with all fields of its ``data_version``, 0 or 1."""
    try:
        fields = json.loads(decoded_text(data, path))
    except (ValueError, RecursionError):  # also a number of thousands of digits
        raise CorruptFileError(path=path, reason="it is not JSON") from None
    if not isinstance(fields, dict):
        raise CorruptFileError(path=path, reason="it is not a JSON object")
    version = _json_integer(fields, "data_version", path)
    if version not in (0, 1):
        raise CorruptFileError(path=path, reason=f"its data_version is {version}, not 0 or 1")
    cluster_id = directory_id = voters = None
    if version == 0:
        cluster_id = _json_text(fields, "clusterId", path)
        _json_integer(fields, "appliedOffset", path)
        voters = _voters(fields, path)
    else:
        directory_id = _json_text(fields, "votedDirectoryId", path)
    epoch = _json_integer(fields, "leaderEpoch", path)
    if not 0 <= epoch <= EPOCH_MAX:
        raise CorruptFileError(path=path, reason=f"its leaderEpoch {epoch} is out of range")
    return QuorumState(
        version=version,
        leader_epoch=epoch,
        leader_id=_node_id(_json_integer(fields, "leaderId", path)),
        voted_id=_node_id(_json_integer(fields, "votedId", path)),
        voted_directory_id=None if directory_id in (None, "", ZERO_UUID) else directory_id,
        cluster_id=cluster_id or None,
        voters=voters,
    )


def parse_meta_properties(data: bytes, path: str) -> MetaProperties:
    """Parse ``meta.properties``, version 0 or 1."""
    properties = dict(parse_properties(data, path))
    version = whole_number(properties.get("version", "0"), path, "the version")
    if version not in (0, 1):
        raise CorruptFileError(path=path, reason=f"its version is {version}, not 0 or 1")
    node_key = "node.id" if version == 1 else "broker.id"
    if version == 1 and not {"cluster.id", "node.id"} <= properties.keys():
        raise CorruptFileError(path=path, reason="cluster.id or node.id is missing")
    node_id = properties.get(node_key)
    return MetaProperties(
        version=version,
        cluster_id=properties.get("cluster.id"),
        node_id=None if node_id is None else whole_number(node_id, path, node_key),
        directory_id=properties.get("directory.id"),
    )


def parse_partition_metadata(data: bytes, path: str) -> PartitionMetadata:
    """Parse ``partition.metadata``: the lines ``version: 0`` and ``topic_id: <uuid>``."""
    fields = {}
    for line in decoded_text(data, path).splitlines():
        name, colon, value = line.partition(":")
        if not colon:
            raise CorruptFileError(path=path, reason=f"{line[:40]!r} is not a name and a value")
        fields[name.strip()] = value.strip()
    version = whole_number(fields.get("version", ""), path, "the version")
    topic_id = fields.get("topic_id", ZERO_UUID)
    if version < 0 or re.fullmatch(r"[A-Za-z0-9_-]{22}", topic_id) is None or topic_id == ZERO_UUID:
        raise CorruptFileError(path=path, reason="its version or topic_id is missing or invalid")
    return PartitionMetadata(version=version, topic_id=topic_id)


def encode_quorum_state(state: QuorumState) -> bytes:
    """Encode the state as one line of JSON in Kafka's order (``QuorumStateDataJsonConverter``)."""
    leader = {
        "leaderId": _id_or_minus_one(state.leader_id),
        "leaderEpoch": state.leader_epoch,
        "votedId": _id_or_minus_one(state.voted_id),
    }
    fields: dict[str, object]
    if state.version == 0:
        voters = state.voters
        rows = None if voters is None else [{"voterId": voter_id} for voter_id in voters]
        fields = {
            "clusterId": state.cluster_id or "",
            **leader,
            "appliedOffset": 0,
            "currentVoters": rows,
        }
    else:
        fields = {**leader, "votedDirectoryId": state.voted_directory_id or ZERO_UUID}
    text = json.dumps({**fields, "data_version": state.version}, separators=(",", ":"))
    return text.encode("utf-8")


def encode_meta_properties(meta: MetaProperties, *, written: str) -> bytes:
    """Encode ``meta.properties``, with the names in the order of Kafka's file.

    ``written`` is the date comment that ``java.util.Properties.store`` writes.
    """
    values = {
        "node.id" if meta.version == 1 else "broker.id": meta.node_id,
        "directory.id": meta.directory_id,
        "version": meta.version,
        "cluster.id": meta.cluster_id,
    }
    pairs = [(name, str(value)) for name, value in values.items() if value is not None]
    return encode_properties(pairs, comments=("", written))


def encode_partition_metadata(metadata: PartitionMetadata) -> bytes:
    """Encode ``partition.metadata``: two lines, the last one without a newline."""
    return f"version: {metadata.version}\ntopic_id: {metadata.topic_id}".encode("ascii")


def encode_properties(pairs: Iterable[tuple[str, str]], *, comments: Iterable[str] = ()) -> bytes:
    """Encode Java's property format, escaped as by ``java.util.Properties.store``."""
    lines = [f"#{comment}" for comment in comments]
    lines += [f"{_escaped(name, is_name=True)}={_escaped(value)}" for name, value in pairs]
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def parse_properties(data: bytes, path: str) -> Iterator[tuple[str, str]]:
    """Yield the name and value pairs of a file in Java's property format.

    Comments, continuation lines, the three separators and escapes are handled as by
    ``java.util.Properties.load``, in ISO-8859-1. If a name is repeated, its last pair counts.
    """
    for line in _logical_lines(data.decode("latin-1")):
        match = re.match(r"((?:\\.|[^\\=:\s])*)[ \t\f]*[=:]?[ \t\f]*(.*)", line, re.DOTALL)
        assert match is not None, "every part of the pattern may be empty"
        yield _unescaped(match[1], path), _unescaped(match[2], path)


def _logical_lines(text: str) -> Iterator[str]:
    """Yield lines joined with their continuation lines; skip blank lines and comments."""
    pending = None
    for natural in re.split(r"\r\n|\r|\n", text):
        line = natural.lstrip(" \t\f")
        if pending is None and (not line or line[0] in "#!"):
            continue
        line = (pending or "") + line
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending = line[:-1]
        else:
            pending = None
            yield line
    if pending:
        yield pending


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _unescaped(text: str, path: str) -> str:
    def replaced(match: re.Match[str]) -> str:
        escape = match[1]
        if escape[0] != "u":
            return _ESCAPES.get(escape, escape)
        if len(escape) != 5:
            raise CorruptFileError(path=path, reason="an escape \\u has fewer than four hex digits")
        return chr(int(escape[1:], 16))

    text = re.sub(r"\\(u[0-9A-Fa-f]{0,4}|.)", replaced, text, flags=re.DOTALL)
    # Two escapes may form the surrogate pair of one character; a lone surrogate is kept.
    return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")


_ESCAPED = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}


def _escaped(text: str, *, is_name: bool = False) -> str:
    def replaced(match: re.Match[str]) -> str:
        letter = match[0]
        if letter in _ESCAPED:
            return _ESCAPED[letter]
        if " " <= letter <= "~":
            return "\\" + letter
        units = letter.encode("utf-16-be", "surrogatepass").hex().upper()
        return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))

    blanks = " " if is_name else "^ "
    return re.sub(rf"[\\=:#!]|{blanks}|[^ -~]", replaced, text)


def _json_integer(fields: dict[str, object], name: str, path: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise CorruptFileError(path=path, reason=f"{name} is missing or not a number")
    return value


def _json_text(fields: dict[str, object], name: str, path: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise CorruptFileError(path=path, reason=f"{name} is missing or not text")
    return value


def _voters(fields: dict[str, object], path: str) -> tuple[int, ...] | None:
    if "currentVoters" not in fields:
        raise CorruptFileError(path=path, reason="currentVoters is missing")
    rows = fields["currentVoters"]
    if rows is None:
        return None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise CorruptFileError(path=path, reason="currentVoters is not a list of voters")
    return tuple(_json_integer(row, "voterId", path) for row in rows)


def _id_or_minus_one(node_id: int | None) -> int:
    return -1 if node_id is None else node_id


def _node_id(value: int) -> int | None:
    return None if value == -1 else value


# --- Checkpoints of offsets and of leader epochs --------------------------------------------------
# Format (Kafka: ``CheckpointFile``, version 0): the version, the number of entries, and one line
# for each entry.
#
# - ``leader-epoch-checkpoint`` has lines ``epoch start_offset`` (``LeaderEpochCheckpointFile``).
# - The other files have lines ``topic partition offset`` (``OffsetCheckpointFile``). Kafka keeps
#   one of each per log directory; raftlog keeps one per log.
# - ``log-start-offset-checkpoint``: the log start offset.
# - ``recovery-point-offset-checkpoint``: all bytes below the recovery point are synced:
#   ``recovery_point <= synced``.
# - ``cleaner-offset-checkpoint``: the first offset that no compaction has read.
# - ``compacted-offset-checkpoint`` (raftlog's): the end of the records that may supersede a removed
#   record. A state computed from the records below this offset may lack keys. The file is written
#   before segments are replaced.
# - ``tombstone-start-offset-checkpoint`` (raftlog's): the end of the removed tombstones. A log that
#   ends below it may hold values of deleted keys whose tombstones no longer exist.

LOG_START_CHECKPOINT_NAME: Final = "log-start-offset-checkpoint"
RECOVERY_POINT_CHECKPOINT_NAME: Final = "recovery-point-offset-checkpoint"
CLEANER_CHECKPOINT_NAME: Final = "cleaner-offset-checkpoint"
COMPACTED_CHECKPOINT_NAME: Final = "compacted-offset-checkpoint"
TOMBSTONE_CHECKPOINT_NAME: Final = "tombstone-start-offset-checkpoint"


def encode_checkpoint(rows: Collection[str]) -> bytes:
    """Encode a checkpoint with these lines."""
    return "\n".join(("0", str(len(rows)), *rows, "")).encode("ascii")


def parse_checkpoint(data: bytes, path: str) -> list[str]:
    """Return a checkpoint's lines; an empty file has none. Raises ``CorruptFileError``."""
    lines = decoded_text(data, path).splitlines()
    if not lines:
        return []
    if whole_number(lines[0], path, "the version") != 0:
        raise CorruptFileError(path=path, reason=f"its version is {lines[0][:20]!r}, not 0")
    count = whole_number(lines[1], path, "the entry count") if len(lines) > 1 else -1
    rows = lines[2:]
    if count != len(rows):
        raise CorruptFileError(path=path, reason=f"it claims {count} entries and has {len(rows)}")
    return rows


def encode_offset_checkpoint(partition: TopicPartition, offset: int) -> bytes:
    """Encode a checkpoint with one partition."""
    return encode_checkpoint([f"{partition.topic} {partition.partition} {offset}"])


def parse_offset_checkpoint(data: bytes, path: str) -> dict[TopicPartition, int]:
    """Return the offset of each partition in a checkpoint. Raises ``CorruptFileError``."""
    offsets: dict[TopicPartition, int] = {}
    for line in parse_checkpoint(data, path):
        fields = line.split()
        if len(fields) != 3:
            raise CorruptFileError(
                path=path, reason=f"{line[:40]!r} is not a topic, a partition and an offset"
            )
        partition = TopicPartition(fields[0], whole_number(fields[1], path, "a partition"))
        offset = whole_number(fields[2], path, "an offset")
        if offset < 0 or partition in offsets:
            raise CorruptFileError(path=path, reason=f"{line[:40]!r} is negative or a duplicate")
        offsets[partition] = offset
    return offsets


def parse_single_offset(data: bytes, path: str) -> int:
    """Return the offset in one log's checkpoint. Raises ``CorruptFileError``.

    The partition in it is ignored, because the directory may have been renamed.
    """
    offsets = parse_offset_checkpoint(data, path)
    if len(offsets) != 1:
        raise CorruptFileError(path=path, reason=f"it names {len(offsets)} partitions, not one")
    return next(iter(offsets.values()))


def encode_epoch_checkpoint(cache: EpochCache) -> bytes:
    """Encode ``leader-epoch-checkpoint``."""
    return encode_checkpoint([f"{entry.epoch} {entry.start_offset}" for entry in cache.entries])


def parse_epoch_checkpoint(data: bytes, path: str) -> EpochCache:
    """Parse ``leader-epoch-checkpoint``. An empty file has no entries.

    Raises ``CorruptFileError``, including for entries that do not ascend.
    """
    entries: list[EpochEntry] = []
    for row in parse_checkpoint(data, path):
        fields = row.split()
        if len(fields) != 2:
            raise CorruptFileError(path=path, reason=f"{row[:40]!r} is not an epoch and an offset")
        entry = EpochEntry(
            epoch=whole_number(fields[0], path, "an epoch"),
            start_offset=whole_number(fields[1], path, "an offset"),
        )
        if entries and (
            entry.epoch <= entries[-1].epoch or entry.start_offset <= entries[-1].start_offset
        ):
            raise CorruptFileError(path=path, reason=f"{row[:40]!r} does not ascend")
        entries.append(entry)
    return EpochCache(tuple(entries))


# --- Producer states up to an offset: a segment's file ``<offset>.snapshot`` ----------------------
# Layout: int16 version, uint32 CRC-32C of all bytes after it, int32 count, one entry per producer.
# More bytes may follow the entries; the CRC covers them.
#
# Kafka: ``ProducerStateManager``, ``ProducerSnapshot`` version 1.

_SNAPSHOT_VERSION: Final = 1
_SNAPSHOT_HEAD: Final = struct.Struct(">hIi")
_SNAPSHOT_CRC_START: Final = struct.calcsize(">hI")
_PRODUCER_ENTRY: Final = struct.Struct(
    ">"
    "q"  # producer_id
    "h"  # producer_epoch
    "i"  # last_sequence
    "q"  # last_offset
    "i"  # offset_delta
    "q"  # timestamp_ms
    "i"  # coordinator_epoch
    "q"  # current_txn_first_offset: -1 if none is open
)
assert (_SNAPSHOT_HEAD.size, _PRODUCER_ENTRY.size) == (10, 46)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """State of one producer in a snapshot."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int
    open_transaction_first_offset: int | None


def parse_producer_snapshot(data: bytes, path: str) -> tuple[ProducerState, ...]:
    """Parse a producer snapshot and check its CRC. Raises ``CorruptFileError``."""
    return split_producer_snapshot(data, path)[0]


def split_producer_snapshot(data: bytes, path: str) -> tuple[tuple[ProducerState, ...], bytes]:
    """Parse a producer snapshot; return its entries, and the bytes after them.

    Kafka checks those bytes only by the CRC. Raises ``CorruptFileError``.
    """
    if len(data) < _SNAPSHOT_HEAD.size:
        raise CorruptFileError(path=path, reason=f"it has {len(data)} bytes, fewer than 10")
    version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise CorruptFileError(
            path=path, reason=f"its version is {version}, not {_SNAPSHOT_VERSION}"
        )
    actual = crc32c(memoryview(data)[_SNAPSHOT_CRC_START:])
    if actual != crc:
        raise CorruptFileError(path=path, reason=f"its CRC is {crc}, computed {actual}")
    if count < 0 or _SNAPSHOT_HEAD.size + count * _PRODUCER_ENTRY.size > len(data):
        raise CorruptFileError(path=path, reason=f"it claims {count} producers")
    found = []
    for ordinal in range(count):
        fields = _PRODUCER_ENTRY.unpack_from(
            data, _SNAPSHOT_HEAD.size + ordinal * _PRODUCER_ENTRY.size
        )
        found.append(
            ProducerState(
                producer_id=fields[0],
                producer_epoch=fields[1],
                last_sequence=fields[2],
                last_offset=fields[3],
                offset_delta=fields[4],
                timestamp_ms=fields[5],
                coordinator_epoch=fields[6],
                open_transaction_first_offset=None if fields[7] < 0 else fields[7],
            )
        )
    return tuple(found), data[_SNAPSHOT_HEAD.size + count * _PRODUCER_ENTRY.size :]


def encode_producer_snapshot(producers: Iterable[ProducerState], trailing: bytes = b"") -> bytes:
    """Encode a producer snapshot as Kafka does, with ``trailing`` after its entries."""
    entries = [
        _PRODUCER_ENTRY.pack(
            producer.producer_id,
            producer.producer_epoch,
            producer.last_sequence,
            producer.last_offset,
            producer.offset_delta,
            producer.timestamp_ms,
            producer.coordinator_epoch,
            _offset_or_none(producer.open_transaction_first_offset),
        )
        for producer in producers
    ]
    body = b"".join((struct.pack(">i", len(entries)), *entries, trailing))
    return struct.pack(">hI", _SNAPSHOT_VERSION, crc32c(body)) + body


def _offset_or_none(offset: int | None) -> int:
    return -1 if offset is None else offset


# --- ``.kafka_cleanshutdown``: the end of the log when its last writer closed it ------------------
# Everything below that end, including indexes and the producer snapshot, is synced before the file
# is written. The file is deleted, and the directory synced, before the first write after an open.
#
# Several processes may have the log open, and the others may continue to write after one of them
# has closed it. Therefore the file stores the end offset, the last segment and its size, and is
# valid only while they match the log.
#
# Kafka: ``CleanShutdownFileHandler``, a JSON object with ``version`` and ``brokerEpoch``. Kafka has
# one file per log directory; raftlog has one per partition.

CLEAN_SHUTDOWN_NAME: Final = ".kafka_cleanshutdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanShutdown:
    """The log's end: ``end_offset`` (exclusive), ``byte_count`` bytes into its last segment."""

    end_offset: int
    segment_base_offset: int
    byte_count: int


def encode_clean_shutdown(marker: CleanShutdown) -> bytes:
    """Return the content of ``.kafka_cleanshutdown``."""
    fields = {
        "version": 0,
        "brokerEpoch": -1,
        "endOffset": marker.end_offset,
        "segment": marker.segment_base_offset,
        "position": marker.byte_count,
    }
    return json.dumps(fields, separators=(",", ":")).encode("ascii")


def parse_clean_shutdown(data: bytes) -> CleanShutdown | None:
    """Parse the file; return None if that fails, which means that the shutdown was not clean."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return None
    match fields:
        case {
            "version": 0,
            "endOffset": int(end_offset),
            "segment": int(segment_base_offset),
            "position": int(byte_count),
        } if 0 <= segment_base_offset <= end_offset and byte_count >= 0:
            return CleanShutdown(
                end_offset=end_offset,
                segment_base_offset=segment_base_offset,
                byte_count=byte_count,
            )
        case _:
            return None


# --- The file ``published``: synced end of an embedded log, shared by its writers with readers ----
# Format: one line of fixed length with the boot id, end offset (exclusive), base offset of the
# active segment, position after the last synced batch in it, leader epoch, log start offset, and a
# CRC-32C of these.
#
# Invariants:
#
# 1. A writer overwrites the line in place after each sync, and never syncs it. The line is valid
#    only within the boot that it names, because after a reboot the file may have bytes of any age.
# 2. A replica of a quorum keeps the same line in the file ``synced``, for its own next start.
#    Readers ignore that file, because synced records may be uncommitted.
# 3. A line with a wrong CRC was read while it was being written. It is read again, at most
#    ``_READS_MAX`` times, and then treated as absent.

PUBLISHED_NAME: Final = "published"
SYNCED_NAME: Final = "synced"

_PUBLISHED_MAGIC: Final = "raftlog-published-1"
_PUBLISHED_FIELDS: Final = 7
PUBLISHED_BYTES_MAX: Final = 512
_READS_MAX: Final = 1000
"""Maximum number of reads of the line; writing it takes about a microsecond."""


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Synced end of an embedded log: all records below ``end_offset`` are synced and may be read.

    ``file_position`` is the position after the last of these batches, in the segment with base
    offset ``segment_base_offset``. ``epoch`` is the latest leader epoch. Records below
    ``log_start_offset`` are deleted.
    """

    boot_id: str
    end_offset: int
    segment_base_offset: int
    file_position: int
    epoch: int
    log_start_offset: int = 0


def encode_published(published: Published) -> bytes:
    """Encode the line. ``boot_id`` is text without spaces."""
    assert len(published.boot_id.split()) == 1, "a boot id is one word"
    text = (
        f"{_PUBLISHED_MAGIC} {published.boot_id} {published.end_offset:020d} "
        f"{published.segment_base_offset:020d} {published.file_position:020d} "
        f"{published.epoch:010d} {published.log_start_offset:020d}"
    ).encode("ascii")
    return text + f" {crc32c(text):08x}\n".encode("ascii")


def parse_published(data: bytes) -> Published | None:
    """Parse the line; None if it is incomplete or its CRC is wrong. Bytes after it are ignored."""
    line, newline, _ = data.partition(b"\n")
    text, _, crc = line.rpartition(b" ")
    if not newline or crc != f"{crc32c(text):08x}".encode("ascii"):
        return None
    fields = text.decode("ascii", "replace").split(" ")
    if len(fields) != _PUBLISHED_FIELDS or fields[0] != _PUBLISHED_MAGIC:
        return None
    if not all(word.isascii() and word.isdigit() for word in fields[2:]):
        return None
    end_offset, segment_base_offset, file_position, epoch, start_offset = map(int, fields[2:])
    return Published(
        boot_id=fields[1],
        end_offset=end_offset,
        segment_base_offset=segment_base_offset,
        file_position=file_position,
        epoch=epoch,
        log_start_offset=start_offset,
    )


def read_published(
    storage: Storage, directory: str, boot_id: str, name: str = PUBLISHED_NAME
) -> Published | None:
    """Return the line if the log's writers have written it since the last boot, else None.

    Raises ``LogAccessError``.
    """
    try:
        with storage.open_file(storage.join(directory, name)) as file:
            for _ in range(_READS_MAX):
                published = parse_published(file.read_at(0, PUBLISHED_BYTES_MAX))
                if published is not None:
                    return published if published.boot_id == boot_id else None
    except LogNotFoundError:
        return None
    return None


# --- ``checksums``: the valid CRC-32C values of each small file of a directory --------------------
# raftlog's, not Kafka's; Kafka's text files have no checksum. The last line is the CRC of all lines
# before it, and only the canonical encoding is accepted, so every flipped bit is detected.

CHECKSUMS_NAME: Final = "checksums"
_CHECKSUMS_FIRST_LINE: Final = "raftlog checksums 1\n"
_CHECKSUMS_LINE: Final = re.compile(r"([^ \n]+)((?: [0-9a-f]{8})+)")

Checksums: TypeAlias = Mapping[str, tuple[int, ...]]
"""Valid CRC-32C values, by file name."""


def encode_checksums(checksums: Checksums) -> bytes:
    """Return the content: a first line, one line per file sorted by name, and a CRC of these."""
    lines = [_CHECKSUMS_FIRST_LINE]
    for name in sorted(checksums):
        line = name + "".join(f" {crc:08x}" for crc in checksums[name])
        assert _CHECKSUMS_LINE.fullmatch(line), f"{name!r} cannot be listed in {CHECKSUMS_NAME}"
        lines.append(line + "\n")
    text = "".join(lines).encode()
    return text + f"crc32c {crc32c(text):08x}\n".encode()


def parse_checksums(data: bytes, path: str) -> Checksums:
    """Parse ``checksums``. Raises ``CorruptFileError`` for any flipped bit."""
    text = data[: data[:-1].rfind(b"\n") + 1]
    if not data or data != text + f"crc32c {crc32c(text):08x}\n".encode():
        raise CorruptFileError(path=path, reason="its last line does not match its checksum")
    checksums = {}
    for line in text.decode("ascii", "replace").removeprefix(_CHECKSUMS_FIRST_LINE).splitlines():
        match = _CHECKSUMS_LINE.fullmatch(line)
        if match is None:
            raise CorruptFileError(
                path=path, reason=f"not a file name and checksums: {line[:40]!r}"
            )
        checksums[match[1]] = tuple(int(crc, 16) for crc in match[2].split())
    if encode_checksums(checksums) != data:
        raise CorruptFileError(path=path, reason="not in the canonical encoding of version 1")
    return checksums
