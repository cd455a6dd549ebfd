"""Errors of typical mistakes in Spark, as golden texts, from the calls that Spark makes.

Spark puts its condition and a stack of Python before each text (``tests/spark`` has both).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

import raftlog
from pyspark_raftlog import RaftlogDataSource, typed_error
from pyspark_raftlog.errors import RaftlogWriteError
from tests.golden_errors.golden import HOME, Mistake, call, check

LOGS = HOME / "tests" / "data" / "kraft-logs"
NODE = LOGS / "three-nodes-4.3.1" / "node-100"
TRIMMED = LOGS / "trimmed-3.9.2" / "node-1"
VALUE = StructType().add("value", StringType())


def plan(schema: StructType | None = None, /, **options: str) -> None:
    """Plan a batch read, as an action of a DataFrame does on the driver."""
    source = RaftlogDataSource(options)
    source.reader(schema or source.schema()).partitions()


def read(path: str, moved: Path) -> None:
    """Read a planned partition on a host that does not have the path."""
    source = RaftlogDataSource({"path": path})
    reader = source.reader(source.schema())
    (partition, *_) = reader.partitions()
    shutil.move(path, moved)
    list(reader.read(partition))


def save(
    schema: StructType = VALUE, *, overwrite: bool = False, value: object = "a", **options: str
) -> None:
    """Write one row, as a task and the driver do; raise the error that the text of Spark has."""
    try:
        writer = RaftlogDataSource(options).writer(schema, overwrite)
        rows = pa.RecordBatch.from_pydict({schema.names[0]: [value]})
        writer.commit([writer.write(iter([rows]))])
    except RaftlogWriteError as problem:
        error = typed_error(problem)
        assert error is not None
        raise error from None


def reads(tmp_path: Path) -> Iterator[Mistake]:
    """Yield mistakes of reads."""
    node = str(NODE)
    for code, fails in (
        ('load("/nope")', lambda: plan(path="/nope")),
        ('load("s3a://bucket/metadata")', lambda: plan(path="s3a://bucket/metadata")),
        ('load("dbfs:/metadata")', lambda: plan(path="dbfs:/metadata")),
        ('load("cluster")', lambda: plan(path=str(NODE.parent))),
        ("load()", lambda: plan()),
        ('option("startingVersion", 3)', lambda: plan(path=node, startingVersion="3")),
        ('option("startingOfset", 3)', lambda: plan(path=node, startingOfset="3")),
        ('option("startingOffset", "latest")', lambda: plan(path=node, startingOffset="latest")),
        (
            """option("startingOffsets", '{"__cluster_metadata":{"0":3000}}')""",
            lambda: plan(path=node, startingOffsets='{"__cluster_metadata":{"0":3000}}'),
        ),
        ('option("startingOffset", 99999)', lambda: plan(path=node, startingOffset="99999")),
        ('option("startingOffset", 1)', lambda: plan(path=str(TRIMMED), startingOffset="1")),
        ('option("minPartitions", "two")', lambda: plan(path=node, minPartitions="two")),
        ('option("requiredBaseOffset", 3)', lambda: plan(path=node, requiredBaseOffset="3")),
        (
            'option("kafka.bootstrap.servers", ...).load("node-100")',
            lambda: plan(**{"path": node, "kafka.bootstrap.servers": "localhost:1"}),
        ),
        (
            'option("kafka.security.protocol", "SASL_SSL").load("node-100")',
            lambda: plan(**{"path": node, "kafka.security.protocol": "SASL_SSL"}),
        ),
        ('schema("foo string")', lambda: plan(StructType().add("foo", StringType()), path=node)),
        ('schema("ofset bigint")', lambda: plan(StructType().add("ofset", LongType()), path=node)),
        (
            'schema("offset int")',
            lambda: plan(StructType().add("offset", IntegerType()), path=node),
        ),
        (
            'schema("controlType string")',
            lambda: plan(StructType().add("controlType", StringType()), path=node),
        ),
    ):
        yield call(f'spark.read.format("raftlog").{code}', fails)
    only = str(shutil.copytree(NODE, tmp_path / "only-on-the-driver"))
    yield call("# a task on an executor without the path", lambda: read(only, tmp_path / "moved"))
    source = RaftlogDataSource({"path": node, "endingOffset": "5"})
    yield call(
        'spark.readStream.option("endingOffset", 5)', lambda: source.streamReader(source.schema())
    )


def writes(tmp_path: Path) -> Iterator[Mistake]:
    """Yield mistakes of writes."""
    log = str(tmp_path / "decisions-0")
    raftlog.open(log).close()
    save(path=log)
    number = StructType().add("value", IntegerType())
    cases: tuple[tuple[str, Callable[[], object]], ...] = (
        ('mode("overwrite")', lambda: save(overwrite=True, path=log)),
        ('save("none-0")', lambda: save(path=str(tmp_path / "none-0"))),
        ('save("node-100")', lambda: save(path=str(NODE))),
        ('option("requiredBaseOffset", 1)', lambda: save(path=log, requiredBaseOffset="1")),
        ('option("requiredBaseOfset", 1)', lambda: save(path=log, requiredBaseOfset="1")),
        ('option("requiredEpoch", 9)', lambda: save(path=log, requiredEpoch="9")),
        ('option("startingOffset", 1)', lambda: save(path=log, startingOffset="1")),
        ('option("txnVersion", 5)', lambda: save(path=log, txnVersion="5")),
        (
            'option("maxBytesPerCommit", 80)',
            lambda: save(value="a" * 99, path=log, maxBytesPerCommit="80"),
        ),
        ("column val", lambda: save(StructType().add("val", StringType()), path=log)),
        ("column value of integers", lambda: save(number, value=1, path=log)),
    )
    for code, fails in cases:
        yield call(f'frame.write.format("raftlog"), {code}', fails)


def test_each_typical_mistake_in_spark_has_its_text(tmp_path: Path) -> None:
    check("spark.txt", chain(reads(tmp_path), writes(tmp_path)), {str(tmp_path): "/tmp"})
