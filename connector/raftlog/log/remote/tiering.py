"""One run of remote storage for a log in use: copies, deletions, and the local list of segments.

Appends wait only for the first and the last step:

    begin      under the log's lock: which segments are sealed and committed
    run        in any thread, on the one node that leads the log:
                 an object whose deletion began in an earlier run is deleted, then
                 DELETE_SEGMENT_FINISHED
                 an upload that a crash interrupted is deleted likewise
                 each segment from the copied end on: COPY_SEGMENT_STARTED, objects,
                 COPY_SEGMENT_FINISHED
                 what exceeds retention: DELETE_SEGMENT_STARTED
                 a manifest of many objects is compacted
    complete   under the log's lock: remote-log-segments is replaced; then retention deletes local
               segments that it lists

Invariants:

1. Only batches of sealed segments below the last stable offset are copied, once they are committed.
   They are the same on every replica. If there is a second leader, of an older epoch, it copies the
   same bytes, so its uploads are either correct or redundant.
2. A copied segment begins where the last one ended, even if that is in the middle of a local
   segment, because another node's segments begin at other offsets. So remote segments are
   contiguous.
3. Each segment is read and verified while its indexes are built. Its last batch is compared
   afterwards, which detects a truncation of the log in the meantime.
4. If the store's last segment differs from this log, the store belongs to another log, and nothing
   is written.
5. ``.remote.lock`` excludes a second run on this machine.

Kafka: ``RemoteLogManager`` (``RLMCopyTask``, ``RLMExpirationTask``, ``RLMFollowerTask``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from raftlog.errors import CorruptBatchError, LogNotFoundError, OptionError
from raftlog.limits import BATCH_HEADER_BYTES
from raftlog.log.format.directory import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    encode_epoch_checkpoint,
    offset_name,
)
from raftlog.log.format.remote_chain import RemoteChain, RemoteSegment
from raftlog.log.segment import Segment, SegmentMetadata
from raftlog.printable import store_location
from raftlog.storage.errors import (
    LogEndsBeforeRemoteError,
    RemoteStorageError,
    WrongBackupError,
)
from raftlog.storage.objects import ObjectStore, StoredObject
from raftlog.storage.protocol import Closeable, FileLock, ReadableFile
from raftlog.types import TopicPartition

from .compaction import compact_manifest
from .manifest import (
    ManifestCache,
    ManifestWriter,
    RemoteLogManifest,
    Surroundings,
    state_change,
)
from .objects import read_range
from .pruning import ABANDONED_MS
from .segment_metadata import (
    NO_NODE,
    ManifestEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    SegmentRange,
)

if TYPE_CHECKING:
    from raftlog.log.reading.remote_tier import OpenStore
    from raftlog.log.writing.segments import LogSegments

REMOTE_LOCK_NAME: Final = ".remote.lock"
EPOCHS_SUFFIX: Final = ".leader_epoch_checkpoint"
SUFFIXES: Final = (
    INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    EPOCHS_SUFFIX,
    LOG_SUFFIX,
)
"""Suffixes of a segment's objects, as in Kafka's ``LocalTieredStorage``; the segment last."""
_FINISHED: Final = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_STARTED: Final = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_DELETING: Final = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
_DELETED: Final = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


# --- Chain of the manifest ------------------------------------------------------------------------


def contiguous_ranges(ranges: Sequence[SegmentRange]) -> list[SegmentRange]:
    """Return the gapless chain of ranges with the greatest end, from its earliest start on.

    Two leaders may have copied the same offsets. It does not matter which copy is chosen, because
    the batches are the same.
    """
    best: dict[int, tuple[int, SegmentRange]] = {}
    for one in sorted(ranges, key=lambda one: (one.metadata.first_offset, one.metadata.segment_id)):
        first, end = one.metadata.first_offset, one.metadata.last_offset + 1
        start = best[first][0] if first in best else first
        if end not in best or start < best[end][0]:
            best[end] = start, one
    found: list[SegmentRange] = []
    end = max(best, default=-1)
    while end in best and (not found or best[end][1].metadata.first_offset < end):
        found.append(best[end][1])
        end = found[-1].metadata.first_offset
    return found[::-1]


@dataclass(slots=True, kw_only=True)
class RemoteCounts:
    """Work of one run: copied and deleted segments, and what remains to be copied."""

    copied_segments: int = 0
    copied_bytes: int = 0
    deleted_segments: int = 0
    lag_segments: int = 0
    lag_bytes: int = 0


class _AbortedError(Exception):
    """The run was aborted by its caller."""


# --- One run --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredLog:
    """Identity of a log in a store. ``node_id`` is None for an embedded log."""

    partition: TopicPartition
    topic_id: str
    node_id: int | None
    uri: str

    @property
    def directory(self) -> str:
        """Name of the objects' directory."""
        return f"{self.partition}-{self.topic_id}"


