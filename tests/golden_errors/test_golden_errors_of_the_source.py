"""Errors of typical mistakes in Spark, as golden texts, from the calls that Spark makes.

Spark puts its condition and a stack of Python before each text; ``test_golden_errors_spark`` makes
the same mistakes in a session.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pyarrow as pa

from pyspark_raftlog import RaftlogDataSource, typed_error
from pyspark_raftlog.errors import RaftlogWriteError
from tests.golden_errors.golden import Mistake, call, check
from tests.golden_errors.spark_mistakes import NODE, READS, STATEMENTS, Read, Write, writes
from tests.support.table_functions import called


def source_of(options: Mapping[str, str]) -> RaftlogDataSource:
    """Return the source with options as Spark passes them, their names in lower case."""
    return RaftlogDataSource({name.lower(): value for name, value in options.items()})


def plan(read: Read) -> None:
    """Plan a batch read, as an action of a DataFrame does on the driver."""
    source = source_of(read.options)
    source.reader(read.schema or source.schema()).partitions()


def read_moved(options: Mapping[str, str], path: Path) -> None:
    """Read a planned partition on a host that does not have the path."""
    source = source_of(options)
    reader = source.reader(source.schema())
    (partition, *_) = reader.partitions()
    shutil.rmtree(path)
    list(reader.read(partition))


def save(write: Write) -> None:
    """Write one row, as a task and the driver do; raise the error that the text of Spark has."""
    try:
        writer = source_of(write.options).writer(write.schema, write.is_overwrite)
        rows = pa.RecordBatch.from_pydict({write.schema.names[0]: [write.value]})
        writer.commit([writer.write(iter([rows]))])
    except RaftlogWriteError as problem:
        error = typed_error(problem)
        assert error is not None
        raise error from None


def mistakes(tmp_path: Path) -> Iterator[Mistake]:
    """Yield reads, then writes, then calls in SQL."""
    for read in READS:
        yield call(f'spark.read.format("raftlog").{read.code}', partial(plan, read))
    only = tmp_path / "only-on-the-driver"
    for what, options in (
        ("", {"path": str(only)}),
        (", of sources", {"sources": json.dumps([{"path": str(only)}])}),
    ):
        shutil.copytree(NODE, only)
        title = f"# a task on an executor without the path{what}"
        yield call(title, partial(read_moved, options, only))
    source = source_of({"path": NODE, "endingOffset": "5"})
    yield call(
        'spark.readStream.option("endingOffset", 5)', lambda: source.streamReader(source.schema())
    )
    for write in writes(tmp_path):
        yield call(f'frame.write.format("raftlog"), {write.code}', partial(save, write))
    for statement in STATEMENTS:
        yield call(str(statement), partial(called, statement.function, **statement.arguments))


def test_each_typical_mistake_in_spark_has_its_text(tmp_path: Path) -> None:
    check("spark.txt", mistakes(tmp_path), {str(tmp_path): "/tmp"})
