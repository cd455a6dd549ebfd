"""The state of a cluster at one offset: frames that belong together.

Rules of this file:

1. Every frame of a view is of one publication, which has the Delta versions of all tables. A view
   never changes, and its frames never mix two offsets.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from raftlog_state.image.rows import Entity
from raftlog_state.records.internal_logs import is_internal

from .history import row_history
from .named_tables import NamedTables
from .publication import Publication
from .schema import (
    CHANGES,
    CLUSTER_ID,
    LOG,
    METADATA_TABLES,
    TYPED_TABLES,
    TypedTable,
    id_in_table,
)
from .selection import typed_table


class ClusterView(NamedTables[DataFrame]):
    """A cluster after ``offset`` (inclusive). All methods but ``create_views`` return frames."""

    def __init__(self, publication: Publication, offset: int) -> None:
        self.offset = offset
        self._publication = publication

    def __repr__(self) -> str:
        return f"ClusterView({self.place!r}, offset={self.offset})"

    @property
    def place(self) -> str:
        """Where the tables are."""
        return self._publication.place

    def table(self, name: str) -> DataFrame:
        """Return a typed table by name, or ``changes`` or ``log`` up to this offset.

        Raises:
            TablesError: there is no such table.
        """
        if name == CHANGES:
            return self._publication.changes(to=self.offset)
        if name == LOG:
            return self._publication.log().where(sf.col("offset") <= self.offset)
        typed = typed_table(name, self.place, (CHANGES, LOG))
        return self._of_cluster(typed, self._publication.rows(typed, self.offset))

    def history(self, name: str) -> DataFrame:
        """Return each version of each row of a typed table up to this offset.

        In addition to the table's columns there are ``valid_from`` (inclusive) and ``valid_to``
        (exclusive), the offsets at which the version took effect and was replaced, and
        ``written_time`` and ``replaced_time``, the times of the records that caused this.
        ``valid_to`` is null for the rows of this view. In a metadata transaction, these records
        precede ``valid_from`` and ``valid_to``, which are offsets of the transaction's end marker.
        A record that repeats the values of a row also begins a version. In a gap without history,
        the offsets are those of the snapshot that ends the gap.

        Raises:
            TablesError: there is no such table.
        """
        typed = typed_table(name, self.place)
        rows = self._publication.rows(typed, self.offset)
        return self._of_cluster(typed, row_history(typed, rows, self.table(CHANGES)))

    def create_views(self, prefix: str = "") -> tuple[str, ...]:
        """Create a temporary view of each table and history; return the names of the views.

        They are ``<prefix>topics``, ``<prefix>topics_history``, and so on.
        """
        others = (CHANGES,) if not self._publication.has_log else (CHANGES, LOG)
        is_metadata = not is_internal(self._publication.cluster_id)
        tables = [
            one.name
            for one in TYPED_TABLES
            if (one in METADATA_TABLES) == is_metadata or one.entity is Entity.EPOCH
        ]
        frames = {name: self.table(name) for name in (*tables, *others)}
        for name in tables:
            frames[f"{name}_history"] = self.history(name)
        for name, frame in frames.items():
            frame.createOrReplaceTempView(prefix + name)
        return tuple(prefix + name for name in frames)

    def _of_cluster(self, table: TypedTable, rows: DataFrame) -> DataFrame:
        """Return rows of a table with the cluster as their first column."""
        return with_cluster(rows, id_in_table(table, self._publication.cluster_id))


def with_cluster(rows: DataFrame, cluster_id: str) -> DataFrame:
    """Return rows with ``cluster_id`` as their first column."""
    return rows.select(sf.lit(cluster_id).alias(CLUSTER_ID), "*")
