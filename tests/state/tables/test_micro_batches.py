"""The function of ``foreachBatch`` that a Connect server gets as a pickled copy."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from tests.support.memory_store import MemoryStore, MemoryTables
from tests.support.metadata_logs import MetadataLog
from tests.support.source_rows import source_rows
from tests.support.written_tables import read_view

from raftlog_state.errors import ClustersFailedError
from raftlog_state.tables import open_tables
from raftlog_state.tables.cluster import open_writer
from raftlog_state.tables.cluster_group import GroupSink
from raftlog_state.tables.cluster_rows import no_step
from raftlog_state.tables.following import BatchSink
from raftlog_state.tables.group_writer import GroupWriter
from raftlog_state.tables.micro_batches import batch_function
from raftlog_state.tables.source_options import SOURCE_CLUSTER_ID
from raftlog_state.tables.upkeep import Upkeep, UpkeepRunner
from raftlog_state.tables.writer import Writer

END = 60


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
