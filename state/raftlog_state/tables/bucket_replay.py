"""``replay_bucket``: the rows of one bucket for a range of a log, as files; work of an executor.

Rules of this file:

1. Each task reads the whole range, decodes and replays the records of its bucket, and writes their
   changes to a file of its own (``bucket_parts``). One of the tasks has the cluster's rows, too, in
   files besides: those of topics have the columns of topics only (``of_entities``).
2. The result is a file, too: a task that is run again returns it, if its files are there. It
   depends on the task alone.
3. Memory is that of the bucket's rows and records, and of one slice of the changes.
4. A range that cannot be split into buckets, and one whose replay fails, is a result: no file of it
   is used. What is wrong with it is found out by the writer, which reads it again.
"""

from __future__ import annotations

import json
import uuid
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from raftlog.client import Isolation, LogReader
from raftlog.client.location import open_reader, parse_location
from raftlog.errors import DataLossError, RaftlogError
from raftlog.records.control import decode_control
from raftlog.records.scan import Column, Scan
from raftlog_state.errors import MetadataParseError
from raftlog_state.garbage_collection import collection_paused
from raftlog_state.image.rows import Entity
from raftlog_state.loader.payload import Payload
from raftlog_state.records import Redactor
from raftlog_state.source_rows.columns import arrow_schema
from raftlog_state.source_rows.data_loss import DataLoss
from raftlog_state.source_rows.reading import RowSettings, log_rows

from .batch import SOURCE_COLUMNS, check_batch
from .bucket_parts import (
    SLICE_ROWS,
    BucketRecords,
    LoaderPart,
    Part,
    PartSettings,
    RejectedRecordsError,
    TopicsPart,
)
from .columnar_replay import TOPIC_ENTITIES, RecordColumns
from .convert import US_PER_MS
from .logrows import log_rows as rows_of_log
from .progress import NOTHING, Progress
from .schema import CHANGES_TABLE, LOG_TABLE, STATE_TABLE, of_entities
from .staging import are_complete, sync, write_durably
from .stored_rows import StateParts, split_state
from .stores.protocol import in_schema
from .topic_buckets import (
    CLUSTER,
    EVERY_BUCKET,
    TopicBuckets,
    UnsplitRecordError,
    rows_of_bucket,
    topics_of,
)

_COLUMNS: Final = Column.OFFSET | Column.TIMESTAMP | Column.LEADER_EPOCH | Column.KEY | Column.VALUE
_TIMESTAMP_MS_MAX: Final = (2**63 - 1) // US_PER_MS
_BUCKET_WITH_CLUSTER: Final = 0
"""Bucket whose task also has the rows that belong to no topic."""
_OF_LOG: Final = ("cluster_id", "topic", "partition", "incarnation")
OTHERS_FILE: Final = "others.arrow"
PARTITIONS_FILE: Final = "partitions.arrow"


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOfLog:
    """Range of a cluster's log after the end of its tables. The end offset is exclusive.

    ``options`` name the log; ``directory`` has the rows of ``state`` at its start, if there are
    any, and receives the files. ``before`` is the end of the tables; ``committed_at`` in
    microseconds.
    """

    options: Mapping[str, str] = field(repr=False)
    redactor: Redactor
    before: Progress
    end_offset: int
    bucket_count: int
    log_shares: tuple[int, ...]
    """Offsets between which each bucket writes rows of ``log``; empty without that table."""
    directory: str
    committed_at: int

    @property
    def start_offset(self) -> int:
        """First offset of the range."""
        return self.before.next_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketResult:
    """Files of a bucket, and its rows at the end of the range.

    ``last``: leader epoch and timestamp of the last record; ``checksum`` covers those of all
    records: tasks that have read the same log have the same, however it is read in chunks.
    """

    changes: list[str]
    state: list[str]
    log: list[str]
    row_counts: dict[str, int]
    metadata_version: int | None
    last: tuple[int, int]
    checksum: int

    @property
    def files(self) -> list[str]:
        """All its files."""
        return [*self.changes, *self.state, *self.log]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSplit:
    """A range that cannot be published: ``offset`` is that of the record that is the cause.

    The records before it can be split, unless it is inside of a transaction.
    """

    offset: int
    reason: str


def replay_bucket(task: RangeOfLog, bucket: int) -> BucketResult | NotSplit:
    """Write the files of a bucket, unless they are there; return the result."""
    done = Path(task.directory, f"bucket-{bucket}.json")
    known = _known_result(done)
    if known is not None:
        return known
    replay = _BucketReplay(task, bucket)
    try:
        with collection_paused():
            result = replay.run()
    except UnsplitRecordError as error:
        return NotSplit(offset=error.row, reason="it cannot be split, or begins a transaction")
    except RejectedRecordsError as error:
        return NotSplit(offset=error.offset, reason=error.reason)
    except (RaftlogError, MetadataParseError) as error:
        return NotSplit(offset=replay.next_offset, reason=str(error))
    write_durably(done, json.dumps(asdict(result)))
    return result


