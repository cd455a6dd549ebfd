"""Readers of the tables: fixed views, any past offset, and errors outside the range."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pytest
from deltalake import DeltaTable, Schema
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from tests.state.tables.conftest import TEMPLATE_END, TEMPLATE_MERGED
from tests.support.metadata_logs import MetadataLog
from tests.support.source_rows import without_secrets
from tests.support.tables import Feed, apply_feed, crash_after, image_of
from tests.support.written_tables import CrashError, changes_schema_without

from raftlog.errors import OffsetOutOfRangeError, OptionError
from raftlog_state.errors import TablesError
from raftlog_state.image import MetadataImage
from raftlog_state.image.delta import key_json
from raftlog_state.image.rows import Entity, Key, Row, table_of
from raftlog_state.loader.metadata_loader import LogRecord, MetadataLoader
from raftlog_state.tables import ClusterTables, ClusterView
from raftlog_state.tables.convert import rows_of
from raftlog_state.tables.schema import CHANGES, LOG
from raftlog_state.tables.views import CLUSTERS, DIGEST

pc: Any = pyarrow.compute  # pyarrow creates its functions at import, unseen by type checkers
pytestmark = pytest.mark.spark

Open = Callable[..., ClusterTables]


def test_a_view_is_fixed_while_the_tables_advance(feed: Feed, tables: Open) -> None:
    opened = tables()
    settings = _settings(feed)
    view = opened.latest()
    before = rows_in(view)
    opened.apply(feed.frame(TEMPLATE_END, TEMPLATE_END + 60))
    assert rows_in(view) == before
    assert rows_in(opened.at(offset=TEMPLATE_END - 1)) == before
    assert opened.latest().offset == TEMPLATE_END + 59
    assert _settings(feed) == settings, "no session setting remains changed"


def rows_in(view: ClusterView) -> list[str]:
    """Return the rows of a view: those of all typed tables in one query, of changes and of log."""
    frames = (view._publication.rows(None, view.offset), view.table(CHANGES), view.table(LOG))
    return sorted(str(row) for frame in frames for row in frame.toArrow().to_pylist())


def _settings(feed: Feed) -> dict[str, str]:
    """Return the session's settings without Delta's own note of its last commit."""
    noted = "spark.databricks.delta.lastCommitVersionInSession"
    return {name: value for name, value in feed.spark.conf.getAll.items() if name != noted}


@pytest.mark.parametrize(
    "offset",
    [
        *(pytest.param(offset, marks=pytest.mark.nightly) for offset in (10, 11, 128)),
        TEMPLATE_MERGED,
    ],
)
def test_any_past_offset_can_be_viewed(
    feed: Feed, template: Path, three_nodes: MetadataLog, offset: int
) -> None:
    """At offset 10 the first transaction is still open, at 11 it has ended; 128 updates a row, and
    so does the first change that ``state`` does not include.

    ``make test`` has other offsets in ``test_arrow_and_spark_read_the_same``, and those of random
    histories in ``test_reader.py``.
    """
    loader = MetadataLoader()
    loader.append(without_secrets(three_nodes.records[: offset + 1]))
    assert image_of(feed.open(template).at(offset=offset)).same_rows(loader.image)


@pytest.mark.nightly
def test_an_offset_above_the_tables_end_is_refused(feed: Feed, template: Path) -> None:
    """``make test`` has it in ``test_offsets_that_are_not_published_are_refused``."""
    with pytest.raises(OffsetOutOfRangeError) as raised:
        feed.open(template).at(offset=TEMPLATE_END)
    assert raised.value.log_end_offset == TEMPLATE_END


@pytest.mark.nightly
def test_views_are_created_under_one_prefix(feed: Feed, template: Path) -> None:
    """In ``make test`` the notebook of the README's demo creates them, without a prefix."""
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
    assert not (tmp_path / "nowhere").exists(), "reading the settings writes nothing"


@pytest.mark.nightly
def test_a_missing_table_is_reported(feed: Feed, template: Path) -> None:
    """``make test`` has it in ``test_arrow_and_spark_refuse_the_same``."""
    with pytest.raises(TablesError, match="tables are features"):
        feed.open(template).latest().table("topic")


def rows_as_text(frame: DataFrame) -> list[str]:
    texts = sf.to_json(sf.struct(*frame.columns), {"ignoreNullFields": "false"})
    return sorted(row[0] for row in frame.select(texts).collect())


