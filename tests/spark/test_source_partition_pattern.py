"""A pattern of an internal log's partitions is one source: rows, offsets, restarts."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.clock import StoppedClock
from tests.support.internal_records import GROUPS_NODE, InternalLogFile
from tests.support.spark_session import needs_limits

from pyspark_raftlog import RaftlogDataSource, lag
from pyspark_raftlog.options import RaftlogOptions
from pyspark_raftlog.reader import RaftlogReader, open_source
from pyspark_raftlog.sources_reader import RaftlogSourcesReader, RaftlogSourcesStreamReader
from raftlog.errors import DataLossError, LogAccessError, LogNotFoundError, OptionError
from raftlog_state.source_rows.columns import arrow_schema

COLUMNS = ("partition", "offset", "recordType", "recordKey", "record")
TOMBSTONE = b"\x00\x02\x00\x01g", None
Json = dict[str, Any]


def options(path: object, **given: str) -> RaftlogOptions:
    defaults = {"pollWaitMs": "0", "startingOffset": "earliest", "tailHoldback": "0"}
    return RaftlogOptions.parse({"path": str(path)} | defaults | given)


def table(reader: Any, partitions: list[Any]) -> list[Json]:
    batches = [batch for one in partitions for batch in reader.read(one)]
    found: list[Json] = pa.Table.from_batches(batches, arrow_schema(COLUMNS)).to_pylist()
    return found


def stream(path: object, **given: str) -> RaftlogSourcesStreamReader:
    clock = StoppedClock().as_clock()
    return RaftlogSourcesStreamReader(options(path, **given), COLUMNS, clock)


def rows(reader: RaftlogSourcesStreamReader, start: Json, end: Json) -> list[tuple[int, int]]:
    """Return partition and offset of a batch's rows, as its tasks return them after a restart."""
    start, end = (json.loads(json.dumps(one)) for one in (start, end))
    tasks = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    found = table(pickle.loads(pickle.dumps(reader)), tasks)
    return sorted((row["partition"], row["offset"]) for row in found)


def latest(reader: RaftlogSourcesStreamReader, start: Json) -> Json:
    end: Json = reader.latestOffset(start, reader.getDefaultReadLimit())
    return end


def test_the_rows_are_those_of_each_partition() -> None:
    whole = options(GROUPS_NODE / "__consumer_offsets-*")
    reader = RaftlogSourcesReader(whole, COLUMNS)
    found = table(reader, reader.partitions())
    expected = []
    for path in sorted(GROUPS_NODE.glob("__consumer_offsets-*")):
        single = RaftlogReader(options(path), COLUMNS)
        expected += table(single, single.partitions())
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert {row["partition"] for row in found} == {0, 1, 2, 3}


def test_the_columns_are_those_of_one_log() -> None:
    of_pattern, of_one = (
        RaftlogDataSource({"path": str(GROUPS_NODE / name)}).schema()
        for name in ("__consumer_offsets-*", "__consumer_offsets-1")
    )
    assert of_pattern == of_one


def test_a_pattern_may_be_a_file_url() -> None:
    """As which CREATE TABLE passes a path."""
    of_url = options(f"file:{GROUPS_NODE}/__consumer_offsets-*")
    assert of_url.sources == options(GROUPS_NODE / "__consumer_offsets-*").sources
    assert len(of_url.sources) == 4


def test_a_streams_offset_has_each_partition_by_name(tmp_path: Path) -> None:
    logs = [InternalLogFile(tmp_path / f"__consumer_offsets-{number}") for number in (0, 1, 10)]
    for log in logs:
        log.append(TOMBSTONE)
    reader = stream(tmp_path / "__consumer_offsets-*")
    start = reader.initialOffset()
    end = latest(reader, start)
    assert end["v"] == 2
    assert {name: one["offset"] for name, one in end["logs"].items()} == {
        "__consumer_offsets-0": 1,
        "__consumer_offsets-1": 1,
        "__consumer_offsets-10": 1,
    }
    assert rows(reader, start, end) == [(0, 0), (1, 0), (10, 0)]
    assert latest(reader, end) == end
    logs[1].append(TOMBSTONE, TOMBSTONE)
    restarted = stream(tmp_path / "__consumer_offsets-*")
    grown = latest(restarted, json.loads(json.dumps(end)))
    assert rows(restarted, end, grown) == [(1, 1), (1, 2)]
    assert rows(restarted, start, end) == [(0, 0), (1, 0), (10, 0)]


