"""Hosts of state machines in these tests: a real replica, or the shared log.

Both are a single node, 1, that can lead; other nodes are not observed.
"""

from __future__ import annotations

from typing import Protocol

from raftlog.node.raft_client import RaftClient, RaftListener
from tests.support.one_replica import OneReplica
from tests.support.shared_log import SharedLog


class Host(Protocol):
    @property
    def log(self) -> RaftClient: ...

    @property
    def epoch(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    def register(self, listener: RaftListener) -> None: ...

    def elect(self) -> None:
        """Elect this node in the next epoch."""

    def hold(self) -> None:
        """Commit nothing from now on."""

    def release(self) -> None:
        """Commit everything, and all later appends."""

    def delete_before(self, end_offset: int) -> None:
        """Write a snapshot if necessary, and start the log at its end."""

    def settle(self) -> None:
        """Deliver all pending notifications."""

    def shut_down(self) -> None: ...


class ReplicaHost:
    """Replica that is the only voter."""

    def __init__(self) -> None:
        self.one = OneReplica()

    @property
    def log(self) -> RaftClient:
        return self.one.log

    @property
    def epoch(self) -> int:
        return self.one.replica.core.epoch

    @property
    def end_offset(self) -> int:
        return self.one.replica.log.end_offset

    def register(self, listener: RaftListener) -> None:
        self.one.register(listener)

    def elect(self) -> None:
        self.one.elect()

    def hold(self) -> None:
        self.one.is_held = True

    def release(self) -> None:
        self.one.release()

    def delete_before(self, end_offset: int) -> None:
        self.one.snapshot(end_offset)
        self.one.poll()

    def settle(self) -> None:
        self.one.poll()

    def shut_down(self) -> None:
        self.one.shut_down()


class SharedHost:
    """Node over the shared log."""

    def __init__(self) -> None:
        self.shared = SharedLog()
        self.node = self.shared.node(1)

    @property
    def log(self) -> RaftClient:
        return self.node

    @property
    def epoch(self) -> int:
        return self.shared.epoch

    @property
    def end_offset(self) -> int:
        return self.shared.end_offset

    def register(self, listener: RaftListener) -> None:
        self.node.register(listener)
        self.shared.deliver()

    def elect(self) -> None:
        self.shared.elect(1)
        self.shared.deliver()

    def hold(self) -> None:
        self.shared.committed_max = self.shared.end_offset

    def release(self) -> None:
        self.shared.committed_max = None
        self.shared.deliver()

    def delete_before(self, end_offset: int) -> None:
        writer = self.shared.begin_snapshot(end_offset)
        if writer is not None:
            with writer:
                writer.freeze()
        (snapshot_id,) = (one for one in self.shared.snapshots if one.end_offset == end_offset)
        self.shared.delete_before(snapshot_id)
        self.shared.deliver()

    def settle(self) -> None:
        self.shared.deliver()

    def shut_down(self) -> None:
        self.node.shut_down()
        self.shared.deliver()
