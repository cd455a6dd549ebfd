"""The second decoder: key and value bytes of records to type and JSON, for ``verify()``.

Rules of this file:

1. Nothing of ``raftlog`` or ``raftlog_state`` is imported, so an error of the first decoder cannot
   be repeated here through shared code or a shared declaration.
2. A record of unknown type or version is skipped, because the cluster may run a newer Kafka. A
   known record that does not parse is damaged. Damage is a value, not an exception, and contains no
   secrets.
3. The JSON is that of Kafka's dump tool, as far as Spark reads it: a tagged field that is not in
   the bytes is left out.

Source: the message files of Kafka's ``metadata`` and ``clients`` modules, 4.3; KIP-482.
"""

from __future__ import annotations

import json
import math
import re
import struct
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from typing import Any, Final, NamedTuple

_LAYOUTS: Final = """
0 REGISTER_BROKER_RECORD 4: brokerId int32, isMigratingZkBroker@2 bool, incarnationId uuid,
  brokerEpoch int64,
  endPoints [name string, host string, port uint16, securityProtocol int16],
  features [name string, minSupportedVersion int16, maxSupportedVersion int16],
  rack string?, fenced bool, inControlledShutdown@1 bool, logDirs@3#0 [uuid],
  cordonedLogDirs@4#1 [uuid]?
1 UNREGISTER_BROKER_RECORD 0: brokerId int32, brokerEpoch int64
2 TOPIC_RECORD 0: name string, topicId uuid
3 PARTITION_RECORD 2: partitionId int32, topicId uuid, replicas [int32], isr [int32],
  removingReplicas [int32], addingReplicas [int32], leader int32, leaderRecoveryState#0 int8,
  leaderEpoch int32, partitionEpoch int32, directories@1 [uuid],
  eligibleLeaderReplicas@2#1 [int32]?, lastKnownElr@2#2 [int32]?
4 CONFIG_RECORD 0: resourceType int8, resourceName string, name string, value string?
5 PARTITION_CHANGE_RECORD 2: partitionId int32, topicId uuid, isr#0 [int32]?, leader#1 int32,
  replicas#2 [int32]?, removingReplicas#3 [int32]?, addingReplicas#4 [int32]?,
  leaderRecoveryState#5 int8, directories@1#8 [uuid]?, eligibleLeaderReplicas@2#6 [int32]?,
  lastKnownElr@2#7 [int32]?
7 FENCE_BROKER_RECORD 0: id int32, epoch int64
8 UNFENCE_BROKER_RECORD 0: id int32, epoch int64
9 REMOVE_TOPIC_RECORD 0: topicId uuid
10 DELEGATION_TOKEN_RECORD 0: owner string, requester string, renewers [string],
  issueTimestamp int64, maxTimestamp int64, expirationTimestamp int64, tokenId string
11 USER_SCRAM_CREDENTIAL_RECORD 0: name string, mechanism int8, salt bytes, storedKey bytes,
  serverKey bytes, iterations int32
12 FEATURE_LEVEL_RECORD 0: name string, featureLevel int16
14 CLIENT_QUOTA_RECORD 0: entity [entityType string, entityName string?], key string,
  value float64, remove bool
15 PRODUCER_IDS_RECORD 0: brokerId int32, brokerEpoch int64, nextProducerId int64
17 BROKER_REGISTRATION_CHANGE_RECORD 3: brokerId int32, brokerEpoch int64, fenced#0 int8,
  inControlledShutdown@1#1 int8, logDirs@2#2 [uuid], cordonedLogDirs@3#3 [uuid]?
18 ACCESS_CONTROL_ENTRY_RECORD 0: id uuid, resourceType int8, resourceName string,
  patternType int8, principal string, host string, operation int8, permissionType int8
19 REMOVE_ACCESS_CONTROL_ENTRY_RECORD 0: id uuid
20 NO_OP_RECORD 0:
21 ZK_MIGRATION_STATE_RECORD 0: zkMigrationState int8
22 REMOVE_USER_SCRAM_CREDENTIAL_RECORD 0: name string, mechanism int8
23 BEGIN_TRANSACTION_RECORD 0: name#0 string?
24 END_TRANSACTION_RECORD 0:
25 ABORT_TRANSACTION_RECORD 0: reason#0 string?
26 REMOVE_DELEGATION_TOKEN_RECORD 0: tokenId string
27 REGISTER_CONTROLLER_RECORD 0: controllerId int32, incarnationId uuid, zkMigrationReady bool,
  endPoints [name string, host string, port uint16, securityProtocol int16],
  features [name string, minSupportedVersion int16, maxSupportedVersion int16]
28 CLEAR_ELR_RECORD 0: topicName string
29 UNREGISTER_CONTROLLER_RECORD 0: controllerId int32
"""
"""Api key, type, newest version, and fields in their order: name, ``@`` first version unless it is
0, ``#`` tag if it has one, type, ``?`` if null is allowed. Brackets are arrays, of structs too."""

