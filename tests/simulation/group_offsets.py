"""Consumer of a simulated cluster that commits its offset, and the invariants of what it commits.

Invariants:

1. A commit that succeeded is in the committed log, whatever happened since.
2. Every replica that has the whole log has the offsets that its records give, from a snapshot or
   from the first record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from raftlog import ValueKind
from raftlog.append import AppendRequest, AppendResult, Done, RequestResult
from raftlog.log.reading.transactions import batch_metadata
from raftlog.log.writing.group_offsets import GroupOffset, GroupOffsets
from raftlog.records.batch import RecordBatch, read_batch
from raftlog.records.control import OffsetCommit

from .invariants import Committed, InvariantViolationError

if TYPE_CHECKING:
    from .cluster import Cluster

NODE_ID: Final = 90
WAIT_US: Final = 3_000_000
PAUSE_US: Final = 200_000
GROUPS: Final = ("a", "b", "c")


class Committing:
    """Consumer that commits ascending offsets of some groups, each until it succeeds."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._chance = cluster.world.chance("committing")
        self._target = 1
        self._attempt = 0
        self._commit: OffsetCommit | None = None
        self._count = 0
        self._succeeded: list[tuple[int, OffsetCommit]] = []
        """Offset of the control record, and the commit."""
        self.is_stopping = False

    @property
    def is_idle(self) -> bool:
        return self._commit is None

    def begin(self) -> None:
        """Begin the next commit."""
        if self.is_stopping:
            return
        self._count += 1
        self._commit = OffsetCommit(
            group=self._chance.choice(GROUPS),
            offset=self._count,
            metadata="m" * self._chance.choice((0, 10, 300)),
            commit_timestamp_ms=self._count,
        )
        self._send()

    def _send(self) -> None:
        commit, cluster = self._commit, self._cluster
        assert commit is not None
        self._attempt += 1
        attempt, target = self._attempt, self._target
        request = AppendRequest(records=(), control=(commit,), deadline_ms=0)
        cluster.network.send(
            NODE_ID, target, lambda: cluster.users_append(target, request, self, attempt)
        )
        cluster.world.after(WAIT_US, lambda: self._again(attempt, None))

    def receive_result(
        self, target: int, attempt: int, answer: RequestResult, leader_id: int | None
    ) -> None:
        """Receive a result at the node's end: it still has to be delivered here."""
        self._cluster.network.send(
            target, NODE_ID, lambda: self._deliver_result(attempt, answer, leader_id)
        )

    def _deliver_result(self, attempt: int, answer: RequestResult, leader_id: int | None) -> None:
        if self._commit is None or attempt != self._attempt:
            return
        if not isinstance(answer, Done):
            pause_us = self._chance.randrange(PAUSE_US)
            self._cluster.world.after(pause_us, lambda: self._again(attempt, leader_id))
            return
        assert isinstance(answer.value, AppendResult)
        self._succeeded.append((answer.value.base_offset, self._commit))
        self._cluster.count("offset committed")
        self._commit = None
        self._attempt += 1
        self._cluster.world.after(self._chance.randrange(PAUSE_US), self.begin)

    def _again(self, attempt: int, leader_id: int | None) -> None:
        """Repeat a commit without a result: to commit it twice is harmless."""
        if self._commit is not None and attempt == self._attempt:
            self._target = leader_id or self._chance.choice(list(self._cluster.nodes))
            self._send()

    def check(self, history: Sequence[Committed]) -> None:
        """Check the log, and the state of every replica that has all of it."""
        committed: dict[int, OffsetCommit] = {}
        expected = GroupOffsets()
        for one in history:
            batch = read_batch(one.data)
            assert isinstance(batch, RecordBatch)
            metadata = batch_metadata(batch, ValueKind.BYTES)
            for offset, record in enumerate(metadata.control, metadata.base_offset):
                if isinstance(record, OffsetCommit):
                    committed[offset] = record
                    expected.add(record, offset)
        for offset, commit in self._succeeded:
            if committed.get(offset) != commit:
                raise InvariantViolationError(f"a committed offset is in the log: {commit}")
        for node in self._cluster.nodes.values():
            if node.replica is None or node.replica.log.end_offset != history[-1].next_offset:
                continue
            found: tuple[GroupOffset, ...] = node.replica.log.producer_state.group_offsets.values()
            if found != expected.values():
                raise InvariantViolationError(
                    f"the offsets of node {node.node_id} are those of the log: {found}"
                )
            self._cluster.count("state with offsets")
