"""Compaction of a log: raftlog, and Kafka's own cleaner in a JVM.

    python -m benchmarks.cleaning [--records N] [--rounds N] [--jars DIR] [--json]

Both read the same segments twice, map the last offset of each key, and write the records that are
retained. A key has four records on average; values have 100 bytes. Kafka's are its classes
(``KafkaCleaner.java``). Measured is the processor time of each process without its start and
without the opening of the log: of the JVM with its compilers and its garbage collector, in the
first round and in the last one, when all is compiled. The MB are those of the segments before.

Kafka's jars are searched in --jars, $RAFTLOG_KAFKA_JARS and build/kafka/4.3.1. Without them, or
without Java, only raftlog is measured.
"""

from __future__ import annotations

import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.run import Row, main_beside_kafka, row
from tests.support.kafka import run_java

import raftlog
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.storage.local import WritableLocalStorage

RECORDS = 500_000
BATCH_RECORDS = 500
VALUE_BYTES = 100
PROGRAM = Path(__file__).with_name("KafkaCleaner.java")
JVM_MEMORY = "2g"


def write_log(path: Path, record_count: int) -> int:
    """Write a log whose last batch is in a segment of its own; return the bytes before that."""
    rng = random.Random(7)
    config = raftlog.LogConfig(
        segment_bytes=record_count * (VALUE_BYTES + 20) // 6,
        cleanup_policy=raftlog.CleanupPolicy.COMPACT,
        min_cleanable_dirty_ratio=0.0,
    )
    with raftlog.open(path, config=config) as log:
        for _ in range(record_count // BATCH_RECORDS):
            keys = [b"key %09d" % rng.randrange(record_count // 4) for _ in range(BATCH_RECORDS)]
            log.append([(key, rng.randbytes(VALUE_BYTES)) for key in keys], atomic=True)
    *sealed, _ = sorted(path.glob("*.log"))
    return sum(one.stat().st_size for one in sealed)


def clean(path: Path, place: Path, rounds: int) -> tuple[float, int]:
    """Return the median processor time of a compaction, and the number of retained records."""
    seconds, retained = [], 0
    for at in range(rounds):
        copied = place / f"ours-{at}" / "state-0"
        shutil.copytree(path, copied)
        now_ms = time.time_ns() // 1_000_000
        log = SingleVoterLog.open(WritableLocalStorage(), str(copied), now_ms=now_ms)
        begun = log.begin_compaction(now_ms=now_ms)
        assert begun is not None, "it was never compacted"
        with begun:
            start_s = time.process_time()
            begun.run()
            log.complete_compaction(begun)
            seconds.append(time.process_time() - start_s)
            retained = begun.counts.records_retained
        log.close()
    return statistics.median(seconds), retained


def clean_by_kafka(
    kafka: Path, path: Path, place: Path, rounds: int
) -> tuple[list[float], set[int]]:
    """Return the processor time of each round, and the numbers of retained records."""
    arguments = str(path), str(place), str(rounds)
    text = run_java(kafka, str(PROGRAM), *arguments, memory=JVM_MEMORY)
    lines = [line.split() for line in text.splitlines() if line[:1].isdigit()]
    return [int(line[0]) / 1e9 for line in lines], {int(line[1]) for line in lines}


def measure(record_count: int, rounds: int, kafka: Path | None) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        path = place / "state-0"
        mega_bytes = write_log(path, record_count) / 1e6
        seconds, retained = clean(path, place, rounds)
        what = f"compaction of {mega_bytes:,.0f} MB of small records, processor time"
        if kafka is None:
            yield row(what, mega_bytes / seconds, "MB/s")
            return
        by_kafka, expected = clean_by_kafka(kafka, path, place, rounds)
        # raftlog's first batch, a control record, counts as retained
        if {retained - 1} != expected:
            raise SystemExit(f"raftlog has retained {retained - 1} records, Kafka {expected}")
        for name, of_round in (("its first", by_kafka[0]), ("a warm", by_kafka[-1])):
            against = mega_bytes / of_round
            other = f"Kafka's cleaner (JVM), {name} round"
            yield row(what, mega_bytes / seconds, "MB/s", against, other)


if __name__ == "__main__":
    main_beside_kafka(__doc__ or "", measure, records=RECORDS, decimals=1)
