"""Replicated counter on every node of a simulated cluster, and the invariants of all counters.

Invariants:

1. All counters of one run have one history: each that has read up to an offset has the same value
   there, in every incarnation, from a snapshot or from the first record.
2. A counter that is notified of its leadership has counted every known increment of every earlier
   epoch, and loads no snapshot while it leads (Kafka: ``LeaderNeverLoadSnapshot``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from raftlog.errors import LogClosedError, NotLeaderError, StateMachineError
from raftlog.log.reading.snapshot import SnapshotReader
from raftlog.node.raft_client import LeaderNotification, RaftClient
from raftlog.records.batch import RecordBatch, read_batch
from tests.support.replicated_counter import ReplicatedCounter, increments_in

from .invariants import Committed, InvariantViolationError

if TYPE_CHECKING:
    from .cluster import Cluster
    from .node import Node


PAUSE_US: Final = 300_000


@dataclass(slots=True)
class Counted:
    """Values that the counters of a run have reached by offset."""

    value_at: dict[int, int] = field(default_factory=dict)
    """By the offset below which everything is counted."""
    by_epoch: dict[int, int] = field(default_factory=dict)
    """Last increment of each epoch."""

    def saw(self, end_offset: int, value: int, counter_id: int) -> None:
        known = self.value_at.setdefault(end_offset, value)
        if known != value:
            raise InvariantViolationError(
                f"one history of counting: {known} and, on {counter_id}, {value} at {end_offset}"
            )


class WatchedCounter(ReplicatedCounter):
    """Counter of one node in one of its incarnations."""

    def __init__(self, log: RaftClient, counted: Counted) -> None:
        super().__init__(log)
        self._counted = counted

    def handle_commit(self, batches: Sequence[RecordBatch]) -> None:
        for batch in batches:
            before = self.value
            try:
                super().handle_commit([batch])
            except StateMachineError as error:
                raise InvariantViolationError(str(error)) from None
            if self.value < before:
                raise InvariantViolationError(f"a counter fell from {before} to {self.value}")
            self._counted.saw(self.end_offset, self.value, self._log.node_id)
            if increments_in(batch):
                self._counted.by_epoch[batch.leader_epoch] = self.value

    def handle_load_snapshot(self, snapshot: SnapshotReader) -> None:
        if self.epoch_led is not None:
            raise InvariantViolationError(
                f"a leader never loads a snapshot: {self._log.node_id} leads epoch {self.epoch_led}"
            )
        super().handle_load_snapshot(snapshot)
        self._counted.saw(self.end_offset, self.value, self._log.node_id)

    def handle_leader_change(self, leader: LeaderNotification) -> None:
        super().handle_leader_change(leader)
        if self.epoch_led is not None:
            known = [one for epoch, one in self._counted.by_epoch.items() if epoch < self.epoch_led]
            if self.value < max(known, default=0):
                raise InvariantViolationError(
                    f"notified of epoch {self.epoch_led} before all was counted: {self.value}, "
                    f"and {max(known)} is known"
                )


class Counting:
    """Load that makes the leader increment repeatedly, until it is stopped."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._chance = cluster.world.chance("counting")
        self.is_stopping = False

    def begin(self) -> None:
        if self.is_stopping:
            return
        for node in self._cluster.nodes.values():
            self._increment(node)
        self._cluster.world.after(self._chance.randrange(PAUSE_US), self.begin)

    def _increment(self, node: Node) -> None:
        counter = node.counter
        if counter is None or node.is_paused or counter.epoch_led is None:
            return
        try:
            is_appended = counter.increment() is not None
        except (NotLeaderError, LogClosedError):
            return
        self._cluster.count("increment appended" if is_appended else "increment waits")


def check_counters(cluster: Cluster, history: Sequence[Committed]) -> None:
    """Check that every counter that has read the whole log has counted each of its increments."""
    count = 0
    for one in history:
        batch = read_batch(one.data)
        assert isinstance(batch, RecordBatch)
        count += len(increments_in(batch))
    for node in cluster.nodes.values():
        if node.counter is not None and node.counter.value != count:
            raise InvariantViolationError(
                f"node {node.node_id} counts {node.counter.value}, and {count} are committed"
            )
    cluster.counts["increment committed"] = count
