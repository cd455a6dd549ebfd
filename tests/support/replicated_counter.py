"""Replicated counter: a minimal state machine over a log.

The value is the number of committed increments. Each record contains its number, so that a lost or
duplicated increment is detected. Only the leader appends, with ``required_base_offset``, so that no
other record precedes the increment. Uncommitted increments are dropped on a leader change: they may
still be committed, or never.

Kafka: ``ReplicatedCounter``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from raftlog.errors import (
    DiskFullError,
    NotLeaderError,
    StateMachineError,
    UnexpectedEndOffsetError,
)
from raftlog.log.reading.snapshot import SnapshotReader
from raftlog.node.raft_client import LeaderNotification, RaftClient
from raftlog.records.batch import RecordBatch

_INCREMENT: Final = re.compile(rb"increment ([1-9]\d{0,17})")


class ReplicatedCounter:
    """``RaftListener`` that counts. Use it on the thread that drives the replica."""

    def __init__(self, log: RaftClient) -> None:
        self._log: Final = log
        self._value = 0
        self._end_offset = 0
        self._leads: int | None = None
        self._appended_value = 0
        self._appended_end = 0
        self.is_stopping = False

    @property
    def value(self) -> int:
        """Return the number of committed increments that this node has applied."""
        return self._value

    @property
    def end_offset(self) -> int:
        """Return the end offset of the applied records."""
        return self._end_offset

    @property
    def epoch_led(self) -> int | None:
        """Return the epoch that this node leads, or None."""
        return self._leads

    # --- calls of a user --------------------------------------------------------------------------

    def increment(self) -> int | None:
        """Append an increment; return the value that the counter has once it is committed.

        Returns None if it has to be repeated later: the log has records that are not applied yet,
        or the disk is full. Raises ``NotLeaderError``.
        """
        if self._leads is None or self.is_stopping:
            raise NotLeaderError(epoch=0, current_epoch=0)
        epoch, value = self._leads, max(self._value, self._appended_value) + 1
        end_offset = max(self._end_offset, self._appended_end)
        try:
            base_offset = self._log.append(
                epoch, [encode_increment(value)], required_base_offset=end_offset
            )
        except (UnexpectedEndOffsetError, DiskFullError):
            return None
        if self._leads == epoch:
            self._appended_value, self._appended_end = value, base_offset + 1
        return value

    def snapshot(self) -> bool:
        """Write a snapshot of the value; return False if the log needs none."""
        writer = self._log.begin_snapshot(self._end_offset)
        if writer is None:
            return False
        with writer:
            writer.append([encode_increment(self._value)])
            writer.freeze()
        return True

    # --- RaftListener -----------------------------------------------------------------------------

    def handle_commit(self, batches: Sequence[RecordBatch]) -> None:
        for batch in batches:
            for value in increments_in(batch):
                if value != self._value + 1:
                    raise StateMachineError(
                        reason=f"it has number {value} and follows number {self._value}",
                        offset=batch.base_offset,
                    )
                self._value = value
            self._end_offset = batch.next_offset

    def handle_load_snapshot(self, snapshot: SnapshotReader) -> None:
        self._value = 0
        for batch in snapshot.batches():
            for value in increments_in(batch):
                self._value = value
        self._end_offset = snapshot.snapshot_id.end_offset

    def handle_leader_change(self, leader: LeaderNotification) -> None:
        is_me = leader.leader_id == self._log.node_id
        self._leads = leader.epoch if is_me else None
        self._appended_value = self._appended_end = 0

    def begin_shutdown(self) -> None:
        self.is_stopping = True
        self._leads = None


def encode_increment(value: int) -> bytes:
    """Return the record of an increment to ``value``."""
    return b"increment %d" % value


def decode_increment(data: bytes | None) -> int | None:
    """Return the value that a record increments to, None if it is no increment."""
    match = _INCREMENT.fullmatch(data or b"")
    return None if match is None else int(match[1])


def increments_in(batch: RecordBatch) -> list[int]:
    """Return the increments in a batch. Records of other writers are skipped."""
    if batch.is_control:
        return []
    found = (decode_increment(record.value) for record in batch.records())
    return [value for value in found if value is not None]
