"""``open_group``: one streaming query that writes many logs into their clusters' tables.

Rules of this file:

1. Each log is read from the end of its cluster's tables. A checkpoint is used as long as the logs,
   their starts and their clusters' incarnations are the same; otherwise the query begins without
   it. A checkpoint that was not used for a while therefore cannot request deleted offsets.
2. If rows of a cluster are rejected, the query ends after it has published the other clusters'
   rows. The micro-batch is repeated when the query is started again.
3. Tables that have missed deleted records of an internal log get the state of the whole log, which
   is read here before the query begins: a running query reads records before they are deleted. It
   may be that no record after the tables' end can be read at that time, because all were deleted or
   the others are younger than the holdback. The state is then built from the records before the
   end, which are kept in memory until then, and from the first micro-batch with new rows of the
   log.
4. A log that cannot be opened when the query is started is left out, with a warning.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from raftlog.client import LogReader
from raftlog.client.location import PATH
from raftlog.clock import Clock
from raftlog.errors import LogNotFoundError, OptionError, RaftlogError
from raftlog_state.errors import ClustersFailedError
from raftlog_state.records import Redactor
from raftlog_state.records.internal_logs import INTERNAL_LOGS, is_internal, log_id_of

from .batch import with_positions
from .cluster import Engine, open_writer
from .cluster_rows import Step, no_step
from .following import (
    RECORDS_PER_BATCH_DEFAULT,
    check_same_log,
    isolation_of,
    partitions_of,
)
from .group_writer import GroupWriter
from .log_follower import DecodedValues, FollowSettings, LogTail, row_settings
from .materialize import (
    AVAILABLE_NOW,
    FORMAT,
    Redaction,
    needed_options,
    source_errors,
    started,
    starting_offset,
    trigger_options,
)
from .micro_batches import batch_function
from .source_options import SOURCE_CLUSTER_ID, SourceOptions
from .stored_rows import rows_by
from .stores.protocol import filtered
from .stores.spark import SparkStore, for_each
from .upkeep import GROUP_MERGE_ROWS_MAX, Upkeep, UpkeepRunner

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_LOGGER: Final = logging.getLogger("raftlog_state")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLog:
    """A log of the group: its options, where it is read from, and where this run ends.

    ``earlier`` contains all rows of an internal log if the tables have missed deleted records of it
    and all of these rows are before the tables' end.
    """

    options: Mapping[str, str]
    cluster_id: str
    incarnation: int
    next_offset: int
    log_start_offset: int
    earlier: pa.Table | None
    target_offset: int
    is_at_target: bool


class ClusterGroup:
    """Tables of clusters that one streaming query writes, returned by ``open_group``."""

    def __init__(
        self,
        spark: SparkSession,
        path_or_schema: str,
        group: str,
        *,
        redaction: Redaction,
        after_step: Step,
        log: bool,
        engine: Engine,
        take_over: bool,
    ) -> None:
        self._spark = spark
        self._store = SparkStore(spark, path_or_schema)
        self._redaction = redaction
        self._open_writer = partial(
            open_writer,
            GroupWriter,
            path_or_schema,
            engine,
            after_step,
            group=group,
            take_over=take_over,
            writes_log=log,
        )
        self._writer = self._open_writer(spark)
        self._whole_log = Lock()
        """Logs are opened in several threads. One at a time reads a whole log and appends it."""

    def __repr__(self) -> str:
        return f"ClusterGroup({self._store.place!r})"

    def materialize(
        self,
        sources: Sequence[Mapping[str, str]] | DataFrame,
        *,
        checkpoint: str,
        trigger: str | Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> StreamingQuery:
        """Write the logs of many clusters to the tables, as one streaming query.

        Each micro-batch is published for all clusters by one append. Each cluster continues at the
        end of its tables, regardless of the checkpoint.

        Args:
            sources: options of each log: a location and, if the files or nodes do not contain the
                cluster id, ``clusterId``; or a frame with a column for each option. A path can be a
                partition of an internal log, or a pattern of several, such as
                ``/var/lib/kafka/__consumer_offsets-*``.
            checkpoint: directory for Spark's checkpoints. It can be deleted between two runs.
            trigger: as for ``ClusterTables.materialize``.
            options: options of the source that all logs share, such as ``maxOffsetsPerTrigger``.
            name: as for ``ClusterTables.materialize``.

        Raises:
            TablesError: the session cannot find the source, or there is a gap between a cluster's
                tables and its log.
            WrongClusterError, DivergedLogError: the tables were not created from these logs.
            OptionError: an option is invalid or cannot be set here, two logs belong to one cluster,
                or no log can be opened.

        The query ends with ``ClustersFailedError`` if rows of clusters are rejected.
        """
        kind = trigger_options(trigger)
        shared = {name: str(value) for name, value in (options or {}).items()}
        self._writer.forget()  # other writers may have truncated the tables since
        logs = self._logs(_given(sources), shared)
        sink_of = partial(_sink_of, logs, AVAILABLE_NOW in kind)
        write = batch_function(self._spark, self._writer, sink_of, self._open_writer)
        given = {
            "maxOffsetsPerTrigger": str(RECORDS_PER_BATCH_DEFAULT),
            **shared,
            **needed_options(self._redaction),
            "sources": json.dumps([dict(log.options) for log in logs]),
        }
        location = f"{checkpoint.rstrip('/')}/{_checkpoint_name(logs)}"
        with source_errors(self._store.place):
            rows = self._spark.readStream.format(FORMAT).options(**given).load()
            wanted = rows.select(SOURCE_CLUSTER_ID, *self._writer.source_columns)
            return started(wanted, write, location, kind, name)

    def _logs(
        self, sources: Sequence[Mapping[str, str]], shared: Mapping[str, str]
    ) -> list[GroupLog]:
        """Open the logs, and find the offset at which each one continues its cluster's tables."""
        found: dict[str, GroupLog] = {}
        each = [one for source in sources for one in _partitions(source)]
        for log in for_each(partial(self._log_of, shared=shared), each):
            if log is not None:
                if log.cluster_id in found:
                    reason = f"two logs are of cluster {log.cluster_id}"
                    raise OptionError(option="sources", reason=reason)
                found[log.cluster_id] = log
        if not found:
            raise OptionError(option="sources", reason="contains no log that can be opened")
        return [found[name] for name in sorted(found)]

    def _log_of(self, source: Mapping[str, str], *, shared: Mapping[str, str]) -> GroupLog | None:
        own = {name: str(value) for name, value in source.items()}
        names = {name.lower() for name in own}
        others = {name: value for name, value in shared.items() if name.lower() not in names}
        options = SourceOptions.parse({**others, **own})
        try:
            log = options.open_log()
            target_offset = options.end_of_run(log)
        except RaftlogError as error:
            if not error.retriable and not isinstance(error, LogNotFoundError):
                raise
            _LOGGER.warning("%s; this log is left out of the query", error)
            return None
        cluster_id = options.text(SOURCE_CLUSTER_ID) or log.cluster_id
        if cluster_id is None:
            reason = f"the cluster id of {log.path} is unknown; give clusterId with this source"
            raise OptionError(option="sources", reason=reason)
        if log.topic in INTERNAL_LOGS:
            cluster_id = log_id_of(cluster_id, log.topic, log.partition)
            own = {name: value for name, value in own.items() if not _is_cluster_id(name)}
            own |= {SOURCE_CLUSTER_ID: cluster_id, "isolationLevel": isolation_of(log).value}
        place, writer = self._store.place, self._writer
        progress = writer.progress(cluster_id)
        check_same_log(place, progress, lambda: writer.epochs(cluster_id), log)
        earlier = None
        if log.topic in INTERNAL_LOGS:
            whole = self._append_missed(log, cluster_id, options.holdback_ms)
            before, progress = progress, writer.progress(cluster_id)
            earlier = whole if progress == before else None
        start = starting_offset(place, progress, log, options)
        return GroupLog(
            options={**own, "startingOffset": start},
            cluster_id=cluster_id,
            incarnation=progress.incarnation,
            next_offset=progress.next_offset,
            log_start_offset=log.log_start_offset,
            earlier=earlier,
            target_offset=target_offset,
            is_at_target=progress.next_offset >= target_offset,
        )

    def _append_missed(self, log: LogReader, cluster_id: str, holdback_ms: int) -> pa.Table | None:
        """Append an internal log's state if its tables have missed deleted records; return it.

        Nothing is appended if all of the rows are before the tables' end.
        """
        settings = FollowSettings(redactor=Redactor(), holdback_ms=holdback_ms)
        tail = LogTail(
            lambda: log,
            settings,
            place=self._store.place,
            clock=Clock(),
            rows=row_settings(self._writer.source_columns, settings, DecodedValues()),
        )
        end_offset = tail.missed_end(tail.refreshed(), self._writer.progress(cluster_id))
        if end_offset is None:
            return None
        with self._whole_log:
            rows = tail.whole(log, end_offset)
            for error in self._writer.apply({cluster_id: rows}).failures.values():
                raise error
        return rows


