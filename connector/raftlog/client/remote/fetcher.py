"""Reader of a quorum's log: consecutive Fetch responses, decoded in chunks like a file.

Memory is bounded by two responses, or by one batch if that is larger. Records from the high
watermark on are not returned, although Kafka's controllers send them. Received batches are
validated like those of a file, since they passed through a node's memory and the network; valid
batches are returned before an error is raised. Offsets have no gaps, as in every Raft log.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Final

from raftlog.errors import CorruptBatchError, DataLossError, LogGapError, QuorumUnavailableError
from raftlog.limits import BATCH_HEADER_BYTES, LOG_OVERHEAD_BYTES, READ_BATCH_BYTES_MAX
from raftlog.log.reading.chunks import Chunk, ChunkDecoder, P
from raftlog.records.header import BATCH_LENGTH, LENGTH_POSITION

from .leader_client import FetchResult, LeaderClient

PAUSE_MS: Final = 50


def read_chunks(
    quorum: LeaderClient, decoder: ChunkDecoder[P], start_offset: int, end_offset: int
) -> Iterator[P]:
    """Yield the batches that overlap [start_offset, end_offset), which must be committed.

    While a chunk is used the next one is fetched. Raises ``CorruptBatchError``, ``LogGapError``
    and ``DataLossError`` after the valid batches, and what ``LeaderClient.fetch`` raises.
    """
    fetches = _Prefetcher(quorum, max(decoder.chunk_bytes, BATCH_HEADER_BYTES), end_offset)
    next_offset, is_first = start_offset, True
    while next_offset < end_offset:
        fetched = fetches.take(next_offset)
        chunk = decoder.decode(
            fetched.data,
            path=quorum.path,
            file_position=0,
            start_offset=next_offset,
            end_offset=min(end_offset, fetched.high_watermark or 0),
        )
        if not len(chunk.batches):
            if chunk.error is not None:
                raise chunk.error
            fetches.enlarge(fetched, next_offset)
            continue
        count, gap = _check_order(chunk, next_offset, quorum.path, is_first=is_first)
        if count:
            next_offset, is_first = int(chunk.batches.next_offset[count - 1]), False
            if gap is None and chunk.error is None:
                fetches.begin(next_offset, fetched)
            yield chunk if gap is None else decoder.first(chunk, count)
        if gap is not None:
            raise gap
        if chunk.error is not None:
            raise chunk.error


class _Prefetcher:
    """Fetches of one range, with at most one request in advance."""

    def __init__(self, quorum: LeaderClient, byte_count: int, end_offset: int) -> None:
        self._quorum = quorum
        self._byte_count = self._wanted = byte_count
        self._end_offset = end_offset
        self._ahead: Future[FetchResult] | None = None

    def take(self, offset: int) -> FetchResult:
        """Return a response from ``offset`` on with at least one committed record."""
        waited_ms = 0
        while True:
            ahead, self._ahead = self._ahead, None
            fetched = self._fetch(offset) if ahead is None else ahead.result()
            _check_available(self._quorum, fetched, offset, self._end_offset)
            if fetched.data and (fetched.high_watermark or 0) > offset:
                return fetched
            # The range is committed, but a new leader has a lower high watermark at first.
            if waited_ms >= self._quorum.timeout_ms:
                raise QuorumUnavailableError(
                    path=self._quorum.path,
                    waited_ms=waited_ms,
                    reason=f"the leader's high watermark is not above committed offset {offset}",
                )
            self._quorum.pause(PAUSE_MS)
            waited_ms += PAUSE_MS

    def begin(self, offset: int, last: FetchResult) -> None:
        """Fetch what follows, if the last response was more than half full."""
        self._wanted = self._byte_count
        if offset < self._end_offset and len(last.data) * 2 > self._byte_count:
            self._ahead = self._quorum.begin_fetch(offset, byte_count_max=self._wanted)

    def enlarge(self, fetched: FetchResult, offset: int) -> None:
        """Increase the fetch size to that of the first batch, which did not fit."""
        larger = _first_batch_byte_count(fetched.data)
        if larger is None or larger <= self._wanted:
            reason = "the leader sent no complete batch"
            raise CorruptBatchError(reason=reason, path=self._quorum.path, offset=offset)
        self._wanted = larger

    def _fetch(self, offset: int) -> FetchResult:
        return self._quorum.fetch(offset, byte_count_max=self._wanted)


def _check_available(
    quorum: LeaderClient, fetched: FetchResult, offset: int, end_offset: int
) -> None:
    """Raise ``DataLossError`` if a range that was committed cannot be fetched any more."""
    if fetched.log_start_offset > offset or fetched.snapshot_id is not None:
        raise _deleted(quorum, offset, fetched.log_start_offset)
    if fetched.is_out_of_range or fetched.diverging is not None:
        start_offset = quorum.start_offset(fetched)
        if offset < start_offset:
            raise _deleted(quorum, offset, start_offset)
        raise _truncated(quorum, offset, end_offset)


def _deleted(quorum: LeaderClient, offset: int, start_offset: int) -> DataLossError:
    return DataLossError(
        path=quorum.path,
        condition="OFFSETS_DELETED",
        reason=f"offset {offset} was deleted: the log now starts at offset {start_offset}",
        remedy="start at a snapshot or at the log's first offset",
    )


def _truncated(quorum: LeaderClient, offset: int, end_offset: int) -> DataLossError:
    return DataLossError(
        path=quorum.path,
        condition="LOG_TRUNCATED",
        reason=f"the log ends before offset {offset}, but records up to offset {end_offset} were "
        "committed",
        remedy="committed records are never truncated, so this is another log: start a new read",
    )


def _check_order(
    chunk: Chunk, next_offset: int, path: str, *, is_first: bool
) -> tuple[int, LogGapError | None]:
    """Return how many leading batches have no gap, and the error of the next one."""
    batches = chunk.batches
    begins = int(batches.base_offset[0])
    expected_first = min(begins, next_offset) if is_first else next_offset
    count = batches.in_order_count(expected_first)
    if count == len(batches):
        return count, None
    expected = int(batches.next_offset[count - 1]) if count else expected_first
    return count, LogGapError(
        path=path,
        position=None,
        expected_offset=expected,
        offset=int(batches.base_offset[count]),
    )


def _first_batch_byte_count(data: bytes) -> int | None:
    """Return the size in the header of the first batch; None if it is invalid."""
    if len(data) < LENGTH_POSITION + BATCH_LENGTH.size:
        return None
    (length,) = BATCH_LENGTH.unpack_from(data, LENGTH_POSITION)
    byte_count = int(length) + LOG_OVERHEAD_BYTES
    return byte_count if BATCH_HEADER_BYTES <= byte_count <= READ_BATCH_BYTES_MAX else None
