"""Manual recovery of a stopped node that cannot vote: its log is damaged or its vote unknown.

Invariants:

1. Recovery holds the node's lock, and changes files only if the operator has accepted data loss.
   The log is not changed. What is lost is the guarantee that this node has every record that it
   acknowledged.
2. A second vote in the same epoch could elect two leaders. So the new epoch is above every epoch
   that can have had a leader since the log's last record: a replica ignores requests that are more
   than ``EPOCH_STEP_MAX`` epochs ahead (``ReplicaState.is_credible``).

Compare etcd's ``--force-new-cluster`` and Kafka's unclean leader election.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from raftlog.errors import CorruptFileError, NodeRunningError
from raftlog.limits import EPOCH_MAX, EPOCH_RESERVED_FROM, EPOCH_STEP_MAX
from raftlog.log.format.directory import NODE_LOCK_NAME, QuorumState
from raftlog.log.writing.quorum_log import QuorumLog
from raftlog.log.writing.segments import LogDirectory
from raftlog.quorum.effects import ElectionState
from raftlog.storage.local import PrivateLocalStorage
from raftlog.storage.protocol import WritableStorage

from .config import NodeConfig
from .control_values import quorum_state
from .formatting import partition_directory, read_identity


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecovery:
    """Reasons why a node does not vote. ``new_epoch``: the epoch for its new quorum-state."""

    end_offset: int
    out_of_election_reason: str | None
    election_problem: str | None
    new_epoch: int | None

    @property
    def votes(self) -> bool:
        """Return whether the node takes part in elections."""
        return self.out_of_election_reason is None and self.election_problem is None


def recover_node(config: NodeConfig, *, allows_data_loss: bool) -> NodeRecovery:
    """Inspect a stopped node's directory; if ``allows_data_loss``, return the node to elections.

    Returns the state before the recovery. Raises ``NodeRunningError``, the errors of
    ``read_identity``, and ``LogReadOnlyError`` if the log itself is damaged; then start the node,
    which truncates the log.
    """
    files = PrivateLocalStorage()
    read_identity(config, files)
    lock = files.try_lock(files.join(config.directory, NODE_LOCK_NAME))
    if lock is None:
        raise NodeRunningError(path=config.directory)
    with lock:
        path = partition_directory(files, config)
        found = _inspect(files, path)
        if allows_data_loss and not found.votes:
            _recover(LogDirectory(files, path), found)
        return found


def _inspect(files: WritableStorage, path: str) -> NodeRecovery:
    """Return why a node does not vote, from its log and its ``quorum-state``."""
    log = QuorumLog.open(files, path, now_ms=time.time_ns() // 1_000_000)
    try:
        if log.report.read_only is not None:
            raise log.report.read_only
        election, problem = None, None
        try:
            election = log.read_election_state()
        except CorruptFileError as error:
            problem = error.message()
        if election is None and problem is None and log.last_fetched_epoch:
            problem = "quorum-state is missing, but the log is not empty"
        if election is not None:
            problem = _epoch_problem(election, log.last_fetched_epoch)
        new_epoch = min(log.last_fetched_epoch + EPOCH_STEP_MAX // 2, EPOCH_MAX)
        return NodeRecovery(
            end_offset=log.end_offset,
            out_of_election_reason=log.out_of_election_reason(),
            election_problem=problem,
            new_epoch=None if problem is None else new_epoch,
        )
    finally:
        log.close()


def _epoch_problem(election: QuorumState, last_epoch: int) -> str | None:
    """Return why elections cannot continue from the stored epoch; None if they can."""
    epoch = election.leader_epoch
    if epoch < EPOCH_RESERVED_FROM or epoch <= last_epoch + EPOCH_STEP_MAX:
        return None
    return f"quorum-state has epoch {epoch}, but the last record of the log has {last_epoch}"


def _recover(directory: LogDirectory, found: NodeRecovery) -> None:
    if found.new_epoch is not None:
        directory.write_quorum_state(quorum_state(ElectionState(epoch=found.new_epoch)))
    directory.rejoin_election()
