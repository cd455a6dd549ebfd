"""Checks of a batch before anything is written, without Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.support.metadata_logs import MetadataLog, at
from tests.support.source_rows import checkpoint_rows, source_rows

from raftlog_state.errors import OffsetGapError, ReplayError, TablesError
from raftlog_state.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    NoOpRecord,
    TopicRecord,
)
from raftlog_state.tables.batch import check_batch, epoch_ranges

NO_OPS = [NoOpRecord() for _ in range(6)]
BEGIN, END, ABORT = BeginTransactionRecord(), EndTransactionRecord(), AbortTransactionRecord()
TOPIC = TopicRecord(name="t", topic_id="wP1XW_XDTjOcp3STS81TJA")


def checked(rows: pa.Table, next_offset: int = 0) -> list[int]:
    """Return the offsets that are new."""
    batch = check_batch(rows, next_offset=next_offset, place="here")
    return list(batch.rows["offset"].to_pylist())


def checkpoint_at(log: MetadataLog, which: int) -> pa.Table:
    checkpoint = log.checkpoints[which]
    return checkpoint_rows(
        checkpoint.log_records(),
        end_offset=checkpoint.snapshot_id.end_offset,
        epoch=checkpoint.snapshot_id.epoch,
        timestamp_ms=1_000,
    )


def test_rows_are_sorted() -> None:
    rows = source_rows(at(0, *NO_OPS)).take([3, 1, 0, 2, 5, 4])
    assert checked(rows) == [0, 1, 2, 3, 4, 5]


def test_rows_below_the_tables_end_are_clipped_and_kept_for_comparison() -> None:
    batch = check_batch(source_rows(at(4, *NO_OPS)), next_offset=7, place="here")
    assert batch.rows["offset"].to_pylist() == [7, 8, 9]
    assert batch.seen["offset"].to_pylist() == [4, 5, 6]
    assert batch.last_offset == 9


def test_a_batch_after_the_tables_end_is_a_gap() -> None:
    with pytest.raises(OffsetGapError, match=r"expected offset 3 next, got offset 4"):
        checked(source_rows(at(4, *NO_OPS)), next_offset=3)


def test_a_log_without_its_start_needs_a_snapshot() -> None:
    with pytest.raises(OffsetGapError, match="bootstrap"):
        checked(source_rows(at(416, *NO_OPS)))


@pytest.mark.parametrize("missing", range(1, 5))
def test_a_missing_offset_is_a_gap(missing: int) -> None:
    rows = source_rows(at(0, *NO_OPS))
    kept = rows.take([row for row in range(6) if row != missing])
    with pytest.raises(OffsetGapError) as raised:
        checked(kept)
    assert (raised.value.expected_offset, raised.value.offset) == (missing, missing + 1)


def test_a_repeated_offset_is_refused() -> None:
    rows = source_rows(at(0, *NO_OPS))
    with pytest.raises(OffsetGapError, match="duplicate"):
        checked(pa.concat_tables([rows, rows.slice(2, 1)]))


def test_a_decreasing_leader_epoch_is_refused() -> None:
    rows = pa.concat_tables(
        [source_rows(at(0, *NO_OPS, epoch=3)), source_rows(at(6, *NO_OPS, epoch=2))]
    )
    with pytest.raises(ReplayError, match="must not decrease"):
        checked(rows)


def test_rows_of_an_open_transaction_are_omitted() -> None:
    rows = source_rows(at(0, NoOpRecord(), BEGIN, TOPIC, END, NoOpRecord(), BEGIN, TOPIC))
    assert checked(rows) == [0, 1, 2, 3, 4]
    assert checked(source_rows(at(0, BEGIN, TOPIC))) == []


def test_rows_of_an_ended_transaction_have_its_begin_offset() -> None:
    rows = source_rows(at(0, NoOpRecord(), BEGIN, TOPIC, ABORT, NoOpRecord()))
    batch = check_batch(rows, next_offset=0, place="here")
    assert batch.rows["txnBegin"].to_pylist() == [None, 1, 1, 1, None]
    assert batch.rows["apiKey"].to_pylist() == [20, 23, 2, 25, 20]
    assert batch.rows["visibleOffset"].to_pylist() == [0, None, None, None, 4]


def test_rows_of_a_session_with_large_types_are_those_of_others() -> None:
    rows = source_rows(at(0, NoOpRecord(), BEGIN, TOPIC, ABORT, NoOpRecord()))
    large = {pa.binary(): pa.large_binary(), pa.string(): pa.large_string()}
    fields = [field.with_type(large.get(field.type, field.type)) for field in rows.schema]
    of_large = check_batch(rows.cast(pa.schema(fields)), next_offset=0, place="here").rows
    assert of_large.to_pylist() == check_batch(rows, next_offset=0, place="here").rows.to_pylist()


def test_epochs_are_given_by_their_ranges() -> None:
    rows = pa.concat_tables(
        [source_rows(at(0, *NO_OPS, epoch=1)), source_rows(at(6, *NO_OPS[:2], epoch=4))]
    )
    assert list(epoch_ranges(rows)) == [(1, 0, 5), (4, 6, 7)]
    assert list(epoch_ranges(rows.slice(0, 0))) == []


def test_a_snapshot_above_the_tables_end_precedes_the_log(three_nodes: MetadataLog) -> None:
    snapshot, end_offset = checkpoint_at(three_nodes, 0), 720
    tail = source_rows(three_nodes.records[end_offset : end_offset + 3])
    batch = check_batch(pa.concat_tables([tail, snapshot]), next_offset=0, place="here")
    assert batch.snapshot_id == three_nodes.checkpoints[0].snapshot_id
    assert batch.snapshot.num_rows == snapshot.num_rows
    assert batch.records["offset"].to_pylist() == [720, 721, 722]


def test_a_snapshot_at_or_below_the_tables_end_is_skipped(three_nodes: MetadataLog) -> None:
    batch = check_batch(checkpoint_at(three_nodes, 0), next_offset=720, place="here")
    assert batch.is_empty
    assert batch.snapshot_id is None


def test_a_snapshot_one_record_above_the_tables_end_is_loaded(three_nodes: MetadataLog) -> None:
    batch = check_batch(checkpoint_at(three_nodes, 0), next_offset=719, place="here")
    assert batch.snapshot_id == three_nodes.checkpoints[0].snapshot_id
    assert batch.last_offset == 719


@pytest.mark.parametrize("lost", [0, 5, -1])
def test_an_incomplete_snapshot_is_refused(three_nodes: MetadataLog, lost: int) -> None:
    rows = checkpoint_at(three_nodes, 0)
    lost %= rows.num_rows
    kept = rows.take([row for row in range(rows.num_rows) if row != lost])
    with pytest.raises(TablesError, match="720 are incomplete"):
        checked(kept)


def test_rows_without_control_records_are_refused_with_the_option() -> None:
    rows = source_rows(at(0, *NO_OPS)).drop_columns(["controlType"])
    with pytest.raises(TablesError, match="includeControlRecords"):
        checked(rows)


def test_rows_of_another_topic_are_refused_unless_they_are_metadata_records() -> None:
    """A quorum of raftlog may have metadata records in a topic of any name."""
    rows = source_rows(at(0, *NO_OPS))
    others = rows.set_column(rows.column_names.index("topic"), "topic", pa.array(["pay-0"] * 6))
    assert checked(others) == [0, 1, 2, 3, 4, 5]
    types = others.column_names.index("recordType")
    no_types = pa.nulls(5, others.schema.field("recordType").type)
    one_type = pa.chunked_array([no_types, others["recordType"].slice(5).combine_chunks()])
    with pytest.raises(TablesError, match="pay-0"):
        checked(others.set_column(types, "recordType", one_type))
