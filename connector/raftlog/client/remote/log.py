"""Reading the log of a quorum through its leader."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

import numpy as np

from raftlog.errors import (
    CorruptBatchError,
    DataLossError,
    LogGapError,
    LogNotFoundError,
    QuorumUnavailableError,
    SegmentDeletedError,
)
from raftlog.limits import (
    BATCH_HEADER_BYTES,
    DECOMPRESSED_BYTES_MAX,
    LOG_OVERHEAD_BYTES,
    MIB,
    READ_BATCH_BYTES_MAX,
    READ_CHUNK_BYTES,
)
from raftlog.log.format.directory import Listing, MetaProperties, QuorumState, parse_checkpoint_name
from raftlog.log.format.epoch_cache import EpochCache
from raftlog.log.reading.aborted_transactions import (
    MARKER_COLUMNS,
    MARKER_PREFIXES,
    AbortedTransactions,
    add_metadata_markers,
)
from raftlog.log.reading.chunks import (
    BatchDecoder,
    Chunk,
    ChunkBytes,
    ChunkDecoder,
    ColumnDecoder,
    HeaderDecoder,
    P,
)
from raftlog.log.reading.files import LogFiles, LogTail
from raftlog.log.reading.log_end import offset_for_timestamp
from raftlog.log.reading.log_reader import LogExtent, LogReader, describe_end, not_below_previous
from raftlog.log.reading.reads import (
    EndBasis,
    Isolation,
    LogKind,
    ReadEnd,
    ReadPlan,
    SourceKind,
    plan_range,
)
from raftlog.log.reading.replay import ENDED_RETAINED_MAX
from raftlog.log.reading.snapshot import SnapshotReader
from raftlog.log.reading.transactions import TransactionIndex, TransactionSpan, ValueKind
from raftlog.records.batch import RecordBatch
from raftlog.records.batch_columns import BatchColumns, Column, Scan
from raftlog.records.header import BATCH_LENGTH, LENGTH_POSITION
from raftlog.storage.protocol import Closeable
from raftlog.types import OffsetAndEpoch, SnapshotId

from . import messages
from .leader_client import FetchResult, LeaderClient, PendingFetch

# --- Snapshots of a quorum as files, read by position with FetchSnapshot (KIP-630) ----------------

_FETCH_BYTES: Final = 1 * MIB


def snapshot_files(
    quorum: LeaderClient, snapshot_id: SnapshotId, decompressed_bytes_max: int
) -> LogFiles:
    """Return the files of a log that has only this snapshot."""
    files = LogFiles(_Snapshots(quorum), quorum.path, Listing(snapshots=(snapshot_id,)))
    files.decompressed_bytes_max = decompressed_bytes_max
    return files


class _Snapshots:
    """Storage (``storage.protocol.Storage``) that has only the snapshots of a quorum."""

    def __init__(self, quorum: LeaderClient) -> None:
        self._quorum = quorum

    def list_names(self, directory: str) -> list[str]:
        raise LogNotFoundError(path=directory)

    def open_file(self, path: str) -> _SnapshotFile:
        snapshot_id = parse_checkpoint_name(self.split(path)[1])
        if snapshot_id is None:
            raise LogNotFoundError(path=path)
        return _SnapshotFile(self._quorum, path, snapshot_id)

    def is_directory(self, path: str) -> bool:
        raise LogNotFoundError(path=path)

    def join(self, directory: str, name: str) -> str:
        return f"{directory}/{name}"

    def split(self, path: str) -> tuple[str, str]:
        directory, _, name = path.rpartition("/")
        return directory, name

    def expand(self, pattern: str) -> list[str]:
        return []


class _SnapshotFile(Closeable):
    """One snapshot. The last response is kept, because readers read in small steps."""

    def __init__(self, quorum: LeaderClient, path: str, snapshot_id: SnapshotId) -> None:
        self._quorum = quorum
        self._path = path
        self._snapshot_id = snapshot_id
        self._kept = b""
        self._kept_from = 0
        self._size: int | None = None

    @property
    def path(self) -> str:
        return self._path

    def byte_count(self) -> int:
        if self._size is None:
            self._fetch(0)
        assert self._size is not None, "set by a fetch"
        return self._size

    def read_at(self, position: int, byte_count: int) -> bytes:
        end = min(position + byte_count, self.byte_count())
        parts: list[bytes] = []
        while position < end:
            if not self._kept_from <= position < self._kept_from + len(self._kept):
                self._fetch(position)
            at = position - self._kept_from
            part = self._kept[at : at + end - position]
            if not part:
                break
            parts.append(part)
            position += len(part)
        return b"".join(parts)

    def _fetch(self, position: int) -> None:
        found = self._quorum.fetch_snapshot(self._snapshot_id, position, _FETCH_BYTES)
        if found is None:
            raise SegmentDeletedError(path=self._path)
        self._kept, self._size = found
        self._kept_from = position

    def close(self) -> None:
        self._kept = b""


# --- Reader of a quorum's log: consecutive Fetch responses, decoded in chunks like a file ---------
# Memory is bounded by two responses, or by one batch if that is larger. Records from the high
# watermark on are not returned, although Kafka's controllers send them. Received batches are
# validated like batches in a file, since they passed through a node's memory and the network. Valid
# batches are returned before an error is raised. Offsets have no gaps, as in every Raft log.

PAUSE_MS: Final = 50


def read_chunks(
    quorum: LeaderClient, decoder: ChunkDecoder[P], start_offset: int, end_offset: int
) -> Iterator[P]:
    """Yield the batches that overlap [start_offset, end_offset), which must be committed.

    While a chunk is being used, the next one is fetched. Raises ``CorruptBatchError``,
    ``LogGapError`` and ``DataLossError`` after the valid batches, and the errors of
    ``LeaderClient.fetch``.
    """
    fetches = _Prefetcher(quorum, max(decoder.chunk_bytes, BATCH_HEADER_BYTES), end_offset)
    next_offset, is_first = start_offset, True
    while next_offset < end_offset:
        fetched = fetches.take(next_offset)
        end = min(end_offset, fetched.high_watermark or 0)
        chunk = decoder.decode(
            ChunkBytes(
                fetched.data, quorum.path, position=0, start_offset=next_offset, end_offset=end
            )
        )
        if chunk.error is not None:
            quorum.forget_awaited()  # the next read fetches again
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
            quorum.forget_awaited()
            raise gap
        if chunk.error is not None:
            raise chunk.error


class _Prefetcher:
    """Fetches of one range, at most one request ahead."""

    def __init__(self, quorum: LeaderClient, byte_count: int, end_offset: int) -> None:
        self._quorum = quorum
        self._byte_count = self._wanted = byte_count
        self._end_offset = end_offset
        self._ahead: PendingFetch | None = None

    def take(self, offset: int) -> FetchResult:
        """Return a response from ``offset`` on that has at least one committed record."""
        waited_ms = 0
        while True:
            ahead, self._ahead = self._ahead, None
            fetched = None if ahead is None else ahead.wait()
            if fetched is None and ahead is None and not waited_ms:
                fetched = self._awaited(offset)
            if fetched is None:
                fetched = self._fetch(offset)
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

    def _awaited(self, offset: int) -> FetchResult | None:
        """Return the records that were waited for, unless they are more than one fetch."""
        found = self._quorum.awaited(offset)
        if found is None or len(found.data) > self._wanted:
            return None
        first = _first_batch_byte_count(found.data)
        return found if first is not None and first <= len(found.data) else None

    def begin(self, offset: int, last: FetchResult) -> None:
        """Fetch what follows, if the last response was more than half full."""
        self._wanted = self._byte_count
        if offset < self._end_offset and len(last.data) * 2 > self._byte_count:
            self._ahead = self._quorum.begin_fetch(offset, byte_count_max=self._wanted)

    def enlarge(self, fetched: FetchResult, offset: int) -> None:
        """Increase the fetch size to the size of the first batch, which did not fit."""
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
    """Raise ``DataLossError`` if a range that was committed can no longer be fetched."""
    has_snapshot = fetched.snapshot_id is not None and not fetched.is_out_of_range
    if fetched.log_start_offset > offset or has_snapshot:
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


# --- Leader epochs of a quorum's log, requested from its leader from the newest to the oldest -----
# A leader returns the end offset of an epoch (KIP-101), where the next one starts. Committed
# records keep their epoch, so only new epochs have to be requested.


def fetch_leader_epochs(
    quorum: LeaderClient, known: EpochCache, log_start_offset: int
) -> EpochCache:
    """Return all epochs from the log's start on. ``known``: the result of the last call."""
    found: list[tuple[int, int]] = []
    end = quorum.end_offset_for_epoch(None)
    while end is not None and end.offset > log_start_offset:
        before = _end_before(quorum, end.epoch)
        start_offset = 0 if before is None else before.offset
        if start_offset >= end.offset:
            break  # below its first epoch a leader returns the requested one
        found.append((end.epoch, start_offset))
        entry = next((one for one in known.entries if one.epoch == end.epoch), None)
        if entry is not None and entry.start_offset == start_offset:
            break
        end = before
    return known.assign_all(reversed(found)).without_before(log_start_offset)


