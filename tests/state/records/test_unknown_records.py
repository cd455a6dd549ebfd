"""Unknown records and fields are passed through raw, shown as unknown, and never an error."""

from __future__ import annotations

import json

import pytest

from raftlog_state.errors import InvalidRecordError, MetadataParseError, UnsupportedVersionError
from raftlog_state.records import (
    RECORD_TYPES,
    BrokerEndpoint,
    DecodedRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
    TopicRecord,
    UnknownReason,
    UnknownRecord,
    UnknownTag,
    decode,
    encode,
    from_json,
    peek,
    to_json,
    to_json_text,
)

UNKNOWN_API_KEY = bytes.fromhex("012a03 0708 00")
NEWER_TOPIC = bytes.fromhex("010201 04666f6f 0102030405060708111213141516171800")


def test_an_unknown_api_key_is_kept() -> None:
    decoded = decode(UNKNOWN_API_KEY)
    unknown = UnknownRecord(
        api_key=42, version=3, reason=UnknownReason.API_KEY, payload=b"\x07\x08\x00"
    )
    assert decoded == DecodedRecord(3, unknown)
    assert encode(decoded) == encode(unknown) == UNKNOWN_API_KEY
    assert peek(UNKNOWN_API_KEY) == (42, 3)


def test_a_newer_version_of_a_known_type_is_kept() -> None:
    decoded = decode(NEWER_TOPIC)
    assert isinstance(decoded.record, UnknownRecord)
    assert (decoded.record.api_key, decoded.version) == (2, 1)
    assert decoded.record.reason is UnknownReason.VERSION
    assert encode(decoded) == NEWER_TOPIC


@pytest.mark.parametrize("value", [UNKNOWN_API_KEY, NEWER_TOPIC], ids=["api key", "version"])
def test_an_unknown_record_is_shown_as_unknown_and_round_trips(value: bytes) -> None:
    decoded = decode(value)
    shown = to_json(decoded)
    assert list(shown) == ["type", "version", "data"]
    assert shown["type"] == "UNKNOWN"
    assert list(shown["data"]) == ["apiKey", "reason", "payload"]
    assert from_json(json.loads(to_json_text(decoded))) == decoded


def test_an_unknown_record_has_a_text() -> None:
    assert to_json_text(decode(UNKNOWN_API_KEY)) == (
        '{"type":"UNKNOWN","version":3,"data":'
        '{"apiKey":42,"reason":"this api key is not known","payload":"BwgA"}}'
    )


@pytest.mark.parametrize("api_key", [6, 13, 16, 30, 127, 128, 300, 32_767])
@pytest.mark.parametrize("version", [0, 127, 128, 32_767])
def test_every_unassigned_api_key_round_trips(api_key: int, version: int) -> None:
    unknown = UnknownRecord(
        api_key=api_key, version=version, reason=UnknownReason.API_KEY, payload=b"\x00"
    )
    value = encode(unknown)
    assert decode(value) == DecodedRecord(version, unknown)
    assert peek(value) == (api_key, version)


def test_an_unknown_record_is_written_in_no_other_version() -> None:
    with pytest.raises(UnsupportedVersionError, match="its type is unknown"):
        encode(decode(UNKNOWN_API_KEY), version=2)


@pytest.mark.parametrize("kind", RECORD_TYPES, ids=lambda kind: kind.schema.name)
def test_unknown_tags_of_any_record_are_kept_and_shown(kind: type[TopicRecord]) -> None:
    record = kind(unknown_tags=(UnknownTag(50, b"\x01\x02"), UnknownTag(300, b"")))
    version = kind.schema.latest_version
    value = encode(record)
    assert value.endswith(b"\x32\x02\x01\x02\xac\x02\x00")
    decoded = decode(value)
    assert decoded == DecodedRecord(version, record)
    assert encode(decoded) == value
    shown = to_json(decoded)
    assert list(shown["data"])[-1] == "unknownTaggedFields"
    assert shown["data"]["unknownTaggedFields"] == [
        {"tag": 50, "data": "AQI="},
        {"tag": 300, "data": ""},
    ]
    assert from_json(shown) == decoded


def test_unknown_tags_inside_an_array_are_kept_and_shown() -> None:
    endpoint = BrokerEndpoint(name="A", unknown_tags=(UnknownTag(0, b"x"),))
    record = RegisterBrokerRecord(end_points=(endpoint, BrokerEndpoint()))
    decoded = decode(encode(record))
    assert decoded.record == record
    assert from_json(to_json(decoded)) == decoded
    shown = to_json(decoded)["data"]["endPoints"]
    assert "unknownTaggedFields" in shown[0]
    assert "unknownTaggedFields" not in shown[1]


def test_unknown_tags_among_known_ones_are_in_order() -> None:
    record = PartitionChangeRecord(
        leader=1, directories=(), unknown_tags=(UnknownTag(9, b"n"), UnknownTag(10, b""))
    )
    value = encode(record)
    assert value[23:] == bytes.fromhex("04 010400000001 080101 09016e 0a00")
    assert decode(value).record == record


@pytest.mark.parametrize(
    "unknown_tags",
    [
        (UnknownTag(9, b""), UnknownTag(9, b"")),
        (UnknownTag(1, b"known"),),
        (UnknownTag(-1, b""),),
        (UnknownTag(2**31 - 1, b""),),
    ],
    ids=["twice", "known", "negative", "too large"],
)
def test_invalid_tags_are_not_written(unknown_tags: tuple[UnknownTag, ...]) -> None:
    with pytest.raises(InvalidRecordError, match="unknownTaggedFields"):
        encode(PartitionChangeRecord(unknown_tags=unknown_tags))


def test_a_tag_of_a_later_version_is_damage() -> None:
    value = encode(PartitionChangeRecord(directories=()), version=1)
    with pytest.raises(MetadataParseError, match="directories: not valid in this version"):
        decode(b"\x01\x05\x00" + value[3:])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "frame version is malformed"),
        ("00020000", "unsupported frame version 0; Kafka writes 1"),
        ("02020000", "unsupported frame version 2"),
        ("01", "its api key is malformed: unexpected end of data"),
        ("0102", "its version is malformed"),
        ("0180800200", "api key 32768 is out of range"),
        ("0102ffffff7f", "version 268435455 is out of range"),
        ("01ffffffffff0f00", "its api key is malformed"),
    ],
)
def test_a_value_without_a_frame_is_refused(value: str, reason: str) -> None:
    for read in (decode, peek):
        with pytest.raises(MetadataParseError, match=reason) as caught:
            read(bytes.fromhex(value))
        assert caught.value.version is None
        assert "None" not in str(caught.value)


def test_a_frame_with_padded_varints_is_read_as_by_kafka() -> None:
    plain = encode(TopicRecord(name="foo"))
    padded = b"\x81\x00\x82\x00\x80\x00" + plain[3:]
    assert decode(padded) == decode(plain)
    assert peek(padded) == (2, 0)


def test_the_largest_tag_is_kept() -> None:
    record = TopicRecord(unknown_tags=(UnknownTag(2**31 - 2, b"x"),))
    assert decode(encode(record)).record == record
