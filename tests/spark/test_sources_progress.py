"""Several logs in one stream, without Spark: shares, restarts, logs that fail or are lost."""

from __future__ import annotations

import json
import pickle
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.support.clock import StoppedClock
from tests.support.small_logs import TIME_MS, LogWriter, copy_log

from pyspark_raftlog import reader as reader_module
from pyspark_raftlog import sources_reader
from pyspark_raftlog.compat import ReadAllAvailable
from pyspark_raftlog.options import RaftlogOptions
from pyspark_raftlog.planning import PackedParts
from pyspark_raftlog.source_logs import RETRY_MS
from pyspark_raftlog.sources_reader import (
    SNAPSHOTS_PER_BATCH,
    RaftlogSourcesReader,
    RaftlogSourcesStreamReader,
)
from pyspark_raftlog.stream_reader import MicroBatchReader, RaftlogStreamReader
from raftlog.client import LogReader
from raftlog.errors import (
    DataLossError,
    LogNotFoundError,
    OptionError,
    RaftlogError,
    WrongClusterError,
)
from raftlog.log.reading.directory_log import DirectoryLog
from raftlog_state.source_rows.data_loss import DataLoss

METADATA = "kraft-logs/three-nodes-4.3.1/node-100/__cluster_metadata-0"
METADATA_CLUSTER = "I9iQnKeLSA2lyZwVZic7Xg"
COLUMNS = ("clusterId", "offset", "snapshotPosition")
Json = dict[str, Any]
Rows = dict[str, list[tuple[int, int | None]]]


class Fleet:
    """Logs of ordinary partitions by cluster id, and the option that names them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.logs: dict[str, LogWriter] = {}
        self.overrides: dict[str, Json] = defaultdict(dict)

    def add(self, cluster_id: str, *values: bytes) -> LogWriter:
        """Create a log, with one batch if there are values."""
        log = LogWriter(self._directory / cluster_id / "orders-0", cluster_id=cluster_id)
        self.logs[cluster_id] = log
        if values:
            log.append(*values)
        return log

    def path(self, cluster_id: str) -> Path:
        return self._directory / cluster_id

    def options(self, **options: str) -> RaftlogOptions:
        sources = [
            {"path": str(self.path(key) / "orders-0")} | self.overrides[key] for key in self.logs
        ]
        defaults = {"pollWaitMs": "0", "startingOffset": "earliest"}
        return RaftlogOptions.parse({"sources": json.dumps(sources)} | defaults | options)

    def stream(
        self, clock: StoppedClock | None = None, /, **options: str
    ) -> RaftlogSourcesStreamReader:
        """Return a reader as Spark's stream process creates it."""
        clock = clock or StoppedClock()
        return RaftlogSourcesStreamReader(self.options(**options), COLUMNS, clock.as_clock())


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path / "fleet")


def as_stored(offset: Json) -> Json:
    """Return an offset as Spark passes it after a restart."""
    stored: Json = json.loads(json.dumps(offset))
    return stored


def rows(reader: MicroBatchReader[Any], start: Json, end: Json) -> Rows:
    """Return (offset, snapshotPosition) of a batch by cluster, as its tasks return them."""
    found: Rows = defaultdict(list)
    for partition in reader.partitions(as_stored(start), as_stored(end)):
        for batch in pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(partition))):
            for cluster_id, *row in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                found[cluster_id].append(tuple(row))
    return dict(found)


def offsets(found: Rows) -> dict[str, list[int]]:
    return {key: [offset for offset, _ in found[key]] for key in sorted(found)}


def run(reader: MicroBatchReader[Any], start: Json | None = None) -> list[tuple[Json, Json]]:
    """Return the batches, each as (start, end), until no records are new."""
    start = start or reader.initialOffset()
    done = []
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        done.append((start, end))
        start = end
    return done


# --- rows and sizes -------------------------------------------------------------------------------