def _end_before(quorum: LeaderClient, epoch: int) -> OffsetAndEpoch | None:
    return None if epoch <= 0 else quorum.end_offset_for_epoch(epoch - 1)


# --- Metadata transactions of a quorum's log, found by reading it once from the start -------------
# Reading starts where no transaction is open: after a snapshot (KIP-630), or at the log's start.
# Committed records never change, so none is read twice. Damage raises an error, since it hides
# which transactions the later records belong to.

_SETTLE_STEP = 65_536
"""Number of offsets to read at a time when searching for the end of a transaction."""


class TransactionHistory:
    """Transactions of a metadata log from ``start_offset`` on.

    The last ``kept_max`` completed transactions are retained: all of them from
    ``index.complete_from`` on. ``is_deleted_before``: records before ``start_offset`` were deleted,
    so a transaction may be open there.
    """

    def __init__(
        self,
        quorum: LeaderClient,
        start_offset: int,
        *,
        is_deleted_before: bool,
        kept_max: int | None,
        decompressed_bytes_max: int,
    ) -> None:
        self.index = TransactionIndex(
            quorum.path, complete_from=start_offset, retained_max=kept_max
        )
        if is_deleted_before:
            self.index.assume_open_transaction_at(start_offset)
        self._quorum = quorum
        self._decoder = ColumnDecoder(
            MARKER_COLUMNS,
            READ_CHUNK_BYTES,
            decompressed_bytes_max,
            whole_batches=True,
            value_prefixes=MARKER_PREFIXES,
        )
        self._start_offset = start_offset
        self._next_offset = start_offset

    def covers_from(self, offset: int) -> bool:
        """Return whether it has every transaction that ends at or after ``offset``."""
        return self.index.complete_from <= offset

    def follow(self, end_offset: int) -> None:
        """Read up to ``end_offset`` (exclusive, committed). Raises like ``read_chunks``."""
        if self._next_offset >= end_offset:
            return
        for chunk in read_chunks(self._quorum, self._decoder, self._next_offset, end_offset):
            add_metadata_markers(chunk, self.index, from_offset=self._start_offset)
            self._next_offset = int(chunk.batches.next_offset[-1])

    def settle(self, end_offset: int, high_watermark: int) -> None:
        """Read until all transactions that began below ``end_offset`` have ended, or to the end."""
        self.follow(end_offset)
        settled = end_offset
        while settled < high_watermark and self.index.opened_before(end_offset):
            settled = min(settled + _SETTLE_STEP, high_watermark)
            self.follow(settled)


