"""Invariants of a cluster, checked after every event.

1. A node's log is inspected where possible, rather than the node's own view of it.
2. The names are those of the guarantees: the first violation ends the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from raftlog.log.writing.quorum_log import QuorumLog
from raftlog.quorum.voters import VoterSet
from raftlog.records.batch import TornTail, read_batch
from raftlog.types import ReplicaKey

LOOK_BYTES: Final = 16_384


class InvariantViolationError(AssertionError):
    """An invariant that does not hold."""


@dataclass(slots=True)
class Committed:
    """Batch of the committed history."""

    base_offset: int
    next_offset: int
    epoch: int
    data: bytes


@dataclass(slots=True)
class Witness:
    """Committed history of a cluster, as an outside observer sees it."""

    history: list[Committed] = field(default_factory=list)
    by_base: dict[int, int] = field(default_factory=dict)
    commits: list[tuple[int, int]] = field(default_factory=list)
    """One entry per growth of the history: the epoch of the leader that committed it, and its end.
    A leader commits by a record of its own epoch, so its epoch is that of the last record.
    """
    leaders: dict[int, tuple[int, int]] = field(default_factory=dict)
    votes: dict[tuple[ReplicaKey, int], ReplicaKey] = field(default_factory=dict)
    """By replica and epoch. A disk that was formatted again is another replica."""
    epochs: dict[ReplicaKey, int] = field(default_factory=dict)
    high_watermarks: dict[tuple[int, int], int] = field(default_factory=dict)
    durable_ends: dict[ReplicaKey, int] = field(default_factory=dict)
    """By replica: the durable end of its log at its last check."""
    reported: dict[int, int] = field(default_factory=dict)
    """By node: the end of the history that its log has shown."""

    @property
    def end_offset(self) -> int:
        """Return the end of the committed history; it never decreases."""
        return self.history[-1].next_offset if self.history else 0

    def saw_leader(self, node_id: int, life: int, epoch: int, log: QuorumLog) -> None:
        """Check a new leader: one leader per epoch over all history, restarts included, with all
        records committed up to that epoch. A later leader may have committed more if the start of
        this epoch was delayed, for example by a full disk.
        """
        found = self.leaders.setdefault(epoch, (node_id, life))
        if found != (node_id, life):
            raise InvariantViolationError(
                f"one leader an epoch: epoch {epoch} was led by {found}, now by {(node_id, life)}"
            )
        end_offset = self._committed_up_to(epoch)
        if log.end_offset < end_offset:
            raise InvariantViolationError(
                f"leader completeness: node {node_id} leads epoch {epoch} with the end offset "
                f"{log.end_offset}, and {end_offset} was committed by then"
            )
        self._compare_with_history(node_id, log, end_offset)

    def _committed_up_to(self, epoch: int) -> int:
        """Return the end that leaders of this epoch and of earlier ones committed."""
        return next((end for of, end in reversed(self.commits) if of <= epoch), 0)

    def saw_vote(self, voter: ReplicaKey, epoch: int, candidate: ReplicaKey) -> None:
        """Check a vote: one per epoch, restarts included."""
        found = self.votes.setdefault((voter, epoch), candidate)
        if found.matches(candidate):  # a vote without a directory id belongs to the first candidate
            self.votes[voter, epoch] = candidate
        else:
            raise InvariantViolationError(
                f"one vote an epoch: {voter} voted for {found} and {candidate} in {epoch}"
            )

    def saw_epoch(self, replica: ReplicaKey, epoch: int) -> None:
        """Check that stored epochs never decrease."""
        if epoch < self.epochs.get(replica, 0):
            raise InvariantViolationError(f"epochs never fall: {replica} has {epoch} again")
        self.epochs[replica] = epoch

    def forget(self, replica: ReplicaKey) -> None:
        """Handle a reformatted disk: an observer without a directory id starts again as itself."""
        self.epochs.pop(replica, None)

    def saw_fetch(self, node_id: int, offset: int, log: QuorumLog) -> None:
        """Check that a fetch acknowledges durable records only."""
        if offset > log.synced_end_offset:
            raise InvariantViolationError(
                f"durable before promised: node {node_id} fetches from {offset}, and its log is "
                f"synced up to {log.synced_end_offset}"
            )

    def saw_high_watermark(self, node_id: int, life: int, offset: int, log: QuorumLog) -> None:
        """Check an increased high watermark; records below it are equal everywhere and final."""
        before = self.high_watermarks.get((node_id, life), 0)
        if offset < before:
            raise InvariantViolationError(
                f"high watermarks never fall: node {node_id} {before} -> {offset}"
            )
        self.high_watermarks[node_id, life] = offset
        if offset > log.end_offset:
            raise InvariantViolationError(f"node {node_id}: the high watermark is beyond the log")
        at = max(self.reported.get(node_id, 0), log.log_start_offset)
        end_offset = self.end_offset
        self.reported[node_id] = self._take(node_id, at, offset, log)
        if self.end_offset > end_offset:
            self.commits.append((self.history[-1].epoch, self.end_offset))

    def saw_durable(self, replica: ReplicaKey, end_offset: int) -> None:
        """Note that the log of a replica is durable up to here, as its disk has confirmed."""
        self.durable_ends[replica] = end_offset

    def saw_commit(self, leader: ReplicaKey, offset: int, voter_sets: Sequence[VoterSet]) -> None:
        """Check that a leader's high watermark is durable on a majority of its voters: of the
        latest set, or of the previous one (Kafka: ``MajorityReachedHighWatermark``).
        """
        for voters in voter_sets:
            reached = [one for one in voters if self.durable_ends.get(one.key, 0) >= offset]
            if len(reached) >= voters.majority_count:
                return
        ends = {str(one.key): self.durable_ends.get(one.key) for one in voter_sets[0]}
        raise InvariantViolationError(
            f"a majority has reached the high watermark: {leader} commits {offset}, and the "
            f"voters' logs are durable up to {ends}"
        )

    def restarted(self, node_id: int) -> None:
        """Allow a restarted node to show its log from the start."""
        self.reported[node_id] = 0

    def check_history(self, node_id: int, log: QuorumLog) -> None:
        """Check that the committed records are in this log, byte by byte, from its start."""
        self._compare_with_history(node_id, log, self.end_offset)

    def _compare_with_history(self, node_id: int, log: QuorumLog, end_offset: int) -> None:
        end = min(end_offset, log.end_offset)
        self._take(node_id, log.log_start_offset, end, log)

    def _take(self, node_id: int, at: int, end: int, log: QuorumLog) -> int:
        """Compare the stored batches of [at, end) with the history, or add them to it."""
        data, position = b"", 0
        while at < end:
            if position >= len(data):
                data, position = log.read_stored_bytes(at, LOOK_BYTES), 0
            batch = read_batch(data, position)
            if isinstance(batch, TornTail) and position:
                data, position = b"", 0  # the previous check ended within it
                continue
            if isinstance(batch, TornTail) or batch.base_offset != at:
                raise InvariantViolationError(
                    f"node {node_id}: no whole batch is at the committed offset {at}"
                )
            if batch.next_offset > end:
                raise InvariantViolationError(
                    f"node {node_id}: a high watermark splits the batch at {at}"
                )
            found = data[position : position + batch.byte_count]
            if at == self.end_offset:
                self.by_base[at] = len(self.history)
                self.history.append(Committed(at, batch.next_offset, batch.leader_epoch, found))
            else:
                known = self.by_base.get(at)
                if known is None or self.history[known].data != found:
                    raise InvariantViolationError(
                        f"committed bytes never change: node {node_id} differs at {at}"
                    )
            at, position = batch.next_offset, position + batch.byte_count
        return at
