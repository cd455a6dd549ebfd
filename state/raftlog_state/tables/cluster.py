"""``open_cluster``, and reading and writing of a cluster's tables.

A log has one set of tables, at a path (a directory for each table) or in a schema. The first write
creates them; opening writes nothing. Readers see publications: the table versions in a row of the
manifest. No session configuration is changed. A ``ClusterTables`` is not thread-safe; several can
be open.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, SupportsIndex, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from raftlog.client import open_path
from raftlog.errors import OffsetOutOfRangeError, OptionError
from raftlog_state.errors import TablesError
from raftlog_state.image import MetadataImage
from raftlog_state.image.delta import key_json
from raftlog_state.snapshot_writer import ExportedSnapshot

from .batch import SOURCE_COLUMNS
from .exporting import export_view, image_of_view
from .history import change_feed, difference, visible_between
from .manifest import Manifest, newest_live, newest_manifest
from .materialize import Redaction, materialize, read_source
from .progress import NOTHING, check_layout
from .schema import CHANGES, COMMITS, LOG
from .store import DeltaStore
from .truncation import nothing_to_go_back_to
from .verify import VerifyReport, verify
from .view import ClusterView, published_view, typed_table, view_before
from .writer import Step, Writer, no_step

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

OffsetOrTime: TypeAlias = int | datetime | str
"""Offset (inclusive) or time of a state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """Offsets that the tables have reached, inclusive; -1 or None if there is nothing yet.

    ``log_offset``: the last record in ``log``; ``published_offset``: the offset of ``latest()``;
    ``oldest_offset``: the first offset for ``at()``; ``gaps``: first and last offsets without
    history, because a snapshot was loaded instead.
    """

    place: str
    cluster_id: str | None
    incarnation: int
    log_offset: int
    published_offset: int
    oldest_offset: int | None
    leader_epoch: int | None
    metadata_version: int | None
    row_counts: Mapping[str, int]
    gaps: tuple[tuple[int, int], ...]


