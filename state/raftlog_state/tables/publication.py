"""Publication of a cluster: table versions that a reader sees together, and rows at offsets.

Rules of this file:

1. Frames are pinned to these versions and have rows of one cluster. They never change, and never
   mix two offsets.
2. Offsets are literals in the queries, so that Delta skips files by their statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from .history import changes_of, last_rows, living_rows, rows_after, rows_before, visible_between
from .pinning import PinnedVersions, newest_version, pin_newest
from .progress import NOTHING, Progress, progress_of
from .schema import (
    BY_NAME,
    CHANGES_TABLE,
    CLUSTER_ID,
    LOG_TABLE,
    PROGRESS,
    STATE_TABLE,
    StoredTable,
    TypedTable,
)
from .selection import Published, no_log
from .stores.spark import SparkStore, for_each


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication(Published):
    """Versions of the tables that a reader sees together, as Spark reads them."""

    store: SparkStore

    @property
    def has_log(self) -> bool:
        """Whether there is a table ``log``."""
        return self.versions.log_version is not None

    @property
    def offset(self) -> int:
        """The last published offset, inclusive."""
        return self.progress.offset

    def changes(self, after: int = NOTHING, to: int | None = None) -> DataFrame:
        """Return the changes after an offset and up to another (None: the last published one)."""
        rows = changes_of(None, self._changes())
        return visible_between(rows, after, self.offset if to is None else to)

    def progress_rows(self) -> DataFrame:
        """Return the progress rows of ``changes``."""
        rows = self._changes().where(sf.col("entity") == PROGRESS)
        return visible_between(rows, NOTHING, self.offset)

    def log(self) -> DataFrame:
        """Return ``log`` up to the last published offset. Raises ``TablesError`` without it."""
        return self._log().where(sf.col("offset") <= self.offset)

    def log_offset(self) -> int:
        """Return the last offset in ``log``, which may be after ``offset``; -1 without ``log``."""
        if not self.has_log:
            return NOTHING
        with self.store.errors(LOG_TABLE.name):
            found: int | None = self._log().agg(sf.max("offset")).collect()[0][0]
        return NOTHING if found is None else found

    def rows(self, table: TypedTable | None, offset: int) -> DataFrame:
        """Return the rows after an offset (inclusive), with their origins.

        They have the columns of ``table``; or, for all entities, ``entity``, ``key`` and ``row``.
        """
        base_offset, version = self.versions.base_offset, self.versions.state_version
        if version is None:
            return last_rows(table, self.changes(to=offset))
        state = _frame(self.store, self.cluster_id, STATE_TABLE, version)
        state = self._without_reverted(state, "_incarnation", "_visible_offset")
        if offset == base_offset:
            return living_rows(table, state)
        if offset > base_offset:
            return rows_after(table, state, self.changes(base_offset, offset))
        later = self.changes(offset, base_offset)
        return rows_before(table, offset, living_rows(table, state), later)

    def first_offset_not_earlier(self, time_us: int) -> int | None:
        """Return the first offset with a time >= ``time_us`` in ``log`` or ``changes``, or None."""
        rows = self._changes().select(sf.col("visible_offset").alias("offset"), "log_time")
        if self.versions.log_version is not None:
            rows = rows.unionByName(self._log().select("offset", "log_time"))
        is_published = sf.col("offset") <= self.offset
        is_not_earlier = sf.col("log_time") >= sf.timestamp_micros(sf.lit(time_us))
        with self.store.errors(CHANGES_TABLE.name):
            first = rows.where(is_published & is_not_earlier).agg(sf.min("offset"))
            found: int | None = first.collect()[0][0]
        return found

    def epoch_start(self, leader_epoch: int) -> int | None:
        """Return the start offset of a leader epoch; None if it is unknown."""
        of_epoch = sf.col("leader_epoch") == leader_epoch
        rows = self.rows(BY_NAME["epochs"], self.offset).where(of_epoch).select("start_offset")
        with self.store.errors(CHANGES_TABLE.name):
            found = rows.collect()
        return found[0][0] if found else None

    def last_time_us(self, offset: int) -> int | None:
        """Return the time of the last change or append up to an offset, or of an expired one."""
        if offset == self.offset:
            return self.progress.log_time
        rows = visible_between(self._changes(), NOTHING, offset)
        time, order = sf.unix_micros("log_time"), sf.struct("visible_offset", "offset", "seq")
        with self.store.errors(CHANGES_TABLE.name):
            found: int | None = rows.agg(sf.max_by(time, order)).collect()[0][0]
        return self.progress.expired_time_us if found is None else found

    def _changes(self) -> DataFrame:
        version = self.versions.changes_version
        rows = _frame(self.store, self.cluster_id, CHANGES_TABLE, version)
        return self._without_reverted(rows, "incarnation", "visible_offset")

    def _log(self) -> DataFrame:
        if self.versions.log_version is None:
            raise no_log(self.place)
        rows = _frame(self.store, self.cluster_id, LOG_TABLE, self.versions.log_version)
        return self._without_reverted(rows, "incarnation", "offset")

    def _without_reverted(self, rows: DataFrame, incarnation: str, offset: str) -> DataFrame:
        """Return rows without those that truncations reverted."""
        progress = self.progress
        if progress.truncated_to is None:
            return rows
        is_current = sf.col(incarnation) >= progress.incarnation
        return rows.where(is_current | (sf.col(offset) <= progress.truncated_to))


def newest_publication(store: SparkStore, cluster_id: str | None) -> Publication | None:
    """Return the newest publication of a cluster, or of the only one; None before the first one.

    Raises:
        As ``pin_newest``.
    """
    versions = pin_newest(store, cluster_id, partial(_pinned, store))
    return None if versions is None else Publication(store=store, versions=versions)


def _pinned(store: SparkStore, cluster_id: str, state_version: int | None) -> PinnedVersions:
    """Return the versions of the other tables, pinned after the version of ``state``."""
    reads: tuple[partial[Any], ...] = (
        partial(_base_progress, store, cluster_id, state_version),
        partial(store.version, CHANGES_TABLE),
    )
    base, changes_version = for_each(lambda read: read(), reads)
    log_version = newest_version(store, LOG_TABLE)
    at_least = NOTHING if base is None else base.offset
    changes = _frame(store, cluster_id, CHANGES_TABLE, changes_version)
    return PinnedVersions(
        cluster_id=cluster_id,
        base=base,
        appended=_appended_progress(store, changes, at_least),
        state_version=state_version,
        changes_version=changes_version,
        log_version=log_version,
    )


def _frame(store: SparkStore, cluster_id: str, table: StoredTable, version: int) -> DataFrame:
    """Return the rows of a cluster in a version of a table."""
    return store.frame(table, version).where(sf.col(CLUSTER_ID) == cluster_id)


def _base_progress(
    store: SparkStore, cluster_id: str, state_version: int | None
) -> Progress | None:
    """Return the progress row of a cluster in a version of ``state``; None without either."""
    if state_version is None:
        return None
    state = _frame(store, cluster_id, STATE_TABLE, state_version)
    rows = state.where(sf.col("entity") == PROGRESS)
    row = sf.struct(f"row.{PROGRESS}").alias("row")
    names = [name for name in STATE_TABLE.columns if name not in ("row", "is_deleted")]
    with store.errors(STATE_TABLE.name):
        return progress_of(rows.select(*names, row).toArrow())


def _appended_progress(store: SparkStore, changes: DataFrame, at_least: int) -> Progress | None:
    """Return the newest progress row of a cluster's ``changes`` from an offset on."""
    is_progress = sf.col("entity") == PROGRESS
    rows = changes.where(is_progress & (sf.col("visible_offset") >= at_least))
    newest = rows.orderBy(sf.col("incarnation").desc(), sf.col("visible_offset").desc()).limit(1)
    origins = ("visible_offset", "leader_epoch", "log_time", "incarnation")
    with store.errors(CHANGES_TABLE.name):
        return progress_of(
            newest.select(
                *("cluster_id", "topic", "partition", "entity"),
                *(sf.col(name).alias(f"_{name}") for name in origins),
                sf.struct(f"after.{PROGRESS}").alias("row"),
            ).toArrow()
        )
