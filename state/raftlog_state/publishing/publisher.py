"""``MetadataPublisher``: the interface of subscribers to a cluster's metadata, and their updates.

Source: Kafka ``MetadataPublisher``, ``LoaderManifest``, ``MetadataProvenance``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, TypeAlias

from raftlog.types import SnapshotId
from raftlog_state.errors import ReplayError
from raftlog_state.image import MetadataImage
from raftlog_state.image.delta import RecordChanges, RowChange
from raftlog_state.steps import Steps


class LeaderAndEpoch(Protocol):
    """Leader of an epoch; ``leader_id`` is None if it is unknown."""

    @property
    def epoch(self) -> int: ...

    @property
    def leader_id(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class UnknownLeader:
    """The leader before the first one is known."""

    epoch: int = 0
    leader_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataProvenance:
    """Position of an image in the log: that of the last record that it includes.

    ``is_offset_batch_aligned``: whether that record is the last one of its batch and no metadata
    transaction is open after it, so that a snapshot can end there.
    """

    last_contained_offset: int
    last_contained_epoch: int
    last_contained_log_timestamp_ms: int
    is_offset_batch_aligned: bool


@dataclass(frozen=True, slots=True)
class RejectedRecords:
    """Records without effect: they contradict the records before them, or are damaged."""

    record_count: int
    first_error: ReplayError
    last_error: ReplayError


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDeltaManifest:
    """Committed batches that an update contains.

    ``skipped_count``: records so far that this release does not support and that the image lacks.
    ``rejected``: those since the last snapshot that was loaded.
    """

    provenance: MetadataProvenance
    leader: LeaderAndEpoch
    batch_count: int
    byte_count: int
    skipped_count: int
    rejected: RejectedRecords | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotManifest:
    """Snapshot that an update contains; for a new publisher, the image as a whole.

    ``snapshot_id`` is None for a new publisher, whose image may have records after a snapshot.
    """

    provenance: MetadataProvenance
    leader: LeaderAndEpoch
    snapshot_id: SnapshotId | None
    skipped_count: int
    rejected: RejectedRecords | None


Manifest: TypeAlias = LogDeltaManifest | SnapshotManifest


@dataclass(frozen=True, slots=True)
class MetadataUpdate:
    """Row changes from one image to the next, by record, in order (Kafka: ``MetadataDelta``).

    Rows that a snapshot contains are changes, too, even if they are equal to the earlier ones.
    """

    before: MetadataImage
    changes: Sequence[RecordChanges]

    def row_changes(self) -> Iterator[RowChange]:
        """Return the changes of all records."""
        return chain.from_iterable(record.changes for record in self.changes)


class MetadataPublisher(Protocol):
    """Subscriber to a cluster's metadata. An exception of a call is a fault of this publisher.

    Updates are long after a snapshot is loaded, and after large transactions. An update may do part
    of its work and return the rest as steps (``steps.begin``), each of which runs between other
    events. The publisher receives no other update before the last step. None of its steps runs
    after its removal or ``close``.
    """

    @property
    def name(self) -> str:
        """A name that no other publisher of the loader has."""

    def on_metadata_update(
        self, update: MetadataUpdate, image: MetadataImage, manifest: Manifest
    ) -> Steps:
        """Handle a new image. The first one is an update from the empty image."""

    def on_controller_change(self, leader: LeaderAndEpoch) -> None:
        """Handle a new epoch, or that the leader of the current one has become known."""

    def close(self) -> None:
        """Handle the end of the updates."""


class LoaderListener(Protocol):
    """Receiver of messages and faults."""

    def log(self, message: str) -> None: ...

    def handle_fault(self, message: str, error: Exception) -> None: ...