def test_a_partition_that_appears_is_read_after_a_restart(tmp_path: Path) -> None:
    InternalLogFile(tmp_path / "__transaction_state-0").append((b"\x00\x00\x00\x01t", None))
    reader = stream(tmp_path / "__transaction_state-[0-9]*")
    end = latest(reader, reader.initialOffset())
    InternalLogFile(tmp_path / "__transaction_state-1").append((b"\x00\x00\x00\x01u", None))
    restarted = stream(tmp_path / "__transaction_state-[0-9]*")
    assert rows(restarted, end, latest(restarted, end)) == [(1, 0)]


def test_a_directory_that_cannot_be_listed_is_an_error_of_access(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for pattern in ("__consumer_offsets-*", "*/__consumer_offsets-[0-9]", "node-*"):
        with pytest.raises(LogAccessError, match=r"loop.* cannot be read"):
            open_source(options(loop / pattern))
    with pytest.raises(LogNotFoundError):
        options(tmp_path / "none" / "__consumer_offsets-*")


@pytest.mark.spark
@needs_limits
def test_spark_reads_and_streams_a_pattern(spark: Any, tmp_path: Path) -> None:
    pattern = f"{GROUPS_NODE}/__consumer_offsets-*"
    frame = spark.read.format("raftlog").load(pattern)
    whole = options(pattern)
    reader = RaftlogSourcesReader(whole, COLUMNS)
    expected = sorted(
        (row["partition"], row["offset"]) for row in table(reader, reader.partitions())
    )
    assert sorted(map(tuple, frame.select("partition", "offset").collect())) == expected
    streamed = (
        spark.readStream.format("raftlog")
        .options(startingOffset="earliest", tailHoldback="0")
        .load(pattern)
    )
    query = (
        streamed.select("partition", "offset", "recordKey")
        .writeStream.format("memory")
        .queryName("pattern_of_partitions")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = spark.table("pattern_of_partitions").collect()
    assert sorted((row["partition"], row["offset"]) for row in found) == expected
    assert all(row["recordKey"] for row in found)
    last = lag(query)
    assert last is not None
    assert last.logs == {f"__consumer_offsets-{number}": 0 for number in range(4)}


def test_limits_are_shared_by_the_partitions(tmp_path: Path) -> None:
    for number in (0, 1):
        log = InternalLogFile(tmp_path / f"__consumer_offsets-{number}")
        for _ in range(10):
            log.append(TOMBSTONE)
    reader = stream(tmp_path / "__consumer_offsets-*", maxOffsetsPerTrigger="6")
    position: Json = reader.initialOffset()
    seen: list[tuple[int, int]] = []
    while (end := latest(reader, position)) != position:
        batch = rows(reader, position, end)
        assert len(batch) <= 6
        seen += batch
        position = end
    assert sorted(seen) == [(number, offset) for number in (0, 1) for offset in range(10)]


def test_the_checkpoint_of_one_log_is_not_that_of_a_pattern(tmp_path: Path) -> None:
    InternalLogFile(tmp_path / "__consumer_offsets-0").append(TOMBSTONE)
    reader = stream(tmp_path / "__consumer_offsets-*")
    for cluster in (None, "I9iQnKeLSA2lyZwVZic7Xg"):
        single = {"v": 1, "offset": 1, "epoch": 0, "from": 0, "cluster": cluster}
        with pytest.raises(DataLossError, match=r"one log|alone"):
            reader.latestOffset(single, reader.getDefaultReadLimit())


def test_directories_that_kafka_deletes_or_moves_are_no_partitions(tmp_path: Path) -> None:
    for suffix in ("", *(f".{'4f2a1c6d' * 4}-{why}" for why in ("future", "delete", "stray"))):
        InternalLogFile(tmp_path / f"__consumer_offsets-3{suffix}").append(TOMBSTONE)
    reader = stream(tmp_path / "__consumer_offsets-*")
    start = reader.initialOffset()
    assert rows(reader, start, latest(reader, start)) == [(3, 0)]


def test_patterns_without_or_with_two_copies_of_a_partition_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LogNotFoundError):
        options(tmp_path / "__consumer_offsets-*")
    for node in ("a", "b"):
        InternalLogFile(tmp_path / node / "__consumer_offsets-0")
    with pytest.raises(OptionError, match="__consumer_offsets-0 twice"):
        options(tmp_path / "*" / "__consumer_offsets-*")
    assert options(tmp_path / "*" / "__consumer_offsets-0").sources == ()
    assert options(tmp_path / "orders-*").sources == ()
