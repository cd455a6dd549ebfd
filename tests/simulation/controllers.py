"""Active controller on every node of a simulated cluster, and the invariants of all controllers.

Invariants:

1. The state of a controller that becomes active is that of a replay of the committed log, and so is
   that of every controller at the end.
2. A write that succeeded is committed, once. A refused one is not in the log, and neither is one
   whose leadership was lost between two of its steps.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Final

from raftlog.errors import StateMachineError
from raftlog.node.raft_client import LeaderNotification, RaftClient, Steps
from raftlog.records.batch import RecordBatch, read_batch
from raftlog_state.controller import ApiException, PendingState, QuorumController, Write
from raftlog_state.errors import ControllerError
from raftlog_state.image import MetadataImage
from raftlog_state.loader.metadata_loader import MetadataLoader, batch_records
from raftlog_state.records import ConfigRecord, FeatureLevelRecord, TopicRecord, decode
from tests.support.controllers import Listener

from .invariants import InvariantViolationError

if TYPE_CHECKING:
    from .cluster import Cluster
    from .node import Node

BROKER: Final = 4
PAUSE_US: Final = 200_000
TIMEOUT_US: Final = 5_000_000
STEP_US: Final = 400_000
"""Longest time between two steps of a write: some leaderships end within it."""
RECORDS_PER_BATCH_MAX: Final = 2


class ReplayedLog:
    """Committed log of a cluster, replayed by a loader."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._loader = MetadataLoader()
        self._images: dict[int, MetadataImage] = {0: self._loader.image}
        self._count = 0
        self.written: Counter[str] = Counter()
        """Topic records by name, of transactions that are aborted, too."""

    def image_at(self, end_offset: int) -> MetadataImage:
        """Return the state at the end of a committed batch."""
        history = self._cluster.witness.history
        for one in history[self._count :]:
            batch = read_batch(one.data)
            assert isinstance(batch, RecordBatch)
            self._loader.append(batch_records(batch))
            self._images[batch.next_offset] = self._loader.image
            if not batch.is_control:
                records = (decode(record.value or b"").record for record in batch.records())
                self.written.update(one.name for one in records if isinstance(one, TopicRecord))
        self._count = len(history)
        return self._images[end_offset]


class WatchedController(QuorumController):
    """Controller of one node in one of its incarnations."""

    def __init__(self, log: RaftClient, node: Node, cluster: Cluster) -> None:
        chance = cluster.world.chance(f"steps of {node.node_id} {node.life}")
        super().__init__(
            log,
            rng=random.Random(f"{cluster.world.seed} {node.node_id} {node.life}"),
            time_us=lambda: cluster.world.now_us,
            listener=Listener(),
            records_per_batch_max=RECORDS_PER_BATCH_MAX,
            schedule=lambda step: node.later(chance.randrange(STEP_US), step),
        )
        self._cluster = cluster
        self._node_id = node.node_id

    def handle_commit(self, batches: Sequence[RecordBatch]) -> Steps:
        try:
            return super().handle_commit(batches)
        except StateMachineError as error:  # a record was replayed twice, or one is missing
            raise InvariantViolationError(str(error)) from error

    def handle_leader_change(self, leader: LeaderNotification) -> None:  # type: ignore[override]
        before = self.active_epoch
        super().handle_leader_change(leader)
        if self.active_epoch not in (None, before):
            self._cluster.count("controller claimed")
            self.check_state()

    @property
    def end_offset(self) -> int:
        """End of the committed records that it has received."""
        return self.metrics(0).last_committed_record_offset + 1

    def check_state(self) -> None:
        """Check that the committed state is that of a replay."""
        try:
            found = self.image()
        except StateMachineError as error:
            raise InvariantViolationError(str(error)) from None
        expected = self._cluster.replayed.image_at(self.end_offset)
        if found != expected:
            raise InvariantViolationError(
                f"controller {self._node_id} has another state at {self.end_offset} than a replay"
            )


class Changing:
    """Load that makes the active controller write repeatedly, until it is stopped."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._chance = cluster.world.chance("changing")
        self._writes: dict[str, Write[None]] = {}
        self.is_stopping = False

    def begin(self) -> None:
        if self.is_stopping:
            return
        for node in self._cluster.nodes.values():
            if node.controller is not None and not node.is_paused:
                node.controller.tick(self._cluster.world.now_us)
                if self._chance.random() < 0.7:
                    self._write(node.controller)
        self._cluster.world.after(self._chance.randrange(PAUSE_US), self.begin)

    def _write(self, controller: WatchedController) -> None:
        name, fails = f"write-{len(self._writes)}", self._chance.random() < 0.1
        count = self._chance.choice([1, 1, 5])
        is_in_steps = self._chance.random() < 0.3

        def operation(pending: PendingState) -> Generator[None, None, None]:
            if pending.current.metadata_version is None:
                pending.write(FeatureLevelRecord(name="metadata.version", feature_level=30))
            pending.write(TopicRecord(name=name, topic_id=pending.random_uuid()))
            for number in range(count - 1):
                filler = f"filler-{number}"
                pending.write(ConfigRecord(resource_type=BROKER, name=filler, value=name))
            if is_in_steps:
                yield
            if fails:
                raise ApiException("the write", "it is refused", "do not write it")

        self._writes[name] = controller.write_in_steps(
            "change",
            operation,
            deadline_us=self._cluster.world.now_us + TIMEOUT_US,
            transaction_name="change" if count > 1 else None,
        )

    def check(self) -> None:
        """Check every controller, and every write."""
        cluster = self._cluster
        for node in cluster.nodes.values():
            if node.controller is not None:
                node.controller.check_state()
        image = cluster.replayed.image_at(cluster.witness.end_offset)
        written = cluster.replayed.written
        for name, done in self._writes.items():
            cluster.count(f"change {type(done.error).__name__}")
            is_there = image.topic(name) is not None
            if done.is_done and done.error is None and not is_there:
                raise InvariantViolationError(f"{name} succeeded and is not in the state")
            if done.is_done and done.last_offset is None and written[name]:
                raise InvariantViolationError(f"{name} was not appended and is in the log")
            was_started = done.started_us is not None
            if (
                was_started
                and done.last_offset is None
                and not isinstance(done.error, ApiException)
            ):
                cluster.count("change ended between its steps")
            if written[name] > 1:
                raise InvariantViolationError(f"{name} is in the log {written[name]} times")
            if done.is_done and done.error is None:
                cluster.count("change committed")
            elif is_there and isinstance(done.error, ControllerError):
                cluster.count("change committed after a failover")
