"""Offset commits of ``__consumer_offsets`` into rows of offsets, and into Delta tables.

    python -m benchmarks.group_offsets [--records N] [--rounds N] [--jars DIR] [--json]

The log has the commits of 10,000 partitions of groups, in batches of 50. Measured is the processor
time from the opening of the directory to one row for each partition, and that of a process that
writes each record and each change into Delta tables. kafka-dump-log, which decodes
and prints each commit of the same segment, is measured as a whole process: of Kafka's classes, only
a broker builds the offsets. Its jars are searched in --jars, $RAFTLOG_KAFKA_JARS and
build/kafka/4.3.1.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from benchmarks.run import Row, main_beside_kafka, row
from benchmarks.typed_records import DUMP_LOG, seconds_of
from tests.support.batch_encoding import NewRecordBatch, encode_batch

from raftlog.client import Isolation, LogKind, open_path
from raftlog.records import NewRecord
from raftlog_state.image.rows import ConsumerOffsetRow
from raftlog_state.internal.loader import InternalState
from raftlog_state.records.internal_logs import CONSUMER_OFFSETS, GROUP_RECORDS
from raftlog_state.records.keyed_serde import KeyedRecord
from raftlog_state.records.schema_groups import OffsetCommitKey, OffsetCommitValue

RECORDS = 1_000_000
PARTITIONS = 10_000
BATCH_RECORDS = 50
TIME_MS = 1_700_000_000_000


def commits(record_count: int) -> Iterator[NewRecord]:
    for at in range(record_count):
        number = at * 7_919 % PARTITIONS
        key = OffsetCommitKey(
            group=f"group-{number // 100:04d}", topic="orders", partition=number % 100
        )
        value = OffsetCommitValue(offset=at, leader_epoch=5, commit_timestamp=TIME_MS + at)
        key_bytes, value_bytes = GROUP_RECORDS.encode(KeyedRecord(key, value, 4))
        yield NewRecord(key_bytes, value_bytes, TIME_MS + at)


def write_log(path: Path, record_count: int) -> Path:
    """Write the segment of a partition; return its path."""
    path.mkdir()
    segment, offset = path / f"{0:020d}.log", 0
    with segment.open("wb") as file:
        left = commits(record_count)
        while records := tuple(islice(left, BATCH_RECORDS)):
            new = NewRecordBatch(records=records, base_timestamp_ms=TIME_MS)
            file.write(encode_batch(new, base_offset=offset, leader_epoch=5))
            offset += len(records)
    return segment


def replay(path: Path) -> tuple[float, int]:
    """Return the processor time of a replay, and the number of rows."""
    begun = time.process_time()
    log = open_path(str(path), kind=LogKind.PARTITION)
    state = InternalState(CONSUMER_OFFSETS)
    state.read(log, log.read_end(isolation=Isolation.READ_UNCOMMITTED).offset)
    rows = state.rows(ConsumerOffsetRow)
    return time.process_time() - begun, len(rows)


def follow(path: Path, tables: Path) -> float:
    """Return the processor time of a process that writes the log into new tables."""
    command = [sys.executable, "-m", "raftlog_state.cli", "tables", "follow", "--once"]
    command += ["--cluster-id", "benchmark", "--tail-holdback-ms", "0", str(path), str(tables)]
    return seconds_of(command)


def measure(record_count: int, rounds: int, kafka: Path | None) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "__consumer_offsets-0"
        segment = write_log(path, record_count)
        found = [replay(path) for _ in range(rounds)]
        assert {count for _, count in found} == {min(PARTITIONS, record_count)}
        followed = [follow(path, Path(place) / f"tables-{at}") for at in range(rounds)]
        rate = record_count / statistics.median(seconds for seconds, _ in found)
        commits_of = f"{record_count:,} offset commits into"
        against = None
        if kafka is not None:
            command = ["java", "-cp", f"{kafka}/*", DUMP_LOG, "--offsets-decoder", "--files"]
            against = record_count / seconds_of([*command, str(segment)])
        other = "kafka-dump-log (JVM), whole process, prints"
        what = f"{commits_of} the offsets of groups, processor time"
        yield row(what, rate, "records/s", against, other)
        rate = record_count / statistics.median(followed)
        what = f"{commits_of} Delta tables with log and history, processor time of the process"
        yield row(what, rate, "records/s", against, other)


if __name__ == "__main__":
    main_beside_kafka(__doc__ or "", measure, records=RECORDS)
