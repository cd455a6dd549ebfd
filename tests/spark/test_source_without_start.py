"""Batches that a stream plans without Spark's current offset, as in Spark 4.0 and 4.1."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.support.small_logs import LogWriter, copy_log
from tests.support.stream_calls import END, METADATA, at, create_again, loss_of, rows, run, stream

from raftlog_state.source_rows.data_loss import DataLoss

TRIMMED = "kraft-logs/trimmed-3.9.2/node-1"


def test_a_stream_without_spark_s_current_offset_continues_at_its_own(
    data: Path, tmp_path: Path
) -> None:
    """Spark 4.0 and 4.1 ask for the latest offset without the current one of the query."""
    log = copy_log(data / METADATA, tmp_path / "node" / "__cluster_metadata-0", end_offset=END)
    reader = stream(log, startingOffset="3000")
    initial = reader.initialOffset()
    end = reader.latestOffset()
    assert (end["from"], end["offset"]) == (3000, END)
    assert reader.latestOffset() == end
    restarted = stream(log, startingOffset="3000")
    assert len(rows(restarted, end, restarted.latestOffset())) == 0
    assert len(rows(restarted, initial, end)) == END - 3000


def test_the_first_batch_without_a_current_offset_starts_with_the_snapshot(data: Path) -> None:
    """Spark 4.0 and 4.1 ask for the end of the first batch before its start."""
    reader = stream(data / TRIMMED)
    end = reader.latestOffset()
    assert end["from"] == -1
    found = rows(reader, reader.initialOffset(), end)
    other = stream(data / TRIMMED)
    start, expected = other.initialOffset(), []
    while (next_start := other.latestOffset(start)) != start:
        expected += rows(other, start, next_start)
        start = next_start
    assert found == expected
    assert found[0] == (1021, 1)


def test_a_repeated_first_batch_has_the_snapshot_below_its_end(data: Path, tmp_path: Path) -> None:
    """Spark 4.1 then passes the newest snapshot as the start, which may be above that end."""
    log = copy_log(data / METADATA, tmp_path / "node" / "__cluster_metadata-0", end_offset=700)
    reader = stream(log)
    end = reader.latestOffset()
    first = rows(reader, reader.initialOffset(), end)
    assert first[0][1] is not None, "rows of snapshot 636-1"
    assert first[-1] == (end["offset"] - 1, None)
    copy_log(data / METADATA, log, end_offset=END)
    again = stream(log)
    newer = again.initialOffset()
    assert newer["offset"] > end["offset"]
    assert rows(again, newer, end) == first
    (log / "00000000000000000636-0000000001.checkpoint").unlink()
    assert rows(stream(log), newer, end)[0] == (3, None), "the log, which begins at 0"


def test_a_repeated_first_batch_that_was_deleted_is_reported(tmp_path: Path) -> None:
    """Its start, which Spark 4.1 asks for again, is the new start of the log."""
    log = LogWriter(tmp_path / "orders-0")
    log.append(b"1", b"2")
    end = stream(log.directory, startingOffset="earliest").latestOffset()
    shutil.rmtree(log.directory)
    LogWriter(log.directory, base_offset=5).append(b"6")
    reader = stream(log.directory, startingOffset="earliest")
    text = loss_of(lambda: reader.partitions(reader.initialOffset(), end), DataLoss.OFFSETS_DELETED)
    assert "the log now begins at 5" in text
    accepting = stream(log.directory, startingOffset="earliest", failOnDataLoss="false")
    assert rows(accepting, accepting.initialOffset(), end) == []
    following = accepting.latestOffset(end)
    assert [offset for offset, _ in rows(accepting, end, following)] == [5]


@pytest.mark.parametrize("start", ["latest", "2"])
def test_a_first_batch_that_would_start_above_its_end(tmp_path: Path, start: str) -> None:
    log = LogWriter(tmp_path / "orders-0")
    log.append(b"old")
    end = stream(log.directory, startingOffset="latest").latestOffset()
    log.append(b"1", b"2")
    reader = stream(log.directory, startingOffset=start)
    if start == "latest":
        assert rows(reader, reader.initialOffset(), end) == []
        assert [offset for offset, _ in rows(reader, end, reader.latestOffset(end))] == [1, 2]
    else:
        assert "offsets 2 to 1" in loss_of(
            lambda: reader.partitions(reader.initialOffset(), end), DataLoss.CHECKPOINT_MISMATCH
        )


# --- data loss between the runs of a query --------------------------------------------------------


@pytest.mark.parametrize("count", [1, 9])
def test_a_restart_without_spark_s_offset_reports_a_log_that_was_created_again(
    tmp_path: Path, count: int
) -> None:
    """Spark 4.0 and 4.1 pass the start of a restarted query's batch after its end is planned."""
    path = tmp_path / "ids-0"
    create_again(path, b"a", b"b", b"c")
    ((_, before),) = run(stream(path, startingOffset="earliest"))
    create_again(path, *[b"new"] * count)
    strict = stream(path)
    end = strict.latestOffset()
    assert (end["from"], end["offset"] > before["offset"]) == (-1, count == 9)
    text = loss_of(lambda: strict.partitions(before, end), DataLoss.INCONSISTENT_TOPIC_ID)
    assert f"topic id {before['topic']}, but" in text
    accepting = stream(path, failOnDataLoss="false", startingOffset="latest")
    expected = list(range(1, end["offset"]))
    assert [offset for offset, _ in rows(accepting, before, end)] == expected
    assert accepting.latestOffset(end) is end


