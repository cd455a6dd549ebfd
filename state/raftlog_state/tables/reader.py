"""``open_tables``: the tables as Arrow, without Spark or Java.

Rules of this file:

1. A view reads the versions of one publication: its tables belong together and never change.
2. Rows are those of ``ClusterTables``, in the same columns and types, from the functions of
   ``latest``.
3. Only rows that can differ are read: changes of the offsets in question, and one entity. For one
   entity, only its field of the structs of rows is read: the others take forty times the memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from raftlog.client.offset_spec import OffsetSpecKind, iso_micros, parse_word
from raftlog.clock import Clock
from raftlog_state.image import MetadataImage
from raftlog_state.image.delta import RecordChanges
from raftlog_state.image.entity_names import RowFilter, matching, row_filters
from raftlog_state.image.rows import Entity, Row

from .convert import US_PER_MS, rows_of
from .latest import (
    changes_of_records,
    difference,
    overlay,
    row_history,
    rows_before,
    state_rows,
    table_rows,
    without_reverted,
)
from .named_tables import NamedTables
from .pinning import PinnedVersions, newest_version, pin_newest
from .progress import (
    IS_NOT_PROGRESS,
    IS_PROGRESS,
    NOTHING,
    check_has_metadata,
    image_of_rows,
    inside_of_transaction,
    progress_of,
)
from .schema import (
    BY_NAME,
    CHANGES,
    CHANGES_TABLE,
    CLUSTER_ID,
    LOG,
    LOG_TABLE,
    METADATA_TABLES,
    STATE_TABLE,
    StoredTable,
    TypedTable,
    id_in_table,
)
from .selection import (
    ClusterStatus,
    OffsetOrTime,
    Published,
    checked_offset,
    key_text,
    no_log,
    nothing_published,
    offset_of_state,
    offsets_between,
    status_of,
    typed_table,
)
from .stores.protocol import (
    Condition,
    TableStore,
    Where,
    columns_of_entity,
    read_version,
    rows_where,
)

pc: Any = pyarrow.compute  # pyarrow creates its functions at import, unseen by type checkers

OFFSETS_READ: Final = 1_000_000
"""Offsets whose times are in memory at a time."""
OFFSETS_REPLAYED: Final = 20_000
"""Offsets whose changes are in memory at a time."""
_CHANGE_ORDER: Final = [(name, "ascending") for name in ("visible_offset", "offset", "seq")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Publication(Published):
    """Versions of the tables that a reader sees together, as Arrow tables."""

    def changes(self, after: int, to: int, *where: Condition) -> pa.Table:
        """Return the changes that took effect after an offset and up to another (inclusive)."""
        return self._changes(after, to, where, None)

    def changes_of(self, table: TypedTable, after: int, to: int) -> pa.Table:
        """Return the changes of a table's rows, of whose structs only its own field is read."""
        of_entity: Condition = ("entity", "=", str(table.entity))
        return self._changes(
            after, to, (of_entity,), columns_of_entity(CHANGES_TABLE, table.entity)
        )

    def _changes(
        self, after: int, to: int, where: Where, columns: tuple[str, ...] | None
    ) -> pa.Table:
        later: Condition = ("visible_offset", ">", after)
        earlier: Condition = ("visible_offset", "<=", to)
        version = self.versions.changes_version
        rows = self._read(CHANGES_TABLE, (later, earlier, *where), columns, version=version)
        rows = without_reverted(rows, self.progress)
        return rows_where(rows, IS_NOT_PROGRESS)

    def rows(self, table: TypedTable, offset: int) -> pa.Table:
        """Return the rows of a table after an offset (inclusive), with their origins."""
        of_entity: Condition = ("entity", "=", str(table.entity))
        base_offset = self.versions.base_offset
        version = self.versions.state_version
        if version is None:
            state = state_rows(self.changes_of(table, NOTHING, offset))
            return with_cluster(table_rows(table, state), id_in_table(table, self.cluster_id))
        columns = columns_of_entity(STATE_TABLE, table.entity)
        state = self._read(STATE_TABLE, (of_entity,), columns, version=version)
        state = without_reverted(state, self.progress)
        if offset > base_offset:
            state = overlay(state, state_rows(self.changes_of(table, base_offset, offset)))
        elif offset < base_offset:
            later = self.changes_of(table, offset, base_offset)
            state = overlay(state, rows_before(later, offset, self.progress.incarnation))
        return with_cluster(table_rows(table, state), id_in_table(table, self.cluster_id))

    def log(self, offset: int) -> pa.Table:
        """Return ``log`` up to an offset. Raises ``TablesError`` without it."""
        return self._log((("offset", "<=", offset),))

    def first_offset_not_earlier(self, time_us: int) -> int | None:
        """Return the first offset with a time >= ``time_us`` in ``log`` or ``changes``, or None.

        Times of a log need not rise, so all offsets are read, ``OFFSETS_READ`` of them at a time.
        """
        end_offset = self.progress.next_offset
        first_end = min(self.progress.oldest_offset + OFFSETS_READ, end_offset)
        ends = [*range(first_end, end_offset, OFFSETS_READ), end_offset]
        for start, end in pairwise((0, *ends)):
            found: list[int] = [
                one.as_py()
                for offsets in self._offsets_not_earlier(time_us, start, end)
                if (one := pc.min(offsets)).is_valid
            ]
            if found:
                return min(found)
        return None

    def _offsets_not_earlier(
        self, time_us: int, start_offset: int, end_offset: int
    ) -> Iterator[pa.ChunkedArray]:
        """Yield the offsets of a range with a time >= ``time_us`` in ``changes`` and ``log``."""
        for table, version, offset in (
            (CHANGES_TABLE, self.versions.changes_version, "visible_offset"),
            (LOG_TABLE, self.versions.log_version, "offset"),
        ):
            if version is not None:
                within: Where = ((offset, ">=", start_offset), (offset, "<", end_offset))
                columns = (offset, "log_time", "incarnation")
                rows = self._read(table, within, columns, version=version)
                rows = without_reverted(rows, self.progress, offset=offset)
                yield rows_where(rows, ("log_time", ">=", time_us))[offset]

    def last_time_us(self, offset: int) -> int | None:
        """Return the time of the last change or append up to an offset, or of an expired one."""
        if offset == self.progress.offset:
            return self.progress.log_time
        rows = self._read(
            CHANGES_TABLE,
            (("visible_offset", "<=", offset),),
            ("visible_offset", "offset", "seq", "log_time", "incarnation"),
            version=self.versions.changes_version,
        )
        rows = without_reverted(rows, self.progress)
        if not rows.num_rows:
            return self.progress.expired_time_us
        found: int | None = rows.sort_by(_CHANGE_ORDER)["log_time"].cast(pa.int64())[-1].as_py()
        return found

    def image(self, offset: int) -> MetadataImage:
        """Return the state after an offset. Raises ``TablesError`` inside a transaction."""
        check_has_metadata(self.place, self.cluster_id, "an image")
        if offset != self.progress.offset:  # appends end outside of transactions
            transactions = self.rows(BY_NAME["transactions"], self.progress.offset)
            later: Condition = ("end_offset", ">", offset + 1)
            found = rows_where(transactions, ("begin_offset", "<=", offset), later)
            if found.num_rows:
                raise inside_of_transaction(self.place, offset, found["begin_offset"][0].as_py())
        rows: list[Row] = []
        for table in METADATA_TABLES:
            rows += rows_of(table.entity, self.rows(table, offset))
        return image_of_rows(rows, self.progress, offset, self.last_time_us(offset))

    def record_changes(
        self, after: int, to: int, filters: Sequence[RowFilter] | None
    ) -> Iterator[RecordChanges]:
        """Yield each change after an offset and up to another (inclusive), in their order.

        They are those of rows that match any of ``filters``; None: of all rows. Memory is that of
        the changes of ``OFFSETS_REPLAYED`` offsets.
        """
        check_has_metadata(self.place, self.cluster_id, "a replay")
        return matching(self._record_changes(after, to, filters), filters)

    def _record_changes(
        self, after: int, to: int, filters: Sequence[RowFilter] | None
    ) -> Iterator[RecordChanges]:
        """Yield the changes of the entities of ``filters``."""
        entities = None if filters is None else {one.entity for one in filters}
        tables = [one for one in METADATA_TABLES if entities is None or one.entity in entities]
        for start in range(after, to, OFFSETS_REPLAYED):
            end = min(start + OFFSETS_REPLAYED, to)
            found = [
                one
                for table in tables
                for one in changes_of_records(table, self.changes_of(table, start, end))
            ]
            found.sort(key=lambda one: (one[1].visible_offset, one[1].offset, one[0]))
            for _, record in found:
                yield record

    def epoch_start(self, leader_epoch: int) -> int | None:
        """Return the start offset of a leader epoch; None if it is unknown."""
        rows = self.rows(BY_NAME["epochs"], self.progress.offset)
        found = rows_where(rows, ("leader_epoch", "=", leader_epoch))
        return found["start_offset"][0].as_py() if found.num_rows else None

    def log_offset(self) -> int:
        """Return the last offset in ``log``, which may be after the published one; -1 without."""
        if self.versions.log_version is None:
            return NOTHING
        for at_least in (self.progress.offset, NOTHING):  # nearly always there is the published one
            rows = self._log((("offset", ">=", at_least),), ("offset", "incarnation"))
            if rows.num_rows:
                return int(pc.max(rows["offset"]).as_py())
        return NOTHING

    def _log(self, where: Where, columns: tuple[str, ...] | None = None) -> pa.Table:
        if self.versions.log_version is None:
            raise no_log(self.place)
        rows = self._read(LOG_TABLE, where, columns, version=self.versions.log_version)
        return without_reverted(rows, self.progress, offset="offset")

    def _read(
        self,
        table: StoredTable,
        where: Where,
        columns: tuple[str, ...] | None = None,
        *,
        version: int,
    ) -> pa.Table:
        """Return rows of this cluster in a version of a table."""
        return _read(self.store, self.cluster_id, table, where, columns, version=version)


