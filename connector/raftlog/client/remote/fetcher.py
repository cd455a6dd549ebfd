"""Read on from an offset of a quorum's log: fetch after fetch becomes pieces, as a file does.

Rules of this file:

1. Memory is bounded by two fetches, or by a batch where that is larger. Nothing above the high
   watermark is given out, whatever a leader sends: Kafka's controllers send more.
2. What was whole is given out first; the error comes behind it. A leader's bytes are checked as a
   file's are: a node's memory and the network lie between its disk and us.
3. Offsets follow each other without a gap, as in every log that Raft keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Final

from raftlog.errors import CorruptBatchError, DataLossError, LogGapError, QuorumUnavailableError
from raftlog.limits import BATCH_HEADER_BYTES, LOG_OVERHEAD_BYTES, READ_BATCH_BYTES_MAX
from raftlog.log.chunks import Chunk, ChunkDecoder, P
from raftlog.records.header import BATCH_LENGTH, LENGTH_POSITION

from .leader_client import FetchResult, LeaderClient

PAUSE_MS: Final = 50


def read_chunks(
    quorum: LeaderClient, reading: ChunkDecoder[P], start_offset: int, end_offset: int
) -> Iterator[P]:
    """The batches that overlap [start_offset, end_offset), which must be committed.

    While a piece is used the next one is fetched. Raises ``CorruptBatchError``, ``LogGapError``,
    ``DataLossError`` behind what was whole, and what asking a quorum raises.
    """
    fetches = _Prefetcher(quorum, max(reading.chunk_bytes, BATCH_HEADER_BYTES), end_offset)
    next_offset, is_first = start_offset, True
    while next_offset < end_offset:
        fetched = fetches.take(next_offset)
        piece = reading.decode(
            fetched.data,
            path=quorum.path,
            file_position=0,
            start_offset=next_offset,
            end_offset=min(end_offset, fetched.high_watermark or 0),
        )
        if not len(piece.batches):
            if piece.error is not None:
                raise piece.error
            fetches.enlarge(fetched, next_offset)
            continue
        count, gap = _check_order(piece, next_offset, quorum.path, is_first=is_first)
        if count:
            next_offset, is_first = int(piece.batches.next_offset[count - 1]), False
            if gap is None and piece.error is None:
                fetches.begin(next_offset, fetched)
            yield piece if gap is None else reading.first(piece, count)
        if gap is not None:
            raise gap
        if piece.error is not None:
            raise piece.error


class _Prefetcher:
    """Fetches of one range, the next of which may be under way."""

    def __init__(self, quorum: LeaderClient, byte_count: int, end_offset: int) -> None:
        self._quorum = quorum
        self._byte_count = self._wanted = byte_count
        self._end_offset = end_offset
        self._ahead: Future[FetchResult] | None = None

    def take(self, offset: int) -> FetchResult:
        """What lies from ``offset`` on, of which something is committed."""
        waited_ms = 0
        while True:
            ahead, self._ahead = self._ahead, None
            fetched = self._fetch(offset) if ahead is None else ahead.result()
            _check_available(self._quorum, fetched, offset, self._end_offset)
            if fetched.data and (fetched.high_watermark or 0) > offset:
                return fetched
            # A new leader learns late what is committed: it was, or nobody would ask for it.
            if waited_ms >= self._quorum.timeout_ms:
                raise QuorumUnavailableError(
                    path=self._quorum.path,
                    waited_ms=waited_ms,
                    reason=f"offset {offset} was committed, and the leader does not know it",
                )
            self._quorum.pause(PAUSE_MS)
            waited_ms += PAUSE_MS

    def begin(self, offset: int, last: FetchResult) -> None:
        """Fetch what follows, if there will be much of it."""
        self._wanted = self._byte_count
        if offset < self._end_offset and len(last.data) * 2 > self._byte_count:
            self._ahead = self._quorum.begin_fetch(offset, byte_count_max=self._wanted)

    def enlarge(self, fetched: FetchResult, offset: int) -> None:
        """Ask for more at once: the first batch is larger than what was asked for."""
        larger = _first_batch_byte_count(fetched.data)
        if larger is None or larger <= self._wanted:
            reason = "the leader sent no whole batch of what was asked for"
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
        reason=f"offset {offset} is gone: the log begins at {start_offset} now",
        remedy="begin at a snapshot or at the first offset of the log",
    )


def _truncated(quorum: LeaderClient, offset: int, end_offset: int) -> DataLossError:
    return DataLossError(
        path=quorum.path,
        condition="LOG_TRUNCATED",
        reason=f"the log does not reach offset {offset} now, and records up to {end_offset} were "
        "to be read",
        remedy="what is committed is never taken back: this is another log, plan the read again",
    )


def _check_order(
    piece: Chunk, next_offset: int, path: str, *, is_first: bool
) -> tuple[int, LogGapError | None]:
    """How many leading batches follow each other, and what is wrong with the next one."""
    batches = piece.batches
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
    """How many bytes the batch claims that a fetch begins with; None if that cannot be."""
    if len(data) < LENGTH_POSITION + BATCH_LENGTH.size:
        return None
    (length,) = BATCH_LENGTH.unpack_from(data, LENGTH_POSITION)
    byte_count = int(length) + LOG_OVERHEAD_BYTES
    return byte_count if BATCH_HEADER_BYTES <= byte_count <= READ_BATCH_BYTES_MAX else None
