"""State of a metadata log for its writers: kept, and updated with the records appended since.

The first read builds the state from the newest snapshot or the first record, as an ``ImageReader``
does. Later reads replay only records that were appended since. If the log is no longer the same
(records that were read have been truncated, or records were deleted before they were read), the
state is built again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from raftlog.client import LogReader, SourceKind
from raftlog.records import RecordBatch

from .controller.controller_state import ControllerState
from .controller.offset_control import OffsetControl, RecordNotAppliedError
from .loader.image_reader import ImageReader
from .records import Redactor

BatchId: TypeAlias = tuple[int, int, int]
"""Base offset, leader epoch and CRC."""


class FollowedLog:
    """State of a log at its end. Not thread-safe.

    ``open_reader`` opens a reader of the log and is called once. After an error, the state is built
    again.
    """

    def __init__(self, open_reader: Callable[[], LogReader]) -> None:
        self._open_reader: Final = open_reader
        self._reader: LogReader | None = None
        self._offsets: OffsetControl | None = None
        self._last_batch: BatchId | None = None
        """The last batch in the state, if it was read."""

    @property
    def state(self) -> ControllerState:
        """The rows. A caller that writes to them must call ``revert``."""
        return self._known.state

    @property
    def end_offset(self) -> int:
        """End offset of the state: the offset of the next record."""
        return self._known.last_committed.offset + 1

    @property
    def leader_epoch(self) -> int:
        """Leader epoch of the last record."""
        return self._known.last_committed.leader_epoch

    @property
    def open_transaction_offset(self) -> int | None:
        """Offset of the open transaction's begin marker, or None. ``state`` lacks its records."""
        return self._known.open_transaction_offset

    @property
    def kraft_version(self) -> int:
        """kraft.version of the log's quorum, 0 without dynamic voters."""
        return self._known.kraft_version

    @property
    def unknown(self) -> list[tuple[int, int]]:
        """Types and versions of the records that this release does not support."""
        return sorted(self._known.unknown)

    def revert(self) -> None:
        """Revert what a caller has written to ``state``."""
        self._known.state.registry.revert_to_snapshot(self._known.last_stable.offset)

    def catch_up(self, end_offset: int = 0) -> None:
        """Replay the log to its end. ``end_offset``: a committed end of a quorum's log.

        The high watermark of a newly elected leader may be lower for a while.

        Raises ``ReplayError``, and the errors of reading a log.
        """
        try:
            reader = self._refreshed()
            end = reader.log_end_offset
            if reader.source is SourceKind.QUORUM:  # committed records are never truncated
                end = max(end, end_offset, 0 if self._offsets is None else self.end_offset)
            if self._offsets is None or not self._continue(reader, end):
                self._build(reader, end)
        except RecordNotAppliedError as error:
            self._offsets = None
            raise error.cause from error
        except BaseException:
            self._offsets = None
            raise

    def has_only_control_records(self, start_offset: int, end_offset: int) -> bool:
        """Return whether a log has control records and no other records in a committed range.

        Raises the errors of reading a log.
        """
        batches = list(self._refreshed().batches(start_offset, end_offset))
        return bool(batches) and all(batch.is_control for batch in batches)

    @property
    def _known(self) -> OffsetControl:
        assert self._offsets is not None, "it has caught up"
        return self._offsets

    def _refreshed(self) -> LogReader:
        if self._reader is None:
            self._reader = self._open_reader()
        else:
            self._reader.refresh()
        return self._reader

    def _build(self, reader: LogReader, end_offset: int) -> None:
        images = ImageReader(reader, Redactor(reveal=True))
        base = min(end_offset, images.log_end_offset)
        image = images.image_at(base)
        if images.open_transaction_offset is not None:
            # its records are replayed at its end, so the state must begin before it
            begin_offset = images.open_transaction_offset
            images = ImageReader(reader, Redactor(reveal=True))
            image = images.image_at(begin_offset)
        self._offsets = OffsetControl.from_image(image)
        for skipped in images.skipped:
            if not skipped.is_control:
                self._offsets.unknown[skipped.type_id, skipped.version] += skipped.record_count
        self._last_batch = None
        if image.offset >= reader.log_start_offset:
            for batch in reader.batches(image.offset, image.offset + 1):
                self._last_batch = _id_of(batch)
        self._replay(reader, end_offset)

    def _continue(self, reader: LogReader, end_offset: int) -> bool:
        """Replay the records after the state; return False if the log does not continue it."""
        next_offset, last = self.end_offset, self._last_batch
        if end_offset < next_offset or reader.log_start_offset > next_offset:
            return False
        if last is not None and last[0] >= reader.log_start_offset:
            found = [_id_of(one) for one in reader.batches(next_offset - 1, next_offset)]
            if found != [last]:
                return False
        self._replay(reader, end_offset)
        return True

    def _replay(self, reader: LogReader, end_offset: int) -> None:
        offsets, batch = self._known, None
        for batch in reader.batches(self.end_offset, end_offset):
            offsets.handle_commit(batch)
        if batch is not None:
            self._last_batch = _id_of(batch)


def _id_of(batch: RecordBatch) -> BatchId:
    return batch.base_offset, batch.leader_epoch, batch.crc
