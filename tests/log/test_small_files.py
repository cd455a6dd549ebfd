"""quorum-state, meta.properties, partition.metadata, and the names of files."""

from __future__ import annotations

import contextlib
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.log_builder import LogBuilder

from raftlog.client import LogKind, open_path
from raftlog.errors import CorruptFileError
from raftlog.limits import MIB
from raftlog.log.format.directory import (
    MetaProperties,
    PartitionMetadata,
    QuorumState,
    checkpoint_name,
    offset_name,
    parse_checkpoint_name,
    parse_meta_properties,
    parse_offset_name,
    parse_partition_metadata,
    parse_partition_name,
    parse_properties,
    parse_quorum_state,
    read_listing,
    read_small_file,
)
from raftlog.storage.local import LocalStorage
from raftlog.types import SnapshotId, TopicPartition

QUORUM_STATE_0 = (
    b'{"clusterId":"","leaderId":1,"leaderEpoch":5,"votedId":-1,"appliedOffset":0,'
    b'"currentVoters":[{"voterId":1},{"voterId":2}],"data_version":0}'
)
QUORUM_STATE_1 = (
    b'{"leaderId":-1,"leaderEpoch":5,"votedId":3,"votedDirectoryId":"tYeGOEg5ShuK9zHO5T3Pyg",'
    b'"data_version":1}'
)


def test_quorum_state_of_static_voters() -> None:
    assert parse_quorum_state(QUORUM_STATE_0, "x") == QuorumState(
        version=0, leader_epoch=5, leader_id=1, voted_id=None, voters=(1, 2)
    )


def test_quorum_state_of_dynamic_voters() -> None:
    assert parse_quorum_state(QUORUM_STATE_1, "x") == QuorumState(
        version=1,
        leader_epoch=5,
        leader_id=None,
        voted_id=3,
        voted_directory_id="tYeGOEg5ShuK9zHO5T3Pyg",
    )


def test_unknown_fields_are_ignored_and_voters_may_be_null() -> None:
    content = QUORUM_STATE_0.replace(b'[{"voterId":1},{"voterId":2}]', b'null,"news":1')
    assert parse_quorum_state(content, "x").voters is None


@pytest.mark.parametrize(
    "field", ["leaderId", "leaderEpoch", "votedId", "appliedOffset", "currentVoters", "clusterId"]
)
def test_every_field_of_quorum_state_is_mandatory(field: str) -> None:
    content = QUORUM_STATE_0.replace(field.encode(), b"other")
    with pytest.raises(CorruptFileError, match=field):
        parse_quorum_state(content, "quorum-state")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff", b"[" * 5000, b"9" * 5000, QUORUM_STATE_1.replace(b":1}", b":2}")],
)
def test_a_damaged_quorum_state_is_reported(content: bytes) -> None:
    with pytest.raises(CorruptFileError):
        parse_quorum_state(content, "quorum-state")


def test_meta_properties_of_kafka(data: Path) -> None:
    path = data / "kraft-logs/three-nodes-4.3.1/node-102/meta.properties"
    assert parse_meta_properties(path.read_bytes(), "x") == MetaProperties(
        version=1,
        cluster_id="I9iQnKeLSA2lyZwVZic7Xg",
        node_id=102,
        directory_id="j2JHXQmOT_SnjTRrC8MeXw",
    )


def test_meta_properties_of_version_0_name_a_broker() -> None:
    found = parse_meta_properties(b"broker.id=7\ncluster.id=abc\n", "x")
    assert found == MetaProperties(version=0, cluster_id="abc", node_id=7, directory_id=None)


@pytest.mark.parametrize(
    "content",
    [b"version=2\nnode.id=1\ncluster.id=a", b"version=1\nnode.id=1", b"version=1\ncluster.id=a"],
)
def test_meta_properties_without_required_fields_are_damage(content: bytes) -> None:
    with pytest.raises(CorruptFileError):
        parse_meta_properties(content, "meta.properties")


def test_properties_are_parsed_as_java_parses_them() -> None:
    content = rb"""
# a comment = no pair
! another
plain=value
  spaced   :   value with spaces
bare
sep\=arated=a\:b
white space
cont=one, \
     two
path=c\:\\dir
uni=\u0041\u00e9\t!
last=1
last=2
end\
"""
    assert dict(parse_properties(content, "x")) == {
        "plain": "value",
        "spaced": "value with spaces",
        "bare": "",
        "sep=arated": "a:b",
        "white": "space",
        "cont": "one, two",
        "path": "c:\\dir",
        "uni": "Aé\t!",
        "last": "2",
        "end": "",
    }


