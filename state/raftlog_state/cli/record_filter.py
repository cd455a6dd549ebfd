"""Records that `raftlog cat --topic` and `--broker` print: those that name a topic or a broker.

Most records of a topic have its id only, and the removal of an ACL has that of the ACL. The ids are
those in the state before the first record that is printed, and those of the records that are read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from raftlog.client import LogKind, LogReader, SourceKind
from raftlog.errors import DataLossError, OptionError
from raftlog.printable import did_you_mean
from raftlog_state.errors import MetadataParseError
from raftlog_state.image import AclRow, Entity, TopicRow
from raftlog_state.loader.image_reader import ImageReader
from raftlog_state.records import (
    AccessControlEntryRecord,
    ClearElrRecord,
    ConfigRecord,
    FenceBrokerRecord,
    MetadataRecord,
    ProducerIdsRecord,
    Redactor,
    RemoveAccessControlEntryRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnknownRecord,
    decode,
)

from .output import Console

_TOPIC_CONFIG: Final = 2
_BROKER_CONFIG: Final = 4
_TOPIC_ACL: Final = 2


class RecordFilter:
    """Filter of records by topic name or broker id; exactly one of them is given."""

    def __init__(self, topic: str | None, broker: int | None) -> None:
        self._topic = topic
        self._broker = broker
        self._topics: set[str] = set()
        self._topic_ids: set[str] = set()
        self._acl_ids: set[str] = set()

    def __str__(self) -> str:
        return f"broker/{self._broker}" if self._topic is None else f"topic/{self._topic}"

    def read_ids(self, log: LogReader, start_offset: int, console: Console) -> None:
        """Read the ids that topic and ACLs have in the state before the first record to print."""
        if self._topic is None or start_offset == 0 or log.source is SourceKind.CHECKPOINT:
            return
        try:
            image = ImageReader(log, Redactor()).image_at(start_offset)
        except DataLossError as error:
            console.log(f"records of topics that were created before are left out: {error.reason}")
            return
        self._topics.update(row.name for row in image.rows_of(TopicRow))
        self._topic_ids.update(
            row.topic_id
            for key in image.group((Entity.TOPIC, self._topic, ""))
            if isinstance(row := image.get(Entity.TOPIC, key), TopicRow)
        )
        self._acl_ids.update(
            row.acl_id
            for row in image.rows(Entity.ACL)
            if isinstance(row, AclRow)
            and (row.resource_type, row.resource_name) == (_TOPIC_ACL, self._topic)
        )

    def did_you_mean(self) -> str | None:
        """Return a hint with the most similar topic; None if the topic exists, or none is."""
        if self._topic is None or self._topic in self._topics:
            return None
        return did_you_mean(self._topic, self._topics)

    def rows(self, values: Iterable[bytes | None]) -> list[int]:
        """Return the positions of the values to print, in order; damaged ones are among them."""
        return [at for at, value in enumerate(values) if value is None or self._takes(value)]

    def _takes(self, value: bytes) -> bool:
        try:
            record = decode(value).record
        except MetadataParseError:
            return True
        if isinstance(record, UnknownRecord):
            return False
        return self._is_of_broker(record) if self._topic is None else self._is_of_topic(record)

    def _is_of_topic(self, record: MetadataRecord) -> bool:
        match record:
            case TopicRecord():
                self._topics.add(record.name)
                if record.name != self._topic:
                    return False
                self._topic_ids.add(record.topic_id)
                return True
            case ConfigRecord():
                return (record.resource_type, record.resource_name) == (_TOPIC_CONFIG, self._topic)
            case AccessControlEntryRecord():
                if (record.resource_type, record.resource_name) != (_TOPIC_ACL, self._topic):
                    return False
                self._acl_ids.add(record.id)
                return True
            case RemoveAccessControlEntryRecord():
                return record.id in self._acl_ids
            case ClearElrRecord():
                return record.topic_name in ("", self._topic)
        return getattr(record, "topic_id", None) in self._topic_ids

    def _is_of_broker(self, record: MetadataRecord) -> bool:
        match record:
            case FenceBrokerRecord() | UnfenceBrokerRecord():
                return record.id == self._broker
            case ConfigRecord():
                named = (record.resource_type, record.resource_name)
                return named == (_BROKER_CONFIG, str(self._broker))
            case ProducerIdsRecord():
                return False  # the broker that requested a block of ids is a detail of it
        return getattr(record, "broker_id", None) == self._broker


def record_filter(topic: str | None, broker: int | None, log: LogReader) -> RecordFilter:
    """Return the filter of ``--topic`` or ``--broker``.

    Raises ``OptionError`` if the log does not have metadata records.
    """
    if log.kind is not LogKind.METADATA:
        option = "--broker" if topic is None else "--topic"
        reason = f"{log.path} is not a metadata log, whose records name topics and brokers"
        raise OptionError(option=option, reason=reason)
    return RecordFilter(topic, broker)
