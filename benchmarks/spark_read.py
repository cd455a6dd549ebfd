"""Rows per second of a Spark batch read, compared with the same rows prepared as Arrow batches.

Each figure is compared with a source that yields batches stored in an Arrow file: the upper bound
of a Python data source. Both write to Spark's ``noop`` sink in the same session, alternating, and
the best of several runs is used.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
from benchmarks.run import Row, row
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pyspark_raftlog import RaftlogDataSource
from pyspark_raftlog.reader import RaftlogReader
from raftlog.records import BatchBuilder
from raftlog_state.records import NoOpRecord, PartitionChangeRecord, encode
from raftlog_state.records.typed_columns import struct_type

PLAIN_RECORDS = 2_000_000
METADATA_RECORDS = 200_000
BATCH_RECORDS = 100
TIME_MS = 1_700_000_000_000
INDEX_INTERVAL_BYTES = 4096
"""As Kafka's own default."""
RUNS = 4
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


def session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return (
        SparkSession.builder.master("local[2]")
        .appName("raftlog-benchmark")
        .config("spark.ui.enabled", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.driver.host", "127.0.0.1")
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


def seconds(frame: DataFrame) -> float:
    started = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def compare(
    spark: SparkSession,
    what: str,
    log: Path,
    columns: str | StructType,
    row_count: int,
    kind: str = "json",
) -> Row:
    options = {"minPartitions": "2", "maxRecordsPerPartition": str(row_count), "columns": kind}
    measured = spark.read.format("raftlog").options(**options).schema(columns).load(str(log))
    source = RaftlogDataSource({"path": str(log), **{k.lower(): v for k, v in options.items()}})
    prebuilt = prebuild(source, measured.schema, Path(tempfile.mkdtemp(dir=log.parent)) / "batches")
    other = spark.read.format("prebuilt").schema(columns).load(str(prebuilt))
    assert measured.count() == other.count() == row_count
    best_measured = best_other = float("inf")
    for _ in range(RUNS):
        best_other = min(best_other, seconds(other))
        best_measured = min(best_measured, seconds(measured))
    return row(
        f"Spark batch read, {what}",
        row_count / best_measured,
        "rows/s",
        row_count / best_other,
        "the same rows ready in Arrow",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    as_json = parser.parse_args().json
    with tempfile.TemporaryDirectory(prefix="raftlog-bench-") as home:
        plain = write_log(Path(home, "bench-0"), plain_values())
        metadata = write_log(Path(home, "__cluster_metadata-0"), metadata_values())
        spark = session()
        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(RaftlogDataSource)
        spark.dataSource.register(PrebuiltSource)
        figures = [
            compare(spark, "value only", plain, VALUE, PLAIN_RECORDS),
            compare(spark, "Kafka's columns", plain, KAFKA, PLAIN_RECORDS),
            compare(spark, "metadata, value redacted", metadata, VALUE, METADATA_RECORDS),
            compare(spark, "metadata, record as JSON", metadata, RECORD, METADATA_RECORDS),
            compare(spark, "metadata, typed columns", metadata, TYPED, METADATA_RECORDS, "typed"),
        ]
        spark.stop()
    for figure in figures:
        if as_json:
            print(json.dumps(figure))
        else:
            share = figure["measured"] / figure["against"]
            print(
                f"{figure['what']:45} {figure['measured']:12,.0f} rows/s, {share:.2f} of "
                f"{figure['against']:,.0f}"
            )


if __name__ == "__main__":
    main()
