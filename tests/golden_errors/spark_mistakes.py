"""Typical mistakes in Spark: options, columns and paths of reads and writes; calls in SQL.

Two tests use them: one has the golden texts, of the calls that Spark makes; the other compares them
with the errors of a real session.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql.types import IntegerType, LongType, StringType, StructType

import raftlog
from pyspark_raftlog.table_functions import RaftlogChanges, RaftlogState
from tests.golden_errors.golden import HOME

LOGS: Final = HOME / "tests" / "data" / "kraft-logs"
NODE: Final = str(LOGS / "three-nodes-4.3.1" / "node-100")
TRIMMED: Final = str(LOGS / "trimmed-3.9.2" / "node-1")
VALUE: Final = StructType().add("value", StringType())


class Read(NamedTuple):
    """Batch read that fails. ``code`` follows ``spark.read.format("raftlog").``"""

    code: str
    options: dict[str, str]
    schema: StructType | None = None


class Write(NamedTuple):
    """Write of one row that fails. ``code`` follows ``frame.write.format("raftlog"), ``"""

    code: str
    options: dict[str, str]
    schema: StructType = VALUE
    value: object = "a"
    is_overwrite: bool = False


class Statement(NamedTuple):
    """Statement in SQL that fails: a call of a table function, with its arguments by name."""

    function: type[RaftlogState] | type[RaftlogChanges]
    arguments: dict[str, object]

    def __str__(self) -> str:
        listed = (f"{name} => {_sql(value)}" for name, value in self.arguments.items())
        return f"SELECT * FROM {self.function.NAME}({', '.join(listed)})"


def _sql(value: object) -> str:
    if isinstance(value, Mapping):
        return f"map({', '.join(_sql(one) for pair in value.items() for one in pair)})"
    if value is None:
        return "NULL"
    return f"'{value}'" if isinstance(value, str) else str(value)


READS: Final = (
    Read('load("/nope")', {"path": "/nope"}),
    Read('load("https://bucket/metadata")', {"path": "https://bucket/metadata"}),
    Read('load("s3a://AKIA:...@bucket/metadata")', {"path": "s3a://AKIA:5ecret@bucket/metadata"}),
    Read('load("dbfs:/metadata")', {"path": "dbfs:/metadata"}),
    Read('load("cluster")', {"path": str(Path(NODE).parent)}),
    Read("load()", {}),
    Read('option("startingVersion", 3)', {"path": NODE, "startingVersion": "3"}),
    Read('option("startingOfset", 3)', {"path": NODE, "startingOfset": "3"}),
    Read('option("startingOffset", "latest")', {"path": NODE, "startingOffset": "latest"}),
    Read(
        """option("startingOffsets", '{"__cluster_metadata":{"0":3000}}')""",
        {"path": NODE, "startingOffsets": '{"__cluster_metadata":{"0":3000}}'},
    ),
    Read('option("startingOffset", 99999)', {"path": NODE, "startingOffset": "99999"}),
    Read('option("startingOffset", 1)', {"path": TRIMMED, "startingOffset": "1"}),
    Read('option("minPartitions", "two")', {"path": NODE, "minPartitions": "two"}),
    Read('option("requiredBaseOffset", 3)', {"path": NODE, "requiredBaseOffset": "3"}),
    Read(
        'option("kafka.bootstrap.servers", ...).load("node-100")',
        {"path": NODE, "kafka.bootstrap.servers": "localhost:1"},
    ),
    Read(
        'option("kafka.security.protocol", "SASL_SSL").load("node-100")',
        {"path": NODE, "kafka.security.protocol": "SASL_SSL"},
    ),
    Read('schema("foo string")', {"path": NODE}, StructType().add("foo", StringType())),
    Read('schema("ofset bigint")', {"path": NODE}, StructType().add("ofset", LongType())),
    Read('schema("offset int")', {"path": NODE}, StructType().add("offset", IntegerType())),
    Read(
        'schema("controlType string")',
        {"path": NODE},
        StructType().add("controlType", StringType()),
    ),
)


NODES: Final = {"bootstrap.servers": "localhost:1"}
STATEMENTS: Final = (
    Statement(RaftlogState, {"path": "/nope", "table": "topics"}),
    Statement(RaftlogState, {"path": NODE}),
    Statement(RaftlogState, {"path": NODE, "table": "topic"}),
    Statement(RaftlogState, {"path": NODE, "table": "topics", "at": "yesterday"}),
    Statement(RaftlogState, {"path": NODE, "table": "topics", "at": None}),
    Statement(RaftlogState, {"path": NODE, "table": "topics", "options": {"startingOffset": "5"}}),
    Statement(
        RaftlogState, {"table": "topics", "options": {**NODES, "kafka.sasl.password": "5ecret"}}
    ),
    Statement(RaftlogChanges, {"path": NODE, "since": 5}),
    Statement(RaftlogChanges, {"path": NODE, "from": 900, "to": 5}),
    Statement(RaftlogChanges, {"path": NODE, "table": "topics", "name": "broker/3"}),
)


def log_of_one_record(directory: Path) -> str:
    """Create a log with one record; return its path."""
    path = str(directory / "decisions-0")
    with raftlog.open(path) as log:
        log.append([b"a"])
    return path


def writes(directory: Path) -> tuple[Write, ...]:
    """Return writes to a log with one record, which is created in the directory."""
    log = log_of_one_record(directory)
    return (
        Write('mode("overwrite")', {"path": log}, is_overwrite=True),
        Write('save("none-0")', {"path": str(directory / "none-0")}),
        Write('save("node-100")', {"path": NODE}),
        Write('option("requiredBaseOffset", 1)', {"path": log, "requiredBaseOffset": "1"}),
        Write('option("requiredBaseOfset", 1)', {"path": log, "requiredBaseOfset": "1"}),
        Write('option("requiredEpoch", 9)', {"path": log, "requiredEpoch": "9"}),
        Write('option("startingOffset", 1)', {"path": log, "startingOffset": "1"}),
        Write('option("txnVersion", 5)', {"path": log, "txnVersion": "5"}),
        Write(
            'option("maxBytesPerCommit", 80)',
            {"path": log, "maxBytesPerCommit": "80"},
            value="a" * 99,
        ),
        Write("column val", {"path": log}, StructType().add("val", StringType())),
        Write(
            "column value of integers", {"path": log}, StructType().add("value", IntegerType()), 1
        ),
    )
