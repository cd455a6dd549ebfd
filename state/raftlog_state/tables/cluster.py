"""``open_cluster``, and reading and writing of a cluster's tables.

One set of tables, at a path (a directory for each table) or in a schema, contains any number of
clusters, each with its own metadata log and writer. The first write creates the tables and, in a
schema, permanent views of all clusters (``clusters``, ``topics``, ``topics_history``, and so on);
opening writes nothing. Each write is one commit of ``changes``, which publishes it. The session's
configuration is not changed. Writes through one ``ClusterTables`` take turns; reads share nothing.
Several can be open at the same time.
"""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, get_args

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from raftlog.client import open_path
from raftlog.client.offset_spec import OffsetSpecKind, parse_word
from raftlog.clock import Clock
from raftlog.errors import OptionError
from raftlog_state.image import MetadataImage
from raftlog_state.image.entity_names import row_filters
from raftlog_state.records import Redactor
from raftlog_state.snapshot_writer import ExportedSnapshot

from .bucket_replay import (
    BucketResult,
    replay_bucket,
    result_of_text,
    result_text,
)
from .bulk_load import RANGE_RECORDS, BulkLoad, LoadSettings, RunTasks
from .cluster_rows import Step, no_step
from .convert import US_PER_MS
from .exporting import export, image_of
from .history import change_feed, difference, matching
from .invariants import Violation
from .log_follower import FollowSettings
from .materialize import (
    Redaction,
    collected,
    materialize,
    read_source,
    source_errors,
)
from .progress import NOTHING, check_layout
from .publication import Publication, newest_publication
from .range_routing import NotSplit, RoutedRange
from .schema import CHANGES, CHANGES_TABLE, STATE_TABLE, id_in_table
from .selection import (
    ClusterStatus,
    OffsetOrTime,
    checked_offset,
    key_text,
    nothing_published,
    offset_of_state,
    offset_or_time,
    offsets_between,
    status_of,
    typed_table,
    whole_offset,
)
from .source_options import SourceOptions
from .stores.protocol import TableStore
from .stores.spark import SparkStore, session_for_tables
from .verify import VerifyReport, check_invariants, verify
from .view import ClusterView, with_cluster
from .views import ViewsOfWriter, clusters_sql
from .writer import Writer

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

W = TypeVar("W")
Engine: TypeAlias = Literal["spark", "delta-rs"]
ENGINES: Final = get_args(Engine)
BUCKETS_DEFAULT: Final = 16
_LOGGER: Final = logging.getLogger("raftlog_state")


