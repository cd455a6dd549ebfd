"""Progress of a stream, without Spark: its answers to Spark's calls, and data loss."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.clock import StoppedClock
from tests.support.small_logs import (
    ABORT_TRANSACTION,
    BEGIN_TRANSACTION,
    END_TRANSACTION,
    NO_OP,
    TIME_MS,
    LogWriter,
    copy_log,
)
from tests.support.stream_calls import (
    END,
    METADATA,
    Json,
    at,
    create_again,
    loss_of,
    rows,
    run,
    stream,
)

import raftlog
from pyspark_raftlog.admission import BatchLimits
from pyspark_raftlog.compat import ReadAllAvailable
from pyspark_raftlog.log_stream import LogStream
from pyspark_raftlog.options import RaftlogOptions
from pyspark_raftlog.planning import LogRange
from pyspark_raftlog.reader import RaftlogReader
from raftlog.client import Split, open_path
from raftlog.errors import (
    OffsetOutOfRangeError,
    OptionError,
)
from raftlog_state.source_rows.data_loss import DataLoss

TRIMMED = "kraft-logs/trimmed-3.9.2/node-1"


@pytest.fixture
def metadata(data: Path, tmp_path: Path) -> Path:
    """Copy of a real metadata log, for changes."""
    return copy_log(data / METADATA, tmp_path / "node" / "__cluster_metadata-0", end_offset=END)


# --- start positions ------------------------------------------------------------------------------


def test_a_stream_of_a_metadata_log_starts_with_the_newest_snapshot(metadata: Path) -> None:
    reader = stream(metadata)
    (start, first), (_, second) = run(reader)
    assert first["snapshot"] == "3128-2"
    assert first["offset"] == first["from"] == 3128
    given = rows(reader, start, first)
    assert {offset for offset, _ in given} == {3127}
    positions = [position for _, position in given if position is not None]
    assert len(positions) == len(given)
    assert positions == sorted(set(positions))
    assert rows(reader, first, second) == [(offset, None) for offset in range(3128, END)]


def test_without_a_snapshot_it_starts_at_the_earliest_offset(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "__cluster_metadata-0")
    log.append(NO_OP, NO_OP)
    reader = stream(log.directory)
    initial = reader.initialOffset()
    assert initial["offset"] == 0
    assert rows(reader, initial, reader.latestOffset(initial)) == [(0, None), (1, None)]


def test_a_stream_of_an_ordinary_partition_starts_at_its_end(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "orders-0")
    log.append(b"old")
    reader = stream(log.directory)
    initial = reader.initialOffset()
    assert initial["offset"] == 1
    assert reader.latestOffset(initial) is initial
    log.append(b"new")
    assert rows(reader, initial, reader.latestOffset(initial)) == [(1, None)]


def test_a_stream_starts_at_an_offset_or_a_timestamp(metadata: Path) -> None:
    assert stream(metadata, startingOffset="100").initialOffset()["offset"] == 100
    assert stream(metadata, startingOffset="earliest").initialOffset()["offset"] == 0
    assert stream(metadata, startingTimestamp="0").initialOffset()["offset"] == 0


def test_a_timestamp_after_all_records_is_an_error_or_the_end(metadata: Path) -> None:
    late = {"startingTimestamp": "4000000000000"}
    with pytest.raises(OptionError, match="startingTimestamp"):
        stream(metadata, **late).initialOffset()
    reader = stream(metadata, **late, startingTimestampStrategy="latest")
    assert reader.initialOffset()["offset"] == END


@pytest.fixture
def in_transaction(tmp_path: Path) -> Path:
    """Metadata log whose records from offset 1 on are in an open transaction."""
    log = LogWriter(tmp_path / "__cluster_metadata-0")
    for number, value in enumerate((NO_OP, BEGIN_TRANSACTION, NO_OP, NO_OP)):
        log.append(value, timestamp_ms=TIME_MS + 1000 * number)
    return log.directory


def test_a_start_by_timestamp_is_never_after_the_last_stable_offset(in_transaction: Path) -> None:
    reader = stream(in_transaction, startingTimestamp=str(TIME_MS + 2000))
    assert reader.initialOffset()["offset"] == 1


@pytest.mark.parametrize(
    "end",
    [{"endingOffset": "3"}, {"endingTimestamp": str(TIME_MS + 2000)}],
    ids=lambda one: next(iter(one)),
)
def test_a_batch_read_ends_before_an_open_transaction(
    in_transaction: Path, end: dict[str, str]
) -> None:
    parsed = RaftlogOptions.parse({"path": str(in_transaction), **end})
    reader = RaftlogReader(parsed, ("offset",))
    found = [
        offset
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for offset in batch.column(0).to_pylist()
    ]
    assert found == [0]


def test_a_start_after_the_end_is_refused(metadata: Path) -> None:
    with pytest.raises(OffsetOutOfRangeError):
        stream(metadata, startingOffset="99999").initialOffset()


def test_a_snapshot_is_required_of_a_metadata_log_only(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "orders-0")
    log.append(b"x")
    with pytest.raises(OptionError, match="snapshot is for metadata logs"):
        stream(log.directory, startingOffset="snapshot").initialOffset()


# --- ends of batches ------------------------------------------------------------------------------


def test_without_new_records_the_start_is_returned(metadata: Path) -> None:
    reader = stream(metadata, startingOffset="latest")
    start = json.loads(json.dumps(reader.initialOffset()))
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) is start


@pytest.mark.parametrize("limit", [{"maxOffsetsPerTrigger": "250"}, {"maxBytesPerTrigger": "9k"}])
def test_limited_batches_are_contiguous_and_complete(metadata: Path, limit: dict[str, str]) -> None:
    reader = stream(metadata, startingOffset="earliest", includeControlRecords="true", **limit)
    batches = run(reader)
    assert len(batches) > 5
    assert all(end["from"] == start["offset"] for start, end in batches)
    given = [row for start, end in batches for row in rows(reader, start, end)]
    assert given == [(offset, None) for offset in range(END)]


def test_a_snapshot_is_one_batch_whatever_the_limit(metadata: Path) -> None:
    reader = stream(metadata, maxOffsetsPerTrigger="1")
    start, first = run(reader)[0]
    assert first["snapshot"]
    assert len(rows(reader, start, first)) > 100


def test_trigger_once_reads_snapshot_and_log_in_one_batch(metadata: Path) -> None:
    reader = stream(metadata, maxOffsetsPerTrigger="1")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert (end["from"], end["offset"], end["snapshot"]) == (3128, END, "3128-2")
    given = rows(reader, start, end)
    assert given[-3:] == [(3128, None), (3129, None), (3130, None)]
    assert reader.latestOffset(end, ReadAllAvailable()) is end


def test_available_now_ends_at_the_end_of_the_log_at_its_start(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "orders-0")
    log.append(b"1", b"2")
    log.append(b"3")
    reader = stream(log.directory, startingOffset="earliest", maxOffsetsPerTrigger="2")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    log.append(b"4")
    assert [end["offset"] for _, end in run(reader, start)] == [2, 3]
    reader.prepareForTriggerAvailableNow()
    assert [end["offset"] for _, end in run(reader, start)] == [2, 4]


def test_a_batch_never_ends_inside_a_metadata_transaction(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "__cluster_metadata-0")
    log.append(NO_OP)
    log.append(BEGIN_TRANSACTION)
    for _ in range(5):
        log.append(NO_OP)
    reader = stream(log.directory, startingOffset="earliest", maxOffsetsPerTrigger="2")
    first = run(reader)
    assert first[-1][1]["offset"] == 1, "the transaction is open"
    log.append(END_TRANSACTION)
    log.append(NO_OP)
    ends = [end["offset"] for _, end in run(reader, first[-1][1])]
    assert ends == [8, 9]


def test_an_aborted_transaction_has_no_rows_and_is_skipped(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "__cluster_metadata-0")
    log.append(NO_OP)
    log.append(BEGIN_TRANSACTION, NO_OP)
    log.append(ABORT_TRANSACTION)
    log.append(NO_OP)
    reader = stream(log.directory, startingOffset="earliest")
    ((start, end),) = run(reader)
    assert end["offset"] == 5
    assert rows(reader, start, end) == [(0, None), (4, None)]
    everything = stream(log.directory, startingOffset="earliest", includeAbortedRecords="true")
    assert len(rows(everything, start, end)) == 5


def test_the_end_of_the_log_is_reported_without_another_refresh(metadata: Path) -> None:
    reader = stream(metadata, startingOffset="earliest", maxOffsetsPerTrigger="10")
    assert reader.reportLatestOffset() is None
    start = reader.initialOffset()
    assert reader.latestOffset(start)["offset"] < 100
    shutil.rmtree(metadata)
    report = reader.reportLatestOffset()
    assert report is not None
    assert report["offset"] == END


def test_what_the_log_has_after_a_batch_is_reported(metadata: Path) -> None:
    clock = StoppedClock(at_ms=1_800_000_000_000)  # after all records
    reader = stream(metadata, clock, startingOffset="earliest", maxOffsetsPerTrigger="10")
    position = reader.initialOffset()
    while True:
        end = reader.latestOffset(position)
        left = list(open_path(str(metadata)).batches(end["offset"], END))
        report = reader.reportLatestOffset()
        assert report is not None
        assert report["unread"] == {
            "bytes": sum(batch.byte_count for batch in left),
            "batches": len(left),
            "ms": clock.at_ms - left[0].base_timestamp_ms if left else 0,
        }
        if not left:
            break
        position = end
    assert reader.latestOffset(end) is end
    assert (reader.reportLatestOffset() or {})["unread"] == {"bytes": 0, "batches": 0, "ms": 0}


def test_a_stream_that_waits_for_more_records_reports_them(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "orders-0")
    log.append(b"1", timestamp_ms=TIME_MS)
    clock = StoppedClock(at_ms=TIME_MS + 60_000)
    reader = stream(
        log.directory, clock, startingOffset="earliest", minOffsetsPerTrigger="5", pollWaitMs="0"
    )
    end = reader.latestOffset(reader.initialOffset())
    log.append(b"2", timestamp_ms=TIME_MS + 50_000)
    assert reader.latestOffset(end) is end
    unread = (reader.reportLatestOffset() or {})["unread"]
    assert (unread["batches"], unread["ms"]) == (1, 10_000)


def test_a_stream_that_waits_measures_what_is_unread_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = LogWriter(tmp_path / "orders-0")
    log.append(b"1")
    options = {"startingOffset": "earliest", "minOffsetsPerTrigger": "9", "pollWaitMs": "200"}
    reader = stream(log.directory, StoppedClock(), **options)
    end = reader.latestOffset(reader.initialOffset())
    segment = log.directory / f"{0:020d}.log"
    damaged_position = segment.stat().st_size
    log.append(b"2")
    log.append(b"3")
    assert reader.latestOffset(end) is end
    assert (reader.reportLatestOffset() or {})["unread"]["batches"] == 2
    log.append(b"4")
    with segment.open("r+b") as file:
        file.seek(damaged_position + 16)
        file.write(b"\x09")  # no magic number
    caplog.set_level("DEBUG", "pyspark_raftlog")
    assert reader.latestOffset(end) is end
    assert caplog.text.count("the lag at offset 1 is unknown") == 1
    assert "unread" not in (reader.reportLatestOffset() or {})


# --- delays ---------------------------------------------------------------------------------------


def test_an_idle_stream_waits_a_little_and_sees_new_records(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "orders-0")
    log.append(b"old")
    clock = StoppedClock()
    reader = stream(log.directory, clock, pollWaitMs="100", tailHoldback="0")
    start = reader.initialOffset()
    assert reader.latestOffset(start) is start
    assert sum(clock.slept_ms) == 100
    clock.while_asleep = lambda: log.append(b"new")
    assert reader.latestOffset(start)["offset"] == 2


def test_records_younger_than_the_holdback_are_held_back(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "orders-0")
    log.append(b"old", timestamp_ms=TIME_MS)
    log.append(b"young", timestamp_ms=TIME_MS + 60_000)
    clock = StoppedClock(at_ms=TIME_MS + 61_000)
    reader = stream(log.directory, clock, startingOffset="earliest", tailHoldback="5s")
    start = reader.initialOffset()
    first = reader.latestOffset(start)
    assert first["offset"] == 1
    assert reader.latestOffset(first) is first
    clock.at_ms += 5_000
    assert reader.latestOffset(first)["offset"] == 2


def make_old(directory: Path) -> None:
    """Set the times of all files, so that the reader relies on them."""
    for path in (*directory.iterdir(), directory):
        os.utime(path, (0, 0))


def test_a_log_whose_files_have_not_changed_is_not_read_again(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "orders-0")
    log.append(b"old")
    reader = stream(log.directory, startingOffset="earliest", tailHoldback="0")
    make_old(log.directory)
    ((_, end),) = run(reader)
    assert reader.latestOffset(end) is end
    segment = next(log.directory.glob("*.log"))
    kept = segment.read_bytes()
    with segment.open("r+b") as file:
        file.write(bytes(len(kept)))
    make_old(log.directory)
    assert reader.latestOffset(end) is end, "the bytes were not read: none is valid"
    with segment.open("r+b") as file:
        file.write(kept)
    log.append(b"new")
    make_old(log.directory)
    assert reader.latestOffset(end)["offset"] == 2


def test_records_that_were_held_back_are_read_without_a_change_of_the_files(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "orders-0")
    log.append(b"old", timestamp_ms=TIME_MS)
    log.append(b"young", timestamp_ms=TIME_MS + 60_000)
    clock = StoppedClock(at_ms=TIME_MS + 61_000)
    reader = stream(log.directory, clock, startingOffset="earliest", tailHoldback="5s")
    make_old(log.directory)
    ((_, first),) = run(reader)
    assert reader.latestOffset(first) is first
    clock.at_ms += 5_000
    assert reader.latestOffset(first)["offset"] == 2


def test_few_records_wait_for_more_or_for_the_maximum_delay(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "orders-0")
    log.append(b"1")
    clock = StoppedClock()
    options = {"startingOffset": "earliest", "minOffsetsPerTrigger": "3", "maxTriggerDelay": "1m"}
    reader = stream(log.directory, clock, **options)
    first = reader.latestOffset(reader.initialOffset())
    assert first["offset"] == 1, "the first batch does not wait"
    log.append(b"2")
    assert reader.latestOffset(first) is first
    log.append(b"3", b"4")
    second = reader.latestOffset(first)
    assert second["offset"] == 4
    log.append(b"5")
    assert reader.latestOffset(second) is second
    clock.at_ms += 60_000
    assert reader.latestOffset(second)["offset"] == 5


# --- restarts -------------------------------------------------------------------------------------


def test_a_batch_is_planned_from_its_end_only(metadata: Path) -> None:
    """Spark asks for the initial offset again after a restart; a wrong answer loses nothing."""
    planned = stream(metadata, startingOffset="100", maxOffsetsPerTrigger="50")
    start = planned.initialOffset()
    end = planned.latestOffset(start)
    restarted = stream(metadata, startingOffset="latest")
    other_start = restarted.initialOffset()
    assert other_start["offset"] == END
    assert rows(restarted, other_start, end) == rows(planned, start, end)


def test_a_snapshot_batch_is_read_again_from_the_same_file(metadata: Path, data: Path) -> None:
    log = copy_log(data / METADATA, metadata.parent.parent / "b" / metadata.name, end_offset=1000)
    before = stream(log)
    start = before.initialOffset()
    end = before.latestOffset(start)
    assert end["snapshot"] == "636-1"
    expected = rows(before, start, end)
    copy_log(data / METADATA, log, end_offset=END)
    restarted = stream(log)
    assert restarted.initialOffset()["snapshot"] == "3128-2"
    assert rows(restarted, restarted.initialOffset(), end) == expected


@pytest.mark.slow
@settings(max_examples=10)
@given(st.lists(st.integers(1, 900), min_size=1, max_size=6), st.integers(1, 400))
def test_any_split_and_any_restart_give_the_same_rows(
    data: Path, tmp_path_factory: pytest.TempPathFactory, limits: list[int], tasks: int
) -> None:
    log = data / METADATA
    start: Json | None = None
    given_rows: list[tuple[int, int | None]] = []
    for limit in [*limits, 10_000]:
        reader = stream(
            log,
            startingOffset="earliest",
            maxOffsetsPerTrigger=str(limit),
            maxRecordsPerPartition=str(tasks),
            includeControlRecords="true",
        )
        begin = start or reader.initialOffset()
        end = reader.latestOffset(begin)
        if end is not begin:
            given_rows += rows(reader, begin, end)
        start = end
    assert given_rows == [(offset, None) for offset in range(END)]


def test_a_delayed_first_batch_is_planned_as_empty(metadata: Path) -> None:
    """Spark stores the initial offset as the end of batch 0 when there are no records."""
    reader = stream(metadata, startingOffset="latest")
    initial = reader.initialOffset()
    assert reader.partitions(initial, initial) == []


def test_a_reader_survives_pickling_without_its_log(metadata: Path) -> None:
    reader = stream(metadata)
    end = reader.latestOffset(reader.initialOffset())
    copy = pickle.loads(pickle.dumps(reader))
    assert copy.reportLatestOffset() is None
    assert rows(copy, reader.initialOffset(), end) == rows(reader, reader.initialOffset(), end)


# --- data loss ------------------------------------------------------------------------------------


def without_history(metadata: Path, data: Path) -> None:
    """Delete the segments that a node deletes once a newer snapshot covers them."""
    shutil.rmtree(metadata)
    copy_log(data / METADATA, metadata, end_offset=END, start_offset=1762)


def test_deleted_records_are_reported(metadata: Path, data: Path) -> None:
    start = at(metadata, 500) | {"epoch": 1}
    without_history(metadata, data)
    reader = stream(metadata)
    text = loss_of(lambda: reader.latestOffset(start), DataLoss.OFFSETS_DELETED)
    assert "at offset 500" in text
    assert "now 1288" in text


def test_with_accepted_loss_a_stream_continues_at_the_newest_snapshot(
    metadata: Path, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start = at(metadata, 500) | {"epoch": 1}
    without_history(metadata, data)
    reader = stream(metadata, failOnDataLoss="false")
    end = reader.latestOffset(start)
    assert (end["snapshot"], end["from"], end["lost"]) == ("3128-2", 3128, True)
    assert rows(reader, start, end)
    assert "OFFSETS_DELETED" in caplog.text
    assert "lost" not in reader.latestOffset(end)


def test_with_accepted_loss_a_stream_continues_at_the_log_start_if_it_started_there(
    metadata: Path, data: Path
) -> None:
    start = at(metadata, 500) | {"epoch": 1}
    without_history(metadata, data)
    reader = stream(metadata, failOnDataLoss="false", startingOffset="earliest")
    end = reader.latestOffset(start)
    assert (end["from"], end["offset"]) == (1288, END)
    assert rows(reader, start, end)[0] == (1288, None)


def test_a_log_that_ends_before_the_streams_offset_is_reported(metadata: Path, data: Path) -> None:
    start = at(metadata, END) | {"epoch": 2}
    older = copy_log(data / METADATA, metadata.parents[1] / "old" / metadata.name, end_offset=900)
    reader = stream(older)
    text = loss_of(lambda: reader.latestOffset(start), DataLoss.LOG_TRUNCATED)
    assert f"at offset {END}" in text
    accepting = stream(older, failOnDataLoss="false", startingOffset="earliest")
    assert accepting.latestOffset(start) is start
    copy_log(data / METADATA, older, end_offset=END)
    assert reader.latestOffset(start) is start


def test_another_cluster_is_reported(metadata: Path) -> None:
    start = at(metadata, 500) | {"epoch": 1, "cluster": "AAAAAAAAAAAAAAAAAAAAAA"}
    reader = stream(metadata)
    text = loss_of(lambda: reader.latestOffset(start), DataLoss.WRONG_CLUSTER)
    assert "I9iQnKeLSA2lyZwVZic7Xg" in text
    accepting = stream(metadata, failOnDataLoss="false", startingOffset="earliest")
    assert accepting.latestOffset(start)["from"] == 0


def test_a_planned_batch_of_another_cluster_has_no_rows_in_this_log(metadata: Path) -> None:
    """Accepting the loss, the next batch begins at the start of this log: none is read twice."""
    reader = stream(metadata, startingOffset="earliest")
    start = reader.initialOffset() | {"cluster": "AAAAAAAAAAAAAAAAAAAAAA"}
    end = reader.latestOffset(reader.initialOffset()) | {"cluster": "AAAAAAAAAAAAAAAAAAAAAA"}
    loss_of(lambda: reader.partitions(start, end), DataLoss.WRONG_CLUSTER)
    accepting = stream(metadata, failOnDataLoss="false", startingOffset="earliest")
    assert accepting.partitions(start, end) == []
    assert accepting.latestOffset(end)["from"] == 0


def test_a_log_that_was_created_again_is_reported(tmp_path: Path) -> None:
    """Its offsets and its leader epoch are those of the deleted log."""
    path = tmp_path / "ids-0"
    create_again(path, b"a", b"b", b"c")
    reader = stream(path, startingOffset="earliest")
    ((start, end),) = run(reader)
    create_again(path, b"0", b"1", b"2", b"3")
    for strict in (reader, stream(path)):
        text = loss_of(partial(strict.latestOffset, end), DataLoss.INCONSISTENT_TOPIC_ID)
        assert f"topic id {end['topic']}, but" in text
        loss_of(partial(strict.partitions, start, end), DataLoss.INCONSISTENT_TOPIC_ID)
    accepting = stream(path, failOnDataLoss="false", startingOffset="latest")
    assert accepting.partitions(start, end) == []
    again = accepting.latestOffset(end)
    assert (again["lost"], again["topic"] == end["topic"]) == (True, False)
    assert [offset for offset, _ in rows(accepting, end, again)] == [1, 2, 3, 4]
    assert accepting.latestOffset(again) is again


def test_a_log_that_is_created_again_while_a_batch_is_planned_is_reported(tmp_path: Path) -> None:
    """The end of the batch has the topic id that was compared with the previous end."""
    path = tmp_path / "ids-0"
    create_again(path, b"a", b"b", b"c")
    options = RaftlogOptions.parse({"path": str(path), "startingOffset": "earliest"})
    planned = LogStream(options, StoppedClock().as_clock())
    backlog = planned.backlog(planned.initial_position())
    assert backlog is not None
    create_again(path, b"0", b"1", b"2", b"3")
    end = planned.next_batch(backlog, BatchLimits())
    assert end is not None
    loss_of(lambda: stream(path).latestOffset(end.to_json()), DataLoss.INCONSISTENT_TOPIC_ID)


def test_a_stream_that_has_read_nothing_reports_a_log_that_was_created_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ids-0"
    create_again(path, b"old", b"old")
    initial = stream(path, startingOffset="latest").initialOffset()
    create_again(path, b"0", b"1", b"2", b"3")
    loss_of(lambda: stream(path).latestOffset(initial), DataLoss.INCONSISTENT_TOPIC_ID)


def test_a_checkpoint_without_a_topic_id_is_continued(tmp_path: Path) -> None:
    """That of an earlier release, or of segments without ``partition.metadata``."""
    path = tmp_path / "ids-0"
    create_again(path, b"a")
    ((_, end),) = run(stream(path, startingOffset="earliest"))
    earlier = {name: value for name, value in end.items() if name != "topic"}
    with raftlog.open(path) as log:
        log.append([b"b"])
    following = stream(path).latestOffset(earlier)
    assert (following["from"], following["topic"]) == (end["offset"], end["topic"])
    (path / "partition.metadata").unlink()
    assert stream(path).latestOffset(end)["offset"] == following["offset"]


def test_another_cluster_is_reported_before_the_first_snapshot_is_read(metadata: Path) -> None:
    start = stream(metadata).initialOffset() | {"cluster": "AAAAAAAAAAAAAAAAAAAAAA"}
    assert start["snapshot"]
    reader = stream(metadata)
    loss_of(lambda: reader.latestOffset(start), DataLoss.WRONG_CLUSTER)


def test_a_rewritten_tail_is_reported_with_the_offset_of_the_divergence(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "a" / "orders-0")
    log.append(b"0", b"1", epoch=1)
    log.append(b"2", epoch=3)
    log.append(b"3", epoch=3)
    reader = stream(log.directory, startingOffset="earliest")
    start = reader.latestOffset(reader.initialOffset())
    assert (start["offset"], start["epoch"]) == (4, 3)

    shutil.rmtree(log.directory)
    rewritten = LogWriter(log.directory)
    rewritten.append(b"0", b"1", epoch=1)
    rewritten.append(b"other 2", epoch=4)
    rewritten.append(b"other 3", epoch=4)
    rewritten.append(b"4", epoch=4)
    for strict in (stream(log.directory), reader):
        text = loss_of(partial(strict.latestOffset, start), DataLoss.DIVERGED_EPOCH)
        assert "diverge at offset 2" in text
    accepting = stream(log.directory, failOnDataLoss="false")
    end = accepting.latestOffset(start)
    assert (end["from"], end["offset"], end["epoch"], end["lost"]) == (2, 5, 4, True)
    assert rows(accepting, start, end) == [(2, None), (3, None), (4, None)]


def test_a_record_removed_by_a_cleaner_is_no_divergence(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "a" / "orders-0")
    log.append(b"0", b"1", epoch=1)
    log.append(b"2", b"3", epoch=2)
    reader = stream(log.directory, startingOffset="earliest")
    start = reader.latestOffset(reader.initialOffset())
    shutil.rmtree(log.directory)
    compacted = LogWriter(log.directory)
    compacted.append(b"0", b"1", epoch=1)
    LogWriter(log.directory, base_offset=4).append(b"4", epoch=3)
    end = stream(log.directory).latestOffset(start)
    assert (end["from"], end["offset"], end["epoch"]) == (4, 5, 3)

    shutil.rmtree(log.directory)
    rewritten = LogWriter(log.directory)
    rewritten.append(*[b"x"] * 4, epoch=1)
    LogWriter(log.directory, base_offset=4).append(b"4", epoch=3)
    again = stream(log.directory)
    loss_of(lambda: again.latestOffset(start), DataLoss.DIVERGED_EPOCH)


def test_a_range_with_a_deleted_end_fails_without_retries(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = LogWriter(tmp_path / "a" / "orders-0")
    log.append(*[b"x"] * 9, epoch=1)
    planned = LogRange(Split(start_offset=0, end_offset=200_000))
    loss_of(lambda: list(stream(log.directory).read(planned)), DataLoss.LOG_TRUNCATED)
    accepting = stream(log.directory, failOnDataLoss="false")
    assert sum(batch.num_rows for batch in accepting.read(planned)) == 9
    assert len(caplog.records) == 1


def test_a_shorter_log_of_a_later_epoch_is_a_divergence_and_no_truncation(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "a" / "orders-0")
    log.append(b"0", epoch=1)
    log.append(*[b"x"] * 9, epoch=2)
    reader = stream(log.directory, startingOffset="earliest")
    start = reader.latestOffset(reader.initialOffset())
    shutil.rmtree(log.directory)
    rewritten = LogWriter(log.directory)
    rewritten.append(b"0", epoch=1)
    rewritten.append(b"y", epoch=3)
    strict = stream(log.directory)
    loss_of(lambda: strict.latestOffset(start), DataLoss.DIVERGED_EPOCH)


def test_a_majoritys_end_may_decrease_and_the_stream_waits(data: Path, tmp_path: Path) -> None:
    """Copies of voters' directories may be older at the next refresh."""
    cluster = data / METADATA.split("/node-")[0]
    for node in ("node-100", "node-101", "node-102"):
        name = "__cluster_metadata-0"
        copy_log(cluster / node / name, tmp_path / node / name, end_offset=END + 2)
    reader = stream(tmp_path / "node-*", startingOffset="3000")
    ((_, end),) = run(reader)
    assert (end["offset"], end["epoch"]) == (END + 1, 3)
    for node in ("node-101", "node-102"):
        shutil.rmtree(tmp_path / node)
        copy_log(cluster / node / name, tmp_path / node / name, end_offset=END)
    for again in (reader, stream(tmp_path / "node-*")):
        assert again.latestOffset(end) is end


