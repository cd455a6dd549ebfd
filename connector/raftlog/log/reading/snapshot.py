"""Reader of a snapshot: the state of a metadata log up to an offset, as records (KIP-630).

Offsets in a snapshot file begin at 0 and are unrelated to the log's; the end offset is in the name.
The file begins with a SnapshotHeader and ends with a SnapshotFooter, both in control batches.
Unlike Kafka's reader, this one requires the footer: without it, ``CorruptSnapshotError`` is raised
after the valid batches. Kafka: ``RecordsSnapshotReader``, ``RecordsSnapshotWriter``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from raftlog.errors import (
    CorruptBatchError,
    CorruptSnapshotError,
    DecompressionLimitError,
    SnapshotDecompressionLimitError,
)
from raftlog.limits import READ_CHUNK_BYTES
from raftlog.log.segment import ends_with_footer, read_batch_at, read_snapshot_head
from raftlog.records.batch import RecordBatch
from raftlog.records.batch_columns import BatchColumns, Column, Scan
from raftlog.records.control import (
    ControlRecord,
    KRaftVersion,
    KRaftVoters,
    SnapshotHeader,
)
from raftlog.types import SnapshotId

from .chunks import BatchDecoder, ChunkDecoder, ColumnDecoder, P, read_chunks
from .files import LogFiles


class SnapshotReader:
    """Reader of one snapshot. The file is opened for each read and closed after it."""

    def __init__(self, files: LogFiles, snapshot_id: SnapshotId) -> None:
        self.snapshot_id = snapshot_id
        self.path = files.checkpoint_path(snapshot_id)
        self._files = files
        self._head: tuple[SnapshotHeader, tuple[ControlRecord, ...]] | None = None

    # --- header -----------------------------------------------------------------------------------

    @property
    def last_contained_log_timestamp_ms(self) -> int:
        """Append time of the last record that the snapshot's state contains, in milliseconds."""
        return self._read_head()[0].last_contained_log_timestamp_ms

    @property
    def kraft_version(self) -> int:
        """``kraft.version``; without a record 0 (static voters), since 0 is never written."""
        versions = (one for one in self._read_head()[1] if isinstance(one, KRaftVersion))
        return max((one.kraft_version for one in versions), default=0)

    @property
    def voters(self) -> KRaftVoters | None:
        """Voters at the snapshot's end offset; None if voters are static and thus not written."""
        named = (one for one in self._read_head()[1] if isinstance(one, KRaftVoters))
        return next(named, None)

    def _read_head(self) -> tuple[SnapshotHeader, tuple[ControlRecord, ...]]:
        if self._head is None:
            with self._files.open(self.path) as file:
                self._head = read_snapshot_head(file)
        return self._head

    # --- records ----------------------------------------------------------------------------------

    def scan(
        self, *, columns: Column = Column.ALL_BUT_HEADERS, chunk_bytes: int = READ_CHUNK_BYTES
    ) -> Iterator[Scan]:
        """Yield all batches in order, including control batches.

        Raises ``CorruptSnapshotError`` after the valid batches, for damage or a missing footer.
        """
        return self._read(ColumnDecoder(columns, chunk_bytes, self._files.decompressed_bytes_max))

    def batches(self) -> Iterator[RecordBatch]:
        """Yield all batches in order, one object each. Raises what ``scan`` raises."""
        for chunk in self._read(BatchDecoder(READ_CHUNK_BYTES)):
            yield from chunk.objects

    def _read(self, decoder: ChunkDecoder[P]) -> Iterator[P]:
        self._read_head()
        expected_offset = last_position = end_position = 0
        with self._files.open(self.path) as file:
            for position, chunk in read_chunks(
                file, 0, decoder, start_offset=None, end_offset=None
            ):
                batches = chunk.batches
                count = batches.in_order_count(expected_offset)
                self._check_epochs(batches[:count])
                if count:
                    last_position = int(batches.position[count - 1])
                    expected_offset = int(batches.last_offset[count - 1]) + 1
                    yield chunk if count == len(batches) else decoder.first(chunk, count)
                if count < len(batches):
                    raise self._damaged(
                        int(batches.position[count]),
                        f"offset {int(batches.base_offset[count])} follows {expected_offset - 1}",
                    )
                end_position = position
                if chunk.error is not None:
                    raise self._from_batch_error(chunk.error, end_position) from None
            left = file.byte_count() - end_position
            if left > 0:
                raise self._damaged(end_position, f"its last {left} bytes are not a complete batch")
            last = read_batch_at(file, last_position)
        if last is None or not ends_with_footer(last):
            raise self._damaged(end_position, "it does not end with a SnapshotFooter record")

    def _check_epochs(self, batches: BatchColumns) -> None:
        """Check that all batches have the epoch in the name, as Kafka does; no CRC covers it."""
        wrong = np.flatnonzero(batches.leader_epoch != self.snapshot_id.epoch)
        if len(wrong):
            at = int(wrong[0])
            epoch = int(batches.leader_epoch[at])
            raise self._damaged(int(batches.position[at]), f"its batch is of epoch {epoch}")

    def _from_batch_error(self, error: CorruptBatchError, position: int) -> CorruptSnapshotError:
        if isinstance(error, DecompressionLimitError):
            return SnapshotDecompressionLimitError(
                path=self.path,
                position=position,
                reason=error.reason,
                byte_count_max=error.byte_count_max,
            )
        return self._damaged(position, error.reason)

    def _damaged(self, position: int, reason: str) -> CorruptSnapshotError:
        return CorruptSnapshotError(path=self.path, position=position, reason=reason)
