"""Publication: the typed tables follow ``changes``, then one manifest row names them all.

Rules of this file:

1. Only tables whose rows changed are written, each with the last change of every key. A repeated or
   late MERGE changes nothing: a row is replaced only by that of a later offset.
2. The manifest row is written last. After a crash before it readers have the previous publication,
   and the next one writes the same tables again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as sf

import raftlog
from raftlog_state.errors import ConcurrentWriterError
from raftlog_state.image import MetadataImage
from raftlog_state.image.delta import Op

from .convert import MICROSECONDS
from .history import OP
from .manifest import Manifest
from .parallel import for_each
from .pending import Pending, source_schema
from .progress import Progress
from .schema import (
    CHANGES,
    COMMITS,
    COMMITS_COLUMNS,
    GROWING_TABLES,
    KIND_APPLY,
    KIND_BOOTSTRAP,
    KIND_TRUNCATE,
    LOG,
    ORIGIN_COLUMNS,
    TYPED_TABLES,
    TypedTable,
    struct,
)
from .store import DeltaStore, one_file

SOFTWARE: Final = f"raftlog {raftlog.__version__}"


class Publisher:
    """Brings the typed tables to where ``changes`` is, and writes manifest rows."""

    def __init__(self, store: DeltaStore, *, after_step: Callable[[str], None]) -> None:
        self._store = store
        self._step = after_step

    def publish(self, progress: Progress, image: MetadataImage) -> Manifest:
        """Bring the typed tables to ``progress.folded_offset``, the state of which is ``image``.

        Raises:
            TablesError: Delta refused; readers see what they saw before.
        """
        before = progress.manifest
        to = progress.folded_offset
        if before is not None and before.offset == to:
            return before
        assert image.offset == to, "the image is that of the changes"
        versions = dict(before.table_versions) if before is not None else {}
        versions |= self._follow(progress, first_time=before is None)
        assert progress.log_version is not None
        assert progress.changes_version is not None
        versions |= {LOG: progress.log_version, CHANGES: progress.changes_version}
        manifest = self._manifest(progress, image, versions)
        self.write(manifest, txn_version=progress.published_offset + 1)
        progress.manifest = manifest
        progress.pending = Pending()
        progress.gaps.clear()
        return manifest

    def write(self, manifest: Manifest, *, txn_version: int) -> None:
        """Append one manifest row; ``txn_version`` is the end of the one before it.

        Raises:
            ConcurrentWriterError: another writer published first.
        """
        frame = self._store.frame(manifest.to_arrow(), struct(COMMITS_COLUMNS))
        written = {"incarnation": manifest.incarnation, "offset": manifest.offset, "at": _now()}
        self._store.append(
            GROWING_TABLES[COMMITS],
            frame.coalesce(1),
            app_id=f"raftlog-{COMMITS}-{manifest.cluster_id or 'unknown'}-{manifest.incarnation}",
            txn_version=txn_version,
            written=written,
        )
        if not any(commit.written == written for commit in self._store.history(COMMITS, 2)):
            raise ConcurrentWriterError(
                place=self._store.place,
                reason="another writer has published first",
                remedy="run one writer at a time; its write is complete, so run this one again",
            )
        self._step(COMMITS)

    # --- tables -----------------------------------------------------------------------------------

    def _follow(self, progress: Progress, *, first_time: bool) -> dict[str, int]:
        """Write the tables that changed; their new versions."""

        def follow(table: TypedTable) -> tuple[str, int]:
            if first_time and not self._store.exists(table.name):
                self._make(progress, table)
            else:
                self._merge(progress, table)
            self._step(f"table {table.name}")
            return table.name, self._store.version(table.name)

        return dict(for_each(follow, TYPED_TABLES if first_time else progress.pending.tables()))

    def _make(self, progress: Progress, table: TypedTable) -> None:
        rows = progress.pending.rows(table, with_deleted=False)
        frame = self._store.frame(rows, source_schema(table)).drop(OP)
        self._store.append(
            table,
            one_file(frame, rows),
            app_id=progress.app_id(table.name),
            txn_version=0,
            written={"incarnation": progress.incarnation, "to": progress.folded_offset},
        )

    def _merge(self, progress: Progress, table: TypedTable) -> None:
        rows = progress.pending.rows(table, with_deleted=True)
        source = self._store.frame(rows, source_schema(table)).alias("s")
        is_newer = sf.struct("s._visible_offset", "s._offset") > sf.struct(
            "t._visible_offset", "t._offset"
        )
        is_deleted = sf.col(f"s.{OP}") == Op.DELETE.value
        values: dict[str, str | Column] = {
            name: sf.col(f"s.{name}") for name in (*table.columns, *ORIGIN_COLUMNS)
        }
        with self._store.errors(table.name):
            (
                self._store.delta_table(table.name)
                .alias("t")
                .merge(source, _same_key(table))
                .whenMatchedDelete(is_deleted & is_newer)
                .whenMatchedUpdate(~is_deleted & is_newer, values)
                .whenNotMatchedInsert(~is_deleted, values)
                .execute()
            )

    # --- the manifest row -------------------------------------------------------------------------

    def _manifest(
        self, progress: Progress, image: MetadataImage, versions: Mapping[str, int]
    ) -> Manifest:
        gaps = progress.gaps
        return Manifest(
            cluster_id=progress.cluster_id,
            topic=progress.topic,
            partition=progress.partition,
            incarnation=progress.incarnation,
            offset=image.offset,
            from_offset=progress.published_offset + 1,
            kind=KIND_BOOTSTRAP if gaps else KIND_APPLY,
            leader_epoch=image.leader_epoch,
            log_time=None if image.timestamp_ms < 0 else image.timestamp_ms * MICROSECONDS,
            max_log_time=progress.max_log_time,
            committed_at=_now(),
            table_versions=versions,
            row_counts={table.name: len(image.map(table.entity)) for table in TYPED_TABLES},
            image_digest=image.digest(),
            metadata_version=image.metadata_version,
            gap_from=min(first for first, _ in gaps) if gaps else None,
            gap_to=max(last for _, last in gaps) if gaps else None,
            software=SOFTWARE,
        )


def _same_key(table: TypedTable) -> Column:
    same = [sf.col(f"s.{name}") == sf.col(f"t.{name}") for name in table.key]
    return reduce(Column.__and__, same, sf.lit(True))


def truncation_of(target: Manifest, *, incarnation: int) -> Manifest:
    """The manifest row that takes readers and writers back to ``target``."""
    return replace(
        target,
        incarnation=incarnation,
        kind=KIND_TRUNCATE,
        from_offset=target.offset + 1,
        committed_at=_now(),
        gap_from=None,
        gap_to=None,
        software=SOFTWARE,
    )


def _now() -> int:
    since = datetime.now(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
