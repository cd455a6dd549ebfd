"""The stream from a log into the tables: its options, and what it reads.

Rules of this file:

1. The source is named, ``format("raftlog")``, and never imported: the session knows it.
2. A stream without a checkpoint begins at the end of the tables, and the writer skips rows that a
   checkpoint repeats. Each incarnation of the tables has its own checkpoint.
3. Before a query starts, the log's leader epochs are compared with the tables'.
4. Code that needs no Spark is in ``following``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from raftlog.client import LogReader
from raftlog.client.location import PATH
from raftlog.errors import OptionError, RaftlogError
from raftlog_state.errors import TablesError
from raftlog_state.records.internal_logs import INTERNAL_LOGS, topic_of

from .following import RECORDS_PER_BATCH_DEFAULT, BatchSink, check_same_log, next_offset
from .micro_batches import WriteBatch, batch_function
from .progress import Progress
from .source_options import SourceOptions
from .upkeep import Upkeep, UpkeepRunner
from .writer import Writer

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

FORMAT: Final = "raftlog"
AVAILABLE_NOW: Final = "availableNow"
_CAUSE: Final = re.compile(r"\[RAFTLOG_[^\n]*")
_REFUSED_OPTION: Final = re.compile(r"\[RAFTLOG_OPTION\] option ([^:\n]+): ([^\n]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Redaction:
    """What the source does to secrets before rows leave it."""

    redact: bool = True
    key: str | None = None

    def __repr__(self) -> str:
        return f"Redaction(redact={self.redact})"

    def options(self) -> dict[str, str]:
        """Return the source's options for it."""
        options = {"redact": "true" if self.redact else "false"}
        if self.key is not None:
            options["redactKey"] = self.key
        return options


def read_source(
    spark: SparkSession,
    options: Mapping[str, str],
    columns: Sequence[str],
    redaction: Redaction,
    place: str,
) -> DataFrame:
    """Return all rows of a log that the tables need. Raises ``TablesError``, ``OptionError``."""
    given = {**needed_options(redaction), **options}
    with source_errors(place):
        return spark.read.format(FORMAT).options(**given).load().select(*columns)


def collected(rows: DataFrame, place: str) -> pa.Table:
    """Return the rows of the source. Raises ``TablesError``."""
    with source_errors(place):
        return rows.toArrow()


def materialize(
    spark: SparkSession,
    place: str,
    writer: Writer,
    path_or_options: str | Mapping[str, str],
    *,
    open_writer: Callable[[SparkSession], Writer],
    redaction: Redaction,
    checkpoint: str,
    trigger: str | Mapping[str, str] | None,
    name: str | None,
) -> StreamingQuery:
    """Start the query; see ``ClusterTables.materialize``."""
    kind = trigger_options(trigger)
    options = SourceOptions.parse(path_or_options)
    log = options.open_log() if topic_of(options.location.path) is None else None
    if log is None or log.topic in INTERNAL_LOGS:
        raise OptionError(
            option=PATH,
            reason="names partitions of an internal log, which are logs of their own: use "
            "open_group(spark, tables, group).materialize([{...}])",
        )
    writer.forget()  # another writer may have truncated the tables since
    progress = writer.progress()
    check_same_log(place, progress, writer.epochs, log)
    target_offset = options.end_of_run(log) if AVAILABLE_NOW in kind else None
    given = {
        "maxOffsetsPerTrigger": str(RECORDS_PER_BATCH_DEFAULT),
        **options.given,
        **needed_options(redaction),
        "startingOffset": starting_offset(place, progress, log, options),
    }
    sink_of = partial(_sink_of, log.cluster_id, target_offset)
    write = batch_function(spark, writer, sink_of, open_writer)
    location = f"{checkpoint.rstrip('/')}/incarnation-{progress.incarnation}"
    with source_errors(place):
        rows = spark.readStream.format(FORMAT).options(**given).load()
        return started(rows.select(*writer.source_columns), write, location, kind, name)


def started(
    rows: DataFrame, write: WriteBatch, location: str, kind: Mapping[str, Any], name: str | None
) -> StreamingQuery:
    """Start a query that writes micro-batches; ``location`` is its checkpoint."""
    stream = rows.writeStream.foreachBatch(write).option("checkpointLocation", location)
    return stream.trigger(**kind).start(queryName=name)


def _sink_of(cluster_id: str | None, target_offset: int | None, writer: Writer) -> BatchSink:
    return BatchSink(writer, cluster_id, UpkeepRunner(writer, Upkeep(target_offset)))


def starting_offset(place: str, progress: Progress, log: LogReader, options: SourceOptions) -> str:
    """Return ``startingOffset`` of a stream without a checkpoint."""
    found = next_offset(place, progress, log, allows_gap=not options.fails_on_data_loss)
    if found is None:
        return "earliest" if log.topic in INTERNAL_LOGS else "snapshot"
    if found == 0:
        return "earliest"
    # Read one record again, if there is one, to detect a divergence.
    return str(max(found - 1, log.log_start_offset))


# --- options --------------------------------------------------------------------------------------


def needed_options(redaction: Redaction) -> dict[str, str]:
    """Return the options of the source that the tables need."""
    return {
        "includeControlRecords": "true",
        "includeAbortedRecords": "true",
        **redaction.options(),
    }


def trigger_options(trigger: str | Mapping[str, str] | None) -> dict[str, Any]:
    """Return the arguments of Spark's ``trigger``. Raises ``OptionError``."""
    if trigger is None:
        return {"processingTime": "0 seconds"}
    if isinstance(trigger, str):
        if trigger.lower() != AVAILABLE_NOW.lower():
            raise OptionError(
                option="trigger",
                reason='must be "availableNow", or a mapping such as '
                '{"processingTime": "10 seconds"}',
            )
        return {AVAILABLE_NOW: True}
    return dict(trigger)


@contextmanager
def source_errors(place: str) -> Iterator[None]:
    """Convert errors of the source in the block; Spark's errors contain their texts."""
    try:
        yield
    except PySparkException as error:
        raise _source_error(error, place) from error


def _source_error(error: PySparkException, place: str) -> RaftlogError:
    words = str(error)
    if "DATA_SOURCE_NOT_FOUND" in words:
        return TablesError(
            place=place,
            reason=f'this Spark session does not find format("{FORMAT}")',
            remedy="install raftlog in Spark's Python environment, or register the source with "
            "spark.dataSource.register(pyspark_raftlog.RaftlogDataSource)",
        )
    refused = _REFUSED_OPTION.search(words)
    if refused is not None:
        return OptionError(option=refused[1], reason=refused[2])
    cause = _CAUSE.search(words)
    reason = cause[0] if cause is not None else words.partition("\n")[0] or "no reason given"
    return TablesError(
        place=place,
        reason=f"the source failed: {reason}",
        remedy="fix the cause named above",
    )