_CONTROL_LAYOUTS: Final = """
2 LEADER_CHANGE 1: version int16, leaderId int32, voters [voterId int32, voterDirectoryId@1 uuid],
  grantingVoters [voterId int32, voterDirectoryId@1 uuid]
3 SNAPSHOT_HEADER 0: version int16, lastContainedLogTimestamp int64
4 SNAPSHOT_FOOTER 0: version int16
5 KRAFT_VERSION 0: version int16, kRaftVersion int16
6 KRAFT_VOTERS 0: version int16, voters [voterId int32, voterDirectoryId uuid,
  endpoints [name string, host string, port uint16],
  kRaftVersionFeature {minSupportedVersion int16, maxSupportedVersion int16}]
"""
"""The same of control records, by the type in their key. Braces are a struct."""

UNKNOWN: Final = "UNKNOWN"
"""Type of a record that is skipped."""

DECODED: Final = "is_control BOOLEAN, record_type STRING, data STRING, damage STRING"
"""Spark's type of ``Decoded``."""


class _DamageError(Exception):
    """Bytes that are not a record."""


class Decoded(NamedTuple):
    """Type and JSON of a record; ``damage`` is why it has none."""

    is_control: bool
    record_type: str | None = None
    data: str | None = None
    damage: str | None = None


_Read = Callable[[bytes, int], tuple[Any, int]]
"""Return the value at a position, and the position after it."""


class _Field(NamedTuple):
    """Field of a layout. ``kind`` is a scalar's name, or the fields of a struct."""

    name: str
    since: int
    tag: int | None
    kind: str | tuple[_Field, ...]
    is_array: bool
    is_nullable: bool


class Layout(NamedTuple):
    """Fields of a record type."""

    record_type: str
    newest_version: int
    fields: tuple[_Field, ...]


def decode(key: bytes | None, value: bytes | None) -> Decoded:
    """Decode a record. In a metadata log control records have a key, and no others do."""
    is_control = key is not None
    try:
        found = _metadata(value) if key is None else _control(key, value)
    except (_DamageError, IndexError, struct.error) as error:
        reason = str(error) if isinstance(error, _DamageError) else "it ends inside a field"
        return Decoded(is_control, damage=reason)
    if found is None:
        return Decoded(is_control, UNKNOWN)
    record_type, data = found
    return Decoded(is_control, record_type, json.dumps(data, ensure_ascii=False))


def _metadata(value: bytes | None) -> tuple[str, Any] | None:
    """Return type and fields of a metadata record; None if it is unknown."""
    if value is None:
        raise _DamageError("it has no value")
    frame, at = _unsigned(value, 0)
    api_key, at = _unsigned(value, at)
    version, at = _unsigned(value, at)
    if frame != 1:
        raise _DamageError(f"frame version {frame}")
    layout = METADATA_LAYOUTS.get(api_key)
    if layout is None or version > layout.newest_version:
        return None
    data, end = _reader(api_key, version, is_control=False)(value, at)
    if end != len(value):
        raise _DamageError(f"{len(value) - end} bytes after {layout.record_type}")
    return layout.record_type, data


def _control(key: bytes, value: bytes | None) -> tuple[str, Any] | None:
    """Return type and fields of a control record; None if it is unknown."""
    _, type_id = struct.unpack_from(">hh", key)
    layout = CONTROL_LAYOUTS.get(type_id)
    if layout is None:
        return None
    if value is None:
        raise _DamageError("it has no value")
    (version,) = struct.unpack_from(">h", value)
    if version > layout.newest_version:
        return None
    return layout.record_type, _reader(type_id, max(version, 0), is_control=True)(value, 0)[0]


# --- layouts --------------------------------------------------------------------------------------


def _parsed(text: str) -> dict[int, Layout]:
    """Return the layouts of a text by their numbers."""
    found = {}
    for entry in re.split(r"\n(?=\d)", text.strip()):
        head, _, fields = entry.partition(":")
        number, record_type, newest_version = head.split()
        tokens = re.findall(r"\w+|[@#?\[\]{}]", fields)
        found[int(number)] = Layout(record_type, int(newest_version), _fields(tokens))
        assert not tokens, record_type
    return found


def _fields(tokens: list[str]) -> tuple[_Field, ...]:
    """Take fields from the front of tokens, up to a closing bracket."""
    fields = []
    while tokens and tokens[0] not in "]}":
        name = tokens.pop(0)
        since = int(_after(tokens, "@") or 0)
        tag = _after(tokens, "#")
        opening = tokens.pop(0)
        kind: str | tuple[_Field, ...] = opening
        if opening in "[{":
            is_scalar = opening == "[" and tokens[1] == "]"
            kind = tokens.pop(0) if is_scalar else _fields(tokens)
            tokens.pop(0)
        is_nullable = tokens[:1] == ["?"]
        del tokens[:is_nullable]
        number = None if tag is None else int(tag)
        fields.append(_Field(name, since, number, kind, opening == "[", is_nullable))
    return tuple(fields)


