"""Records that `raftlog cat --topic`, `--broker` and `--key` print.

Most records of a topic contain only its id, and the removal of an ACL contains only the ACL's id.
The ids are taken from the state before the first printed record, and from the records that are
read.

A key is compared with what is printed of the record, so that a secret that is not printed cannot be
found by its value. Records of a coordinator have a key. Other typed records have none and are found
by their fields. The key of an ordinary partition is one text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from raftlog.client import LogKind, LogReader, SourceKind
from raftlog.errors import DataLossError, OptionError
from raftlog.printable import did_you_mean
from raftlog_state.errors import MetadataParseError
from raftlog_state.image import AclRow, Entity, TopicRow
from raftlog_state.loader.image_reader import ImageReader
from raftlog_state.records import (
    RECORD_TYPES,
    AccessControlEntryRecord,
    ClearElrRecord,
    ConfigRecord,
    FenceBrokerRecord,
    MetadataRecord,
    ProducerIdsRecord,
    Redactor,
    RemoveAccessControlEntryRecord,
    Struct,
    TopicRecord,
    UnfenceBrokerRecord,
    UnknownRecord,
    decode,
)
from raftlog_state.records.declare import Array, Nested

from .output import Console

if TYPE_CHECKING:
    from raftlog_state.records.internal_logs import InternalLog

FieldsOf = Callable[[bytes | None, bytes | None], Mapping[str, Any]]

_TOPIC_CONFIG: Final = 2
_BROKER_CONFIG: Final = 4
_TOPIC_ACL: Final = 2
_GROUP_NAMES: Final = ("group", "groupId")
_FIELDS_SHOWN_MAX: Final = 20
"""Limit for the fields of internal logs; metadata records have many more."""


class NameFilter:
    """Filter of records by topic name or broker id; exactly one of them is specified."""

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
        """Return a hint with the most similar topic; None if the topic exists or none is."""
        if self._topic is None or self._topic in self._topics:
            return None
        return did_you_mean(self._topic, self._topics)

    def takes(self, value: bytes | None) -> bool:
        """Return whether a value is printed; damaged values are, so that they are reported."""
        if value is None:
            return True
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


class KeyFilter:
    """Filter of typed records by fields of their key, all of which must have the given values.

    ``fields_of`` returns the fields of a record as they are printed. Values are compared as JSON
    prints them, without quotes. A dot separates the name of a struct from its field. A group's id
    has either of its two names.
    """

    def __init__(self, conditions: Sequence[tuple[str, str]], fields_of: FieldsOf) -> None:
        self._conditions = [
            ([one.split(".") for one in _names_of(name)], value) for name, value in conditions
        ]
        self._fields_of = fields_of
        self._name = ",".join(f"{name}={value}" for name, value in conditions)

    def __str__(self) -> str:
        return f"key {self._name}"

    def takes(self, key: bytes | None, value: bytes | None) -> bool:
        """Return whether a record is printed; damaged records are, so that they are reported."""
        try:
            found = self._fields_of(key, value)
        except MetadataParseError:
            return True
        return all(
            any(_text_at(found, path) == wanted for path in paths)
            for paths, wanted in self._conditions
        )


class TextKeyFilter:
    """Filter of the records of an ordinary partition by their key, which is a text."""

    def __init__(self, key: str) -> None:
        self._key = key.encode(errors="surrogateescape")

    def __str__(self) -> str:
        return f"key {self._key.decode(errors='backslashreplace')}"

    def takes(self, key: bytes | None, value: bytes | None) -> bool:
        """Return whether a record is printed."""
        return key == self._key


class RecordFilter:
    """Filters of records, all of which a record must pass; None for a filter that is not used."""

    def __init__(self, name: NameFilter | None, key: KeyFilter | TextKeyFilter | None) -> None:
        self._name = name
        self._key = key

    def __str__(self) -> str:
        return " and ".join(str(one) for one in (self._name, self._key) if one is not None)

    def read_ids(self, log: LogReader, start_offset: int, console: Console) -> None:
        """Read what the filters need from the state before the first record to print."""
        if self._name is not None:
            self._name.read_ids(log, start_offset, console)

    def did_you_mean(self) -> str | None:
        """Return a hint with a similar name; None if no name is similar."""
        return None if self._name is None else self._name.did_you_mean()

    def rows(self, keys: Iterable[bytes | None], values: Iterable[bytes | None]) -> list[int]:
        """Return the positions of the records to print, in order; damaged ones are among them."""
        return [
            at
            for at, (key, value) in enumerate(zip(keys, values, strict=True))
            if (self._name is None or self._name.takes(value))
            and (self._key is None or self._key.takes(key, value))
        ]


def record_filter(
    topic: str | None,
    broker: int | None,
    keys: Sequence[str],
    log: LogReader,
    internal: InternalLog | None,
    redactor: Redactor,
) -> RecordFilter | None:
    """Return the filter of ``--topic``, ``--broker`` and ``--key``; None without these options.

    ``internal`` is the format of an internal log's records.

    Raises ``OptionError`` if the log's records have no such name or field.
    """
    by_name = None
    if topic is not None or broker is not None:
        if log.kind is not LogKind.METADATA:
            option = "--broker" if topic is None else "--topic"
            reason = f"{log.path} is not a metadata log, whose records name topics and brokers"
            raise OptionError(option=option, reason=reason)
        by_name = NameFilter(topic, broker)
    by_key = _key_filter(keys, log, internal, redactor) if keys else None
    return None if by_name is None and by_key is None else RecordFilter(by_name, by_key)


def _key_filter(
    keys: Sequence[str], log: LogReader, internal: InternalLog | None, redactor: Redactor
) -> KeyFilter | TextKeyFilter:
    types: Iterable[type[Struct]]
    if log.kind is LogKind.METADATA:
        types = RECORD_TYPES

        def fields_of(key: bytes | None, value: bytes | None) -> Mapping[str, Any]:
            return _object(_printed(redactor.record_json(value or b""))["data"])

    elif internal is not None:
        types, printed = internal.key_types(), internal.key_text

        def fields_of(key: bytes | None, value: bytes | None) -> Mapping[str, Any]:
            return _object(_printed(printed(key, value, redactor)))

    elif len(keys) == 1:
        return TextKeyFilter(keys[0])
    else:
        reason = "the key of a record of an ordinary partition is one text"
        raise OptionError(option="--key", reason=reason)
    known = {name: None for kind in types for name in _field_names(kind)}
    conditions = []
    for text in keys:
        name, equals, value = text.partition("=")
        if not equals:
            reason = f"{text!r} is not of the form FIELD=VALUE; {_listed(known)}"
            raise OptionError(option="--key", reason=reason)
        if not known.keys() & {*_names_of(name)}:
            hint = did_you_mean(name, known)
            fields = f"fields are {', '.join(known)}" if hint is None else _listed(known)
            reason = f"records of this log have no field {name!r}; {fields}"
            if hint is not None:
                reason += f"; {hint}"
            raise OptionError(option="--key", reason=reason)
        conditions.append((name, value))
    return KeyFilter(conditions, fields_of)


def _names_of(field: str) -> tuple[str, ...]:
    """Return the names of a field.

    Keys of commits and classic groups contain the group's id as ``group``, those of KIP-848 and
    share groups as ``groupId``.
    """
    return _GROUP_NAMES if field in _GROUP_NAMES else (field,)


def _listed(known: Mapping[str, object]) -> str:
    """Return the fields as text; if there are many, the first ones."""
    shown = [*known] if len(known) <= _FIELDS_SHOWN_MAX else [*[*known][:3], "..."]
    return f"fields are {', '.join(shown)}"


def _field_names(kind: type[Struct], prefix: str = "") -> Iterator[str]:
    """Yield the names of a type's fields that are not arrays, with dots in structs."""
    for field in kind.fields_schema:
        name = prefix + field.json_name
        if isinstance(field.kind, Nested):
            yield from _field_names(field.kind.struct, f"{name}.")
        elif not isinstance(field.kind, Array):
            yield name


def _printed(text: str) -> Any:
    """Parse JSON; a number with a fraction is the text of it, as Java and Python print others."""
    return json.loads(text, parse_float=str)


def _object(found: object) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}


def _text_at(fields: Mapping[str, Any], path: Sequence[str]) -> str | None:
    """Return the value of a field as it is printed, without quotes; None if there is no field."""
    found: object = fields
    for name in path:
        if not isinstance(found, dict) or name not in found:
            return None
        found = found[name]
    return found if isinstance(found, str) else json.dumps(found)
