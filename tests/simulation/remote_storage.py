"""Remote storage of a simulated cluster: one store, whose requests fail at random.

Invariant: each offset from the start of a node's log to its high watermark can be read, from its
local segments or from the store, and has the committed bytes. Without retention the start is 0.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from raftlog.errors import RaftlogError
from raftlog.log.remote.manifest import RemoteLogManifest, Surroundings
from raftlog.log.writing.quorum_log import QuorumLog
from raftlog.node.raft_node import RemoteStorage
from raftlog.records.batch import TornTail, read_batch
from raftlog.storage.errors import RemoteObjectNotFoundError, RemoteStorageError
from raftlog.storage.objects import ObjectStore, StorageObjects, StoredObject
from raftlog.storage.protocol import ReadableFile
from tests.simulated_disk.simulated_disk import SimulatedDisk

from .driven_node import TIME_MS
from .invariants import InvariantViolationError

if TYPE_CHECKING:
    from .cluster import Cluster
    from .node import Node

URI: Final = "/remote"
CLEAN_INTERVAL_MS: Final = 400
FAILURE_RATE: Final = 0.02
_BYTES: Final = 20_000


class FlakyStore:
    """Store of a cluster; a write or deletion that fails may have taken place."""

    def __init__(self, tier: SimulatedTier, objects: ObjectStore) -> None:
        self._tier = tier
        self._objects = objects
        self.location = objects.location

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        self._tier.may_fail(name)
        self._objects.put(name, chunks)
        self._tier.may_fail(name)

    def delete(self, name: str) -> None:
        self._tier.may_fail(name)
        self._objects.delete(name)
        self._tier.may_fail(name)

    def open_object(self, name: str) -> ReadableFile:
        self._tier.may_fail(name)
        return self._objects.open_object(name)

    def list_objects(self, directory: str) -> list[StoredObject]:
        self._tier.may_fail(directory)
        return self._objects.list_objects(directory)


class SimulatedTier:
    """Object store of a cluster, and the invariant of what its nodes have there."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._disk = SimulatedDisk(cluster.world.seed)
        self._chance = cluster.world.chance("remote storage")
        self.failure_rate = FAILURE_RATE
        self.access: Final = RemoteStorage(
            lambda _: FlakyStore(self, self._objects()),
            Surroundings(
                now_ms=lambda: TIME_MS + cluster.world.now_ms,
                new_id=lambda: base64.urlsafe_b64encode(self._chance.randbytes(16)).decode()[:22],
                new_partition=lambda: self._chance.randrange(2**31),
            ),
            reader_threads=1,
            reader_max_pending_tasks=1,
            fetch_max_wait_ms=1_000,
        )

    def _objects(self) -> StorageObjects:
        return StorageObjects(self._disk, URI)

    def may_fail(self, name: str) -> None:
        """Raise ``RemoteStorageError`` at random."""
        if self._chance.random() < self.failure_rate:
            self._cluster.count("remote request failed")
            raise RemoteStorageError(location=URI, name=name, reason="the simulation fails it")

    def draw_us(self) -> int:
        """Return the time between the steps of a run."""
        return self._chance.randrange(1_000, 400_000)

    def check(self, node: Node, *, start_offset: int | None = None) -> None:
        """Read what a node has in the store, from the start of its log; ``start_offset``: where
        that must be. Raises ``InvariantViolationError``."""
        assert node.replica is not None
        log = node.replica.log
        at = log.earliest_offset
        if start_offset is not None and at != start_offset:
            raise InvariantViolationError(
                f"the log of node {node.node_id} starts at {at}, not at {start_offset}"
            )
        if at is not None and at < log.log_start_offset:
            self._cluster.count("remote segments read")
            self._read(node, log, at)

    def _start_after_deletion(self, node: Node, at: int, error: RaftlogError) -> int:
        """Return the start of the manifest, if retention has deleted what a node still lists: its
        run has read the manifest before. Raises ``InvariantViolationError`` otherwise."""
        ranges = RemoteLogManifest(self._objects()).ranges.values()
        start = min((one.metadata.first_offset for one in ranges), default=at)
        if start <= at:
            raise InvariantViolationError(
                f"remote objects exist: node {node.node_id} at {at}: {error}"
            )
        self._cluster.count("remote segment deleted before it was read")
        return start

    def _read(self, node: Node, log: QuorumLog, at: int) -> None:
        witness, local_start = self._cluster.witness, log.log_start_offset
        reader = log.remote.open_reader(lambda _: self._objects())
        while at < local_start:
            try:
                data = reader.read_bytes(at, _BYTES)
            except RemoteObjectNotFoundError as error:
                at = self._start_after_deletion(node, at, error)
                continue
            except RaftlogError as error:
                raise InvariantViolationError(
                    f"remote offsets can be read: node {node.node_id} at {at}: {error}"
                ) from error
            position, begun = 0, at
            while at < local_start and not isinstance(
                batch := read_batch(data, position), TornTail
            ):
                known = witness.by_base.get(batch.base_offset)
                end = position + batch.byte_count
                if known is None or witness.history[known].data != data[position:end]:
                    raise InvariantViolationError(
                        f"remote bytes are committed: node {node.node_id} differs at {at}"
                    )
                at, position = batch.next_offset, end
            if at == begun:
                raise InvariantViolationError(
                    f"remote offsets can be read: node {node.node_id} has none at {at}"
                )