class ClusterTables:
    """Tables of a cluster, returned by ``open_cluster``."""

    def __init__(
        self,
        spark: SparkSession,
        path_or_schema: str,
        *,
        redaction: Redaction,
        after_step: Step,
    ) -> None:
        self._spark = spark
        self._store = DeltaStore(spark, path_or_schema)
        self._redaction = redaction
        self._writer = Writer(self._store, after_step=after_step)

    def __repr__(self) -> str:
        return f"ClusterTables({self._store.place!r})"

    # --- writing ----------------------------------------------------------------------------------

    def materialize(
        self,
        path_or_options: str | Mapping[str, str],
        *,
        checkpoint: str,
        trigger: str | Mapping[str, str] | None = None,
        publish_every: float | str | None = None,
    ) -> StreamingQuery:
        """Write a log to the tables, as a streaming query of the source ``raftlog``.

        Empty tables start at the first record of the log, or with its newest snapshot if that
        record was deleted; others continue at their end, regardless of the checkpoint.

        Args:
            path_or_options: path of the log, or options of the source including ``path``.
            checkpoint: directory for Spark's checkpoint. It can be deleted between two runs.
            trigger: None (as fast as possible), ``"availableNow"``, or arguments of Spark's
                ``trigger``, e.g. ``{"processingTime": "10 seconds"}``.
            publish_every: interval of publications in seconds, or e.g. ``"30 seconds"``; 0 or None
                publishes every batch. The last batch of an ``availableNow`` run is always
                published; otherwise batches are published after this interval at the latest.

        Raises:
            TablesError: the session does not find the source, or there is a gap between tables and
                log.
            WrongClusterError, DivergedLogError: the tables were not created from this log.
            OptionError: an option of the source is invalid.
        """
        return materialize(
            self._spark,
            self._store,
            self._writer,
            path_or_options,
            redaction=self._redaction,
            checkpoint=checkpoint,
            trigger=trigger,
            publish_every=publish_every,
        )

    def bootstrap(self, checkpoint_path: str) -> int:
        """Load a snapshot of Kafka (``<offset>-<epoch>.checkpoint``) and publish.

        Offsets between the end of the tables and that of the snapshot are recorded as a gap. A
        snapshot that is not ahead of the tables is ignored.

        Returns:
            The last offset in the tables, inclusive.
        """
        cluster_id = open_path(checkpoint_path).cluster_id
        options = {"path": checkpoint_path}
        rows = read_source(self._spark, options, self._redaction, self._store.place)
        return self.apply(rows, cluster_id=cluster_id)

    def apply(self, rows: DataFrame, *, cluster_id: str | None = None, publish: bool = True) -> int:
        """Write rows of the source to the tables; rows that they contain already are skipped.

        Args:
            rows: from ``format("raftlog")`` with control and aborted records; any order.
            cluster_id: cluster of the log; compared with that of the tables if both are known.
            publish: whether to update the typed tables immediately.

        Returns:
            The last offset in ``log``, inclusive; -1 if it is empty.

        Raises:
            OffsetGapError, DivergedLogError, WrongClusterError, ReplayError: nothing was written.
        """
        wanted = [name for name in SOURCE_COLUMNS if name in rows.columns]
        self._writer.apply(rows.select(*wanted).toArrow(), cluster_id)
        if publish:
            self.publish()
        return self._writer.progress().log_offset

    def publish(self) -> int:
        """Update the typed tables to the end of ``log``; return the offset, inclusive."""
        manifest = self._writer.publish(look_again=True)
        return NOTHING if manifest is None else manifest.offset

    def truncate_to(self, offset: int) -> int:
        """Restore all tables to the newest publication at or below ``offset``, after a divergence.

        Later versions remain in Delta's history only.

        Returns:
            The last offset in the tables, inclusive.

        Raises:
            TablesError: nothing was published at or below ``offset``.
        """
        newest, target = newest_manifest(self._store), newest_live(self._store, offset)
        if target is None or newest is None:
            oldest = None if newest is None else self._oldest_offset()
            raise nothing_to_go_back_to(self._store, offset, oldest)
        self._writer.truncate_to(target, incarnation=newest.incarnation + 1)
        return target.offset

    # --- reading ----------------------------------------------------------------------------------

    def latest(self) -> ClusterView:
        """Return the newest publication. Raises ``TablesError`` before the first one."""
        return published_view(self._store, self._newest())

    def at(self, *, offset: int | None = None, time: datetime | str | None = None) -> ClusterView:
        """Return the published cluster state after an offset (inclusive) or at a time.

        Args:
            offset: the last offset of the state.
            time: the state before the first record with a later timestamp took effect, or the
                newest one. A ``datetime``, or text that Spark casts to a TIMESTAMP, such
                as ``"2026-11-21T03:12:00Z"``. Without a zone, text is in the session's time zone
                and a ``datetime`` in the driver's, as PySpark returns them.

        Raises:
            OptionError: neither or both are given, or one is invalid.
            OffsetOutOfRangeError: the tables begin after the offset, or it is not published.
            TablesError: the offset is in a gap, where a snapshot was loaded instead of the history;
                or the tables begin after the time.
        """
        manifest = self._newest()
        if time is None and offset is not None:
            found = _offset(offset, "offset")
        elif offset is None and time is not None:
            found = self._offset_at(manifest, time, "time")
        else:
            raise OptionError(option="offset, time", reason="exactly one of them must be given")
        self._check_offset(manifest, found)
        return view_before(self._store, found, manifest)

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
        since: OffsetOrTime | None = None,
        until: OffsetOrTime | None = None,
    ) -> DataFrame:
        """Return the published changes between two states, in the order in which they took effect.

        Args:
            table: name of a typed table; None: all of them.
            key: the values of the table's key, or their JSON in the column ``key``, such as
                ``'["topic id",0]'``; None: all rows.
            since: offset or time of the state before the changes, as for ``at``; None: before all.
            until: the same of the state after them; None: the newest publication.

        Raises:
            As ``at``; OptionError: ``since`` is after ``until``; TablesError: there is no such
            table.
        """
        found = self._changes_between(since, until)
        if table is not None:
            entity = typed_table(table, self._store.place).entity
            found = found.where(sf.col("entity") == str(entity))
        if key is not None:
            found = found.where(sf.col("key") == _key_text(key))
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
            As ``changes``.
        """
        return difference(self._changes_between(since, until))

    def table_changes(
        self, name: str, since: OffsetOrTime | None = None, until: OffsetOrTime | None = None
    ) -> DataFrame:
        """Return the changes of a typed table in the columns of Delta's change data feed.

        ``_change_type`` is insert, delete, update_preimage or update_postimage; ``_commit_version``
        is the offset at which the change took effect, ``_commit_timestamp`` the time of the record
        that wrote it. A row has one change at each ``_commit_version``; updates to equal values are
        left out.

        Args:
            name: name of the table.
            since, until: as for ``changes``.

        Raises:
            As ``changes``.
        """
        typed = typed_table(name, self._store.place)
        return change_feed(typed, self._changes_between(since, until))

    def image(self, offset: int | None = None) -> MetadataImage:
        """Return the state after ``offset`` (inclusive; None: newest publication) as an image.

        It is in memory of the driver; ``image_records(image)`` of
        ``raftlog_state.image.image_writer`` returns its records.

        Raises:
            As ``at`` and ``latest``; TablesError: ``offset`` is inside a metadata transaction.
        """
        return image_of_view(self.latest() if offset is None else self.at(offset=offset))

    def export_snapshot(self, offset: int | None, path: str | os.PathLike[str]) -> ExportedSnapshot:
        """Write a snapshot of the state after ``offset`` (inclusive; None: newest publication).

        Args:
            offset: as for ``at``, outside metadata transactions.
            path: directory on the driver, in which the file gets Kafka's name for it, or a file
                name that ends in ``.checkpoint``.

        Raises:
            As ``image``; TablesError: secrets are redacted; FileExistsLogError: the file exists.
        """
        return export_view(self.latest() if offset is None else self.at(offset=offset), path)

    def status(self) -> ClusterStatus:
        """Return the offsets that the tables have reached, read from Delta."""
        manifest = newest_manifest(self._store)
        first = last = None
        if self._store.exists(LOG):
            log = self._store.read(LOG)
            ends = log.agg(sf.min("offset").alias("first"), sf.max("offset").alias("last"))
            first, last = ends.collect()[0]
        return ClusterStatus(
            place=self._store.place,
            cluster_id=None if manifest is None else manifest.cluster_id,
            incarnation=0 if manifest is None else manifest.incarnation,
            log_offset=NOTHING if last is None else last,
            published_offset=NOTHING if manifest is None else manifest.offset,
            oldest_offset=first,
            leader_epoch=None if manifest is None else manifest.leader_epoch,
            metadata_version=None if manifest is None else manifest.metadata_version,
            row_counts={} if manifest is None else manifest.row_counts,
            gaps=self._gaps(),
        )

    def verify(self, offset: int | None = None) -> VerifyReport:
        """Compare the typed tables with a second replay of ``log``, in SQL.

        Also checks that each row of ``changes`` begins with the row that the one before it left.

        Args:
            offset: verifies the newest publication at or below it; None: the newest publication.

        Raises:
            TablesError: nothing was published at or below ``offset``.
        """
        manifest = self._newest() if offset is None else newest_live(self._store, offset)
        if manifest is None:
            assert offset is not None
            raise nothing_to_go_back_to(self._store, offset, self._oldest_offset())
        return verify(self._store, manifest)

    # --- helpers ----------------------------------------------------------------------------------

    def _changes_between(self, since: OffsetOrTime | None, until: OffsetOrTime | None) -> DataFrame:
        manifest = self._newest()
        first, last = NOTHING, manifest.offset
        if since is not None:
            first = self._state(manifest, since, "since")
        if until is not None:
            last = self._state(manifest, until, "until")
        if first > last:
            raise OptionError(option="since", reason=f"offset {first} is after offset {last}")
        changes = self._store.read(CHANGES, manifest.table_versions[CHANGES])
        return visible_between(changes, first, last)

    def _state(self, manifest: Manifest, wanted: OffsetOrTime, option: str) -> int:
        """Return the offset of a state that can be read."""
        if isinstance(wanted, str | datetime):
            offset = self._offset_at(manifest, wanted, option)
        else:
            offset = _offset(wanted, option)
        self._check_offset(manifest, offset)
        return offset

    def _offset_at(self, manifest: Manifest, time: datetime | str, option: str) -> int:
        """Return the last offset of the state at a time."""
        if not isinstance(time, str | datetime):
            raise OptionError(option=option, reason="must be a datetime or text")
        as_micros = sf.unix_micros(sf.lit(time).try_cast("timestamp"))
        micros = self._spark.range(1).select(as_micros).collect()[0][0]
        if micros is None:
            raise OptionError(option=option, reason="must be a time such as 2026-11-21T03:12:00Z")
        is_later = sf.col("log_time") > sf.timestamp_micros(sf.lit(micros))
        log = self._store.read(LOG, manifest.table_versions[LOG])
        later, is_before_all = log.agg(
            sf.min(sf.when(is_later, sf.col("visible_offset"))), sf.every(is_later)
        ).collect()[0]
        if is_before_all:
            raise TablesError(
                place=self._store.place,
                reason="all their records are later than the time",
                remedy="use a later time, or an offset from that of status().oldest_offset on",
            )
        return manifest.offset if later is None else int(later) - 1

    def _check_offset(self, manifest: Manifest, offset: int) -> None:
        log = self._store.read(LOG, manifest.table_versions[LOG])
        if log.where(sf.col("offset") == offset).isEmpty():
            raise self._no_such_offset(log, offset)

    def _newest(self) -> Manifest:
        manifest = newest_manifest(self._store)
        if manifest is None:
            raise TablesError(
                place=self._store.place,
                reason="nothing was published yet",
                remedy="call materialize, bootstrap or apply first, or correct the location",
            )
        check_layout(self._store)
        return manifest

    def _oldest_offset(self) -> int | None:
        oldest: int | None = self._store.read(LOG).agg(sf.min("offset")).collect()[0][0]
        return oldest

    def _gaps(self) -> tuple[tuple[int, int], ...]:
        if not self._store.exists(COMMITS):
            return ()
        rows = (
            self._store.read(COMMITS)
            .where(sf.col("gap_from").isNotNull())
            .select("gap_from", "gap_to")
            .distinct()
            .collect()
        )
        return tuple(sorted((row["gap_from"], row["gap_to"]) for row in rows))

    def _no_such_offset(self, log: DataFrame, offset: int) -> OffsetOutOfRangeError | TablesError:
        first, last = log.agg(sf.min("offset"), sf.max("offset")).collect()[0]
        if first <= offset <= last:
            return TablesError(
                place=self._store.place,
                reason=f"no history at offset {offset}: a snapshot was loaded instead",
                remedy="use an offset outside of the gaps that status() lists",
            )
        return OffsetOutOfRangeError(
            path=self._store.place, offset=offset, log_start_offset=first, log_end_offset=last + 1
        )


def _offset(value: SupportsIndex, option: str) -> int:
    """Return an integer of any kind, such as numpy's."""
    try:
        return operator.index(value)
    except TypeError:
        raise OptionError(option=option, reason="an offset must be an integer") from None


def _key_text(key: str | int | Sequence[str | int]) -> str:
    """Return a key as in the column ``key``."""
    if isinstance(key, str) and key.startswith("["):
        return key
    return key_json([key] if isinstance(key, str | int) else key)


def open_cluster(
    spark: SparkSession,
    path_or_schema: str,
    *,
    redact: bool = True,
    redact_key: str | None = None,
    after_step: Step = no_step,
) -> ClusterTables:
    """Open the tables of a cluster's metadata log; the first write creates them.

    Args:
        spark: session with Delta and, to materialize, with the source ``raftlog``.
        path_or_schema: path of the directory with a subdirectory for each table; or ``schema`` or
            ``catalog.schema``.
        redact: whether secrets are redacted before they are written. False stores them.
        redact_key: replaces secrets by hashes with this key, so that changes are visible.
        after_step: called with the name of each write after its commit.

    Raises:
        TablesError: the name is neither a path nor a schema.
    """
    redaction = Redaction(redact=redact, key=redact_key)
    return ClusterTables(spark, path_or_schema, redaction=redaction, after_step=after_step)


__all__ = ["ClusterStatus", "ClusterTables", "open_cluster"]