def test_the_rows_of_a_stream_are_those_of_each_log(data: Path, fleet: Fleet) -> None:
    fleet.add("b", b"0", b"1")
    fleet.add("a", b"0")
    sources = [
        {"path": str(data / METADATA)},
        *(
            {"path": str(log.directory), "startingOffset": "earliest"}
            for log in fleet.logs.values()
        ),
    ]
    parsed = RaftlogOptions.parse({"sources": json.dumps(sources), "pollWaitMs": "0"})
    reader = RaftlogSourcesStreamReader(parsed, COLUMNS)
    alone = RaftlogOptions.parse({"path": str(data / METADATA), "pollWaitMs": "0"})
    single = RaftlogStreamReader(alone, COLUMNS)

    batches, expected = run(reader), run(single)
    assert len(batches) == len(expected) == 2
    for (start, end), (single_start, single_end) in zip(batches, expected, strict=True):
        assert end["logs"][METADATA_CLUSTER] == single_end
        found = rows(reader, start, end)
        assert found[METADATA_CLUSTER] == rows(single, single_start, single_end)[None]  # type: ignore[index]
    assert offsets(rows(reader, *batches[0]))["b"] == [0, 1]
    assert offsets(rows(reader, *batches[0]))["a"] == [0]
    assert list(batches[-1][1]["logs"]) == sorted(["a", "b", METADATA_CLUSTER])


def test_a_limit_is_divided_in_proportion_and_at_record_batches(fleet: Fleet) -> None:
    for cluster_id, count in (("a", 30), ("b", 10), ("c", 1)):
        log = fleet.add(cluster_id)
        for _ in range(count):
            log.append(b"1", b"2")
    reader = fleet.stream(maxOffsetsPerTrigger="41")
    ((start, first), *rest) = run(reader)
    assert {key: part["offset"] for key, part in first["logs"].items()} == {
        "a": 30,
        "b": 10,
        "c": 2,
    }
    assert offsets(rows(reader, start, first))["a"] == list(range(30))
    assert [end["logs"]["a"]["offset"] for _, end in rest] == [60]


def test_a_log_without_new_records_keeps_its_offset_and_has_no_rows(fleet: Fleet) -> None:
    quiet, busy = fleet.add("quiet", b"0"), fleet.add("busy", b"0")
    reader = fleet.stream()
    ((_, first),) = run(reader)
    busy.append(b"1")
    ((_, second),) = run(reader, first)
    assert second["logs"]["quiet"] == first["logs"]["quiet"]
    assert offsets(rows(fleet.stream(), first, second)) == {"busy": [1]}
    quiet.append(b"1")
    assert offsets(rows(reader, second, reader.latestOffset(second))) == {"quiet": [1]}


def test_without_new_records_the_start_is_returned(fleet: Fleet) -> None:
    fleet.add("a", b"0")
    reader = fleet.stream(startingOffset="latest")
    start = as_stored(reader.initialOffset())
    assert reader.latestOffset(start) is start
    assert reader.partitions(start, start) == []


def test_a_stream_waits_once_for_all_logs(fleet: Fleet) -> None:
    for number in range(5):
        fleet.add(f"c{number}", b"0")
    clock = StoppedClock()
    reader = fleet.stream(clock, startingOffset="latest", pollWaitMs="100", tailHoldback="0")
    start = reader.initialOffset()
    assert reader.latestOffset(start) is start
    assert sum(clock.slept_ms) == 100
    clock.while_asleep = lambda: fleet.logs["c3"].append(b"1")
    assert reader.latestOffset(start)["logs"]["c3"]["offset"] == 2


def test_few_records_of_all_logs_wait_for_more(fleet: Fleet) -> None:
    one, two = fleet.add("a", b"0"), fleet.add("b", b"0")
    reader = fleet.stream(minOffsetsPerTrigger="3")
    ((_, first),) = run(reader)
    one.append(b"1", b"2")
    assert reader.latestOffset(first) is first
    two.append(b"1")
    assert len(rows(reader, first, reader.latestOffset(first))) == 2


def test_available_now_ends_at_the_ends_of_all_logs_at_its_start(fleet: Fleet) -> None:
    one, two = fleet.add("a", b"0"), fleet.add("b", b"0")
    reader = fleet.stream()
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    for log in (one, two):
        log.append(b"1")
    ((_, end),) = run(reader, start)
    assert [part["offset"] for part in end["logs"].values()] == [1, 1]
    reader.prepareForTriggerAvailableNow()
    assert offsets(rows(reader, end, reader.latestOffset(end))) == {"a": [1], "b": [1]}


