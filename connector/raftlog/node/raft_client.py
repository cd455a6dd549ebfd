"""Access to a quorum's log for a state machine on one of its nodes: append, resign, snapshot.

Appended records are not committed yet: the listener receives them once they are. After a leader
change its uncommitted records may still be committed, or never. An append names the epoch in which
the listener became leader, so it is rejected after a later election; no part of a rejected append
is in the log.

Kafka: ``RaftClient.scheduleAppend``, ``scheduleAtomicAppend``, ``resign``, ``createSnapshot``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

from raftlog.append.append_batch import AppendBatch
from raftlog.append.requests import AppendRequest, AppendResult, Failed
from raftlog.errors import (
    AppendError,
    DiskFullError,
    FutureEpochError,
    LogClosedError,
    NotLeaderError,
)
from raftlog.log.writing.snapshots import SnapshotWriter
from raftlog.quorum.events import Resign

from .replica import Outgoing, Replica

Act: TypeAlias = Callable[[Callable[[int, int], list[Outgoing]]], None]


class RaftClient(Protocol):
    """Interface of the log for a state machine."""

    @property
    def node_id(self) -> int: ...

    def append(
        self, epoch: int, records: Sequence[bytes], *, required_base_offset: int | None = None
    ) -> int:
        """Append records as one batch, all or none; return the offset of the first record.

        Raises ``NotLeaderError`` (a later epoch has begun, or this node is not the leader),
        ``FutureEpochError`` (a bug of the caller), ``UnexpectedEndOffsetError`` (the end offset is
        not ``required_base_offset``), ``RecordBatchTooLargeError``, ``DiskFullError``.
        """
        ...

    def resign(self, epoch: int) -> None:
        """Resign as leader of ``epoch``; do nothing if a later epoch has begun."""
        ...

    def begin_snapshot(self, end_offset: int) -> SnapshotWriter | None:
        """Begin a snapshot of the state at ``end_offset``, as ``ReplicatedLog.begin_snapshot``."""
        ...


class ReplicaRaftClient:
    """``RaftClient`` of a replica. Use it on the thread that drives the replica."""

    def __init__(self, replica: Replica, act: Act, time_ms: Callable[[], int]) -> None:
        """``act`` calls its argument with the quorum's time and the wall-clock time, and executes
        the returned outputs before it returns; ``time_ms`` returns the wall-clock time."""
        self._replica: Final = replica
        self._act = act
        self._time_ms = time_ms

    @property
    def node_id(self) -> int:
        return self._replica.core.node_id

    def append(
        self, epoch: int, records: Sequence[bytes], *, required_base_offset: int | None = None
    ) -> int:
        request = AppendRequest(
            records=tuple(records),
            epoch=epoch,
            required_base_offset=required_base_offset,
            is_atomic=True,
            deadline_ms=0,
        )
        request.check()
        outcome: list[int | AppendError | DiskFullError] = []

        def append(now_ms: int, time_ms: int) -> list[Outgoing]:
            try:
                outcome.append(self._append(epoch, request, time_ms))
            except (AppendError, DiskFullError) as refusal:
                outcome.append(refusal)
                return []
            return self._replica.appended(now_ms=now_ms, time_ms=time_ms)

        self._act(append)
        if not outcome:
            raise LogClosedError(path=self._replica.log.path, reason="the replica has stopped")
        if not isinstance(outcome[0], int):
            raise outcome[0]
        return outcome[0]

    def _append(self, epoch: int, request: AppendRequest, time_ms: int) -> int:
        replica = self._replica
        current = replica.core.epoch
        if epoch > current:
            raise FutureEpochError(epoch=epoch, current_epoch=current)
        if epoch < current or not replica.core.is_leader:
            raise NotLeaderError(epoch=epoch, current_epoch=current)
        if replica.is_stalled_on_disk_full:
            reason = "the first batch of the leader's epoch could not be written"
            raise DiskFullError(path=replica.log.path, reason=reason)
        group = AppendBatch(replica.log, time_ms)
        answer = group.process(request)
        if isinstance(answer, Failed):
            assert isinstance(answer.error, AppendError), "no other failure is possible"
            raise answer.error
        group.write()
        assert isinstance(answer.value, AppendResult), "the request is an append"
        return answer.value.base_offset

    def resign(self, epoch: int) -> None:
        resign = Resign(epoch)
        self._act(
            lambda now_ms, time_ms: self._replica.step(resign, now_ms=now_ms, time_ms=time_ms)
        )

    def begin_snapshot(self, end_offset: int) -> SnapshotWriter | None:
        return self._replica.begin_snapshot(end_offset, time_ms=self._time_ms())
