"""``PublishingLoader``: the committed metadata of a node's log, as images, for its publishers.

Each call of ``handle_commit`` is one update. Errors are reported as faults:

    error                                     consequence
    of a publisher                            the others get the update, as this one gets later ones
    a record that contradicts the state, or   it has no effect, and the later ones are replayed;
    whose bytes are damaged                   ``manifest.rejected`` counts it
    any other of a replay                     the image stays as it is until a snapshot is loaded

A log without a controller contains whatever its clients append, so it may contain such records. A
node's controller fails on them.

Large batches and snapshots are replayed in steps; ``image`` changes with the last one. Then the
publishers receive it, each in its own steps.

Source: Kafka ``MetadataLoader`` (``image.loader``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

from raftlog.records import RecordBatch
from raftlog.types import SnapshotId
from raftlog_state.errors import ReplayError
from raftlog_state.image import MetadataImage
from raftlog_state.image.delta import Op, RecordChanges, RowChange
from raftlog_state.image.rows import RECORD_ROW_TYPES
from raftlog_state.loader.metadata_loader import MetadataLoader, batch_records
from raftlog_state.steps import RECORDS_PER_STEP, Steps, begin

from .publisher import (
    LeaderAndEpoch,
    LoaderListener,
    LogDeltaManifest,
    Manifest,
    MetadataProvenance,
    MetadataPublisher,
    MetadataUpdate,
    RejectedRecords,
    SnapshotManifest,
    UnknownLeader,
)


class Snapshot(Protocol):
    """Snapshot of a log, as its reader gives it."""

    @property
    def snapshot_id(self) -> SnapshotId: ...

    def batches(self) -> Iterable[RecordBatch]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataLoaderMetrics:
    """Figures of a loader.

    ``skipped_record_count``: records that this release does not support. ``rejected_record_count``:
    records without effect since the last snapshot that was loaded. Kafka: ``MetadataLoaderMetrics``
    (kafka.server:type=MetadataLoader).
    """

    current_metadata_version: int
    current_controller_id: int
    handle_load_snapshot_count: int
    last_applied_offset: int
    last_applied_timestamp_ms: int
    metadata_error_count: int
    skipped_record_count: int
    rejected_record_count: int


class PublishingLoader:
    """Listener of a node's log (``raftlog.node.raft_client.RaftListener``) for publishers.

    Register it with the node as the listener of a service; see the package's docstring. Use it on
    the thread that drives the log.
    """

    def __init__(
        self, listener: LoaderListener, publishers: Iterable[MetadataPublisher] = ()
    ) -> None:
        self._listener: Final = listener
        self._loader = MetadataLoader(on_rejected=self._reject)
        self._image = self._loader.image
        self._publishers: Final[list[MetadataPublisher]] = []
        self._leader: LeaderAndEpoch = UnknownLeader()
        self._next_offset = 0
        """End of the last batch. It is later than the image's end if a transaction is open."""
        self._failure: str | None = None
        self._rejected: RejectedRecords | None = None
        self._snapshot_count = self._error_count = 0
        for publisher in publishers:
            self.install(publisher)

    @property
    def image(self) -> MetadataImage:
        """The committed state, without the records of an open transaction."""
        return self._image

    @property
    def failure(self) -> str | None:
        """Why the image is not updated any more; None if it follows the log."""
        return self._failure

    def metrics(self) -> MetadataLoaderMetrics:
        image, leader_id = self.image, self._leader.leader_id
        return MetadataLoaderMetrics(
            current_metadata_version=image.metadata_version or 0,
            current_controller_id=-1 if leader_id is None else leader_id,
            handle_load_snapshot_count=self._snapshot_count,
            last_applied_offset=image.offset,
            last_applied_timestamp_ms=image.timestamp_ms,
            metadata_error_count=self._error_count,
            skipped_record_count=self._skipped_count,
            rejected_record_count=0 if self._rejected is None else self._rejected.record_count,
        )

    def install(self, publisher: MetadataPublisher) -> None:
        """Add a publisher. If there is an image, its first update is the whole image.

        This call runs all steps of that update, so install the publishers of a large log before the
        node starts. Raises ``ValueError`` if there is a publisher with the same name.
        """
        if any(one.name == publisher.name for one in self._publishers):
            raise ValueError(f"there is a publisher with the name {publisher.name}")
        self._publishers.append(publisher)
        image = self.image
        if image.offset >= 0:
            update = MetadataUpdate(MetadataImage.empty(), _whole_image(image))
            for _ in self._publish_to([publisher], update, self._snapshot_manifest(None)):
                pass
            self._notify_leader([publisher])

    def remove_and_close(self, publisher: MetadataPublisher) -> None:
        """Remove a publisher, which receives no more updates. Do nothing if it is not installed."""
        if publisher in self._publishers:
            self._publishers.remove(publisher)
            self._close([publisher])

    # --- events of the log ------------------------------------------------------------------------

    def handle_commit(self, batches: Sequence[RecordBatch]) -> Steps:
        return None if self._failure is not None else begin(self._replay(batches))

    def _replay(self, batches: Sequence[RecordBatch]) -> Iterator[None]:
        before, rejected_before = self._image, self._rejected
        changes: list[RecordChanges] = []
        count = 0
        for batch in batches:
            try:
                records = batch_records(batch)
                while some := list(islice(records, RECORDS_PER_STEP)):
                    if count >= RECORDS_PER_STEP:
                        count = 0
                        yield
                    changes += yield from self._loader.append_in_steps(some)
                    count += len(some)
            except Exception as error:  # noqa: BLE001 (a replay may raise anything)
                self._rejected = rejected_before
                self._fail(f"Error replaying the batch with base offset {batch.base_offset}", error)
                return
        self._image, self._next_offset = self._loader.image, batches[-1].next_offset
        self._report_rejected(rejected_before)
        manifest = LogDeltaManifest(
            provenance=self._provenance(),
            leader=self._leader,
            batch_count=len(batches),
            byte_count=sum(batch.byte_count for batch in batches),
            skipped_count=self._skipped_count,
            rejected=self._rejected,
        )
        yield from self._publish_to(self._publishers, MetadataUpdate(before, changes), manifest)

    def handle_load_snapshot(self, snapshot: Snapshot) -> Steps:
        return begin(self._load(snapshot))

    def _load(self, snapshot: Snapshot) -> Iterator[None]:
        before, snapshot_id = self.image, snapshot.snapshot_id
        has_failed, rejected_before = self._failure is not None, self._rejected
        self._rejected = None
        loader = MetadataLoader(on_rejected=self._reject) if has_failed else self._loader
        records = (record for batch in snapshot.batches() for record in batch_records(batch))
        try:
            changes = yield from loader.bootstrap_in_steps(snapshot_id, records)
        except Exception as error:  # noqa: BLE001 (as above)
            self._rejected = rejected_before
            self._fail(f"Error loading snapshot {snapshot_id}", error)
            return
        self._loader, self._failure = loader, None
        self._image = loader.image
        self._snapshot_count += 1
        self._next_offset = snapshot_id.end_offset
        self._report_rejected(None, f" in snapshot {snapshot_id}")
        update, manifest = MetadataUpdate(before, changes), self._snapshot_manifest(snapshot_id)
        yield from self._publish_to(self._publishers, update, manifest)

    def handle_leader_change(self, leader: LeaderAndEpoch) -> None:
        self._leader = leader
        self._notify_leader(self._publishers)

    def begin_shutdown(self) -> None:
        """Close the publishers, because there are no more updates."""
        closed, self._publishers[:] = list(self._publishers), []
        self._close(closed)

    # --- publication ------------------------------------------------------------------------------

    @property
    def _skipped_count(self) -> int:
        return sum(one.record_count for one in self._loader.skipped if not one.is_control)

    def _provenance(self) -> MetadataProvenance:
        image = self.image
        return MetadataProvenance(
            last_contained_offset=image.offset,
            last_contained_epoch=image.leader_epoch,
            last_contained_log_timestamp_ms=image.timestamp_ms,
            is_offset_batch_aligned=image.offset + 1 == self._next_offset,
        )

    def _snapshot_manifest(self, snapshot_id: SnapshotId | None) -> SnapshotManifest:
        return SnapshotManifest(
            provenance=self._provenance(),
            leader=self._leader,
            snapshot_id=snapshot_id,
            skipped_count=self._skipped_count,
            rejected=self._rejected,
        )

    def _publish_to(
        self, publishers: Iterable[MetadataPublisher], update: MetadataUpdate, manifest: Manifest
    ) -> Iterator[None]:
        """Publish the image in each publisher's steps; a publisher may be removed in between."""
        image = self.image
        for publisher in list(publishers):
            try:
                if publisher in self._publishers:
                    steps = publisher.on_metadata_update(update, image, manifest)
                    while steps is not None:
                        yield
                        steps = begin(steps) if publisher in self._publishers else None
            except Exception as error:  # noqa: BLE001 (a publisher may raise anything)
                what = f"publishing the new metadata image ending at {image.offset} with"
                self._report_unhandled(what, publisher, error)

    def _notify_leader(self, publishers: Iterable[MetadataPublisher]) -> None:
        epoch = self._leader.epoch
        self._each(
            list(publishers),
            lambda publisher: publisher.on_controller_change(self._leader),
            f"publishing the leader of epoch {epoch} with",
        )

    def _close(self, publishers: Iterable[MetadataPublisher]) -> None:
        self._each(publishers, lambda publisher: publisher.close(), "closing")

    def _each(
        self,
        publishers: Iterable[MetadataPublisher],
        call: Callable[[MetadataPublisher], None],
        what: str,
    ) -> None:
        for publisher in publishers:
            try:
                call(publisher)
            except Exception as error:  # noqa: BLE001 (a publisher may raise anything)
                self._report_unhandled(what, publisher, error)

    def _report_unhandled(self, what: str, publisher: MetadataPublisher, error: Exception) -> None:
        self._report(f"Unhandled error {what} publisher {publisher.name}", error)

    def _fail(self, message: str, error: Exception) -> None:
        self._failure = f"{message}: the image ends at {self.image.offset}"
        self._report(self._failure, error)

    def _reject(self, error: ReplayError) -> None:
        known = self._rejected
        count, first = (0, error) if known is None else (known.record_count, known.first_error)
        self._rejected = RejectedRecords(count + 1, first, error)

    def _report_rejected(self, before: RejectedRecords | None, where: str = "") -> None:
        """Report the records that the last call has rejected, at most once per call."""
        rejected = self._rejected
        if rejected is None or rejected is before:
            return
        new_count = rejected.record_count - (0 if before is None else before.record_count)
        error = rejected.last_error
        self._error_count += new_count - 1  # ``_report`` counts one
        where = where or f" from offset {error.offset}"
        text = f"Error loading metadata log record{where}"
        more = f", and {new_count - 1} before it" if new_count > 1 else ""
        self._report(f"{text}{more}: without effect on the image", error)

    def _report(self, message: str, error: Exception) -> None:
        self._error_count += 1
        self._listener.handle_fault(message, error)


def _whole_image(image: MetadataImage) -> list[RecordChanges]:
    """Return all rows as changes from the empty image."""
    return [
        RecordChanges(
            offset=image.offset,
            visible_offset=image.offset,
            leader_epoch=image.leader_epoch,
            timestamp_ms=image.timestamp_ms,
            record_type=kind.RECORD.schema.json_type,
            changes=tuple(
                RowChange(kind.ENTITY, row.key, Op.READ, None, row) for row in image.rows_of(kind)
            ),
        )
        for kind in RECORD_ROW_TYPES
    ]
