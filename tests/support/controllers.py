"""Controllers on a shared log in memory, and the states that a replay of the log gives.

Kafka: ``QuorumControllerTestEnv`` on ``LocalLogManagerTestEnv``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from raftlog.records.batch import RecordBatch
from raftlog_state.controller import (
    ChangeRequest,
    PendingState,
    QuorumController,
    RegisterBroker,
    SetFeature,
    UnfenceBroker,
    Write,
    write_changes,
)
from raftlog_state.controller.activation import new_cluster_features
from raftlog_state.controller.active import NO_DEADLINE
from raftlog_state.controller.pending_state import Operation
from raftlog_state.controller_apis import HostedController
from raftlog_state.image import MetadataImage
from raftlog_state.image.image_writer import image_records
from raftlog_state.image.rows import RECORD_ROW_TYPES
from raftlog_state.loader.metadata_loader import MetadataLoader, batch_records
from raftlog_state.records import encode
from raftlog_state.snapshots import snapshot_bytes
from tests.support.shared_log import SharedLog, SharedLogNode


@dataclass
class Listener:
    """Messages and faults of a controller."""

    messages: list[str] = field(default_factory=list)
    faults: list[tuple[str, Exception]] = field(default_factory=list)
    fatal_faults: list[tuple[str, Exception]] = field(default_factory=list)

    def log(self, message: str) -> None:
        self.messages.append(message)

    def handle_fault(self, message: str, error: Exception) -> None:
        self.faults.append((message, error))

    def handle_fatal_fault(self, message: str, error: Exception) -> None:
        self.fatal_faults.append((message, error))


class Controllers:
    """Shared log with a controller on each of its nodes, from 1 on; ``now_us`` is their clock.

    ``in_steps``: whether writes may have several steps. ``scheduled`` has the next ones by node,
    which ``run_steps`` calls.
    """

    def __init__(
        self,
        count: int = 3,
        *,
        seed: int = 0,
        records_per_batch_max: int = 10_000,
        in_steps: bool = False,
    ):
        self.shared = SharedLog()
        self.now_us = 0
        self.listeners: dict[int, Listener] = {}
        self.all: dict[int, QuorumController] = {}
        self.scheduled: dict[int, list[Callable[[], None]]] = {}
        self._in_steps = in_steps
        self._seed = seed
        self._records_per_batch_max = records_per_batch_max
        for node_id in range(1, count + 1):
            self.start(node_id)

    def start(self, node_id: int) -> QuorumController:
        """Start a controller, with an empty state, on a node; an earlier one is no longer called.

        The node's log must have no other listener.
        """
        self.shared.nodes.pop(node_id, None)
        node = self.shared.node(node_id)
        listener = self.listeners[node_id] = Listener()
        scheduled = self.scheduled[node_id] = []
        controller = self.all[node_id] = QuorumController(
            node,
            rng=random.Random(f"{self._seed} {node_id}"),
            time_us=lambda: self.now_us,
            listener=listener,
            records_per_batch_max=self._records_per_batch_max,
            schedule=scheduled.append if self._in_steps else None,
        )
        node.register(controller)
        return controller

    def elect(self, node_id: int) -> QuorumController:
        """Elect a node, and deliver everything."""
        self.shared.elect(node_id)
        self.shared.deliver()
        return self.all[node_id]

    def run_step(self, node_id: int) -> bool:
        """Run the next step of a node's write; return whether there was one."""
        scheduled = self.scheduled[node_id]
        if scheduled:
            scheduled.pop(0)()
        return bool(scheduled)

    def run_steps(self) -> None:
        """Run the steps of all writes."""
        for node_id in self.scheduled:
            while self.run_step(node_id):
                pass

    @property
    def active(self) -> QuorumController | None:
        found = [one for one in self.all.values() if one.active_epoch == self.shared.epoch]
        assert len(found) <= 1
        return found[0] if found else None

    def hold(self) -> None:
        """Commit nothing from now on."""
        self.shared.committed_max = self.shared.end_offset

    def release(self) -> None:
        """Commit everything, and all later appends."""
        self.shared.committed_max = None
        self.shared.deliver()

    def snapshot(self, image: MetadataImage) -> None:
        """Write a snapshot of a committed state, and start the log at its end."""
        values = [encode(record) for record in image_records(image)]
        writer = self.shared.begin_snapshot(image.offset + 1)
        assert writer is not None
        with writer:
            writer.append(values)
            writer.freeze()
        self.shared.delete_before(self.shared.snapshots[-1])

    def assert_states_equal_a_replay(self) -> None:
        """Compare the committed state of each controller, as image and as snapshot."""
        for controller in self.all.values():
            committed = [
                batch
                for batch in self.shared.batches
                if batch.next_offset <= controller.metrics(0).last_committed_record_offset + 1
            ]
            assert_equals_a_replay(controller, committed)


def assert_equals_a_replay(controller: QuorumController, batches: Sequence[RecordBatch]) -> None:
    expected, image = replayed(batches), controller.image()
    assert image == expected
    assert image.timestamp_ms == expected.timestamp_ms
    if expected.metadata_version is not None:
        assert snapshot_bytes(image, written_ms=0) == snapshot_bytes(expected, written_ms=0)
    if controller.active_epoch is None:
        for kind in RECORD_ROW_TYPES:  # a standby's current state is the stable one
            assert controller.state.rows_of(kind) == expected.rows_of(kind)
        assert controller.state.registry.epochs == (expected.offset,)


def replayed(batches: Sequence[RecordBatch]) -> MetadataImage:
    """Return the state that a loader replays from the first offset on."""
    loader = MetadataLoader()
    for batch in batches:
        loader.append(batch_records(batch))
    return loader.image


def hosted_on(
    node: SharedLogNode, listener: Listener | None = None, **more: Any
) -> HostedController:
    """Return a controller that a node of a shared log calls; ``more``: arguments of it."""
    hosted = HostedController(
        node,
        cluster_id="c",
        listener=listener or Listener(),
        bootstrap_features=new_cluster_features(),
        log_configs=dict,
        forwarded_principal=lambda sender, _, _host: sender,
        **more,
    )
    node.register(hosted)
    return hosted


def changes(*requests: ChangeRequest) -> Operation[int]:
    """Return the operation of some changes, whose response is the offset after its records."""

    def operation(pending: PendingState) -> int:
        write_changes(requests, pending)
        return pending.next_offset

    return operation


def write(controller: QuorumController, *requests: ChangeRequest, **differing: Any) -> Write[int]:
    arguments: dict[str, Any] = {"deadline_us": NO_DEADLINE, **differing}
    return controller.write("changes", changes(*requests), **arguments)


def bootstrap(level: int = 30, brokers: int = 3) -> list[ChangeRequest]:
    """Return the changes of a new cluster with unfenced brokers from 1 on."""
    found: list[ChangeRequest] = [SetFeature(feature="metadata.version", level=level)]
    for broker_id in range(1, brokers + 1):
        found.append(registration(broker_id))
        found.append(UnfenceBroker(broker_id=broker_id))
    return found


def registration(broker_id: int) -> RegisterBroker:
    return RegisterBroker(broker_id=broker_id, endpoints={"A": f"host{broker_id}:9092"})
