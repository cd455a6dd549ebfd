"""Latest record of each key of a log, as a Kafka coordinator that loads the log has them.

Rules of this file:

1. The last record of a key decides; a tombstone deletes the key.
2. Records of a producer's transaction are pending until its marker: a commit applies them, an abort
   drops them. Pending records are not part of the state.
3. Among a key's records the one with the larger offset decides, even if its transaction ends later,
   because compaction, which ignores markers, keeps that one. Therefore tombstones are kept while a
   transaction is open.

    offset   10     11         12          13
    record   k = a  k = b (p)  k = c       p commits     k is c

Source: Kafka ``CoordinatorLoaderImpl``, ``OffsetMetadataManager.replay``,
``replayEndTransactionMarker``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from raftlog.records.batch_columns import Column, Scan
from raftlog.records.control import ControlType, EndTransactionMarker, decode_control

from .log_reader import LogReader

LATEST_COLUMNS: Final = Column.OFFSET | Column.TIMESTAMP | Column.KEY | Column.VALUE
"""Columns that ``LatestByKey.apply`` requires."""


@dataclass(frozen=True, slots=True)
class LatestRecord:
    """Last record of a key. ``timestamp_ms`` is the record's timestamp."""

    offset: int
    timestamp_ms: int
    value: bytes | None


@dataclass(slots=True, kw_only=True)
class OpenTransaction:
    """Transaction of a producer that has no marker below the end, with its pending records."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    first_timestamp_ms: int
    records: dict[bytes, LatestRecord] = field(default_factory=dict)


class LatestByKey:
    """Latest record of each key of one partition below an offset, in memory."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._records: dict[bytes, LatestRecord] = {}
        self._deleted: set[bytes] = set()
        self._open: dict[int, OpenTransaction] = {}
        self.without_key = 0
        """Number of records without a key, which are left out."""

    def read(self, log: LogReader, end_offset: int) -> None:
        """Replay a log's records below ``end_offset``. Raises what ``LogReader.scan`` raises."""
        for scan in log.scan(log.log_start_offset, end_offset, columns=LATEST_COLUMNS):
            self.apply(scan, end_offset)

    def apply(self, scan: Scan, end_offset: int) -> None:
        """Replay a scan's records below ``end_offset``. Scans must be in offset order."""
        records, batches = scan.records, scan.batches
        assert records.offset is not None, "a requested column"
        assert records.timestamp_ms is not None, "a requested column"
        assert records.key is not None, "a requested column"
        assert records.value is not None, "a requested column"
        ordinal = records.batch_ordinal
        producers = np.where(batches.is_transactional, batches.producer_id, -1)[ordinal].tolist()
        epochs = batches.producer_epoch[ordinal].tolist()
        rows = zip(
            records.offset.to_pylist(),
            records.timestamp_ms.to_pylist(),
            records.key.to_pylist(),
            records.value.to_pylist(),
            records.is_control.tolist(),
            producers,
            epochs,
            strict=True,
        )
        for offset, timestamp_ms, key, value, is_control, producer_id, epoch in rows:
            if offset >= end_offset:
                return
            if is_control:
                marker = decode_control(key, value)
                if isinstance(marker, EndTransactionMarker):
                    self._end(producer_id, commit=marker.control_type is ControlType.COMMIT)
            elif key is None:
                self.without_key += 1
            else:
                record = LatestRecord(offset, timestamp_ms, value)
                if producer_id < 0:
                    self._put(key, record)
                    continue
                transaction = self._open.get(producer_id)
                if transaction is None:
                    transaction = OpenTransaction(
                        producer_id=producer_id,
                        producer_epoch=epoch,
                        first_offset=offset,
                        first_timestamp_ms=timestamp_ms,
                    )
                    self._open[producer_id] = transaction
                transaction.records[key] = record

    def _end(self, producer_id: int, *, commit: bool) -> None:
        transaction = self._open.get(producer_id)
        if transaction is None:
            return
        if commit:
            for key, record in transaction.records.items():
                known = self._records.get(key)
                if known is None or known.offset < record.offset:
                    self._put(key, record)
        del self._open[producer_id]  # after it: while a transaction is open tombstones are kept
        if not self._open:
            for key in self._deleted:
                del self._records[key]
            self._deleted.clear()

    def _put(self, key: bytes, record: LatestRecord) -> None:
        if record.value is not None:
            self._records[key] = record
            self._deleted.discard(key)
        elif self._open:
            self._records[key] = record
            self._deleted.add(key)
        else:
            self._records.pop(key, None)

    def __len__(self) -> int:
        return len(self._records) - len(self._deleted)

    def get(self, key: bytes) -> LatestRecord | None:
        """Return the last record of a key; None without one, or if the key is deleted."""
        record = self._records.get(key)
        return None if record is None or record.value is None else record

    def records(self) -> Iterator[tuple[bytes, LatestRecord]]:
        """Yield the keys that are not deleted, with their last records."""
        return ((key, one) for key, one in self._records.items() if one.value is not None)

    def open_transactions(self) -> list[OpenTransaction]:
        """Return the open transactions, ordered by first offset."""
        return sorted(self._open.values(), key=lambda one: one.first_offset)
