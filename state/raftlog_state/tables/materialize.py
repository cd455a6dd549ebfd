"""The stream from a log into the tables: where it begins, what it reads, when it publishes.

Rules of this file:

1. The source is named, ``format("raftlog")``, and never imported: the session knows it.
2. Where a stream begins is read from the tables. Spark's checkpoint only spares a second reading;
   each incarnation of the tables has its own.
3. Before a query is started, the log's epochs are compared with the tables'.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from raftlog.client import Isolation, LogReader, SourceKind
from raftlog.client.arguments import duration_ms
from raftlog.client.location import open_reader, parse_location
from raftlog.errors import DivergedLogError, OptionError, RaftlogError, WrongClusterError
from raftlog.limits import TAIL_HOLDBACK_MS_DEFAULT
from raftlog_state.errors import TablesError

from .batch import SOURCE_COLUMNS
from .progress import NOTHING, Progress
from .schema import LOG
from .store import DeltaStore, session_for_tables
from .writer import Writer

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

FORMAT: Final = "raftlog"
RECORDS_PER_BATCH_DEFAULT: Final = "100000"
"""One micro-batch is folded on the driver: this many records take it a second or two."""

AVAILABLE_NOW: Final = "availableNow"
_HOLDBACK: Final = "tailHoldback"
_LOGGER: Final = logging.getLogger("raftlog_state")

_OURS: Final = {
    "startingoffset": "the tables say where to begin",
    "startingoffsets": "the tables say where to begin",
    "startingtimestamp": "the tables say where to begin",
    "isolationlevel": "tables never hold what is not committed",
    "includecontrolrecords": "the tables need them",
    "includeabortedrecords": "the tables need them",
    "redact": "say it to open_cluster",
    "redactkey": "say it to open_cluster",
}
_UNITS_S: Final[Mapping[str, float]] = {
    **dict.fromkeys(("", "s", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
}
_DURATION: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.ASCII)


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


def seconds_between(publish_every: float | str | None) -> float:
    """What ``publish_every`` says, in seconds; 0 is every batch. Raises ``OptionError``."""
    if publish_every is None:
        return 0.0
    if isinstance(publish_every, str):
        match = _DURATION.fullmatch(publish_every.lower())
        if match is None or match[2] not in _UNITS_S:
            raise OptionError(
                option="publish_every", reason='must be seconds, or e.g. "30 seconds"'
            )
        return float(match[1]) * _UNITS_S[match[2]]
    if publish_every < 0:
        raise OptionError(option="publish_every", reason="must not be negative")
    return float(publish_every)


def read_source(
    spark: SparkSession, options: Mapping[str, str], redaction: Redaction, place: str
) -> DataFrame:
    """All rows that the tables need, as a batch frame. Raises ``TablesError``, ``OptionError``."""
    given = {**_needed(redaction), **options}
    try:
        return spark.read.format(FORMAT).options(**given).load().select(*SOURCE_COLUMNS)
    except PySparkException as error:
        raise _source_error(error, place) from error


def materialize(
    spark: SparkSession,
    store: DeltaStore,
    writer: Writer,
    path_or_options: str | Mapping[str, str],
    *,
    redaction: Redaction,
    checkpoint: str,
    trigger: str | Mapping[str, str] | None,
    publish_every: float | str | None,
) -> StreamingQuery:
    """Start the query; see ``ClusterTables.materialize``."""
    every_s = seconds_between(publish_every)
    kind = _trigger(trigger)
    options = _options(path_or_options)
    log = open_reader(parse_location(options))
    progress = writer.progress()
    check_same_log(store, progress, log)
    target_offset = end_of_run(log, options) if AVAILABLE_NOW in kind else None
    writer.publish()  # what an earlier run wrote and did not publish
    given = {
        "maxOffsetsPerTrigger": RECORDS_PER_BATCH_DEFAULT,
        **options,
        **_needed(redaction),
        "startingOffset": _starting_offset(store, progress, log, options),
    }
    sink = Sink(
        writer,
        session_for_tables(spark),
        log.cluster_id,
        publish_every_s=every_s,
        target_offset=target_offset,
    )
    try:
        rows = spark.readStream.format(FORMAT).options(**given).load()
        stream = rows.select(*SOURCE_COLUMNS).writeStream.foreachBatch(sink.write)
        location = f"{checkpoint.rstrip('/')}/incarnation-{progress.incarnation}"
        return stream.option("checkpointLocation", location).trigger(**kind).start()
    except PySparkException as error:
        raise _source_error(error, store.place) from error


class PublishSchedule:
    """When to publish what micro-batches have written. Times are seconds of one clock."""

    def __init__(self, every_s: float, target_offset: int | None) -> None:
        """``target_offset`` is the end of the run, exclusive; None if it continues."""
        self._every_s = every_s
        self._target_offset = target_offset
        self._published_at_s: float | None = None

    def is_due(self, now_s: float, next_offset: int) -> bool:
        """Return whether to publish after a batch; ``next_offset`` follows its last record."""
        target = self._target_offset
        return self.left_s(now_s) <= 0 or (target is not None and next_offset >= target)

    def left_s(self, now_s: float) -> float:
        """Return how long what is written may wait to be published; 0 if it may not."""
        if self._published_at_s is None:
            return 0
        return max(0, self._published_at_s + self._every_s - now_s)

    def published(self, now_s: float) -> None:
        self._published_at_s = now_s


Later = Callable[[float, Callable[[], None]], None]
"""Calls a function once, after so many seconds."""


def _later(delay_s: float, function: Callable[[], None]) -> None:
    timer = threading.Timer(delay_s, function)
    timer.daemon = True
    timer.start()


class Sink:
    """What is done with a micro-batch. Called by one thread of one query.

    What a batch leaves unpublished is published by a timer if no later batch does it: on a log
    without new records Spark calls nothing.
    """

    def __init__(
        self,
        writer: Writer,
        session: SparkSession,
        cluster_id: str | None,
        *,
        publish_every_s: float,
        target_offset: int | None,
        clock: Callable[[], float] = time.monotonic,
        later: Later = _later,
    ) -> None:
        self._writer = writer
        self._session = session
        self._cluster_id = cluster_id
        self._schedule = PublishSchedule(publish_every_s, target_offset)
        self._clock = clock
        self._later = later
        self._lock = threading.RLock()
        self._is_timer_set = False

    def write(self, rows: DataFrame, _batch_id: int) -> None:
        """Bring a micro-batch into the tables; publish if it is time, or the end of the run."""
        table = rows.toArrow()
        with self._lock, self._writer.in_session(self._session):
            self._writer.apply(table, self._cluster_id)
            if self._schedule.is_due(self._clock(), self._writer.progress().log_offset + 1):
                self._publish()
            else:
                self._set_timer()

    def _publish(self, *, look_again: bool = False) -> None:
        with self._writer.in_session(self._session):
            self._writer.publish(look_again=look_again)
        self._schedule.published(self._clock())

    def _set_timer(self) -> None:
        if not self._is_timer_set:
            self._is_timer_set = True
            self._later(self._schedule.left_s(self._clock()), self._publish_late)

    def _publish_late(self) -> None:
        with self._lock:
            self._is_timer_set = False
            if self._session.sparkContext._jsc is None:
                return  # Spark has been stopped; the next run publishes
            if self._schedule.left_s(self._clock()) > 0:
                self._set_timer()  # a batch has published meanwhile, and another may wait
                return
            try:
                self._publish(look_again=True)  # its query may have ended, and another writer begun
            except RaftlogError as error:  # the next batch, or the next run, publishes
                _LOGGER.warning("%s; publishing again with the next batch", error)


# --- is it the same log ---------------------------------------------------------------------------


def check_same_log(store: DeltaStore, progress: Progress, log: LogReader) -> None:
    """Compare cluster and leader epochs of tables and log.

    Raises:
        WrongClusterError: the log belongs to another cluster.
        DivergedLogError: the logs diverge below the end of the tables.
        TablesError: the log ends before the tables.
    """
    known, given = progress.cluster_id, log.cluster_id
    if known is not None and given is not None and known != given:
        raise WrongClusterError(path=log.path, expected_cluster_id=known, cluster_id=given)
    last = progress.log_offset
    if last == NOTHING or log.source is SourceKind.CHECKPOINT:
        return
    end_offset = log.log_end_offset
    theirs = log.epochs.end_offset_for(progress.log_epoch, end_offset)
    same = theirs is not None and theirs.epoch == progress.log_epoch and theirs.offset > last
    if same:
        return
    if log.source is SourceKind.VOTERS and end_offset <= last:
        return  # a voter's replica lags, and is compared when it has caught up
    epoch = log.epochs.epoch_at(last)
    if end_offset <= last and (theirs is None or theirs.epoch == progress.log_epoch):
        raise TablesError(
            place=store.place,
            reason=f"they contain offset {last}, but {log.path} ends before offset {end_offset}",
            remedy="use a more recent replica of the log; if it was truncated on purpose, call "
            f"truncate_to({end_offset - 1})",
        )
    raise _parted(store, progress, log, -1 if epoch is None else epoch)


def _parted(store: DeltaStore, progress: Progress, log: LogReader, epoch: int) -> DivergedLogError:
    """Return the error with the offset at which the logs diverge (KIP-101)."""
    theirs = log.epochs.end_offset_for(progress.log_epoch, log.log_end_offset)
    common = progress.log_offset
    if theirs is not None:
        offset, of = sf.col("offset"), sf.col("leader_epoch")
        mine = store.read(LOG).where(of <= theirs.epoch).agg(sf.max(offset)).collect()[0][0]
        common = min(theirs.offset, 0 if mine is None else mine + 1)
    return DivergedLogError(
        path=log.path,
        offset=progress.log_offset,
        expected_epoch=progress.log_epoch,
        epoch=epoch,
        remedy=f"the logs diverge at offset {common}: call truncate_to({common - 1}) and "
        "materialize again",
    )


def _starting_offset(
    store: DeltaStore, progress: Progress, log: LogReader, options: Mapping[str, str]
) -> str:
    """Return ``startingOffset`` of a stream without a checkpoint."""
    last, start_offset = progress.log_offset, log.log_start_offset
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
        place=store.place,
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
