"""Producers' transactions in the tasks of the source, without Spark."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from tests.support.batch_encoding import NewRecordBatch
from tests.support.small_logs import LogWriter

from pyspark_raftlog.options import RaftlogOptions
from pyspark_raftlog.planning import LogRange
from pyspark_raftlog.reader import RaftlogReader
from raftlog.errors import CorruptBatchError, DataLossError
from raftlog.records import NewRecord, encode_control
from raftlog.records.control import ControlType, EndTransactionMarker

Row = tuple[int, int | None]


def data(log: LogWriter, producer_id: int, count: int) -> None:
    records = tuple(NewRecord(None, b"x" * 50) for _ in range(count))
    log.append(batch=_batch(producer_id, records))


def end(log: LogWriter, producer_id: int, *, commit: bool) -> None:
    kind = ControlType.COMMIT if commit else ControlType.ABORT
    marker = EndTransactionMarker(control_type=kind, coordinator_epoch=0)
    log.append(batch=_batch(producer_id, (NewRecord(*encode_control(marker)),), is_control=True))


def _batch(
    producer_id: int, records: tuple[NewRecord, ...], *, is_control: bool = False
) -> NewRecordBatch:
    return NewRecordBatch(
        records=records,
        base_timestamp_ms=0,
        is_control=is_control,
        is_transactional=True,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=-1 if is_control else 0,
    )


@pytest.fixture
def log(tmp_path: Path) -> LogWriter:
    """Offsets 0-1 aborted at 9, 2-4 committed at 5, 6-8 plain, 10-12 committed at 13."""
    log = LogWriter(tmp_path / "orders-0")
    data(log, 7, 2)
    data(log, 8, 3)
    end(log, 8, commit=True)
    log.append(b"a", b"b", b"c")
    end(log, 7, commit=False)
    data(log, 7, 3)
    end(log, 7, commit=True)
    return log


def reader(log: LogWriter, **options: str) -> RaftlogReader:
    parsed = RaftlogOptions.parse({"path": str(log.directory), **options})
    return RaftlogReader(parsed, ("offset", "visibleOffset"))


def rows(log: LogWriter, **options: str) -> list[Row]:
    found: list[Row] = []
    source = reader(log, **options)
    for partition in source.partitions():
        assert isinstance(partition, LogRange)
        assert partition.split.spans == ()
        for batch in source.read(pickle.loads(pickle.dumps(partition))):
            found += list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    return found


@pytest.mark.parametrize("tasks", ["1", "3", "14"])
def test_tasks_find_aborts_after_their_own_range(log: LogWriter, tasks: str) -> None:
    committed = [2, 3, 4, 6, 7, 8, 10, 11, 12]
    expected = [(offset, offset) for offset in committed]
    assert rows(log, minPartitions=tasks) == expected
    shown = rows(log, minPartitions=tasks, includeAbortedRecords="true")
    assert shown == [(0, None), (1, None), *expected]
    everything = rows(log, minPartitions=tasks, isolationLevel="read_uncommitted")
    assert [offset for offset, _ in everything] == [0, 1, *committed]


def test_damage_in_a_marker_hides_its_transaction_and_later_records(log: LogWriter) -> None:
    source = reader(log)
    (partition,) = source.partitions()
    segment = log.directory / "00000000000000000000.log"
    damaged = bytearray(segment.read_bytes())
    damaged[-1] ^= 1
    segment.write_bytes(damaged)
    batches = source.read(partition)
    assert next(batches).column(0).to_pylist() == [2, 3, 4, 6, 7, 8]
    with pytest.raises(CorruptBatchError):
        next(batches)


@pytest.mark.parametrize("is_accepted", [False, True])
def test_a_marker_truncated_since_is_reported(log: LogWriter, is_accepted: bool) -> None:
    source = reader(log, failOnDataLoss=str(not is_accepted), endingOffset="13")
    (partition,) = source.partitions()
    assert isinstance(partition, LogRange)
    segment = log.directory / "00000000000000000000.log"
    segment.write_bytes(segment.read_bytes()[:-5])
    batches = source.read(partition)
    assert next(batches).column(0).to_pylist() == [2, 3, 4, 6, 7, 8]
    if is_accepted:
        assert list(batches) == []
        return
    with pytest.raises(DataLossError) as caught:
        next(batches)
    assert caught.value.condition == "LOG_TRUNCATED"
