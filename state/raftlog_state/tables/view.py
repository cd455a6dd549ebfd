"""What a cluster looked like at one offset: frames that belong together.

Rules of this file:

1. Every frame of a view is pinned: to Delta versions that one manifest row names, or to a version
   of ``changes``. A view never changes, and its frames never mix two offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from raftlog_state.errors import TablesError

from .asof import rows_at, visible_between
from .manifest import Manifest
from .schema import BY_NAME, CHANGES, LOG, TypedTable
from .store import DeltaStore

_GROWING: Final = (LOG, CHANGES)


class ClusterView:
    """A cluster after ``offset`` (inclusive). Every method but ``create_views`` gives a frame."""

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
        typed = BY_NAME.get(name)
        if typed is not None:
            return self._read_typed(typed)
        if name == CHANGES:
            return visible_between(self._read_growing(CHANGES), -1, self.offset)
        if name == LOG:
            return self._read_growing(LOG).where(sf.col("offset") <= self.offset)
        raise TablesError(
            place=self._place,
            reason=f"unknown table {name}",
            remedy=f"tables are {', '.join((*BY_NAME, *_GROWING))}",
        )

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
        """Make a temporary view of every table, ``<prefix>topics`` and so on; their names."""
        names = (*BY_NAME, *_GROWING)
        for name in names:
            self.table(name).createOrReplaceTempView(prefix + name)
        return tuple(prefix + name for name in names)


def published_view(store: DeltaStore, manifest: Manifest) -> ClusterView:
    """The view of one publication."""
    versions = manifest.table_versions
    return ClusterView(
        store.place,
        manifest.offset,
        lambda table: store.read(table.name, versions[table.name]),
        lambda name: store.read(name, versions[name]),
    )


def replayed_view(
    store: DeltaStore, offset: int, *, changes_version: int, log_version: int
) -> ClusterView:
    """The view of any offset, from the last changes up to it."""
    versions = {CHANGES: changes_version, LOG: log_version}
    return ClusterView(
        store.place,
        offset,
        lambda table: rows_at(store.read(CHANGES, changes_version), table, offset),
        lambda name: store.read(name, versions[name]),
    )
