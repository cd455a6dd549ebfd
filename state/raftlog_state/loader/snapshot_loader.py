"""Loading of a snapshot: its records become the state, and rows that it lacks are deleted.

Source: KIP-630; Kafka ``MetadataDelta.finishSnapshot``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Final

from raftlog.records.control import KRaftVersion, KRaftVoters, SnapshotHeader
from raftlog.types import SnapshotId
from raftlog_state.errors import ReplayError
from raftlog_state.image import STATE_ENTITIES, Entity, EpochRow, MetadataImage, Quorum
from raftlog_state.image.delta import MetadataDelta, Op, RecordChanges, RowChange
from raftlog_state.records import DecodedRecord, MetadataRecord, UnknownRecord
from raftlog_state.replay import Position, replay
from raftlog_state.steps import RECORDS_PER_STEP

from .control_records import quorum_after
from .payload import JSON_TYPES, Decode, LogRecord, metadata_record

HEADER_TYPE: Final = "SNAPSHOT_HEADER"
FOOTER_TYPE: Final = "SNAPSHOT_FOOTER"


class SnapshotLoader:
    """Snapshot being loaded, with the image that it replaces.

    ``before``: None to collect no changes from it. ``on_rejected`` is called for each rejected
    metadata record, which then has no effect; None: its error is raised.
    """

    def __init__(
        self,
        snapshot_id: SnapshotId,
        before: MetadataImage | None,
        decode: Decode,
        on_rejected: Callable[[ReplayError], None] | None = None,
    ) -> None:
        self.unknown: list[UnknownRecord] = []
        self._snapshot_id = snapshot_id
        self._has_changes = before is not None
        self._before = MetadataImage.empty() if before is None else before
        self._decode = decode
        self._on_rejected = on_rejected
        self._loaded = MetadataDelta(MetadataImage.empty())
        self._header_seen = False
        self._quorum = Quorum()
        self._timestamp_ms = -1
        self._ordinal = 0
        self._record_changes: list[RecordChanges] = []

    def load(self, record: LogRecord) -> None:
        """Replay one record of the snapshot. Raises ``ReplayError``."""
        payload = record.payload
        if payload is None or isinstance(payload, bytes | DecodedRecord):
            if not self._header_seen:
                self._timestamp_ms = max(self._timestamp_ms, record.timestamp_ms)
            try:
                metadata = metadata_record(payload, self._offset, self._decode)
                if isinstance(metadata, UnknownRecord):
                    self.unknown.append(metadata)
                else:
                    self._replay(metadata)
            except ReplayError as error:
                error.unsupported = self._unsupported()
                if self._on_rejected is None:
                    raise
                self._on_rejected(error)
            self._ordinal += 1
        elif isinstance(payload, SnapshotHeader):
            self._header_seen = True
            self._timestamp_ms = payload.last_contained_log_timestamp_ms
        elif isinstance(payload, KRaftVersion | KRaftVoters):
            self._quorum = quorum_after(payload, self._quorum)

    def finish_in_steps(self) -> Generator[None, None, tuple[MetadataImage, list[RecordChanges]]]:
        """Return the loaded image and the changes from the one before."""
        if self._ordinal >= RECORDS_PER_STEP:
            yield
        # Records without a snapshot header, for example from a table, lack the quorum's records.
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
        changes = self._record_changes
        if self._loaded.get(Entity.EPOCH, epoch.key) is None:
            self._loaded.put(epoch)
            read = RowChange(Entity.EPOCH, epoch.key, Op.READ, None, epoch)
            changes.insert(0, self._changes(HEADER_TYPE, (read,), None))
        image = yield from self._loaded.apply_in_steps(
            offset=self._offset,
            leader_epoch=self._snapshot_id.epoch,
            timestamp_ms=self._timestamp_ms,
            quorum=quorum,
        )
        if self._ordinal >= RECORDS_PER_STEP:
            yield
        deletions = tuple(_deletions(self._before, image))
        if deletions:
            changes.append(self._changes(FOOTER_TYPE, deletions, None))
        return image, changes

    def _unsupported(self) -> str | None:
        """Return the records that are left out of the state, as text; None without such."""
        kinds = dict.fromkeys((one.api_key, one.version) for one in self.unknown)
        return (
            ", ".join(f"records of type {key} version {version}" for key, version in kinds) or None
        )

    @property
    def _offset(self) -> int:
        return self._snapshot_id.end_offset - 1

    def _replay(self, record: MetadataRecord) -> None:
        offset = self._offset
        at = Position(offset, offset, self._snapshot_id.epoch, self._timestamp_ms)
        replay(record, self._loaded, at)
        changes = self._loaded.take_changes()
        if any(change.after is None for change in changes):
            self._undo(changes)
            reason = "a snapshot must not contain removals"
            raise ReplayError(offset=offset, record=record.schema.name, reason=reason)
        if changes and self._has_changes:
            name = JSON_TYPES[type(record)]
            self._record_changes.append(
                self._changes(name, self._as_read_op(changes), self._ordinal)
            )

    def _undo(self, changes: Sequence[RowChange]) -> None:
        """Revert the changes of one record."""
        for change in reversed(changes):
            if change.before is None:
                self._loaded.delete(change.entity, change.key)
            else:
                self._loaded.put(change.before)
        self._loaded.take_changes()

    def _as_read_op(self, changes: Iterable[RowChange]) -> tuple[RowChange, ...]:
        return tuple(
            RowChange(
                change.entity,
                change.key,
                Op.READ,
                self._before.get(change.entity, change.key),
                change.after,
            )
            for change in changes
        )

    def _changes(
        self, record_type: str, changes: tuple[RowChange, ...], ordinal: int | None
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


def _deletions(before: MetadataImage, after: MetadataImage) -> Iterator[RowChange]:
    for entity in STATE_ENTITIES:
        remaining = after.map(entity)
        for key in sorted(key for key in before.map(entity) if key not in remaining):
            yield RowChange(entity, key, Op.DELETE, before.get(entity, key), None)