def result_text(result: BucketResult | NotSplit) -> str:
    """Return a result as text."""
    return json.dumps({"kind": type(result).__name__, **asdict(result)})


def result_of_text(text: str) -> BucketResult | NotSplit:
    """Return the result of a text."""
    found = json.loads(text)
    return NotSplit(**found) if found.pop("kind") == NotSplit.__name__ else _result(found)


def _result(found: dict[str, Any]) -> BucketResult:
    return BucketResult(**{**found, "last": tuple(found["last"])})


def _known_result(done: Path) -> BucketResult | None:
    """Return the result of an earlier run, if all of its files are complete."""
    try:
        found = _result(json.loads(done.read_text()))
    except (FileNotFoundError, json.JSONDecodeError):  # empty after a loss of power
        return None
    return found if are_complete(found.files) else None


class _BucketReplay:
    """One run of a task."""

    def __init__(self, task: RangeOfLog, bucket: int) -> None:
        self._task = task
        self._bucket = bucket
        self.next_offset = task.start_offset
        self._last = (task.before.leader_epoch, -1)
        self._checksums = {"epochs": 0, "times": 0}  # equal however the log is read in chunks
        directory = Path(task.directory)
        self._log_file = _FileWriter(directory, LOG_TABLE.name, LOG_TABLE.schema)
        self._files = {bucket: _PartFiles.of_topics(directory)}
        if bucket == _BUCKET_WITH_CLUSTER:
            self._files[CLUSTER] = _PartFiles.of_cluster(directory)

    def run(self) -> BucketResult:
        """Read the range and write the files.

        Raises:
            UnsplitRecordError: with the offset of the record.
            RejectedRecordsError: a record contradicts the state.
            RaftlogError: the log cannot be read.
        """
        task = self._task
        log = open_reader(parse_location(task.options))
        self._begin()
        for scan in log.scan(self.next_offset, task.end_offset, columns=_COLUMNS):
            self._append(scan)
        assert self.next_offset == task.end_offset, "the scan ends at the end of the range"
        parts = self._parts.values()
        counts = Counter[str]()
        for part in parts:
            counts.update(part.complete())
        for bucket, part in self._parts.items():
            for rows in part.state_rows():
                self._files[bucket].state.write(rows)
        if task.log_shares:
            self._write_log(log)
        of_cluster = self._parts.get(CLUSTER)
        return BucketResult(
            changes=[file for of in self._files.values() for file in of.changes.close()],
            state=[file for of in self._files.values() for file in of.state.close()],
            log=self._log_file.close(),
            row_counts=dict(counts),
            metadata_version=None if of_cluster is None else of_cluster.metadata_version,
            last=self._last,
            checksum=self._checksums["epochs"] << 32 | self._checksums["times"],
        )

    def _begin(self) -> None:
        """Read the rows of ``state``."""
        task, count = self._task, self._task.bucket_count
        state = split_state(STATE_TABLE.no_rows)
        if task.before.offset != NOTHING:
            state = read_parts(Path(task.directory))
        self._buckets = TopicBuckets(count, topics_of(state))
        shared = {
            **{name: getattr(task.before, name) for name in _OF_LOG},
            "committed_at": task.committed_at,
        }
        self._parts: dict[int, Part] = {}
        for bucket, files in self._files.items():
            settings = PartSettings(task.before, task.redactor, shared, files.changes.write)
            kind = LoaderPart if bucket == CLUSTER else TopicsPart
            self._parts[bucket] = kind(settings, rows_of_bucket(state, bucket, count))

    def _append(self, scan: Scan) -> None:
        records = scan.records
        assert records.offset is not None
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
            buckets = self._buckets.buckets(records.value, records.is_control)
        except UnsplitRecordError as error:
            raise UnsplitRecordError(int(offsets[error.row])) from None
        last = (int(offsets[-1]), int(epochs[-1]), int(times[-1]))
        for bucket, part in self._parts.items():
            which = np.flatnonzero((buckets == bucket) | (buckets == EVERY_BUCKET))
            is_control = records.is_control[which]
            columns = RecordColumns(
                offsets[which],
                epochs[which],
                times[which],
                records.value.take(pa.array(which, mask=is_control)),
            )
            controls = _controls(scan, which, is_control)
            part.append(BucketRecords(columns, controls, self.next_offset, last))
        self.next_offset = last[0] + 1
        self._last = last[1:]

    def _check(
        self,
        offsets: npt.NDArray[np.int64],
        epochs: npt.NDArray[np.int32],
        times: npt.NDArray[np.int64],
    ) -> None:
        """Raise ``UnsplitRecordError`` for records that the writer may not take as they are."""
        wrong = offsets != np.arange(self.next_offset, self.next_offset + len(offsets))
        wrong |= np.diff(epochs, prepend=self._last[0]) < 0
        wrong |= (times > _TIMESTAMP_MS_MAX) | (times < -_TIMESTAMP_MS_MAX)
        if wrong.any():
            raise UnsplitRecordError(int(np.argmax(wrong)) + self.next_offset)

    def _write_log(self, log: LogReader) -> None:
        """Write this bucket's share of the rows of ``log``."""
        task, before = self._task, self._task.before
        start_offset, end_offset = task.log_shares[self._bucket : self._bucket + 2]
        settings = RowSettings(
            columns=SOURCE_COLUMNS, redactor=task.redactor, with_control=True, with_aborted=True
        )
        while start_offset < end_offset:
            boundary = log.next_boundary(
                start_offset, end_offset=end_offset, max_records=SLICE_ROWS
            )
            plan = log.plan(
                start_offset, boundary, isolation=Isolation.READ_COMMITTED, with_producers=False
            )
            batches = [
                batch for split in plan.splits for batch in log_rows(log, split, settings, _lost)
            ]
            rows = pa.Table.from_batches(batches, arrow_schema(SOURCE_COLUMNS))
            batch = check_batch(rows, next_offset=start_offset, place=task.directory)
            self._log_file.write(
                rows_of_log(batch, cluster_id=before.cluster_id, incarnation=before.incarnation)
            )
            start_offset = boundary


