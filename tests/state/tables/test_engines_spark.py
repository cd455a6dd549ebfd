"""Tables that delta-rs and Spark write in turns, read with Spark."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession
from tests.state.table_stores.rows import change, changes, rows_of, table_of
from tests.support.tables import Feed, contents, image_of, offsets_once

from raftlog.errors import OptionError
from raftlog_state.errors import ConcurrentWriterError, TablesError
from raftlog_state.tables.reader import open_tables
from raftlog_state.tables.schema import CHANGES_TABLE, LOG_TABLE
from raftlog_state.tables.stores import spark as spark_store
from raftlog_state.tables.stores.delta_appends import added_files, read_actions
from raftlog_state.tables.stores.delta_rs import DeltaRsStore
from raftlog_state.tables.stores.protocol import (
    Condition,
    TableStore,
    Transaction,
    Where,
    rows_where,
)
from raftlog_state.tables.stores.spark import SparkStore, session_for_tables

pytestmark = pytest.mark.spark


def test_both_engines_write_the_same_tables(feed: Feed, template: Path, tmp_path: Path) -> None:
    place = tmp_path / "tables"
    rust = feed.open(place, engine="delta-rs")
    assert rust.apply(feed.frame(0, 100), cluster_id="cluster-a") == 99
    rust.maintain()
    assert rust.apply(feed.frame(100, 150)) == 149
    jvm = feed.open(place)
    assert jvm.apply(feed.frame(150, 200)) == 199
    jvm.maintain()
    assert rust.apply(feed.frame(190, 240)) == 239
    assert rust.truncate_to(219) == 219
    assert feed.open(place).apply(feed.frame(220, 230)) == 229
    found = contents(place)
    assert found == contents(template, 229)
    assert offsets_once(found)
    assert image_of(feed.open(place).latest()).same_rows(open_tables(str(place)).image(229))


@pytest.mark.nightly
def test_tables_of_delta_rs_are_verified(feed: Feed, tmp_path: Path) -> None:
    """``make test`` compares their contents with those of Spark, in the test above."""
    rust = feed.open(tmp_path / "tables", engine="delta-rs")
    assert rust.apply(feed.frame(0, 100), cluster_id="cluster-a") == 99
    rust.maintain()
    assert rust.apply(feed.frame(100, 240)) == 239
    assert rust.truncate_to(219) == 219
    report = rust.verify()
    assert report.ok, str(report)


def test_spark_reads_and_continues_appends_that_delta_rs_has_no_part_in(
    feed: Feed, tmp_path: Path
) -> None:
    """They have a checkpoint, and files without the columns of other entities."""
    session = session_for_tables(feed.spark.newSession())
    jvm, rust = SparkStore(session, str(tmp_path)), DeltaRsStore(str(tmp_path))

    def append(store: TableStore, offset: int) -> None:
        transaction = Transaction(app_id="writer", version=offset)
        store.append(CHANGES_TABLE, changes(offset, offset), transaction)

    def engine() -> str:
        path = tmp_path / CHANGES_TABLE.name
        [last] = session.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").collect()
        assert (last.operation, last.operationParameters) == ("WRITE", {"mode": "Append"})
        return str(last.engineInfo)

    for offset in range(101):
        append(rust, offset)
    assert engine().startswith("raftlog ")
    with pytest.raises(ConcurrentWriterError):
        append(jvm, 100)
    append(jvm, 101)
    jvm.compact(CHANGES_TABLE)
    with pytest.raises(ConcurrentWriterError):
        append(rust, 101)
    append(rust, 102)
    assert engine().startswith("raftlog "), "Spark leaves the table as it was"
    expected = rows_of(CHANGES_TABLE, pa.concat_tables([changes(at, at) for at in range(103)]))
    late: Where = (("visible_offset", ">", 99), ("key", ">", ""))
    stores: tuple[TableStore, ...] = (rust, jvm)
    for store in stores:
        assert rows_of(CHANGES_TABLE, store.read(CHANGES_TABLE)) == expected
        assert store.read(CHANGES_TABLE, late).num_rows == 6


def test_tables_of_spark_are_appended_to_without_delta_rs(feed: Feed, tmp_path: Path) -> None:
    session = session_for_tables(feed.spark.newSession())
    jvm, rust = SparkStore(session, str(tmp_path)), DeltaRsStore(str(tmp_path))
    stores: tuple[TableStore, ...] = (jvm, rust, jvm)
    for offset, store in enumerate(stores):
        transaction = Transaction(app_id="writer", version=offset)
        store.append(CHANGES_TABLE, changes(offset, offset), transaction)
    entries = sorted((tmp_path / CHANGES_TABLE.name / "_delta_log").glob("*.json"))
    assert '"engineInfo": "raftlog ' in entries[-2].read_text()
    expected = rows_of(CHANGES_TABLE, pa.concat_tables([changes(at, at) for at in range(3)]))
    for store in stores[:2]:
        assert rows_of(CHANGES_TABLE, store.read(CHANGES_TABLE)) == expected


def test_delta_rs_keeps_the_times_of_files_that_spark_wrote(feed: Feed, tmp_path: Path) -> None:
    """Spark writes INT96 by default, of which delta-rs loses years before 1677 and after 2262."""
    times = [datetime(year, 1, 2, 3, 4, 5, 6, tzinfo=UTC) for year in (1600, 2500)]
    session = session_for_tables(feed.spark.newSession())
    jvm, rust = SparkStore(session, str(tmp_path)), DeltaRsStore(str(tmp_path))
    for offset, log_time in enumerate(times):
        row = {"offset": offset, "leader_epoch": 0, "log_time": log_time}
        rows = LOG_TABLE.schema.empty_table().from_pylist([row], schema=LOG_TABLE.schema)
        jvm.append(LOG_TABLE, rows, Transaction(app_id="a", version=offset))
    rust.compact(LOG_TABLE)
    for store in (rust, jvm):
        found = store.read(LOG_TABLE).sort_by("offset")
        assert found["log_time"].to_pylist() == times


def executions_of(feed: Feed) -> dict[int, Any]:
    """Return the last executions of Spark that have started, by their ids.

    Those of a store's thread start at any time.
    """
    feed.spark._jsc.sc().listenerBus().waitUntilEmpty()
    executions = feed.spark._jsparkSession.sharedState().statusStore()
    found = executions.executionsList(max(0, executions.executionsCount() - 100), 1_000)
    return {one.executionId(): one for one in map(found.apply, range(found.size()))}


LOOKED_UP: Final = (
    *(("store", 0, False), ("store", 1, False), ("store", 2, False)),
    *(("optimize", 0, None), ("store", 3, True), ("store", 4, False), ("store", 4, None)),
    *(("other", 5, True), ("store", 5, None), ("store", 6, False)),
    *(("other", 7, True), ("store", 8, True)),
)
"""Appends by their store and version, and whether each reads the history; None: it is a conflict.

