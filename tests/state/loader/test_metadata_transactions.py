"""Metadata transactions: applied as a whole or not at all, over any number of batches (KIP-868)."""

from __future__ import annotations

import pytest
from tests.support.metadata_logs import at, flat, replayed, state_after

from raftlog.records.control import LeaderChange
from raftlog.types import SnapshotId
from raftlog_state.errors import ReplayError
from raftlog_state.image import Entity, MetadataImage, TransactionOutcome, TransactionRow
from raftlog_state.image.delta import Op
from raftlog_state.loader.metadata_loader import LogRecord, MetadataLoader, SkippedRecords
from raftlog_state.records import (
    NO_OP_VALUE,
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    MetadataRecord,
    RemoveTopicRecord,
    TopicRecord,
)

A, B = "muSNo3lITFSJf4sY_teOaw", "IIzV3j_LQFClOqhX3gQ9wA"
BEFORE = TopicRecord(name="before", topic_id=B)
INSIDE = TopicRecord(name="inside", topic_id=A)
BEGIN = BeginTransactionRecord(name="make a topic")
END = EndTransactionRecord()
ABORT = AbortTransactionRecord(reason="changed my mind")
FUTURE = b"\x01\x63\x00\x05\x00"


def test_records_become_visible_at_the_end_marker() -> None:
    loader = replayed(BEFORE)
    assert loader.append(at(1, BEGIN, INSIDE, NO_OP_VALUE)) == []
    assert loader.image == state_after(BEFORE)
    returned = loader.append(at(4, END))
    assert [(done.offset, done.visible_offset, done.record_type) for done in returned] == [
        (2, 4, "TOPIC_RECORD"),
        (4, 4, "END_TRANSACTION_RECORD"),
    ]
    assert [done.timestamp_ms for done in returned] == [2_000, 4_000], "rows carry their own time"
    assert loader.image.topic("inside") is not None
    assert (loader.image.offset, loader.open_transaction_offset) == (4, None)


def test_a_committed_transaction_is_a_row() -> None:
    loader = replayed(BEFORE, BEGIN, INSIDE, NO_OP_VALUE, END)
    assert loader.image.rows(Entity.TRANSACTION) == [
        TransactionRow(
            begin_offset=1,
            end_offset=5,
            outcome=TransactionOutcome.COMMITTED,
            name="make a topic",
            reason=None,
            record_count=2,
        )
    ]


def test_an_aborted_transaction_only_advances_the_offset() -> None:
    loader = replayed(BEFORE, BEGIN, INSIDE)
    (returned,) = loader.append(at(3, ABORT))
    assert loader.image.same_rows(state_after(BEFORE))
    assert loader.image.offset == 3
    row = TransactionRow(
        begin_offset=1,
        end_offset=4,
        outcome=TransactionOutcome.ABORTED,
        name="make a topic",
        reason="changed my mind",
        record_count=1,
    )
    (change,) = returned.changes
    assert (returned.record_type, change.op, change.after) == (
        "ABORT_TRANSACTION_RECORD",
        Op.CREATE,
        row,
    )


def test_records_after_an_abort_in_the_same_call_do_not_restore_it() -> None:
    image = state_after(BEFORE, BEGIN, INSIDE, ABORT, RemoveTopicRecord(topic_id=B))
    assert image.same_rows(MetadataImage.empty())


def test_an_aborted_record_may_contradict_the_state() -> None:
    image = state_after(BEFORE, BEGIN, RemoveTopicRecord(topic_id=A), ABORT)
    assert image.same_rows(state_after(BEFORE))


def test_an_empty_transaction_is_allowed() -> None:
    loader = replayed(BeginTransactionRecord(), END)
    (row,) = loader.image.rows(Entity.TRANSACTION)
    assert isinstance(row, TransactionRow)
    assert (row.record_count, row.name, row.end_offset) == (0, None, 2)


@pytest.mark.parametrize("ending", [END, ABORT])
def test_a_transaction_may_span_any_number_of_batches(ending: MetadataRecord) -> None:
    records: list[MetadataRecord | bytes] = [BEFORE, BEGIN]
    for number in range(50):
        topic_id = f"{number:02}AAAAAAAAAAAAAAAAAAAA"
        records.append(TopicRecord(name=f"topic {number}", topic_id=topic_id))
    records.append(ending)
    whole = MetadataLoader()
    expected = whole.append(at(0, *records))
    one_by_one = MetadataLoader()
    returned = []
    for offset, record in enumerate(records):
        returned += one_by_one.append(at(offset, record))
    assert flat(returned) == flat(expected)
    assert one_by_one.image == whole.image


