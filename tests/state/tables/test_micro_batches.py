"""The function of ``foreachBatch`` that a Connect server gets as a pickled copy."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pytest
from pyspark import cloudpickle
from tests.support.clock import StoppedClock
from tests.support.internal_records import InternalLogFile, offset_commit
from tests.support.memory_store import MemoryStore, MemoryTables
from tests.support.metadata_logs import MetadataLog
from tests.support.source_rows import source_rows
from tests.support.written_tables import read_view

from raftlog.client import open_path
from raftlog_state.errors import ClustersFailedError, OffsetGapError
from raftlog_state.records import Redactor
from raftlog_state.records.internal_logs import log_id_of
from raftlog_state.tables import open_tables
from raftlog_state.tables.cluster import open_writer
from raftlog_state.tables.cluster_group import GroupLog, GroupSink
from raftlog_state.tables.cluster_rows import no_step
from raftlog_state.tables.following import BatchSink
from raftlog_state.tables.group_writer import GroupWriter
from raftlog_state.tables.log_follower import DecodedValues, FollowSettings, LogTail, row_settings
from raftlog_state.tables.micro_batches import batch_function
from raftlog_state.tables.progress import Progress
from raftlog_state.tables.reader import ArrowTables
from raftlog_state.tables.source_options import SOURCE_CLUSTER_ID
from raftlog_state.tables.upkeep import Upkeep, UpkeepRunner
from raftlog_state.tables.writer import Writer

pc: Any = pyarrow.compute  # pyarrow creates its functions at import, unseen by type checkers

END = 60
MISSED_ID = log_id_of("c", "__consumer_offsets", 0)


class Frame:
    """Rows of a micro-batch, and the session that a server gives it."""

    def __init__(self, rows: pa.Table) -> None:
        self.sparkSession: Any = None
        self._rows = rows

    def toArrow(self) -> pa.Table:  # noqa: N802
        return self._rows


def sink_of(writer: Writer) -> BatchSink:
    return BatchSink(writer, "c", UpkeepRunner(writer, Upkeep(None)))


@pytest.mark.parametrize("is_remote", [False, True])
def test_micro_batches_are_written_where_the_function_is_called(
    three_nodes: MetadataLog, tmp_path: Path, is_remote: bool
) -> None:
    place = str(tmp_path / "tables")
    module = "pyspark.sql.connect.session" if is_remote else "pyspark.sql.session"
    session: Any = type("SparkSession", (), {"__module__": module})()
    open_it = partial(open_writer, Writer, place, "delta-rs", no_step, cluster_id=None)
    own = open_it(session)
    write: Any = batch_function(session, own, sink_of, open_it)
    if is_remote:
        pickler: Any = cloudpickle
        write = pickle.loads(pickler.dumps(write))
    rows = source_rows(three_nodes.records[:END])
    for number, start in enumerate((0, 20, 40)):
        write(Frame(rows.slice(start, 20)), number)
    assert open_tables(place).latest().offset == END - 1
    assert own.unmerged_row_count() > 0, "it is the writer, or reads what the other has written"


def test_a_rejected_cluster_ends_a_query_of_many_after_the_others_are_published(
    three_nodes: MetadataLog,
) -> None:
    tables = MemoryTables()
    group = GroupWriter(MemoryStore(tables), "one")
    sink = GroupSink(group, [], UpkeepRunner(group, Upkeep(None)))
    rows = source_rows(three_nodes.records[:END])

    def batch(**parts: pa.Table) -> pa.Table:
        return pa.concat_tables(
            part.append_column(SOURCE_CLUSTER_ID, pa.array([name] * part.num_rows))
            for name, part in parts.items()
        )

    sink.write(batch(a=rows.slice(0, 20), b=rows.slice(0, 20)))
    with pytest.raises(ClustersFailedError, match="RAFTLOG_CLUSTERS_FAILED") as caught:
        sink.write(batch(a=rows.slice(30), b=rows.slice(20)))
    assert caught.value.failures.keys() == {"a"}
    assert [read_view(tables, name).offset for name in "ab"] == [19, END - 1]


def opened_log(log_id: str, next_offset: int, earlier: pa.Table | None = None) -> GroupLog:
    return GroupLog(
        options={},
        cluster_id=log_id,
        incarnation=0,
        next_offset=next_offset,
        log_start_offset=0,
        earlier=earlier,
        target_offset=0,
        is_at_target=False,
    )


def internal_rows(log: InternalLogFile, log_id: str) -> pa.Table:
    """Return the rows of a whole log as a query has them."""
    settings = FollowSettings(redactor=Redactor(), holdback_ms=0)
    columns = GroupWriter(MemoryStore(MemoryTables()), "columns").source_columns
    tail = LogTail(
        partial(open_path, str(log.path)),
        settings,
        place="memory",
        clock=StoppedClock().as_clock(),
        rows=row_settings(columns, settings, DecodedValues()),
    )
    found = tail.read_next(tail.refreshed(), Progress(cluster_id=log_id), list)
    assert found is not None
    rows = found[1]
    return rows.append_column(SOURCE_CLUSTER_ID, pa.array([log_id] * rows.num_rows))


@dataclass(frozen=True)
class Missed:
    """Tables of ``deleted`` and ``g``, which end at offset 2, and what of the log is left: none, or
    the record of ``g``, and records from offset 7 on."""

    group: GroupWriter
    store: MemoryStore
    earlier: pa.Table
    left: InternalLogFile

    def sink(self) -> GroupSink:
        """Return the sink of a query that began when the log had no record from offset 2 on."""
        opened = opened_log(MISSED_ID, 2, self.earlier)
        return GroupSink(self.group, [opened], UpkeepRunner(self.group, Upkeep(None)))

    def rows(self, start_offset: int) -> pa.Table:
        """Return the rows from an offset on."""
        rows = internal_rows(self.left, MISSED_ID)
        return rows.filter(pc.greater_equal(rows["offset"], start_offset))

    def committed(self) -> dict[str, int]:
        """Return the committed offset of each group."""
        found = ArrowTables(self.store, MISSED_ID).latest().consumer_offsets()
        return dict(zip(found["group"].to_pylist(), found["offset"].to_pylist(), strict=True))


@pytest.fixture(params=["start", "compaction"])
def missed(request: pytest.FixtureRequest, tmp_path: Path) -> Missed:
    store = MemoryStore(MemoryTables())
    group = GroupWriter(store, "one")
    log = InternalLogFile(tmp_path / "a" / "__consumer_offsets-0")
    log.append(offset_commit("deleted", 1), offset_commit("g", 1))
    rows = internal_rows(log, MISSED_ID).drop_columns([SOURCE_CLUSTER_ID])
    assert not group.apply({MISSED_ID: rows}).failures
    is_start = request.param == "start"
    left = InternalLogFile(tmp_path / "b" / "__consumer_offsets-0", 7 if is_start else 1)
    if not is_start:
        left.append(offset_commit("g", 1))
        left.next_offset = 7
    return Missed(group, store, rows.slice(2 if is_start else 1), left)


def test_first_rows_of_a_query_and_earlier_ones_are_the_state_of_a_log_with_missed_records(
    missed: Missed,
) -> None:
    """When the query began, no record after those of the tables was left; a deleted one was a
    tombstone."""
    sink = missed.sink()
    missed.left.append(offset_commit("h", 5))
    kept = {"g": 1} if missed.earlier.num_rows else {}
    sink.write(missed.rows(1))  # also the last record of the tables, if it is left
    assert missed.committed() == {**kept, "h": 5}
    missed.left.append(offset_commit("g", 6))
    sink.write(missed.rows(8))
    assert missed.committed() == {"g": 6, "h": 5}
    assert ArrowTables(missed.store, MISSED_ID).status().gaps == ((2, 7),)


def test_rows_that_the_tables_have_leave_the_missed_records_to_the_first_new_ones(
    missed: Missed,
) -> None:
    sink = missed.sink()
    if missed.earlier.num_rows:
        sink.write(missed.rows(1))
        assert missed.committed() == {"deleted": 1, "g": 1}
    missed.left.append(offset_commit("g", 5))
    sink.write(missed.rows(7))
    assert missed.committed() == {"g": 5}


def test_a_sink_that_is_created_again_does_not_replace_the_state_again(missed: Missed) -> None:
    """A Connect server creates it in each process that it starts."""
    for offset, name in ((7, "h"), (8, "g"), (9, "i")):
        missed.left.append(offset_commit(name, offset))
        missed.sink().write(missed.rows(offset))
    assert missed.committed() == {"h": 7, "g": 8, "i": 9}


def test_the_first_load_of_a_log_without_its_first_records_has_no_gap(tmp_path: Path) -> None:
    log_id = log_id_of("c", "__consumer_offsets", 0)
    store = MemoryStore(MemoryTables())
    group = GroupWriter(store, "one")
    log = InternalLogFile(tmp_path / "__consumer_offsets-0", start_offset=7)
    sink = GroupSink(group, [opened_log(log_id, 0)], UpkeepRunner(group, Upkeep(None)))
    for value in (5, 6):
        log.append(offset_commit("g", value))
        rows = internal_rows(log, log_id)
        sink.write(rows.slice(rows.num_rows - 1))
    found = ArrowTables(store, log_id)
    assert found.status().gaps == ()
    assert found.latest().consumer_offsets()["offset"].to_pylist() == [6]


def test_a_query_whose_tables_of_an_internal_log_are_truncated_ends(tmp_path: Path) -> None:
    """Rows after the truncated ones are no continuation; it begins again at the tables' end."""
    log_id = log_id_of("c", "__consumer_offsets", 0)
    store = MemoryStore(MemoryTables())
    group = GroupWriter(store, "one")
    log = InternalLogFile(tmp_path / "__consumer_offsets-0")
    sink = GroupSink(group, [opened_log(log_id, 0)], UpkeepRunner(group, Upkeep(None)))
    log.append(*(offset_commit("g", value) for value in range(4)))
    sink.write(internal_rows(log, log_id))
    Writer(store, cluster_id=log_id).truncate_to(1)
    log.append(offset_commit("h", 1))
    with pytest.raises(ClustersFailedError) as caught:
        sink.write(internal_rows(log, log_id).slice(4))
    assert isinstance(caught.value.failures[log_id], OffsetGapError)
    assert ArrowTables(store, log_id).status().offset == 1