def test_limited_batches_have_the_snapshots_of_few_logs(data: Path, tmp_path: Path) -> None:
    small = copy_log(data / METADATA, tmp_path / "0" / "__cluster_metadata-0", end_offset=640)
    count = SNAPSHOTS_PER_BATCH + 2
    sources = []
    for number in range(count):
        path = tmp_path / str(number) / small.name
        if number:
            shutil.copytree(small, path)
        (path.parent / "meta.properties").write_text(
            f"version=1\ncluster.id=c{number:02}\nnode.id=1\n"
        )
        sources.append({"path": str(path)})

    def stream(**options: str) -> RaftlogSourcesStreamReader:
        parsed = RaftlogOptions.parse({"sources": json.dumps(sources), "pollWaitMs": "0"} | options)
        return RaftlogSourcesStreamReader(parsed, COLUMNS)

    reader = stream(maxBytesPerTrigger="1g")
    snapshots = [
        sum("snapshot" in part and "initial" not in part for part in end["logs"].values())
        for _, end in run(reader)
    ]
    assert snapshots == [SNAPSHOTS_PER_BATCH, 2, 0]
    batches = run(reader)
    seen: Rows = defaultdict(list)
    for start, end in batches:
        for key, found in rows(reader, start, end).items():
            seen[key] += found
    ((whole_start, whole_end),) = [
        (start, stream().latestOffset(start, ReadAllAvailable()))
        for start in [reader.initialOffset()]
    ]
    assert seen == rows(reader, whole_start, whole_end)
    assert len(reader.partitions(whole_start, whole_end)) < count


# --- restarts, and other sources ------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_any_history_gives_each_row_once(tmp_path: Path, seed: int) -> None:
    """Appends, restarts, other limits and other sources, and logs that are moved away and back."""
    random = Random(seed)
    fleet = Fleet(tmp_path)
    every = [f"c{number}" for number in range(4)]
    for cluster_id in every:
        fleet.add(cluster_id)
    writers = dict(fleet.logs)
    clock = StoppedClock()
    position: Json | None = None
    seen: Rows = defaultdict(list)
    reader = fleet.stream(clock)

    def restart(*, whole: bool) -> RaftlogSourcesStreamReader:
        chosen = every if whole else random.sample(every, random.randint(1, 3))
        fleet.logs = {key: writers[key] for key in chosen}
        limit = {} if whole else {"maxOffsetsPerTrigger": str(random.randint(1, 20))}
        return fleet.stream(clock, **limit)

    def advance() -> None:
        nonlocal position
        start = position if position is not None else reader.initialOffset()
        position = as_stored(reader.latestOffset(start))
        first = rows(reader, start, position)
        again = rows(restart(whole=True), start, position)
        assert first == again, "a batch that is planned again has the same rows"
        for key, found in first.items():
            seen[key] += found

    for _ in range(40):
        match random.randrange(8):
            case 0:
                reader = restart(whole=False)
            case 1:
                hidden = fleet.path(random.choice(every))
                hidden.rename(hidden.with_suffix(".away"))
                if position is not None or any(fleet.path(key).exists() for key in fleet.logs):
                    start = position if position is not None else reader.initialOffset()
                    reader.latestOffset(start)
                hidden.with_suffix(".away").rename(hidden)
                clock.at_ms += RETRY_MS
            case 2 | 3:
                advance()
            case _:
                log = writers[random.choice(every)]
                log.append(*[b"x"] * random.randint(1, 5))
    reader = restart(whole=True)
    for _ in range(2):
        advance()
    expected = {key: list(range(log.end_offset)) for key, log in writers.items() if log.end_offset}
    assert offsets(seen) == expected


def test_an_added_log_begins_at_its_starting_offset_which_is_stored(fleet: Fleet) -> None:
    old = fleet.add("old", b"0")
    ((_, first),) = run(fleet.stream())
    added = fleet.add("added", b"0", b"1")
    fleet.overrides["added"] = {"startingOffset": "latest"}
    reader = fleet.stream()
    second = reader.latestOffset(as_stored(first))
    assert second["logs"]["added"]["initial"]
    assert rows(reader, first, second) == {}
    added.append(b"2")
    restarted = fleet.stream()
    third = restarted.latestOffset(as_stored(second))
    assert offsets(rows(restarted, second, third)) == {"added": [2]}
    assert third["logs"]["old"] == first["logs"]["old"]
    assert old.end_offset == 1