After a compaction or the commit of another writer it does.
"""


@pytest.mark.parametrize(
    "appends",
    [
        pytest.param(LOOKED_UP, marks=pytest.mark.nightly, id="many"),
        pytest.param(
            (("store", 0, False), ("store", 1, False), ("other", 2, True), ("store", 2, None)),
            id="few",
        ),
    ],
)
def test_an_append_is_looked_up_in_the_history_only_if_it_is_not_the_next_commit(
    feed: Feed, tmp_path: Path, appends: Sequence[tuple[str, int, bool | None]]
) -> None:
    stores = {name: SparkStore(feed.spark, str(tmp_path)) for name in ("store", "other")}

    def reads_history(writer: SparkStore, version: int) -> bool:
        """Return whether an append reads the history; an entry is read without Spark."""
        before = executions_of(feed)
        transaction = Transaction(app_id="writer", version=version)
        writer.append(CHANGES_TABLE, changes(version, version), transaction)
        started = executions_of(feed)
        last = max(before, default=-1)
        plans = [one.physicalPlanDescription() for at, one in started.items() if at > last]
        assert plans
        reads = any("DescribeDeltaHistory" in plan for plan in plans)
        assert reads or not any("FileScan text" in plan for plan in plans)
        return reads

    for name, version, expected in appends:
        if name == "optimize":
            # It leaves the file of the first append, which is larger than the others together.
            feed.spark.sql(f"OPTIMIZE {stores['store'].reference(CHANGES_TABLE.name)}")
        elif expected is None:
            with pytest.raises(ConcurrentWriterError):
                reads_history(stores[name], version)
        else:
            assert reads_history(stores[name], version) == expected, (name, version)
    written = pa.concat_tables(
        [changes(at, at) for _, at, expected in appends if expected is not None]
    )
    assert stores["store"].read(CHANGES_TABLE).num_rows == written.num_rows


@pytest.mark.nightly
def test_an_append_finds_the_state_of_the_table_which_is_computed_beside_the_batch_before_it(
    feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta looks up the transaction of an append in it. It is computed in a session of its own.

    ``make test`` has what is appended, in ``test_store_contract.py``; so for reads in parts, below.
    """
    setting, value = "spark.sql.codegen.maxFields", "101"  # that of the store, all tests have
    monkeypatch.setattr(spark_store, "FEW_ROWS_SETTINGS", {setting: value})
    store = SparkStore(feed.spark, str(tmp_path))
    before: dict[int, Any] = {}
    for offset in range(5):
        if offset == 2:  # the first append of a table begins no state, so the second computes it
            before = executions_of(feed)
        transaction = Transaction(app_id="writer", version=offset)
        record = {"offset": offset, "leader_epoch": 0}
        store.append(LOG_TABLE, pa.Table.from_pylist([record], LOG_TABLE.schema), transaction)
        store.append(CHANGES_TABLE, changes(offset, offset), transaction)
    found = executions_of(feed)
    started = {at: one for at, one in found.items() if at > max(before, default=-1)}
    roots = [
        started[one.rootExecutionId()]
        for one in started.values()
        if "Compute snapshot" in one.description() and one.rootExecutionId() in started
    ]
    assert len(roots) >= 4
    assert all("DescribeDeltaDetail" in one.physicalPlanDescription() for one in roots)
    settings = {str(one.modifiedConfigs()) for one in roots}
    assert all(f"{setting} -> {value}" in each for each in settings)
    assert feed.spark.conf.get(setting, None) is None, "the session of the user is not changed"
    threads = [one for one in threading.enumerate() if one.name.startswith("raftlog-snapshots")]
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads), "they end with their work"