def test_a_restart_without_spark_s_offset_in_another_cluster_begins_with_a_snapshot(
    data: Path, tmp_path: Path
) -> None:
    """A repeated batch begins at the newest one below its end, as a first batch does."""
    log = copy_log(data / METADATA, tmp_path / "node" / "__cluster_metadata-0", end_offset=700)
    end = stream(log).latestOffset()
    before = at(log, 500) | {"epoch": 1, "cluster": "AAAAAAAAAAAAAAAAAAAAAA"}
    copy_log(data / METADATA, log, end_offset=END)
    loss_of(lambda: stream(log).partitions(before, end), DataLoss.WRONG_CLUSTER)
    accepting = stream(log, failOnDataLoss="false")
    found = rows(accepting, before, end)
    assert found[0][0] == 635
    assert found[0][1] is not None, "rows of snapshot 636-1"
    assert found[-1] == (end["offset"] - 1, None)


def test_a_restart_without_spark_s_offset_reports_a_rewritten_tail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = LogWriter(tmp_path / "orders-0")
    log.append(b"0", b"1", epoch=1)
    log.append(b"2", b"3", epoch=3)
    ((_, before),) = run(stream(log.directory, startingOffset="earliest"))
    shutil.rmtree(log.directory)
    rewritten = LogWriter(log.directory)
    rewritten.append(b"0", b"1", epoch=1)
    rewritten.append(b"2", b"3", b"4", epoch=4)
    strict = stream(log.directory)
    end = strict.latestOffset()
    loss_of(lambda: strict.partitions(before, end), DataLoss.DIVERGED_EPOCH)
    accepting = stream(log.directory, failOnDataLoss="false")
    assert [offset for offset, _ in rows(accepting, before, end)] == [2, 3, 4]
    assert len(caplog.records) == 1


def test_a_restart_without_spark_s_offset_reports_a_truncated_log(tmp_path: Path) -> None:
    """Accepting the loss, the stream continues at the new end."""
    log = LogWriter(tmp_path / "orders-0")
    log.append(b"0", b"1", b"2")
    ((_, before),) = run(stream(log.directory, startingOffset="earliest"))
    shutil.rmtree(log.directory)
    shorter = LogWriter(log.directory)
    shorter.append(b"0")
    strict = stream(log.directory)
    end = strict.latestOffset()
    loss_of(lambda: strict.partitions(before, end), DataLoss.LOG_TRUNCATED)
    accepting = stream(log.directory, failOnDataLoss="false")
    assert rows(accepting, before, end) == []
    shorter.append(b"1")
    assert [offset for offset, _ in rows(accepting, end, accepting.latestOffset(end))] == [1]
