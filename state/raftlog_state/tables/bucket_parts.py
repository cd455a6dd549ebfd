"""Replay of one bucket's records in a range of a log: by columns, or by a loader.

Rules of this file:

1. Topics are replayed by columns if all of their records are plain (``columnar_replay``), and
   otherwise by a loader. The cluster's rows are always replayed by a loader. A loader rejects
   records that contradict the state.
2. Memory holds the rows, up to ``COLUMN_BYTES_MAX`` of the topics' records, and one slice of the
   changes. Topics with more records are replayed by a loader, which keeps no records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from raftlog.errors import RaftlogError
from raftlog_state.errors import MetadataParseError
from raftlog_state.image.delta import RecordChanges, RowChange
from raftlog_state.image.rows import Entity, Key
from raftlog_state.loader.metadata_loader import MetadataLoader
from raftlog_state.loader.payload import Payload
from raftlog_state.loader.scans import decoded_payloads
from raftlog_state.records import Redactor
from raftlog_state.replay.coded_columns import Int64s

from .cluster_cache import image_of
from .columnar_replay import TOPIC_TABLES, RecordColumns, replay_columns
from .convert import rows_of_changes, sequence_numbers
from .latest import state_rows_of
from .origins import Origin, RowOrigins
from .progress import NOTHING, Progress, row_counts_of
from .stored_rows import StateParts, stored_rows
from .topic_buckets import UnsplitRecordError

COLUMN_BYTES_MAX: Final = 256 << 20
"""Limit on a bucket's record values that are in memory together."""
SLICE_ROWS: Final = 20_000
"""Changes, or records of ``log``, in memory at a time."""
_OF_ALL_BUCKETS: Final = (Entity.TRANSACTION, Entity.EPOCH)
"""Entities whose rows every bucket changes. Only the cluster's part writes them."""

Write: TypeAlias = Callable[[pa.Table], None]
"""Function that writes rows of ``changes``."""


