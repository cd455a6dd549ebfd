"""The state of a cluster at one offset: frames that belong together.

Rules of this file:

1. Every frame of a view is pinned to Delta versions that one manifest row names, and to versions of
   ``log`` and ``changes``. A view never changes, and its frames never mix two offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from raftlog_state.errors import TablesError

from .history import row_history, rows_before, visible_between
from .manifest import Manifest
from .schema import BY_NAME, CHANGES, LOG, TypedTable
from .store import DeltaStore

_GROWING: Final = (LOG, CHANGES)


class ClusterView:
    """A cluster after ``offset`` (inclusive). Every method but ``create_views`` returns a frame."""

    def __init__(
        self,
        place: str,
        offset: int,
        read_typed: Callable[[TypedTable], DataFrame],
        read_growing: Callable[[str], DataFrame],
    ) -> None:
        self.offset = offset
        self._place = place
        self._read_typed = read_typed
        self._read_growing = read_growing

    def __repr__(self) -> str:
        return f"ClusterView({self._place!r}, offset={self.offset})"

    @property
    def place(self) -> str:
        """Where the tables are."""
        return self._place

    def table(self, name: str) -> DataFrame:
        """A typed table by name, or ``changes`` or ``log`` up to this offset.

        Raises:
            TablesError: there is no such table.
        """
        if name == CHANGES:
            return visible_between(self._read_growing(CHANGES), -1, self.offset)
        if name == LOG:
            return self._read_growing(LOG).where(sf.col("offset") <= self.offset)
        return self._read_typed(typed_table(name, self._place, _GROWING))

    def history(self, name: str) -> DataFrame:
        """Return each version of each row of a typed table up to this offset.

        Columns besides the table's own: ``valid_from`` (inclusive) and ``valid_to`` (exclusive),
        the offsets at which the version took effect and was replaced; ``written_time`` and
        ``replaced_time``, the times of the records that did so. ``valid_to`` is null for the rows
        of this view. In a metadata transaction these records are before ``valid_from`` and
        ``valid_to``, which are offsets of its end marker. A record that repeats the values of a row
        begins a version. In a gap without history the offsets are those of the snapshot that ends
        it.

        Raises:
            TablesError: there is no such table.
        """
        typed = typed_table(name, self._place)
        return row_history(typed, self._read_typed(typed), self.table(CHANGES))

    def topics(self) -> DataFrame:
        """Topics by id."""
        return self.table("topics")

    def partitions(self) -> DataFrame:
        """Partitions: replicas, ISR, leader, epochs, directories."""
        return self.table("partitions")

    def brokers(self) -> DataFrame:
        """Registered brokers."""
        return self.table("brokers")

    def controllers(self) -> DataFrame:
        """Registered controllers."""
        return self.table("controllers")

    def configs(self) -> DataFrame:
        """Dynamic configs; secret values are redacted."""
        return self.table("configs")

    def acls(self) -> DataFrame:
        """Access rules."""
        return self.table("acls")

    def quotas(self) -> DataFrame:
        """Client quotas."""
        return self.table("quotas")

    def features(self) -> DataFrame:
        """Finalized features; ``metadata.version`` is one."""
        return self.table("features")

    def producer_ids(self) -> DataFrame:
        """Next producer id to allocate: one row."""
        return self.table("producer_ids")

    def scram(self) -> DataFrame:
        """SCRAM credentials; salts and keys are redacted."""
        return self.table("scram")

    def tokens(self) -> DataFrame:
        """Delegation tokens."""
        return self.table("tokens")

    def epochs(self) -> DataFrame:
        """Leader epochs: leader, start and end offset, voters."""
        return self.table("epochs")

    def transactions(self) -> DataFrame:
        """Metadata transactions that have ended."""
        return self.table("transactions")

    def create_views(self, prefix: str = "") -> tuple[str, ...]:
        """Create a temporary view of each table and history; return their names.

        They are ``<prefix>topics``, ``<prefix>topics_history``, and so on.
        """
        frames = {name: self.table(name) for name in (*BY_NAME, *_GROWING)}
        for name, typed in BY_NAME.items():
            frames[f"{name}_history"] = row_history(typed, frames[name], frames[CHANGES])
        for name, frame in frames.items():
            frame.createOrReplaceTempView(prefix + name)
        return tuple(prefix + name for name in frames)


def typed_table(name: str, place: str, others: tuple[str, ...] = ()) -> TypedTable:
    """Return a typed table by its name. Raises ``TablesError``, which also lists ``others``."""
    found = BY_NAME.get(name)
    if found is None:
        raise TablesError(
            place=place,
            reason=f"unknown table {name}",
            remedy=f"tables are {', '.join((*BY_NAME, *others))}",
        )
    return found


def published_view(store: DeltaStore, manifest: Manifest) -> ClusterView:
    """Return the view of one publication."""
    versions = manifest.table_versions
    return ClusterView(
        store.place,
        manifest.offset,
        lambda table: store.read(table.name, versions[table.name]),
        lambda name: store.read(name, versions[name]),
    )


def view_before(store: DeltaStore, offset: int, manifest: Manifest) -> ClusterView:
    """Return the view of an offset up to that of a publication."""
    versions = manifest.table_versions
    since = visible_between(store.read(CHANGES, versions[CHANGES]), offset, manifest.offset)

    def rows(table: TypedTable) -> DataFrame:
        return rows_before(table, offset, store.read(table.name, versions[table.name]), since)

    return ClusterView(store.place, offset, rows, lambda name: store.read(name, versions[name]))