class ArrowView(NamedTables[pa.Table]):
    """A cluster after ``offset`` (inclusive). Every method returns an Arrow table."""

    def __init__(self, publication: _Publication, offset: int) -> None:
        self.offset = offset
        self._publication = publication

    def __repr__(self) -> str:
        return f"ArrowView({self.place!r}, offset={self.offset})"

    @property
    def place(self) -> str:
        """Where the tables are."""
        return self._publication.place

    @property
    def cluster_id(self) -> str:
        """The cluster."""
        return self._publication.cluster_id

    @property
    def oldest_offset(self) -> int:
        """The first offset for ``at``."""
        return self._publication.progress.oldest_offset

    def table(self, name: str) -> pa.Table:
        """Return a typed table by name, or ``changes`` or ``log`` up to this offset.

        Raises:
            TablesError: there is no such table.
        """
        if name == CHANGES:
            return self._publication.changes(NOTHING, self.offset)
        if name == LOG:
            return self._publication.log(self.offset)
        typed = typed_table(name, self.place, (CHANGES, LOG))
        return self._publication.rows(typed, self.offset)

    def history(self, name: str) -> pa.Table:
        """Return each version of each row of a typed table, like ``ClusterView.history``.

        Raises:
            TablesError: there is no such table.
        """
        typed = typed_table(name, self.place)
        changes = self._publication.changes_of(typed, NOTHING, self.offset)
        rows = row_history(typed, self._publication.rows(typed, self.offset), changes)
        return with_cluster(rows, id_in_table(typed, self._publication.cluster_id))


