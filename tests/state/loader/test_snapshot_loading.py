"""Loading a snapshot over no state, and over an older one."""

from __future__ import annotations

import pytest
from tests.support.metadata_logs import at, replayed, state_after

from raftlog.records.control import (
    KRaftVersion,
    KRaftVoters,
    LeaderChange,
    SnapshotFooter,
    SnapshotHeader,
    Voter,
)
from raftlog.types import SnapshotId
from raftlog_state.errors import OffsetGapError, ReplayError
from raftlog_state.image import Entity, EpochRow, Quorum
from raftlog_state.image import Voter as VoterRow
from raftlog_state.image.delta import Op
from raftlog_state.loader.metadata_loader import LogRecord, MetadataLoader, SkippedRecords
from raftlog_state.loader.payload import Payload
from raftlog_state.records import (
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)

A, B, C = "muSNo3lITFSJf4sY_teOaw", "IIzV3j_LQFClOqhX3gQ9wA", "o8mTr1KySfu2a3x_FCKC-A"
STAYS = TopicRecord(name="stays", topic_id=A)
GOES = TopicRecord(name="goes", topic_id=B)
COMES = TopicRecord(name="comes", topic_id=C)
CONFIG = ConfigRecord(resource_type=2, resource_name="goes", name="x", value="1")
ID = SnapshotId(epoch=3, end_offset=100)
VOTER = Voter(
    voter_id=4,
    voter_directory_id=B,
    endpoints=(),
    min_supported_version=0,
    max_supported_version=1,
)


def control(*payloads: Payload) -> list[LogRecord]:
    return [LogRecord(0, 3, 77, payload) for payload in payloads]


HEAD = control(
    SnapshotHeader(last_contained_log_timestamp_ms=5_000),
    KRaftVersion(kraft_version=1),
    KRaftVoters(voters=(VOTER,)),
)
FOOT = control(SnapshotFooter())


def test_rows_of_a_snapshot_are_loaded_and_missing_ones_deleted() -> None:
    loader = replayed(STAYS, GOES, CONFIG)
    before = loader.image
    returned = loader.bootstrap(ID, [*HEAD, *at(3, STAYS, COMES), *FOOT])
    assert [(done.record_type, done.ordinal) for done in returned] == [
        ("SNAPSHOT_HEADER", None),
        ("TOPIC_RECORD", 0),
        ("TOPIC_RECORD", 1),
        ("SNAPSHOT_FOOTER", None),
    ]
    assert {(done.offset, done.visible_offset, done.leader_epoch) for done in returned} == {
        (99, 99, 3)
    }
    assert {done.timestamp_ms for done in returned} == {5_000}
    changes = [
        (change.entity, change.op, change.key, change.before)
        for done in returned[1:]
        for change in done.changes
    ]
    assert changes == [
        (Entity.TOPIC, Op.READ, (A,), before.get(Entity.TOPIC, (A,))),
        (Entity.TOPIC, Op.READ, (C,), None),
        (Entity.TOPIC, Op.DELETE, (B,), before.get(Entity.TOPIC, (B,))),
        (Entity.CONFIG, Op.DELETE, (2, "goes", "x"), before.get(Entity.CONFIG, (2, "goes", "x"))),
    ]


def test_the_state_is_at_the_end_of_the_snapshot() -> None:
    loader = replayed(STAYS, GOES, CONFIG)
    loader.bootstrap(ID, [*HEAD, *at(3, STAYS, COMES), *FOOT])
    image = loader.image
    assert image.same_rows(state_after(STAYS, COMES))
    assert (image.offset, image.leader_epoch, image.timestamp_ms) == (99, 3, 5_000)
    assert image.quorum == Quorum(1, (VoterRow(4, B, (), 0, 1),))
    assert loader.next_offset == 100
    assert image.topic("goes") is None
    loader.append(at(100, GOES, epoch=3))
    assert loader.image.same_rows(state_after(STAYS, COMES, GOES))


def test_an_epoch_that_began_before_the_snapshot_has_no_start_offset() -> None:
    loader = MetadataLoader()
    (returned,) = loader.bootstrap(ID, [*HEAD, *FOOT])
    (change,) = returned.changes
    assert (change.op, change.entity, change.before) == (Op.READ, Entity.EPOCH, None)
    loader.append([LogRecord(100, 4, 0, LeaderChange(leader_id=4))])
    old, new = loader.image.rows_of(EpochRow)
    assert (old.leader_epoch, old.start_offset, old.end_offset, old.leader_id) == (
        3,
        None,
        100,
        None,
    )
    assert (new.leader_epoch, new.start_offset, new.end_offset, new.leader_id) == (4, 100, None, 4)


