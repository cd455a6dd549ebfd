"""The manifest: which Delta version of every table holds the state at which offset.

Rules of this file:

1. A publication counts once its row is in ``commits``; a version that no row names does not exist
   for readers.
2. After a truncation the rows after it are dead: the versions that they name exist, but were never
   committed by Kafka. A row is live if no later incarnation began below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as sf

from .schema import COMMITS, COMMITS_COLUMNS, KIND_TRUNCATE, arrow_schema, struct
from .store import DeltaStore

COMMITS_ARROW = arrow_schema(struct(COMMITS_COLUMNS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One publication. Offsets are inclusive, times microseconds since 1970 UTC."""

    cluster_id: str | None
    topic: str
    partition: int
    incarnation: int
    offset: int
    from_offset: int
    kind: str
    leader_epoch: int
    log_time: int | None
    max_log_time: int | None
    committed_at: int
    table_versions: Mapping[str, int]
    row_counts: Mapping[str, int]
    image_digest: str
    metadata_version: int | None
    gap_from: int | None
    gap_to: int | None
    software: str

    @classmethod
    def of(cls, columns: Mapping[str, Any]) -> Manifest:
        """From a row of ``commits``, its times in microseconds."""
        names = cls.__dataclass_fields__
        found: dict[str, Any] = {n: value for n, value in columns.items() if n in names}
        for name in ("table_versions", "row_counts"):
            found[name] = dict(found[name])
        return cls(**found)

    def to_arrow(self) -> pa.Table:
        """A table of this row."""
        columns = {name: getattr(self, name) for name in self.__dataclass_fields__}
        columns["table_versions"] = list(self.table_versions.items())
        columns["row_counts"] = list(self.row_counts.items())
        columns |= {"high_watermark": None, "_writer_epoch": 0}
        return pa.Table.from_pylist([columns], schema=COMMITS_ARROW)


def newest_manifest(store: DeltaStore) -> Manifest | None:
    """The last publication; None before the first one."""
    if not store.exists(COMMITS):
        return None
    frame = store.read(COMMITS)
    newest = store.newest_change(COMMITS).written
    if newest is not None:
        # the commit says which row it wrote, so that one file is read and not all of them
        frame = frame.where(
            (sf.col("offset") == newest["offset"])
            & (sf.col("incarnation") == newest["incarnation"])
        )
    return max(_manifests(frame.toArrow()), key=_order, default=None)


def newest_live(store: DeltaStore, offset: int) -> Manifest | None:
    """The newest publication at or below ``offset`` that no truncation took back."""
    if not store.exists(COMMITS):
        return None
    rows = list(_manifests(store.read(COMMITS).toArrow()))
    return max((row for row in live(rows) if row.offset <= offset), key=_order, default=None)


def live(rows: Iterable[Manifest]) -> list[Manifest]:
    """The rows that no truncation took back."""
    known = sorted(rows, key=_order)
    floors = {row.incarnation: row.offset for row in known if row.kind == KIND_TRUNCATE}
    return [
        row
        for row in known
        if all(row.offset <= at for later, at in floors.items() if later > row.incarnation)
    ]


def _manifests(table: pa.Table) -> Iterable[Manifest]:
    plain = [
        part.with_type(pa.int64()) if pa.types.is_timestamp(part.type) else part
        for part in table.schema
    ]
    return map(Manifest.of, table.cast(pa.schema(plain)).to_pylist())


def _order(row: Manifest) -> tuple[int, int, int]:
    return row.incarnation, row.offset, row.committed_at
