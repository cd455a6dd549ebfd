"""``SnapshotGenerator``: snapshots of a node's log by bytes and by age, from committed state only.

A snapshot begins with the first update after which the log has ``bytes_max`` more bytes than at the
last snapshot, or any more bytes if the last snapshot is ``interval_ms`` old (KIP-630). It ends at
the image's offset, so the log can be trimmed up to that offset. It is written in steps, between
other events of the thread that drives the log, which is possible because images do not change. Its
sync, which takes as long as the disk needs, runs in another thread.

No snapshot is begun if the log has records or a metadata.version that this release does not
support, or records that replay rejects, because the snapshot would lose records. ``skips_rejected``
permits rejected records, so that a log with such a record can be trimmed. (In Kafka, a fault of
``MetadataLoader`` disables snapshots until the process ends.)

Source: Kafka ``SnapshotGenerator``, ``SnapshotEmitter``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, Protocol

from raftlog.errors import LogLockedError, RaftlogError
from raftlog.limits import SNAPSHOT_BYTES_DEFAULT, SNAPSHOT_INTERVAL_MS_DEFAULT
from raftlog.types import SnapshotId
from raftlog_state.image import MetadataImage
from raftlog_state.image.image_writer import image_records
from raftlog_state.records import DecodedRecord, encode

from .publisher import (
    LeaderAndEpoch,
    LoaderListener,
    LogDeltaManifest,
    Manifest,
    MetadataUpdate,
)
from .watchdog import unsupported_reason

RECORDS_PER_STEP: Final = 1_000
_FAULT: Final = "KRaft snapshot file generation error"


class SnapshotWriter(Protocol):
    """Snapshot that is being written."""

    @property
    def byte_count(self) -> int: ...

    def append(self, records: Sequence[bytes]) -> None: ...

    def finish(self) -> None: ...

    def sync(self) -> None: ...

    def freeze(self) -> SnapshotId: ...

    def close(self) -> None: ...


class SnapshotLog(Protocol):
    """The log, as ``raftlog.node.raft_client`` offers it to a state machine."""

    def begin_snapshot(self, end_offset: int) -> SnapshotWriter | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotEmitterMetrics:
    """Metrics of the last snapshot. Without one, the bytes are 0, and the age is since the start.

    Kafka: ``SnapshotEmitterMetrics`` (kafka.server:type=SnapshotEmitter).
    """

    latest_snapshot_generated_bytes: int
    latest_snapshot_generated_age_ms: int


@dataclass(slots=True)
class _Writing:
    """Snapshot that is being written, and the records that are not in it."""

    writer: SnapshotWriter
    records: Iterator[DecodedRecord]
    is_syncing: bool = False


class SnapshotGenerator:
    """Publisher that writes snapshots. Install it in the ``PublishingLoader`` of a node.

    Args:
        log: the node's log.
        time_ms: the monotonic clock.
        schedule: calls its argument later, on the thread that drives the log.
        sync: calls its first argument in another thread, then the second one, with the error of the
            first, on the thread that drives the log.
        interval_ms: 0 for no snapshots by age.
        skips_rejected: whether snapshots are written without the records that replay rejects.
    """

    def __init__(
        self,
        log: SnapshotLog,
        *,
        time_ms: Callable[[], int],
        schedule: Callable[[Callable[[], None]], object],
        sync: Callable[[Callable[[], None], Callable[[Exception | None], None]], None],
        listener: LoaderListener,
        bytes_max: int = SNAPSHOT_BYTES_DEFAULT,
        interval_ms: int = SNAPSHOT_INTERVAL_MS_DEFAULT,
        records_per_step: int = RECORDS_PER_STEP,
        skips_rejected: bool = False,
    ) -> None:
        self._log: Final = log
        self._time_ms: Final = time_ms
        self._schedule: Final = schedule
        self._sync: Final = sync
        self._listener: Final = listener
        self._bytes_max: Final = bytes_max
        self._interval_ms: Final = interval_ms
        self._records_per_step: Final = records_per_step
        self._skips_rejected: Final = skips_rejected
        self._writing: _Writing | None = None
        self._byte_count = 0
        """Bytes of the log since the last snapshot was begun or loaded."""
        self._last_ms = self._generated_ms = time_ms()
        self._generated_byte_count = 0
        self._disabled_reason: str | None = None
        self._stopped_reason: str | None = None

    @property
    def name(self) -> str:
        return "SnapshotGenerator"

    @property
    def is_writing(self) -> bool:
        """Whether a snapshot is being written."""
        return self._writing is not None

    @property
    def stopped_reason(self) -> str | None:
        """Why no snapshot of the last image may be written; None if it may."""
        return self._stopped_reason

    def metrics(self) -> SnapshotEmitterMetrics:
        return SnapshotEmitterMetrics(
            latest_snapshot_generated_bytes=self._generated_byte_count,
            latest_snapshot_generated_age_ms=self._time_ms() - self._generated_ms,
        )

    # --- publisher --------------------------------------------------------------------------------

    def on_metadata_update(
        self, update: MetadataUpdate, image: MetadataImage, manifest: Manifest
    ) -> None:
        del update
        self._update_stopped_reason(image, manifest)
        if not isinstance(manifest, LogDeltaManifest):
            self._reset_counters()
            return
        self._byte_count += manifest.byte_count
        age_ms = self._time_ms() - self._last_ms
        if self._byte_count >= self._bytes_max:
            reason = f"we have replayed at least {self._bytes_max} bytes"
        elif 0 < self._interval_ms <= age_ms:
            reason = f"we have waited at least {self._interval_ms // 60_000} minute(s)"
        else:
            return
        if not self.is_writing:
            self._maybe_emit(image, manifest, reason)

    def on_controller_change(self, leader: LeaderAndEpoch) -> None:
        """Do nothing: every replica writes snapshots."""

    def close(self) -> None:
        """Drop the snapshot that is being written, and begin no others."""
        self._disabled_reason = "we are shutting down"
        self._drop()

    # --- writing ----------------------------------------------------------------------------------

    def _update_stopped_reason(self, image: MetadataImage, manifest: Manifest) -> None:
        before, rejected = self._stopped_reason, manifest.rejected
        reason = unsupported_reason(image)
        if reason is None and manifest.skipped_count:
            reason = (
                f"the log has {manifest.skipped_count} records that this release does not support, "
                "which a snapshot would lose: use a release that supports them"
            )
        elif reason is None and rejected is not None and not self._skips_rejected:
            first = rejected.first_error
            reason = (
                f"the log has {rejected.record_count} records that replay rejects, which a "
                f"snapshot would lose; the first is {first.record} at offset {first.offset}: "
                f"{first.reason}. `raftlog cat --from {first.offset}` prints it; with "
                "skip_rejected = true in [snapshots] of the node's configuration snapshots are "
                "written without them"
            )
        self._stopped_reason = reason
        if reason is not None and before is None:
            self._listener.log(f"Snapshots are disabled, so the log is not trimmed; {reason}")

    def _maybe_emit(self, image: MetadataImage, manifest: LogDeltaManifest, reason: str) -> None:
        disabled_reason = self._disabled_reason or self._stopped_reason
        if disabled_reason is not None:
            self._listener.log(
                f"Not emitting {image.snapshot_id} despite the fact that {reason} because "
                f"snapshots are disabled; {disabled_reason}"
            )
            self._reset_counters()  # to log it once an interval
            return
        if not manifest.provenance.is_offset_batch_aligned or image.metadata_version is None:
            return
        self._reset_counters()
        try:
            writer = self._log.begin_snapshot(image.offset + 1)
        except LogLockedError:
            return  # another snapshot is being received, which resets the counters, too
        except RaftlogError as error:
            self._listener.handle_fault(_FAULT, error)
            return
        if writer is None:
            return  # there is one already
        self._listener.log(
            f"Creating new KRaft snapshot file {image.snapshot_id} because {reason}."
        )
        self._writing = _Writing(writer, image_records(image))
        self._schedule(self._step)

    def _step(self) -> None:
        """Write the next records, and schedule the following step."""
        writing = self._writing
        if writing is None:
            return
        try:
            values = [encode(one) for one in islice(writing.records, self._records_per_step)]
            if values:
                writing.writer.append(values)
                self._schedule(self._step)
            else:
                writing.writer.finish()
                writing.is_syncing = True
                self._sync(writing.writer.sync, partial(self._synced, writing))
        except Exception as error:  # noqa: BLE001 (of disks, and of records that cannot be encoded)
            self._fail(error)

    def _synced(self, writing: _Writing, error: Exception | None) -> None:
        """Publish the snapshot after its sync, unless it failed or was dropped meanwhile."""
        writing.is_syncing = False
        if writing is not self._writing:
            writing.writer.close()
            return
        try:
            if error is not None:
                raise error
            writing.writer.freeze()
        except Exception as failure:  # noqa: BLE001 (of disks)
            self._fail(failure)
            return
        self._generated_byte_count = writing.writer.byte_count
        self._generated_ms = self._time_ms()
        self._writing = None

    def _fail(self, error: Exception) -> None:
        self._drop()
        self._listener.handle_fault(_FAULT, error)

    def _drop(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None and not writing.is_syncing:  # else it is closed after its sync
            writing.writer.close()

    def _reset_counters(self) -> None:
        self._byte_count, self._last_ms = 0, self._time_ms()