@pytest.mark.parametrize(
    ("records", "record", "reason"),
    [
        ([BEGIN, BEGIN], "BeginTransactionRecord", "begun at offset 0 is still open"),
        ([BEGIN, INSIDE, BEGIN], "BeginTransactionRecord", "begun at offset 0 is still open"),
        ([END], "EndTransactionRecord", "no transaction is open"),
        ([ABORT], "AbortTransactionRecord", "no transaction is open"),
        ([BEGIN, END, END], "EndTransactionRecord", "no transaction is open"),
        ([BEGIN, ABORT, END], "EndTransactionRecord", "no transaction is open"),
    ],
)
def test_nested_and_stray_markers_are_refused(
    records: list[MetadataRecord], record: str, reason: str
) -> None:
    with pytest.raises(ReplayError, match=reason) as caught:
        replayed(*records)
    assert (caught.value.record, caught.value.offset) == (record, len(records) - 1)


def test_a_contradiction_inside_is_raised_at_the_end_marker_and_reverts_the_call() -> None:
    loader = replayed(BEFORE)
    loader.append(at(1, BEGIN, INSIDE, RemoveTopicRecord(topic_id="x" * 22)))
    with pytest.raises(ReplayError, match="no topic with id") as caught:
        loader.append(at(4, END))
    assert caught.value.offset == 3, "the contradicting record, not the marker"
    assert loader.image == state_after(BEFORE)
    assert (loader.next_offset, loader.open_transaction_offset) == (4, 1)
    loader.append(at(4, ABORT))
    assert loader.image.same_rows(state_after(BEFORE))


def test_a_failed_call_reverts_its_records_of_an_open_transaction() -> None:
    loader = replayed(BEGIN)
    with pytest.raises(ReplayError):
        loader.append(at(1, INSIDE, BEGIN))
    loader.append(at(1, BEFORE, END))
    assert [row.record_count for row in loader.image.rows_of(TransactionRow)] == [1]
    assert loader.image.topic("inside") is None


def test_control_records_inside_a_transaction_are_not_part_of_it() -> None:
    loader = replayed(BEFORE, BEGIN, INSIDE)
    loader.append([LogRecord(3, 2, 3_000, LeaderChange(leader_id=5))])
    assert loader.image.rows(Entity.EPOCH) == []
    returned = loader.append(at(4, ABORT, epoch=2))
    assert [(done.offset, done.visible_offset, done.record_type) for done in returned] == [
        (3, 3, "LEADER_CHANGE"),
        (4, 4, "ABORT_TRANSACTION_RECORD"),
    ]
    assert [row.record_count for row in loader.image.rows_of(TransactionRow)] == [1]
    assert len(loader.image.rows(Entity.EPOCH)) == 1


def test_unknown_records_inside_a_transaction_count_only_once_committed() -> None:
    loader = replayed(BEGIN, FUTURE, ABORT, BEGIN, FUTURE, END)
    assert loader.skipped == (SkippedRecords(False, 99, 0, 1, 4, 4),)
    assert [row.record_count for row in loader.image.rows_of(TransactionRow)] == [1, 1]


@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        (b"\x01\x18\x05", TransactionOutcome.COMMITTED),
        (b"\x01\x19\x05", TransactionOutcome.ABORTED),
    ],
)
def test_a_marker_of_a_future_version_is_still_a_marker(
    ending: bytes, outcome: TransactionOutcome
) -> None:
    loader = replayed(b"\x01\x17\x05\x01\x02", INSIDE, ending)
    (row,) = loader.image.rows_of(TransactionRow)
    assert (row.outcome, row.name) == (outcome, None)
    assert loader.open_transaction_offset is None


def test_a_snapshot_discards_an_open_transaction() -> None:
    loader = replayed(BEFORE, BEGIN, INSIDE)
    loader.bootstrap(SnapshotId(epoch=1, end_offset=10), at(0, BEFORE))
    assert loader.open_transaction_offset is None
    loader.append(at(10, INSIDE))
    assert loader.image.same_rows(state_after(BEFORE, INSIDE))
    with pytest.raises(ReplayError, match="no transaction is open"):
        loader.append(at(11, END))


def test_markers_in_a_snapshot_are_refused() -> None:
    with pytest.raises(ReplayError, match="it is a transaction marker"):
        MetadataLoader().bootstrap(SnapshotId(epoch=1, end_offset=10), at(0, BEGIN))