def test_a_broken_escape_in_properties_is_damage() -> None:
    with pytest.raises(CorruptFileError, match="four hex digits"):
        list(parse_properties(b"a=\\u12", "x"))


def test_partition_metadata_of_kafka(data: Path) -> None:
    path = data / "kraft-logs/three-nodes-4.3.1/node-1/__cluster_metadata-0/partition.metadata"
    found = parse_partition_metadata(path.read_bytes(), "x")
    assert found == PartitionMetadata(version=0, topic_id="AAAAAAAAAAAAAAAAAAAAAQ")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"version: 0",
        b"topic_id: AAAAAAAAAAAAAAAAAAAAAQ",
        b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
        b"version: -1\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ",
        b"version: 0\ntopic_id: short",
        b"words",
    ],
)
def test_damaged_partition_metadata_is_reported(content: bytes) -> None:
    with pytest.raises(CorruptFileError):
        parse_partition_metadata(content, "partition.metadata")


@given(st.binary(max_size=60) | st.text('{}[]":,0123=\\u\n version', max_size=60).map(str.encode))
def test_arbitrary_bytes_are_a_small_file_or_a_typed_error(content: bytes) -> None:
    for parse in (parse_quorum_state, parse_meta_properties, parse_partition_metadata):
        with contextlib.suppress(CorruptFileError):
            parse(content, "x")


def test_file_names_round_trip() -> None:
    assert offset_name(436, ".log") == "00000000000000000436.log"
    assert parse_offset_name("00000000000000000436.log", ".log") == 436
    name = checkpoint_name(SnapshotId(epoch=2, end_offset=1022))
    assert name == "00000000000000001022-0000000002.checkpoint"
    assert parse_checkpoint_name(name) == SnapshotId(epoch=2, end_offset=1022)
    assert parse_partition_name("a-b-7") == TopicPartition("a-b", 7)


@pytest.mark.parametrize(
    "name",
    [
        "436.log",
        "00000000000000000436.log.deleted",
        "00000000000000000436.index",
        "99999999999999999999.log",
        "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٤٣٦.log",
        "0000000000000000436x.log",
    ],
)
def test_other_names_are_no_segments(name: str) -> None:
    assert parse_offset_name(name, ".log") is None


@pytest.mark.parametrize("state", ["delete", "future", "stray"])
def test_a_partition_directory_that_is_future_or_deleted_is_still_that_partition(
    state: str,
) -> None:
    unique_id = "0d0f7a5c9d4f4f0b8a5f3e1b2c3d4e5f"
    assert parse_partition_name(f"a.b-1-7.{unique_id}-{state}") == TopicPartition("a.b-1", 7)
    log = LogBuilder(directory=f"/node/orders-3.{unique_id}-{state}")
    log.data(b"x")
    reader = open_path(log.directory, storage=log.storage)
    assert (reader.topic, reader.partition, reader.kind) == ("orders", 3, LogKind.PARTITION)


@pytest.mark.parametrize(
    "name",
    [
        *("topic", "-1", "a-", "a-99999999999", "a b-0", "a-0-delete"),
        *("a-0.-delete", "a-0.1f-gone", "a-0.1f", "a.1f-delete", "a-x.1f-delete"),
    ],
)
def test_other_names_are_no_partitions(name: str) -> None:
    assert parse_partition_name(name) is None


def test_a_listing_omits_incomplete_deleted_and_bootstrap_files() -> None:
    listing = read_listing(
        [
            "00000000000000000000.log.deleted",
            "00000000000000000416.log",
            "00000000000000000416.index",
            "00000000000000000416.snapshot",
            "00000000000000000000-0000000000.checkpoint",
            "00000000000000000376-0000000001.checkpoint.deleted",
            "00000000000000001500-0000000001.checkpoint",
            "00000000000000001022-0000000002.checkpoint",
            "00000000000000001400-0000000002-778.checkpoint.part",
            "quorum-state",
        ]
    )
    assert listing.segments == (416,)
    assert listing.producer_snapshots == (416,)
    # by epoch first, then by offset
    assert listing.snapshots == (
        SnapshotId(epoch=1, end_offset=1500),
        SnapshotId(epoch=2, end_offset=1022),
    )


def test_no_memory_is_allocated_for_the_greatest_small_file(tmp_path: Path) -> None:
    """After a buffer of 16 MiB was freed glibc keeps up to 32 MiB of freed memory."""
    path = tmp_path / "quorum-state"
    path.write_bytes(b"{}")
    tracemalloc.start()
    try:
        assert read_small_file(LocalStorage(), str(path)) == b"{}"
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()
