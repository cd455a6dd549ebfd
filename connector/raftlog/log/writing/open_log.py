"""State and lifecycle of one open log: append, sync, publish, close. Base of ``ReplicatedLog``.

Invariants:

1. ``log_start_offset <= high_watermark <= end_offset`` and ``synced_end_offset <= end_offset``. An
   embedded log is committed where it is synced; a replica's high watermark is the leader's.
2. Nothing counts as durable before ``complete_sync``.
3. A full disk leaves the log as it was before the batch. After any other storage error the content
   of the files is unknown: the log fails, and must be opened again.

Kafka: ``UnifiedLog``.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from raftlog.errors import (
    AppendError,
    CorruptBatchError,
    CorruptFileError,
    DiskFailedError,
    DiskFullError,
    DivergedLogError,
    LogAccessError,
    LogClosedError,
    LogError,
    LogGapError,
)
from raftlog.log.format.clean_shutdown import CleanShutdown
from raftlog.log.format.epoch_cache import EpochCache
from raftlog.log.format.published import SYNCED_NAME, Published
from raftlog.log.recovery.report import RecoveredLog, RecoveryReport
from raftlog.types import SnapshotId

from .active_segment import PendingSync, SyncState
from .batch_metadata import BatchMetadata
from .log_directory import LogDirectory
from .producer_state import ProducerStateManager
from .properties import LogConfig
from .segments import LogSegments


class OpenLog:
    """An open log. Not shared between threads.

    ``is_single``: an embedded log, which publishes its synced end to other processes in
    ``published``; otherwise a replica, which stores it in ``synced``.
    """

    def __init__(self, directory: LogDirectory, config: LogConfig, *, is_single: bool) -> None:
        self.config: Final = config
        self.path: Final = directory.path
        self.report = RecoveryReport(was_clean=True)
        if not is_single:
            directory.published_name = SYNCED_NAME
        self._directory = directory
        self._segments = LogSegments(directory, config)
        self._is_single = is_single
        self._producer_state = ProducerStateManager(directory.path)
        self._sync = SyncState(0, 0)
        self._end_offset = 0
        self._high_watermark = 0
        self._is_roll_due = False
        self._is_changed = False
        self._closed: str | None = None
        self._remedy: str | None = None

    # --- open -------------------------------------------------------------------------------------

    def _recover(self) -> None:
        from raftlog.log.recovery.recover import recover  # may import numpy

        self._install(recover(self._directory.storage, self._directory.path, config=self.config))

    def _install(self, recovered: RecoveredLog) -> None:
        self._segments.install(recovered)
        self.report = recovered.report
        self._producer_state = recovered.producer_state
        self._end_offset = recovered.end_offset
        self._is_changed = not recovered.was_clean
        self._is_roll_due = False
        self._high_watermark = max(self._high_watermark, recovered.log_start_offset)
        if not self.is_read_only:
            self._sync = SyncState(recovered.end_offset, self._segments.active.byte_count)
            self._publish()

    # --- state ------------------------------------------------------------------------------------

    @property
    def is_read_only(self) -> bool:
        """Whether recovery found damage below the durable offset, or a Kafka log."""
        return self.report.read_only is not None

    @property
    def is_closed(self) -> bool:
        """Whether the log was closed, by ``close`` or by an error."""
        return self._closed is not None

    @property
    def log_start_offset(self) -> int:
        """The first offset of the log; its first segment may begin earlier."""
        return self._segments.log_start_offset

    @property
    def end_offset(self) -> int:
        """The offset of the next record (Kafka: log end offset)."""
        return self._end_offset

    @property
    def synced_end_offset(self) -> int:
        """The offset below which everything is durable."""
        return self._end_offset if self.is_read_only else self._sync.end_offset

    @property
    def high_watermark(self) -> int:
        """The offset below which everything is committed: in an embedded log, the synced end."""
        return self.synced_end_offset if self._is_single else self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The offset below which every transaction is committed or aborted."""
        return self._producer_state.last_stable_offset(self.high_watermark)

    @property
    def epoch(self) -> int:
        """The latest epoch; 0 before the first."""
        return self._segments.epochs.latest_epoch or 0

    @property
    def epochs(self) -> EpochCache:
        return self._segments.epochs

    @property
    def producer_state(self) -> ProducerStateManager:
        """The producer state at ``end_offset``. Copy it to check appends."""
        return self._producer_state

    @property
    def snapshots(self) -> tuple[SnapshotId, ...]:
        """The snapshots, ascending, as of the last listing of the directory."""
        return self._segments.snapshots

    # --- append -----------------------------------------------------------------------------------

    def _append(self, batches: Sequence[tuple[bytes | memoryview, BatchMetadata]]) -> int:
        """Append contiguous batches; return the new end offset."""
        if batches:
            with self._changing():
                for data, metadata in batches:
                    self._append_one(data, metadata)
        return self._end_offset

    def _append_one(self, data: bytes | memoryview, metadata: BatchMetadata) -> None:
        active = self._segments.active
        if self._is_roll_due or active.should_roll(
            len(data), metadata.last_offset, metadata.max_timestamp_ms
        ):
            self._roll()
            active = self._segments.active
        epochs = self._segments.epochs
        if self._segments.is_new_epoch(metadata.leader_epoch):
            self._segments.begin_epoch(metadata.leader_epoch, metadata.base_offset)
        try:
            active.append(data, metadata)
        except DiskFullError:
            self._segments.revert_epoch(epochs)
            raise
        active.append_aborted(self._producer_state.apply(metadata))
        self._end_offset = metadata.next_offset

    def _roll(self) -> None:
        """Seal the active segment, publish its end, and create the next one."""
        self._is_roll_due = True  # until done: after an error the next segment may exist in part
        active = self._segments.active
        active.seal()
        self._sync.advance(self._end_offset, active.byte_count)
        self._publish()
        self._segments.roll(self._end_offset, self._producer_state)
        self._sync.roll()
        self._is_roll_due = False

    # --- sync -------------------------------------------------------------------------------------

    def start_sync(self) -> PendingSync:
        """Start a sync of everything appended so far.

        Call ``run`` of the result, then ``complete_sync`` or ``fail_sync``.
        """
        self._check_writable()
        return self._sync.start(self._segments.active, self._end_offset)

    def complete_sync(self, pending: PendingSync) -> None:
        """Complete a sync whose ``run`` returned: advance the synced end, and publish it.

        Ignored if the log was truncated since the start. Raises ``LogClosedError`` if the log has
        failed or was closed meanwhile: then the sync must not be acknowledged.
        """
        pending.segment.end_sync()
        self._check_writable()
        if pending.state is not self._sync:
            return
        self._sync.advance(pending.end_offset, pending.position)
        with self._failing(also_full=True):  # unpublished, others would truncate it
            self._publish()
        self._producer_state.drop_decided(self.high_watermark)

    def fail_sync(self, pending: PendingSync, error: LogError) -> None:
        """Fail the log, because ``run`` of a sync raised ``error``."""
        pending.segment.end_sync()
        self._fail(error)

    def flush(self) -> int:
        """Sync what was appended; return the synced end offset. Raises ``DiskFailedError``."""
        pending = self.start_sync()
        try:
            pending.run()
        except LogError as error:
            self.fail_sync(pending, error)
            raise
        self.complete_sync(pending)
        return self.synced_end_offset

    def advance_high_watermark(self, offset: int) -> None:
        """Set the high watermark of a replica. It must not decrease."""
        assert not self._is_single, "an embedded log is committed where it is synced"
        assert self._high_watermark <= offset <= self._end_offset, (
            "the high watermark must not decrease or exceed the end"
        )
        self._high_watermark = offset
        self._producer_state.drop_decided(offset)

    def _publish(
        self, *, next_epoch: int | None = None, next_start_offset: int | None = None
    ) -> None:
        """Publish the synced end to other processes.

        ``next_epoch`` and ``next_start_offset`` are an epoch and a log start about to be written;
        they are published first, so that a crash in between is detected.
        """
        self._directory.publish(
            Published(
                boot_id=self._directory.boot_id,
                end_offset=self._sync.end_offset,
                segment_base_offset=self._segments.active.base_offset,
                file_position=self._sync.position,
                epoch=self.epoch if next_epoch is None else next_epoch,
                log_start_offset=(
                    self.log_start_offset if next_start_offset is None else next_start_offset
                ),
            )
        )

    # --- close ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the log cleanly. May be called twice.

        The order of the durable steps: seal the active segment, publish, write the producer
        snapshot, the recovery point and ``.kafka_cleanshutdown``. The caller holds the writers'
        lock of an embedded log and has called ``refresh``; if another process has appended since,
        the files are only closed.
        """
        if self._closed is not None:
            return
        try:
            if not self.is_read_only and self._is_changed and self._is_current():
                with self._failing():
                    self._close_cleanly()
        finally:
            self._release("close() was called")

    def _close_cleanly(self) -> None:
        active = self._segments.active
        self._directory.remove_clean_shutdown()
        active.seal()
        self._sync.advance(self._end_offset, active.byte_count)
        self._publish()
        self._directory.write_producer_snapshot(self._producer_state)
        self._segments.write_recovery_point(self._end_offset)
        self._segments.delete_stray_producer_snapshots(self._end_offset)
        self._directory.write_clean_shutdown(
            CleanShutdown(
                end_offset=self._end_offset,
                segment_base_offset=active.base_offset,
                byte_count=active.byte_count,
            )
        )

    def _is_current(self) -> bool:
        """Return whether no other process has changed the log since."""
        active = self._segments.active
        if not active.is_in_place() or active.file_byte_count() != active.byte_count:
            return False
        if not self._is_single:
            return True
        published = self._directory.published()
        return (
            published is not None
            and published.segment_base_offset == active.base_offset
            and published.end_offset == self._sync.end_offset
        )

    def _release(self, reason: str) -> None:
        self._closed = reason
        self._segments.close()
        self._directory.close()

    # --- checks and errors ------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed is not None:
            raise LogClosedError(path=self.path, reason=self._closed, remedy=self._remedy)

    def _check_writable(self) -> None:
        self._check_open()
        if self.report.read_only is not None:
            raise copy.copy(self.report.read_only)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Wrap a change of the log: check that it is writable, delete the clean shutdown file."""
        self._check_writable()
        with self._failing():
            self._directory.remove_clean_shutdown()
            self._is_changed = True
            yield

    @contextlib.contextmanager
    def _failing(self, *, also_full: bool = False) -> Iterator[None]:
        """Fail the log on a storage error, except for a full disk, which changes nothing.

        ``also_full``: fail on a full disk too. An ``AppendError``, which rejects a call, is passed
        on.
        """
        try:
            yield
        except AppendError:
            raise
        except LogError as error:
            if also_full or not isinstance(error, DiskFullError):
                self._fail(error)
            raise

    def _fail(self, error: LogError) -> None:
        if self._closed is None:
            cause, self._remedy = _cause_and_remedy(error)
            # Clients receive this message: name the file, without the machine's directories.
            path = getattr(error, "path", None)
            if isinstance(path, str):
                shown: dict[str, Any] = {"path": self._directory.storage.split(path)[1]}
                error = replace(error, **shown)
            self._release(f"{cause}: {error.message()}")


def _cause_and_remedy(error: LogError) -> tuple[str, str]:
    """Return why an error closes a log, and what to do before it is opened again."""
    match error:
        case DiskFailedError():
            return "its disk failed", "check the disk, then open the log again"
        case DiskFullError():
            return "the disk was full during a change", "free disk space, then open the log again"
        case LogAccessError():
            return "the file system denied access", "fix the cause, then open the log again"
        case CorruptBatchError() | CorruptFileError() | LogGapError() | DivergedLogError():
            return "its files are damaged", "run `raftlog check`, then open the log again"
        case _:
            return (
                "its files were changed from outside",
                "find what changed them, then open it again",
            )
