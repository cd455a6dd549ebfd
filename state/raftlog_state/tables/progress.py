"""Progress: the end of the tables, as recorded in the newest progress row.

Rules of this file:

1. Each append to ``changes`` has one progress row, so the append is the publication. ``state`` has
   the progress row of the offset that it includes. Like the tables' other rows, each is of one
   cluster.
2. The newest progress row has the greatest (incarnation, offset). A truncation increases the
   incarnation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

import raftlog
from raftlog.errors import OffsetOutOfRangeError, WrongClusterError
from raftlog_state.errors import TablesError
from raftlog_state.image import EpochRow, MetadataImage, Quorum
from raftlog_state.image.rows import INTERNAL_ENTITIES, Row
from raftlog_state.records.internal_logs import is_internal

from .convert import milliseconds, plain_values
from .schema import (
    BY_ENTITY,
    CHANGES_TABLE,
    COMMITS_OF_EARLIER_RELEASES,
    METADATA_TABLES,
    PROGRESS,
    PROGRESS_COLUMNS,
    PROGRESS_OP,
    STATE_TABLE,
)
from .stores.protocol import Condition, TableStore, rows_where

pc: Any = pyarrow.compute  # pyarrow creates its functions at import, unseen by type checkers

NOTHING: Final = -1
"""The last offset of empty tables."""
SOFTWARE: Final = f"raftlog {raftlog.__version__}"
PROGRESS_KEY: Final = "[]"
PROGRESS_SEQ: Final = -1
CLUSTERS_LISTED_MAX: Final = 10
_PLAIN: Final = (
    *("cluster_id", "topic", "partition"),
    *("_incarnation", "_visible_offset", "_leader_epoch", "_log_time"),
)
"""Columns of ``state`` that are fields of ``Progress``."""
IS_PROGRESS: Final[Condition] = ("entity", "=", PROGRESS)
IS_NOT_PROGRESS: Final[Condition] = ("entity", "!=", PROGRESS)


Gap = tuple[int, int]
"""First and last offset whose history a snapshot, or a whole internal log's state, replaced.

The state at the last one is known.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """End of the tables after an append. Offsets are inclusive, times microseconds since 1970.

    ``cluster_id`` is the cluster id of the tables' rows, None before the first append.
    ``leader_epoch`` and ``log_time`` belong to the record at ``offset``. For the other fields see
    ``PROGRESS_COLUMNS``.
    """

    cluster_id: str | None = None
    log_cluster_id: str | None = None
    topic: str = ""
    partition: int = 0
    incarnation: int = 0
    offset: int = NOTHING
    leader_epoch: int = NOTHING
    log_time: int | None = None
    from_offset: int = 0
    first_offset: int | None = None
    expired_to: int | None = None
    expired_time_us: int | None = None
    truncated_to: int | None = None
    gaps: tuple[Gap, ...] = ()
    metadata_version: int | None = None
    row_counts: Mapping[str, int] = field(default_factory=dict)
    group: str | None = None
    group_versions: Mapping[str, int] = field(default_factory=dict)
    software: str = SOFTWARE

    @property
    def next_offset(self) -> int:
        """The first offset of the next append."""
        return self.offset + 1

    @property
    def oldest_offset(self) -> int:
        """The first offset whose state can be read."""
        return max(self.first_offset or 0, self.expired_to or 0)

    @property
    def is_start_of_incarnation(self) -> bool:
        """Whether an incarnation after the first one has no append yet."""
        return self.truncated_to is not None and self.truncated_to == self.offset

    def check_readable(self, place: str, offset: int) -> None:
        """Raise ``OffsetOutOfRangeError`` if the tables begin after an offset, or end before it."""
        if not self.oldest_offset <= offset < self.next_offset:
            raise OffsetOutOfRangeError(
                path=place,
                offset=offset,
                log_start_offset=self.oldest_offset,
                log_end_offset=self.next_offset,
            )

    def is_in_gap(self, offset: int) -> bool:
        """Return whether an offset's state is unknown because a later one was loaded instead."""
        return any(first <= offset < last for first, last in self.gaps)

    def appended_by(self, group: str, version: int) -> Progress:
        """Return this progress as a group appends it in its transaction of this version."""
        return replace(self, group_versions={**self.group_versions, group: version})

    def changes_row(self, committed_at: int) -> pa.Table:
        """Return the progress row of ``changes``; ``committed_at`` in microseconds."""
        return changes_progress([self], committed_at)

    def changes_columns(self, committed_at: int) -> dict[str, Any]:
        """Return the columns of the progress row of ``changes``."""
        return {
            **self._shared(),
            "offset": self.offset,
            "seq": PROGRESS_SEQ,
            "visible_offset": self.offset,
            "leader_epoch": self.leader_epoch,
            "log_time": self.log_time,
            "record_type": None,
            "op": PROGRESS_OP,
            "changed": [],
            "before": None,
            "after": self._row(),
            "before_origin": None,
            "incarnation": self.incarnation,
            "committed_at": committed_at,
        }

    def state_row(self) -> pa.Table:
        """Return the progress row of ``state``."""
        columns = {
            **self._shared(),
            "is_deleted": False,
            "row": self._row(),
            "_offset": self.offset,
            "_visible_offset": self.offset,
            "_leader_epoch": self.leader_epoch,
            "_log_time": self.log_time,
            "_created_offset": self.offset,
            "_incarnation": self.incarnation,
        }
        return pa.Table.from_pylist([columns], schema=STATE_TABLE.schema)

    def _shared(self) -> dict[str, Any]:
        return {
            "cluster_id": self.cluster_id,
            "topic": self.topic,
            "partition": self.partition,
            "entity": PROGRESS,
            "key": PROGRESS_KEY,
        }

    def _row(self) -> dict[str, Any]:
        found: dict[str, Any] = {name: getattr(self, name) for name in PROGRESS_COLUMNS}
        found["gaps"] = [{"first": first, "last": last} for first, last in self.gaps]
        found["row_counts"] = list(self.row_counts.items())
        found["group_versions"] = list(self.group_versions.items())
        return {PROGRESS: found}


