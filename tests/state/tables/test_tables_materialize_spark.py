"""Real logs through the source's stream into tables, compared with what Kafka wrote."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.state.tables.conftest import TEMPLATE_END, UNKNOWN_COUNT
from tests.support.metadata_logs import CHECKPOINT, Checkpoint, MetadataLog, multiset
from tests.support.small_logs import LogWriter, copy_log
from tests.support.tables import Feed, contents, crash_after, image_of, offsets_once

from raftlog.clock import Clock
from raftlog.errors import (
    DivergedLogError,
    NotALogError,
    OptionError,
    UnknownRecordKindError,
    WrongClusterError,
)
from raftlog.types import SnapshotId
from raftlog_state.errors import TablesError
from raftlog_state.image.image_writer import image_records
from raftlog_state.records import Redactor
from raftlog_state.tables import ClusterTables
from raftlog_state.tables.following import BatchSink
from raftlog_state.tables.reader import open_tables
from raftlog_state.tables.stores.delta_rs import DeltaRsStore
from raftlog_state.tables.stores.protocol import TableStore
from raftlog_state.tables.stores.spark import SESSION_SETTINGS, SparkStore
from raftlog_state.tables.upkeep import MERGE_INTERVAL_S, Upkeep, UpkeepRunner
from raftlog_state.tables.writer import Writer

pytestmark = pytest.mark.spark

THREE_NODES = "kraft-logs/three-nodes-4.3.1/node-1"
TRIMMED = "kraft-logs/trimmed-3.9.2/node-1"
METADATA = "__cluster_metadata-0"


def run(tables: ClusterTables, log: Path, checkpoint: Path, **options: Any) -> None:
    """Process all available records into the tables."""
    settings = {"path": str(log), "tailHoldback": "0", **options}
    query = tables.materialize(settings, checkpoint=str(checkpoint), trigger="availableNow")
    query.awaitTermination()


def run_by_time(tables: ClusterTables, log: Path, checkpoint: Path) -> None:
    """Process them with a query that does not end by itself."""
    settings = {"path": str(log), "tailHoldback": "0"}
    query = tables.materialize(settings, checkpoint=str(checkpoint), name="metadata")
    assert query.name == "metadata"
    query.processAllAvailable()
    query.stop()


def assert_is_what_kafka_wrote(tables: ClusterTables, checkpoint: Checkpoint) -> None:
    """Check that the tables at a snapshot's last offset equal Kafka's records of it."""
    offset = checkpoint.snapshot_id.end_offset - 1
    redactor = Redactor()
    theirs = [redactor.redact(record) for record in checkpoint.metadata()]
    assert multiset(image_records(image_of(tables.at(offset=offset)))) == multiset(theirs)
    assert len(theirs) > 200


@pytest.mark.parametrize(
    "store_of",
    [
        pytest.param(SparkStore, marks=pytest.mark.nightly),
        pytest.param(lambda _, place: DeltaRsStore(place), id="DeltaRsStore"),
    ],
)
def test_a_micro_batch_is_published_and_merged_later(
    feed: Feed,
    tables: Callable[..., ClusterTables],
    tmp_path: Path,
    store_of: Callable[[SparkSession, str], TableStore],
) -> None:
    """In ``make test`` Spark's appends and merges are those of the contract of stores."""
    tables()
    writer = Writer(store_of(feed.spark, str(tmp_path / "tables")))
    now_s = 0.0
    upkeep = UpkeepRunner(writer, Upkeep(None), clock=Clock(now_ms=lambda: 1_000 * now_s))
    sink = BatchSink(writer, "cluster-a", upkeep)
    sink.write(feed.frame(TEMPLATE_END, TEMPLATE_END + 10).toArrow())
    assert tables().status().offset == TEMPLATE_END + 9
    assert writer.unmerged_row_count() > 0
    now_s = MERGE_INTERVAL_S
    sink.write(feed.frame(TEMPLATE_END + 10, TEMPLATE_END + 20).toArrow())
    assert writer.unmerged_row_count() == 0
    assert tables().status().offset == TEMPLATE_END + 19


