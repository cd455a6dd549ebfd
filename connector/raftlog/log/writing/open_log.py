"""One open log: written, durable, told to others, closed. What ``ReplicatedLog`` builds on.

Rules of this file:

1. Written, durable and told to others are three steps. ``end_offset`` is what was written,
   ``synced_end_offset`` what is durable; nothing counts as durable before ``complete_sync``.
2. An error of a full disk leaves the log as it was before the batch. After any other error of the
   storage nobody knows what is on the disk: the log fails, and must be opened again.
3. A single copy (an embedded log) is committed where it is synced, and says so in ``published``; a
   replica is told its high watermark, and notes in ``synced`` what is durable.

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
from raftlog.log.epoch_cache import EpochCache
from raftlog.log.published import SYNCED_NAME, Published
from raftlog.types import SnapshotId

from .batch_metadata import BatchMetadata
from .clean_shutdown import CleanShutdown
from .log_directory import LogDirectory
from .producer_state_manager import ProducerStateManager
from .properties import LogConfig
from .recovered import RecoveredLog, RecoveryReport
from .segments import LogSegments
from .sync_state import PendingSync, SyncState


class OpenLog:
    """A partition's directory that is open, and what is known of it. Not shared between threads."""

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

    # --- opening ----------------------------------------------------------------------------------

    def _recover(self) -> None:
        from .recovery import recover  # with what it needs to look at a whole log

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

    # --- what it is -------------------------------------------------------------------------------

    @property
    def is_read_only(self) -> bool:
        """Whether recovery found damage that nothing may be written behind."""
        return self.report.read_only is not None

    @property
    def is_closed(self) -> bool:
        """Whether its owner closed it, or an error did: its files are given back."""
        return self._closed is not None

    @property
    def log_start_offset(self) -> int:
        """The first offset that belongs to the log; its file may begin earlier."""
        return self._segments.log_start_offset

    @property
    def end_offset(self) -> int:
        """Where the next record goes (Kafka: log end offset)."""
        return self._end_offset

    @property
    def synced_end_offset(self) -> int:
        """Everything below is durable."""
        return self._end_offset if self.is_read_only else self._sync.end_offset

    @property
    def high_watermark(self) -> int:
        """Everything below is committed: of a single copy, what is synced."""
        return self.synced_end_offset if self._is_single else self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Below it no transaction is undecided."""
        return self._producer_state.last_stable_offset(self.high_watermark)

    @property
    def epoch(self) -> int:
        """The newest epoch; 0 before the first."""
        return self._segments.epochs.latest_epoch or 0

    @property
    def epochs(self) -> EpochCache:
        return self._segments.epochs

    @property
    def producer_state(self) -> ProducerStateManager:
        """What the log remembers, as of ``end_offset``. Copy it to try appends on."""
        return self._producer_state

    @property
    def snapshots(self) -> tuple[SnapshotId, ...]:
        """The snapshots as of the last look at the directory, ascending."""
        return self._segments.snapshots

    # --- writing ----------------------------------------------------------------------------------

    def _append(self, batches: Sequence[tuple[bytes | memoryview, BatchMetadata]]) -> int:
        """Write batches that continue the log, one whole one after the other; the new end."""
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
        """Seal the active segment, say so, and begin the next one."""
        self._is_roll_due = True  # until it is done: the next segment may be there half made
        active = self._segments.active
        active.seal()
        self._sync.note(self._end_offset, active.byte_count)
        self._publish()
        self._segments.roll(self._end_offset, self._producer_state)
        self._sync.roll()
        self._is_roll_due = False

    # --- making durable ---------------------------------------------------------------------------

    def start_sync(self) -> PendingSync:
        """Begin to make durable what was appended so far: run the ticket, then tell how it went."""
        self._check_writable()
        return self._sync.start(self._segments.active, self._end_offset)

    def complete_sync(self, pending: PendingSync) -> None:
        """The ticket's run returned: what it covers is durable. A single copy tells others so.

        A ticket from before the log was cut says nothing. Raises ``LogClosedError`` if the log has
        failed or was closed meanwhile: then nobody may believe the sync.
        """
        pending.segment.end_sync()
        self._check_writable()
        if pending.state is not self._sync:
            return
        self._sync.note(pending.end_offset, pending.position)
        with self._failing(also_full=True):  # durable, and others would take it for undone
            self._publish()
        self._producer_state.drop_decided(self.high_watermark)

    def fail_sync(self, pending: PendingSync, error: LogError) -> None:
        """The ticket's run raised: the log fails."""
        pending.segment.end_sync()
        self._fail(error)

    def flush(self) -> int:
        """Make durable what was appended; the synced end offset. Raises ``DiskFailedError``."""
        pending = self.start_sync()
        try:
            pending.run()
        except LogError as error:
            self.fail_sync(pending, error)
            raise
        self.complete_sync(pending)
        return self.synced_end_offset

    def advance_high_watermark(self, offset: int) -> None:
        """A replica is told how far the log is committed. It never goes back."""
        assert not self._is_single, "a single copy is committed where it is synced"
        assert self._high_watermark <= offset <= self._end_offset, "a high watermark only rises"
        self._high_watermark = offset
        self._producer_state.drop_decided(offset)

    def _publish(
        self, *, next_epoch: int | None = None, next_start_offset: int | None = None
    ) -> None:
        """Tell other processes how far it is synced.

        ``next_epoch`` is about to begin there; the log is about to begin at ``next_start_offset``.
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

    # --- closing ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Make everything durable, say that the log was closed in order, and give the files back.

        Of a single copy under the lock of its writers, refreshed: if another process has gone on,
        the files are only given back. Closing twice is allowed.
        """
        if self._closed is not None:
            return
        try:
            if not self.is_read_only and self._is_changed and self._is_current():
                with self._failing():
                    self._close_in_order()
        finally:
            self._release("its owner closed it")

    def _close_in_order(self) -> None:
        active = self._segments.active
        self._directory.remove_clean_shutdown()
        active.seal()
        self._sync.note(self._end_offset, active.byte_count)
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
        """Whether no other process has gone on from where this one knows the log to end."""
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

    # --- what may be done now ---------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed is not None:
            raise LogClosedError(path=self.path, reason=self._closed, remedy=self._remedy)

    def _check_writable(self) -> None:
        self._check_open()
        if self.report.read_only is not None:
            raise copy.copy(self.report.read_only)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Around every change of the log: checks, and the marker of a clean stop is gone."""
        self._check_writable()
        with self._failing():
            self._directory.remove_clean_shutdown()
            self._is_changed = True
            yield

    @contextlib.contextmanager
    def _failing(self, *, also_full: bool = False) -> Iterator[None]:
        """Any error of the storage ends the log, but for a full disk, which changes nothing.

        Nor does a refusal (``AppendError``).
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
            # Clients are sent this too: a file's name, and not where this machine has it.
            path = getattr(error, "path", None)
            if isinstance(path, str):
                shown: dict[str, Any] = {"path": self._directory.storage.split(path)[1]}
                error = replace(error, **shown)
            self._release(f"{cause}: {error.message()}")


def _cause_and_remedy(error: LogError) -> tuple[str, str]:
    """Why an error closes a log, and what to do before it is opened again."""
    match error:
        case DiskFailedError():
            return "its disk failed", "see to the disk, then open the log again"
        case DiskFullError():
            return "there was no room to end a change", "make room, then open the log again"
        case LogAccessError():
            return "the file system refused", "remove the cause, then open the log again"
        case CorruptBatchError() | CorruptFileError() | LogGapError() | DivergedLogError():
            return "its files are damaged", "look with `raftlog check`, then open the log again"
        case _:
            return "its files are not as it left them", "find what changed them, then open it again"
