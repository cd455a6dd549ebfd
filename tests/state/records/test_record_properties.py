"""Generated records of every type and version round trip; invalid ones are reported."""

from __future__ import annotations

import copy
import json
import math
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.metadata_values import EVERY_VERSION, structs, values, version_name

from raftlog_state.errors import InvalidRecordError, UnsupportedVersionError
from raftlog_state.records import (
    BrokerEndpoint,
    ClientQuotaRecord,
    ConfigRecord,
    DecodedRecord,
    EntityData,
    MetadataRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
    UserScramCredentialRecord,
    decode,
    encode,
    from_json,
    to_json,
    to_json_text,
)

ABSENT = [
    (kind, version, field)
    for kind, version in EVERY_VERSION
    for field in kind.schema.fields
    if field.since > version
]


@pytest.mark.parametrize(("kind", "version"), EVERY_VERSION, ids=version_name)
@settings(max_examples=5)
@given(data=st.data())
def test_a_record_round_trips_through_bytes_and_json(
    kind: type[MetadataRecord], version: int, data: st.DataObject
) -> None:
    assert_round_trips(data.draw(structs(kind, version)), version)


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "version"), EVERY_VERSION, ids=version_name)
@settings(max_examples=40)
@given(data=st.data())
def test_many_records_round_trip_through_bytes_and_json(
    kind: type[MetadataRecord], version: int, data: st.DataObject
) -> None:
    assert_round_trips(data.draw(structs(kind, version)), version)


def assert_round_trips(record: MetadataRecord, version: int) -> None:
    value = encode(record, version)
    decoded = decode(value)
    assert decoded == DecodedRecord(version, record)
    assert type(decoded.record) is type(record)
    assert hash(decoded) == hash(DecodedRecord(version, record))
    assert encode(decoded) == value
    text = to_json_text(decoded)
    assert from_json(json.loads(text)) == decoded
    assert to_json(decoded) == json.loads(text)
    assert pickle.loads(pickle.dumps(decoded)) == copy.deepcopy(decoded) == decoded


@pytest.mark.parametrize(("kind", "version", "field"), ABSENT, ids=str)
@settings(max_examples=3)
@given(data=st.data())
def test_a_field_missing_in_the_version_is_refused(
    kind: type[MetadataRecord], version: int, field: Any, data: st.DataObject
) -> None:
    value = data.draw(values(field, field.since).filter(lambda value: value != field.default))
    record = kind(**{field.attribute: value})
    for write in (encode, to_json_text):
        with pytest.raises(UnsupportedVersionError, match=field.json_name) as caught:
            write(record, version)
        assert caught.value.version == version
        assert caught.value.record == kind.schema.name
    shown = to_json(record, field.since)
    shown["version"] = version
    with pytest.raises(InvalidRecordError):
        from_json(shown)


def test_a_decoded_record_is_as_immutable_as_a_constructed_one() -> None:
    decoded = decode(encode(TopicRecord(name="a"))).record
    assert isinstance(decoded, TopicRecord)
    with pytest.raises(AttributeError):
        decoded.name = "b"  # type: ignore[misc]
    assert not hasattr(decoded, "__dict__")
    assert repr(decoded) == repr(TopicRecord(name="a"))


def test_a_record_without_a_version_is_written_in_its_latest_one() -> None:
    assert decode(encode(PartitionRecord())).version == 2
    assert to_json(PartitionRecord())["version"] == 2
    assert decode(encode(DecodedRecord(1, PartitionRecord()), version=0)).version == 0


@pytest.mark.parametrize("version", [-1, 1, 32_768])
def test_an_unknown_version_is_not_written(version: int) -> None:
    for write in (encode, to_json_text):
        with pytest.raises(UnsupportedVersionError, match="supported versions are 0 to 0"):
            write(TopicRecord(), version)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0])
def test_doubles_that_are_no_json_numbers_round_trip(value: float) -> None:
    bytes_of_it = encode(ClientQuotaRecord(value=value))
    assert encode(decode(bytes_of_it)) == bytes_of_it
    assert encode(from_json(to_json(decode(bytes_of_it)))) == bytes_of_it


