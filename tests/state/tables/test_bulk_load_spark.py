"""``ClusterTables.load``: tasks of Spark, and the tables of both engines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.memory_store import MemoryTables
from tests.support.random_metadata_log import write_random_log
from tests.support.written_tables import contents, followed

from raftlog_state.tables import open_cluster, open_tables
from raftlog_state.tables.cluster import Engine
from raftlog_state.tables.schema import STORED_TABLES
from raftlog_state.tables.stores.delta_rs import DeltaRsStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("engine", [pytest.param("spark", marks=pytest.mark.nightly), "delta-rs"])
def test_a_load_by_executors_gives_the_tables_of_single_batches(
    spark: SparkSession, tmp_path: Path, engine: Engine
) -> None:
    """In ``make test`` Spark's commit of a load is that of the contract of stores:
    ``test_rows_of_files_are_written_in_one_commit``."""
    log = write_random_log(tmp_path, 1, 120)
    assert 100 < log.end_offset <= 200, "two ranges"
    place = tmp_path / "tables"
    cluster = open_cluster(spark, str(place), engine=engine)
    last = cluster.load(
        str(log.directory), staging=str(tmp_path / "staging"), bucket_count=2, range_records=100
    )
    store = DeltaRsStore(str(place))
    found = {name: store.read(table) for name, table in STORED_TABLES.items()}
    assert contents(MemoryTables(contents=found)) == contents(followed(log.directory))
    assert open_tables(str(place)).latest().offset == last
    assert not any((tmp_path / "staging").iterdir())
