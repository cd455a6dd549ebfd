"""Bytes that Kafka's own classes wrote: control keys, batches, a complete snapshot."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from tests.support.batch_encoding import encode_batch, to_new_batch
from tests.support.record_rows import read_rows, scan_rows

from raftlog.records import (
    ControlType,
    RecordBatch,
    decode_control,
    encode_control,
    iter_batches,
    read_batch,
)
from raftlog.records.control import (
    ControlRecord,
    KRaftVersion,
    KRaftVoters,
    LeaderChange,
    LeaderChangeVoter,
    SnapshotFooter,
    SnapshotHeader,
    UnknownControl,
    Voter,
    VoterEndpoint,
    control_name,
)

VECTORS = Path(__file__).parents[1] / "data" / "kraft-golden-vectors.tsv"


def vectors(kind: str) -> list[tuple[str, bytes, str]]:
    with VECTORS.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [(row[1], bytes.fromhex(row[3]), row[4]) for row in rows if row[0] == kind]


def one(kind: str, name: str) -> tuple[bytes, str]:
    return next((data, content) for found, data, content in vectors(kind) if found == name)


def whole(data: bytes) -> RecordBatch:
    batch = read_batch(data)
    assert isinstance(batch, RecordBatch)
    assert batch.byte_count == len(data)
    return batch


def control_of(batch: RecordBatch) -> ControlRecord:
    (record,) = batch.records()
    return decode_control(record.key, record.value)


def test_the_file_of_vectors_is_complete() -> None:
    assert len(vectors("control record key")) == 7
    assert len(vectors("record batch")) == 6
    assert len(vectors("whole snapshot file")) == 1


@pytest.mark.parametrize(("name", "key", "_content"), vectors("control record key"))
def test_a_control_key_has_its_type(name: str, key: bytes, _content: str) -> None:
    assert ControlType[name].name == name
    assert control_name(key) == name.lower()


@pytest.mark.parametrize(("_name", "data", "content"), vectors("record batch"))
def test_batches_of_kafkas_classes_round_trip(_name: str, data: bytes, content: str) -> None:
    batch = whole(data)
    assert content.startswith(f"baseOffset={batch.base_offset} epoch={batch.leader_epoch}")
    again = encode_batch(
        to_new_batch(batch), base_offset=batch.base_offset, leader_epoch=batch.leader_epoch
    )
    assert again == data
    assert scan_rows(data) == read_rows(data)
    if batch.is_control:
        control = control_of(batch)
        assert not isinstance(control, UnknownControl)
        (record,) = batch.records()
        assert encode_control(control) == (record.key, record.value)


def test_a_leader_change_has_leader_and_voters() -> None:
    data, _ = one("record batch", "LEADER_CHANGE")
    assert control_of(whole(data)) == LeaderChange(
        leader_id=1,
        voters=(LeaderChangeVoter(1),),
        granting_voters=(LeaderChangeVoter(1),),
    )


def test_snapshot_header_and_footer_are_parsed() -> None:
    header = control_of(whole(one("record batch", "SNAPSHOT_HEADER")[0]))
    assert header == SnapshotHeader(last_contained_log_timestamp_ms=777)
    footer = control_of(whole(one("record batch", "SNAPSHOT_FOOTER")[0]))
    assert footer == SnapshotFooter()


def test_kraft_version_and_voters_are_parsed() -> None:
    version = control_of(whole(one("record batch", "KRAFT_VERSION")[0]))
    assert version == KRaftVersion(kraft_version=1)
    voters = control_of(whole(one("record batch", "KRAFT_VOTERS")[0]))
    assert isinstance(voters, KRaftVoters)
    assert voters.voters[0] == Voter(
        voter_id=1,
        voter_directory_id="AAAAAAAAACEAAAAAAAAAIg",
        endpoints=(VoterEndpoint("CONTROLLER", "h", 9093),),
        min_supported_version=0,
        max_supported_version=1,
    )


def test_a_data_batch_has_its_values() -> None:
    data, _ = one("record batch", "DATA")
    batch = whole(data)
    assert (batch.base_offset, batch.last_offset, batch.record_count) == (1, 2, 2)
    no_op, topic = batch.records()
    assert (no_op.key, no_op.value) == (None, bytes.fromhex("01140000"))
    assert topic.value == bytes.fromhex("01020004") + b"foo" + bytes.fromhex(
        "0102030405060708111213141516171800"
    )


def test_a_complete_snapshot_round_trips() -> None:
    (_, data, _content) = vectors("whole snapshot file")[0]
    batches = list(iter_batches(data))
    assert isinstance(control_of(batches[-1]), SnapshotFooter)
    first = next(batches[0].records())
    assert isinstance(decode_control(first.key, first.value), SnapshotHeader)
    again = b"".join(
        encode_batch(
            to_new_batch(batch), base_offset=batch.base_offset, leader_epoch=batch.leader_epoch
        )
        for batch in batches
    )
    assert again == data
    assert scan_rows(data) == read_rows(data)
