"""Errors of typical mistakes in a real Spark session: they contain the golden texts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

import pyspark_raftlog
from tests.golden_errors.golden import HERE, HOME
from tests.golden_errors.spark_mistakes import NODE, READS, STATEMENTS, Read, Write, writes

pytestmark = pytest.mark.spark


TEXTS_OF_DELTA = {'option("txnVersion", 5)': "Both txnVersion and txnAppId must be specified"}
"""Of mistakes that Delta's extension of the session finds first, in writes of any format."""


def golden_text(title: str) -> str:
    """Return the text of a mistake without the class, which Python's stack has."""
    kept = (HERE / "spark.txt").read_text()
    text = kept.partition(f">>> {title}\n")[2].partition("\n")[0].partition(": ")[2]
    assert text.startswith("[RAFTLOG_"), title
    return text


def load(spark: SparkSession, read: Read) -> None:
    reader = spark.read.format("raftlog").options(**read.options)
    if read.schema is not None:
        reader = reader.schema(read.schema)
    reader.load().count()


def assert_golden(spark: SparkSession, write: Write, directory: Path) -> None:
    with pytest.raises(PySparkException) as caught:
        save(spark, write)
    text = golden_text(f'frame.write.format("raftlog"), {write.code}')
    text = TEXTS_OF_DELTA.get(write.code, text)
    assert text in text_of(caught.value, directory), write.code


def save(spark: SparkSession, write: Write) -> None:
    frame = spark.createDataFrame([(write.value,)], write.schema)
    mode = "overwrite" if write.is_overwrite else "append"
    frame.write.format("raftlog").options(**write.options).mode(mode).save()


def text_of(error: PySparkException, directory: Path) -> str:
    """Return the text as the golden ones are written."""
    return str(error).replace(f"{HOME}/", "").replace(str(directory), "/tmp")


OF_EACH_FAMILY = {'load("/nope")', 'schema("offset int")'}
"""Reads of ``make test``: one is refused when it is planned, the other by its columns."""
WRITES_OF_EACH_FAMILY = {
    'mode("overwrite")',
    'option("requiredBaseOffset", 1)',
    'option("txnVersion", 5)',
}
"""Writes of ``make test``: refused by its mode, by its commit, and by Delta."""


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(
            read, marks=() if read.code in OF_EACH_FAMILY else pytest.mark.nightly, id=read.code
        )
        for read in READS
    ],
)
def test_a_read_fails_with_its_golden_text(spark: SparkSession, read: Read, tmp_path: Path) -> None:
    with pytest.raises(AnalysisException) as caught:
        load(spark, read)
    text = golden_text(f'spark.read.format("raftlog").{read.code}')
    assert text in text_of(caught.value, tmp_path)


def test_a_stream_fails_with_its_golden_text(spark: SparkSession, tmp_path: Path) -> None:
    stream = spark.readStream.format("raftlog").option("endingOffset", 5).load(NODE)
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(StreamingQueryException) as caught:
        writer.start().awaitTermination()
    text = golden_text('spark.readStream.option("endingOffset", 5)')
    assert text in text_of(caught.value, tmp_path)


def test_a_write_fails_with_its_golden_text(spark: SparkSession, tmp_path: Path) -> None:
    """The text of each mistake without a session is in ``test_golden_errors_of_the_source.py``."""
    found = [write for write in writes(tmp_path) if write.code in WRITES_OF_EACH_FAMILY]
    assert len(found) == len(WRITES_OF_EACH_FAMILY)
    for write in found:
        assert_golden(spark, write, tmp_path)


@pytest.mark.nightly
def test_any_write_fails_with_its_golden_text(spark: SparkSession, tmp_path: Path) -> None:
    for write in writes(tmp_path):
        assert_golden(spark, write, tmp_path)


@pytest.mark.nightly
def test_a_statement_fails_with_its_golden_text(spark: SparkSession, tmp_path: Path) -> None:
    pyspark_raftlog.register(spark)
    for statement in STATEMENTS:
        with pytest.raises(PySparkException) as caught:
            spark.sql(str(statement)).collect()
        text = golden_text(str(statement).replace(f"{HOME}/", ""))
        assert text in text_of(caught.value, tmp_path), str(statement)
