"""Every small file of Kafka, parsed and encoded again: the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.log.format.directory import (
    MetaProperties,
    PartitionMetadata,
    QuorumState,
    encode_epoch_checkpoint,
    encode_meta_properties,
    encode_partition_metadata,
    encode_properties,
    encode_quorum_state,
    parse_epoch_checkpoint,
    parse_meta_properties,
    parse_partition_metadata,
    parse_properties,
    parse_quorum_state,
)
from raftlog.log.format.epoch_cache import EpochCache
from raftlog.log.segment import encode_aborted, parse_txn_index


def contents(data: Path, pattern: str, least: int) -> list[tuple[str, bytes]]:
    found = [(str(path), path.read_bytes()) for path in sorted(data.rglob(pattern))]
    assert len(found) >= least
    return found


def test_every_epoch_checkpoint_is_encoded_as_kafka_wrote_it(data: Path) -> None:
    for path, content in contents(data, "leader-epoch-checkpoint", 18):
        assert encode_epoch_checkpoint(parse_epoch_checkpoint(content, path)) == content


def test_every_quorum_state_is_encoded_as_kafka_wrote_it(data: Path) -> None:
    found = contents(data, "quorum-state", 5)
    for path, content in found:
        assert encode_quorum_state(parse_quorum_state(content, path)) == content
    assert {parse_quorum_state(content, path).version for path, content in found} == {0, 1}


def test_every_partition_metadata_is_encoded_as_kafka_wrote_it(data: Path) -> None:
    for path, content in contents(data, "partition.metadata", 18):
        assert encode_partition_metadata(parse_partition_metadata(content, path)) == content


def test_every_meta_properties_is_encoded_as_kafka_wrote_it(data: Path) -> None:
    for path, content in contents(data, "meta.properties", 4):
        written = content.decode().splitlines()[1].removeprefix("#")
        meta = parse_meta_properties(content, path)
        assert encode_meta_properties(meta, written=written) == content


def test_every_transaction_index_is_encoded_as_kafka_wrote_it(data: Path) -> None:
    entries = 0
    for path, content in contents(data, "*.txnindex", 5):
        aborted = parse_txn_index(content, path)
        entries += len(aborted)
        assert b"".join(map(encode_aborted, aborted)) == content
    assert entries


def test_a_quorum_state_without_voters_or_votes_round_trips() -> None:
    for state in (
        QuorumState(version=0, leader_epoch=7, leader_id=None, voted_id=3, voters=None),
        QuorumState(
            version=0, leader_epoch=7, leader_id=2, voted_id=None, cluster_id="c", voters=()
        ),
        QuorumState(version=1, leader_epoch=7, leader_id=None, voted_id=None),
    ):
        assert parse_quorum_state(encode_quorum_state(state), "x") == state


def test_meta_properties_of_version_0_round_trip() -> None:
    meta = MetaProperties(version=0, cluster_id=None, node_id=7, directory_id=None)
    assert parse_meta_properties(encode_meta_properties(meta, written="today"), "x") == meta


def test_partition_metadata_has_no_final_newline() -> None:
    content = encode_partition_metadata(PartitionMetadata(version=0, topic_id="A" * 21 + "Q"))
    assert content == b"version: 0\ntopic_id: " + b"A" * 21 + b"Q"


def test_properties_are_escaped_as_java_escapes_them() -> None:
    pairs = [("a b", " c d"), ("e=:", "#!\\"), ("é", "\t\n\r\f\x7f")]
    assert encode_properties(pairs) == (
        rb"""a\ b=\ c d
e\=\:=\#\!\\
\u00E9=\t\n\r\f\u007F
"""
    )


words = st.text(st.characters(exclude_categories=["Cs"], max_codepoint=0xFFFF), max_size=12)


@given(st.dictionaries(words, words, max_size=5))
def test_arbitrary_properties_round_trip(pairs: dict[str, str]) -> None:
    content = encode_properties(pairs.items(), comments=["made up"])
    assert dict(parse_properties(content, "x")) == pairs


ENTRIES = [(2, 10), (4, 20), (7, 30)]


@pytest.mark.parametrize(
    ("end_offset", "left"),
    [(0, []), (10, []), (11, [(2, 10)]), (30, [(2, 10), (4, 20)]), (31, ENTRIES)],
)
def test_epochs_after_a_truncated_end_are_deleted(
    end_offset: int, left: list[tuple[int, int]]
) -> None:
    assert EpochCache.of(ENTRIES).without_from(end_offset) == EpochCache.of(left)


@pytest.mark.parametrize(
    ("start_offset", "left"),
    [
        (5, ENTRIES),
        (10, ENTRIES),
        (15, [(2, 15), (4, 20), (7, 30)]),
        (20, [(4, 20), (7, 30)]),
        (99, [(7, 99)]),
    ],
)
def test_the_epoch_at_a_new_log_start_begins_there(
    start_offset: int, left: list[tuple[int, int]]
) -> None:
    assert EpochCache.of(ENTRIES).without_before(start_offset) == EpochCache.of(left)
