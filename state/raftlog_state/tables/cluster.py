"""The door: ``open_cluster`` and what can be done with a cluster's tables.

Rules of this file:

1. One log has one set of tables, at a path (a folder a table) or in a schema. They are made by the
   first write; opening them writes nothing.
2. Readers see publications: what one manifest row names. Nothing sets a session configuration.
3. One ``ClusterTables`` is used by one thread at a time; any number of them may be open.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from raftlog.client import open_path
from raftlog.errors import OffsetOutOfRangeError, TablesError
from raftlog_state.image import MetadataImage
from raftlog_state.snapshot_writer import ExportedSnapshot

from .batch import SOURCE_COLUMNS
from .exporting import export_view, image_of_view
from .manifest import Manifest, newest_live, newest_manifest
from .materialize import Redaction, materialize, read_source
from .progress import NOTHING
from .schema import CHANGES, COMMITS, LOG
from .store import DeltaStore
from .truncation import nothing_to_go_back_to
from .verify import VerifyReport, verify
from .view import ClusterView, published_view, replayed_view
from .writer import Step, Writer, no_step

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """How far tables are. Offsets are inclusive; -1 or None where there is nothing yet.

    ``log_offset``: the last record in ``log``; ``published_offset``: what ``latest()`` shows;
    ``oldest_offset``: the first that ``at()`` can show; ``gaps``: offsets, first and last, whose
    history nobody has, because a checkpoint stood for it.
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
    """A cluster's tables at one place. Make it with ``open_cluster``."""

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
        """Follow a log into the tables, as a streaming query of the source ``raftlog``.

        Empty tables begin at the log's first record, or with its newest checkpoint where that is
        gone; others go on where they end, whatever the checkpoint says.

        Args:
            path_or_options: the log's path, or the source's options with ``path`` among them.
            checkpoint: a directory for Spark's checkpoints. It may be deleted between two runs.
            trigger: None (as fast as possible), ``"availableNow"``, or what Spark's ``trigger``
                takes, such as ``{"processingTime": "10 seconds"}``.
            publish_every: seconds, or ``"30 seconds"``, between two publications; 0 or None
                publishes every batch. The last batch of an ``availableNow`` run is published;
                otherwise what was written is published after so long, new batches or not.

        Raises:
            TablesError: the session does not know the source, or the log does not reach the tables.
            WrongClusterError, DivergedLogError: this is not the log that the tables were made from.
            OptionError: the source refuses an option.
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
        """Load a Kafka checkpoint (``<offset>-<epoch>.checkpoint``) and publish.

        Offsets between the tables' end and the checkpoint's are recorded as a gap. A checkpoint
        that is not ahead of the tables changes nothing.

        Returns:
            The offset that the tables hold then, inclusive.
        """
        cluster_id = open_path(checkpoint_path).cluster_id
        options = {"path": checkpoint_path}
        rows = read_source(self._spark, options, self._redaction, self._store.place)
        return self.apply(rows, cluster_id=cluster_id)

    def apply(self, rows: DataFrame, *, cluster_id: str | None = None, publish: bool = True) -> int:
        """Bring rows of the source into the tables: what they hold already is passed over.

        Args:
            rows: from ``format("raftlog")`` with control and aborted records; any order.
            cluster_id: whose log it is; compared if both sides know it.
            publish: whether the typed tables follow at once.

        Returns:
            The last offset in ``log``, inclusive; -1 if there is none.

        Raises:
            OffsetGapError, DivergedLogError, WrongClusterError, ReplayError: refused; nothing was
                written.
        """
        wanted = [name for name in SOURCE_COLUMNS if name in rows.columns]
        self._writer.apply(rows.select(*wanted).toArrow(), cluster_id)
        if publish:
            self.publish()
        return self._writer.progress().log_offset

    def publish(self) -> int:
        """Bring the typed tables to the end of ``log``; the offset that readers see then."""
        manifest = self._writer.publish(look_again=True)
        return NOTHING if manifest is None else manifest.offset

    def truncate_to(self, offset: int) -> int:
        """Take back everything beyond ``offset``: the way out after a divergence.

        Every table goes back to the newest publication at or below ``offset``. What was there can
        be found in Delta's history only.

        Returns:
            The offset that the tables hold then, inclusive.

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
        """The newest publication. Raises ``TablesError`` before the first one."""
        return published_view(self._store, self._newest())

    def at(self, *, offset: int) -> ClusterView:
        """The cluster as it was after ``offset`` (inclusive), published or not.

        Raises:
            OffsetOutOfRangeError: the tables begin behind ``offset``, or do not reach it.
            TablesError: a checkpoint stood for ``offset``: its history was never seen.
        """
        self._newest()
        log_version, changes_version = self._store.version(LOG), self._store.version(CHANGES)
        log = self._store.read(LOG, log_version)
        if log.where(sf.col("offset") == offset).isEmpty():
            raise self._no_such_offset(log, offset)
        return replayed_view(
            self._store, offset, changes_version=changes_version, log_version=log_version
        )

    def image(self, offset: int | None = None) -> MetadataImage:
        """The cluster's state after ``offset`` (inclusive; None: the newest publication).

        What the tables hold of it, on the driver: its records are
        ``raftlog_state.image_writer.image_records(image)``.

        Raises:
            As ``at`` and ``latest``; TablesError: ``offset`` lies inside a metadata transaction.
        """
        return image_of_view(self.latest() if offset is None else self.at(offset=offset))

    def export_snapshot(self, offset: int | None, path: str | os.PathLike[str]) -> ExportedSnapshot:
        """Write a checkpoint of the state after ``offset`` (inclusive; None: the newest).

        Args:
            offset: as for ``at``, outside metadata transactions.
            path: a directory of the driver, in which the checkpoint gets Kafka's name for it, or a
                file's name that ends in ``.checkpoint``.

        Raises:
            As ``image``; TablesError: secrets are redacted; FileExistsLogError: it is there.
        """
        return export_view(self.latest() if offset is None else self.at(offset=offset), path)

    def status(self) -> ClusterStatus:
        """How far the tables are, as Delta says it."""
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

        Args:
            offset: the newest publication at or below it is verified; None: the newest of all.

        Raises:
            TablesError: nothing was published at or below ``offset``.
        """
        manifest = self._newest() if offset is None else newest_live(self._store, offset)
        if manifest is None:
            assert offset is not None
            raise nothing_to_go_back_to(self._store, offset, self._oldest_offset())
        return verify(self._store, manifest)

    # --- helpers ----------------------------------------------------------------------------------

    def _newest(self) -> Manifest:
        manifest = newest_manifest(self._store)
        if manifest is None:
            raise TablesError(
                place=self._store.place,
                reason="nothing was published here yet",
                remedy="call materialize, bootstrap or apply first, or correct the place",
            )
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
                reason=f"a checkpoint stood for offset {offset}: its history was never seen",
                remedy="ask for an offset that status() does not name as a gap",
            )
        return OffsetOutOfRangeError(
            path=self._store.place, offset=offset, log_start_offset=first, log_end_offset=last + 1
        )


def open_cluster(
    spark: SparkSession,
    path_or_schema: str,
    *,
    redact: bool = True,
    redact_key: str | None = None,
    after_step: Step = no_step,
) -> ClusterTables:
    """Open the tables of a cluster's metadata log; the first write makes them.

    Args:
        spark: a session with Delta and, to materialize, with the source ``raftlog``.
        path_or_schema: a path that holds, or will hold, a folder for each table; or ``schema`` or
            ``catalog.schema``.
        redact: whether secrets are replaced before anything is written. False stores them.
        redact_key: a key of yours; secrets become keyed hashes, so that a change of them shows.
        after_step: called with the name of every write once it has landed.

    Raises:
        TablesError: the name is neither a path nor a schema.
    """
    redaction = Redaction(redact=redact, key=redact_key)
    return ClusterTables(spark, path_or_schema, redaction=redaction, after_step=after_step)


__all__ = ["ClusterStatus", "ClusterTables", "open_cluster"]
