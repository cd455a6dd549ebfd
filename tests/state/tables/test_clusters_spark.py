"""Several clusters in one set of Delta tables, as Spark reads and writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from tests.state.tables.conftest import TEMPLATE_END
from tests.support.metadata_logs import MetadataLog, metadata_log, multiset, restored
from tests.support.tables import Feed, image_of

from raftlog.client import open_path
from raftlog_state.errors import TablesError
from raftlog_state.image.image_writer import image_records
from raftlog_state.loader.metadata_loader import MetadataLoader
from raftlog_state.records import DecodedRecord, Redactor
from raftlog_state.tables import ArrowTables, ClusterTables, list_clusters, open_tables
from raftlog_state.tables.schema import CHANGES_TABLE, StoredTable

pytestmark = pytest.mark.spark

SCHEMA = "raftlog_clusters"
LOGS = ("three-nodes-4.3.1/node-1", "trimmed-3.9.2/node-1")


@pytest.mark.parametrize(
    ("names", "log"),
    [(["brokers"], False), pytest.param(["brokers", "epochs"], True, marks=pytest.mark.nightly)],
    ids=["brokers", "with log"],
)
def test_views_of_a_schema_have_the_rows_of_each_cluster(
    feed: Feed, names: Sequence[str], log: bool
) -> None:
    """One cluster is merged, truncated and continued; of the other ``state`` has nothing.

    The views are created once: it takes seconds. delta-rs, which merges and continues in a fraction
    of the time, writes to the directories of the schema's tables.
    """
    first = feed.open(SCHEMA, cluster_id="cluster-a", log=log)
    second = feed.open(SCHEMA, cluster_id="cluster-b", log=log)
    try:
        first.apply(feed.frame(0, 40), cluster_id="cluster-a")
        feed.spark.sql(f"ALTER VIEW {SCHEMA}.clusters SET TBLPROPERTIES ('kept' = 'yes')")
        place = place_of(feed, CHANGES_TABLE).parent
        with_rust = partial(feed.open, place, cluster_id="cluster-a", log=log, engine="delta-rs")
        with_rust().maintain()
        second.apply(feed.frame(0, 24), cluster_id="cluster-b")
        first.truncate_to(22)
        with_rust().apply(feed.frame(23, 30), cluster_id="cluster-a")
        assert_views_are_those_of(
            feed, names, *(open_tables(str(place), cluster_id=f"cluster-{one}") for one in "ab")
        )
        ends = list_clusters(feed.spark, SCHEMA).select("cluster_id", "offset", "incarnation")
        assert sorted(map(tuple, ends.collect())) == [("cluster-a", 29, 2), ("cluster-b", 23, 0)]
        named = feed.spark.table(f"{SCHEMA}.clusters")
        assert texts(named.toArrow()) == texts(list_clusters(feed.spark, SCHEMA).toArrow())
        kept = feed.spark.sql(f"SHOW TBLPROPERTIES {SCHEMA}.clusters ('kept')").collect()
        assert [row["value"] for row in kept] == ["yes"], "no writer replaces the views"
        with pytest.raises(TablesError, match="cluster-a, cluster-b"):
            feed.open(SCHEMA).latest()
    finally:
        feed.spark.sql(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")


def place_of(feed: Feed, table: StoredTable) -> Path:
    """Return the directory of a table of the schema."""
    detail = feed.spark.sql(f"DESCRIBE DETAIL {SCHEMA}.{table.name}").collect()[0]
    return Path(str(detail["location"]).removeprefix("file:"))


def assert_views_are_those_of(feed: Feed, names: Sequence[str], *clusters: ArrowTables) -> None:
    """Compare the views with the rows of each cluster, which Arrow reads."""
    views = [cluster.latest() for cluster in clusters]
    for name in names:
        for suffix, tables in (
            ("", [view.table(name) for view in views]),
            ("_history", [view.history(name) for view in views]),
        ):
            named = feed.spark.table(f"{SCHEMA}.{name}{suffix}")
            assert named.columns == tables[0].column_names
            assert named.columns[0] == "cluster_id"
            assert all(field.metadata.get("comment") for field in named.schema)
            expected = pa.concat_tables(tables)
            assert texts(named.toArrow().cast(expected.schema)) == texts(expected)
            assert {*expected["cluster_id"].to_pylist()} == {"cluster-a", "cluster-b"}


def texts(rows: pa.Table) -> list[str]:
    return sorted(map(str, rows.to_pylist()))


@pytest.mark.nightly
def test_concurrent_streams_of_two_clusters_write_to_the_same_tables(
    feed: Feed, data: Path, tmp_path: Path
) -> None:
    place = tmp_path / "tables"
    paths = [data / "kraft-logs" / log for log in LOGS]
    clusters = [str(open_path(str(path)).cluster_id) for path in paths]
    opened = [feed.open(place, cluster_id=cluster_id) for cluster_id in clusters]
    queries = [
        tables.materialize(
            {"path": str(path), "tailHoldback": "0", "maxOffsetsPerTrigger": "900"},
            checkpoint=str(tmp_path / f"checkpoint-{at}"),
            trigger="availableNow",
        )
        for at, (tables, path) in enumerate(zip(opened, paths, strict=True))
    ]
    for query in queries:
        query.awaitTermination()
    for at, tables in enumerate(opened):
        view = tables.latest()
        (tmp_path / str(at)).mkdir()
        log = metadata_log(restored(LOGS[at], tmp_path / str(at)))
        expected = records_after(log, view.offset)
        assert multiset(image_records(image_of(view))) == multiset(expected)
        assert len(expected) > 200
    assert {row["cluster_id"] for row in list_clusters(feed.spark, str(place)).collect()} == {
        *clusters
    }


def records_after(log: MetadataLog, offset: int) -> list[DecodedRecord]:
    """Return the redacted records of a log's state after an offset, by replay alone."""
    loader = MetadataLoader()
    loader.append([record for record in log.records if record.offset <= offset])
    redactor = Redactor()
    return [redactor.redact(record) for record in image_records(loader.image)]


@pytest.mark.nightly
def test_a_cluster_is_added_to_the_tables_of_another(
    feed: Feed, tables: Callable[..., ClusterTables]
) -> None:
    """The test of the views of a schema adds one, too, and ``test_clusters.py`` without Spark."""
    before = image_of(tables().latest())
    added = tables(cluster_id="cluster-b")
    assert added.status().offset == -1
    assert added.apply(feed.frame(0, 30), cluster_id="cluster-b") == 29
    kept = tables(cluster_id="cluster-a").latest()
    assert kept.offset == TEMPLATE_END - 1
    assert image_of(kept).maps == before.maps
    with pytest.raises(TablesError, match="2 clusters"):
        tables().status()