class RejectedRecordsError(Exception):
    """Records that replay rejects. ``offset`` is the first offset read together with them."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(offset, reason)
        self.offset = offset
        self.reason = reason


class BucketRecords(NamedTuple):
    """A bucket's records among those that were read together.

    The values of control records are null; ``controls`` has them by row. ``first_offset`` and
    ``last`` (an offset with its leader epoch and timestamp) cover all records that were read.
    """

    columns: RecordColumns
    controls: Mapping[int, Payload]
    first_offset: int
    last: tuple[int, int, int]


class PartSettings(NamedTuple):
    """Settings that a task's parts share; ``shared`` has the log's columns of ``changes``."""

    before: Progress
    redactor: Redactor
    shared: Mapping[str, Any]
    write: Write


class Part(Protocol):
    """Rows that are replayed separately from others."""

    @property
    def metadata_version(self) -> int | None:
        """Level of metadata.version; None if the rows do not have it."""
        ...

    def append(self, records: BucketRecords) -> None:
        """Append the next records."""
        ...

    def complete(self) -> dict[str, int]:
        """Write the remaining changes; return the number of rows of each table.

        Raises:
            UnsplitRecordError: a transaction is open.
            RejectedRecordsError: the state contradicts a record.
        """
        ...

    def state_rows(self) -> Iterator[pa.Table]:
        """Yield the rows of ``state`` whose keys have changed."""
        ...


class TopicsPart:
    """Topics of a bucket, with their partitions and configs."""

    def __init__(self, settings: PartSettings, state: StateParts) -> None:
        """``state``: their rows before the range."""
        self._settings = settings
        self._state = state
        self._records: list[BucketRecords] = []
        self._byte_count = 0
        self._by_loader: LoaderPart | None = None

    @property
    def metadata_version(self) -> int | None:
        return None

    def append(self, records: BucketRecords) -> None:
        if self._by_loader is not None:
            self._by_loader.append(records)
            return
        self._records.append(records)
        self._byte_count += records.columns.values.nbytes
        if self._byte_count > COLUMN_BYTES_MAX:
            self._replay_by_loader()

    def complete(self) -> dict[str, int]:
        if self._by_loader is None:
            columns = [records.columns for records in self._records]
            found = replay_columns(self._state, _joined(columns), self._settings.redactor)
            if found is not None:
                for which in _slices(np.arange(len(found))):
                    self._settings.write(found.rows(which, self._settings.shared))
                self._changes = found
                return found.row_counts
            self._replay_by_loader()
        assert self._by_loader is not None
        counts = self._by_loader.complete()
        return {name: counts[name] for name in TOPIC_TABLES}

    def state_rows(self) -> Iterator[pa.Table]:
        if self._by_loader is not None:
            yield from self._by_loader.state_rows()
            return
        for which in _slices(self._changes.last):
            yield state_rows_of(self._changes.rows(which, self._settings.shared))

    def _replay_by_loader(self) -> None:
        self._by_loader = LoaderPart(self._settings, self._state, without=_OF_ALL_BUCKETS)
        for records in self._records:
            self._by_loader.append(records)
        self._records = []


class _Change(NamedTuple):
    """A row change, its record, its number among its offset's changes, and its row's origin."""

    record: RecordChanges
    change: RowChange
    number: int
    before: Origin | None


class LoaderPart:
    """Rows that are replayed by a loader."""

    def __init__(
        self, settings: PartSettings, state: StateParts, *, without: Sequence[Entity] = ()
    ) -> None:
        """``state``: the rows before the range. Changes of entities ``without`` are not written."""
        rows = stored_rows(state)
        before = settings.before
        self._settings = settings
        self._without = without
        self._loader = MetadataLoader(None if before.offset == NOTHING else image_of(rows, before))
        self._origins = RowOrigins(rows)
        self._unwritten: list[_Change] = []
        self._last_changes: dict[Entity, dict[Key, _Change]] = {entity: {} for entity in Entity}

    @property
    def metadata_version(self) -> int | None:
        return self._loader.image.metadata_version

    def append(self, records: BucketRecords) -> None:
        columns = records.columns
        try:
            changes = self._loader.append_selected(
                columns.offsets.tolist(),
                columns.leader_epochs.tolist(),
                columns.times_ms.tolist(),
                _payloads(records, self._settings.redactor),
                last=records.last,
            )
        except (RaftlogError, MetadataParseError) as error:
            raise RejectedRecordsError(records.first_offset, str(error)) from error
        self._add([one for one in changes if one.changes[0].entity not in self._without])
        _ = self._loader.image  # applies the delta, which would grow otherwise

    def complete(self) -> dict[str, int]:
        begin_offset = self._loader.open_transaction_offset
        if begin_offset is not None:
            raise UnsplitRecordError(begin_offset)
        self._flush()
        return row_counts_of(self._loader.image)

    def state_rows(self) -> Iterator[pa.Table]:
        rows = [row for found in self._last_changes.values() for row in found.values()]
        for start in range(0, len(rows), SLICE_ROWS):
            yield state_rows_of(self._table(rows[start : start + SLICE_ROWS]))

    def _add(self, found: list[RecordChanges]) -> None:
        befores = self._origins.apply(found)
        records = [record for record in found for _ in record.changes]
        numbers = sequence_numbers(records)
        changes = [change for record in found for change in record.changes]
        rows = list(map(_Change, records, changes, numbers, befores))
        for row in rows:
            self._last_changes[row.change.entity][row.change.key] = row
        self._unwritten += rows
        if len(self._unwritten) >= SLICE_ROWS:
            self._flush()

    def _flush(self) -> None:
        """Write the changes in one file: its many columns take ten times as long if it has few."""
        self._settings.write(self._table(self._unwritten))
        self._unwritten = []

    def _table(self, rows: Sequence[_Change]) -> pa.Table:
        return rows_of_changes(
            [row.record for row in rows],
            [row.change for row in rows],
            [row.number for row in rows],
            [row.before for row in rows],
            self._settings.shared,
        )


def _joined(parts: Sequence[RecordColumns]) -> RecordColumns:
    """Return the parts joined in their order."""
    offsets, leader_epochs, times_ms, values = zip(*parts, strict=True)
    return RecordColumns(
        np.concatenate(offsets),
        np.concatenate(leader_epochs),
        np.concatenate(times_ms),
        pa.concat_arrays(values),
    )


def _payloads(records: BucketRecords, redactor: Redactor) -> list[Payload]:
    payloads = decoded_payloads(records.columns.values, redactor)
    for row, control in records.controls.items():
        payloads[row] = control
    return payloads


def _slices(rows: Int64s) -> Iterator[Int64s]:
    for start in range(0, len(rows), SLICE_ROWS):
        yield rows[start : start + SLICE_ROWS]