def test_a_deleted_snapshot_is_reported(metadata: Path) -> None:
    reader = stream(metadata)
    start = reader.initialOffset()
    end = reader.latestOffset(start)
    for checkpoint in metadata.glob("*3128*.checkpoint"):
        checkpoint.unlink()
    strict = stream(metadata)
    text = loss_of(lambda: strict.partitions(start, end), DataLoss.SNAPSHOT_DELETED)
    assert "00000000000000003128-0000000002" in text
    accepting = stream(metadata, failOnDataLoss="false")
    assert {offset for offset, _ in rows(accepting, start, end)} >= {1761}


def test_a_planned_batch_that_was_deleted_is_reported(metadata: Path, data: Path) -> None:
    reader = stream(metadata, startingOffset="earliest", maxOffsetsPerTrigger="100")
    start, end = run(reader)[0]
    partitions = reader.partitions(start, end)
    without_history(metadata, data)
    strict = stream(metadata)
    loss_of(lambda: strict.partitions(start, end), DataLoss.OFFSETS_DELETED)
    loss_of(lambda: list(strict.read(partitions[0])), DataLoss.OFFSETS_DELETED)
    accepting = stream(metadata, failOnDataLoss="false")
    assert rows(accepting, start, end) == []
    assert list(accepting.read(partitions[0])) == []


