"""Conversion of tables to an image, and to a snapshot that Apache Kafka can load.

There is no state to export inside a metadata transaction. Tables with redacted secrets are
rejected: a node would use the mask as the secret.
"""

from __future__ import annotations

import itertools
import os
from typing import Any, Final

from pyspark.sql import functions as sf

from raftlog_state.errors import TablesError
from raftlog_state.image import MetadataImage
from raftlog_state.image.rows import Row
from raftlog_state.snapshot_writer import ExportedSnapshot, hidden_secrets, write_snapshot

from .convert import MICROSECONDS, rows_of
from .parallel import for_each
from .progress import quorum_of
from .schema import LOG, ORIGIN_COLUMNS, TYPED_TABLES, TypedTable
from .view import ClusterView

_ENDS: Final = ("END_TRANSACTION_RECORD", "ABORT_TRANSACTION_RECORD")


def image_of_view(view: ClusterView) -> MetadataImage:
    """The state that a view's typed tables are. Raises ``TablesError`` inside a transaction."""
    last = _last_record(view)
    if last["txn_begin_offset"] is not None and last["record_type"] not in _ENDS:
        raise TablesError(
            place=view.place,
            reason=f"offset {view.offset} is inside the metadata transaction that begins at "
            f"{last['txn_begin_offset']}",
            remedy="use the offset before it, or that of its end marker",
        )
    rows = list(itertools.chain.from_iterable(for_each(_rows_of(view), TYPED_TABLES)))
    time = last["time"]
    return MetadataImage.from_rows(
        rows,
        offset=view.offset,
        leader_epoch=last["leader_epoch"],
        timestamp_ms=-1 if time is None else time // MICROSECONDS,
        quorum=quorum_of(rows),
    )


def export_view(view: ClusterView, path: str | os.PathLike[str]) -> ExportedSnapshot:
    """Write a view's state to a snapshot. Raises ``TablesError`` if secrets are redacted."""
    image = image_of_view(view)
    hidden = list(hidden_secrets(image))
    if hidden:
        record, field, whose = hidden[0]
        raise TablesError(
            place=view.place,
            reason=f"{len(hidden)} secrets are redacted, e.g. {field} of {record}, {whose}",
            remedy="export from the log itself, or create tables with redact=False",
        )
    return write_snapshot(image, path)


def _last_record(view: ClusterView) -> Any:
    found = (
        view.table(LOG)
        .where(sf.col("offset") == view.offset)
        .orderBy(sf.col("snapshot_position").desc_nulls_first())
        .select(
            "leader_epoch",
            "record_type",
            "txn_begin_offset",
            sf.unix_micros("log_time").alias("time"),
        )
        .limit(1)
        .collect()
    )
    assert found, "a view is at the offset of a record"
    return found[0]


def _rows_of(view: ClusterView) -> Any:
    def rows(table: TypedTable) -> list[Row]:
        columns = view.table(table.name).drop(*ORIGIN_COLUMNS).toArrow()
        return rows_of(table.entity, columns)

    return rows