@pytest.mark.nightly
def test_a_stream_reads_its_tables_with_few_tasks_and_changes_no_setting(
    feed: Feed, data: Path, tmp_path: Path
) -> None:
    """That an append changes no setting is in ``test_a_view_is_fixed_while_the_tables_advance``."""
    spark = feed.spark
    settings = {name: spark.conf.get(name) for name in SESSION_SETTINGS}
    assert None not in settings.values()
    for name in settings:
        spark.conf.unset(name)
    try:
        spark.createDataFrame([(1,)], "a int")  # makes it the active session
        before = settings_of(spark)
        jobs_before = tasks_by_job(spark).keys()
        log = tmp_path / "node" / METADATA
        copy_log(data / THREE_NODES / METADATA, log, end_offset=60)
        run(feed.open(tmp_path / "tables"), log, tmp_path / "checkpoint")
        tasks = [count for job, count in tasks_by_job(spark).items() if job not in jobs_before]
        assert settings_of(spark) == before
        assert SparkSession.getActiveSession() is spark
    finally:
        for name, value in settings.items():
            spark.conf.set(name, str(value))
    assert tasks
    assert max(tasks) < 50


def settings_of(spark: SparkSession) -> dict[str, str]:
    return dict(spark.conf.getAll.items())


def tasks_by_job(spark: SparkSession) -> dict[int, int]:
    """Return the number of tasks of each of the last jobs of the session's context."""
    context = spark._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    jobs = context.statusStore().jobsList(None)
    return {jobs.apply(at).jobId(): jobs.apply(at).numTasks() for at in range(jobs.size())}


def test_a_whole_log_gives_the_snapshots_that_kafka_wrote(
    feed: Feed, three_nodes: MetadataLog, data: Path, tmp_path: Path
) -> None:
    """Written by delta-rs in a fraction of the time; the README's demo writes one with Spark."""
    tables = feed.open(tmp_path / "tables", engine="delta-rs")
    run(tables, data / THREE_NODES, tmp_path / "checkpoint", maxOffsetsPerTrigger="1500")
    for checkpoint in three_nodes.checkpoints:
        assert_is_what_kafka_wrote(tables, checkpoint)
    status = tables.status()
    assert status.log_offset == status.offset == 2684
    assert status.cluster_id == "I9iQnKeLSA2lyZwVZic7Xg"
    assert status.gaps == ()


def test_a_trimmed_log_starts_with_its_snapshot_and_records_the_gap(
    feed: Feed, data: Path, tmp_path: Path
) -> None:
    tables = feed.open(tmp_path / "tables", engine="delta-rs")
    run(tables, data / TRIMMED, tmp_path / "checkpoint")
    name = next((data / TRIMMED / METADATA).glob("*.checkpoint"))
    match = CHECKPOINT.fullmatch(name.name)
    assert match is not None
    snapshot_id = SnapshotId(epoch=int(match[2]), end_offset=int(match[1]))
    assert_is_what_kafka_wrote(tables, Checkpoint(snapshot_id, name.read_bytes()))
    assert tables.status().gaps == ((0, 1021),)
    assert tables.status().oldest_offset == 1021
    assert tables.bootstrap(str(name)) == 1304, "an older snapshot changes nothing"
    with pytest.raises(TablesError, match="nothing was published"):
        feed.open(tmp_path / "others").latest()


@pytest.mark.nightly
@pytest.mark.parametrize("log", [THREE_NODES, TRIMMED])
def test_tables_of_a_real_log_are_verified(
    feed: Feed, data: Path, tmp_path: Path, log: str
) -> None:
    """The README's demo verifies those of another log in ``make test``, and ``test_tables_verify``
    those of a log with a snapshot after a gap."""
    tables = feed.open(tmp_path / "tables")
    run(tables, data / log, tmp_path / "checkpoint")
    report = tables.verify()
    assert report.ok, str(report)


