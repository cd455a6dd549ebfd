"""Small text files of a log's directory, both ways."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from raftlog.errors import CorruptFileError, LogNotFoundError, SegmentDeletedError
from raftlog.limits import EPOCH_MAX, SMALL_FILE_BYTES_MAX
from raftlog.storage.protocol import Storage
from raftlog.types import ZERO_UUID, TopicPartition

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


def read_small_file(storage: Storage, path: str) -> bytes | None:
    """Return the content of a small file; None if it does not exist.

    Raises ``CorruptFileError`` if it is larger than ``SMALL_FILE_BYTES_MAX``.
    """
    try:
        with storage.open_file(path) as file:
            data = file.read_at(0, SMALL_FILE_BYTES_MAX + 1)
    except (LogNotFoundError, SegmentDeletedError):
        return None
    if len(data) > SMALL_FILE_BYTES_MAX:
        raise CorruptFileError(path=path, reason=f"it is larger than {SMALL_FILE_BYTES_MAX} bytes")
    return data


# --- The small files ``quorum-state``, ``meta.properties`` and ``partition.metadata`` -------------
# Kafka: ``FileQuorumStateStore`` (``QuorumStateData``), ``MetaProperties``, ``PartitionMetadata``.
# Parsers take the bytes of a file and its path, and raise ``CorruptFileError`` only; encoders
# return the bytes that Kafka writes. An absent value is None, never -1 or the zero uuid.


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumState:
    """Persistent election state of a voter. ``voters``: version 0 only; may be null there."""

    version: int
    leader_epoch: int
    leader_id: int | None
    voted_id: int | None
    voted_directory_id: str | None = None
    cluster_id: str | None = None
    voters: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaProperties:
    """Owner of a log directory. The key of the node id is ``broker.id`` in version 0."""

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
    """Parse ``quorum-state``: a JSON object, ``data_version`` 0 or 1, with every field of it."""
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
    """Encode one line of JSON, fields in Kafka's order (``QuorumStateDataJsonConverter``)."""
    leader = {
        "leaderId": _number_or_none(state.leader_id),
        "leaderEpoch": state.leader_epoch,
        "votedId": _number_or_none(state.voted_id),
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
    """Encode ``meta.properties``, names in the order of Kafka's file.

    ``written`` is the date comment of ``java.util.Properties.store``.
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
    """Yield the pairs of a file in Java's property format.

    Comments, continuation lines, three separators and escapes, in ISO-8859-1, as by
    ``java.util.Properties.load``. The last pair of a name counts.
    """
    for line in _logical_lines(data.decode("latin-1")):
        match = re.match(r"((?:\\.|[^\\=:\s])*)[ \t\f]*[=:]?[ \t\f]*(.*)", line, re.DOTALL)
        assert match is not None, "every part of the pattern may be empty"
        yield _unescaped(match[1], path), _unescaped(match[2], path)


def _logical_lines(text: str) -> Iterator[str]:
    """Yield lines joined with their continuation lines, without blank lines and comments."""
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
    # Two escapes may be a surrogate pair of one letter; a lone surrogate is kept.
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


def _number_or_none(node_id: int | None) -> int:
    return -1 if node_id is None else node_id


def _node_id(value: int) -> int | None:
    return None if value == -1 else value


# --- The files ``log-start-offset-checkpoint`` and ``recovery-point-offset-checkpoint`` -----------
# Format (Kafka: ``OffsetCheckpointFile``, ``CheckpointFile``): version 0, the count, and lines
# ``topic partition offset``. Kafka has one of each per log directory; here each log has its own.
# All bytes below the recovery point are synced: ``recovery_point <= synced``.

LOG_START_CHECKPOINT_NAME: Final = "log-start-offset-checkpoint"
RECOVERY_POINT_CHECKPOINT_NAME: Final = "recovery-point-offset-checkpoint"


def encode_offset_checkpoint(partition: TopicPartition, offset: int) -> bytes:
    """Encode a checkpoint of one partition."""
    return f"0\n1\n{partition.topic} {partition.partition} {offset}\n".encode("ascii")


def parse_offset_checkpoint(data: bytes, path: str) -> dict[TopicPartition, int]:
    """Return the offset of each partition in a checkpoint. Raises ``CorruptFileError``."""
    lines = decoded_text(data, path).splitlines()
    if not lines:
        return {}
    if whole_number(lines[0], path, "the version") != 0:
        raise CorruptFileError(path=path, reason=f"its version is {lines[0][:20]!r}, not 0")
    count = whole_number(lines[1], path, "the entry count") if len(lines) > 1 else -1
    if count != len(lines) - 2:
        raise CorruptFileError(
            path=path, reason=f"it claims {count} entries and has {max(0, len(lines) - 2)}"
        )
    offsets: dict[TopicPartition, int] = {}
    for line in lines[2:]:
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
    """Return the offset in a checkpoint of one log. Raises ``CorruptFileError``.

    The partition in it is ignored: a directory may have been renamed.
    """
    offsets = parse_offset_checkpoint(data, path)
    if len(offsets) != 1:
        raise CorruptFileError(path=path, reason=f"it names {len(offsets)} partitions, not one")
    return next(iter(offsets.values()))