@pytest.mark.nightly
def test_tables_may_be_in_a_schema_of_the_catalog(feed: Feed) -> None:
    tables = feed.open("spark_catalog.raftlog_in_catalog")
    try:
        assert tables.apply(feed.frame(0, 20)) == 19
        for start, end, names in ((20, 24, ("brokers",)), (24, 30, ("brokers", "epochs"))):
            assert tables.apply(feed.frame(start, end)) == end - 1, "both update brokers"
            view = tables.latest()
            for name in names:
                named = feed.spark.table(f"raftlog_in_catalog.{name}")
                assert rows_as_text(named) == rows_as_text(view.table(name))
                history = feed.spark.table(f"spark_catalog.raftlog_in_catalog.{name}_history")
                assert rows_as_text(history) == rows_as_text(view.history(name))
            assert view.brokers().count() == 3
            if len(names) == 1:
                feed.spark.sql("DROP VIEW raftlog_in_catalog.epochs_history")
                tables.maintain()
        other = f"SET TBLPROPERTIES ('{DIGEST}' = 'that of another release')"
        feed.spark.sql(f"ALTER VIEW raftlog_in_catalog.{CLUSTERS} {other}")
        feed.spark.sql("CREATE OR REPLACE VIEW raftlog_in_catalog.epochs AS SELECT 1 AS epoch")
        tables.maintain()
        named = feed.spark.table("raftlog_in_catalog.epochs")
        assert rows_as_text(named) == rows_as_text(tables.latest().table("epochs"))
        feed.spark.sql("DROP VIEW raftlog_in_catalog.brokers_history")
        feed.spark.sql("CREATE TABLE raftlog_in_catalog.brokers_history (a INT) USING parquet")
        tables.maintain()  # the creation fails in the middle, as if its process had died
        feed.spark.sql("DROP TABLE raftlog_in_catalog.brokers_history")
        feed.spark.sql("CREATE VIEW raftlog_in_catalog.brokers_history AS SELECT 1 AS one")
        tables.maintain()
        named = feed.spark.table("raftlog_in_catalog.brokers_history")
        assert rows_as_text(named) == rows_as_text(tables.latest().history("brokers"))
    finally:
        feed.spark.sql("DROP SCHEMA IF EXISTS raftlog_in_catalog CASCADE")


@pytest.mark.parametrize("name", ["two words", "a.b.c", "", "1st"])
def test_a_location_is_a_path_or_the_name_of_a_schema(feed: Feed, name: str) -> None:
    with pytest.raises(TablesError, match="neither a path nor"):
        feed.open(name)


# --- between states -------------------------------------------------------------------------------


def images(records: Sequence[LogRecord]) -> list[MetadataImage]:
    """Return the state after each offset, by replay alone."""
    loader, found = MetadataLoader(), []
    for record in without_secrets(records):
        loader.append([record])
        found.append(loader.image)
    return found


@pytest.fixture(scope="module")
def replayed(three_nodes: MetadataLog) -> list[MetadataImage]:
    return images(three_nodes.records[:TEMPLATE_END])


@pytest.mark.nightly
def test_the_history_has_each_version_of_each_row_in_its_interval(
    feed: Feed, template: Path, replayed: list[MetadataImage]
) -> None:
    """In ``make test`` it is that of Arrow, which ``test_reader.py`` compares with a replay."""
    opened, closed_count = feed.open(template), 0
    for entity in (Entity.TOPIC, Entity.PARTITION, Entity.BROKER, Entity.CONFIG):
        expected = set()
        for offset, image in enumerate(replayed):
            before = replayed[offset - 1] if offset else MetadataImage()
            for key, row in image.map(entity).items():
                if before.get(entity, key) is not row:
                    expected.add((key, offset, None))
        found = opened.history(table_of(entity)).toArrow()
        rows = rows_of(entity, found)
        froms, tos = found["valid_from"].to_pylist(), found["valid_to"].to_pylist()
        assert {(row.key, start, None) for row, start in zip(rows, froms, strict=True)} == expected
        for row, start, end in zip(rows, froms, tos, strict=True):
            last = TEMPLATE_END - 1 if end is None else end - 1
            assert replayed[start].get(entity, row.key) == row
            assert replayed[last].get(entity, row.key) == row
            if end is not None:
                closed_count += 1
                assert replayed[end].get(entity, row.key) is not replayed[last].get(entity, row.key)
    assert closed_count > 20


