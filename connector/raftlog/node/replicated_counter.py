"""A counter that many nodes keep alike: the smallest state machine over a log, as an example.

Rules of this file:

1. The value is how many increments are committed. A record says which increment it is, so a lost or
   a doubled one is found at once.
2. Only the node that leads increments, and only from where it knows the log to end: the record's
   place is required. What it placed and did not get back is forgotten when another leads: it may
   come back as committed, or never.

Kafka: ``ReplicatedCounter``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from raftlog.errors import DiskFullError, NotLeaderError, ReplayError, UnexpectedEndOffsetError
from raftlog.log.snapshot import SnapshotReader
from raftlog.records.batch import RecordBatch

from .raft_client import RaftClient
from .raft_listeners import LeaderNotification

_INCREMENT: Final = re.compile(rb"increment ([1-9]\d{0,17})")


class ReplicatedCounter:
    """A ``RaftListener`` that counts. On the thread that drives the replica."""

    def __init__(self, log: RaftClient) -> None:
        self._log: Final = log
        self._value = 0
        self._end_offset = 0
        self._leads: int | None = None
        self._placed_value = 0
        self._placed_end = 0
        self.is_stopping = False

    @property
    def value(self) -> int:
        """How many increments are committed, as far as this node knows."""
        return self._value

    @property
    def end_offset(self) -> int:
        """Every record below is counted."""
        return self._end_offset

    @property
    def epoch_led(self) -> int | None:
        """The epoch in which this node may increment."""
        return self._leads

    # --- what a user does -------------------------------------------------------------------------

    def increment(self) -> int | None:
        """Place one more increment; what the value will be once it is committed.

        None if it has to wait: the log holds what is not counted yet, or its disk is full. Raises
        ``NotLeaderError``.
        """
        if self._leads is None or self.is_stopping:
            raise NotLeaderError(epoch=0, current_epoch=0)
        epoch, value = self._leads, max(self._value, self._placed_value) + 1
        end_offset = max(self._end_offset, self._placed_end)
        try:
            base_offset = self._log.append(
                epoch, [encode_increment(value)], required_base_offset=end_offset
            )
        except (UnexpectedEndOffsetError, DiskFullError):
            return None
        if self._leads == epoch:
            self._placed_value, self._placed_end = value, base_offset + 1
        return value

    def snapshot(self) -> bool:
        """Write down what is counted so far; False if the log does not want it."""
        writer = self._log.begin_snapshot(self._end_offset)
        if writer is None:
            return False
        with writer:
            writer.append([encode_increment(self._value)])
            writer.freeze()
        return True

    # --- what the log tells -----------------------------------------------------------------------

    def handle_commit(self, batches: Sequence[RecordBatch]) -> None:
        for batch in batches:
            for value in increments_in(batch):
                if value != self._value + 1:
                    raise ReplayError(
                        offset=batch.base_offset,
                        record="increment",
                        reason=f"it is number {value} and follows number {self._value}",
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
        self._placed_value = self._placed_end = 0

    def begin_shutdown(self) -> None:
        self.is_stopping = True
        self._leads = None


def encode_increment(value: int) -> bytes:
    """The record of the increment that makes the value this one."""
    return b"increment %d" % value


def decode_increment(data: bytes | None) -> int | None:
    """What a record makes the value; None if it is no increment."""
    match = _INCREMENT.fullmatch(data or b"")
    return None if match is None else int(match[1])


def increments_in(batch: RecordBatch) -> list[int]:
    """The increments among a batch's records. Others may write to the same log."""
    if batch.is_control:
        return []
    found = (decode_increment(record.value) for record in batch.records())
    return [value for value in found if value is not None]
