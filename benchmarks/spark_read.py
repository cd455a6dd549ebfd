"""Rows per second of a Spark batch read, compared with the same rows prepared as Arrow batches.

    python -m benchmarks.spark_read [--rounds N] [--kafka] [--json]

Each figure is compared with a source that yields batches stored in an Arrow file: the upper bound
of a Python data source. Both write to Spark's ``noop`` sink in the same session, alternating. The
figures are medians: rows per second, and rows per second of processor time of all of Spark's
processes, the JVM and its workers, which other processes on the machine disturb less.

``--kafka`` also starts an Apache Kafka, produces records to it with Kafka's own tool, and reads
them by Spark's Kafka source and, from the files of the running broker, by raftlog: in one task and
in two. Both are downloaded. The processor time is Spark's, without the broker's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from benchmarks.run import Row, row
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.support.jars import spark_jars, spark_kafka_source
from tests.support.kafka import run_java, running_node

from pyspark_raftlog import RaftlogDataSource
from pyspark_raftlog.reader import RaftlogReader
from raftlog.records import BatchBuilder
from raftlog_state.records import NoOpRecord, PartitionChangeRecord, encode
from raftlog_state.records.typed_columns import struct_type

PLAIN_RECORDS = 2_000_000
METADATA_RECORDS = 1_000_000
BATCH_RECORDS = 100
TIME_MS = 1_700_000_000_000
INDEX_INTERVAL_BYTES = 4096
"""As Kafka's own default."""
WARM_ROUNDS = 2
KAFKA_TOPIC = "bench"
VALUE = "value BINARY"
KAFKA = "key BINARY, value BINARY, offset BIGINT, timestamp TIMESTAMP, leaderEpoch INT"
RECORD = "offset BIGINT, recordType STRING, record STRING"
CHANGE = struct_type(PartitionChangeRecord)
TYPED = StructType(
    [
        StructField("offset", LongType()),
        StructField("recordType", StringType()),
        StructField("partition_change_record", from_arrow_type(CHANGE)),
    ]
)
"""The same records as ``RECORD``: all others are NoOps."""


class PrebuiltSource(DataSource):
    """Source of the batches in Arrow files, one task per file."""

    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    def reader(self, schema: StructType) -> DataSourceReader:
        return PrebuiltReader(self.options["path"])


class PrebuiltReader(DataSourceReader):
    def __init__(self, path: str) -> None:
        self._path = path

    def partitions(self) -> list[InputPartition]:
        names = sorted(os.listdir(self._path))
        return [InputPartition(os.path.join(self._path, name)) for name in names]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(partition.value) as file:
            reader = pa.ipc.open_file(file)
            for ordinal in range(reader.num_record_batches):
                yield reader.get_batch(ordinal)


def write_log(directory: Path, values: Iterator[bytes]) -> Path:
    """Write one segment of batches of ``BATCH_RECORDS``, epoch 1, with its offset index."""
    directory.mkdir(parents=True)
    (directory / "leader-epoch-checkpoint").write_text("0\n1\n1 0\n")
    offset = position = indexed = 0
    segment, index = directory / f"{0:020d}.log", directory / f"{0:020d}.index"
    with segment.open("wb") as log_file, index.open("wb") as index_file:
        while records := list(islice(values, BATCH_RECORDS)):
            batch = BatchBuilder(base_timestamp_ms=TIME_MS + offset)
            batch.append(records)
            data = batch.build(offset, 1).data
            offset += len(records)
            if position - indexed > INDEX_INTERVAL_BYTES:
                index_file.write(struct.pack(">ii", offset - 1, position))
                indexed = position
            log_file.write(data)
            position += len(data)
    return directory


def plain_values() -> Iterator[bytes]:
    for number in range(PLAIN_RECORDS):
        yield b"%060d" % number


def metadata_values() -> Iterator[bytes]:
    """Write the log of a busy controller: four partition changes for each NoOp."""
    no_op = encode(NoOpRecord())
    for number in range(METADATA_RECORDS):
        if number % 5 == 0:
            yield no_op
        else:
            change = PartitionChangeRecord(
                partition_id=number % 1000,
                topic_id="I9iQnKeLSA2lyZwVZic7Xg",
                isr=(number % 7, 7, 8),
                leader=number % 7,
            )
            yield encode(change)


