"""A quorum's log as a state machine on one of its nodes uses it: append in an epoch, resign.

Rules of this file:

1. What is placed is not committed: a listener is given it back when it is. If it hears of another
   leader first, what it has placed and not got back may come to be committed later, or never.
2. An append names the epoch in which its author was told to lead, and so is refused if anybody has
   been elected since. Nothing of a refused append is in the log.

Kafka: ``RaftClient.scheduleAppend``, ``scheduleAtomicAppend``, ``resign``, ``createSnapshot``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

from raftlog.client.append_batch import AppendBatch
from raftlog.client.requests import AppendRequest, AppendResult, Failed
from raftlog.errors import (
    AppendError,
    DiskFullError,
    FutureEpochError,
    LogClosedError,
    NotLeaderError,
)
from raftlog.log.writing.snapshot_writer import SnapshotWriter
from raftlog.quorum.events import Resign

from .replica import Outgoing, Replica

Act: TypeAlias = Callable[[Callable[[int, int], list[Outgoing]]], None]


class RaftClient(Protocol):
    """What a state machine may ask of the log."""

    @property
    def node_id(self) -> int: ...

    def append(
        self, epoch: int, records: Sequence[bytes], *, required_base_offset: int | None = None
    ) -> int:
        """Place records in one batch; the offset of the first one. All of them or none.

        Raises ``NotLeaderError`` (another epoch has begun, or this node does not lead),
        ``FutureEpochError`` (the caller's bug), ``UnexpectedEndOffsetError`` (the log ends
        elsewhere), ``RecordBatchTooLargeError``, ``DiskFullError``.
        """
        ...

    def resign(self, epoch: int) -> None:
        """Stop leading ``epoch``; nothing, if it is over already."""
        ...

    def begin_snapshot(self, end_offset: int) -> SnapshotWriter | None:
        """Begin a snapshot of the state that the records below ``end_offset`` give.

        As ``ReplicatedLog.begin_snapshot``.
        """
        ...


class ReplicaRaftClient:
    """A replica's log, for state machines beside it. On the thread that drives the replica."""

    def __init__(self, replica: Replica, act: Act, time_ms: Callable[[], int]) -> None:
        """``act`` calls what it is given with the quorum's time and the time of day, and carries
        out what comes back, before it returns; ``time_ms`` is the time of day."""
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

        def place(now_ms: int, time_ms: int) -> list[Outgoing]:
            try:
                outcome.append(self._place(epoch, request, time_ms))
            except (AppendError, DiskFullError) as refusal:
                outcome.append(refusal)
                return []
            return self._replica.appended(now_ms=now_ms, time_ms=time_ms)

        self._act(place)
        if not outcome:
            raise LogClosedError(path=self._replica.log.path, reason="its replica has ended")
        if not isinstance(outcome[0], int):
            raise outcome[0]
        return outcome[0]

    def _place(self, epoch: int, request: AppendRequest, time_ms: int) -> int:
        replica = self._replica
        current = replica.core.epoch
        if epoch > current:
            raise FutureEpochError(epoch=epoch, current_epoch=current)
        if epoch < current or not replica.core.is_leader:
            raise NotLeaderError(epoch=epoch, current_epoch=current)
        if replica.is_stalled_on_disk_full:
            reason = "not even the begin of its epoch could be written"
            raise DiskFullError(path=replica.log.path, reason=reason)
        group = AppendBatch(replica.log, time_ms)
        answer = group.process(request)
        if isinstance(answer, Failed):
            assert isinstance(answer.error, AppendError), "a group places or refuses"
            raise answer.error
        group.write()
        assert isinstance(answer.value, AppendResult), "an append was asked for"
        return answer.value.base_offset

    def resign(self, epoch: int) -> None:
        resign = Resign(epoch)
        self._act(
            lambda now_ms, time_ms: self._replica.step(resign, now_ms=now_ms, time_ms=time_ms)
        )

    def begin_snapshot(self, end_offset: int) -> SnapshotWriter | None:
        return self._replica.begin_snapshot(end_offset, time_ms=self._time_ms())
