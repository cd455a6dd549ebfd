"""Control records: dump-log's output, unknown types and versions, and damage."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.dumps import control_text

from raftlog.errors import CorruptBatchError, RaftlogError
from raftlog.records.control import (
    ControlRecord,
    ControlType,
    KRaftVersion,
    KRaftVoters,
    LeaderChange,
    SnapshotFooter,
    SnapshotHeader,
    UnknownControl,
    Voter,
    VoterEndpoint,
    control_json,
    control_name,
    decode_control,
    encode_control,
)
from raftlog.records.fields import TaggedField


def key_of(type_id: int, version: int = 0) -> bytes:
    return struct.pack(">hh", version, type_id)


TAGGED = (TaggedField(7, b"later"), TaggedField(300, b""))


@pytest.mark.parametrize(
    "record",
    [
        SnapshotHeader(last_contained_log_timestamp_ms=-1, tagged_fields=TAGGED),
        SnapshotFooter(trailing=b"\x01\x02"),
        KRaftVersion(kraft_version=1, version=3),
        KRaftVoters(
            voters=(
                Voter(
                    voter_id=2**31 - 1,
                    voter_directory_id="_" * 21 + "w",
                    endpoints=(
                        VoterEndpoint("CONTROLLER", "größe", 65535, TAGGED),
                        VoterEndpoint("", "", 0),
                    ),
                    min_supported_version=0,
                    max_supported_version=32767,
                    feature_tagged_fields=TAGGED,
                    tagged_fields=TAGGED,
                ),
            )
        ),
        UnknownControl(42, key_of(42), b"whatever"),
        UnknownControl(42, key_of(42), None),
    ],
    ids=lambda record: type(record).__name__,
)
def test_control_records_round_trip(record: ControlRecord) -> None:
    key, value = encode_control(record)
    assert decode_control(key, value) == record


def test_an_unknown_type_round_trips_unparsed() -> None:
    record = decode_control(key_of(99), b"\x00\x00payload")
    assert record == UnknownControl(99, key_of(99), b"\x00\x00payload")
    assert control_name(key_of(99)) == "unknown_99"
    assert control_text(record) == "controlType: UNKNOWN(99)"
    assert control_json(record) == {"controlType": "UNKNOWN", "typeId": 99}


def test_a_later_version_that_cannot_be_parsed_round_trips() -> None:
    value = struct.pack(">h", 9) + b"\xff"
    assert decode_control(key_of(ControlType.KRAFT_VOTERS), value) == UnknownControl(
        6, key_of(6), value
    )
    change = struct.pack(">hi", 2, 1) + b"\x01\x01\x00"
    assert isinstance(decode_control(key_of(2), change), UnknownControl)


def test_bytes_after_a_key_are_ignored_as_in_kafka() -> None:
    value = encode_control(SnapshotFooter())[1]
    assert decode_control(key_of(4, version=1) + b"more", value) == SnapshotFooter()


@pytest.mark.parametrize("key", [None, b"", b"\x00\x00\x00", b"\xff\xff\x00\x02"])
def test_a_malformed_key_is_damage(key: bytes | None) -> None:
    with pytest.raises(CorruptBatchError, match="control record key"):
        decode_control(key, b"")


@pytest.mark.parametrize(
    ("type_id", "value"),
    [
        (2, None),
        (2, b""),
        (3, b"\x00\x00"),
        (3, b"\xff\xff" + bytes(9)),
        (5, b"\x00\x00\x00"),
        (6, b"\x00\x00\x00"),  # a null array
        (6, b"\x00\x00\xff\xff\xff\xff\x0f"),  # four billion voters
        (6, b"\x00\x00\xff\xff\xff\xff\xff\xff"),
        (4, b"\x00\x00\xff\xff\xff\xff\x0f"),  # four billion tagged fields
        (0, b"\x00\x00\x00"),
        (6, b"\x00\x00\x01\x00"),  # no voters
    ],
)
def test_a_known_version_that_cannot_be_parsed_is_damage(type_id: int, value: bytes | None) -> None:
    with pytest.raises(CorruptBatchError, match="control record"):
        decode_control(key_of(type_id), value)


@pytest.mark.parametrize("ids", [(), (-1,), (1, 2, 1)])
def test_an_invalid_voter_set_is_damage(ids: tuple[int, ...]) -> None:
    key, value = encode_control(KRaftVoters(voters=tuple(map(voter, ids))))
    with pytest.raises(CorruptBatchError, match="invalid voter set"):
        decode_control(key, value)


def voter(node_id: int) -> Voter:
    return Voter(
        voter_id=node_id,
        voter_directory_id="_" * 21 + "w",
        endpoints=(),
        min_supported_version=0,
        max_supported_version=1,
    )


@given(st.integers(-1, 8), st.integers(-2, 3), st.binary(max_size=60))
def test_arbitrary_bytes_are_a_control_record_or_a_typed_error(
    type_id: int, version: int, rest: bytes
) -> None:
    value = struct.pack(">h", version) + rest
    try:
        record = decode_control(key_of(type_id), value)
    except RaftlogError:
        return
    json.dumps(control_json(record))
    assert decode_control(*encode_control(record)) == record


def test_a_leader_change_prints_no_directories_in_version_0() -> None:
    change = LeaderChange(leader_id=1)
    assert control_text(change) == (
        'LeaderChange: {"version":0,"leaderId":1,"voters":[],"grantingVoters":[]}'
    )