class GroupSink:
    """Sink of one run of a group: writes its micro-batches and does the upkeep that is due."""

    def __init__(
        self,
        writer: GroupWriter,
        logs: Sequence[GroupLog],
        upkeep: UpkeepRunner,
    ) -> None:
        self._writer = writer
        self._upkeep = upkeep
        self._targets = {log.cluster_id: log.target_offset for log in logs if not log.is_at_target}
        internal = [log for log in logs if is_internal(log.cluster_id)]
        self._ends = {log.cluster_id: log.next_offset for log in internal}
        """Ends of the tables, exclusive, that the next rows continue."""
        self._earlier = {log.cluster_id: log.earlier for log in logs if log.earlier is not None}
        """Rows before the tables' end, for logs that had no record after it."""

    def write(self, rows: pa.Table) -> None:
        """Append the new rows of all clusters in one append.

        Raises:
            ClustersFailedError: rows of clusters were rejected; those of the others are published.
            TablesError: Delta failed.
        """
        batches = {
            name: self._marked(name, part.drop_columns([SOURCE_CLUSTER_ID]))
            for name, part in rows_by(rows, SOURCE_CLUSTER_ID).items()
        }
        ends = {name: self._ends[name] for name in batches if name in self._ends}
        applied = self._writer.apply(batches, ends)
        self._ends |= {name: self._writer.progress(name).next_offset for name in ends}
        if applied.appended:
            self._upkeep.appended()
        for name, part in batches.items():
            if pc.max(part["offset"]).as_py() + 1 >= self._targets.get(name, 0):
                self._targets.pop(name, None)
        self._upkeep.keep_up(-1 if self._targets else 0)
        if applied.failures:
            raise ClustersFailedError(place=self._writer.place, failures=applied.failures)

    def _marked(self, name: str, rows: pa.Table) -> pa.Table:
        """Return rows as those of a whole log if they are the first new ones since deletions."""
        earlier = self._earlier.get(name)
        if earlier is None:
            return rows
        end = self._ends[name]
        new_rows = filtered(rows, pc.greater_equal(rows["offset"], end))
        if new_rows.num_rows == 0:
            return rows
        del self._earlier[name]
        if self._writer.progress(name).next_offset != end:
            return rows  # of a process that has written these rows before
        return with_positions(pa.concat_tables([earlier, new_rows.select(earlier.column_names)]))