# --- Reader of a quorum's log over the network, up to its high watermark --------------------------
# Records below the high watermark are committed, so none is held back and the end never decreases.
# The nodes are a raftlog quorum or Kafka's controllers; what controllers do not serve (offsets by
# timestamp, transactions) is found by reading the log. A raftlog quorum accepts no transactional
# producers, so no record below its high watermark belongs to an open transaction.

_ATTEMPTS_MAX: Final = 100
_RETRY_WAIT_MS: Final = 100
_ONE_BATCH: Final = HeaderDecoder(chunk_bytes=1)


@dataclass(frozen=True, slots=True)
class _Extent:
    """Offsets of the log, as returned by its leader."""

    start_offset: int
    high_watermark: int
    last_stable_offset: int
    snapshots: tuple[SnapshotId, ...] = ()


class RemoteLog(LogReader):
    """Log of a quorum, over the connections of ``quorum``.

    ``values``: the kind of values; None to request it. A batch that decompresses to more than
    ``decompressed_bytes_max`` bytes raises ``DecompressionLimitError``.
    """

    def __init__(
        self,
        quorum: LeaderClient,
        values: ValueKind | None = None,
        *,
        decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    ) -> None:
        identity = quorum.identity()
        self.path = quorum.path
        self.topic = identity.topic
        self.partition = messages.PARTITION
        self.source = SourceKind.QUORUM
        is_metadata = identity.is_controller
        if not is_metadata:
            values = quorum.settings().values if values is None else values
            is_metadata = values is ValueKind.KRAFT
        self.kind = LogKind.METADATA if is_metadata else LogKind.PARTITION
        self._quorum = quorum
        self._decompressed_bytes_max = decompressed_bytes_max
        self._identity = identity
        self._known: _Extent | None = None
        self._epochs: EpochCache | None = None
        self._known_epochs = EpochCache()
        self._history: TransactionHistory | None = None
        self._backlog: TransactionHistory | None = None

    def close(self) -> None:
        """Close the connections; later reads raise ``LogClosedError``."""
        self._quorum.close()

    # --- properties -------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        return self._extent().start_offset

    @property
    def log_end_offset(self) -> int:
        """The high watermark: later records are not committed and cannot be read."""
        return self._extent().high_watermark

    @property
    def is_raftlog(self) -> bool:
        return not self._identity.is_controller

    @property
    def snapshots(self) -> tuple[SnapshotId, ...]:
        """The newest one of a metadata log; in a raftlog quorum, only if the log was trimmed."""
        return self._extent().snapshots

    @property
    def epochs(self) -> EpochCache:
        if self._epochs is None:
            start_offset = self.log_start_offset
            self._epochs = fetch_leader_epochs(self._quorum, self._known_epochs, start_offset)
            self._known_epochs = self._epochs
        return self._epochs

    @property
    def tail(self) -> LogTail | None:
        return None

    @property
    def compacted_offset(self) -> int:
        """The greatest one in responses so far. Each leader compacts by itself, and its responses
        contain the end of what it has compacted, or has fetched in compacted form."""
        return self._quorum.compacted_offset

    @property
    def meta_properties(self) -> MetaProperties | None:
        return None

    @property
    def quorum_state(self) -> QuorumState | None:
        return None

    @property
    def cluster_id(self) -> str | None:
        return self._identity.cluster_id

    # --- refresh ----------------------------------------------------------------------------------

    def refresh(self) -> None:
        self._known = None
        self._epochs = None

    def begin_wait(self) -> Future[bool] | None:
        if self._identity.is_controller:
            return None  # a leader delays no client's fetch for its high watermark alone
        return self._quorum.begin_wait(self._extent().high_watermark)

    def _extent(self) -> _Extent:
        if self._known is None:
            self._known = (
                self._extent_of_controller()
                if self._identity.is_controller
                else self._extent_of_partition()
            )
        return self._known

    def _extent_of_partition(self) -> _Extent:
        """Return the extent. Request the last stable offset first, so as not to exceed the end."""
        last_stable_offset = None
        if self.kind is LogKind.METADATA:
            latest = messages.LATEST_TIMESTAMP
            last_stable_offset = self._quorum.list_offset(latest, is_committed_only=True)
        high_watermark = self._quorum.list_offset(messages.LATEST_TIMESTAMP)
        start_offset = self._quorum.list_offset(messages.EARLIEST_TIMESTAMP)
        assert high_watermark is not None, "without it the request is retried"
        if last_stable_offset is None:
            last_stable_offset = high_watermark
        snapshots: tuple[SnapshotId, ...] = ()
        if self.kind is LogKind.METADATA and start_offset:
            newest = self._quorum.fetch(0, byte_count_max=1).snapshot_id
            snapshots = () if newest is None else (newest,)
        return _Extent(start_offset or 0, high_watermark, last_stable_offset, snapshots)

    def _extent_of_controller(self) -> _Extent:
        """Return the extent by a Fetch from offset 0, whose response names the newest snapshot."""
        for _ in range(_ATTEMPTS_MAX):
            first = self._quorum.fetch(0, byte_count_max=1)
            if first.high_watermark is None:
                self._quorum.fetch(messages.OFFSET_MAX, wait_ms=_RETRY_WAIT_MS)
                continue
            high_watermark = first.high_watermark
            snapshots = () if first.snapshot_id is None else (first.snapshot_id,)
            # If there is a snapshot, offset 0 cannot be fetched; it has only a leader change
            # record.
            start_offset = max(first.log_start_offset, 1 if snapshots else 0)
            return _Extent(start_offset, high_watermark, high_watermark, snapshots)
        raise QuorumUnavailableError(
            path=self.path, waited_ms=0, reason="the leader does not know its high watermark yet"
        )

    # --- planning ---------------------------------------------------------------------------------

    def read_end(
        self,
        *,
        isolation: Isolation,
        holdback_ms: int = 0,
        now_ms: int | None = None,
        previous: ReadEnd | None = None,
    ) -> ReadEnd:
        del holdback_ms, now_ms  # nothing is held back: records below the end are committed
        extent = self._extent()
        offset = extent.high_watermark
        reasons = [describe_end(EndBasis.HIGH_WATERMARK, None)]
        if isolation is Isolation.READ_COMMITTED:
            stable = min(self._last_stable_offset(extent), offset)
            if stable < offset:
                reasons.append(f"the transaction that begins at offset {stable} is not decided")
            offset = stable
        found = ReadEnd(
            offset=offset,
            epoch=self.epoch_before(offset),
            basis=EndBasis.HIGH_WATERMARK,
            reason="; ".join(reasons),
        )
        log_extent = LogExtent(self.path, extent.start_offset, extent.high_watermark, self.epochs)
        return not_below_previous(found, previous, log_extent)

    def _last_stable_offset(self, extent: _Extent) -> int:
        if not self._identity.is_controller:
            return max(extent.last_stable_offset, extent.start_offset)
        end_offset = extent.high_watermark
        if end_offset <= extent.start_offset:
            return end_offset
        history = self._history
        if history is None or not history.covers_from(end_offset):
            history = self._history = self._begin(end_offset, kept_max=ENDED_RETAINED_MAX)
        history.follow(end_offset)
        return max(history.index.last_stable_offset(end_offset), extent.start_offset)

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
        del with_producers  # a quorum has no transactions of producers
        if start_offset >= end_offset:
            return ReadPlan(start_offset, start_offset, ())
        self.check_range(start_offset, end_offset)
        spans = self._spans(start_offset, end_offset, isolation)
        return plan_range(
            start_offset,
            end_offset,
            spans,
            self._find_batch,
            max_splits=max_splits,
            max_records=max_records_per_split,
        )

    def next_boundary(
        self,
        start_offset: int,
        *,
        end_offset: int,
        max_records: int | None = None,
        max_bytes: int | None = None,
    ) -> int:
        if start_offset >= end_offset or (max_records is None and max_bytes is None):
            return end_offset
        self.check_range(start_offset, end_offset)
        boundary = end_offset
        if max_records is not None and start_offset + max_records < end_offset:
            boundary = self._find_batch(start_offset + max_records)[0]
        if max_bytes is not None:
            boundary = min(boundary, self._within_bytes(start_offset, boundary, max_bytes))
        if boundary <= start_offset:
            boundary = self._find_batch(start_offset)[1]
        return self._outside_transactions(start_offset, boundary, end_offset)

    def _within_bytes(self, start_offset: int, end_offset: int, max_bytes: int) -> int:
        """Return the end of the leading batches that together have at most ``max_bytes``."""
        boundary, left = start_offset, max_bytes
        decoder = HeaderDecoder(chunk_bytes=READ_CHUNK_BYTES)
        for chunk in read_chunks(self._quorum, decoder, start_offset, end_offset):
            fits = np.cumsum(chunk.batches.byte_count, dtype=np.int64) <= left
            if fits.any():
                boundary = int(chunk.batches.next_offset[fits][-1])
            if not fits.all():
                return boundary
            left -= int(chunk.batches.byte_count.sum(dtype=np.int64))
        return end_offset

    def _outside_transactions(self, start_offset: int, boundary: int, end_offset: int) -> int:
        """Return the last offset up to ``boundary`` outside transactions, else the next one."""
        if self.kind is LogKind.PARTITION:
            return boundary
        index = self._history_covering(start_offset, boundary).index
        stable = index.last_stable_offset(boundary)
        if stable > start_offset:
            return stable
        for span in index.spans(start_offset, boundary, with_committed=True):
            if span.marker_offset is not None and span.first_offset < boundary:
                after = self._find_batch(span.marker_offset)[1]
                if index.last_stable_offset(after) >= after:
                    return min(after, end_offset)
        return end_offset

    def offset_for_timestamp(self, timestamp_ms: int) -> int | None:
        if not self._identity.is_controller:
            return self._quorum.list_offset(max(timestamp_ms, 0))
        columns = Column.OFFSET | Column.TIMESTAMP
        for chunk in self.scan(self.log_start_offset, self.log_end_offset, columns=columns):
            found = offset_for_timestamp(chunk, timestamp_ms)
            if found is not None:
                return found
        return None

    # --- reading ----------------------------------------------------------------------------------

    def scan(
        self,
        start_offset: int,
        end_offset: int,
        *,
        columns: Column = Column.ALL_BUT_HEADERS,
        chunk_bytes: int = READ_CHUNK_BYTES,
    ) -> Iterator[Scan]:
        decoder = ColumnDecoder(columns, chunk_bytes, self._decompressed_bytes_max)
        yield from read_chunks(self._quorum, decoder, start_offset, end_offset)

    def batches(
        self, start_offset: int, end_offset: int, *, chunk_bytes: int = READ_CHUNK_BYTES
    ) -> Iterator[RecordBatch]:
        decoder = BatchDecoder(chunk_bytes)
        for chunk in read_chunks(self._quorum, decoder, start_offset, end_offset):
            yield from chunk.objects

    def aborted_transactions(self, start_offset: int, end_offset: int) -> AbortedTransactions:
        return AbortedTransactions((), end_offset)

    def read_snapshot(self, snapshot_id: SnapshotId) -> SnapshotReader:
        files = snapshot_files(self._quorum, snapshot_id, self._decompressed_bytes_max)
        return SnapshotReader(files, snapshot_id)

    # --- inside -----------------------------------------------------------------------------------

    def _find_batch(self, offset: int) -> tuple[int, int]:
        """Return the base offset and the next offset of the batch that contains ``offset``."""
        batches: BatchColumns
        for chunk in read_chunks(self._quorum, _ONE_BATCH, offset, offset + 1):
            batches = chunk.batches
            return int(batches.base_offset[0]), int(batches.next_offset[0])
        return offset, self.log_end_offset

    def _spans(
        self, start_offset: int, end_offset: int, isolation: Isolation
    ) -> tuple[TransactionSpan, ...]:
        if self.kind is LogKind.PARTITION:
            return ()
        index = self._history_covering(start_offset, end_offset).index
        if isolation is Isolation.READ_COMMITTED:
            problem = index.first_problem(start_offset, end_offset)
            if problem is not None:
                raise problem
        return index.spans(start_offset, end_offset, with_committed=True)

    def _history_covering(self, start_offset: int, end_offset: int) -> TransactionHistory:
        """Return a history that has every transaction that overlaps the range."""
        history = self._history
        if history is not None and history.covers_from(start_offset):
            history.settle(end_offset, self.log_end_offset)
            if history.covers_from(start_offset):  # unless the oldest were dropped
                return history
        backlog = self._backlog
        if backlog is None or not backlog.covers_from(start_offset):
            backlog = self._backlog = self._begin(start_offset, kept_max=None)
        backlog.index.drop_ended_before(start_offset)
        backlog.settle(end_offset, self.log_end_offset)
        return backlog

    def _begin(self, before_offset: int, *, kept_max: int | None) -> TransactionHistory:
        """Return a history from the newest snapshot up to an offset, or from the log's start."""
        start_offset = self.log_start_offset
        for snapshot_id in reversed(self.snapshots):
            if start_offset <= snapshot_id.end_offset <= before_offset:
                return TransactionHistory(
                    self._quorum,
                    snapshot_id.end_offset,
                    is_deleted_before=False,
                    kept_max=kept_max,
                    decompressed_bytes_max=self._decompressed_bytes_max,
                )
        return TransactionHistory(
            self._quorum,
            start_offset,
            is_deleted_before=start_offset > 1,
            kept_max=kept_max,
            decompressed_bytes_max=self._decompressed_bytes_max,
        )