@pytest.mark.parametrize(
    ("since", "until"),
    [
        pytest.param(100, 140, marks=pytest.mark.nightly),
        pytest.param(120, 260, marks=pytest.mark.nightly),
        pytest.param(11, 299, marks=pytest.mark.nightly),
        pytest.param(299, 299, marks=pytest.mark.nightly),
    ],
)
def test_the_difference_of_two_states_is_that_of_their_rows(
    feed: Feed, template: Path, replayed: list[MetadataImage], since: int, until: int
) -> None:
    """A topic is deleted at 117, a config at 138.

    In ``make test`` it is that of Arrow, which ``test_reader.py`` compares with a replay.
    """
    found = feed.open(template).diff(since, until).toArrow()
    columns = zip(*(found[name].to_pylist() for name in ("op", "entity", "key")), strict=True)
    ops = {(entity, key): op for op, entity, key in columns}
    expected = {}
    for entity in Entity:
        of_entity = found.filter(pc.equal(found["entity"], str(entity)))
        before, after = (rows_at(image, entity) for image in (replayed[since], replayed[until]))
        for key in before.keys() | after.keys():
            if before.get(key) != after.get(key):
                op = "c" if key not in before else "d" if key not in after else "u"
                expected[str(entity), key_json(key)] = op
        check_side(of_entity, "before", entity, before)
        check_side(of_entity, "after", entity, after)
        for row in of_entity.to_pylist():
            sides = [row[side] and row[side][str(entity)] for side in ("before", "after")]
            differing = [name for name in sides[0] or {} if None not in sides]
            differing = [name for name in differing if sides[0][name] != sides[1][name]]
            assert sorted(row["changed"]) == sorted(differing)
    assert ops == expected


def rows_at(image: MetadataImage, entity: Entity) -> dict[Key, Row]:
    return dict(image.map(entity))


def check_side(found: pa.Table, side: str, entity: Entity, rows: dict[Key, Row]) -> None:
    """Check that the rows on one side of a difference are those of the state."""
    there = found.filter(pc.is_valid(found[side]))
    if there.num_rows:
        structs = pc.struct_field(there[side], [str(entity)])
        for row in rows_of(entity, pa.Table.from_struct_array(structs)):
            assert rows[row.key] == row


@pytest.mark.parametrize(
    "of_records",
    [
        pytest.param(False, id="as Python and Spark have it"),
        pytest.param(True, id="as text and records have it", marks=pytest.mark.nightly),
    ],
)
def test_a_time_is_the_state_before_the_first_record_not_earlier(
    feed: Feed, template: Path, three_nodes: MetadataLog, of_records: bool
) -> None:
    opened = feed.open(template)
    times = [record.timestamp_ms for record in three_nodes.records[:TEMPLATE_END]]
    at_ms = times[150]
    expected = next(offset for offset, time in enumerate(times) if time >= at_ms) - 1
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    row = opened.latest().table("log").where(f"offset = {expected + 1}").first()
    text = feed.spark.range(1).select(sf.lit(moment).cast("string").alias("text")).first()
    assert row is not None
    assert text is not None
    for time in (moment.isoformat(), row["log_time"]) if of_records else (moment, text["text"]):
        assert opened.at(time=time).offset == expected
    assert opened.at(time=moment + timedelta(days=9)).offset == TEMPLATE_END - 1
    changes = opened.changes(since=moment).agg({"visible_offset": "min"}).collect()[0][0]
    assert changes == expected + 1
    with pytest.raises(TablesError, match="earlier than the time"):
        opened.at(time="1999-12-31T23:59:59+01:00")


@pytest.mark.nightly
def test_invalid_states_are_refused(feed: Feed, template: Path) -> None:
    """``make test`` has others in ``test_arrow_and_spark_refuse_the_same``."""
    opened: Any = feed.open(template)
    calls: list[tuple[str, Callable[[], object]]] = [
        ("offset, time", lambda: opened.at()),
        ("offset, time", lambda: opened.at(offset=1, time="2026-11-21")),
        ("time", lambda: opened.at(time="3:12 am")),
        ("time", lambda: opened.at(time=5)),
        ("offset", lambda: opened.at(offset="5")),
        ("since", lambda: opened.diff(200, 100)),
        ("since", lambda: opened.diff("last week")),
        ("until", lambda: opened.changes(until=1.5)),
    ]
    for option, call in calls:
        with pytest.raises(OptionError) as raised:
            call()
        assert raised.value.option == option
    assert opened.at(offset=np.int64(11)).offset == 11


@pytest.mark.nightly
def test_changes_are_found_by_table_key_and_range(
    feed: Feed, template: Path, three_nodes: MetadataLog, replayed: list[MetadataImage]
) -> None:
    """In ``make test`` they are those of Arrow, which ``test_reader.py`` compares with a replay."""
    opened = feed.open(template)
    loader = MetadataLoader()
    expected = [
        (record.visible_offset, record.offset, str(change.entity), change.key_json)
        for record in loader.append(without_secrets(three_nodes.records[:TEMPLATE_END]))
        for change in record.changes
    ]
    columns = ("visible_offset", "offset", "entity", "key")
    found = [tuple(row) for row in opened.changes().select(*columns).collect()]
    assert sorted(found) == sorted(expected)
    assert found == sorted(found, key=lambda row: row[:2])
    partition = next(iter(replayed[-1].map(Entity.PARTITION)))
    since, until = 60, 280
    wanted = [
        one
        for one in expected
        if one[2:] == ("partition", key_json(partition)) and since < one[0] <= until
    ]
    for key in (partition, key_json(partition)):
        of_one = opened.changes(table="partitions", key=key, since=since, until=until)
        assert [tuple(row) for row in of_one.select(*columns).collect()] == sorted(wanted)
    (topic_id,) = next(iter(replayed[-1].map(Entity.TOPIC)))
    assert opened.changes(table="topics", key=topic_id).count() == 1
    assert opened.changes(table="brokers", key=1).count() > 1
    with pytest.raises(TablesError, match="unknown table partition"):
        opened.changes(table="partition")
    with pytest.raises(OffsetOutOfRangeError):
        opened.changes(until=TEMPLATE_END)