@pytest.mark.nightly
def test_appends_of_few_rows_have_a_session_of_their_own(
    feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More rows are faster with generated code."""
    setting, value = "spark.sql.codegen.maxFields", "102"
    monkeypatch.setattr(spark_store, "FEW_ROWS_SETTINGS", {setting: value})
    monkeypatch.setattr(spark_store, "FEW_ROWS", 2)
    store = SparkStore(feed.spark, str(tmp_path))

    def is_of_few_rows(version: int, count: int) -> bool:
        before = executions_of(feed)
        rows = [{"offset": at, "leader_epoch": version} for at in range(count)]
        transaction = Transaction(app_id="writer", version=version)
        store.append(LOG_TABLE, pa.Table.from_pylist(rows, LOG_TABLE.schema), transaction)
        last = max(before, default=-1)
        appends = [
            f"{setting} -> {value}" in str(one.modifiedConfigs())
            for at, one in executions_of(feed).items()
            if at > last and "SaveIntoDataSourceCommand" in one.physicalPlanDescription()
        ]
        assert len(appends) == 1
        return appends[0]

    counts = (1, 2, 3, 2)
    assert [is_of_few_rows(*one) for one in enumerate(counts)] == [True, True, False, True]
    assert store.read(LOG_TABLE).num_rows == sum(counts)


def test_the_version_of_a_local_table_is_looked_up_without_a_job(
    feed: Feed, tmp_path: Path
) -> None:
    """``DESCRIBE HISTORY`` lists the whole log for each look-up, and reads an entry in a job.

    The frame of the newest version is kept, but not that of a table which is no longer there.
    """
    reader = SparkStore(feed.spark, str(tmp_path))

    def append(offsets: range) -> int:
        """Append rows of the offsets to a table that another process may have created."""
        writer = DeltaRsStore(str(tmp_path))
        for offset in offsets:
            transaction = Transaction(app_id="writer", version=offset)
            writer.append(CHANGES_TABLE, changes(offset, offset), transaction)
        return writer.version(CHANGES_TABLE)

    def offsets_of(version: int) -> set[int]:
        rows = reader.frame(CHANGES_TABLE, version).select("offset").distinct().collect()
        return {row["offset"] for row in rows}

    first = append(range(1))
    assert reader.version(CHANGES_TABLE) == first
    before = executions_of(feed)
    for offset in (1, 2, 3):
        assert append(range(offset, offset + 1)) == first + offset == reader.version(CHANGES_TABLE)
    assert executions_of(feed) == before
    newest = first + 3
    assert [offsets_of(at) for at in (newest, first, newest)] == [{0, 1, 2, 3}, {0}, {0, 1, 2, 3}]
    shutil.rmtree(tmp_path / CHANGES_TABLE.name)
    with pytest.raises(TablesError, match="changes"):
        reader.version(CHANGES_TABLE)
    assert append(range(10, 14)) == newest == reader.version(CHANGES_TABLE)
    assert offsets_of(newest) == {10, 11, 12, 13}


def _fails(*_: object, **__: object) -> Any:
    raise Py4JNetworkError("Error while sending or receiving")


def _has_no_thread(*_: object, **__: object) -> Any:
    raise RuntimeError("can't start new thread")


def test_no_append_is_committed_without_the_session_that_computes_states(
    feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would end with an error, and be another writer's to the writer that repeats it."""
    monkeypatch.setattr(spark_store, "FEW_ROWS_SETTINGS", {"spark.sql.codegen.maxFields": "101"})
    store, transaction = SparkStore(feed.spark, str(tmp_path)), Transaction(app_id="a", version=0)
    with monkeypatch.context() as broken:
        broken.setattr(SparkSession, "newSession", _fails)
        with pytest.raises(Py4JNetworkError):
            store.append(CHANGES_TABLE, changes(0, 0), transaction)
    assert not store.exists(CHANGES_TABLE)
    store.append(CHANGES_TABLE, changes(0, 0), transaction)
    with monkeypatch.context() as busy:
        busy.setattr(ThreadPoolExecutor, "submit", _has_no_thread)
        store.append(CHANGES_TABLE, changes(1, 1), Transaction(app_id="a", version=1))
    store.append(CHANGES_TABLE, changes(2, 2), Transaction(app_id="a", version=2))
    expected = pa.concat_tables([changes(at, at) for at in range(3)])
    assert rows_of(CHANGES_TABLE, store.read(CHANGES_TABLE)) == rows_of(CHANGES_TABLE, expected)


def test_an_append_writes_the_fields_that_its_rows_have(feed: Feed, tmp_path: Path) -> None:
    """Of 260 columns a few rows have a fourth. The first append creates the table with all."""
    store, table = SparkStore(feed.spark, str(tmp_path)), tmp_path / CHANGES_TABLE.name
    broker = change(1, entity="broker", key="[1]", after={"broker": {"broker_id": 1}})
    appended = [changes(0, 0), table_of(CHANGES_TABLE, [broker])]
    for version, rows in enumerate(appended):
        store.append(CHANGES_TABLE, rows, Transaction(app_id="writer", version=version))
    [file] = added_files(read_actions(table / "_delta_log", 1))
    stored = pq.read_schema(table / file)
    assert [field.name for field in stored.field("after").type] == ["broker"]
    found = rows_of(CHANGES_TABLE, store.read(CHANGES_TABLE))
    assert found == rows_of(CHANGES_TABLE, pa.concat_tables(appended))


@pytest.mark.nightly
def test_many_rows_are_read_in_parts_and_few_are_not_moved(
    feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has a part in memory several times: of 1,000,000 partitions it has no room.

    To move a row of a large table between tasks takes as many tasks as the table has parts.
    """
    expected = changes(0, 40)
    rust = DeltaRsStore(str(tmp_path))
    rust.append(CHANGES_TABLE, expected, Transaction(app_id="writer", version=1))
    store = SparkStore(feed.spark, str(tmp_path))
    monkeypatch.setattr(spark_store, "READ_ROWS", -(-expected.num_rows // 3))
    key: Condition = ("key", "=", expected["key"][0].as_py())
    last: Condition = ("offset", ">=", 40)
    reads: list[tuple[Where, bool]] = [((), True), ((key,), False), ((last,), False)]
    for where, is_in_parts in reads:
        before = executions_of(feed)
        found = store.read(CHANGES_TABLE, where)
        wanted = rows_where(expected, *where) if where else expected
        assert rows_of(CHANGES_TABLE, found) == rows_of(CHANGES_TABLE, wanted)
        started = [one for at, one in executions_of(feed).items() if at not in before]
        plans = [one.physicalPlanDescription() for one in started]
        assert is_in_parts == any("RoundRobinPartitioning(3)" in plan for plan in plans)
        assert is_in_parts == any("RoundRobinPartitioning" in plan for plan in plans)


@pytest.mark.nightly
def test_a_vacuum_drops_tables_of_slices_of_a_day_ago(
    feed: Feed, template: Path, tmp_path: Path
) -> None:
    """A process that is killed leaves one; a younger one may be that of another process."""
    place = shutil.copytree(template, tmp_path / "tables")
    store, now_s, day_s = SparkStore(feed.spark, str(place)), int(time.time()), 24 * 60 * 60
    old, new = (f"raftlog_slices_{now_s - age_s}_0a" for age_s in (day_s + 60, day_s // 2))
    try:
        for name in (old, new):
            feed.spark.sql(f"CREATE TABLE {name} USING parquet AS SELECT 1 AS one")
        store.vacuum(CHANGES_TABLE)
        assert not feed.spark.catalog.tableExists(old)
        assert feed.spark.catalog.tableExists(new)
    finally:
        feed.spark.sql(f"DROP TABLE IF EXISTS {new}")


def test_delta_rs_writes_no_tables_of_a_catalog(feed: Feed) -> None:
    with pytest.raises(TablesError, match="delta-rs"):
        feed.open("raftlog_in_catalog", engine="delta-rs")
    with pytest.raises(OptionError, match="engine"):
        feed.open("/nowhere", engine="duckdb")