class ArrowTables:
    """Tables of a cluster for reading, returned by ``open_tables``. Used by one thread.

    Arguments, results and errors are the same as for ``ClusterTables``, with two differences:
    results are Arrow tables, which DuckDB, Polars and pandas accept, and times as text are in ISO
    8601 or milliseconds.
    """

    def __init__(
        self, store: TableStore, cluster_id: str | None = None, clock: Clock | None = None
    ) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._clock = clock or Clock()

    def __repr__(self) -> str:
        return f"ArrowTables({self._store.place!r})"

    def latest(self) -> ArrowView:
        """Return the newest publication. Raises ``TablesError`` before the first one."""
        publication = self._newest()
        return ArrowView(publication, publication.progress.offset)

    def at(self, *, offset: int | None = None, time: datetime | str | None = None) -> ArrowView:
        """Return the published cluster state after an offset (inclusive) or at a time.

        Args:
            offset: the last offset of the state.
            time: the state before the first record whose timestamp is not earlier, or the newest
                state without such a record, like ``raftlog state --at``. A ``datetime``, in this
                process's time zone if it has none; or text in ISO 8601, in UTC if it has no zone;
                or text with milliseconds since 1970. Also an age such as ``"-15m"``, ``"epoch:5"``
                for the state before that epoch, ``"start"`` or ``"end"``.

        Raises:
            OptionError: neither or both are given, or one is invalid.
            OffsetOutOfRangeError: the tables begin after the offset, or it is not published.
            TablesError: the offset is in a gap, for which a later state was loaded instead of the
                history; or the tables begin after the time.
        """
        publication = self._newest()
        return ArrowView(publication, offset_of_state(publication, offset, time, self._to_micros))

    def history(self, name: str) -> pa.Table:
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
    ) -> pa.Table:
        """Return the published changes between two states, in the order in which they took effect.

        Args:
            table, key, entity, name, partitions, since, until: as for ``ClusterTables.changes``.

        Raises:
            The errors of ``at``; OptionError: ``since`` is after ``until``; TablesError: there is
            no such table.
        """
        where: list[Condition] = []
        publication = self._newest()
        between = offsets_between(publication, since, until, self._to_micros)
        if table is not None:
            of_table: Entity = typed_table(table, publication.place).entity
            where.append(("entity", "=", str(of_table)))
        if key is not None:
            where.append(("key", "=", key_text(key)))
        if entity is None and name is None:
            return publication.changes(*between, *where).sort_by(_CHANGE_ORDER)
        found = []
        for one in row_filters(entity, name, partitions=partitions):
            of_entity: Condition = ("entity", "=", str(one.entity))
            rows = publication.changes(*between, *where, of_entity)
            found.append(rows.filter(_matching(rows, one)))
        return pa.concat_tables(found).sort_by(_CHANGE_ORDER)

    def diff(self, since: OffsetOrTime, until: OffsetOrTime | None = None) -> pa.Table:
        """Return the rows that differ between two published states, like ``ClusterTables.diff``.

        Raises:
            The errors of ``changes``.
        """
        publication = self._newest()
        between = offsets_between(publication, since, until, self._to_micros)
        return with_cluster(difference(publication.changes(*between)), publication.cluster_id)

    def image(self, offset: int | None = None) -> MetadataImage:
        """Return the state after ``offset`` (inclusive; None: newest publication) as an image.

        Raises:
            The errors of ``at`` and ``latest``; TablesError: ``offset`` is inside a metadata
            transaction.
        """
        publication = self._newest()
        return publication.image(checked_offset(publication, offset, "offset"))

    def record_changes(
        self, since: int, until: int, filters: Sequence[RowFilter] | None = None
    ) -> Iterator[RecordChanges]:
        """Yield the changes after an offset up to another (inclusive), as from a log.

        Each is a change of one row with its record's position. Offsets are those of states, but
        ``since`` may be -1: the start of the log. ``filters``: which rows; None: all of them.
        """
        publication = self._newest()
        last = checked_offset(publication, until, "until")
        return publication.record_changes(since, last, filters)

    def status(self) -> ClusterStatus:
        """Return the offsets that the tables have reached."""
        publication = _newest_publication(self._store, self._cluster_id)
        log_offset = NOTHING if publication is None else publication.log_offset()
        return status_of(self._store.place, self._cluster_id, publication, log_offset)

    def _newest(self) -> _Publication:
        publication = _newest_publication(self._store, self._cluster_id)
        if publication is None:
            raise nothing_published(self._store.place, self._cluster_id)
        self._cluster_id = publication.cluster_id  # also if others are added later
        return publication

    def _to_micros(self, time: datetime | str) -> int | None:
        return to_micros(time, self._clock.wall_ms())


