"""Reader of a log whose values are encrypted: another reader, whose values it decrypts.

Offsets, plans, transactions and sizes are those of the log. A scan ends with the batch before a
value that cannot be decrypted, as it does before a damaged batch; the error follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa

from raftlog.errors import OptionError, RaftlogError
from raftlog.limits import DECOMPRESSED_BYTES_MAX, READ_CHUNK_BYTES
from raftlog.log.format.directory import MetaProperties, QuorumState
from raftlog.log.format.epoch_cache import EpochCache
from raftlog.log.reading.aborted_transactions import AbortedTransactions
from raftlog.log.reading.files import LogTail
from raftlog.log.reading.log_reader import LogReader
from raftlog.log.reading.range_size import RangeSize
from raftlog.log.reading.reads import Isolation, LogKind, ReadEnd, ReadPlan
from raftlog.log.reading.snapshot import SnapshotReader
from raftlog.records.batch import RecordBatch
from raftlog.records.batch_columns import Column, RecordColumns, Scan
from raftlog.records.record import Record
from raftlog.types import SnapshotId

from .encryption import ValueCipher


class DecryptedLog(LogReader):
    """Reader of ``log`` that decrypts its values with ``cipher``; it closes the log.

    Reads raise the errors of ``ValueCipher.decrypt``, too. Raises ``OptionError`` for a log of
    cluster metadata, whose values are never encrypted.
    """

    def __init__(self, log: LogReader, cipher: ValueCipher) -> None:
        if log.kind is LogKind.METADATA:
            reason = f"cannot be used for {log.path}: records of cluster metadata are not encrypted"
            raise OptionError(option="encryption", reason=reason)
        self._log = log
        self._cipher = cipher
        self.path, self.topic, self.partition = log.path, log.topic, log.partition
        self.kind, self.source = log.kind, log.source

    def close(self) -> None:
        """Close the log."""
        self._log.close()

    # --- values -----------------------------------------------------------------------------------

    def scan(
        self,
        start_offset: int,
        end_offset: int,
        *,
        columns: Column = Column.ALL_BUT_HEADERS,
        chunk_bytes: int = READ_CHUNK_BYTES,
    ) -> Iterator[Scan]:
        """Yield the records as ``LogReader.scan`` does, with decrypted values."""
        is_plain = Column.VALUE not in columns
        needed = columns if is_plain else columns | Column.OFFSET | Column.KEY
        scans = self._log.scan(start_offset, end_offset, columns=needed, chunk_bytes=chunk_bytes)
        if is_plain:
            yield from scans
            return
        for scan in scans:
            values, failed_row, error = self._decrypted_values(scan.records)
            found = _with_values(scan, values, columns)
            if error is None:
                yield found
                continue
            whole = int(scan.records.batch_ordinal[failed_row])
            if whole:
                yield _first_batches(found, whole)
            raise error

    def _decrypted_values(
        self, records: RecordColumns
    ) -> tuple[list[bytes | None], int, RaftlogError | None]:
        """Return the values; those before a row and its error, if one cannot be decrypted."""
        assert records.offset is not None, "a requested column"
        assert records.key is not None, "a requested column"
        assert records.value is not None, "a requested column"
        rows = zip(
            records.offset.to_pylist(),
            records.key.to_pylist(),
            records.value.to_pylist(),
            records.is_control.tolist(),
            strict=True,
        )
        values: list[bytes | None] = []
        for row, (offset, key, value, is_control) in enumerate(rows):
            try:
                values.append(value if is_control else self._decrypted(offset, key, value))
            except RaftlogError as error:
                return values + [None] * (len(records) - row), row, error
        return values, 0, None

    def _decrypted(self, offset: int, key: bytes | None, value: bytes | None) -> bytes | None:
        return self._cipher.decrypt(key, value, path=self.path, offset=offset)

    def batches(
        self, start_offset: int, end_offset: int, *, chunk_bytes: int = READ_CHUNK_BYTES
    ) -> Iterator[RecordBatch]:
        """Yield the batches as ``LogReader.batches`` does; ``records`` decrypts the values.

        Records outside of the range are as in the log.
        """
        offsets = range(start_offset, end_offset)
        for batch in self._log.batches(start_offset, end_offset, chunk_bytes=chunk_bytes):
            if batch.is_control:
                yield batch
                continue
            parts: dict[str, Any] = {one.name: getattr(batch, one.name) for one in fields(batch)}
            yield _DecryptedBatch(**parts, decrypted=self._decrypted, offsets=offsets)

    def read_snapshot(self, snapshot_id: SnapshotId) -> SnapshotReader:
        """Return a reader of a snapshot, whose values are not encrypted."""
        return self._log.read_snapshot(snapshot_id)

    # --- all else is that of the log --------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._log.log_end_offset

    @property
    def is_raftlog(self) -> bool:
        return self._log.is_raftlog

    @property
    def snapshots(self) -> tuple[SnapshotId, ...]:
        return self._log.snapshots

    @property
    def epochs(self) -> EpochCache:
        return self._log.epochs

    @property
    def tail(self) -> LogTail | None:
        return self._log.tail

    @property
    def meta_properties(self) -> MetaProperties | None:
        return self._log.meta_properties

    @property
    def quorum_state(self) -> QuorumState | None:
        return self._log.quorum_state

    @property
    def compacted_offset(self) -> int:
        return self._log.compacted_offset

    @property
    def cluster_id(self) -> str | None:
        return self._log.cluster_id

    @property
    def topic_id(self) -> str | None:
        return self._log.topic_id

    @property
    def node_id(self) -> int | None:
        return self._log.node_id

    @property
    def directory_id(self) -> str | None:
        return self._log.directory_id

    def epoch_before(self, offset: int) -> int:
        return self._log.epoch_before(offset)

    def check_range(self, start_offset: int, end_offset: int) -> None:
        self._log.check_range(start_offset, end_offset)

    def check_offset(self, offset: int) -> None:
        self._log.check_offset(offset)

    def newest_snapshot(self) -> SnapshotId | None:
        return self._log.newest_snapshot()

    def refresh(self) -> None:
        self._log.refresh()

    def begin_wait(self) -> Future[bool] | None:
        return self._log.begin_wait()

    def read_end(
        self,
        *,
        isolation: Isolation,
        holdback_ms: int = 0,
        now_ms: int | None = None,
        previous: ReadEnd | None = None,
    ) -> ReadEnd:
        return self._log.read_end(
            isolation=isolation, holdback_ms=holdback_ms, now_ms=now_ms, previous=previous
        )

    def plan(
        self,
        start_offset: int,
        end_offset: int,
        *,
        isolation: Isolation,
        max_splits: int = 1,
        max_records_per_split: int | None = None,
        with_producers: bool = True,
    ) -> ReadPlan:
        return self._log.plan(
            start_offset,
            end_offset,
            isolation=isolation,
            max_splits=max_splits,
            max_records_per_split=max_records_per_split,
            with_producers=with_producers,
        )

    def next_boundary(
        self,
        start_offset: int,
        *,
        end_offset: int,
        max_records: int | None = None,
        max_bytes: int | None = None,
    ) -> int:
        return self._log.next_boundary(
            start_offset, end_offset=end_offset, max_records=max_records, max_bytes=max_bytes
        )

    def range_size(self, start_offset: int, end_offset: int) -> RangeSize:
        return self._log.range_size(start_offset, end_offset)

    def offset_for_timestamp(self, timestamp_ms: int) -> int | None:
        return self._log.offset_for_timestamp(timestamp_ms)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> AbortedTransactions:
        return self._log.aborted_transactions(start_offset, end_offset)


def _with_values(scan: Scan, values: list[bytes | None], columns: Column) -> Scan:
    """Return a scan with other values and the requested columns."""
    records = scan.records
    return replace(
        scan,
        records=replace(
            records,
            offset=records.offset if Column.OFFSET in columns else None,
            key=records.key if Column.KEY in columns else None,
            value=pa.array(values, pa.binary()),
        ),
    )


def _first_batches(scan: Scan, count: int) -> Scan:
    """Return a scan of its first batches."""
    records = scan.records
    row_count = int(np.searchsorted(records.batch_ordinal, count))
    columns: dict[str, Any] = {
        column.name: None if (found := getattr(records, column.name)) is None else found[:row_count]
        for column in fields(records)
    }
    batches = scan.batches[:count]
    return replace(scan, batches=batches, records=RecordColumns(**columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class _DecryptedBatch(RecordBatch):
    """Record batch that decrypts the values of its records with ``offsets``."""

    decrypted: Callable[[int, bytes | None, bytes | None], bytes | None] = field(repr=False)
    offsets: range

    def records(self, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
        """Yield the records in order. Raises as ``RecordBatch.records`` and ``decrypt``."""
        for one in RecordBatch.records(self, decompressed_bytes_max=decompressed_bytes_max):
            if one.offset in self.offsets:
                yield replace(one, value=self.decrypted(one.offset, one.key, one.value))
            else:
                yield one
