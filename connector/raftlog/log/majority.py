"""What a majority of the voters holds: the committed end, inferred from copies of their logs.

No file says what is committed; a voter's log may end in records that nobody else has. But a record
that a majority holds will be in the log of every later leader, since nobody is elected without the
vote of one who holds it, unless the candidate has a later epoch without it. That is figure 8 of the
Raft paper: a record of epoch 2 may lie on a majority and still be lost, if the leader of epoch 4
copied it there, and a voter that led epoch 3 without it wins the next election, since its last
epoch 3 is later than their 2. So a record of epoch e counts only if both hold:

- a majority of the voters holds it, and no log at hand that has a later epoch is without it;
- no unseen leader can stand between: every epoch after e and below the latest that any voter at
  hand knows of (its ``quorum-state`` says: a vote is written there) is seen in a log that holds the
  record. Or all voters are at hand, and were quiet while they were looked at.

Why the second suffices: take the first epoch whose leader lacks the record. One of the majority at
hand voted for it, so did not hold the record then, and copied it in a still later epoch, before its
log was looked at. So that epoch lies strictly between e and the latest one known; and no log with
the record shows it, for its leader lacks the record.

A snapshot is made of committed records only (KIP-630), so all below its end is committed anyway.

Rules of this file:

1. Pure: copies come in as facts; no file is touched.
2. Two logs that have the same epoch at the same offset are equal up to it (Raft's log matching).
   So lineages are compared, never records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from raftlog.errors import TooFewVotersError
from raftlog.types import ZERO_UUID, ReplicaKey, SnapshotId

from .epoch_cache import EpochCache


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLogState:
    """One node's copy of the log, as it was looked at.

    ``known_epoch``: the latest epoch that the node is known to have taken part in, read after its
    log was. ``is_quiet``: it was the same before the logs were looked at.
    """

    path: str
    node_id: int
    directory_id: str | None
    log_start_offset: int
    log_end_offset: int
    epochs: EpochCache
    newest_snapshot: SnapshotId | None
    known_epoch: int
    is_quiet: bool

    @property
    def last_epoch(self) -> int:
        """The epoch of its last record; of its newest snapshot if it holds no record."""
        if self.log_end_offset > self.log_start_offset:
            return self.epochs.epoch_at(self.log_end_offset - 1) or 0
        return self.newest_snapshot.epoch if self.newest_snapshot else 0


@dataclass(frozen=True, slots=True)
class MajorityEnd:
    """The committed end (exclusive), who was counted, and in words why it lies there."""

    offset: int
    counted: tuple[int, ...]
    explanation: str


def is_voter(copy: ReplicaLogState, voters: Iterable[ReplicaKey]) -> bool:
    """Whether a copy is that of a voter: by node id, and by directory where both are known.

    A node whose disk was replaced has another directory, and is no voter until it is added again
    (KIP-853).
    """
    return any(
        voter.node_id == copy.node_id
        and (voter.directory_id == ZERO_UUID or copy.directory_id in (None, voter.directory_id))
        for voter in voters
    )


def most_up_to_date(copies: Sequence[ReplicaLogState]) -> ReplicaLogState:
    """The copy that wins an election among these: by last epoch, then by length.

    Among copies of a majority it holds every committed record.
    """
    return max(copies, key=lambda copy: (copy.last_epoch, copy.log_end_offset))


def agreed_end(one: ReplicaLogState, other: ReplicaLogState) -> int:
    """The offset up to which two logs are equal (exclusive); 0 if they cannot be compared."""
    common = {entry.epoch for entry in one.epochs.entries} & {
        entry.epoch for entry in other.epochs.entries
    }
    if not common:
        return 0
    epoch = max(common)
    ends = []
    for copy in (one, other):
        end = copy.epochs.end_offset_for(epoch, copy.log_end_offset)
        assert end is not None, "an epoch of its own has an end"
        ends.append(end.offset)
    return min(ends)


def majority_end(copies: Sequence[ReplicaLogState], voters: tuple[ReplicaKey, ...]) -> MajorityEnd:
    """The end up to which a majority of ``voters`` holds the log, and nothing can take it back.

    Copies of observers are not counted, but may contradict. Raises ``TooFewVotersError``.
    """
    counted = _one_per_voter([copy for copy in copies if is_voter(copy, voters)])
    needed = len(voters) // 2 + 1
    if len(counted) < needed:
        raise TooFewVotersError(
            given=tuple(sorted(copy.node_id for copy in counted)),
            voters=tuple(sorted(voter.node_id for voter in voters)),
        )
    newest = most_up_to_date(counted)
    held = sorted((agreed_end(newest, copy) for copy in counted), reverse=True)
    offset = _exclude_contradicted(held[needed - 1], newest, copies)
    words = _describe_counted(counted, voters)
    if not _is_certain(offset, newest, counted, copies, voters):
        words += (
            f"; up to offset {offset} they agree, but a leader of an epoch that none of these logs "
            "shows might take it back, so only what a checkpoint proves is taken"
        )
        offset = 0
    proved = max(
        (copy.newest_snapshot.end_offset for copy in counted if copy.newest_snapshot), default=0
    )
    if proved > offset:
        words += f"; a checkpoint proves that everything below {proved} is committed"
        offset = proved
    return MajorityEnd(offset, tuple(copy.node_id for copy in counted), words)


def common_end(copies: Sequence[ReplicaLogState]) -> MajorityEnd:
    """The end up to which all copies agree: replicas of a partition that has no voters.

    What all in-sync replicas hold is committed (Kafka's high watermark).
    """
    newest = most_up_to_date(copies)
    words = f"what all {len(copies)} copies hold: committed if all in-sync replicas are among them"
    offset = newest.log_end_offset
    for copy in copies:
        agreed = agreed_end(newest, copy) if copy.epochs.entries else copy.log_end_offset
        offset = min(offset, agreed)
        if agreed < min(newest.log_end_offset, copy.log_end_offset):
            epochs = [one.epochs.epoch_at(agreed) for one in (newest, copy)]
            words += (
                f"; {copy.path} diverges at offset {agreed}: epoch {epochs[1]} where "
                f"{newest.path} has epoch {epochs[0]}"
            )
    return MajorityEnd(offset, tuple(copy.node_id for copy in copies), words)


def _one_per_voter(copies: list[ReplicaLogState]) -> list[ReplicaLogState]:
    """One copy a voter; of two that claim to be the same voter's, the one that is behind."""
    chosen: dict[int, ReplicaLogState] = {}
    for copy in copies:
        known = chosen.get(copy.node_id)
        chosen[copy.node_id] = (
            copy if known is None or most_up_to_date([known, copy]) is known else known
        )
    return [chosen[node_id] for node_id in sorted(chosen)]


def _exclude_contradicted(
    offset: int, newest: ReplicaLogState, copies: Sequence[ReplicaLogState]
) -> int:
    """Go back until every log with a later epoch than the last record's holds that record."""
    while offset > newest.log_start_offset:
        epoch = newest.epochs.epoch_at(offset - 1) or 0
        without = [
            agreed
            for copy in copies
            if copy.last_epoch > epoch and (agreed := agreed_end(newest, copy)) < offset
        ]
        if not without:
            return offset
        offset = min(without)
    return offset


def _is_certain(
    offset: int,
    newest: ReplicaLogState,
    counted: Sequence[ReplicaLogState],
    copies: Sequence[ReplicaLogState],
    voters: tuple[ReplicaKey, ...],
) -> bool:
    """Whether no leader that we have not seen can lack the record before ``offset``."""
    if len(counted) == len(voters) and all(copy.is_quiet for copy in counted):
        return True
    epoch = newest.epochs.epoch_at(offset - 1) or 0
    latest = max(copy.known_epoch for copy in counted)
    seen = {
        entry.epoch
        for copy in copies
        if agreed_end(newest, copy) >= offset
        for entry in copy.epochs.entries
        if epoch < entry.epoch < latest
    }
    return len(seen) == max(latest - epoch - 1, 0)


def _describe_counted(counted: Sequence[ReplicaLogState], voters: tuple[ReplicaKey, ...]) -> str:
    given = ", ".join(str(copy.node_id) for copy in counted)
    all_of_them = ", ".join(str(node_id) for node_id in sorted(voter.node_id for voter in voters))
    return f"what a majority of the voters ({all_of_them}) holds, by the logs of {given}: committed"
