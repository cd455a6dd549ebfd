"""Batches of the remote segments of a node's log, for its consumers.

Kafka: ``RemoteLogReader``, ``RemoteLogManager.read`` and ``findOffsetByTimestamp``.
"""

from __future__ import annotations

from collections.abc import Iterator

from raftlog.limits import READ_CHUNK_BYTES
from raftlog.log.segment import iter_headers
from raftlog.records.batch import RecordBatch
from raftlog.records.record import Record
from raftlog.storage.protocol import Storage

from .chunks import BatchDecoder
from .files import LogCursor, LogFiles
from .log_end import find_record_for_timestamp
from .remote_tier import OpenStore


class RemoteReader:
    """Reader of one log's remote segments, for one thread. A bounded number of indexes is cached.

    Each call raises ``SegmentDeletedError`` after retention has deleted a segment, the store's
    errors, and ``CorruptBatchError``.
    """

    def __init__(self, storage: Storage, directory: str, open_store: OpenStore) -> None:
        self._files = LogFiles.of_directory(storage, directory, open_store)

    def read_bytes(self, offset: int, byte_count_max: int) -> bytes:
        """Return batches from the one that contains ``offset`` on; the last may be incomplete.

        The result is from one segment and has at least one whole batch, and otherwise at most
        ``byte_count_max`` bytes. It is b"" if the offset is not in a remote segment.
        """
        files = self._files
        files.refresh()
        base_offset = files.segment_at(offset)
        if base_offset is None or not files.is_remote(base_offset):
            return b""
        with files.open(files.segment_path(base_offset)) as file:
            end_position = file.byte_count()
            position = files.find(file, base_offset, offset)
            for header in iter_headers(file, position, end_position):
                if header.last_offset >= offset:
                    left = end_position - header.position
                    wanted = max(byte_count_max, header.byte_count)
                    return file.read_at(header.position, min(wanted, left))
        return b""

    def record_for_timestamp(
        self, timestamp_ms: int, *, start_offset: int, end_offset: int
    ) -> Record | None:
        """Return the first record in [start_offset, end_offset) with a timestamp >= the given one.

        ``end_offset`` must be a batch boundary, at most the local start of the log.
        """
        self._files.refresh()
        return find_record_for_timestamp(
            self._files,
            timestamp_ms,
            start_offset=start_offset,
            end_offset=end_offset,
            read_batches=self._read_batches,
        )

    def _read_batches(self, start_offset: int, end_offset: int) -> Iterator[RecordBatch]:
        cursor = LogCursor(self._files, start_offset, contiguous=True)
        for chunk in cursor.read(BatchDecoder(READ_CHUNK_BYTES), end_offset):
            yield from chunk.objects
