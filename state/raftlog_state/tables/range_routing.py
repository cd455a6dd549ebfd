"""``route_range``: divides a range's records by bucket, into a file that its tasks read.

Rules of this file:

1. The loading process reads the range once, or twice if buckets are joined because a topic id has
   several names. The file has one batch for each bucket with records in a chunk of the log, in the
   log's order. Transaction markers are in the batches of all buckets.
2. Memory holds one chunk.
3. If a range cannot be split into buckets, or cannot be read, that is its result. The writer reads
   the range again and determines what is wrong.
"""

from __future__ import annotations

import os
import uuid
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from raftlog.client import LogReader
from raftlog.errors import RaftlogError
from raftlog.records.control import decode_control
from raftlog.records.scan import Column, Scan
from raftlog_state.collection_pause import collection_paused
from raftlog_state.errors import MetadataParseError
from raftlog_state.records import Redactor

from .bucket_parts import BucketRecords
from .columnar_replay import RecordColumns
from .convert import US_PER_MS
from .progress import NOTHING, Progress
from .schema import STATE_TABLE
from .source_options import SourceOptions
from .stored_rows import StateParts, split_state
from .topic_buckets import (
    CLUSTER,
    EVERY_BUCKET,
    Buckets,
    Int32s,
    Int64s,
    TopicBuckets,
    UnsplitRecordError,
    topics_of,
)

pc: Any = pyarrow.compute  # pyarrow creates its functions at import, unseen by type checkers

