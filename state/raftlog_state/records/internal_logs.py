"""Formats of the records of Kafka's internal logs other than ``__cluster_metadata``, by topic.

They contain no secrets. Full redaction hides data that clients send (see ``redaction``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from raftlog.errors import OptionError
from raftlog.types import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    REMOTE_LOG_METADATA_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)

from .declare import Message
from .keyed_serde import KeyedSerde, RecordType
from .redaction import Redactor
from .schema_coordinators import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
    TransactionLogKey,
    TransactionLogValue,
)
from .schema_groups import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)
from .schema_remote import (
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataSnapshotRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    RemotePartitionDeleteMetadataRecord,
)
from .schema_streams import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
)
from .serde import DecodedRecord, FramedSerde

CONSUMER_OFFSETS: Final = CONSUMER_OFFSETS_TOPIC
TRANSACTION_STATE: Final = TRANSACTION_STATE_TOPIC
SHARE_GROUP_STATE: Final = SHARE_GROUP_STATE_TOPIC
REMOTE_LOG_METADATA: Final = REMOTE_LOG_METADATA_TOPIC

GROUP_RECORDS: Final = KeyedSerde(
    "a record of the group coordinator",
    [
        RecordType(LegacyOffsetCommitKey, LegacyOffsetCommitValue),
        RecordType(OffsetCommitKey, OffsetCommitValue),
        RecordType(GroupMetadataKey, GroupMetadataValue),
        RecordType(ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
        RecordType(ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue),
        RecordType(ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
        RecordType(
            ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue
        ),
        RecordType(
            ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue
        ),
        RecordType(
            ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue
        ),
        RecordType(ShareGroupMemberMetadataKey, ShareGroupMemberMetadataValue),
        RecordType(ShareGroupMetadataKey, ShareGroupMetadataValue),
        RecordType(ShareGroupTargetAssignmentMetadataKey, ShareGroupTargetAssignmentMetadataValue),
        RecordType(ShareGroupTargetAssignmentMemberKey, ShareGroupTargetAssignmentMemberValue),
        RecordType(ShareGroupCurrentMemberAssignmentKey, ShareGroupCurrentMemberAssignmentValue),
        RecordType(ShareGroupStatePartitionMetadataKey, ShareGroupStatePartitionMetadataValue),
        RecordType(ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
        RecordType(StreamsGroupMetadataKey, StreamsGroupMetadataValue),
        RecordType(StreamsGroupMemberMetadataKey, StreamsGroupMemberMetadataValue),
        RecordType(
            StreamsGroupTargetAssignmentMetadataKey, StreamsGroupTargetAssignmentMetadataValue
        ),
        RecordType(StreamsGroupTargetAssignmentMemberKey, StreamsGroupTargetAssignmentMemberValue),
        RecordType(
            StreamsGroupCurrentMemberAssignmentKey, StreamsGroupCurrentMemberAssignmentValue
        ),
        RecordType(StreamsGroupTopologyKey, StreamsGroupTopologyValue),
    ],
)
TRANSACTION_RECORDS: Final = KeyedSerde(
    "a record of the transaction coordinator",
    [RecordType(TransactionLogKey, TransactionLogValue)],
)
SHARE_RECORDS: Final = KeyedSerde(
    "a record of the share coordinator",
    [
        RecordType(ShareSnapshotKey, ShareSnapshotValue),
        RecordType(ShareUpdateKey, ShareUpdateValue),
    ],
)
REMOTE_LOG_RECORDS: Final = FramedSerde(
    "a remote log metadata record",
    [
        RemoteLogSegmentMetadataRecord,
        RemoteLogSegmentMetadataUpdateRecord,
        RemotePartitionDeleteMetadataRecord,
        RemoteLogSegmentMetadataSnapshotRecord,
    ],
)


@dataclass(frozen=True, slots=True)
class RecordText:
    """Record of an internal log as text.

    ``type_name`` is Kafka's name of its type; ``key`` and ``value`` are the redacted fields as
    JSON. ``key`` is None if the log's records have no keys; ``value`` and ``version`` are None for
    a tombstone.
    """

    api_key: int
    type_name: str
    version: int | None
    key: str | None
    value: str | None


class InternalLog(Protocol):
    """Format of the records of one internal log."""

    def api_key(self, key: bytes | None, value: bytes | None) -> int:
        """Return the number of a record's type, reading only its frame.

        Raises ``MetadataParseError``.
        """

    def text(self, key: bytes | None, value: bytes | None, redactor: Redactor) -> RecordText:
        """Return a record as redacted text. Raises ``MetadataParseError`` if it is damaged."""

    def redacted(
        self, key: bytes | None, value: bytes | None, redactor: Redactor
    ) -> tuple[bytes | None, bytes | None]:
        """Return the bytes of a record as redacted. Raises ``MetadataParseError``."""

    def type_names(self) -> Mapping[int, str]:
        """Return the names of the known types by their numbers."""

    def key_types(self) -> Iterable[type[Message]]:
        """Return the known key types, or the record types if records have no keys."""

    def key_text(self, key: bytes | None, value: bytes | None, redactor: Redactor) -> str:
        """Return the key of a record as redacted text, the record itself if it has none.

        Raises ``MetadataParseError`` if that is damaged.
        """


@dataclass(frozen=True, slots=True)
class _KeyedLog:
    serde: KeyedSerde

    def api_key(self, key: bytes | None, value: bytes | None) -> int:
        return self.serde.peek(key)

    def text(self, key: bytes | None, value: bytes | None, redactor: Redactor) -> RecordText:
        record = redactor.redact_keyed(self.serde.decode(key, value))
        return RecordText(
            self.serde.peek(key),
            self.serde.type_name(record),
            record.version,
            self.serde.key_json(record),
            self.serde.value_json(record),
        )

    def redacted(
        self, key: bytes | None, value: bytes | None, redactor: Redactor
    ) -> tuple[bytes | None, bytes | None]:
        record = self.serde.decode(key, value)
        redacted = redactor.redact_keyed(record)
        return (key, value) if redacted is record else self.serde.encode(redacted)

    def type_names(self) -> Mapping[int, str]:
        return {kind.api_key: kind.name for kind in self.serde.types}

    def key_types(self) -> Iterable[type[Message]]:
        return [kind.key for kind in self.serde.types]

    def key_text(self, key: bytes | None, value: bytes | None, redactor: Redactor) -> str:
        return self.serde.key_json(redactor.redact_keyed(self.serde.decode(key, None)))


@dataclass(frozen=True, slots=True)
class _FramedLog:
    serde: FramedSerde

    def api_key(self, key: bytes | None, value: bytes | None) -> int:
        return self.serde.peek(value or b"")[0]

    def text(self, key: bytes | None, value: bytes | None, redactor: Redactor) -> RecordText:
        record = self._redact(value, redactor)
        return RecordText(
            self.serde.peek(value or b"")[0],
            self.serde.type_name(record),
            record.version,
            None,
            self.serde.data_json(record),
        )

    def redacted(
        self, key: bytes | None, value: bytes | None, redactor: Redactor
    ) -> tuple[bytes | None, bytes | None]:
        return key, self.serde.encode(self._redact(value, redactor))

    def _redact(self, value: bytes | None, redactor: Redactor) -> DecodedRecord:
        record = self.serde.decode(value or b"")
        return redactor.redact(record) if redactor.full else record

    def type_names(self) -> Mapping[int, str]:
        return {kind.schema.api_key: kind.schema.json_type for kind in self.serde.types}

    def key_types(self) -> Iterable[type[Message]]:
        return self.serde.types

    def key_text(self, key: bytes | None, value: bytes | None, redactor: Redactor) -> str:
        return self.serde.data_json(self._redact(value, redactor))


INTERNAL_LOGS: Final[Mapping[str, InternalLog]] = {
    CONSUMER_OFFSETS: _KeyedLog(GROUP_RECORDS),
    TRANSACTION_STATE: _KeyedLog(TRANSACTION_RECORDS),
    SHARE_GROUP_STATE: _KeyedLog(SHARE_RECORDS),
    REMOTE_LOG_METADATA: _FramedLog(REMOTE_LOG_RECORDS),
}
"""Formats by the topic's name."""
assert INTERNAL_LOGS.keys() == INTERNAL_TOPICS