def changes_progress(found: Iterable[Progress], committed_at: int) -> pa.Table:
    """Return the progress rows of ``changes``; ``committed_at`` in microseconds."""
    rows = [progress.changes_columns(committed_at) for progress in found]
    return pa.Table.from_pylist(rows, schema=CHANGES_TABLE.schema)


def progress_of(rows: pa.Table) -> Progress | None:
    """Return the newest progress in rows of ``state``, or None if there is no progress row."""
    found = _progress_rows(rows)
    if found.num_rows == 0:
        return None
    ends = zip(
        found["_incarnation"].to_pylist(),
        found["_visible_offset"].to_pylist(),
        range(found.num_rows),
        strict=True,
    )
    return _all_progress(found.slice(max(ends)[2], 1))[0]


def _progress(plain: Mapping[str, Any], detail: Mapping[str, Any]) -> Progress:
    """Return the progress in a row of ``state``, from its plain columns and its struct."""
    return Progress(
        cluster_id=plain["cluster_id"],
        topic=plain["topic"],
        partition=plain["partition"],
        incarnation=plain["_incarnation"],
        offset=plain["_visible_offset"],
        leader_epoch=plain["_leader_epoch"],
        log_time=plain["_log_time"],
        **{
            **detail,
            "row_counts": dict(detail["row_counts"]),
            "group_versions": dict(detail["group_versions"]),
            "gaps": tuple((gap["first"], gap["last"]) for gap in detail["gaps"]),
        },
    )


def progress_rows_of(rows: pa.Table) -> list[Progress]:
    """Return the progress of each progress row of ``state``, of any clusters."""
    return _all_progress(_progress_rows(rows))


def _progress_rows(rows: pa.Table) -> pa.Table:
    """Return progress rows without the structs of other entities, which would be copied."""
    detail = pc.struct_field(rows["row"], [PROGRESS])
    return rows_where(rows.select(["entity", *_PLAIN]).append_column(PROGRESS, detail), IS_PROGRESS)


def _all_progress(found: pa.Table) -> list[Progress]:
    columns = (plain_values(found[name]) for name in _PLAIN)
    plains = [dict(zip(_PLAIN, values, strict=True)) for values in zip(*columns, strict=True)]
    details = found[PROGRESS].to_pylist()
    return [_progress(plain, detail) for plain, detail in zip(plains, details, strict=True)]


def cluster_in(store: TableStore, cluster_id: str | None, known: str | None = None) -> str | None:
    """Return the cluster of the tables that is meant: ``cluster_id``, or their only one.

    None: the tables have no cluster yet. ``known`` is one of their clusters. The internal logs of a
    cluster are meant only if they are named, or if there is exactly one of them and nothing else.
    Raises ``TablesError`` if there are several clusters and ``cluster_id`` is None.
    """
    if cluster_id is not None or not store.exists(CHANGES_TABLE):
        return cluster_id
    found = sorted(store.cluster_ids(CHANGES_TABLE, known))
    found = [name for name in found if not is_internal(name)] or found
    if len(found) > 1:
        listed = ", ".join(found[:CLUSTERS_LISTED_MAX])
        raise TablesError(
            place=store.place,
            reason=f"they contain {len(found)} clusters, and none is named",
            remedy=f"name one with cluster_id (`raftlog tables`: --cluster-id): {listed}"
            + (", ..." if len(found) > CLUSTERS_LISTED_MAX else ""),
        )
    return found[0] if found else None


