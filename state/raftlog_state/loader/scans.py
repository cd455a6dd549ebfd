"""Loading of scanned columns, of a metadata log or of a snapshot, into a ``MetadataLoader``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from raftlog.client import SnapshotReader
from raftlog.errors import CorruptBatchError
from raftlog.records.batch_columns import Column, RecordColumns, Scan
from raftlog.records.control import decode_control
from raftlog_state.errors import ReplayError
from raftlog_state.image.delta import RecordChanges

from .metadata_loader import LogRecord, MetadataLoader
from .payload import Payload

LOADER_COLUMNS = Column.ALL_BUT_HEADERS
"""Columns of a scan that the loader reads. Only control records have keys."""


def append_scan(loader: MetadataLoader, records: RecordColumns) -> list[RecordChanges]:
    """Replay the records of a scan. Raises the errors of ``MetadataLoader.append``."""
    if not len(records):
        return []
    return loader.append_columns(*_columns(records))


def load_snapshot(loader: MetadataLoader, snapshot: SnapshotReader) -> list[RecordChanges]:
    """Load a snapshot into a loader.

    Raises ``CorruptSnapshotError`` if it is damaged, and the errors of
    ``MetadataLoader.bootstrap``.
    """
    return loader.bootstrap(
        snapshot.snapshot_id, _log_records(snapshot.scan(columns=LOADER_COLUMNS))
    )


def _log_records(scans: Iterable[Scan]) -> Iterator[LogRecord]:
    for scan in scans:
        for row in zip(*_columns(scan.records), strict=True):
            yield LogRecord(*row)


def _columns(
    records: RecordColumns,
) -> tuple[list[int], list[int], list[int], list[Payload]]:
    offsets = _list(records.offset)
    payloads: list[Payload] = _list(records.value)
    controls = np.flatnonzero(records.is_control).tolist()
    if controls:
        keys = _list(records.key)
        for at in controls:
            try:
                payloads[at] = decode_control(keys[at], payloads[at])  # type: ignore[arg-type]
            except CorruptBatchError as error:
                raise ReplayError(
                    offset=offsets[at], record="a control record", reason=error.reason
                ) from None
    return offsets, _list(records.leader_epoch), _list(records.timestamp_ms), payloads


def _list(column: Any) -> list[Any]:
    assert column is not None, "the scan was requested with LOADER_COLUMNS"
    found: list[Any] = column.to_pylist()
    return found