class ClusterTables:
    """Tables of a cluster, returned by ``open_cluster``."""

    def __init__(
        self,
        spark: SparkSession,
        path_or_schema: str,
        *,
        cluster_id: str | None,
        redaction: Redaction,
        after_step: Step,
        log: bool,
        engine: Engine,
        take_over: bool,
    ) -> None:
        self._spark = spark
        self._store = SparkStore(spark, path_or_schema)
        self._cluster_id = cluster_id
        self._redaction = redaction
        self._views = ViewsOfWriter(self._store, after_step)
        self._writes_log = log
        self._take_over = take_over
        self._engine: Engine = engine
        self._open_writer = partial(
            open_writer,
            Writer,
            path_or_schema,
            engine,
            after_step,
            cluster_id=cluster_id,
            writes_log=log,
            take_over=take_over,
        )
        self._writer = self._open_writer(spark)

    def __repr__(self) -> str:
        return f"ClusterTables({self._store.place!r})"

    # --- writing ----------------------------------------------------------------------------------

    def materialize(
        self,
        path_or_options: str | Mapping[str, str],
        *,
        checkpoint: str,
        trigger: str | Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> StreamingQuery:
        """Write a log to the tables, as a streaming query of the source ``raftlog``.

        Each micro-batch is published as soon as it is written. Empty tables begin at the first
        record of the log, or at its newest snapshot if that record was deleted. Other tables
        continue at their end, regardless of the checkpoint.

        Args:
            path_or_options: path of the log, or options of the source including ``path``.
            checkpoint: directory for Spark's checkpoint. It can be deleted between two runs.
            trigger: None (as fast as possible), ``"availableNow"``, or arguments of Spark's
                ``trigger``, e.g. ``{"processingTime": "10 seconds"}``.
            name: name of the query in Spark's UI and in the metrics of ``LagListener``; unique
                among active queries.

        Raises:
            TablesError: the session cannot find the source, or there is a gap between the tables
                and the log.
            WrongClusterError, DivergedLogError: the tables were not created from this log.
            OptionError: an option of the source is invalid.
        """
        return materialize(
            self._spark,
            self._store.place,
            self._writer,
            path_or_options,
            open_writer=self._open_writer,
            redaction=self._redaction,
            checkpoint=checkpoint,
            trigger=trigger,
            name=name,
        )

    def load(
        self,
        path_or_options: str | Mapping[str, str],
        *,
        staging: str,
        bucket_count: int = BUCKETS_DEFAULT,
        range_records: int = RANGE_RECORDS,
    ) -> int:
        """Write a long log to the tables with Spark's executors, up to the end that it has now.

        One range of records is published at a time. Its topics are divided into buckets, each of
        which one executor replays. The tables are the same as those of ``materialize``, which can
        continue them. If a load is interrupted, the next call continues it.

        Args:
            path_or_options: path of the log on the driver and the executors, or options of the
                source.
            staging: directory that the driver and the executors share, for the records and rows
                that are written next. It is empty when the load has ended.
            bucket_count: number of Spark tasks. Each keeps the rows of its topics in memory, and up
                to 256 MiB of their records. The driver reads the log; with table ``log``, the
                executors read it, too.
            range_records: approximate number of records that are published at a time.

        Returns:
            The last offset in the tables, inclusive; -1 if they are empty.

        Raises:
            The errors of ``materialize``; ReplayError: a record contradicts the state before it.
        """
        source = SourceOptions.parse(path_or_options)
        source.refuse_options_of_rows("load()")
        redaction = self._redaction
        key = None if redaction.key is None else redaction.key.encode("utf-8", "surrogatepass")
        settings = FollowSettings(
            redactor=Redactor(key=key, reveal=not redaction.redact),
            cluster_id=self._cluster_id,
            writes_log=self._writes_log,
            take_over=self._take_over,
            holdback_ms=source.holdback_ms,
            allows_gap=not source.fails_on_data_loss,
        )
        load = LoadSettings(
            options=source.given,
            staging=staging,
            bucket_count=bucket_count,
            range_records=range_records,
        )
        self._writer.forget()
        last_offset = BulkLoad(
            store_of_writer(self._store, self._engine),
            settings,
            load,
            tasks_in(self._spark, self._store.place),
            after_step=self._views,
            log_event=_LOGGER.info,
        ).run()
        self._writer.forget()
        return last_offset

    def bootstrap(self, checkpoint_path: str) -> int:
        """Load a snapshot of Kafka (``<offset>-<epoch>.checkpoint``).

        The offsets between the end of the tables and that of the snapshot are recorded as a gap. A
        snapshot that does not end after the tables is ignored.

        Returns:
            The last offset in the tables, inclusive.
        """
        cluster_id = open_path(checkpoint_path).cluster_id
        options = {"path": checkpoint_path}
        columns = self._writer.source_columns
        rows = read_source(self._spark, options, columns, self._redaction, self._store.place)
        return self.apply(rows, cluster_id=cluster_id)

    def apply(self, rows: DataFrame, *, cluster_id: str | None = None) -> int:
        """Write rows of the source to the tables; rows that are already in them are skipped.

        Args:
            rows: from ``format("raftlog")`` with control and aborted records, in any order.
            cluster_id: cluster of the log; compared with that of the tables if both are known.

        Returns:
            The last offset in the tables, inclusive; -1 if they are empty.

        Raises:
            OffsetGapError, DivergedLogError, WrongClusterError, ReplayError: nothing was written.
        """
        wanted = [name for name in self._writer.source_columns if name in rows.columns]
        self._writer.apply(collected(rows.select(*wanted), self._store.place), cluster_id)
        return self._writer.progress().offset

    def truncate_to(self, offset: int) -> int:
        """Revert the tables to the state after ``offset`` (inclusive), after a divergence.

        If ``offset`` is inside a metadata transaction or a gap, they are reverted to the state
        before it. Later versions remain only in Delta's history.

        Returns:
            The last offset in the tables, inclusive.

        Raises:
            OffsetOutOfRangeError: the tables begin after the offset, or end before it.
            TablesError: nothing was published.
        """
        self._newest()
        return self._writer.truncate_to(whole_offset(offset, "offset"))

    def expire(self, before: OffsetOrTime) -> int:
        """Delete the changes before a state; earlier states can no longer be read.

        Table ``log`` keeps its records. ``maintain()`` deletes the files after a day.

        Args:
            before: offset or time of the state, as for ``at``.

        Returns:
            The first offset whose state can be read, as in ``status().oldest_offset``.

        Raises:
            The errors of ``at``.
        """
        publication = self._newest()
        return self._writer.expire(offset_or_time(publication, before, "before", self._to_micros))

    def maintain(self) -> None:
        """Merge later changes into ``state``, compact the tables, and delete old files.

        Readers see the same rows in fewer files. ``materialize`` does this from time to time.
        Files that no version of the last day contains are deleted; views of earlier versions fail
        afterwards.
        """
        self._writer.maintain()
        self._views.create()

    # --- reading ----------------------------------------------------------------------------------

    def latest(self) -> ClusterView:
        """Return the newest publication. Raises ``TablesError`` before the first one."""
        publication = self._newest()
        return ClusterView(publication, publication.offset)

    def at(self, *, offset: int | None = None, time: datetime | str | None = None) -> ClusterView:
        """Return the published cluster state after an offset (inclusive) or at a time.

        Args:
            offset: the last offset of the state.
            time: the state before the first record whose timestamp is not earlier, or the newest
                state without such a record, like ``raftlog state --at``. A ``datetime``; text that
                Spark casts to a TIMESTAMP, such as ``"2026-11-21T03:12:00Z"``; or text with
                milliseconds since 1970. Without a zone, text is in the session's time zone and a
                ``datetime`` in the driver's, as PySpark returns them. Also an age such as
                ``"-15m"``, ``"epoch:5"`` for the state before that epoch, ``"start"`` or ``"end"``.

        Raises:
            OptionError: neither or both are given, or one is invalid.
            OffsetOutOfRangeError: the tables begin after the offset, or it is not published.
            TablesError: the offset is in a gap, for which a later state was loaded instead of the
                history; or the tables begin after the time.
        """
        publication = self._newest()
        return ClusterView(publication, offset_of_state(publication, offset, time, self._to_micros))

    def history(self, name: str) -> DataFrame:
        """Return each version of each row of a typed table; see ``ClusterView.history``.

        Raises:
            TablesError: there is no such table, or nothing was published.
        """
        return self.latest().history(name)

    def changes(
        self,
        *,
        table: str | None = None,
        key: str | int | Sequence[str | int] | None = None,
        entity: str | None = None,
        name: str | None = None,
        partitions: bool = False,
        since: OffsetOrTime | None = None,
        until: OffsetOrTime | None = None,
    ) -> DataFrame:
        """Return the published changes between two states, in the order in which they took effect.

        Args:
            table: name of a typed table; None: all of them.
            key: the values of the table's key, or their JSON in the column ``key``, such as
                ``'["topic id",0]'``; None: all rows.
            entity, name: select what ``raftlog log`` prints for ``entity/name``: for instance,
                ``topic`` and ``orders`` are a topic and its configs, and with ``partitions`` also
                its partitions. ``raftlog_state.image.entity_names`` describes all names.
            partitions: whether the changes of topics include their partitions.
            since: offset or time of the state before the changes, as for ``at``; None: from the
                start.
            until: offset or time of the state after the changes; None: the newest publication.

        Raises:
            The errors of ``at``; OptionError: ``since`` is after ``until``; TablesError: there is
            no such table.
        """
        found = self._changes_between(since, until)
        if table is not None:
            of_table = typed_table(table, self._store.place).entity
            found = found.where(sf.col("entity") == str(of_table))
        if key is not None:
            found = found.where(sf.col("key") == key_text(key))
        if entity is not None or name is not None:
            filters = row_filters(entity, name, partitions=partitions)
            found = found.where(reduce(operator.or_, map(matching, filters)))
        return found.orderBy("visible_offset", "offset", "seq")

    def diff(self, since: OffsetOrTime, until: OffsetOrTime | None = None) -> DataFrame:
        """Return the rows that differ between two published states, with their values in both.

        Args:
            since, until: as for ``changes``.

        Returns:
            ``entity``, ``key``, ``op`` (c: only in the later state, d: only in the earlier one, u),
            ``changed`` (the columns of an update that differ), ``before`` and ``after`` as in
            ``changes``.

        Raises:
            The errors of ``changes``.
        """
        found = difference(self._changes_between(since, until))
        return with_cluster(found, self._known_id())

    def table_changes(
        self, name: str, since: OffsetOrTime | None = None, until: OffsetOrTime | None = None
    ) -> DataFrame:
        """Return the changes of a typed table in the columns of Delta's change data feed.

        ``_change_type`` is insert, delete, update_preimage or update_postimage. ``_commit_version``
        is the offset at which the change took effect, and ``_commit_timestamp`` the time of the
        record that wrote it. A row has one change at each ``_commit_version``; updates that do not
        change any value are omitted.

        Args:
            name: name of the table.
            since, until: as for ``changes``.

        Raises:
            The errors of ``changes``.
        """
        typed = typed_table(name, self._store.place)
        found = change_feed(typed, self._changes_between(since, until))
        return with_cluster(found, id_in_table(typed, self._known_id()))

    def image(self, offset: int | None = None) -> MetadataImage:
        """Return the state after ``offset`` (inclusive; None: newest publication) as an image.

        The image is in the driver's memory. ``image_records(image)`` of
        ``raftlog_state.image.image_writer`` returns its records.

        Raises:
            The errors of ``at`` and ``latest``; TablesError: ``offset`` is inside a metadata
            transaction.
        """
        publication = self._newest()
        return image_of(publication, checked_offset(publication, offset, "offset"))

    def export_snapshot(self, offset: int | None, path: str | os.PathLike[str]) -> ExportedSnapshot:
        """Write a snapshot of the state after ``offset`` (inclusive; None: newest publication).

        Args:
            offset: as for ``at``, but outside metadata transactions.
            path: directory on the driver, in which the file is created with the name that Kafka
                would use, or a file name that ends in ``.checkpoint``.

        Raises:
            The errors of ``image``; TablesError: secrets are redacted; FileExistsLogError: the file
            exists.
        """
        publication = self._newest()
        return export(publication, checked_offset(publication, offset, "offset"), path)

    def status(self) -> ClusterStatus:
        """Return the offsets that the tables have reached, read from Delta."""
        publication = newest_publication(self._store, self._cluster_id)
        log_offset = NOTHING if publication is None else publication.log_offset()
        return status_of(self._store.place, self._cluster_id, publication, log_offset)

    def verify(self, offset: int | None = None, since: OffsetOrTime | None = None) -> VerifyReport:
        """Compare the tables with a second replay of ``log``, in SQL.

        The replay decodes the bytes of the records with a separate decoder. It also checks that
        each row of ``changes`` begins with the row that the previous change left, and the rules of
        ``check_invariants``.

        Args:
            offset: verify the state after this offset, as for ``at``; None: the newest publication.
            since: offset or time of a state that was verified before. The rows of that state are
                taken from the tables, and only later records are replayed.

        Raises:
            The errors of ``at`` and ``latest``; OptionError: ``since`` is after ``offset``;
            TablesError: there is no table ``log``.
        """
        publication = self._newest()
        last = checked_offset(publication, offset, "offset")
        first = None
        if since is not None:
            first = offset_or_time(publication, since, "since", self._to_micros)
            if first > last:
                raise OptionError(option="since", reason=f"offset {first} is after offset {last}")
        return verify(publication, last, first)

    def check_invariants(self, offset: int | None = None) -> tuple[Violation, ...]:
        """Return the rules of Kafka that the tables violate. Does not need table ``log``.

        The rules are SQL files in ``raftlog_state.tables.invariants``, which can also be run on the
        views of a schema. No state of Kafka violates any of them.

        Args:
            offset: check the state after this offset, and its history, as for ``at``; None: the
                newest publication.

        Raises:
            The errors of ``at`` and ``latest``.
        """
        publication = self._newest()
        return check_invariants(publication, checked_offset(publication, offset, "offset"))

    # --- helpers ----------------------------------------------------------------------------------

    def _changes_between(self, since: OffsetOrTime | None, until: OffsetOrTime | None) -> DataFrame:
        publication = self._newest()
        return publication.changes(*offsets_between(publication, since, until, self._to_micros))

    def _to_micros(self, time: datetime | str) -> int | None:
        """Return a time as Spark casts it, or that of an age, in microseconds since 1970."""
        spec = parse_word(time) if isinstance(time, str) else None
        if spec is not None and spec.kind is OffsetSpecKind.AGE:
            return spec.at(Clock().wall_ms()).number * US_PER_MS
        as_micros = sf.unix_micros(sf.lit(time).try_cast("timestamp"))
        with self._store.errors(CHANGES):
            micros: int | None = self._spark.range(1).select(as_micros).collect()[0][0]
        return micros

    def _known_id(self) -> str:
        """Return the id of the log whose rows have been read."""
        assert self._cluster_id is not None, "the rows have been read"
        return self._cluster_id

    def _newest(self) -> Publication:
        publication = newest_publication(self._store, self._cluster_id)
        if publication is None:
            raise nothing_published(self._store.place, self._cluster_id)
        self._cluster_id = publication.cluster_id  # also if others are added later
        return publication


def open_cluster(
    spark: SparkSession,
    path_or_schema: str,
    *,
    cluster_id: str | None = None,
    redact: bool = True,
    redact_key: str | None = None,
    after_step: Step = no_step,
    log: bool = True,
    engine: Engine = "spark",
    take_over: bool = False,
) -> ClusterTables:
    """Open the tables of a cluster's metadata log; the first write creates them.

    Args:
        spark: session with Delta and, to materialize, with the source ``raftlog``.
        path_or_schema: path of the directory with a subdirectory for each table; or ``schema`` or
            ``catalog.schema``.
        cluster_id: cluster id of the log. Required to add a cluster to tables that contain another
            one, and to open one of several.
        redact: whether secrets are redacted before they are written. False stores them.
        redact_key: key for hashes that replace secrets, so that changes are visible.
        after_step: called with the name of each write after its commit.
        log: whether to write table ``log``, every record; ``verify()`` requires it.
        engine: what writes the tables. ``"delta-rs"`` (``pip install "raftlog[delta]"``) takes a
            fraction of the time for small micro-batches, but can only write to local paths. Tables
            must not be written by both engines at the same time.
        take_over: write the cluster even if a group (``open_group``) has written it until now.

    Raises:
        OptionError: there is no such engine.
        TablesError: the name is neither a path nor a schema; or delta-rs is not installed, or
            cannot write to this location.
    """
    return ClusterTables(
        spark,
        path_or_schema,
        cluster_id=cluster_id,
        redaction=Redaction(redact=redact, key=redact_key),
        after_step=after_step,
        log=log,
        engine=engine,
        take_over=take_over,
    )


def list_clusters(spark: SparkSession, path_or_schema: str) -> DataFrame:
    """Return the clusters in tables, and the offset up to which each is published.

    Args:
        path_or_schema: as for ``open_cluster``.

    Returns:
        ``cluster_id``, ``offset`` (the last published one), ``leader_epoch``, ``log_time``,
        ``incarnation``, ``metadata_version``, ``row_counts`` (of the typed tables) and
        ``software`` (which wrote them).

    Raises:
        TablesError: there are no tables, or an earlier release created them.
    """
    store = SparkStore(spark, path_or_schema)
    check_layout(store)
    state = store.reference(STATE_TABLE.name) if store.exists(STATE_TABLE) else None
    with store.errors(CHANGES_TABLE.name):
        return spark.sql(clusters_sql(state=state, changes=store.reference(CHANGES_TABLE.name)))


def tasks_in(spark: SparkSession, place: str) -> RunTasks:
    """Return what replays buckets by tasks of Spark."""

    def run(routed: RoutedRange, buckets: Sequence[int]) -> list[BucketResult | NotSplit]:
        # The range is part of the function, not of the rows: it may have secrets.
        replay = sf.udf(
            lambda bucket: result_text(replay_bucket(routed, bucket)), "string", useArrow=False
        )
        rows = spark.range(0, len(buckets), 1, len(buckets)).select("id", replay("id"))
        with source_errors(place):
            found = sorted(rows.collect())
        return [result_of_text(row[1]) for row in found]

    return run


def open_writer(
    kind: Callable[..., W],
    path_or_schema: str,
    engine: Engine,
    after_step: Step,
    spark: SparkSession,
    **options: Any,
) -> W:
    """Open a writer of a kind, with its options, in a session."""
    store = SparkStore(spark, path_or_schema)
    views = ViewsOfWriter(store, after_step)
    return kind(store_of_writer(store, engine), after_step=views, **options)


def store_of_writer(store: SparkStore, engine: Engine) -> TableStore:
    """Return what writes the tables. Raises ``TablesError``, and ``OptionError`` for the engine."""
    if engine not in ENGINES:
        raise OptionError(option="engine", reason=f"must be one of {', '.join(ENGINES)}")
    if engine == "delta-rs":
        from .stores.delta_rs import DeltaRsStore

        return DeltaRsStore(store.place)
    return store.in_session(session_for_tables(store.session))


__all__ = ["ClusterStatus", "ClusterTables", "list_clusters", "open_cluster"]