def _after(tokens: list[str], sign: str) -> str | None:
    """Take a sign and the token after it, if the sign is next."""
    if tokens[0] != sign:
        return None
    _, found = tokens.pop(0), tokens.pop(0)
    return found


METADATA_LAYOUTS: Final = _parsed(_LAYOUTS)
CONTROL_LAYOUTS: Final = _parsed(_CONTROL_LAYOUTS)

# --- readers --------------------------------------------------------------------------------------

_readers: dict[tuple[bool, int, int], _Read] = {}


def _reader(number: int, version: int, *, is_control: bool) -> _Read:
    """Return the reader of a record type's version, built at its first use."""
    known = _readers.get((is_control, number, version))
    if known is None:
        layouts = CONTROL_LAYOUTS if is_control else METADATA_LAYOUTS
        known = _struct(layouts[number].fields, version)
        _readers[is_control, number, version] = known
    return known


def _struct(fields: tuple[_Field, ...], version: int) -> _Read:
    """Return the reader of fields in their order, then of tagged fields by their tags."""
    present = [(field, _field(field, version)) for field in fields if field.since <= version]
    plain = [(field.name, read) for field, read in present if field.tag is None]
    tagged = {field.tag: (field.name, read) for field, read in present if field.tag is not None}

    def read_struct(data: bytes, at: int) -> tuple[Any, int]:
        values: dict[str, Any] = {}
        for name, read in plain:
            values[name], at = read(data, at)
        count, at = _unsigned(data, at)
        for _ in range(count):
            tag, at = _unsigned(data, at)
            size, at = _unsigned(data, at)
            part, at = _taken(data, at, size)
            if tag in tagged:
                name, read = tagged[tag]
                values[name], end = read(part, 0)
                if end != size:
                    raise _DamageError(f"{size - end} bytes after {name}")
        return values, at

    return read_struct


def _field(field: _Field, version: int) -> _Read:
    """Return the reader of a field."""
    kind = field.kind
    read = _SCALARS[kind] if isinstance(kind, str) else _struct(kind, version)
    if field.is_array:
        read = _array(read)

    def read_not_null(data: bytes, at: int) -> tuple[Any, int]:
        value, at = read(data, at)
        if value is None:
            raise _DamageError(f"{field.name} is null")
        return value, at

    return read if field.is_nullable else read_not_null


def _array(read: _Read) -> _Read:
    def read_array(data: bytes, at: int) -> tuple[Any, int]:
        count, at = _unsigned(data, at)
        if count == 0:
            return None, at
        if count - 1 > len(data) - at:
            raise _DamageError(f"an array of {count - 1} elements in {len(data) - at} bytes")
        values = []
        for _ in range(count - 1):
            value, at = read(data, at)
            values.append(value)
        return values, at

    return read_array


def _number(layout: str) -> _Read:
    number = struct.Struct(layout)

    def read_number(data: bytes, at: int) -> tuple[Any, int]:
        return number.unpack_from(data, at)[0], at + number.size

    return read_number


def _float(data: bytes, at: int) -> tuple[Any, int]:
    """Read a double. JSON has no infinity and no NaN, so these become text."""
    (value,) = struct.unpack_from(">d", data, at)
    if math.isnan(value):
        return "NaN", at + 8
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity", at + 8
    return value, at + 8


def _uuid(data: bytes, at: int) -> tuple[Any, int]:
    raw, at = _taken(data, at, 16)
    return urlsafe_b64encode(raw)[:22].decode("ascii"), at


def _string(data: bytes, at: int) -> tuple[Any, int]:
    raw, at = _raw(data, at)
    return None if raw is None else raw.decode("utf-8", "replace"), at


def _bytes(data: bytes, at: int) -> tuple[Any, int]:
    raw, at = _raw(data, at)
    return None if raw is None else b64encode(raw).decode("ascii"), at


def _raw(data: bytes, at: int) -> tuple[bytes | None, int]:
    """Read a length plus 1, then that many bytes; 0 is null."""
    size, at = _unsigned(data, at)
    return (None, at) if size == 0 else _taken(data, at, size - 1)


def _taken(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if size > len(data) - at:
        raise _DamageError(f"a field of {size} bytes in {len(data) - at} bytes")
    return data[at : at + size], at + size


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    """Read an unsigned varint of 32 bits."""
    value = 0
    for shift in range(0, 35, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _DamageError("a number of more than 5 bytes")


_SCALARS: Final[dict[str, _Read]] = {
    "bool": _number(">?"),
    "int8": _number(">b"),
    "int16": _number(">h"),
    "uint16": _number(">H"),
    "int32": _number(">i"),
    "int64": _number(">q"),
    "float64": _float,
    "uuid": _uuid,
    "string": _string,
    "bytes": _bytes,
}
