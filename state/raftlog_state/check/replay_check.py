"""Replay of a metadata log, and comparison of each snapshot with the replayed state.

Replay begins at offset 0, or at the oldest valid snapshot from which the log continues. Where the
log cannot be read or replayed, replay begins again at the next snapshot. Damaged segments are not
reported here, because ``SegmentCheck`` has reported them. Topics are replayed and compared by
columns where their records are plain (``Replay``), and their rows become objects only if a snapshot
differs. A finding names the key and the columns of a row that differs, never a value, which may be
secret.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Final

from raftlog.client.inspection import DirectoryLog
from raftlog.errors import (
    CorruptBatchError,
    CorruptFileError,
    CorruptSnapshotError,
    DataLossError,
    LogGapError,
    SegmentDeletedError,
)
from raftlog.types import SnapshotId
from raftlog_state.errors import OffsetGapError, ReplayError
from raftlog_state.image import MetadataImage
from raftlog_state.loader.image_reader import last_epoch, replacing_snapshot
from raftlog_state.loader.metadata_loader import MetadataLoader
from raftlog_state.loader.scans import LOADER_COLUMNS, Replay
from raftlog_state.records import Redactor

from .findings import Finding, Kind, damage, note, of_error

_REVEALING: Final = Redactor(reveal=True)
"""States are compared with all values of their rows; no value is part of a finding."""


@dataclass(slots=True)
class ReplayCheck:
    """Replay of one replica of a metadata log.

    ``compared_count``, the number of snapshots, increases while ``run`` is consumed.
    ``on_progress`` is called with the number of replayed offsets and of all offsets.
    """

    log: DirectoryLog
    log_start_offset: int
    log_end_offset: int
    on_progress: Callable[[int, int], None]
    compared_count: int = 0
    _replay: Replay | None = None

    def run(self) -> Iterator[Finding]:
        """Replay to each snapshot and to the end of the log."""
        has_log = bool(self.log.files.listing.segments)
        replay = self._begin() if has_log and self.log_start_offset == 0 else None
        newest = None
        replacing = self._replacing()
        for snapshot_id in sorted(self.log.snapshots, key=lambda one: one.end_offset):
            if replay is not None and snapshot_id.end_offset <= self.log_end_offset:
                replay = yield from self._advance(replay, snapshot_id.end_offset)
            loaded = yield from self._load(snapshot_id)
            if loaded is None:
                continue
            if snapshot_id == replacing or snapshot_id.end_offset > self.log_end_offset:
                newest = loaded if replacing in (None, snapshot_id) else newest
                yield self._replaces_log(snapshot_id)
            elif replay is not None and replay.loader.next_offset == snapshot_id.end_offset:
                yield from self._compare(snapshot_id, loaded, replay)
                self.compared_count += 1
            elif replay is None and snapshot_id.end_offset >= self.log_start_offset:
                replay = loaded
        if replay is not None:
            replay = yield from self._advance(replay, self.log_end_offset)
        self._replay = newest or replay
        if replay is None:
            return
        if replay.loader.open_transaction_offset is not None:
            yield note(
                Kind.REPLAY,
                self.log.path,
                "the metadata transaction that begins here is still open at the end of the log",
                offset=replay.loader.open_transaction_offset,
            )

    def image(self) -> MetadataImage | None:
        """Return the state at the end of the log, or of the newest snapshot if that replaces it.

        None before ``run``, and for a log that cannot be replayed to its end.
        """
        return None if self._replay is None else self._replay.image

    def _replacing(self) -> SnapshotId | None:
        try:
            return replacing_snapshot(self.log, self.log_end_offset)
        except (CorruptBatchError, CorruptFileError, SegmentDeletedError):
            return None  # the leader epochs are unknown: the check of the segments reports it

    def _replaces_log(self, snapshot_id: SnapshotId) -> Finding:
        if snapshot_id.end_offset > self.log_end_offset:
            reason = f"it ends after the log, whose end offset is {self.log_end_offset}"
        else:
            epoch = last_epoch(self.log, self.log_end_offset)
            reason = (
                f"it is of a later leader epoch than the log's last records, whose epoch is {epoch}"
            )
        path = self.log.files.checkpoint_path(snapshot_id)
        return note(Kind.SNAPSHOT, path, reason, offset=snapshot_id.end_offset)

    def _begin(self) -> Replay:
        is_compared = bool(self.log.snapshots)
        return Replay(MetadataLoader(), _REVEALING, is_compared=is_compared)

    def _advance(self, replay: Replay, end_offset: int) -> Generator[Finding, None, Replay | None]:
        """Replay up to ``end_offset``; return the replay, None if the log cannot be replayed."""
        try:
            scans = self.log.scan(replay.loader.next_offset, end_offset, columns=LOADER_COLUMNS)
            for next_offset in replay.advance(scans):
                done = next_offset - self.log_start_offset
                self.on_progress(done, self.log_end_offset - self.log_start_offset)
        except (CorruptBatchError, LogGapError, DataLossError, SegmentDeletedError):
            return None
        except OffsetGapError as error:
            reason = f"offset gap in a batch: the previous offset is {error.expected_offset - 1}"
            yield damage(Kind.GAP, self.log.path, reason, offset=error.offset)
            return None
        except ReplayError as error:
            reason = f"{error.record} cannot be replayed: {error.cause}"
            kind = Kind.REPLAY if error.unsupported is None else Kind.UNKNOWN
            yield damage(kind, self.log.path, reason, offset=error.offset)
            return None
        yield from self._unknown(replay.loader)
        return replay

    def _load(self, snapshot_id: SnapshotId) -> Generator[Finding, None, Replay | None]:
        """Load a snapshot; return the state at its end offset, None if it cannot be loaded."""
        snapshot = self.log.read_snapshot(snapshot_id)
        loaded = self._begin()
        try:
            loaded.load(snapshot)
        except CorruptSnapshotError as error:
            yield of_error(error, snapshot.path)
            return None
        except SegmentDeletedError:
            yield note(Kind.SNAPSHOT, snapshot.path, "deleted by its node during the check")
            return None
        except ReplayError as error:
            reason = f"{error.record} cannot be loaded: {error.cause}"
            kind = Kind.SNAPSHOT if error.unsupported is None else Kind.UNKNOWN
            yield damage(kind, snapshot.path, reason)
            return None
        yield from self._unknown(loaded.loader)
        return loaded

    def _compare(
        self, snapshot_id: SnapshotId, loaded: Replay, replayed: Replay
    ) -> Iterator[Finding]:
        path = self.log.files.checkpoint_path(snapshot_id)
        before, after = loaded.loader.image, replayed.loader.image  # without rows of topics
        if after.leader_epoch != snapshot_id.epoch:
            reason = (
                f"the leader epoch of the log at the snapshot's end offset is {after.leader_epoch}"
            )
            yield damage(Kind.SNAPSHOT, path, reason, offset=snapshot_id.end_offset)
        changes = loaded.differences(replayed)
        if changes:
            first = changes[0]
            columns = f", columns {', '.join(first.changed)}" if first.changed else ""
            yield damage(
                Kind.REPLAY,
                path,
                f"differs from the replayed log in {len(changes)} rows, the first is "
                f"{first.entity} {first.key_json}{columns}",
                offset=snapshot_id.end_offset,
            )
        if before.quorum != after.quorum:
            reason = "differs from the replayed log in its set of voters"
            yield damage(Kind.REPLAY, path, reason, offset=snapshot_id.end_offset)

    def _unknown(self, loader: MetadataLoader) -> Iterator[Finding]:
        for skipped in loader.skipped:
            what = "control records" if skipped.is_control else "records"
            yield note(
                Kind.UNKNOWN,
                self.log.path,
                f"{skipped.record_count} {what} of type {skipped.type_id} version "
                f"{skipped.version} are not supported by this version of raftlog",
                offset=skipped.first_offset,
            )
