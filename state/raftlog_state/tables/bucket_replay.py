"""``replay_bucket``: a task that writes one bucket's rows of a log's range to files.

Rules of this file:

1. Each task decodes and replays the records of its bucket (``range_routing``) and writes their
   changes to its own file (``bucket_parts``). One of the tasks also writes the cluster's rows, to
   separate files, because files for topics have only the columns of topics (``of_entities``).
2. The result is a file, too. A task that runs again returns it if its files exist and the range has
   the same records. The result depends only on these records and the task.
3. Memory holds the bucket's rows and records, and one slice of the changes.
4. If the replay of a range fails, the result is ``NotSplit``, and none of the range's files is
   used.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NamedTuple, NoReturn, Self

import pyarrow as pa
import pyarrow.parquet as pq

from raftlog.client import Isolation, LogReader
from raftlog.errors import DataLossError, RaftlogError
from raftlog_state.collection_pause import collection_paused
from raftlog_state.errors import MetadataParseError
from raftlog_state.image.rows import Entity
from raftlog_state.source_rows.columns import arrow_schema
from raftlog_state.source_rows.data_loss import DataLoss
from raftlog_state.source_rows.reading import RowSettings, split_rows

from .batch import SOURCE_COLUMNS, check_batch
from .bucket_parts import (
    SLICE_ROWS,
    LoaderPart,
    Part,
    PartSettings,
    RejectedRecordsError,
    TopicsPart,
)
from .columnar_replay import TOPIC_ENTITIES
from .logrows import log_rows
from .range_routing import NotSplit, RoutedRange
from .schema import CHANGES_TABLE, LOG_TABLE, STATE_TABLE, of_entities
from .staging import are_complete, sync, write_durably
from .stores.protocol import in_schema
from .topic_buckets import CLUSTER, UnsplitRecordError, rows_of_bucket

_BUCKET_WITH_CLUSTER: Final = 0
"""Bucket whose task also writes the rows that belong to no topic."""
_OF_LOG: Final = ("cluster_id", "topic", "partition", "incarnation")


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketResult:
    """Files of a bucket, its rows at the end of the range, and the checksum of the range."""

    changes: list[str]
    state: list[str]
    log: list[str]
    row_counts: dict[str, int]
    metadata_version: int | None
    checksum: int

    @property
    def files(self) -> list[str]:
        """All its files."""
        return [*self.changes, *self.state, *self.log]


def replay_bucket(routed: RoutedRange, bucket: int) -> BucketResult | NotSplit:
    """Write the files of a bucket unless they exist; return the result."""
    done = Path(routed.task.directory, f"bucket-{bucket}.json")
    known = _known_result(done)
    if known is not None and known.checksum == routed.checksum:
        return known
    replay = _BucketReplay(routed, bucket)
    try:
        with collection_paused():
            result = replay.run()
    except UnsplitRecordError as error:
        return NotSplit(
            offset=error.row, reason="it begins a transaction that ends after the range"
        )
    except RejectedRecordsError as error:
        return NotSplit(offset=error.offset, reason=error.reason)
    except (RaftlogError, MetadataParseError) as error:
        return NotSplit(offset=replay.first_offset, reason=str(error))
    write_durably(done, json.dumps(asdict(result)))
    return result


def result_text(result: BucketResult | NotSplit) -> str:
    """Return a result as text."""
    return json.dumps({"kind": type(result).__name__, **asdict(result)})


def result_of_text(text: str) -> BucketResult | NotSplit:
    """Return the result of a text."""
    found = json.loads(text)
    is_split = found.pop("kind") != NotSplit.__name__
    return BucketResult(**found) if is_split else NotSplit(**found)


def _known_result(done: Path) -> BucketResult | None:
    """Return the result of an earlier run, if all of its files are complete."""
    try:
        found = BucketResult(**json.loads(done.read_text()))
    except (FileNotFoundError, json.JSONDecodeError):  # empty after a power loss
        return None
    return found if are_complete(found.files) else None


class _BucketReplay:
    """One run of a task."""

    def __init__(self, routed: RoutedRange, bucket: int) -> None:
        self._routed, self._task = routed, routed.task
        self._bucket = bucket
        self.first_offset = self._task.start_offset
        """Offset of the first record among those that were appended last."""
        directory = Path(self._task.directory)
        self._log_file = _FileWriter(directory, LOG_TABLE.name, LOG_TABLE.schema)
        self._files = {bucket: _PartFiles.of_topics(directory)}
        if bucket == _BUCKET_WITH_CLUSTER:
            self._files[CLUSTER] = _PartFiles.of_cluster(directory)

    def run(self) -> BucketResult:
        """Read the records and write the files.

        Raises:
            UnsplitRecordError: with the offset of the record that begins an open transaction.
            RejectedRecordsError: a record contradicts the state.
            RaftlogError: the log cannot be read.
        """
        counts = Counter[str]()
        parts = self._create_parts()
        for bucket, part in parts.items():
            for records in self._routed.records_of(bucket):
                self.first_offset = records.first_offset
                part.append(records)
            counts.update(part.complete())
            for rows in part.state_rows():
                self._files[bucket].state.write(rows)
        if self._task.log_shares:
            self._write_log(self._task.open_log())
        of_cluster = parts.get(CLUSTER)
        return BucketResult(
            changes=[file for of in self._files.values() for file in of.changes.close()],
            state=[file for of in self._files.values() for file in of.state.close()],
            log=self._log_file.close(),
            row_counts=dict(counts),
            metadata_version=None if of_cluster is None else of_cluster.metadata_version,
            checksum=self._routed.checksum,
        )

    def _create_parts(self) -> dict[int, Part]:
        """Return the parts with their rows of ``state``."""
        task = self._task
        state = task.state()
        shared = {
            **{name: getattr(task.before, name) for name in _OF_LOG},
            "committed_at": task.committed_at,
        }
        parts: dict[int, Part] = {}
        for bucket, files in self._files.items():
            settings = PartSettings(task.before, task.redactor, shared, files.changes.write)
            kind = LoaderPart if bucket == CLUSTER else TopicsPart
            parts[bucket] = kind(settings, rows_of_bucket(state, bucket, self._routed.buckets))
        return parts

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
                batch for split in plan.splits for batch in split_rows(log, split, settings, _lost)
            ]
            rows = pa.Table.from_batches(batches, arrow_schema(SOURCE_COLUMNS))
            batch = check_batch(rows, next_offset=start_offset, place=task.directory)
            self._log_file.write(
                log_rows(batch.rows, cluster_id=before.cluster_id, incarnation=before.incarnation)
            )
            start_offset = boundary


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
        """Complete the file and sync it; return its path, or no path if it has no rows."""
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


def _lost(condition: DataLoss, reason: str) -> NoReturn:
    raise DataLossError(
        path="the log", condition=condition.value, reason=reason, remedy="load the log again"
    )
