"""Truncate and load: from the records of a checkpoint to the state that they are.

Source: KIP-630; Kafka ``MetadataDelta.finishSnapshot`` (what a checkpoint lacks is deleted).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from raftlog.errors import ReplayError
from raftlog.records.control import KRaftVersion, KRaftVoters, SnapshotHeader
from raftlog.types import SnapshotId

from .delta import Change, MetadataDelta, Op, RecordChanges
from .epochs import quorum_after
from .image import STATE_ENTITIES, Entity, EpochRow, MetadataImage, Quorum
from .payload import JSON_TYPES, Decode, LogRecord, metadata_record
from .records import DecodedRecord, MetadataRecord, UnknownRecord
from .replay import Position, replay

HEADER_TYPE: Final = "SNAPSHOT_HEADER"
FOOTER_TYPE: Final = "SNAPSHOT_FOOTER"


class Loading:
    """A checkpoint that is being loaded beside the state that it will replace."""

    def __init__(self, snapshot_id: SnapshotId, before: MetadataImage, decode: Decode) -> None:
        self.unknown: list[UnknownRecord] = []
        self._snapshot_id = snapshot_id
        self._before = before
        self._decode = decode
        self._loaded = MetadataDelta(MetadataImage.empty())
        self._header_seen = False
        self._quorum = Quorum()
        self._timestamp_ms = -1
        self._ordinal = 0
        self._made: list[RecordChanges] = []

    def load(self, record: LogRecord) -> None:
        """Take one record of the checkpoint. Raises ``ReplayError``."""
        payload = record.payload
        if payload is None or isinstance(payload, bytes | DecodedRecord):
            if not self._header_seen:
                self._timestamp_ms = max(self._timestamp_ms, record.timestamp_ms)
            metadata = metadata_record(payload, self._offset, self._decode)
            if isinstance(metadata, UnknownRecord):
                self.unknown.append(metadata)
            else:
                self._replay(metadata)
            self._ordinal += 1
        elif isinstance(payload, SnapshotHeader):
            self._header_seen = True
            self._timestamp_ms = payload.last_contained_log_timestamp_ms
        elif isinstance(payload, KRaftVersion | KRaftVoters):
            self._quorum = quorum_after(payload, self._quorum)

    def finish(self) -> tuple[MetadataImage, list[RecordChanges]]:
        """The state that was loaded, and how it differs from the one before."""
        # without a header nothing is said of the quorum: records may come from a table
        quorum = self._quorum if self._header_seen else self._before.quorum
        for entity in (Entity.EPOCH, Entity.TRANSACTION):
            for row in self._before.rows(entity):
                self._loaded.put(row)
        epoch = EpochRow(
            leader_epoch=self._snapshot_id.epoch,
            start_offset=None,
            end_offset=None,
            leader_id=None,
            voters=quorum.voters,
            kraft_version=quorum.kraft_version,
        )
        made = list(self._made)
        if self._loaded.get(Entity.EPOCH, epoch.key) is None:
            self._loaded.put(epoch)
            read = Change(Entity.EPOCH, epoch.key, Op.READ, None, epoch)
            made.insert(0, self._changes(HEADER_TYPE, (read,), None))
        image = self._loaded.apply(
            offset=self._offset,
            leader_epoch=self._snapshot_id.epoch,
            timestamp_ms=self._timestamp_ms,
            quorum=quorum,
        )
        deletions = tuple(_deletions(self._before, image))
        if deletions:
            made.append(self._changes(FOOTER_TYPE, deletions, None))
        return image, made

    @property
    def _offset(self) -> int:
        return self._snapshot_id.end_offset - 1

    def _replay(self, record: MetadataRecord) -> None:
        offset = self._offset
        at = Position(offset, offset, self._snapshot_id.epoch, self._timestamp_ms)
        replay(record, self._loaded, at)
        changes = self._loaded.take_changes()
        if any(change.after is None for change in changes):
            reason = "a checkpoint holds what is there, and no removals"
            raise ReplayError(offset=offset, record=record.schema.name, reason=reason)
        if changes:
            name = JSON_TYPES[type(record)]
            self._made.append(self._changes(name, self._as_read(changes), self._ordinal))

    def _as_read(self, changes: Iterable[Change]) -> tuple[Change, ...]:
        return tuple(
            Change(
                change.entity,
                change.key,
                Op.READ,
                self._before.get(change.entity, change.key),
                change.after,
            )
            for change in changes
        )

    def _changes(
        self, record_type: str, changes: tuple[Change, ...], ordinal: int | None
    ) -> RecordChanges:
        return RecordChanges(
            offset=self._offset,
            visible_offset=self._offset,
            leader_epoch=self._snapshot_id.epoch,
            timestamp_ms=self._timestamp_ms,
            record_type=record_type,
            changes=changes,
            ordinal=ordinal,
        )


def _deletions(before: MetadataImage, after: MetadataImage) -> Iterator[Change]:
    for entity in STATE_ENTITIES:
        kept = after.map(entity)
        gone = before.map(entity).keys() - kept.keys()
        for key in sorted(gone):
            yield Change(entity, key, Op.DELETE, before.get(entity, key), None)