def test_restarts_crashes_and_a_deleted_checkpoint_change_nothing(
    feed: Feed, template: Path, data: Path, tmp_path: Path
) -> None:
    log, checkpoint = tmp_path / "node" / METADATA, tmp_path / "checkpoint"
    place = tmp_path / "tables"
    copy_log(data / THREE_NODES / METADATA, log, end_offset=60)
    with pytest.raises(StreamingQueryException, match="CrashError"):
        run(feed.open(place, **crash_after("log")), log, checkpoint)
    copy_log(data / THREE_NODES / METADATA, log, end_offset=130)
    run_by_time(feed.open(place), log, checkpoint)
    first = open_tables(str(place)).latest()
    copy_log(data / THREE_NODES / METADATA, log, end_offset=160)
    shutil.rmtree(checkpoint)
    run(feed.open(place), log, checkpoint)
    last = feed.open(place).latest()
    assert 60 < first.offset <= 130 < last.offset
    found = contents(place)
    assert offsets_once(found)
    assert found == contents(template, last.offset), "as if delta-rs had written it in one run"


def test_a_log_of_other_records_is_refused_before_a_query_starts(
    feed: Feed, tmp_path: Path
) -> None:
    orders = LogWriter(tmp_path / "orders-0")
    orders.append(b"a")
    with pytest.raises(NotALogError, match="not a metadata log: it is partition orders-0"):
        run(feed.open(tmp_path / "tables"), orders.directory, tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()


def test_a_log_of_other_tables_is_refused_before_it_is_read(
    feed: Feed, tables: Callable[..., ClusterTables], tmp_path: Path
) -> None:
    opened = tables(engine="delta-rs")
    checkpoint = tmp_path / "checkpoint"
    value = b"\x01\x14\x00\x00"
    short = LogWriter(tmp_path / "short" / METADATA)
    short.append(*[value] * 50)
    with pytest.raises(TablesError, match=r"ends before offset 50; .*truncate_to\(49\)"):
        run(opened, short.directory, checkpoint)
    other = LogWriter(tmp_path / "other" / METADATA)
    other.append(*[value] * 120)
    other.append(*[value] * 280, epoch=4)
    with pytest.raises(DivergedLogError, match=r"diverge at offset 120: .*truncate_to\(119\)"):
        run(opened, other.directory, checkpoint)
    stranger = LogWriter(tmp_path / "stranger" / METADATA, cluster_id="cluster-b")
    stranger.append(*[value] * 400)
    with pytest.raises(WrongClusterError):
        run(opened, stranger.directory, checkpoint)
    late = LogWriter(tmp_path / "late" / METADATA, base_offset=350)
    late.append(*[value] * 50)
    with pytest.raises(TablesError, match=r"begins at offset 350; .*bootstrap"):
        run(opened, late.directory, checkpoint)


def test_a_log_of_metadata_is_read_as_the_kind_that_is_declared(
    feed: Feed, log_of_unknown_kind: Path, tmp_path: Path
) -> None:
    """By the driver, which compares it with the tables, and by the source."""
    tables = feed.open(tmp_path / "tables", engine="delta-rs")
    checkpoint = tmp_path / "checkpoint"
    with pytest.raises(UnknownRecordKindError):
        run(tables, log_of_unknown_kind, checkpoint)
    run(tables, log_of_unknown_kind, checkpoint, values="kraft")
    assert tables.status().offset == UNKNOWN_COUNT - 1


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("startingOffset", "cannot be set here"),
        ("isolationLevel", "cannot be set here"),
        ("endingTimestamp", "cannot be set here"),
        ("columns", "cannot be set here"),
        ("recordBatchRows", "must be an integer"),
        ("maxoffsetpertrigger", "did you mean maxOffsetsPerTrigger"),
    ],
)
def test_options_that_the_tables_do_not_use_are_refused_by_name_before_a_query_starts(
    feed: Feed, data: Path, tmp_path: Path, name: str, reason: str
) -> None:
    """Also those that the source refuses."""
    with pytest.raises(OptionError, match=f"option {name}: .*{reason}"):
        run(feed.open(tmp_path / "tables"), data / TRIMMED, tmp_path / "checkpoint", **{name: "x"})
    assert not (tmp_path / "checkpoint").exists()