def test_a_planned_batch_with_a_truncated_end_is_reported(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "orders-0")
    log.append(b"1")
    segment = next(log.directory.glob("*.log"))
    kept = segment.read_bytes()
    log.append(b"2")
    reader = stream(log.directory, startingOffset="earliest")
    ((start, end),) = run(reader)
    segment.write_bytes(kept)
    strict = stream(log.directory)
    loss_of(lambda: strict.partitions(start, end), DataLoss.LOG_TRUNCATED)
    accepting = stream(log.directory, failOnDataLoss="false")
    assert rows(accepting, start, end) == [(0, None)]


def test_non_consecutive_batches_are_reported(metadata: Path) -> None:
    reader = stream(metadata, startingOffset="earliest", maxOffsetsPerTrigger="100")
    first, second, *_ = [end for _, end in run(reader)]
    loss_of(lambda: reader.partitions(second, first), DataLoss.CHECKPOINT_MISMATCH)
    loss_of(lambda: reader.latestOffset({"topic": {"0": 5}}), DataLoss.CHECKPOINT_MISMATCH)


def test_a_deleted_starting_offset_is_reported(metadata: Path, data: Path) -> None:
    without_history(metadata, data)
    loss_of(lambda: stream(metadata, startingOffset="5").initialOffset(), DataLoss.OFFSETS_DELETED)
    accepting = stream(metadata, startingOffset="5", failOnDataLoss="false")
    assert accepting.initialOffset()["offset"] == 1288


def test_a_missing_start_of_the_log_is_reported(
    metadata: Path, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    without_history(metadata, data)
    stream(metadata, startingOffset="earliest").initialOffset()
    assert "log start offset is 1288" in caplog.text
