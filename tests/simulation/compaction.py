"""Compaction of a simulated cluster: each node cleans its log on its own, and the invariants.

Invariants:

1. A record of a node's log that is committed equals the one that was committed at its offset, or
   only names a commit, without the value that a later record of its key supersedes.
2. A log of which everything that was compacted is committed and fetched has the last value of each
   key, and no value of a key that was deleted, whatever its node missed while it was off.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from raftlog.append import AppendRequest, RequestResult
from raftlog.errors import LogError
from raftlog.log.cleaning.compaction import Compaction
from raftlog.log.writing.quorum_log import QuorumLog
from raftlog.records.batch import RecordBatch, TornTail, read_batch
from raftlog.records.record import NewRecord
from tests.simulated_disk.crash_model import Survival
from tests.simulated_disk.simulated_disk import SimulatedDisk

from .invariants import LOOK_BYTES, Committed, InvariantViolationError, Witness

if TYPE_CHECKING:
    from .cluster import Cluster
    from .node import Node
    from .users import Operation

NODE_ID: Final = 91
DELETE_RETENTION_MS: Final = 800
COMPACTION_INTERVAL_MS: Final = 300
KEY_COUNT: Final = 100
CRASH_RATE: Final = 0.1
"""Share of the replacements of segments in which the node dies."""
PAUSE_US: Final = 150_000
_RUN_US: Final = 300_000
_SURVIVALS: Final = (None, *Survival)


class Content(NamedTuple):
    """Record at an offset, without what a compaction may change."""

    epoch: int
    is_control: bool
    key: bytes | None
    value: bytes | None


def keyed(operation: Operation) -> tuple[NewRecord, ...]:
    """Return the records of an append, each with a key of its user's number."""
    return tuple(NewRecord(_key_of(value), value) for value in operation.values)


def _key_of(value: bytes) -> bytes:
    _, number, _ = value.split(b":")
    return b"key %d" % (int(number) % KEY_COUNT)


def contents(batch: RecordBatch) -> Iterator[tuple[int, Content]]:
    """Yield the records of a batch by their offsets."""
    for one in batch.records():
        yield one.offset, Content(batch.leader_epoch, batch.is_control, one.key, one.value)


@dataclass(slots=True)
class CompactedWitness(Witness):
    """Committed history of a cluster whose logs are compacted."""

    contents: dict[int, Content] = field(default_factory=dict)
    """The committed records, by offset."""
    _last_offsets: dict[bytes | None, int] = field(default_factory=dict)

    def _take(self, node_id: int, at: int, end: int, log: QuorumLog) -> int:
        """Compare the stored records of [at, end) with the history, or add their batches to it."""
        for batch, data in stored_batches(node_id, at, end, log):
            if batch.next_offset > self.end_offset:
                self._extend(node_id, batch, data, end)
                continue
            for offset, content in contents(batch):
                known = self.contents.get(offset)
                if known != content and not self._is_name_of_commit(offset, known, content):
                    raise InvariantViolationError(
                        f"committed records never change: node {node_id} has {content} at "
                        f"{offset}, and not {known}"
                    )
        return max(at, end)

    def _is_name_of_commit(self, offset: int, known: Content | None, found: Content) -> bool:
        """Return whether a record has lost its value, which a later one of its key supersedes."""
        return (
            known is not None
            and found == known._replace(value=None)
            and self._last_offsets[known.key] > offset
        )

    def _extend(self, node_id: int, batch: RecordBatch, data: bytes, end: int) -> None:
        """Add a batch, which nothing has compacted: it is seen first by the leader's commit."""
        found = dict(contents(batch))
        is_whole = len(found) == batch.next_offset - batch.base_offset
        if batch.base_offset != self.end_offset or batch.next_offset > end or not is_whole:
            raise InvariantViolationError(
                f"nothing above the high watermark is compacted: node {node_id} has the offsets "
                f"{sorted(found)} of {batch.base_offset} to {batch.next_offset}, and "
                f"{self.end_offset} is committed, {end} known"
            )
        self.by_base[batch.base_offset] = len(self.history)
        self.history.append(
            Committed(batch.base_offset, batch.next_offset, batch.leader_epoch, data)
        )
        self.contents.update(found)
        self._last_offsets.update((one.key, offset) for offset, one in found.items())

    def table(self, end_offset: int) -> dict[bytes, bytes]:
        """Return the last value of each key below an offset."""
        return _table(one for one in self.contents.items() if one[0] < end_offset)

    def check_survivors(self, node_id: int, log: QuorumLog, high_watermark: int | None) -> bool:
        """Compare the last values of a node's keys; return whether it has all that it must have."""
        end = max(log.compacted_offset, high_watermark or 0)
        if end > log.end_offset:
            return False  # it still fetches
        if end > self.end_offset:
            raise InvariantViolationError(
                f"nothing above the high watermark is compacted: node {node_id} up to {end}"
            )
        start = log.log_start_offset
        batches = (one for one, _ in stored_batches(node_id, start, end, log))
        found = _table(one for batch in batches for one in contents(batch) if one[0] < end)
        expected = self.table(end)
        wrong = sorted(
            key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)
        )
        if wrong:
            key = wrong[0]
            raise InvariantViolationError(
                f"survivors: node {node_id} has {found.get(key)!r} of {key!r} at {end}, and not "
                f"{expected.get(key)!r}"
            )
        return True


