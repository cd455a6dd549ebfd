"""The function of ``foreachBatch`` that a Connect server gets as a pickled copy."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from tests.support.metadata_logs import MetadataLog
from tests.support.source_rows import source_rows

from raftlog_state.tables import open_tables
from raftlog_state.tables.cluster import open_writer
from raftlog_state.tables.cluster_rows import no_step
from raftlog_state.tables.following import BatchSink
from raftlog_state.tables.micro_batches import batch_function
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