def wrong_cluster(path: str, expected_cluster_id: str, cluster_id: str) -> WrongClusterError:
    """Return the error of a log that does not belong to the tables' cluster."""
    return WrongClusterError(
        path=path,
        expected_cluster_id=expected_cluster_id,
        cluster_id=cluster_id,
        remedy="correct the log; or add its cluster to the tables with cluster_id (`raftlog "
        "tables`: --cluster-id)",
    )


def check_layout(store: TableStore) -> None:
    """Raise ``TablesError`` if an earlier release created the tables."""
    if store.exists(COMMITS_OF_EARLIER_RELEASES) or store.missing_fields(CHANGES_TABLE):
        raise TablesError(
            place=store.place,
            reason="they were created by an earlier release",
            remedy="write the log to tables at another location, with materialize or "
            "`raftlog tables follow LOG TABLES`",
        )


def check_same_time(place: str, base: Progress, end: Progress, *, has_end: bool) -> None:
    """Raise ``TablesError`` if ``state`` and ``changes`` are copies of different times.

    ``base`` and ``end`` are the progress of ``state`` and of both. ``has_end``: whether ``changes``
    has a progress row at the end of ``state`` or after it. There always is one. ``state`` always
    includes the changes that have expired, and a truncation begins with it.
    """
    truncated_to = end.truncated_to if end.incarnation > base.incarnation else None
    remedy = "restore copies of both of one time, or write the log to tables at another location"
    rewritten = (
        "if no changes of any cluster have expired, delete table state, which is written again "
        f"from changes; otherwise {remedy}"
    )
    if base.offset < (NOTHING if end.expired_to is None else end.expired_to):
        reason = f"changes up to offset {end.expired_to} have expired, but state ends before it"
    elif base.offset != NOTHING and not has_end:
        reason = f"state includes offset {base.offset}, but changes ends before it"
        remedy = rewritten
    elif truncated_to is not None and truncated_to < base.offset:
        reason = f"changes was truncated to offset {truncated_to}, but state was not"
        remedy = rewritten
    else:
        return
    raise TablesError(
        place=place,
        reason=f"tables state and changes are of different times: {reason}",
        remedy=remedy,
    )


def check_has_metadata(place: str, cluster_id: str, what: str) -> None:
    """Raise ``TablesError`` for a cluster's internal log. Only metadata logs have ``what``."""
    if is_internal(cluster_id):
        raise TablesError(
            place=place,
            reason=f"{cluster_id} is no metadata log, for which {what} is",
            remedy="name a cluster with cluster_id",
        )


def row_counts_of(image: MetadataImage, topic: str | None = None) -> dict[str, int]:
    """Return each typed table's number of rows, for a metadata log or for the log of ``topic``."""
    entities = () if topic is None else INTERNAL_ENTITIES.get(topic, ())
    tables = tuple(BY_ENTITY[entity] for entity in entities) or METADATA_TABLES
    return {table.name: len(image.map(table.entity)) for table in tables}


def last_epoch(rows: Iterable[Row]) -> EpochRow | None:
    """Return the last leader epoch of a state's rows."""
    epochs = [row for row in rows if isinstance(row, EpochRow)]
    return max(epochs, key=lambda row: row.leader_epoch, default=None)


def quorum_of(rows: Iterable[Row]) -> Quorum:
    """Return the voters of the last epoch. With kraft.version 0 they are stored elsewhere."""
    last = last_epoch(rows)
    if last is None or last.kraft_version == 0:
        return Quorum()
    return Quorum(kraft_version=last.kraft_version, voters=last.voters)


def image_of_rows(
    rows: Collection[Row], progress: Progress, offset: int, time_us: int | None
) -> MetadataImage:
    """Return the image of the rows after an offset (inclusive), all entities.

    ``time_us``: the time of the last change or append up to it.
    """
    last = None if offset == progress.offset else last_epoch(rows)
    return MetadataImage.from_rows(
        rows,
        offset=offset,
        leader_epoch=progress.leader_epoch if last is None else last.leader_epoch,
        timestamp_ms=milliseconds(time_us),
        quorum=quorum_of(rows),
    )


def inside_of_transaction(place: str, offset: int, begin_offset: int) -> TablesError:
    """Return the error of a state inside a metadata transaction."""
    return TablesError(
        place=place,
        reason=f"offset {offset} is inside the metadata transaction that begins at {begin_offset}",
        remedy="use the offset before it, or that of its end marker",
    )