def test_a_removed_log_continues_where_it_was(fleet: Fleet) -> None:
    one, two = fleet.add("a", b"0"), fleet.add("b", b"0")
    ((_, first),) = run(fleet.stream())
    removed = fleet.logs.pop("a")
    one.append(b"1")
    two.append(b"1")
    reader = fleet.stream()
    ((_, second),) = run(reader, as_stored(first))
    assert offsets(rows(reader, first, second)) == {"b": [1]}
    assert second["logs"]["a"] == first["logs"]["a"]
    fleet.logs["a"] = removed
    reader = fleet.stream()
    ((_, third),) = run(reader, as_stored(second))
    assert offsets(rows(reader, second, third)) == {"a": [1]}


def test_the_checkpoint_of_one_log_continues_as_one_of_the_sources(fleet: Fleet) -> None:
    one = fleet.add("a", b"0")
    fleet.add("b", b"0")
    options = {"path": str(one.directory), "startingOffset": "earliest", "pollWaitMs": "0"}
    single = RaftlogStreamReader(RaftlogOptions.parse(options), COLUMNS)
    ((_, first),) = run(single)
    reader = fleet.stream()
    second = reader.latestOffset(as_stored(first))
    assert offsets(rows(reader, first, second)) == {"b": [0]}
    assert second["v"] == 2

    loss_of(lambda: single.latestOffset(second), DataLoss.CHECKPOINT_MISMATCH)
    del fleet.logs["a"]
    text = loss_of(lambda: fleet.stream().latestOffset(first), DataLoss.CHECKPOINT_MISMATCH)
    assert "cluster a alone" in text


def test_a_batch_is_planned_from_its_end_only(fleet: Fleet) -> None:
    """Spark asks for the initial offset again after a restart; a wrong answer loses nothing."""
    fleet.add("a", b"0", b"1")
    fleet.add("b")
    planned = fleet.stream()
    start = planned.initialOffset()
    end = planned.latestOffset(start)
    fleet.logs["b"].append(b"0")
    restarted = fleet.stream(startingOffset="latest")
    assert rows(restarted, restarted.initialOffset(), end) == rows(planned, start, end)


def test_a_batch_that_does_not_follow_is_reported(fleet: Fleet) -> None:
    log = fleet.add("a", b"0")
    log.append(b"1")
    reader = fleet.stream(maxOffsetsPerTrigger="1")
    first, second = (end for _, end in run(reader))
    loss_of(lambda: reader.partitions(second, first), DataLoss.CHECKPOINT_MISMATCH)


def test_spark_4_0_is_refused_with_the_version_that_works(fleet: Fleet) -> None:
    fleet.add("a", b"0")
    with pytest.raises(OptionError, match=r"from Spark 4\.2 on"):
        fleet.stream().latestOffset()


# --- identity -------------------------------------------------------------------------------------


def test_two_logs_of_one_cluster_are_refused(fleet: Fleet) -> None:
    fleet.add("a", b"0")
    other = fleet.add("b", b"0")
    shutil.copy(fleet.path("a") / "meta.properties", fleet.path("b"))
    for read in (fleet.stream().initialOffset, batch_reader(fleet).partitions):
        with pytest.raises(OptionError, match="cluster a twice, at positions 0 and 1"):
            read()
    assert other.end_offset == 1


def test_a_log_without_a_cluster_id_needs_the_option(fleet: Fleet) -> None:
    fleet.add("a", b"0")
    (fleet.path("a") / "meta.properties").unlink()
    for read in (fleet.stream().initialOffset, batch_reader(fleet).partitions):
        with pytest.raises(OptionError, match=r"sources\[0\].clusterId: is required"):
            read()
    fleet.overrides["a"] = {"clusterId": "named"}
    reader = fleet.stream()
    start = reader.initialOffset()
    assert offsets(rows(reader, start, reader.latestOffset(start))) == {"named": [0]}


def test_another_cluster_than_the_given_one_is_refused(fleet: Fleet) -> None:
    fleet.add("a", b"0")
    fleet.overrides["a"] = {"clusterId": "b", "failOnDataLoss": False}
    for read in (fleet.stream().initialOffset, batch_reader(fleet).partitions):
        with pytest.raises(WrongClusterError, match="belongs to cluster a, expected cluster b"):
            read()


