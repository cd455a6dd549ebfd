"""Readers of the tables: fixed views, any past offset, and errors outside the range."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.state.tables.conftest import TEMPLATE_END
from tests.support.metadata_logs import MetadataLog
from tests.support.source_rows import without_secrets
from tests.support.tables import Feed, contents, image_of

from raftlog.errors import OffsetOutOfRangeError
from raftlog_state.errors import TablesError
from raftlog_state.loader.metadata_loader import MetadataLoader
from raftlog_state.tables import ClusterTables

pytestmark = pytest.mark.spark

Open = Callable[..., ClusterTables]


def test_a_view_is_fixed_while_the_tables_advance(feed: Feed, tables: Open) -> None:
    opened = tables()
    settings = _settings(feed)
    view = opened.latest()
    before = contents(view)
    opened.apply(feed.frame(TEMPLATE_END, TEMPLATE_END + 60))
    assert contents(view) == before
    assert contents(opened.at(offset=TEMPLATE_END - 1)) == before
    assert opened.latest().offset == TEMPLATE_END + 59
    assert _settings(feed) == settings, "no session setting remains changed"


def _settings(feed: Feed) -> dict[str, str]:
    """Return the session's settings without Delta's own note of its last commit."""
    noted = "spark.databricks.delta.lastCommitVersionInSession"
    return {name: value for name, value in feed.spark.conf.getAll.items() if name != noted}


@pytest.mark.parametrize("offset", [10, 11, pytest.param(150, marks=pytest.mark.nightly)])
def test_any_past_offset_can_be_viewed(
    feed: Feed, template: Path, three_nodes: MetadataLog, offset: int
) -> None:
    """At offset 10 the first transaction is still open, at 11 it has ended."""
    loader = MetadataLoader()
    loader.append(without_secrets(three_nodes.records[: offset + 1]))
    assert image_of(feed.open(template).at(offset=offset)).same_rows(loader.image)


def test_an_offset_above_the_tables_end_is_refused(feed: Feed, template: Path) -> None:
    with pytest.raises(OffsetOutOfRangeError) as raised:
        feed.open(template).at(offset=TEMPLATE_END)
    assert raised.value.log_end_offset == TEMPLATE_END


def test_views_are_created_under_one_prefix(feed: Feed, template: Path) -> None:
    names = feed.open(template).latest().create_views("seen_")
    found = feed.spark.sql(
        "SELECT count(*) AS n FROM seen_partitions JOIN seen_topics USING (topic_id)"
    ).collect()
    assert found[0]["n"] > 0
    for name in names:
        feed.spark.catalog.dropTempView(name)


def test_empty_tables_are_reported(feed: Feed, tmp_path: Path) -> None:
    empty = feed.open(tmp_path / "nowhere")
    assert empty.status().log_offset == -1
    with pytest.raises(TablesError, match="nothing was published"):
        empty.latest()
    with pytest.raises(TablesError, match="nothing was published"):
        empty.verify()
    assert empty.publish() == -1
    assert not (tmp_path / "nowhere").exists(), "reading the settings writes nothing"


def test_a_missing_table_is_reported(feed: Feed, template: Path) -> None:
    with pytest.raises(TablesError, match="tables are features"):
        feed.open(template).latest().table("topic")


def test_tables_may_be_in_a_schema_of_the_catalog(feed: Feed) -> None:
    tables = feed.open("raftlog_in_catalog")
    try:
        assert tables.apply(feed.frame(0, 40)) == 39
        assert tables.apply(feed.frame(40, 50)) == 49
        named = feed.spark.table("raftlog_in_catalog.features")
        assert named.count() == tables.latest().features().count() == 6
        assert tables.latest().offset == 49
    finally:
        feed.spark.sql("DROP SCHEMA IF EXISTS raftlog_in_catalog CASCADE")


@pytest.mark.parametrize("name", ["two words", "a.b.c", "", "1st"])
def test_a_location_is_a_path_or_the_name_of_a_schema(feed: Feed, name: str) -> None:
    with pytest.raises(TablesError, match="neither a path nor"):
        feed.open(name)
