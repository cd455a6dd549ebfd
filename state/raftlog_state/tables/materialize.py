"""The stream from a log into the tables: where it begins, what it reads, when it publishes.

Rules of this file:

1. The source is named, ``format("raftlog")``, and never imported: the session knows it.
2. Where a stream begins is read from the tables. Spark's checkpoint only spares a second reading;
   each incarnation of the tables has its own.
3. Before a query is started, the log's epochs are compared with the tables'.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from raftlog.client import Isolation, LogReader, SourceKind
from raftlog.client.arguments import duration_ms
from raftlog.client.location import open_reader, parse_location
from raftlog.errors import DivergedLogError, OptionError, RaftlogError, WrongClusterError
from raftlog.limits import TAIL_HOLDBACK_MS_DEFAULT
from raftlog_state.errors import TablesError

from .batch import SOURCE_COLUMNS
from .progress import NOTHING, Progress
from .writer import EpochRange, Writer

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

FORMAT: Final = "raftlog"
RECORDS_PER_BATCH_DEFAULT: Final = "100000"
"""One micro-batch is folded on the driver: this many records take it a second or two."""

AVAILABLE_NOW: Final = "availableNow"
_HOLDBACK: Final = "tailHoldback"
_LOGGER: Final = logging.getLogger("raftlog_state")

_OURS: Final = {
    "startingoffset": "the stream begins at the end of the tables",
    "startingoffsets": "the stream begins at the end of the tables",
    "startingtimestamp": "the stream begins at the end of the tables",
    "isolationlevel": "tables never hold what is not committed",
    "includecontrolrecords": "the tables need them",
    "includeabortedrecords": "the tables need them",
    "redact": "it is an argument of open_cluster",
    "redactkey": "it is an argument of open_cluster",
}
MERGE_INTERVAL_S: Final = 60.0
MERGE_ROWS_MAX: Final = 50_000
COMPACT_APPENDS: Final = 200
VACUUM_INTERVAL_S: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Redaction:
    """What the source does to secrets before any row leaves it."""

    redact: bool = True
    key: str | None = None

    def __repr__(self) -> str:
        return f"Redaction(redact={self.redact})"

    def options(self) -> dict[str, str]:
        """As options of the source."""
        options = {"redact": "true" if self.redact else "false"}
        if self.key is not None:
            options["redactKey"] = self.key
        return options


def read_source(
    spark: SparkSession, options: Mapping[str, str], redaction: Redaction, place: str
) -> DataFrame:
    """All rows that the tables need, as a batch frame. Raises ``TablesError``, ``OptionError``."""
    given = {**_needed(redaction), **options}
    try:
        return spark.read.format(FORMAT).options(**given).load().select(*SOURCE_COLUMNS)
    except PySparkException as error:
        raise _source_error(error, place) from error


def collected(rows: DataFrame, place: str) -> pa.Table:
    """Return the rows of the source. Raises ``TablesError``."""
    try:
        return rows.toArrow()
    except PySparkException as error:
        raise _source_error(error, place) from error


def materialize(
    spark: SparkSession,
    place: str,
    writer: Writer,
    path_or_options: str | Mapping[str, str],
    *,
    redaction: Redaction,
    checkpoint: str,
    trigger: str | Mapping[str, str] | None,
) -> StreamingQuery:
    """Start the query; see ``ClusterTables.materialize``."""
    kind = _trigger(trigger)
    options = _options(path_or_options)
    log = open_reader(parse_location(options))
    writer.forget()  # another writer may have truncated the tables since
    progress = writer.progress()
    check_same_log(place, progress, writer.epochs(), log)
    target_offset = end_of_run(log, options) if AVAILABLE_NOW in kind else None
    given = {
        "maxOffsetsPerTrigger": RECORDS_PER_BATCH_DEFAULT,
        **options,
        **_needed(redaction),
        "startingOffset": _starting_offset(place, progress, log, options),
    }
    sink = Sink(writer, log.cluster_id, Upkeep(target_offset))
    try:
        rows = spark.readStream.format(FORMAT).options(**given).load()
        stream = rows.select(*SOURCE_COLUMNS).writeStream.foreachBatch(sink.write)
        location = f"{checkpoint.rstrip('/')}/incarnation-{progress.incarnation}"
        return stream.option("checkpointLocation", location).trigger(**kind).start()
    except PySparkException as error:
        raise _source_error(error, place) from error


class Upkeep:
    """When to merge changes into ``state``, to compact and to vacuum, in seconds of one clock."""

    def __init__(self, target_offset: int | None) -> None:
        """``target_offset`` is the end of the run, exclusive; None if it continues."""
        self._target_offset = target_offset
        self._merged_at_s: float | None = None
        self._vacuumed_at_s: float | None = None
        self._append_count = 0

    def appended(self) -> None:
        self._append_count += 1

    def is_merge_due(self, now_s: float, next_offset: int, unmerged_row_count: int) -> bool:
        """Return whether to merge after a batch; ``next_offset`` follows its last record."""
        if self._merged_at_s is None:
            self._merged_at_s = now_s
        is_end = self._target_offset is not None and next_offset >= self._target_offset
        is_late = now_s - self._merged_at_s >= MERGE_INTERVAL_S
        return is_end or is_late or unmerged_row_count >= MERGE_ROWS_MAX

    def merged(self, now_s: float) -> None:
        self._merged_at_s = now_s

    def is_vacuum_due(self, now_s: float) -> bool:
        """Return whether to delete old files; a run that is shorter than the interval does not."""
        if self._vacuumed_at_s is None:
            self._vacuumed_at_s = now_s
        return now_s - self._vacuumed_at_s >= VACUUM_INTERVAL_S

    def vacuumed(self, now_s: float) -> None:
        self._vacuumed_at_s = now_s

    def is_compaction_due(self) -> bool:
        """Return whether many small files have been appended."""
        return self._append_count >= COMPACT_APPENDS

    def compacted(self) -> None:
        self._append_count = 0


class Sink:
    """Writes micro-batches of one query. Called by one thread."""

    def __init__(
        self,
        writer: Writer,
        cluster_id: str | None,
        upkeep: Upkeep,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer = writer
        self._cluster_id = cluster_id
        self._upkeep = upkeep
        self._clock = clock

    def write(self, rows: DataFrame, _batch_id: int) -> None:
        """Append a micro-batch to the tables, which publishes it; then do what upkeep is due."""
        table = rows.toArrow()
        if self._writer.apply(table, self._cluster_id):
            self._upkeep.appended()
        try:
            self._keep_up()
        except TablesError as error:  # the batch is published; the next one tries again
            _LOGGER.warning("%s; retrying after the next micro-batch", error)

    def _keep_up(self) -> None:
        next_offset = self._writer.progress().next_offset
        unmerged_row_count = self._writer.unmerged_row_count()
        if self._upkeep.is_merge_due(self._clock(), next_offset, unmerged_row_count):
            self._writer.merge_state()
            self._upkeep.merged(self._clock())
        if self._upkeep.is_compaction_due():
            self._writer.compact()
            self._upkeep.compacted()
        if self._upkeep.is_vacuum_due(self._clock()):
            self._writer.vacuum()
            self._upkeep.vacuumed(self._clock())


# --- is it the same log ---------------------------------------------------------------------------


def check_same_log(
    place: str, progress: Progress, epochs: Sequence[EpochRange], log: LogReader
) -> None:
    """Compare cluster and leader epochs of tables and log. ``epochs``: those of the tables.

    Raises:
        WrongClusterError: the log belongs to another cluster.
        DivergedLogError: the logs diverge below the end of the tables.
        TablesError: the log ends before the tables.
    """
    known, given = progress.log_cluster_id, log.cluster_id
    if known is not None and given is not None and known != given:
        raise WrongClusterError(path=log.path, expected_cluster_id=known, cluster_id=given)
    last = progress.offset
    if last == NOTHING or log.source is SourceKind.CHECKPOINT:
        return
    end_offset = log.log_end_offset
    theirs = log.epochs.end_offset_for(progress.leader_epoch, end_offset)
    same = theirs is not None and theirs.epoch == progress.leader_epoch and theirs.offset > last
    if same:
        return
    if log.source is SourceKind.VOTERS and end_offset <= last:
        return  # a voter's replica lags, and is compared when it has caught up
    epoch = log.epochs.epoch_at(last)
    if end_offset <= last and (theirs is None or theirs.epoch == progress.leader_epoch):
        raise TablesError(
            place=place,
            reason=f"they contain offset {last}, but {log.path} ends before offset {end_offset}",
            remedy="use a more recent replica of the log; if it was truncated on purpose, call "
            f"truncate_to({end_offset - 1})",
        )
    raise _diverged(progress, epochs, log, -1 if epoch is None else epoch)


def _diverged(
    progress: Progress, epochs: Sequence[EpochRange], log: LogReader, epoch: int
) -> DivergedLogError:
    """Return the error with the offset at which the logs diverge (KIP-101)."""
    theirs = log.epochs.end_offset_for(progress.leader_epoch, log.log_end_offset)
    common = progress.next_offset
    if theirs is not None:
        ends = (last + 1 for known, _, last in epochs if known <= theirs.epoch)
        common = min(theirs.offset, max(ends, default=0))
    return DivergedLogError(
        path=log.path,
        offset=progress.offset,
        expected_epoch=progress.leader_epoch,
        epoch=epoch,
        remedy=f"the logs diverge at offset {common}: call truncate_to({common - 1}) and "
        "materialize again",
    )


def _starting_offset(
    place: str, progress: Progress, log: LogReader, options: Mapping[str, str]
) -> str:
    """Return ``startingOffset`` of a stream without a checkpoint."""
    last, start_offset = progress.offset, log.log_start_offset
    if log.source is SourceKind.CHECKPOINT:
        return "snapshot"
    if last == NOTHING:
        return "earliest" if start_offset == 0 else "snapshot"
    if last >= start_offset:
        return str(last)  # reads one record again, to detect a divergence
    if last + 1 == start_offset:
        return str(start_offset)
    accepted = {name.lower(): value for name, value in options.items()}.get("failondataloss")
    if accepted is not None and accepted.lower() == "false":
        return "snapshot"
    raise TablesError(
        place=place,
        reason=f"they end at offset {last}, but {log.path} begins at offset {start_offset}",
        remedy="use a replica with older records; or accept a gap in history: load the newest "
        "snapshot with bootstrap, or set failOnDataLoss=false",
    )


# --- options --------------------------------------------------------------------------------------


def _needed(redaction: Redaction) -> dict[str, str]:
    return {
        "includeControlRecords": "true",
        "includeAbortedRecords": "true",
        **redaction.options(),
    }


def _options(path_or_options: str | Mapping[str, str]) -> dict[str, str]:
    if isinstance(path_or_options, str):
        return {"path": path_or_options}
    for name in path_or_options:
        reason = _OURS.get(name.lower())
        if reason is not None:
            raise OptionError(option=name, reason=f"cannot be set here: {reason}")
    parse_location(path_or_options)  # raises if none is named
    return {name: str(value) for name, value in path_or_options.items()}


def _trigger(trigger: str | Mapping[str, str] | None) -> dict[str, Any]:
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


def end_of_run(log: LogReader, options: Mapping[str, str]) -> int:
    """Where a run that begins now will end at least, exclusive. Raises ``OptionError``."""
    given = {name.lower(): value for name, value in options.items()}.get("tailholdback")
    return log.read_end(
        isolation=Isolation.READ_COMMITTED,
        holdback_ms=TAIL_HOLDBACK_MS_DEFAULT if given is None else duration_ms(_HOLDBACK, given),
        now_ms=time.time_ns() // 1_000_000,
    ).offset


def _source_error(error: PySparkException, place: str) -> RaftlogError:
    words = str(error)
    if "DATA_SOURCE_NOT_FOUND" in words:
        return TablesError(
            place=place,
            reason=f'this Spark session does not find format("{FORMAT}")',
            remedy="install raftlog in Spark's Python environment, or register the source with "
            "spark.dataSource.register(pyspark_raftlog.RaftlogDataSource)",
        )
    return TablesError(
        place=place,
        reason=f"the source failed: {words.splitlines()[0] if words else 'no reason given'}",
        remedy="fix the cause named above",
    )
