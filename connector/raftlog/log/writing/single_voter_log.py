"""A log that several processes of one machine write in turn, under its writers' lock.

What is synced is committed, and the leader is the only voter. Each process reads the batches that
others appended, up to the end in the file ``published``, and recovers the log after one of them has
died.
"""

from __future__ import annotations

from typing import Final

from raftlog.errors import CorruptBatchError
from raftlog.log.format.directory import LOG_SUFFIX, Published, offset_name
from raftlog.log.reading.transactions import batch_metadata
from raftlog.log.segment import read_batches
from raftlog.records.batch import RecordBatch
from raftlog.records.control import LeaderChange, LeaderChangeVoter

from .active_segment import ActiveSegment
from .replicated_log import ReplicatedLog

_VOTERS = (LeaderChangeVoter(1),)
_LEADER_CHANGE: Final = (LeaderChange(leader_id=1, voters=_VOTERS, granting_voters=_VOTERS),)
"""The first record of an epoch in an embedded log, whose leader is the only voter."""


class SingleVoterLog(ReplicatedLog):
    """A log that this process and others of the machine have open. Not shared between threads.

    Before each change, and before ``close``, take the writers' lock and call ``refresh``.
    """

    @property
    def high_watermark(self) -> int:
        """Offset below which everything is committed: the synced end."""
        return self.synced_end_offset

    def _begin(self, now_ms: int) -> None:
        self._begin_epoch(1, _LEADER_CHANGE, now_ms)

    def _resume(self, now_ms: int) -> None:
        if not self.is_read_only and not self.end_offset:  # a ``create`` was interrupted
            self._begin_epoch(max(1, self.epoch), _LEADER_CHANGE, now_ms)
            self.flush()
        self._abort_open_transaction(now_ms)

    def _is_current(self) -> bool:
        published = self._directory.published()
        return (
            super()._is_current()
            and published is not None
            and published.segment_base_offset == self._segments.active.base_offset
            and published.end_offset == self._sync.end_offset
        )

    def claim(self, *, now_ms: int) -> int:
        """Begin the next epoch, which fences earlier ones, and return it. Durable on return.

        Its first batch is a leader change. An open metadata transaction of an earlier epoch is
        aborted right after it.
        """
        epoch = self.epoch + 1
        self._begin_epoch(epoch, _LEADER_CHANGE, now_ms)
        self.flush()
        return epoch

    def _abort_open_transaction(self, now_ms: int) -> None:
        """Abort a metadata transaction of an earlier epoch, after a crash in ``_begin_epoch``.

        In a quorum the next leader aborts it when it begins its epoch.
        """
        opened = self._producer_state.open_transaction
        if opened is None or self.is_read_only:
            return
        epoch = self.epochs.epoch_at(opened.first_offset)
        if epoch is not None and epoch < self.epoch:
            self._append_abort(now_ms)
            self.flush()

    # --- changes of other processes ---------------------------------------------------------------

    def refresh(self, *, now_ms: int) -> bool:
        """Read what other processes appended; return whether anything changed.

        Requires the writers' lock. Batches that others synced are read from this process's end on.
        If a writer died, rolled the segment or moved the log start, or if the log was repaired, the
        log is recovered: what was not published is backed up and truncated (``report``). Raises
        what recovery raises.
        """
        self._check_open()
        if self.is_read_only:
            return False
        was_repaired = self._directory.is_published_replaced()
        published = self._directory.published()
        if was_repaired or published is None or not self._is_in_active_segment(published):
            self._reload(now_ms)
            return True
        has_advanced = published.end_offset != self.end_offset
        is_followed = not has_advanced or self._follow(self._segments.active, published)
        if not is_followed or published.epoch != self.epoch:  # a writer died in _begin_epoch
            self._reload(now_ms)
            return True
        if has_advanced:
            self._check_invariants()
            self._abort_open_transaction(now_ms)
        return has_advanced

    def _is_in_active_segment(self, published: Published) -> bool:
        """Return whether other processes changed only this process's active segment."""
        active = self._segments.active
        return (
            active.file.is_in_place()
            and published.segment_base_offset == active.base_offset
            and published.file_position == active.file.byte_count()
            and published.end_offset >= self.end_offset
            and published.log_start_offset <= self.log_start_offset
            and not self._has_next_segment(published)
        )

    def _has_next_segment(self, published: Published) -> bool:
        """Return whether a writer died between creating the next segment and publishing it."""
        end_offset = published.end_offset
        if end_offset == self._segments.active.base_offset:
            return False
        return self._directory.has(offset_name(end_offset, LOG_SUFFIX))

    def _follow(self, active: ActiveSegment, published: Published) -> bool:
        """Read up to the published end; return whether the batches match it."""
        try:
            for batch in read_batches(active.file, active.byte_count, published.file_position):
                if batch.base_offset != self.end_offset or batch.leader_epoch < self.epoch:
                    return False
                self._apply_batch(active, batch)
        except CorruptBatchError:
            return False
        self._is_changed = True
        self._sync.advance(self.end_offset, active.byte_count)
        return self.end_offset == published.end_offset

    def _apply_batch(self, active: ActiveSegment, batch: RecordBatch) -> None:
        metadata = batch_metadata(batch, self.config.values)
        active.add_written_batch(batch.byte_count, metadata)
        self._producer_state.apply(metadata)
        self._segments.epochs = self._segments.epochs.assign(
            metadata.leader_epoch, metadata.base_offset
        )
        self.end_offset = metadata.next_offset

    def _reload(self, now_ms: int) -> None:
        self._segments.close()
        with self._failing(also_full=True):
            self._recover()
        self._abort_open_transaction(now_ms)