def test_a_log_that_is_replaced_by_another_clusters_ends_the_stream(fleet: Fleet) -> None:
    log = fleet.add("a", b"0", b"1")
    fleet.overrides["a"] = {"failOnDataLoss": False}
    reader = fleet.stream()
    ((start, end),) = run(reader)
    (partition,) = reader.partitions(start, end)
    shutil.rmtree(log.directory)
    LogWriter(log.directory, cluster_id="other").append(b"2")
    with pytest.raises(WrongClusterError):
        reader.latestOffset(end)
    with pytest.raises(WrongClusterError):
        reader.partitions(start, end)
    with pytest.raises(WrongClusterError):
        list(reader.read(partition))


# --- logs that cannot be reached ------------------------------------------------------------------


def test_a_log_that_cannot_be_reached_does_not_stop_the_others(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    dead, alive = fleet.add("dead", b"0"), fleet.add("alive", b"0")
    clock = StoppedClock()
    reader = fleet.stream(clock)
    ((_, first),) = run(reader)
    away = fleet.path("dead").rename(fleet.path("away"))
    position = first
    for _ in range(3):
        alive.append(b"1")
        clock.at_ms += RETRY_MS
        position = reader.latestOffset(position)
    assert position["logs"]["alive"]["offset"] == 4
    assert position["logs"]["dead"] == first["logs"]["dead"]
    warnings = [
        record.message for record in caplog.records if "continues without" in record.message
    ]
    assert len(warnings) == 1
    assert str(dead.directory) in warnings[0]
    report = reader.reportLatestOffset()
    assert report is not None
    assert report["unavailable"] == {"dead": "RAFTLOG_LOG_NOT_FOUND"}

    away.rename(fleet.path("dead"))
    dead.append(b"1")
    assert reader.latestOffset(position) is position, "it is tried again after a time"
    clock.at_ms += RETRY_MS
    assert offsets(rows(reader, position, reader.latestOffset(position))) == {"dead": [1]}
    assert "can be read again" in caplog.text
    assert "unavailable" not in (reader.reportLatestOffset() or {})


def test_a_new_stream_starts_with_the_logs_that_can_be_reached(fleet: Fleet) -> None:
    fleet.add("dead", b"0")
    fleet.add("alive", b"0")
    away = fleet.path("dead").rename(fleet.path("away"))
    clock = StoppedClock()
    reader = fleet.stream(clock)
    ((_, first),) = run(reader)
    assert list(first["logs"]) == ["alive"]
    away.rename(fleet.path("dead"))
    clock.at_ms += RETRY_MS
    ((start, second),) = run(reader, first)
    assert offsets(rows(reader, start, second)) == {"dead": [0]}
    assert list(second["logs"]) == ["alive", "dead"]


def test_a_stream_or_run_without_any_log_fails(fleet: Fleet) -> None:
    fleet.add("a", b"0")
    shutil.rmtree(fleet.path("a"))
    with pytest.raises(LogNotFoundError):
        fleet.stream().initialOffset()
    with pytest.raises(LogNotFoundError):
        fleet.stream().prepareForTriggerAvailableNow()


def test_a_log_that_was_not_there_at_its_start_is_not_part_of_an_available_now_run(
    fleet: Fleet,
) -> None:
    fleet.add("dead", b"0")
    fleet.add("alive", b"0")
    away = fleet.path("dead").rename(fleet.path("away"))
    clock = StoppedClock()
    reader = fleet.stream(clock)
    reader.prepareForTriggerAvailableNow()
    away.rename(fleet.path("dead"))
    clock.at_ms += RETRY_MS
    batches = run(reader, {"v": 2, "logs": {}})
    assert [list(end["logs"]) for _, end in batches] == [["alive"]]


def test_records_of_a_planned_batch_are_read_or_the_batch_fails(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.add("dead", b"0")
    fleet.add("alive", b"0")
    planned = fleet.stream()
    ((start, end),) = run(planned)
    (partition,) = planned.partitions(start, end)
    shutil.rmtree(fleet.path("dead"))
    text = loss_of(lambda: list(planned.read(partition)), DataLoss.LOG_MISSING)
    assert "is not mounted at this path on every executor" in text
    loss_of(lambda: planned.partitions(start, end), DataLoss.LOG_MISSING)
    with pytest.raises(LogNotFoundError):
        fleet.stream().partitions(start, end)
    del fleet.logs["dead"]
    loss_of(lambda: fleet.stream().partitions(start, end), DataLoss.LOG_MISSING)
    assert offsets(rows(fleet.stream(failOnDataLoss="false"), start, end)) == {"alive": [0]}
    assert "LOG_MISSING" in caplog.text


def test_the_planned_records_of_a_deleted_log_are_skipped_if_that_is_accepted(fleet: Fleet) -> None:
    fleet.add("dead", b"0")
    fleet.add("alive", b"0")
    fleet.overrides["dead"] = {"failOnDataLoss": False}
    reader = fleet.stream()
    ((start, end),) = run(reader)
    (partition,) = reader.partitions(start, end)
    shutil.rmtree(fleet.path("dead"))
    assert sum(batch.num_rows for batch in reader.read(partition)) == 1
    for again in (reader, fleet.stream()):
        assert offsets(rows(again, start, end)) == {"alive": [0]}
    fleet.overrides["dead"] |= {"clusterId": "dead"}
    assert offsets(rows(fleet.stream(), start, end)) == {"alive": [0]}


# --- data loss of one log -------------------------------------------------------------------------


def loss_of(call: Callable[[], object], condition: DataLoss) -> str:
    with pytest.raises(DataLossError) as caught:
        call()
    text = str(caught.value)
    assert text.startswith(f"[RAFTLOG_DATA_LOSS.{condition}] ")
    return text


def rewrite(log: LogWriter, *, epoch: int) -> None:
    """Replace the log by one that diverges after its first record."""
    shutil.rmtree(log.directory)
    rewritten = LogWriter(log.directory)
    rewritten.append(b"0", epoch=1)
    rewritten.append(b"other 1", epoch=epoch)
    rewritten.append(b"other 2", epoch=epoch)


def test_a_diverged_log_ends_the_stream_unless_its_loss_is_accepted(fleet: Fleet) -> None:
    diverged, other = fleet.add("diverged", b"0"), fleet.add("other", b"0")
    diverged.append(b"1", epoch=2)
    ((_, first),) = run(fleet.stream())
    rewrite(diverged, epoch=3)
    other.append(b"1")
    text = loss_of(lambda: fleet.stream().latestOffset(first), DataLoss.DIVERGED_EPOCH)
    assert str(diverged.directory) in text
    fleet.overrides["other"] = {"failOnDataLoss": False}
    loss_of(lambda: fleet.stream().latestOffset(first), DataLoss.DIVERGED_EPOCH)

    fleet.overrides = defaultdict(dict, diverged={"failOnDataLoss": False})
    reader = fleet.stream()
    second = reader.latestOffset(first)
    assert offsets(rows(reader, first, second)) == {"diverged": [1, 2], "other": [1]}
    assert second["logs"]["diverged"]["lost"]
    assert "lost" not in second["logs"]["other"]
    loss = fleet.logs["other"]
    rewrite(loss, epoch=9)
    loss_of(lambda: fleet.stream().latestOffset(second), DataLoss.DIVERGED_EPOCH)


def test_a_truncated_log_ends_the_stream_unless_its_loss_is_accepted(fleet: Fleet) -> None:
    truncated, other = fleet.add("truncated", b"0"), fleet.add("other", b"0")
    segment = next(truncated.directory.glob("*.log"))
    kept = segment.read_bytes()
    truncated.append(b"1")
    reader = fleet.stream()
    ((start, first),) = run(reader)
    segment.write_bytes(kept)
    other.append(b"1")
    loss_of(lambda: reader.latestOffset(first), DataLoss.LOG_TRUNCATED)
    loss_of(lambda: fleet.stream().partitions(start, first), DataLoss.LOG_TRUNCATED)
    fleet.overrides["truncated"] = {"failOnDataLoss": False}
    accepting = fleet.stream()
    second = accepting.latestOffset(first)
    assert offsets(rows(accepting, first, second)) == {"other": [1]}
    assert second["logs"]["truncated"] == first["logs"]["truncated"]


def test_a_damaged_log_ends_the_stream_or_is_skipped_if_its_loss_is_accepted(fleet: Fleet) -> None:
    damaged, other = fleet.add("damaged", b"0"), fleet.add("other", b"0")
    damaged.append(b"1")
    ((_, first),) = run(fleet.stream(), None)
    other.append(b"1")
    (damaged.directory / "raftlog.properties").write_bytes(b"values=?\n")
    with pytest.raises(RaftlogError, match=r"raftlog\.properties"):
        fleet.stream().latestOffset(first)
    fleet.overrides["damaged"] = {"failOnDataLoss": False}
    reader = fleet.stream()
    assert offsets(rows(reader, first, reader.latestOffset(first))) == {"other": [1]}


# --- batch reads ----------------------------------------------------------------------------------


def batch_reader(fleet: Fleet, **options: str) -> RaftlogSourcesReader:
    return RaftlogSourcesReader(fleet.options(**options), COLUMNS, StoppedClock().as_clock())


def batch_rows(reader: RaftlogSourcesReader) -> Rows:
    found: Rows = defaultdict(list)
    for partition in pickle.loads(pickle.dumps(reader.partitions())):
        for batch in reader.read(partition):
            for cluster_id, *row in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                found[cluster_id].append(tuple(row))
    return dict(found)


def test_a_batch_read_has_the_rows_of_all_logs_in_few_tasks(fleet: Fleet) -> None:
    for number in range(30):
        fleet.add(f"c{number:02}", *[b"x"] * (number + 1))
    fleet.overrides["c05"] = {"startingOffset": 0, "endingOffset": 6}
    reader = batch_reader(fleet)
    partitions = reader.partitions()
    assert len(partitions) == 1
    assert isinstance(partitions[0], PackedParts)
    assert offsets(batch_rows(reader)) == {
        f"c{number:02}": list(range(number + 1)) for number in range(30)
    }
    assert len(batch_reader(fleet, minPartitions="10").partitions()) >= 10


def test_a_batch_read_of_empty_logs_has_no_rows(fleet: Fleet) -> None:
    fleet.add("a")
    assert batch_rows(batch_reader(fleet)) == {}
    assert batch_reader(fleet).partitions() == [PackedParts(())]


def test_a_batch_read_needs_all_logs(fleet: Fleet) -> None:
    fleet.add("a", b"0")
    fleet.add("dead", b"0")
    shutil.rmtree(fleet.path("dead"))
    with pytest.raises(LogNotFoundError):
        batch_reader(fleet).partitions()


@pytest.mark.parametrize("is_failing", [False, True])
def test_a_batch_read_closes_its_logs_on_the_driver(
    fleet: Fleet, is_failing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections to nodes would stay open; ``opened`` keeps the logs from garbage collection."""
    opened: list[LogReader] = []
    closed: list[LogReader] = []

    def open_source(options: RaftlogOptions) -> LogReader:
        opened.append(reader_module.open_source(options))
        return opened[-1]

    monkeypatch.setattr(sources_reader, "open_source", open_source)
    monkeypatch.setattr(DirectoryLog, "close", lambda log: closed.append(log))
    for name in ("a", "b"):
        fleet.add(name, b"0")
    if is_failing:
        fleet.overrides["b"] = {"clusterId": "c"}
        with pytest.raises(WrongClusterError):
            batch_reader(fleet).partitions()
    else:
        assert len(batch_reader(fleet).partitions()) == 1
    assert len(opened) == 2
    assert closed == opened[::-1]


def test_each_log_has_its_own_range_of_timestamps(fleet: Fleet) -> None:
    for name in ("a", "b"):
        log = fleet.add(name)
        for second in range(4):
            log.append(b"x", timestamp_ms=TIME_MS + 1_000 * second)
    fleet.overrides["b"] = {"startingOffset": 1, "endingTimestamp": TIME_MS + 3_000}
    options = {"startingTimestamp": str(TIME_MS + 2_000)}
    assert offsets(batch_rows(batch_reader(fleet, **options))) == {"a": [2, 3], "b": [1, 2]}


def test_the_end_by_timestamp_of_one_log_replaces_the_offset_of_all(fleet: Fleet) -> None:
    for name in ("a", "b"):
        log = fleet.add(name)
        for second in range(6):
            log.append(b"x", timestamp_ms=TIME_MS + 1_000 * second)
    fleet.overrides["b"] = {"startingOffset": 3, "endingTimestamp": TIME_MS + 5_000}
    found = offsets(batch_rows(batch_reader(fleet, endingOffset="2")))
    assert found == {"a": [0, 1], "b": [3, 4]}
