"""One streaming query of many logs into the tables of their clusters."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from tests.support.internal_records import GROUPS_NODE, InternalLogFile, offset_commit
from tests.support.metadata_logs import MetadataLog, metadata_log, multiset, restored
from tests.support.small_logs import NO_OP, LogWriter, copy_log
from tests.support.tables import Feed

from raftlog.client import open_path
from raftlog.errors import OptionError
from raftlog_state.errors import ClusterOwnedError, TablesError
from raftlog_state.image.image_writer import image_records
from raftlog_state.loader.metadata_loader import MetadataLoader
from raftlog_state.records import Redactor
from raftlog_state.tables import ClusterGroup, open_group
from raftlog_state.tables.cluster import Engine
from raftlog_state.tables.group_follower import GroupFollower
from raftlog_state.tables.log_follower import FollowSettings
from raftlog_state.tables.reader import open_tables
from raftlog_state.tables.schema import BY_NAME
from raftlog_state.tables.stores.delta_rs import DeltaRsStore
from raftlog_state.tables.views import rows_sql

pytestmark = pytest.mark.spark

GROWING = "kraft-logs/three-nodes-4.3.1/node-1/__cluster_metadata-0"
OTHER = "trimmed-3.9.2/node-1"
ENDS = (37, 110)
"""Ends of the log that grows, between record batches."""


class Fleet:
    """A log that grows, and another cluster's log that begins with a snapshot."""

    def __init__(self, feed: Feed, data: Path, directory: Path) -> None:
        self.feed, self.directory = feed, directory
        self.kafkas = data / GROWING
        self.growing = directory / "node" / "__cluster_metadata-0"
        self.other = data / "kraft-logs" / OTHER
        self.tables = str(directory / "tables")
        self.cluster_ids = [str(open_path(str(path)).cluster_id) for path in self.paths_of_kafka]

    @property
    def paths_of_kafka(self) -> Sequence[Path]:
        return self.kafkas.parent, self.other

    def grow(self, end_offset: int) -> None:
        copy_log(self.kafkas, self.growing, end_offset=end_offset)

    def copy_of_segment(self) -> str:
        """Return a segment without the files that have its cluster id."""
        path = self.directory / f"{0:020}.log"
        shutil.copyfile(self.growing / path.name, path)
        return str(path)

    def open(self, engine: Engine = "delta-rs", *, take_over: bool = False) -> ClusterGroup:
        """Open the group; delta-rs writes the same tables in a fraction of the time."""
        spark, tables = self.feed.spark, self.tables
        return open_group(spark, tables, "fleet", take_over=take_over, engine=engine)

    def sources(self) -> list[dict[str, str]]:
        growing = {"path": str(self.growing), "tailHoldback": "0"}
        missing = {"path": str(self.directory / "missing"), "clusterId": "missing"}
        return [
            {**growing, "clusterId": self.cluster_ids[0]},
            {"path": str(self.other), "tailHoldback": "0"},
            missing,
        ]

    def run(self, group: ClusterGroup, sources: list[dict[str, str]] | None = None) -> None:
        query = group.materialize(
            sources or self.sources(),
            checkpoint=str(self.directory / "checkpoint"),
            trigger="availableNow",
        )
        query.awaitTermination()

    def offset(self, number: int = 0) -> int:
        """Return the last offset of a cluster's tables."""
        return open_tables(self.tables, cluster_id=self.cluster_ids[number]).status().offset

    def check(self, log: MetadataLog, cluster_id: str) -> None:
        """Compare a cluster's newest state with a replay of its log."""
        tables = open_tables(self.tables, cluster_id=cluster_id)
        image = tables.image(tables.latest().offset)
        loader = MetadataLoader()
        loader.append([record for record in log.records if record.offset <= image.offset])
        redactor = Redactor()
        expected = [redactor.redact(record) for record in image_records(loader.image)]
        assert multiset(image_records(image)) == multiset(expected)


@pytest.fixture
def fleet(feed: Feed, data: Path, tmp_path: Path) -> Fleet:
    return Fleet(feed, data, tmp_path)