@pytest.mark.nightly
@pytest.mark.parametrize(("since", "until"), [(20, 290), (100, 140)])
def test_the_change_feed_of_a_table_leads_from_one_state_to_the_other(
    feed: Feed, template: Path, replayed: list[MetadataImage], since: int, until: int
) -> None:
    """``make test`` has that of a random log, in ``test_states_and_feeds_of_random_logs_...``."""
    opened = feed.open(template)
    kinds: set[str] = set()
    for entity in (Entity.PARTITION, Entity.TOPIC, Entity.CONFIG, Entity.BROKER):
        changes = opened.table_changes(table_of(entity), since, until)
        rows = rows_at(replayed[since], entity)
        kinds |= apply_feed(rows, changes, entity)
        assert rows == rows_at(replayed[until], entity)
        versions = changes.selectExpr("min(_commit_version)", "max(_commit_version)").first()
        assert versions is not None
        assert since < (versions[0] or until) <= (versions[1] or until) <= until
    assert kinds == {"insert", "delete", "update_preimage", "update_postimage"}


def test_offsets_that_are_not_published_are_refused(feed: Feed, tables: Open) -> None:
    crashing = tables(engine="delta-rs", **crash_after("log"))
    with pytest.raises(CrashError):
        crashing.apply(feed.frame(TEMPLATE_END, TEMPLATE_END + 20))
    with pytest.raises(OffsetOutOfRangeError) as raised:
        tables().at(offset=TEMPLATE_END)
    assert raised.value.log_end_offset == TEMPLATE_END


def test_states_before_an_expiry_are_refused(
    feed: Feed, tables: Open, replayed: list[MetadataImage]
) -> None:
    """delta-rs expires them, in a fraction of the time of Spark."""
    opened = tables(engine="delta-rs")
    floor = TEMPLATE_MERGED + 5
    assert opened.expire(floor) == opened.status().oldest_offset == floor
    assert image_of(opened.at(offset=floor)).same_rows(replayed[floor])
    with pytest.raises(OffsetOutOfRangeError) as raised:
        opened.at(offset=floor - 1)
    assert raised.value.log_start_offset == floor
    changed = opened.changes(until=floor + 20).agg(sf.min("log_time"), sf.max("log_time")).first()
    assert changed is not None
    assert opened.at(time=changed[1]).offset >= floor
    with pytest.raises(TablesError, match="have expired"):
        opened.at(time=changed[0] - timedelta(seconds=60))
    assert opened.image(floor).timestamp_ms > 0, "known although its change has expired"


@pytest.mark.nightly
def test_tables_after_an_expiry_are_verified_and_continued(
    feed: Feed, tables: Open, replayed: list[MetadataImage]
) -> None:
    """``test_writer.py`` has it without Spark and ``verify()``, and Spark expires here alone."""
    opened = tables()
    opened.expire(TEMPLATE_MERGED + 5)
    last = TEMPLATE_END - 1
    assert image_of(opened.at(offset=last)).same_rows(replayed[last])
    report = opened.verify()
    assert report.ok, str(report)
    assert opened.apply(feed.frame(TEMPLATE_END, TEMPLATE_END + 10)) == TEMPLATE_END + 9


def test_tables_of_an_earlier_layout_are_refused(feed: Feed, tables: Open, tmp_path: Path) -> None:
    old, older = tables("old"), tables("older")
    shutil.rmtree(tmp_path / "old" / "changes")
    lacking = changes_schema_without("topic")
    DeltaTable.create(str(tmp_path / "old" / "changes"), Schema.from_arrow(lacking))
    commits = Schema.from_arrow(pa.schema({"id": pa.int64()}))
    DeltaTable.create(str(tmp_path / "older" / "commits"), commits)
    calls: list[Callable[[], object]] = [
        lambda: old.apply(feed.frame(TEMPLATE_END, TEMPLATE_END + 1)),
        lambda: old.at(offset=11),
        lambda: old.latest(),
        lambda: old.verify(),
        lambda: older.latest(),
    ]
    for call in calls:
        with pytest.raises(TablesError, match=r"created by an earlier release.*tables follow LOG"):
            call()