@pytest.mark.parametrize(
    ("record", "field", "reason"),
    [
        (PartitionRecord(leader=2**31), "leader", "it does not fit into int32"),
        (PartitionRecord(isr=(1, -(2**31) - 1)), "isr", "does not fit into int32"),
        (PartitionRecord(topic_id="short"), "topicId", "not a uuid"),
        (PartitionRecord(directories=("A" * 22, "A" * 21 + "B")), "directories", "not a uuid"),
        (ConfigRecord(name="x" * 32_768), "name", "longer than 32767 bytes"),
        (ConfigRecord(value="\ud800"), "value", "cannot be encoded as UTF-8"),
        (
            RegisterBrokerRecord(end_points=(BrokerEndpoint(port=65_536),)),
            "endPoints.port",
            "does not fit into uint16",
        ),
        (TopicRecord(name=None), "name", "not nullable"),  # type: ignore[arg-type]
        (PartitionRecord(isr=None), "isr", "not nullable"),  # type: ignore[arg-type]
        (UserScramCredentialRecord(salt=None), "salt", "not nullable"),  # type: ignore[arg-type]
        (ClientQuotaRecord(value=10**400), "value", "does not fit into float64"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_outside_the_range_of_kafkas_type_are_not_written(
    record: MetadataRecord, field: str, reason: str
) -> None:
    with pytest.raises(InvalidRecordError, match=reason) as caught:
        encode(record)
    assert caught.value.field == field
    assert caught.value.__context__ is None


QUOTA = to_json(ClientQuotaRecord(entity=(EntityData(entity_type="user"),), key="k"))


def changed(**fields: Any) -> dict[str, Any]:
    return {**QUOTA, "data": {**QUOTA["data"], **fields}}


@pytest.mark.parametrize(
    ("parsed", "field"),
    [
        ({}, "version"),
        ({"type": "TOPIC_RECORD", "version": "0"}, "version"),
        ({"type": "TOPIC_RECORD", "version": True}, "version"),
        ({"type": "TOPIC_RECORD", "version": -1}, "version"),
        ({"type": "NO_SUCH_RECORD", "version": 0, "data": {}}, "type"),
        ({"type": ["NO_OP_RECORD"], "version": 0, "data": {}}, "type"),
        ({"type": "TOPIC_RECORD", "version": 0}, ""),
        ({"type": "TOPIC_RECORD", "version": 0, "data": {"name": "x"}}, "topicId"),
        (changed(valeu=1.0), "valeu"),
        (changed(key=None), "key"),
        (changed(key=7), "key"),
        (changed(value="7"), "value"),
        (changed(value=True), "value"),
        (changed(value=10**400), "value"),
        (changed(value=[]), "value"),
        (changed(remove=0), "remove"),
        (changed(entity={}), "entity"),
        (changed(entity=[1]), "entity"),
        (changed(entity=[{"entityType": "user"}]), "entity.entityName"),
        (changed(unknownTaggedFields={}), "unknownTaggedFields"),
        (changed(unknownTaggedFields=[{}]), "unknownTaggedFields"),
        (changed(unknownTaggedFields=[{"tag": 1, "data": "!"}]), "unknownTaggedFields.data"),
        ({"type": "UNKNOWN", "version": 0}, "data"),
        ({"type": "UNKNOWN", "version": 0, "data": {"apiKey": "x"}}, "data.apiKey"),
        ({"type": "UNKNOWN", "version": 0, "data": {"apiKey": 99, "payload": "?"}}, "data.payload"),
    ],
    ids=str,
)
def test_json_that_is_no_record_is_refused_with_the_field(
    parsed: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRecordError) as caught:
        from_json(parsed)
    assert caught.value.field == field


def test_json_of_an_unknown_version_is_refused() -> None:
    with pytest.raises(UnsupportedVersionError):
        from_json({"type": "TOPIC_RECORD", "version": 1, "data": {}})


def test_json_may_have_other_keys_and_whole_doubles() -> None:
    decoded = from_json({"offset": 7, **changed(value=5)})
    assert decoded.record == ClientQuotaRecord(
        entity=(EntityData(entity_type="user"),), key="k", value=5.0
    )