def _controls(
    scan: Scan, which: npt.NDArray[np.int64], is_control: npt.NDArray[np.bool_]
) -> dict[int, Payload]:
    """Return the control records among these rows, by their place there."""
    keys, values = scan.records.key, scan.records.value
    assert keys is not None
    assert values is not None
    rows = zip(np.flatnonzero(is_control).tolist(), which[is_control].tolist(), strict=True)
    return {at: decode_control(keys[row].as_py(), values[row].as_py()) for at, row in rows}


class _FileWriter:
    """Writer of one Parquet file, which is created with its first rows."""

    def __init__(self, directory: Path, table_name: str, schema: pa.Schema) -> None:
        self._path = directory / f"{table_name}-{uuid.uuid4().hex}.parquet"
        self._schema = schema
        self._writer: pq.ParquetWriter | None = None

    def write(self, rows: pa.Table) -> None:
        """Write rows of the table, of entities that the schema has."""
        if rows.num_rows:
            if self._writer is None:
                self._writer = pq.ParquetWriter(self._path, self._schema)
            self._writer.write_table(in_schema(rows, self._schema))

    def close(self) -> list[str]:
        """Complete the file and sync it; return its path, nothing without rows."""
        if self._writer is None:
            return []
        self._writer.close()
        sync(self._path)
        return [str(self._path)]


class _PartFiles(NamedTuple):
    """Files of a part: rows of ``changes``, and of ``state``."""

    changes: _FileWriter
    state: _FileWriter

    @classmethod
    def of_topics(cls, directory: Path) -> Self:
        """Return files for topics, their partitions and configs."""
        return cls._of(directory, TOPIC_ENTITIES)

    @classmethod
    def of_cluster(cls, directory: Path) -> Self:
        """Return files for rows of every entity."""
        return cls._of(directory, tuple(Entity))

    @classmethod
    def _of(cls, directory: Path, entities: Sequence[Entity]) -> Self:
        return cls(
            *(
                _FileWriter(directory, table.name, of_entities(table.schema, entities))
                for table in (CHANGES_TABLE, STATE_TABLE)
            )
        )


def write_parts(directory: Path, parts: StateParts) -> None:
    """Write rows of ``state`` for the tasks of a range."""
    for name, rows in zip((OTHERS_FILE, PARTITIONS_FILE), parts, strict=True):
        with pa.ipc.new_file(str(directory / name), rows.schema) as writer:
            writer.write_table(rows)


def read_parts(directory: Path) -> StateParts:
    """Return the rows of ``write_parts``, mapped into memory."""
    tables = (
        pa.ipc.open_file(pa.memory_map(str(directory / name))).read_all()
        for name in (OTHERS_FILE, PARTITIONS_FILE)
    )
    return StateParts(*tables)


def _lost(condition: DataLoss, reason: str) -> NoReturn:
    raise DataLossError(
        path="the log", condition=condition.value, reason=reason, remedy="load the log again"
    )