_COLUMNS: Final = Column.OFFSET | Column.TIMESTAMP | Column.LEADER_EPOCH | Column.KEY | Column.VALUE
_SCHEMA: Final = pa.schema(
    {
        "offset": pa.int64(),
        "leader_epoch": pa.int32(),
        "timestamp_ms": pa.int64(),
        "is_control": pa.bool_(),
        "key": pa.binary(),
        "value": pa.binary(),
    }
)
_TIMESTAMP_MS_MAX: Final = (2**63 - 1) // US_PER_MS
OTHERS_FILE: Final = "others.arrow"
PARTITIONS_FILE: Final = "partitions.arrow"
RECORDS_FILE: Final = "records.arrow"


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOfLog:
    """Range of a cluster's log after the end of its tables. The end offset is exclusive.

    ``options``: see ``LoadSettings``. ``directory`` contains the rows of ``state`` at the range's
    start, if there are any, and receives the files. ``before`` is the end of the tables;
    ``committed_at`` is in microseconds.
    """

    options: Mapping[str, str] = field(repr=False)
    redactor: Redactor
    before: Progress
    end_offset: int
    bucket_count: int
    log_shares: tuple[int, ...]
    """Offsets that bound each bucket's rows of ``log``; empty without that table."""
    directory: str
    committed_at: int

    @property
    def start_offset(self) -> int:
        """First offset of the range."""
        return self.before.next_offset

    def open_log(self) -> LogReader:
        """Open the log."""
        return SourceOptions.parse(self.options).open_log()

    def state(self) -> StateParts:
        """Return the rows of ``state`` at its start, mapped into memory; see ``write_state``."""
        if self.before.offset == NOTHING:
            return split_state(STATE_TABLE.no_rows)
        tables = (
            pa.ipc.open_file(pa.memory_map(f"{self.directory}/{name}")).read_all()
            for name in (OTHERS_FILE, PARTITIONS_FILE)
        )
        return StateParts(*tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedRange:
    """Range of a log whose records are in the file ``RECORDS_FILE`` of its directory.

    ``batch_buckets`` contains the bucket of each batch in the file. ``last`` is the offset, leader
    epoch and timestamp of the last record. ``checksum`` covers the epochs and timestamps of all
    records, so it is the same for the same log, regardless of the chunks in which it is read.
    """

    task: RangeOfLog
    buckets: Buckets
    batch_buckets: tuple[int, ...]
    last: tuple[int, int, int]
    checksum: int

    def records_of(self, bucket: int) -> Iterator[BucketRecords]:
        """Yield the records of a bucket, then an empty batch for the end of the range."""
        file = pa.ipc.open_file(pa.memory_map(f"{self.task.directory}/{RECORDS_FILE}"))
        for number, of in enumerate(self.batch_buckets):
            if of == bucket:
                yield _bucket_records(file.get_batch(number))
        yield _bucket_records(pa.RecordBatch.from_pylist([], schema=_SCHEMA), self.last)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSplit:
    """Range that cannot be published; ``offset`` is that of the record that is the cause.

    The records before it can be split, unless it is inside a transaction.
    """

    offset: int
    reason: str


def route_range(log: LogReader, task: RangeOfLog) -> RoutedRange | NotSplit:
    """Write the records of a range to ``RECORDS_FILE``."""
    buckets = Buckets(task.bucket_count)
    routing = _Routing(task, buckets)
    try:
        with collection_paused():
            while True:
                joined = buckets.joined
                routed = routing.run(log)
                if buckets.joined == joined:
                    return routed
                routing = _Routing(task, buckets)
    except UnsplitRecordError as error:
        return NotSplit(offset=error.row, reason="it cannot be split")
    except (RaftlogError, MetadataParseError) as error:
        return NotSplit(offset=routing.next_offset, reason=str(error))


def write_state(directory: Path, parts: StateParts) -> None:
    """Write the rows of ``state`` at the start of a range."""
    for name, rows in zip((OTHERS_FILE, PARTITIONS_FILE), parts, strict=True):
        with pa.ipc.new_file(str(directory / name), rows.schema) as writer:
            writer.write_table(rows)


class _Routing:
    """One read of a range."""

    def __init__(self, task: RangeOfLog, buckets: Buckets) -> None:
        self._task = task
        self._buckets = buckets
        self._topics = TopicBuckets(buckets, topics_of(task.state()))
        self._targets = np.array([CLUSTER, *range(task.bucket_count)], dtype=np.int32)
        self.next_offset = task.start_offset
        self._last = (task.before.leader_epoch, -1)
        self._checksums = {"epochs": 0, "times": 0}
        self._batch_buckets: list[int] = []

    def run(self, log: LogReader) -> RoutedRange:
        """Read the range and write the file.

        Raises:
            UnsplitRecordError: with the offset of the record.
            RaftlogError: the log cannot be read.
        """
        task = self._task
        path = Path(task.directory, RECORDS_FILE)
        staged = path.with_name(f"{RECORDS_FILE}.{uuid.uuid4().hex}")
        with pa.ipc.new_file(str(staged), _SCHEMA) as writer:
            for scan in log.scan(task.start_offset, task.end_offset, columns=_COLUMNS):
                for batch in self._batches(scan):
                    writer.write_batch(batch)
        assert self.next_offset == task.end_offset, "the scan ends at the end of the range"
        os.replace(staged, path)  # a task of an interrupted load may have mapped the earlier file
        return RoutedRange(
            task=task,
            buckets=self._buckets,
            batch_buckets=tuple(self._batch_buckets),
            last=(task.end_offset - 1, *self._last),
            checksum=self._checksums["epochs"] << 32 | self._checksums["times"],
        )

    def _batches(self, scan: Scan) -> Iterator[pa.RecordBatch]:
        """Yield the records of a chunk, grouped by bucket."""
        records = scan.records
        assert records.offset is not None
        assert records.key is not None
        assert records.value is not None
        assert records.leader_epoch is not None
        assert records.timestamp_ms is not None
        offsets = records.offset.to_numpy()
        epochs = np.asarray(records.leader_epoch.to_numpy())
        times = np.asarray(records.timestamp_ms.to_numpy())
        if not len(offsets):
            return
        self._check(offsets, epochs, times)
        for name, column in (("epochs", epochs), ("times", times)):
            data = np.ascontiguousarray(column).tobytes()
            self._checksums[name] = zlib.crc32(data, self._checksums[name])
        try:
            buckets = self._topics.buckets(records.value, records.is_control)
        except UnsplitRecordError as error:
            raise UnsplitRecordError(int(offsets[error.row])) from None
        rows, counts = self._rows_by_bucket(buckets)
        which = pa.array(rows)
        columns = [
            *(pa.array(column[rows]) for column in (offsets, epochs, times, records.is_control)),
            *(column.take(which) for column in (records.key, records.value)),
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
        start = 0
        for bucket, count in zip(self._targets.tolist(), counts.tolist(), strict=True):
            if count:
                self._batch_buckets.append(bucket)
                yield batch.slice(start, count)
            start += count
        self.next_offset = int(offsets[-1]) + 1
        self._last = (int(epochs[-1]), int(times[-1]))

    def _rows_by_bucket(self, buckets: Int32s) -> tuple[Int64s, Int64s]:
        """Return the row numbers of one bucket after another, and each bucket's number of rows."""
        markers = np.flatnonzero(buckets == EVERY_BUCKET)
        own = np.flatnonzero((buckets >= 0) | (buckets == CLUSTER))
        rows = np.concatenate([own, np.tile(markers, len(self._targets))])
        of_rows = np.concatenate([buckets[own], np.repeat(self._targets, len(markers))])
        places = np.searchsorted(self._targets, of_rows)
        order = np.lexsort((rows, places))
        return rows[order], np.bincount(places, minlength=len(self._targets))

    def _check(self, offsets: Int64s, epochs: Int32s, times: Int64s) -> None:
        """Raise ``UnsplitRecordError`` for records that the writer might not accept as they are."""
        wrong = offsets != np.arange(self.next_offset, self.next_offset + len(offsets))
        wrong |= np.diff(epochs, prepend=self._last[0]) < 0
        wrong |= (times > _TIMESTAMP_MS_MAX) | (times < -_TIMESTAMP_MS_MAX)
        if wrong.any():
            raise UnsplitRecordError(int(np.argmax(wrong)) + self.next_offset)


def _bucket_records(
    batch: pa.RecordBatch, last: tuple[int, int, int] | None = None
) -> BucketRecords:
    """Return records of a bucket. ``last``: the range's last record; None: their last."""
    offsets, epochs, times = (batch[name].to_numpy() for name in _SCHEMA.names[:3])
    is_control = batch["is_control"]
    keys, values = batch["key"], batch["value"]
    rows: npt.NDArray[np.int64] = np.flatnonzero(is_control.to_numpy(zero_copy_only=False))
    controls = {
        row: decode_control(keys[row].as_py(), values[row].as_py()) for row in rows.tolist()
    }
    if controls:
        values = pc.if_else(is_control, pa.scalar(None, pa.binary()), values)
    if last is None:
        last = (int(offsets[-1]), int(epochs[-1]), int(times[-1]))
    first_offset = int(offsets[0]) if len(offsets) else last[0]
    return BucketRecords(
        RecordColumns(offsets, epochs, times, values), controls, first_offset, last
    )