def open_tables(path: str, *, cluster_id: str | None = None) -> ArrowTables:
    """Open tables in a local directory for reading, without Spark or Java.

    Args:
        path: path of the directory with a subdirectory for each table, which contains a slash, or
            a ``file:`` URI.
        cluster_id: the cluster to read, if there are several.

    Raises:
        TablesError: deltalake is not installed (``pip install "raftlog[delta]"``), or the path is
            not local.
    """
    from .stores.delta_rs import DeltaRsStore

    return ArrowTables(DeltaRsStore(path), cluster_id)


def to_micros(time: datetime | str, now_ms: int) -> int | None:
    """Return a time or an age in microseconds since 1970; None for text that is neither."""
    if isinstance(time, str):
        spec = parse_word(time)
        if spec is not None and spec.kind is OffsetSpecKind.AGE:
            return spec.at(now_ms).number * US_PER_MS
        return iso_micros(time)
    try:
        return iso_micros(time.astimezone(UTC).isoformat())
    except (ValueError, OverflowError):
        return None


def _matching(rows: pa.Table, wanted: RowFilter) -> pa.ChunkedArray:
    """Return for which changes of an entity a filter selects the row, after or before."""

    def column(name: str) -> pa.ChunkedArray:
        path = [str(wanted.entity), name]
        return pc.coalesce(*(pc.struct_field(rows[side], path) for side in ("after", "before")))

    mask = pc.equal(rows["entity"], str(wanted.entity))
    for name, value in wanted.values:
        values = column(name)
        mask = pc.and_kleene(mask, pc.equal(values, pa.scalar(value, values.type)))
    if wanted.quota_of:
        mask = pc.and_kleene(mask, pc.match_substring(column("entity_key"), wanted.quota_of))
    return mask


