"""Reading of a log that grows: its end at each look, and each record once.

The records returned are committed, where that can be determined. Temporary errors, such as a quorum
without a leader, are not raised: the read is repeated. It is an error if a returned record is
truncated nevertheless, or if a record is deleted before it was returned, so no record is lost or
repeated silently.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from raftlog.clock import Clock
from raftlog.errors import LogClosedError, RaftlogError
from raftlog.log.reading.reads import Isolation, ReadEnd
from raftlog.records.record import Record

if TYPE_CHECKING:
    import pyarrow as pa

    from raftlog.log.reading.log_reader import LogReader

    from .log_records import LogRecords

POLL_S: Final = 0.05

C = TypeVar("C")
"""Part of the records of a log: those of one record batch, or an Arrow batch."""


@dataclass(frozen=True, slots=True)
class AtEnd:
    """There are no more records to read now. ``news`` is done when there may be more."""

    news: Future[bool] | None = None

    def wait(self, pause: Callable[[float], None]) -> None:
        """Wait until there may be more, or pause if that is not possible."""
        try:
            has_waited = self.news is not None and self.news.result()
        except CancelledError:
            return  # the log is closed
        if not has_waited:
            pause(POLL_S)

    async def wait_async(self) -> None:
        """Wait as ``wait`` on an event loop."""
        if self.news is None:
            await asyncio.sleep(POLL_S)
            return
        waiting = asyncio.wrap_future(self.news)
        await asyncio.wait((waiting,))  # a log that is closed does not cancel this task
        if not waiting.cancelled() and not waiting.result():
            await asyncio.sleep(POLL_S)


class FollowedEnd:
    """End of what is read of one log, which only grows. Not thread-safe.

    ``holdback_ms``: of one directory of Kafka, the age that records must have.
    """

    def __init__(
        self, log: LogReader, isolation: Isolation, clock: Clock, *, holdback_ms: int = 0
    ) -> None:
        self._log = log
        self._isolation = isolation
        self._clock = clock
        self._holdback_ms = holdback_ms
        self.read_up_to: ReadEnd | None = None
        """The end that was reached, None at first. Set it once everything below has been read."""

    def look(self) -> ReadEnd:
        """Return the end now.

        Raises:
            DivergedLogError: records below ``read_up_to`` are not in the log any more.
            Also the errors of reading a log.
        """
        self._log.refresh()
        return self._log.read_end(
            isolation=self._isolation,
            holdback_ms=self._holdback_ms,
            now_ms=self._clock.wall_ms(),
            previous=self.read_up_to,
        )


class FollowedRecords:
    """Records of a log from ``start_offset`` on, including those that are appended later.

    An iteration waits for more records at the log's end. It ends when the log's handle is closed,
    or at ``end_offset``. With ``is_from_start`` it begins at the log's present start if that is
    later than ``start_offset``. It survives new segments, retention and failing leaders. While a
    quorum has no leader, or its leader cannot read from its disk or its object store, it waits.
    Each iteration yields every record exactly once and can run in any thread; an ``async for``
    reads in a thread of the event loop's executor.

    Iteration raises:
        DataLossError: records were deleted before they were read.
        DivergedLogError: records that were returned were truncated.
        Also the permanent errors of reading a log, such as damage.
    """

    def __init__(
        self,
        open_log: Callable[[], LogReader],
        start_offset: int,
        end_offset: int | None,
        isolation: Isolation,
        clock: Clock,
        is_closed: Callable[[], bool],
        *,
        is_from_start: bool = False,
    ) -> None:
        self._open_log = open_log
        self._isolation = isolation
        self._clock = clock
        self._is_closed = is_closed
        self._is_from_start = is_from_start
        self.start_offset = start_offset
        self.end_offset = end_offset

    def __repr__(self) -> str:
        return f"FollowedRecords(start_offset={self.start_offset}, end_offset={self.end_offset})"

    def __iter__(self) -> Iterator[Record]:
        for chunk in self._waiting(self._record_chunks()):
            yield from chunk

    async def __aiter__(self) -> AsyncIterator[Record]:
        async for chunk in _awaited(self._record_chunks()):
            for record in chunk:
                yield record

    def to_batches(self) -> FollowedBatches:
        """Return the records as Arrow batches of bounded size, like ``LogRecords.to_batches``.

        A batch contains the records that are available; it is not held back until it is full.
        """
        return FollowedBatches(self)

    def _record_chunks(self) -> Iterator[list[Record] | AtEnd]:
        """Yield the records of one record batch at a time, and ``AtEnd``."""
        return self._chunks(lambda found: found.chunks(), lambda chunk: chunk[-1].offset)

    def _batches(self) -> Iterator[pa.RecordBatch | AtEnd]:
        """Yield Arrow batches, and ``AtEnd``."""
        return self._chunks(
            lambda found: found.to_batches(), lambda batch: batch.column("offset")[-1].as_py()
        )

    def _waiting(self, chunks: Iterator[C | AtEnd]) -> Iterator[C]:
        """Yield chunks, and wait where there are no more of them."""
        for chunk in chunks:
            if isinstance(chunk, AtEnd):
                chunk.wait(self._clock.pause)
            else:
                yield chunk

    def _chunks(
        self, read: Callable[[LogRecords], Iterator[C]], last_offset: Callable[[C], int]
    ) -> Iterator[C | AtEnd]:
        """Yield the chunks that ``read`` returns of a range, which are not empty, and ``AtEnd``
        where the log has no more of them. ``last_offset`` returns that of a chunk."""
        from .log_records import LogRecords

        try:
            log = self._open_log()
        except LogClosedError:
            return
        end = FollowedEnd(log, self._isolation, self._clock)
        next_offset = self.start_offset
        while not self._is_closed():
            if self.end_offset is not None and next_offset >= self.end_offset:
                return
            try:
                found = end.look()
                up_to = min(found.offset, self.end_offset or found.offset)
                is_unread = end.read_up_to is None and next_offset == self.start_offset
                records = LogRecords(
                    lambda: log,
                    next_offset,
                    up_to,
                    self._isolation,
                    is_from_start=self._is_from_start and is_unread,
                )
                for chunk in read(records):
                    yield chunk
                    next_offset = last_offset(chunk) + 1
                next_offset = max(next_offset, up_to)
                end.read_up_to = found
                if self.end_offset is not None and next_offset >= self.end_offset:
                    return
                at_end = AtEnd(log.begin_wait())
            except LogClosedError:
                return
            except RaftlogError as error:
                if not error.retriable:
                    raise
                at_end = AtEnd()
            yield at_end


@dataclass(frozen=True, slots=True)
class FollowedBatches:
    """Records of a log as Arrow batches, including those that are appended later.

    The schema is that of ``LogRecords.to_arrow``; everything else is the same as
    ``FollowedRecords``.
    """

    _records: FollowedRecords

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._records._waiting(self._records._batches())

    def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        return _awaited(self._records._batches())


_ENDED: Final[Any] = object()
"""What ``next`` returns after the last chunk."""


async def _awaited(chunks: Iterator[C | AtEnd]) -> AsyncIterator[C]:
    """Yield chunks, which are read in a thread of the event loop's executor."""
    while True:
        chunk = await asyncio.to_thread(next, chunks, _ENDED)
        if chunk is _ENDED:
            return
        if isinstance(chunk, AtEnd):
            await chunk.wait_async()
        else:
            yield chunk
