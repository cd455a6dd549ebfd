"""Replay of a metadata log into an image: raftlog, and Kafka's own loader in a JVM.

    python -m benchmarks.replay [--records N] [--rounds N] [--jars DIR] [--json]

Both read the log of ``bulk_load``, one segment, from the file, verify its CRCs and replay all
records. Kafka's are its classes (``KafkaLoader.java``): the batch reader of its Raft client, one
``MetadataDelta``, applied once, as a broker that starts does it. Measured is the processor time of
each process without its start: of the JVM with its compilers and its garbage collector, in the
first round (a broker starts once) and in the last one, when all is compiled.

Kafka's jars are searched in --jars, $RAFTLOG_KAFKA_JARS and build/kafka/4.3.1. Without them, or
without Java, only raftlog is measured.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bulk_load import write_log
from benchmarks.run import Row, main_beside_kafka, row
from tests.support.kafka import run_java

from raftlog_state.image import Entity
from raftlog_state.loader.image_reader import ImageReader
from raftlog_state.records import Redactor

RECORDS = 1_000_000
PROGRAM = Path(__file__).with_name("KafkaLoader.java")
JVM_MEMORY = "3g"


def replay(log: Path, rounds: int) -> tuple[float, int, int]:
    """Return the median processor time of a replay, the number of records and of partitions."""
    seconds = []
    for _ in range(rounds):
        reader = ImageReader(str(log), Redactor(reveal=True))
        end_offset = reader.log_end_offset
        begun = time.process_time()
        image = reader.image_at(end_offset)
        seconds.append(time.process_time() - begun)
    return statistics.median(seconds), end_offset, len(image.rows(Entity.PARTITION))


def replay_by_kafka(kafka: Path, log: Path, rounds: int) -> tuple[list[float], int, int]:
    """Return the processor time of each round, the number of records and of partitions."""
    (segment,) = log.glob("*.log")
    text = run_java(kafka, str(PROGRAM), str(segment), str(rounds), memory=JVM_MEMORY)
    lines = [line.split() for line in text.splitlines()]
    (records, partitions) = {(int(line[1]), int(line[2])) for line in lines}.pop()
    return [int(line[0]) / 1e9 for line in lines], records, partitions


def measure(record_count: int, rounds: int, kafka: Path | None) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as place:
        log = write_log(Path(place), record_count)
        seconds, *found = replay(log, rounds)
        what = f"replay of {found[0]:,} records into an image, processor time"
        rate = found[0] / seconds
        if kafka is None:
            yield row(what, rate, "records/s")
            return
        by_kafka, *expected = replay_by_kafka(kafka, log, rounds)
        if found != expected:
            raise SystemExit(f"raftlog has {found} records and partitions, Kafka {expected}")
        for name, of_round in (("its first", by_kafka[0]), ("a warm", by_kafka[-1])):
            against = found[0] / of_round
            yield row(what, rate, "records/s", against, f"Kafka's loader (JVM), {name} round")


if __name__ == "__main__":
    main_beside_kafka(__doc__ or "", measure, records=RECORDS)