def session(jars: str = "") -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return (
        SparkSession.builder.master("local[2]")
        .appName("raftlog-benchmark")
        .config("spark.ui.enabled", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.jars", jars)
        .getOrCreate()
    )


def prebuild(source: RaftlogDataSource, schema: StructType, target: Path) -> Path:
    """Write the batches of each task of a raftlog read to an Arrow file."""
    target.mkdir()
    reader = source.reader(schema)
    assert isinstance(reader, RaftlogReader)
    for ordinal, partition in enumerate(reader.partitions()):
        batches = list(reader.read(partition))
        with pa.ipc.new_file(target / f"{ordinal}.arrow", batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
    return target


class Rounds:
    """Alternating writes of frames of the same number of rows, and the medians of their rates."""

    def __init__(self, spark: SparkSession, round_count: int) -> None:
        gateway: Any = spark.sparkContext._gateway
        self._jvm = gateway.proc.pid
        self._round_count = round_count

    def rates(self, frames: Sequence[DataFrame], row_count: int) -> list[tuple[float, float]]:
        """Return rows per second and per second of processor time of each frame."""
        for frame in frames:
            assert frame.count() == row_count
        taken: list[list[tuple[float, float]]] = [[] for _ in frames]
        for _ in range(WARM_ROUNDS + self._round_count):
            for frame, times in zip(frames, taken, strict=True):
                times.append(self._seconds(frame))
        medians = [
            map(statistics.median, zip(*times[WARM_ROUNDS:], strict=True)) for times in taken
        ]
        return [(row_count / wall, row_count / cpu) for wall, cpu in medians]

    def _seconds(self, frame: DataFrame) -> tuple[float, float]:
        before = processor_seconds(self._jvm)
        started = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        elapsed = time.perf_counter() - started
        return elapsed, processor_seconds(self._jvm) - before


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process and of its descendants, also of those that ended."""
    parents, ticks = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        parents[int(stat.parent.name)] = int(fields[1])
        ticks[int(stat.parent.name)] = sum(map(int, fields[11:15]))
    found, added = {pid}, {pid}
    while added:
        added = {child for child, parent in parents.items() if parent in added}
        found |= added
    return sum(ticks[one] for one in found) / os.sysconf("SC_CLK_TCK")


def rows_of(
    what: str, measured: tuple[float, float], against: tuple[float, float], other: str
) -> list[Row]:
    """Return the rows of the table: by wall time, and by processor time."""
    title = f"Spark batch read, {what}"
    return [
        row(title, measured[0], "rows/s", against[0], other),
        row(f"{title}, processor time of Spark", measured[1], "rows/s", against[1], other),
    ]


def compare(
    spark: SparkSession,
    rounds: Rounds,
    what: str,
    log: Path,
    columns: str | StructType,
    row_count: int,
    kind: str = "json",
) -> list[Row]:
    options = {"minPartitions": "2", "maxRecordsPerPartition": str(row_count), "columns": kind}
    measured = spark.read.format("raftlog").options(**options).schema(columns).load(str(log))
    source = RaftlogDataSource({"path": str(log), **{k.lower(): v for k, v in options.items()}})
    prebuilt = prebuild(source, measured.schema, Path(tempfile.mkdtemp(dir=log.parent)) / "batches")
    other = spark.read.format("prebuilt").schema(columns).load(str(prebuilt))
    against, rates = rounds.rates([other, measured], row_count)
    return rows_of(what, rates, against, "the same rows ready in Arrow")


def compare_with_kafka(spark: SparkSession, rounds: Rounds, home: Path) -> Iterator[Row]:
    """Measure reads of a topic by Spark's Kafka source, and of the running broker's files."""
    with running_node(home) as node:
        produce = ["--topic", KAFKA_TOPIC, "--num-records", str(PLAIN_RECORDS)]
        produce += ["--record-size", "60", "--throughput", "-1", "--producer-props"]
        produce += [f"bootstrap.servers={node.bootstrap}"]
        run_java(node.jars, "org.apache.kafka.tools.ProducerPerformance", *produce)
        for task_count in (1, 2):
            options = {"minPartitions": str(task_count)}
            kafka = spark.read.format("kafka").options(subscribe=KAFKA_TOPIC, **options)
            other = kafka.option("kafka.bootstrap.servers", node.bootstrap).load().select("value")
            options["maxRecordsPerPartition"] = str(PLAIN_RECORDS)
            log = node.log_dir / f"{KAFKA_TOPIC}-0"
            raftlog = spark.read.format("raftlog").options(**options)
            measured = raftlog.schema(VALUE).load(str(log))
            against, rates = rounds.rates([other, measured], PLAIN_RECORDS)
            what = f"values of a broker's topic, {task_count} task{'s' * (task_count > 1)}"
            yield from rows_of(what, rates, against, "Spark's Kafka source")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--kafka", action="store_true", help="also read from an Apache Kafka")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="raftlog-bench-") as home:
        plain = write_log(Path(home, "bench-0"), plain_values())
        metadata = write_log(Path(home, "__cluster_metadata-0"), metadata_values())
        spark = session(spark_jars(spark_kafka_source()) if arguments.kafka else "")
        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(RaftlogDataSource)
        spark.dataSource.register(PrebuiltSource)
        rounds = Rounds(spark, arguments.rounds)
        cases: list[tuple[str, Path, str | StructType, int, str]] = [
            ("value only", plain, VALUE, PLAIN_RECORDS, "json"),
            ("Kafka's columns", plain, KAFKA, PLAIN_RECORDS, "json"),
            ("metadata, value redacted", metadata, VALUE, METADATA_RECORDS, "json"),
            ("metadata, record as JSON", metadata, RECORD, METADATA_RECORDS, "json"),
            ("metadata, typed columns", metadata, TYPED, METADATA_RECORDS, "typed"),
        ]
        figures = [one for case in cases for one in compare(spark, rounds, *case)]
        if arguments.kafka:
            figures += compare_with_kafka(spark, rounds, Path(home))
        spark.stop()
    for figure in figures:
        if arguments.json:
            print(json.dumps(figure))
        else:
            share = figure["measured"] / figure["against"]
            print(
                f"{figure['what']:75} {figure['measured']:12,.0f} rows/s, {share:.2f} of "
                f"{figure['against']:,.0f}"
            )


if __name__ == "__main__":
    main()