def stored_batches(
    node_id: int, at: int, end: int, log: QuorumLog
) -> Iterator[tuple[RecordBatch, bytes]]:
    """Yield the batches of a log that overlap a range, the first of which may begin before it."""
    data, position, is_first = b"", 0, True
    while at < end:
        if position >= len(data):
            data, position = log.read_stored_bytes(at, LOOK_BYTES), 0
        batch = read_batch(data, position)
        if isinstance(batch, TornTail) and position:
            data, position = b"", 0
            continue
        if (
            isinstance(batch, TornTail)
            or not batch.base_offset <= at < batch.next_offset
            or (batch.base_offset < at and not is_first)
        ):
            raise InvariantViolationError(f"node {node_id}: no batch is at the offset {at}")
        yield batch, data[position : position + batch.byte_count]
        at, position, is_first = batch.next_offset, position + batch.byte_count, False


def _table(records: Iterator[tuple[int, Content]]) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for _, content in sorted(records):
        if content.key is None or content.is_control:
            continue
        if content.value is None:
            found.pop(content.key, None)
        else:
            found[content.key] = content.value
    return found


class SimulatedCleaning:
    """Compactions of the nodes of a cluster, in some of which the node dies."""

    def __init__(self, cluster: Cluster, witness: CompactedWitness) -> None:
        self._cluster = cluster
        self._witness = witness
        self._chance = cluster.world.chance("compaction")
        self.crash_rate = CRASH_RATE

    def run(self, node: Node, compaction: Compaction) -> None:
        """Run in one moment, and complete it in a later one; the node may die before both."""

        def work() -> None:
            error: LogError | None = None
            try:
                compaction.run()
            except LogError as caught:
                error = caught
            node.later(self._draw_us(), lambda: complete(error))

        def complete(error: LogError | None) -> None:
            raft_node = node.raft_node
            assert raft_node is not None, "the action is one of this incarnation"
            if error is not None:
                self._cluster.count(f"compaction {error.code}")
                raft_node.fail_compaction(compaction, error)
            elif self._chance.random() < self.crash_rate:
                self._crash(node, compaction)
            else:
                raft_node.complete_compaction(compaction)

        node.later(self._draw_us(), work)

    def _draw_us(self) -> int:
        return self._chance.randrange(1_000, _RUN_US)

    def _crash(self, node: Node, compaction: Compaction) -> None:
        """Let the node die at any step of the replacement of segments."""
        assert node.replica is not None
        log, recording = node.replica.log, node.disk.record()
        with suppress(LogError):  # the disk is full
            for _ in log.replace_compacted(compaction):
                if self._chance.random() < 0.5:
                    break
        cut = self._chance.randrange(len(recording.operations) + 1)
        survival = self._chance.choice(_SURVIVALS)
        (state,) = recording.states((survival,), cuts=(cut,))
        node.crash_into(SimulatedDisk.after(state, self._chance.randrange(2**31)), f"{state}")
        if recording.operations:
            self._cluster.count("crash of a compaction")
        self._cluster.on_failure(node)

    def check(self, node: Node) -> None:
        """Check the survivors of a node. Raises ``InvariantViolationError``."""
        replica = node.replica
        if replica is None:
            return
        high_watermark = replica.core.high_watermark
        if self._witness.check_survivors(node.node_id, replica.log, high_watermark):
            self._cluster.count("survivors compared")


class Deleting:
    """User that deletes keys, without a retry."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._chance = cluster.world.chance("deleting")
        self.is_stopping = False

    def begin(self) -> None:
        """Delete a key, and others later."""
        if self.is_stopping:
            return
        cluster, target = self._cluster, self._chance.choice(list(self._cluster.nodes))
        key = b"key %d" % self._chance.randrange(KEY_COUNT)
        request = AppendRequest(records=(NewRecord(key, None),), deadline_ms=0)
        cluster.network.send(
            NODE_ID, target, lambda: cluster.users_append(target, request, self, 0)
        )
        cluster.world.after(self._chance.randrange(PAUSE_US), self.begin)

    def receive_result(
        self, target: int, attempt: int, answer: RequestResult, leader_id: int | None
    ) -> None:
        """Ignore the result."""
