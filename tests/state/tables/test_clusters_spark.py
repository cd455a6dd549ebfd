"""Several clusters in one set of Delta tables, as Spark reads and writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from tests.state.tables.conftest import TEMPLATE_END
from tests.support.metadata_logs import MetadataLog, metadata_log, multiset, restored
from tests.support.tables import Feed, image_of

from raftlog.client import open_path
from raftlog_state.errors import TablesError
from raftlog_state.image.image_writer import image_records
from raftlog_state.loader.metadata_loader import MetadataLoader
from raftlog_state.records import DecodedRecord, Redactor
from raftlog_state.tables import ClusterTables, list_clusters

pytestmark = pytest.mark.spark

SCHEMA = "raftlog_clusters"
ENTITIES = ("brokers", "epochs")
LOGS = ("three-nodes-4.3.1/node-1", "trimmed-3.9.2/node-1")


def test_views_of_a_schema_have_the_rows_of_each_cluster(feed: Feed) -> None:
    """One cluster is merged, truncated and continued; of the other ``state`` has nothing.

    The views are created once: it takes seconds.
    """
    first = feed.open(SCHEMA, cluster_id="cluster-a")
    second = feed.open(SCHEMA, cluster_id="cluster-b")
    try:
        first.apply(feed.frame(0, 40), cluster_id="cluster-a")
        feed.spark.sql(f"ALTER VIEW {SCHEMA}.clusters SET TBLPROPERTIES ('kept' = 'yes')")
        first.maintain()
        second.apply(feed.frame(0, 24), cluster_id="cluster-b")
        first.truncate_to(22)
        first.apply(feed.frame(23, 30), cluster_id="cluster-a")
        assert_views_are_those_of(feed, first, second)
        ends = list_clusters(feed.spark, SCHEMA).select("cluster_id", "offset", "incarnation")
        assert sorted(map(tuple, ends.collect())) == [("cluster-a", 29, 2), ("cluster-b", 23, 0)]
        named = feed.spark.table(f"{SCHEMA}.clusters")
        assert rows_as_text(named) == rows_as_text(list_clusters(feed.spark, SCHEMA))
        kept = feed.spark.sql(f"SHOW TBLPROPERTIES {SCHEMA}.clusters ('kept')").collect()
        assert [row["value"] for row in kept] == ["yes"], "no writer replaces the views"
        with pytest.raises(TablesError, match="cluster-a, cluster-b"):
            feed.open(SCHEMA).latest()
    finally:
        feed.spark.sql(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")


def assert_views_are_those_of(feed: Feed, *clusters: ClusterTables) -> None:
    views = [cluster.latest() for cluster in clusters]
    for name in ENTITIES:
        for suffix, frames in (
            ("", [view.table(name) for view in views]),
            ("_history", [view.history(name) for view in views]),
        ):
            named = feed.spark.table(f"{SCHEMA}.{name}{suffix}")
            assert named.columns == frames[0].columns
            assert named.columns[0] == "cluster_id"
            assert all(field.metadata.get("comment") for field in named.schema)
            expected = [row for frame in frames for row in rows_as_text(frame)]
            assert rows_as_text(named) == sorted(expected)
            assert expected


def rows_as_text(frame: DataFrame) -> list[str]:
    texts = sf.to_json(sf.struct(*frame.columns), {"ignoreNullFields": "false"})
    return sorted(row[0] for row in frame.select(texts).collect())


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
