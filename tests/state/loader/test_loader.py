"""The loader: order, epochs, unknown records, and failed calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from tests.support.metadata_logs import at, replayed, state_after

from raftlog.records.control import (
    ControlRecord,
    ControlType,
    EndTransactionMarker,
    KRaftVersion,
    KRaftVoters,
    LeaderChange,
    LeaderChangeVoter,
    SnapshotFooter,
    SnapshotHeader,
    UnknownControl,
    Voter,
)
from raftlog_state.errors import OffsetGapError, ReplayError
from raftlog_state.image import Entity, EpochRow, MetadataImage, Quorum
from raftlog_state.image import Voter as VoterRow
from raftlog_state.image.delta import Op
from raftlog_state.loader.metadata_loader import LogRecord, MetadataLoader, SkippedRecords
from raftlog_state.records import (
    NO_OP_VALUE,
    ConfigRecord,
    DecodedRecord,
    MetadataRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
    decode,
    encode,
)

A, B = "muSNo3lITFSJf4sY_teOaw", "IIzV3j_LQFClOqhX3gQ9wA"
TOPIC = TopicRecord(name="a", topic_id=A)
OTHER = TopicRecord(name="b", topic_id=B)
FUTURE_TYPE = b"\x01\x63\x00\x05\x00"
FUTURE_VERSION = b"\x01\x02\x07\x00"


def control(offset: int, payload: ControlRecord, epoch: int = 1) -> LogRecord:
    return LogRecord(offset, epoch, 1_000 * offset, payload)


# --- results --------------------------------------------------------------------------------------


def test_bytes_and_decoded_records_give_the_same_image() -> None:
    as_bytes, decoded = MetadataLoader(), MetadataLoader()
    records: tuple[MetadataRecord, ...] = (TOPIC, OTHER, RemoveTopicRecord(topic_id=A))
    returned = as_bytes.append(at(0, *map(encode, records)))
    assert decoded.append(at(0, *records)) == returned
    assert as_bytes.image == decoded.image
    assert [(done.offset, done.visible_offset, done.record_type) for done in returned] == [
        (0, 0, "TOPIC_RECORD"),
        (1, 1, "TOPIC_RECORD"),
        (2, 2, "REMOVE_TOPIC_RECORD"),
    ]
    assert [(done.leader_epoch, done.timestamp_ms, done.ordinal) for done in returned] == [
        (1, 0, None),
        (1, 1_000, None),
        (1, 2_000, None),
    ]


def test_an_image_has_its_offset_and_epoch() -> None:
    loader = MetadataLoader()
    assert (loader.image.offset, loader.next_offset) == (-1, 0)
    loader.append(at(0, TOPIC, NO_OP_VALUE, epoch=5))
    assert (loader.image.offset, loader.image.leader_epoch, loader.image.timestamp_ms) == (
        1,
        5,
        1_000,
    )
    assert loader.next_offset == 2


def test_an_earlier_image_does_not_change() -> None:
    loader = replayed(TOPIC)
    first = loader.image
    loader.append(at(1, RemoveTopicRecord(topic_id=A)))
    assert first == state_after(TOPIC)
    assert loader.image.rows(Entity.TOPIC) == []


def test_no_op_records_advance_the_offset_and_change_nothing_else() -> None:
    loader = replayed(TOPIC)
    assert loader.append(at(1, *[NO_OP_VALUE] * 100)) == []
    assert loader.image.offset == 100
    assert loader.image.same_rows(state_after(TOPIC))


def test_a_custom_decoder_may_redact_secrets() -> None:
    def redact(value: bytes) -> DecodedRecord:
        decoded = decode(value)
        assert isinstance(decoded.record, ConfigRecord)
        return DecodedRecord(0, dataclasses.replace(decoded.record, value="***"))

    loader = MetadataLoader(decode=redact)
    secret = ConfigRecord(resource_type=4, resource_name="", name="p", value="hunter2")
    (returned,) = loader.append(at(0, encode(secret)))
    assert "hunter2" not in str(loader.image.to_json())
    assert "hunter2" not in repr(returned)


# --- order ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 2, 7])
def test_a_record_with_a_wrong_offset_is_refused(offset: int) -> None:
    loader = replayed(TOPIC)
    with pytest.raises(OffsetGapError) as caught:
        loader.append(at(offset, OTHER))
    assert (caught.value.expected_offset, caught.value.offset) == (1, offset)
    assert loader.image == state_after(TOPIC)


def test_a_decreasing_leader_epoch_is_refused() -> None:
    loader = MetadataLoader()
    loader.append(at(0, TOPIC, epoch=5))
    with pytest.raises(ReplayError, match="leader epoch 4 is lower than the previous 5"):
        loader.append(at(1, OTHER, epoch=4))
    loader.append(at(1, OTHER, epoch=6))
    assert loader.image.leader_epoch == 6


def test_a_loader_continues_from_an_image() -> None:
    image = state_after(TOPIC)
    loader = MetadataLoader(image)
    loader.append(at(1, OTHER))
    assert loader.image == state_after(TOPIC, OTHER)
    with pytest.raises(OffsetGapError):
        MetadataLoader(image).append(at(0, OTHER))


# --- atomicity ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        RemoveTopicRecord(topic_id=A),
        b"\x01\x02\x00",
        b"",
        b"\x00\x02\x00\x00",
        b"\x01\x18\x00\x00",
        None,
    ],
)
def test_a_failed_call_does_not_change_the_loader(bad: MetadataRecord | bytes) -> None:
    loader = replayed(TOPIC)
    before = loader.image
    digest = before.digest()
    change = control(3, KRaftVersion(kraft_version=1))
    good = [*at(1, OTHER, RemoveTopicRecord(topic_id=A)), change, *at(4, FUTURE_TYPE)]
    payload = DecodedRecord(0, bad) if isinstance(bad, MetadataRecord) else bad
    with pytest.raises(ReplayError) as caught:
        loader.append([*good, LogRecord(5, 1, 0, payload)])
    assert caught.value.offset == 5
    assert (loader.image, loader.next_offset, loader.skipped) == (before, 1, ())
    assert loader.image.digest() == digest
    assert loader.image.topic("a") is not None
    assert loader.image.topic("b") is None
    loader.append(good)
    assert loader.image.topic("b") is not None


def test_an_exception_of_the_input_does_not_change_the_loader() -> None:
    def failing_input() -> Iterator[LogRecord]:
        yield from at(1, OTHER, RemoveTopicRecord(topic_id=A))
        raise OSError("the disk is gone")

    loader = replayed(TOPIC)
    with pytest.raises(OSError, match="the disk is gone"):
        loader.append(failing_input())
    assert (loader.image, loader.next_offset) == (state_after(TOPIC), 1)


def test_a_damaged_record_is_reported_with_its_offset_and_type() -> None:
    with pytest.raises(ReplayError, match=r"TopicRecord at offset 1: version 0 is damaged"):
        replayed(TOPIC, encode(OTHER) + b"\x00")


def test_a_record_without_a_value_is_damage() -> None:
    with pytest.raises(ReplayError, match="it has no value"):
        MetadataLoader().append([LogRecord(0, 1, 0, None)])


# --- records of later releases --------------------------------------------------------------------


def test_unknown_types_and_versions_are_skipped_and_counted() -> None:
    loader = replayed(TOPIC, FUTURE_TYPE, FUTURE_VERSION, NO_OP_VALUE, FUTURE_TYPE)
    loader.append([control(5, UnknownControl(42, b"\x00\x00\x00\x2a", b""))])
    assert loader.image.same_rows(state_after(TOPIC))
    assert loader.image.offset == 5
    assert loader.skipped == (
        SkippedRecords(False, 2, 7, 1, 2, 2),
        SkippedRecords(False, 99, 0, 2, 1, 4),
        SkippedRecords(True, 42, 0, 1, 5, 5),
    )


def test_an_error_names_the_skipped_records_that_may_have_caused_it() -> None:
    """A topic of a later release is unknown, and so are its partitions in known versions."""
    partition = PartitionRecord(topic_id=B, replicas=(1,), isr=(1,), leader=1)
    with pytest.raises(ReplayError) as caught:
        replayed(TOPIC, FUTURE_VERSION, partition)
    assert caught.value.unsupported == "1 records of type 2 version 7 (offsets 1 to 1)"
    assert "there is no topic with id" in str(caught.value)
    assert str(caught.value).endswith(
        f"; this release does not support {caught.value.unsupported}, which may be the reason: use "
        "a newer release; if that fails too, start at a snapshot; states up to end offset 2 can be "
        "read, and `raftlog check` examines the whole log"
    )


def test_without_skipped_records_an_error_names_none() -> None:
    with pytest.raises(ReplayError) as caught:
        replayed(TOPIC, TOPIC)
    assert caught.value.unsupported is None
    assert caught.value.cause == caught.value.reason


# --- control records ------------------------------------------------------------------------------

VOTERS = KRaftVoters(
    voters=tuple(
        Voter(
            voter_id=number,
            voter_directory_id=B,
            endpoints=(),
            min_supported_version=0,
            max_supported_version=1,
        )
        for number in (2, 1)
    )
)
VOTER_ROWS = (VoterRow(1, B, (), 0, 1), VoterRow(2, B, (), 0, 1))


def leader(number: int, *voters: int) -> LeaderChange:
    return LeaderChange(leader_id=number, voters=tuple(map(LeaderChangeVoter, voters)))


def test_a_leader_change_starts_an_epoch_and_ends_the_previous_one() -> None:
    loader = MetadataLoader()
    loader.append([control(0, leader(1, 2, 1), epoch=3)])
    first = EpochRow(
        leader_epoch=3,
        start_offset=0,
        end_offset=None,
        leader_id=1,
        voters=(VoterRow(1), VoterRow(2)),
        kraft_version=0,
    )
    assert loader.image.rows(Entity.EPOCH) == [first]
    loader.append(at(1, TOPIC, epoch=3))
    (returned,) = loader.append([control(2, leader(2, 1, 2), epoch=7)])
    ended = dataclasses.replace(first, end_offset=2)
    second = dataclasses.replace(first, leader_epoch=7, start_offset=2, leader_id=2)
    assert loader.image.rows(Entity.EPOCH) == [ended, second]
    assert [(change.op, change.changed) for change in returned.changes] == [
        (Op.UPDATE, ("end_offset",)),
        (Op.CREATE, ()),
    ]
    assert (returned.record_type, returned.visible_offset, returned.leader_epoch) == (
        "LEADER_CHANGE",
        2,
        7,
    )


def test_voters_and_kraft_version_belong_to_the_current_epoch() -> None:
    loader = MetadataLoader()
    loader.append(
        [
            control(0, leader(1, 1, 2)),
            control(1, KRaftVersion(kraft_version=1)),
            control(2, VOTERS),
            control(3, leader(2, 1, 2), epoch=2),
        ]
    )
    assert loader.image.quorum == Quorum(1, VOTER_ROWS)
    first, second = loader.image.rows_of(EpochRow)
    assert (first.kraft_version, first.voters, first.end_offset) == (1, VOTER_ROWS, 3)
    assert (second.kraft_version, second.voters, second.leader_id) == (1, VOTER_ROWS, 2)


def test_the_quorum_is_known_without_the_start_of_its_epoch() -> None:
    loader = MetadataLoader()
    loader.append([control(0, KRaftVersion(kraft_version=1)), control(1, VOTERS)])
    assert loader.image.quorum == Quorum(1, VOTER_ROWS)
    assert loader.image.rows(Entity.EPOCH) == []


def test_epochs_are_history_and_not_part_of_the_state() -> None:
    loader = MetadataLoader()
    loader.append([control(0, leader(1, 1))])
    assert loader.image.digest() == MetadataImage.empty().digest()
    assert loader.image.same_rows(MetadataImage.empty())


@pytest.mark.parametrize(
    "payload", [SnapshotFooter(), SnapshotHeader(last_contained_log_timestamp_ms=1)]
)
def test_a_snapshot_replayed_as_a_log_is_refused(payload: ControlRecord) -> None:
    with pytest.raises(ReplayError, match="occur in snapshots only"):
        MetadataLoader().append([control(0, payload)])


def test_a_producers_marker_is_ignored() -> None:
    loader = MetadataLoader()
    marker = EndTransactionMarker(control_type=ControlType.COMMIT, coordinator_epoch=1)
    assert loader.append([control(0, marker)]) == []
    assert loader.next_offset == 1
