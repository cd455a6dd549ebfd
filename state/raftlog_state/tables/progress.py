"""How far the tables are, as Delta says it: what a writer must know before it writes.

Rules of this file:

1. Delta is the authority: nothing here trusts a streaming checkpoint or another process's memory.
2. ``log`` may be ahead of ``changes`` (a crash between two appends), ``changes`` ahead of the typed
   tables (they follow at their own pace), never the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import functions as sf

from raftlog_state.errors import TablesError
from raftlog_state.image import MetadataImage, Quorum
from raftlog_state.image.rows import EpochRow, Row
from raftlog_state.loader.metadata_loader import MetadataLoader

from .convert import MICROSECONDS
from .history import visible_between
from .manifest import Manifest, newest_manifest
from .origins import RowOrigins
from .pending import Pending
from .schema import CHANGES, CHANGES_COLUMNS, KIND_TRUNCATE, LOG
from .store import DeltaStore

NOTHING: Final = -1
"""The last offset of tables that hold nothing."""


@dataclass(slots=True, kw_only=True)
class Progress:
    """End offsets of the three levels. Offsets are inclusive; owned by one thread.

    ``changes_to`` is the end in the newest commit of ``changes``, which its next commit must
    follow. ``pending`` are the changes since the manifest; ``gaps`` are the offsets, first and
    last, that checkpoints replaced since then.
    """

    incarnation: int = 0
    cluster_id: str | None = None
    topic: str = ""
    partition: int = 0
    log_offset: int = NOTHING
    log_epoch: int = NOTHING
    log_time: int | None = None
    changes_to: int = NOTHING
    folded_offset: int = NOTHING
    manifest: Manifest | None = None
    log_version: int | None = None
    changes_version: int | None = None
    max_log_time: int | None = None
    pending: Pending = field(default_factory=Pending)
    gaps: list[tuple[int, int]] = field(default_factory=list)

    @property
    def published_offset(self) -> int:
        """What the typed tables hold."""
        return NOTHING if self.manifest is None else self.manifest.offset

    def see_log_end(self, written: Mapping[str, Any]) -> None:
        """Set the end of ``log`` from the commit info of its last write."""
        self.log_offset, self.log_epoch = int(written["to"]), int(written["epoch"])
        self.log_time = written["time"]
        self.cluster_id, self.topic = written["cluster"], str(written["topic"])
        self.partition = int(written["partition"])

    def app_id(self, table: str) -> str:
        """Return Delta's ``txnAppId`` for writes to a table."""
        return f"raftlog-{table}-{self.cluster_id or 'unknown'}-{self.incarnation}"

    def saw_time(self, microseconds: int | None) -> None:
        """Keep the latest log time."""
        if microseconds is not None:
            self.max_log_time = max(self.max_log_time or microseconds, microseconds)

    @property
    def is_truncating(self) -> bool:
        """Whether the newest manifest row is a truncation's: its restores may not all be done."""
        return self.manifest is not None and self.manifest.kind == KIND_TRUNCATE


def read_progress(store: DeltaStore) -> Progress:
    """Read the progress of the tables. It is valid only if no truncation is unfinished."""
    progress = Progress()
    if not store.exists(LOG):
        return progress
    manifest = newest_manifest(store)
    if manifest is not None:
        progress.manifest = manifest
        progress.incarnation = manifest.incarnation
        progress.max_log_time = manifest.max_log_time
    _read_log_end(store, progress)
    _read_changes_end(store, progress)
    if progress.log_offset > progress.published_offset:
        _read_unpublished(store, progress)
    return progress


def _read_log_end(store: DeltaStore, progress: Progress) -> None:
    progress.log_version, written = store.newest(LOG, progress.incarnation)
    if written is None:
        last = (
            store.read(LOG, progress.log_version)
            .orderBy(sf.col("offset").desc())
            .limit(1)
            .select(
                sf.col("offset").alias("to"),
                sf.col("leader_epoch").alias("epoch"),
                sf.unix_micros("log_time").alias("time"),
                sf.col("cluster_id").alias("cluster"),
                "topic",
                "partition",
            )
            .collect()
        )
        written = last[0].asDict() if last else None
    if written is not None:
        progress.see_log_end(written)


