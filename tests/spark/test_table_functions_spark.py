"""Table functions, tables and threads in a real session, whose catalog is Delta's."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Row, SparkSession

import pyspark_raftlog
import raftlog

pytestmark = pytest.mark.spark

NODE = "kraft-logs/three-nodes-4.3.1/node-100"


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    session = spark.newSession()
    pyspark_raftlog.register(session)
    yield session
    spark.createDataFrame([], "activated int")


def only(session: SparkSession, statement: str) -> Row:
    (row,) = session.sql(statement).collect()
    return row


def test_sql_asks_for_a_state_and_for_changes(session: SparkSession, data: Path) -> None:
    path = data / NODE
    before_and_after = only(
        session,
        f"""SELECT now.fenced AS now, earlier.fenced AS earlier
        FROM raftlog_state('{path}', 'brokers', at => 1232) AS now
        JOIN raftlog_state('{path}', 'brokers', at => timestamp '2026-11-21 08:04:18') AS earlier
        USING (cluster_id, broker_id) WHERE broker_id = 3""",
    )
    assert before_and_after == Row(now=True, earlier=False)
    changes = session.sql(
        f"""SELECT _change_type, _commit_version, cast(_commit_timestamp AS STRING) AS time, fenced
        FROM raftlog_changes('{path}', 'brokers', name => 'broker/3',
                             from => '2026-11-21 08:04', to => 'end', options => map())"""
    )
    assert [tuple(row) for row in changes.collect()] == [
        ("update_preimage", 1231, "2026-11-21 08:04:18.007", False),
        ("update_postimage", 1231, "2026-11-21 08:04:18.007", True),
        ("delete", 1270, "2026-11-21 08:04:25.68", True),
    ]
    described = session.sql(f"DESCRIBE QUERY SELECT * FROM raftlog_state('{path}', 'partitions')")
    comments = {row.col_name: row.comment for row in described.collect()}
    assert comments["isr"] == "In-sync replicas: broker ids"
    assert all(comments.values())


def test_columns_with_maps_and_structs_arrive_in_sql(session: SparkSession, data: Path) -> None:
    row = only(
        session,
        f"""SELECT features['metadata.version'].max_version AS level, endpoints[0].port > 0 AS port,
        log_dirs[0] AS log_dir FROM raftlog_state('{data / NODE}', 'brokers') LIMIT 1""",
    )
    assert row.level >= 29
    assert row.port
    assert len(row.log_dir) == 22


def test_an_invalid_argument_fails_the_analysis(session: SparkSession, data: Path) -> None:
    with pytest.raises(AnalysisException, match="unknown table 'topic'; did you mean topics"):
        session.sql(f"SELECT * FROM raftlog_state('{data / NODE}', 'topic')")
    with pytest.raises(AnalysisException, match="option at: must be a constant"):
        session.sql(
            f"""SELECT * FROM raftlog_state('{data / NODE}', 'topics',
                at => current_timestamp() - interval 15 minutes)"""
        )
    with pytest.raises(PySparkException, match="RAFTLOG_LOG_NOT_FOUND"):
        session.sql("SELECT * FROM raftlog_state('/nope', 'topics')").collect()


@pytest.mark.delta
def test_a_table_in_deltas_catalog_is_not_readable_but_a_view_is(
    session: SparkSession, data: Path
) -> None:
    """Spark passes its session catalog's tables of Python sources only to its own catalog."""
    options = f"OPTIONS (path '{data / NODE}', endingOffset '10')"
    session.sql(f"CREATE TABLE log_in_delta USING raftlog {options}")
    try:
        with pytest.raises(AnalysisException, match="not a valid Spark SQL Data Source"):
            session.sql("SELECT count(*) FROM log_in_delta").collect()
    finally:
        session.sql("DROP TABLE log_in_delta")
    session.sql(f"CREATE TEMPORARY VIEW log_view USING raftlog {options}")
    assert only(session, "SELECT max(offset) FROM log_view")[0] == 9


def test_a_thread_without_an_active_session_finds_the_source_after_register(
    spark: SparkSession, tmp_path: Path
) -> None:
    raftlog.open(tmp_path / "ids-0").close()

    def save(value: str, is_registered: bool) -> None:
        assert spark.read.format("raftlog").load(str(tmp_path / "ids-0")).count() == 0
        if is_registered:
            pyspark_raftlog.register(spark)
        frame = spark.range(1).selectExpr(f"'{value}' AS value")
        frame.write.format("raftlog").mode("append").save(str(tmp_path / "ids-0"))

    with ThreadPoolExecutor(1) as thread:
        with pytest.raises(Py4JJavaError, match="DATA_SOURCE_NOT_FOUND"):
            thread.submit(save, "a", False).result()
        thread.submit(save, "b", True).result()
    with raftlog.open(tmp_path / "ids-0") as log:
        assert [record.value for record in log.read(0)] == [b"b"]