def _newest_publication(store: TableStore, cluster_id: str | None) -> _Publication | None:
    """Return the newest publication of a cluster, or of the only one; None before the first one.

    Raises:
        As ``pin_newest``.
    """
    versions = pin_newest(store, cluster_id, partial(_pinned, store))
    return None if versions is None else _Publication(store=store, versions=versions)


def _pinned(store: TableStore, cluster_id: str, state_version: int | None) -> PinnedVersions:
    """Return the versions of the other tables, which are pinned after that of ``state``."""
    base = None
    if state_version is not None:
        rows = _read(store, cluster_id, STATE_TABLE, (IS_PROGRESS,), version=state_version)
        base = progress_of(rows)
    changes_version = store.version(CHANGES_TABLE)
    at_least: Condition = ("visible_offset", ">=", NOTHING if base is None else base.offset)
    where = (IS_PROGRESS, at_least)
    rows = _read(store, cluster_id, CHANGES_TABLE, where, version=changes_version)
    return PinnedVersions(
        cluster_id=cluster_id,
        base=base,
        appended=progress_of(state_rows(rows)),
        state_version=state_version,
        changes_version=changes_version,
        log_version=newest_version(store, LOG_TABLE),
    )


def with_cluster(rows: pa.Table, cluster_id: str) -> pa.Table:
    """Return rows with ``cluster_id`` as their first column."""
    column = pa.repeat(pa.scalar(cluster_id, pa.string()), rows.num_rows)
    return rows.add_column(0, pa.field(CLUSTER_ID, pa.string()), column)


def _read(
    store: TableStore,
    cluster_id: str,
    table: StoredTable,
    where: Where,
    columns: tuple[str, ...] | None = None,
    *,
    version: int,
) -> pa.Table:
    of_cluster: Condition = (CLUSTER_ID, "=", cluster_id)
    return read_version(store, table, version, (of_cluster, *where), columns)