_PARTITION: Final = re.compile(r"(?P<topic>.+)-(?P<number>[0-9]{1,10})")
_WILDCARD: Final = re.compile(r"[*?\[]")
_LOG_ID: Final = re.compile(
    rf"(?P<cluster>.*)@(?:{'|'.join(INTERNAL_LOGS)})-[0-9]{{1,10}}", re.DOTALL
)
"""No id that Kafka creates contains an at sign, which needs no escape in a directory's name."""


def log_id_of(cluster_id: str, topic: str, partition: int) -> str:
    """Return the id of a partition of an internal log among all logs: ``<id>@<topic>-<partition>``.

    Each partition has its own offsets and end, like a cluster's metadata log, whose id is the
    cluster's.
    """
    return f"{cluster_id}@{topic}-{partition}"


def is_internal(log_id: str) -> bool:
    """Return whether an id belongs to a partition of an internal log (``log_id_of``)."""
    return _LOG_ID.fullmatch(log_id) is not None


def cluster_of(log_id: str) -> str:
    """Return the id of the cluster to which a log belongs."""
    found = _LOG_ID.fullmatch(log_id)
    return log_id if found is None else found["cluster"]


def topic_of(path: str) -> str | None:
    """Return the internal topic of a partition's directory, or of a pattern for such directories.

    None for other paths, including patterns that match partitions of several topics.
    """
    name = os.path.basename(path.rstrip("/"))
    plain = _WILDCARD.split(name, maxsplit=1)[0]
    topic = plain.rpartition("-")[0]
    is_partition = plain != name or _PARTITION.fullmatch(name) is not None
    return topic if is_partition and topic in INTERNAL_LOGS else None


def partitions_among(
    paths: Iterable[str], topics: Collection[str] = INTERNAL_LOGS.keys()
) -> list[str]:
    """Return the directories of partitions of the topics, by topic and number.

    Directories that are being deleted, are being moved to another disk, or are stray are left out.
    Kafka has renamed them, and their records would otherwise occur twice.

    Raises ``OptionError`` if a partition occurs twice.
    """
    found: dict[tuple[str, int], str] = {}
    for path in paths:
        match = _PARTITION.fullmatch(os.path.basename(path))
        if match is None or match["topic"] not in topics:
            continue
        partition = match["topic"], int(match["number"])
        if partition in found:
            name = f"{partition[0]}-{partition[1]}"
            reason = f"has {name} twice, at {found[partition]} and {path}: one copy is required"
            raise OptionError(option="path", reason=reason)
        found[partition] = path
    return [found[partition] for partition in sorted(found)]