def _sink_of(logs: Sequence[GroupLog], has_end: bool, writer: GroupWriter) -> GroupSink:
    upkeep = Upkeep(0 if has_end else None, GROUP_MERGE_ROWS_MAX)
    return GroupSink(writer, logs, UpkeepRunner(writer, upkeep))


def open_group(
    spark: SparkSession,
    path_or_schema: str,
    group: str,
    *,
    redact: bool = True,
    redact_key: str | None = None,
    after_step: Step = no_step,
    log: bool = True,
    engine: Engine = "spark",
    take_over: bool = False,
) -> ClusterGroup:
    """Open tables to write the metadata logs of many clusters with one streaming query.

    Each cluster has one owner, which is a group or a writer of its own (``open_cluster``). The
    latter also reads it.

    Args:
        spark, path_or_schema, redact, redact_key, after_step, log, engine: as for ``open_cluster``.
        group: name of the group, the same in each run; only one query at a time can use it.
        take_over: write clusters even if another group, or a writer of their own, has written them
            until now. Their former owners can then no longer write them.

    Raises:
        The errors of ``open_cluster``.
    """
    return ClusterGroup(
        spark,
        path_or_schema,
        group,
        redaction=Redaction(redact=redact, key=redact_key),
        after_step=after_step,
        log=log,
        engine=engine,
        take_over=take_over,
    )


def _partitions(source: Mapping[str, str]) -> list[Mapping[str, str]]:
    """Return one source for each partition of an internal log that a source's path names."""
    for name, path in source.items():
        if name.lower() == PATH:
            found = partitions_of(str(path))
            return [source] if found is None else [{**source, name: one} for one in found]
    return [source]


def _is_cluster_id(option: str) -> bool:
    return option.lower() == SOURCE_CLUSTER_ID.lower()


def _given(sources: Sequence[Mapping[str, str]] | DataFrame) -> Sequence[Mapping[str, str]]:
    """Return the options of each log, without those that are null in a frame."""
    if not isinstance(sources, DataFrame):
        return sources
    rows = [row.asDict() for row in sources.collect()]
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def _checkpoint_name(logs: Sequence[GroupLog]) -> str:
    """Return a name for the logs, their starts and their clusters' incarnations."""
    text = json.dumps([[log.cluster_id, log.incarnation, log.log_start_offset] for log in logs])
    return f"logs-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


__all__ = ["ClusterGroup", "open_group"]