class _ObservedStore:
    """Store that counts its requests and the chunks of uploads. If ``is_aborted``, it raises
    ``_AbortedError`` before the next one. ``name`` is the object of the last request."""

    def __init__(self, store: ObjectStore, is_aborted: Callable[[], bool]) -> None:
        self._store = store
        self._is_aborted = is_aborted
        self.location = store.location
        self.name = ""
        self.step_count = 1

    def _begin(self, name: str) -> None:
        if self._is_aborted():
            raise _AbortedError
        self.name = name
        self.step_count += 1

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        self._begin(name)
        self._store.put(name, self._counted(chunks))

    def _counted(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self._begin(self.name)
            yield chunk

    def open_object(self, name: str) -> ReadableFile:
        self._begin(name)
        return self._store.open_object(name)

    def delete(self, name: str) -> None:
        self._begin(name)
        self._store.delete(name)

    def list_objects(self, directory: str) -> list[StoredObject]:
        self._begin(directory)
        return self._store.list_objects(directory)


class RemoteLogRun(Closeable):
    """One run for a log. Not shared between threads, except for ``step_count``, ``no_response`` and
    the lag in ``counts``. ``close`` must always be called."""

    def __init__(
        self,
        segments: LogSegments,
        log: TieredLog,
        open_store: OpenStore,
        lock: FileLock,
        context: Surroundings,
        *,
        log_end_offset: int,
        last_stable_offset: int,
        chain: RemoteChain | None,
        cache: ManifestCache,
        is_leader: bool,
    ) -> None:
        self.counts = RemoteCounts()
        self._log = log
        self._open_store = open_store
        self._opened: _ObservedStore | None = None
        self._lock = lock
        self._context = context
        self._directory = segments.directory
        self._config = segments.config
        self._epochs = segments.epochs
        self._sealed = tuple(
            one for one in segments.timed_segments() if one.end_offset <= last_stable_offset
        )
        active = segments.active
        self._active = SegmentMetadata(
            base_offset=active.base_offset,
            end_offset=log_end_offset,
            byte_count=active.byte_count,
        )
        self._log_end_offset = log_end_offset
        self._local_start_offset = segments.log_start_offset
        self._compacted_offset = 0
        if log.node_id is not None:
            self._compacted_offset = min(self._directory.compacted_offset(), log_end_offset)
        self._before = chain
        self._cache = cache
        self._is_leader = is_leader
        self._writer: ManifestWriter | None = None
        self._manifest: RemoteLogManifest | None = None
        self._chain: RemoteChain | None = None

    @property
    def step_count(self) -> int:
        """Number of requests to the store and chunks of uploads begun so far."""
        return 0 if self._opened is None else self._opened.step_count

    def no_response(self) -> RemoteStorageError:
        """Return the error for a store that does not answer the current request."""
        opened = self._opened
        location = store_location(self._log.uri)
        name = self._log.directory if opened is None else opened.name
        reason = "no response since the last retention check; copies and deletions wait for it"
        return RemoteStorageError(location=location, name=name, reason=reason)

    @property
    def chain(self) -> RemoteChain | None:
        """Remote segments after ``run``; None if it was aborted or has failed."""
        return self._chain

    def run(self, is_aborted: Callable[[], bool] = lambda: False) -> None:
        """Copy and delete. If ``is_aborted``, which is called before each request and each chunk,
        returns true, the next run does the rest.

        Raises

        - the store's errors;
        - ``CorruptRemoteObjectError`` for a damaged manifest;
        - ``OptionError`` for records that the nodes of a quorum have compacted;
        - ``WrongBackupError`` if the store has another log;
        - ``LogEndsBeforeRemoteError`` if another leader has copied more than this log has;
        - the first damage found in what would be copied.

        What was finished before an error remains.
        """
        with contextlib.suppress(_AbortedError):
            self._run(is_aborted)

    def _run(self, is_aborted: Callable[[], bool]) -> None:
        if self._is_leader:  # counted again after the copies, unless the store fails before
            self._count_lag(0 if self._before is None else self._before.copied_end_offset)
        self._opened = _ObservedStore(self._open_store(self._log.uri), is_aborted)
        self._manifest = RemoteLogManifest(self._store, self._cache)
        if self._manifest.backups:
            raise self._wrong_store(
                "it has backups, and remote segments need a location of their own"
            )
        ranges = self._own(self._manifest)
        chain = contiguous_ranges(ranges)
        copied_end_offset = self._copied_end(self._manifest, chain)
        start_offset = self._known_start(chain)
        self._check_reach(copied_end_offset)
        if self._is_leader:
            self._check_not_compacted(copied_end_offset)
            self._check_history(chain, copied_end_offset)
            self._delete_objects(self._manifest)
            try:
                for new in self._copies(copied_end_offset):
                    if chain and _end_of(chain) != new.metadata.first_offset:
                        chain = []
                    chain.append(new)
                    ranges.append(new)
            finally:
                copied_end_offset = self._copied_end(self._manifest, chain)
                self._count_lag(copied_end_offset)
        self._chain = self._retained(chain, ranges, start_offset)
        if self._is_leader:
            compact_manifest(self._store, self._manifest, self._context)

    @property
    def _store(self) -> _ObservedStore:
        assert self._opened is not None, "the run has begun"
        return self._opened

    def close(self) -> None:
        """Release the lock. May be called twice."""
        self._lock.release()

    # --- state of the store -----------------------------------------------------------------------

    def _own(self, manifest: RemoteLogManifest) -> list[SegmentRange]:
        return [one for one in manifest.ranges.values() if self._is_own(one.metadata)]

    def _is_own(self, entry: RemoteLogSegmentMetadata) -> bool:
        return (entry.topic_partition, entry.topic_id) == (self._log.partition, self._log.topic_id)

    def _copied_end(self, manifest: RemoteLogManifest, chain: Sequence[SegmentRange]) -> int:
        """Return the offset up to which everything was copied, from the last range of the chain or
        the last deleted one."""
        if chain:
            return _end_of(chain)
        deleted = filter(self._is_own, manifest.copied_before)
        return max((one.last_offset + 1 for one in deleted), default=0)

    def _check_history(self, chain: Sequence[SegmentRange], copied_end_offset: int) -> None:
        """Raise ``LogEndsBeforeRemoteError`` or ``WrongBackupError`` unless this log has the last
        batch of the last range. If it does, it has all batches of the chain (Raft's log matching
        property)."""
        if copied_end_offset > self._log_end_offset:
            raise LogEndsBeforeRemoteError(
                location=self._store.location,
                path=self._directory.path,
                log_end_offset=self._log_end_offset,
                remote_end_offset=copied_end_offset,
            )
        if not chain or copied_end_offset <= self._local_start_offset:
            return
        last = chain[-1]
        for one in (*self._sealed, self._active):
            if one.base_offset < copied_end_offset <= one.end_offset:
                segment = self._segment(one)
                position = segment.floor(last.metadata.last_offset).position
                with self._directory.storage.open_file(segment.path()) as file:
                    if crc32c(file.read_at(position, BATCH_HEADER_BYTES)) == last.last_batch_crc32c:
                        return
                reason = f"its last batch, at offset {last.metadata.last_offset}, is another one"
                raise self._wrong_store(reason)

    def _check_not_compacted(self, copied_end_offset: int) -> None:
        """Raise ``OptionError`` as long as the log has records that a quorum's replicas have
        compacted. Each replica compacts by itself, so the copies of two leaders would differ, and
        it would be unknown which past states lack keys of the copied segments."""
        if max(copied_end_offset, self._local_start_offset) < self._compacted_offset:
            reason = (
                f"records below offset {self._compacted_offset} were compacted, by each node "
                "itself, so they are not copied: delete them with kafka-delete-records, or disable "
                "it until retention has deleted them"
            )
            raise OptionError(option="remote.storage.enable", reason=reason)

    def _check_reach(self, copied_end_offset: int) -> None:
        """Raise ``WrongBackupError`` if the log has remote segments that this store lacks, for
        example after a change of its URI, since the log would lose them."""
        before, local_start = self._before, self._local_start_offset
        if before is None or before.start_at(local_start) is None:
            return
        if copied_end_offset < local_start:
            reason = f"it ends at offset {copied_end_offset}, and the local segments begin at"
            location = store_location(before.uri)
            raise self._wrong_store(f"{reason} {local_start}: those before are at {location}")

    def _wrong_store(self, reason: str) -> WrongBackupError:
        return WrongBackupError(
            location=self._store.location, path=self._directory.path, reason=reason
        )

    def _segment(self, one: SegmentMetadata) -> Segment:
        storage, path = self._directory.storage, self._directory.path
        return Segment(storage, path, one.base_offset, one.byte_count)

    # --- copies -----------------------------------------------------------------------------------

    def _copies(self, start_offset: int) -> Iterator[SegmentRange]:
        for one in self._sealed:
            if one.end_offset <= start_offset:
                continue
            yield self._copy(one, max(start_offset, one.base_offset, self._local_start_offset))

    def _copy(self, metadata: SegmentMetadata, first_offset: int) -> SegmentRange:
        """Upload the batches of a segment from ``first_offset`` on, with indexes of their own."""
        segment = self._segment(metadata)
        start = segment.floor(first_offset)
        with self._directory.storage.open_file(segment.path()) as file:
            range_, indexes = self._verified(
                _Slice(file, start.position, metadata.byte_count), metadata, start.offset
            )
            range_ = replace(
                range_,
                position=start.position,
                last_batch_position=range_.last_batch_position + start.position,
            )
            entry = range_.metadata
            self._append(entry)
            crc = 0

            def chunks() -> Iterator[bytes]:
                nonlocal crc
                for chunk in read_range(file, start.position, metadata.byte_count):
                    crc = crc32c(chunk, crc)
                    yield chunk

            for suffix, data in self._beside(metadata, indexes).items():
                self._store.put(entry.object_name(suffix), [data])
            self._store.put(entry.object_name(), chunks())
            header = file.read_at(range_.last_batch_position, BATCH_HEADER_BYTES)
        if crc32c(header) != range_.last_batch_crc32c:
            reason = "it was changed while it was copied"
            raise CorruptBatchError(reason=reason, path=segment.path())
        range_ = replace(range_, crc32c=crc)
        assert self._writer is not None, "the entry was started"
        self._writer.finish(range_, now_ms=self._context.now_ms())
        self.counts.copied_segments += 1
        self.counts.copied_bytes += entry.byte_count
        finished = replace(entry, state=_FINISHED, custom_metadata=range_.custom_metadata())
        return replace(range_, metadata=finished)

    def _verified(
        self, file: ReadableFile, metadata: SegmentMetadata, first_offset: int
    ) -> tuple[SegmentRange, dict[str, bytes]]:
        """Read and verify a range, whose positions count from 0; return it and its indexes."""
        from raftlog.log.recovery.recover_segment import (  # imports numpy, not on an event loop
            IndexRebuild,
            ScanPosition,
            ScanRules,
            SegmentScan,
        )

        indexes = IndexRebuild(first_offset, interval_bytes=self._config.index_interval_bytes)
        epoch = self._epochs.epoch_at(first_offset) or 0
        begin = ScanPosition(position=0, next_offset=first_offset, epoch=epoch)
        scan = SegmentScan(file, begin, ScanRules(epochs=self._epochs))
        last_position = 0
        for chunk in scan:
            indexes.add_batches(chunk.batches)
            if len(chunk.batches):
                last_position = int(chunk.batches.position[-1])
        indexes.close()
        if not scan.stop.is_clean or scan.position.next_offset != metadata.end_offset:
            raise CorruptBatchError(
                reason=scan.stop.reason,
                path=file.path,
                position=scan.position.position,
                offset=scan.position.next_offset,
            )
        node_id, last_offset = self._log.node_id, metadata.end_offset - 1
        epochs = self._epochs.without_from(metadata.end_offset).without_before(first_offset)
        found = SegmentRange(
            metadata=RemoteLogSegmentMetadata(
                segment_id=self._context.new_id(),
                topic_partition=self._log.partition,
                topic_id=self._log.topic_id,
                first_offset=first_offset,
                last_offset=last_offset,
                broker_id=NO_NODE if node_id is None else node_id,
                max_timestamp_ms=indexes.max_timestamp_ms,
                event_timestamp_ms=self._context.now_ms(),
                leader_epochs=epochs.entries,
                byte_count=file.byte_count(),
                state=_STARTED,
            ),
            base_offset=metadata.base_offset,
            position=0,
            crc32c=0,
            last_batch_position=last_position,
            last_batch_crc32c=crc32c(file.read_at(last_position, BATCH_HEADER_BYTES)),
        )
        return found, {
            INDEX_SUFFIX: bytes(indexes.offset_index),
            TIME_INDEX_SUFFIX: bytes(indexes.time_index),
        }

    def _beside(self, metadata: SegmentMetadata, indexes: dict[str, bytes]) -> dict[str, bytes]:
        """Return a segment's other objects: indexes, producers at its end, and leader epochs."""
        found = dict(indexes)
        for suffix, offset in (
            (TXN_INDEX_SUFFIX, metadata.base_offset),
            (PRODUCER_SNAPSHOT_SUFFIX, metadata.end_offset),
        ):
            try:
                path = self._directory.file(offset_name(offset, suffix))
                with self._directory.storage.open_file(path) as file:
                    found[suffix] = file.read_at(0, file.byte_count())
            except LogNotFoundError:
                continue
        epochs = self._epochs.without_from(metadata.end_offset)
        found[EPOCHS_SUFFIX] = encode_epoch_checkpoint(epochs)
        return found

    def _append(self, *events: ManifestEvent) -> None:
        assert self._manifest is not None, "it was read"
        if self._writer is None:
            self._writer = self._manifest.new_writer(self._context.new_partition)
        self._writer.append(events)

    def _count_lag(self, copied_end_offset: int) -> None:
        left = [one for one in self._sealed if one.end_offset > copied_end_offset]
        self.counts.lag_segments = len(left)
        self.counts.lag_bytes = sum(one.byte_count for one in left)

    # --- deletions --------------------------------------------------------------------------------

    def _delete_objects(self, manifest: RemoteLogManifest) -> None:
        """Delete the objects of interrupted uploads, and those whose deletion has begun unless the
        local list has them."""
        before = () if self._before is None else self._before.segments
        listed = {one.segment_id for one in before}
        now_ms = self._context.now_ms()
        node_id = NO_NODE if self._log.node_id is None else self._log.node_id
        for entry in manifest.unfinished:
            is_old = now_ms - entry.event_timestamp_ms > ABANDONED_MS
            if self._is_own(entry) and (entry.broker_id == node_id or is_old):
                self._append(state_change(entry, _DELETING, now_ms=now_ms))
                self._delete(entry, now_ms)
        for entry in manifest.deleting:
            if self._is_own(entry) and entry.segment_id not in listed:
                self._delete(entry, now_ms)

    def _delete(self, entry: RemoteLogSegmentMetadata, now_ms: int) -> None:
        for suffix in reversed(SUFFIXES):
            self._store.delete(entry.object_name(suffix))
        self._append(state_change(entry, _DELETED, now_ms=now_ms))
        self.counts.deleted_segments += 1

    def _retained(
        self, chain: Sequence[SegmentRange], ranges: Sequence[SegmentRange], start_offset: int
    ) -> RemoteChain:
        """Return the chain without what exceeds retention; begin the deletion of that."""
        assert self._manifest is not None, "it was read"
        found = RemoteChain(
            uri=self._log.uri,
            directory=self._log.directory,
            log_start_offset=start_offset,
            copied_end_offset=self._copied_end(self._manifest, chain),
            segments=tuple(map(as_remote_segment, chain)),
        )
        if not self._is_leader:
            return found.starting_at(0)
        # What precedes a gap is not part of the log.
        start = max(
            self._start_after_retention(found), *(one.first_offset for one in found.segments[:1]), 0
        )
        found = found.starting_at(start)
        now_ms = self._context.now_ms()
        expired = [
            one.metadata for one in ranges if one.metadata.last_offset < found.log_start_offset
        ]
        if expired:
            self._append(*(state_change(one, _DELETING, now_ms=now_ms) for one in expired))
        return found

    def _known_start(self, chain: Sequence[SegmentRange]) -> int:
        """Return the log start that is known here. Without a list of remote segments, it is the
        start of the local files, or 0 if the remote segments reach these or if there are none."""
        if self._before is not None:
            return self._before.log_start_offset
        local_start = self._local_start_offset
        reaches = chain and chain[0].metadata.first_offset < local_start <= _end_of(chain)
        return 0 if reaches or not chain else local_start

    def _start_after_retention(self, chain: RemoteChain) -> int:
        """Return the log start that ``retention.*`` requires, at most the copied end."""
        from raftlog.log.writing.snapshots import start_after_retention

        remote = [
            SegmentMetadata(
                base_offset=one.first_offset,
                end_offset=one.end_offset,
                byte_count=one.byte_count,
                max_timestamp_ms=one.max_timestamp_ms,
            )
            for one in chain.segments
        ]
        local = [one for one in self._sealed if one.base_offset >= chain.copied_end_offset]
        start = start_after_retention(
            [*remote, *local],
            active_bytes=self._active.byte_count,
            high_watermark=chain.copied_end_offset,
            now_ms=self._context.now_ms(),
            retention_ms=self._config.retention_ms,
            retention_bytes=self._config.retention_bytes,
        )
        return 0 if start is None else start


def _end_of(chain: Sequence[SegmentRange]) -> int:
    return chain[-1].metadata.last_offset + 1


def as_remote_segment(one: SegmentRange) -> RemoteSegment:
    """Return a range as an element of the list of remote segments."""
    metadata = one.metadata
    return RemoteSegment(
        first_offset=metadata.first_offset,
        end_offset=metadata.last_offset + 1,
        segment_id=metadata.segment_id,
        byte_count=metadata.byte_count,
        max_timestamp_ms=metadata.max_timestamp_ms,
    )


class _Slice(Closeable):
    """Bytes [position, end_position) of a file."""

    def __init__(self, file: ReadableFile, position: int, end_position: int) -> None:
        self.path = file.path
        self._file = file
        self._position = position
        self._byte_count = end_position - position

    def read_at(self, position: int, byte_count: int) -> bytes:
        left = max(min(byte_count, self._byte_count - position), 0)
        return self._file.read_at(self._position + position, left) if left else b""

    def byte_count(self) -> int:
        return self._byte_count

    def close(self) -> None:
        """Do nothing: the file is the caller's."""