def test_one_query_writes_the_states_of_its_clusters_and_continues_at_their_ends(
    fleet: Fleet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logs: list[MetadataLog] = []
    for name in ("three-nodes-4.3.1/node-1", OTHER):
        (tmp_path / name).mkdir(parents=True)
        logs.append(metadata_log(restored(name, tmp_path / name)))
    engines: tuple[Engine, ...] = ("delta-rs", "spark")
    for end, engine in zip(ENDS, engines, strict=True):
        fleet.grow(end)
        fleet.run(fleet.open(engine))
        assert fleet.offset() == end - 1
    assert "missing" in caplog.text
    assert "is left out of the query" in caplog.text
    for log, cluster_id in zip(logs, fleet.cluster_ids, strict=True):
        fleet.check(log, cluster_id)


INTERNAL = str(GROUPS_NODE / "__consumer_offsets-*")
COMMITTED = ("group", "topic", "partition", "offset", "metadata")


def rows_of_clusters(fleet: Fleet, name: str) -> DataFrame:
    """Return the rows of a table of all clusters, as a view of a schema has them."""
    state, changes = (f"delta.`{fleet.tables}/{one}`" for one in ("state", "changes"))
    return fleet.feed.spark.sql(rows_sql(BY_NAME[name], state=state, changes=changes))


def test_partitions_of_an_internal_log_are_logs_of_their_cluster(fleet: Fleet) -> None:
    """Without Spark: ``test_internal_logs.py``, also with the rows of groups and epochs."""
    fleet.run(fleet.open(), [{"path": INTERNAL, "clusterId": "c", "tailHoldback": "0"}])
    offsets = rows_of_clusters(fleet, "consumer_offsets").select("cluster_id", *COMMITTED)
    admin = json.loads((GROUPS_NODE.parent / "admin.json").read_text())
    expected = [("c", group, *one) for group, rows in admin["offsets"].items() for one in rows]
    assert sorted(map(tuple, offsets.collect())) == sorted(expected)
    one = fleet.feed.open(fleet.tables, cluster_id="c@__consumer_offsets-1")
    segment = next((GROUPS_NODE / "__consumer_offsets-1").glob("*.log"))
    for path in (INTERNAL, str(segment)):
        with pytest.raises(OptionError, match="open_group"):
            one.materialize(path, checkpoint=str(fleet.tables))


@pytest.mark.nightly
def test_groups_and_epochs_of_an_internal_log_are_those_of_its_partitions(fleet: Fleet) -> None:
    """``make test`` has the offsets, in the test above."""
    fleet.run(fleet.open(), [{"path": INTERNAL, "clusterId": "c", "tailHoldback": "0"}])
    admin = json.loads((GROUPS_NODE.parent / "admin.json").read_text())
    assert {
        row.group: [row.type.capitalize(), row.protocol_type, row.state]
        for row in rows_of_clusters(fleet, "groups").collect()
    } == admin["groups"]
    ids = {row.cluster_id for row in rows_of_clusters(fleet, "epochs").collect()}
    view = fleet.feed.open(fleet.tables, cluster_id="c@__consumer_offsets-1").latest()
    assert {row.cluster_id for row in view.epochs().collect()} < ids
    of_one = [tuple(row) for row in view.consumer_offsets().select(*COMMITTED).collect()]
    assert of_one
    committed = [(group, *one) for group, rows in admin["offsets"].items() for one in rows]
    assert {*of_one} < {*committed}


def follow_once(tables: str, path: Path, cluster_id: str = "c") -> None:
    """Write a log to tables, as ``raftlog tables follow --once`` does."""
    settings = FollowSettings(
        redactor=Redactor(), cluster_id=cluster_id, holdback_ms=0, is_once=True
    )
    GroupFollower(
        {"log": partial(open_path, str(path))},
        DeltaRsStore(tables),
        settings,
        group="fleet",
        log_event=lambda event: None,
    ).run()


@pytest.mark.nightly
def test_a_query_begins_with_the_whole_of_an_internal_log_whose_start_is_after_the_tables(
    fleet: Fleet, tmp_path: Path
) -> None:
    """``make test`` has its rows without a query, in ``test_micro_batches.py``:
    ``test_first_rows_of_a_query_and_earlier_ones_are_the_state_of_a_log_with_missed_records``."""
    path = tmp_path / "__consumer_offsets-0"
    log = InternalLogFile(path)
    log.append(offset_commit("deleted", 1), offset_commit("g", 1))
    follow_once(fleet.tables, path)
    shutil.rmtree(path)
    later = InternalLogFile(path, start_offset=7)
    later.append(offset_commit("g", 5))
    fleet.run(fleet.open(), [{"path": str(path), "clusterId": "c", "tailHoldback": "0"}])
    found = open_tables(fleet.tables, cluster_id="c@__consumer_offsets-0")
    assert found.status().gaps == ((2, 7),)
    offsets = found.latest().consumer_offsets().select(["group", "offset"]).to_pylist()
    assert offsets == [{"group": "g", "offset": 5}]


@pytest.mark.nightly
def test_a_query_whose_log_has_no_record_after_the_tables_begins_with_those_before(
    fleet: Fleet, tmp_path: Path
) -> None:
    """Compaction has removed a tombstone, and the next record is younger than the query.

    ``make test`` has its rows in the test that is named above, too, with a log that is compacted.
    """
    path = tmp_path / "__consumer_offsets-0"
    log = InternalLogFile(path)
    log.append(offset_commit("deleted", 1), offset_commit("g", 1))
    follow_once(fleet.tables, path)
    shutil.rmtree(path)
    later = InternalLogFile(path, start_offset=1)
    later.append(offset_commit("g", 1))
    later.append_empty(5)
    query = fleet.open().materialize(
        [{"path": str(path), "clusterId": "c", "tailHoldback": "0"}],
        checkpoint=str(fleet.directory / "checkpoint"),
    )
    try:
        later.append(offset_commit("new", 5))
        query.processAllAvailable()
    finally:
        query.stop()
    found = open_tables(fleet.tables, cluster_id="c@__consumer_offsets-0")
    assert found.status().gaps == ((2, 7),)
    assert sorted(found.latest().consumer_offsets()["group"].to_pylist()) == ["g", "new"]


@pytest.mark.nightly
def test_a_cluster_of_another_owner_ends_the_query_and_the_others_are_published(
    fleet: Fleet,
) -> None:
    """Without Spark: ``test_group_writer.py`` has owners, ``test_micro_batches.py`` the error."""
    fleet.grow(ENDS[0])
    owner = fleet.feed.open(fleet.tables, cluster_id=fleet.cluster_ids[0])
    owner.apply(fleet.feed.frame(0, 24), cluster_id=fleet.cluster_ids[0])
    with pytest.raises(StreamingQueryException, match="RAFTLOG_CLUSTERS_FAILED"):
        fleet.run(fleet.open())
    before = fleet.offset(1)
    assert fleet.offset() == 23
    assert before > 0
    fleet.run(fleet.open(take_over=True))
    assert fleet.offset() == ENDS[0] - 1
    assert fleet.offset(1) > before, "the snapshot was a batch of its own"
    with pytest.raises(ClusterOwnedError, match="group fleet"):
        owner.apply(fleet.feed.frame(0, 40), cluster_id=fleet.cluster_ids[0])


@pytest.mark.parametrize(
    ("sources", "reason"),
    [
        (lambda fleet: [{"path": str(fleet.other)}] * 2, "two logs are of cluster"),
        (lambda fleet: fleet.sources()[2:], "no log that can be opened"),
        (lambda fleet: [{"path": fleet.copy_of_segment()}], "give clusterId"),
        (lambda fleet: [{"path": "x", "startingOffset": "0"}], "cannot be set here"),
    ],
)
def test_sources_that_are_no_group_are_refused(
    fleet: Fleet, sources: Callable[[Fleet], list[dict[str, str]]], reason: str
) -> None:
    fleet.grow(ENDS[0])
    with pytest.raises(OptionError, match=reason):
        fleet.open().materialize(sources(fleet), checkpoint=str(fleet.directory / "checkpoint"))


@pytest.mark.parametrize("name", ["isolationLevel", "STARTINGOFFSET", "redactKey", "redactSecret"])
def test_shared_options_that_the_tables_determine_are_refused(fleet: Fleet, name: str) -> None:
    fleet.grow(ENDS[0])
    checkpoint = str(fleet.directory / "checkpoint")
    with pytest.raises(OptionError, match=f"{name}: cannot be set here"):
        fleet.open().materialize(fleet.sources(), checkpoint=checkpoint, options={name: "x" * 16})


def test_shared_options_of_a_log_are_those_of_each(fleet: Fleet) -> None:
    """The records of the log after the deleted ones are appended after a gap."""
    fleet.grow(ENDS[0])
    follow_once(fleet.tables, fleet.growing, fleet.cluster_ids[0])
    trimmed = fleet.directory / "trimmed" / "__cluster_metadata-0"
    copy_log(fleet.kafkas, trimmed, start_offset=500, end_offset=900)
    source = {"path": str(trimmed), "clusterId": fleet.cluster_ids[0]}
    group, checkpoint = fleet.open(), str(fleet.directory / "checkpoint")
    with pytest.raises(TablesError, match="--allow-gap"):
        group.materialize([source], checkpoint=checkpoint)
    options = {"failOnDataLoss": "false", "tailHoldback": "0"}
    query = group.materialize(
        [source], checkpoint=checkpoint, trigger="availableNow", options=options
    )
    query.awaitTermination()
    status = open_tables(fleet.tables, cluster_id=fleet.cluster_ids[0]).status()
    assert status.offset == open_path(str(trimmed)).log_end_offset - 1
    assert status.gaps


@pytest.mark.nightly
def test_a_checkpoint_that_was_not_used_for_a_while_is_not_continued_at_deleted_offsets(
    fleet: Fleet, tmp_path: Path
) -> None:
    """Another set of logs has written the cluster further, and its log was trimmed since."""

    def run(*names: str) -> None:
        sources = [{"path": str(tmp_path / name), "tailHoldback": "0"} for name in names]
        checkpoint = str(tmp_path / "checkpoint")
        query = fleet.open().materialize(sources, checkpoint=checkpoint, trigger="availableNow")
        query.awaitTermination()

    logs = {name: log_of(tmp_path, name, 0) for name in ("b", "c")}
    logs["b"].append(*[NO_OP] * 10)
    run("b")  # it begins an incarnation, whose checkpoint the next run creates
    run("b")
    logs["b"].append(*[NO_OP] * 10)
    logs["c"].append(NO_OP)
    run("b", "c")
    shutil.rmtree(tmp_path / "b")
    log_of(tmp_path, "b", 15).append(*[NO_OP] * 10)
    for _ in range(2):  # a run without news changes nothing
        run("b")
        assert open_tables(fleet.tables, cluster_id="b").status().offset == 24


def log_of(directory: Path, name: str, base_offset: int) -> LogWriter:
    log = directory / name / "__cluster_metadata-0"
    return LogWriter(log, base_offset=base_offset, cluster_id=name)
