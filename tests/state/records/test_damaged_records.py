"""Damage of a known record is one typed error with a position, whatever the bytes are."""

from __future__ import annotations

import pickle
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.metadata_values import DATA, golden_vectors, values_of
from tests.support.sweep_size import nightly_except

from raftlog.limits import STRING_BYTES_MAX
from raftlog_state.errors import MetadataParseError
from raftlog_state.records import (
    RECORD_TYPES,
    ConfigRecord,
    DelegationTokenRecord,
    MetadataRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
    UserScramCredentialRecord,
    decode,
    encode,
    from_json,
    to_json,
)

EVERY_RECORD = DATA / "kraft-logs/every-record-4.3.1/none/__cluster_metadata-0"
LOGGED = values_of(EVERY_RECORD / "00000000000000000000.log")
GOLDEN = [value for _, _, value, _ in golden_vectors()]
UUID = "0102030405060708" * 2


def error_of(value: bytes) -> MetadataParseError:
    with pytest.raises(MetadataParseError) as caught:
        decode(value)
    error = caught.value
    assert 0 <= error.position <= len(value)
    assert error.__context__ is None, "an error in its chain could show bytes of the record"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    return error


def test_a_record_truncated_at_any_byte_is_damage() -> None:
    for value in GOLDEN:
        for end in range(len(value)):
            error_of(value[:end])


def test_every_logged_record_truncated_anywhere_is_damage() -> None:
    for value in LOGGED:
        for end in range(0, len(value), 7):
            with pytest.raises(MetadataParseError):
                decode(value[:end])


def test_bytes_after_a_record_are_damage() -> None:
    for value in GOLDEN:
        error = error_of(value + b"\x00")
        assert error.position == len(value)
        assert error.reason == "1 trailing bytes after the record"


@pytest.mark.parametrize("whole", nightly_except([False], [False, True]), ids=["chosen", "whole"])
def test_any_flipped_bit_gives_a_record_or_the_error(whole: bool) -> None:
    for value in GOLDEN if whole else GOLDEN[1::2]:
        for at in range(len(value)):
            for bit in range(8) if whole else (at % 8, 7):  # the top bit ends a varint
                flipped = value[:at] + bytes([value[at] ^ 1 << bit]) + value[at + 1 :]
                check_any(flipped)


def check_any(value: bytes) -> None:
    """Check that a decoded value can be shown and encoded, and all else raises the one error."""
    try:
        decoded = decode(value)
    except MetadataParseError:
        decoded = None
    if decoded is None:
        error_of(value)
        return
    again = encode(decoded)
    assert encode(decode(again)) == again
    assert encode(from_json(to_json(decoded))) == again


@given(
    st.sampled_from(RECORD_TYPES),
    st.integers(0, 5),
    st.binary(max_size=120),
)
def test_random_bytes_after_a_frame_are_a_record_or_damage(
    kind: type[MetadataRecord], version: int, payload: bytes
) -> None:
    check_any(bytes([1, kind.schema.api_key, version]) + payload)


@given(st.binary(max_size=60))
def test_random_bytes_are_a_record_or_damage(value: bytes) -> None:
    check_any(value)


@given(st.data())
def test_records_with_a_replaced_part_are_a_record_or_damage(data: st.DataObject) -> None:
    value = data.draw(st.sampled_from(LOGGED))
    start = data.draw(st.integers(0, len(value)))
    end = data.draw(st.integers(start, min(len(value), start + 5)))
    check_any(value[:start] + data.draw(st.binary(max_size=6)) + value[end:])


@pytest.mark.parametrize(
    ("value", "position", "reason"),
    [
        ("010200 00" + UUID + "00", 3, "name: it is null and not nullable"),
        ("010200 09 61", 3, "name: it has 8 bytes, but only 1 bytes are left"),
        ("010200 03 c328" + UUID + "00", 4, "name: it is not UTF-8"),
        ("010200 ffffffff0f 61", 3, "name: it has 4294967294 bytes, but only 1 bytes are left"),
        ("010200 ffffffffff0f 61", 3, "name: malformed length"),
        ("010200 04 666f6f 0102", 7, "topicId: the record is truncated"),
        ("010200 04 666f6f" + UUID, 23, "tagged fields: the record is truncated"),
        (
            "010200 04 666f6f" + UUID + "01 01 05 00",
            24,
            "tag 1 has size 5, but only 1 bytes are left",
        ),
        ("010200 04 666f6f" + UUID + "02 0100 0100", 26, "tag 1 follows tag 1"),
        ("010200 04 666f6f" + UUID + "02 0500 0100", 26, "tag 1 follows tag 5"),
        ("011700 01 ffffffff07 00", 4, "tag 2147483647 is out of range"),
        ("011700 01 00 03 0273", 4, "tag 0 has size 3"),
        ("011700 01 00 03 027300", 4, "name: its size is not 3"),
        ("010100 0000", 3, "brokerId to brokerEpoch: the record is truncated"),
        ("010e00 03 0275 00 00", 8, "entity[].entityType: the record is truncated"),
        ("010e00 01 0161 00", 5, "value to remove: the record is truncated"),
    ],
)
def test_damage_is_reported_with_its_field_and_position(
    value: str, position: int, reason: str
) -> None:
    error = error_of(bytes.fromhex(value))
    assert error.position == position
    assert error.reason.startswith(reason)


def test_damage_inside_an_array_is_reported_with_its_path() -> None:
    value = encode(RegisterBrokerRecord(), version=0)
    at = 3 + 4 + 16 + 8
    damaged = value[:at] + bytes.fromhex("02 0261 03 ff28 0001 0000 00") + value[at + 1 :]
    error = error_of(damaged)
    assert error.reason == "endPoints[].host: it is not UTF-8"
    assert error.position == at + 4


def test_strings_longer_than_kafka_allows_are_refused() -> None:
    length = STRING_BYTES_MAX + 2
    head = bytes([length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14])
    value = b"\x01\x1c\x00" + head + b"x" * (STRING_BYTES_MAX + 1) + b"\x00"
    assert "at most 32767 are allowed" in error_of(value).reason


COUNT_MAX = b"\xff\xff\xff\xff\x07"


@pytest.mark.parametrize(
    ("record", "position"),
    [
        (PartitionRecord(), 3 + 20),  # replicas
        (RegisterBrokerRecord(), 3 + 29),  # end points
        (DelegationTokenRecord(), 3 + 2),  # renewers
        (UserScramCredentialRecord(), 3 + 2),  # salt
        (TopicRecord(), 3),  # name
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else "",
)
def test_a_wrong_count_allocates_nothing(record: MetadataRecord, position: int) -> None:
    value = encode(record)
    lying = value[:position] + COUNT_MAX + b"\x01" * 1000
    error_of(lying)  # modules loaded and functions compiled on first use
    tracemalloc.start()
    error = error_of(lying)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "bytes are left" in error.reason
    assert error.position == position
    assert peak < 100_000


def test_a_wrong_count_of_tags_allocates_little() -> None:
    value = encode(ConfigRecord())[:-1] + COUNT_MAX + b"\x01"
    tracemalloc.start()
    error = error_of(value)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "the record is truncated" in error.reason
    assert peak < 100_000