def _read_changes_end(store: DeltaStore, progress: Progress) -> None:
    progress.changes_to = progress.folded_offset = progress.published_offset
    if store.exists(CHANGES):
        check_layout(store)
        progress.changes_version, written = store.newest(CHANGES, progress.incarnation)
        if written is not None:
            progress.changes_to = int(written["to"])
            progress.folded_offset = max(progress.folded_offset, progress.changes_to)


def check_layout(store: DeltaStore) -> None:
    """Raise ``TablesError`` if ``changes`` has not all columns: an earlier release created it."""
    missing = set(CHANGES_COLUMNS) - set(store.read(CHANGES).columns)
    if missing:
        raise TablesError(
            place=store.place,
            reason=f"table {CHANGES} was created by an earlier release: it has no column "
            f"{min(missing)}",
            remedy="create new tables at another location from the log",
        )


def _read_unpublished(store: DeltaStore, progress: Progress) -> None:
    """What a publication will have to say of the records since the last one."""
    if progress.folded_offset > progress.published_offset:
        changes = store.read(CHANGES, progress.changes_version)
        since = visible_between(changes, progress.published_offset, progress.folded_offset)
        progress.pending = Pending.read(since)
    rows = store.read(LOG).where(sf.col("offset") > progress.published_offset)
    found = rows.agg(sf.unix_micros(sf.max("log_time")).alias("latest")).collect()
    progress.saw_time(found[0]["latest"])
    ends = rows.where(sf.col("snapshot_position") == 0).select("offset").collect()
    for end in sorted(row["offset"] for row in ends):
        before = store.read(LOG).where(sf.col("offset") < end).agg(sf.max("offset")).collect()
        last = before[0][0]
        progress.gaps.append((0 if last is None else last + 1, end))


def read_state(store: DeltaStore, progress: Progress) -> tuple[MetadataLoader, RowOrigins]:
    """Return the state at ``folded_offset`` from ``changes``, and the origins of its rows."""
    offset = progress.folded_offset
    if offset == NOTHING:
        return MetadataLoader(), RowOrigins()
    rows, origins = Pending.read(
        visible_between(store.read(CHANGES, progress.changes_version), NOTHING, offset)
    ).living()
    epoch, time = _epoch_and_time(store, progress, offset)
    image = MetadataImage.from_rows(
        rows,
        offset=offset,
        leader_epoch=epoch,
        timestamp_ms=-1 if time is None else time // MICROSECONDS,
        quorum=quorum_of(rows),
    )
    return MetadataLoader(image), origins


def _epoch_and_time(store: DeltaStore, progress: Progress, offset: int) -> tuple[int, int | None]:
    """Leader epoch and log time, in microseconds, of the record at an offset."""
    if offset == progress.log_offset:
        return progress.log_epoch, progress.log_time
    place = store.read(LOG, progress.log_version).where(sf.col("offset") == offset)
    at = place.select("leader_epoch", sf.unix_micros("log_time").alias("time")).limit(1).collect()
    if not at:
        raise TablesError(
            place=store.place,
            reason=f"table {LOG} does not contain offset {offset}, but table {CHANGES} does",
            remedy="call truncate_to with an earlier offset, or create new tables",
        )
    return at[0]["leader_epoch"], at[0]["time"]


def quorum_of(rows: list[Row]) -> Quorum:
    """What the last epoch knew of its voters; kraft.version 0 keeps them elsewhere."""
    epochs = [row for row in rows if isinstance(row, EpochRow)]
    last = max(epochs, key=lambda row: row.leader_epoch, default=None)
    if last is None or last.kraft_version == 0:
        return Quorum()
    return Quorum(kraft_version=last.kraft_version, voters=last.voters)