def test_earlier_epochs_and_transactions_are_kept() -> None:
    loader = MetadataLoader()
    loader.append([LogRecord(0, 3, 0, LeaderChange(leader_id=9))])
    loader.append(at(1, b"\x01\x17\x00\x00", b"\x01\x18\x00\x00", epoch=3))
    loader.bootstrap(ID, [*HEAD, *FOOT])
    assert [row.leader_id for row in loader.image.rows_of(EpochRow)] == [9]
    assert len(loader.image.rows(Entity.TRANSACTION)) == 1


def test_records_alone_have_no_quorum_and_their_own_timestamps() -> None:
    loader = MetadataLoader()
    loader.bootstrap(ID, [*HEAD, *FOOT])
    loader.bootstrap(SnapshotId(epoch=3, end_offset=200), at(3, STAYS, epoch=3))
    assert loader.image.quorum.kraft_version == 1
    assert loader.image.timestamp_ms == 3_000


def test_loading_the_same_snapshot_twice_changes_nothing() -> None:
    loader = MetadataLoader()
    records = [*HEAD, *at(3, STAYS, COMES), *FOOT]
    loader.bootstrap(ID, records)
    first = loader.image
    again = loader.bootstrap(ID, records)
    assert loader.image == first
    assert all(
        change.op is Op.READ and change.changed == () for done in again for change in done.changes
    )


def test_a_snapshot_older_than_the_state_is_refused() -> None:
    loader = replayed(STAYS, GOES)
    with pytest.raises(OffsetGapError, match="older than the state"):
        loader.bootstrap(SnapshotId(epoch=1, end_offset=1), at(0, STAYS))
    assert loader.image == state_after(STAYS, GOES)


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([STAYS, RemoveTopicRecord(topic_id=A)], "must not contain removals"),
        ([STAYS, TopicRecord(name="stays", topic_id=B)], "already exists"),
        ([STAYS, b"\x01\x02\x00"], "damaged"),
    ],
)
def test_a_contradictory_snapshot_does_not_change_the_state(
    records: list[TopicRecord], reason: str
) -> None:
    loader = replayed(GOES)
    with pytest.raises(ReplayError, match=reason):
        loader.bootstrap(ID, at(0, *records))
    assert (loader.image, loader.next_offset) == (state_after(GOES), 1)


def test_unknown_records_of_a_snapshot_are_skipped_and_counted() -> None:
    loader = MetadataLoader()
    returned = loader.bootstrap(ID, at(0, STAYS, b"\x01\x63\x00\x00", COMES))
    assert [done.ordinal for done in returned] == [None, 0, 2], (
        "an ordinal is a position in the snapshot"
    )
    assert loader.skipped == (SkippedRecords(False, 99, 0, 1, 99, 99),)


def test_an_error_names_the_skipped_records_of_the_snapshot() -> None:
    future, partition = b"\x01\x02\x07\x00", PartitionRecord(topic_id=A)
    with pytest.raises(
        ReplayError,
        match=r"this release does not support records of type 2 version 7, which may be",
    ):
        MetadataLoader().bootstrap(ID, at(0, future, partition))


def test_records_skipped_before_a_snapshot_are_not_counted_after_it() -> None:
    loader = MetadataLoader()
    loader.append(at(0, b"\x01\x63\x00\x00"))
    before = [SkippedRecords(False, 99, 0, 1, 0, 0)]
    assert list(loader.skipped) == before
    with pytest.raises(ReplayError):
        loader.bootstrap(ID, at(0, STAYS, STAYS))
    assert list(loader.skipped) == before, "a snapshot that is not loaded"
    loader.bootstrap(ID, at(0, STAYS))
    assert not list(loader.skipped)


def test_a_feature_that_a_snapshot_lacks_is_deleted() -> None:
    loader = replayed(FeatureLevelRecord(name="share.version", feature_level=1))
    loader.bootstrap(ID, at(0, FeatureLevelRecord(name="metadata.version", feature_level=30)))
    assert [row.key for row in loader.image.rows(Entity.FEATURE)] == [("metadata.version",)]
