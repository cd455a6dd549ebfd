"""Committed end of a log, inferred from the copies of several voters.

No file of a voter has the high watermark, and a voter's log may end in uncommitted records. A
record that a majority has is in the log of every later leader, since a candidate needs the vote of
a voter that has it, unless the candidate's last epoch is later. That is figure 8 of the Raft paper:
a record of epoch 2 is on a majority, copied there by the leader of epoch 4, and is still lost if a
voter that led epoch 3 without it wins the next election, by its last epoch 3.

    voter 1   | e1 | e2 | e4 |
    voter 2   | e1 | e2 |
    voter 3   | e1 | e2 |              the record of e2 is on a majority
    voter 4   | e1 |
    voter 5   | e1 | e3 |              wins an election against voters 2, 3 and 4

So a record of epoch e counts as committed only if both hold:

- A majority of the voters has it, and no given log with a later epoch lacks it.
- Each epoch after e and below the latest known epoch (a voter's ``quorum-state`` has the epoch of
  its last vote) is in a given log that has the record. Or all voters' logs are given, and no epoch
  changed while they were read.

Why the second condition suffices: let f be the first epoch after e whose leader lacks the record. A
voter of the given majority voted for it, so it did not have the record yet and got it in an epoch
after f, before its log was read. So f is between e and the latest known epoch, and no log with the
record contains f, since its leader lacks the record.

A snapshot contains committed records only (KIP-630), so all records below its end are committed.
Two logs with the same epoch at the same offset are equal up to it (Raft's log matching), so only
leader epochs are compared. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from raftlog.errors import TooFewVotersError
from raftlog.types import ZERO_UUID, ReplicaKey, SnapshotId

from .epoch_cache import EpochCache


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLogState:
    """Log of one replica, as it was read.

    ``known_epoch``: the latest epoch in the node's files, read after its log. ``is_quiet``: it was
    the same before the logs were read.
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
        """Epoch of the last record; that of the newest snapshot if the log has no record."""
        if self.log_end_offset > self.log_start_offset:
            return self.epochs.epoch_at(self.log_end_offset - 1) or 0
        return self.newest_snapshot.epoch if self.newest_snapshot else 0


@dataclass(frozen=True, slots=True)
class MajorityEnd:
    """Committed end (exclusive), the node ids whose logs were counted, and an explanation."""

    offset: int
    counted: tuple[int, ...]
    explanation: str


def is_voter(copy: ReplicaLogState, voters: Iterable[ReplicaKey]) -> bool:
    """Return whether a copy is that of a voter, by node id and by directory id if both are known.

    A node with a replaced disk has another directory id: it is no voter until it is added again
    (KIP-853).
    """
    return any(
        voter.node_id == copy.node_id
        and (voter.directory_id == ZERO_UUID or copy.directory_id in (None, voter.directory_id))
        for voter in voters
    )


def most_up_to_date(copies: Sequence[ReplicaLogState]) -> ReplicaLogState:
    """Return the copy that wins an election among these: greatest last epoch, then longest log.

    Among the copies of a majority it has every committed record.
    """
    return max(copies, key=lambda copy: (copy.last_epoch, copy.log_end_offset))


def agreed_end(one: ReplicaLogState, other: ReplicaLogState) -> int:
    """Return the offset up to which two logs are equal (exclusive); 0 if no epoch is in both."""
    common = {entry.epoch for entry in one.epochs.entries} & {
        entry.epoch for entry in other.epochs.entries
    }
    if not common:
        return 0
    epoch = max(common)
    ends = []
    for copy in (one, other):
        end = copy.epochs.end_offset_for(epoch, copy.log_end_offset)
        assert end is not None, "a common epoch has an end in both logs"
        ends.append(end.offset)
    return min(ends)


def majority_end(copies: Sequence[ReplicaLogState], voters: tuple[ReplicaKey, ...]) -> MajorityEnd:
    """Return the committed end by the copies of a majority of ``voters``.

    Copies of observers are not counted, but may contradict it. Raises ``TooFewVotersError``.
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
    explanation = _describe_counted(counted, voters)
    if not _is_certain(offset, newest, counted, copies, voters):
        explanation += (
            f"; they agree up to offset {offset}, but a leader of an epoch that is in none of "
            "these logs may have truncated it: only a snapshot counts"
        )
        offset = 0
    proved = max(
        (copy.newest_snapshot.end_offset for copy in counted if copy.newest_snapshot), default=0
    )
    if proved > offset:
        explanation += f"; a snapshot proves that all records below {proved} are committed"
        offset = proved
    return MajorityEnd(offset, tuple(copy.node_id for copy in counted), explanation)


def common_end(copies: Sequence[ReplicaLogState]) -> MajorityEnd:
    """Return the end up to which all copies are equal, for a partition without voters.

    Records that all in-sync replicas have are committed (Kafka's high watermark).
    """
    newest = most_up_to_date(copies)
    explanation = (
        f"the records that all {len(copies)} copies have: committed if they include all in-sync "
        "replicas"
    )
    offset = newest.log_end_offset
    for copy in copies:
        agreed = agreed_end(newest, copy) if copy.epochs.entries else copy.log_end_offset
        offset = min(offset, agreed)
        if agreed < min(newest.log_end_offset, copy.log_end_offset):
            epochs = [one.epochs.epoch_at(agreed) for one in (newest, copy)]
            explanation += (
                f"; {copy.path} diverges at offset {agreed}: epoch {epochs[1]} where "
                f"{newest.path} has epoch {epochs[0]}"
            )
    return MajorityEnd(offset, tuple(copy.node_id for copy in copies), explanation)


def _one_per_voter(copies: list[ReplicaLogState]) -> list[ReplicaLogState]:
    """Return one copy per voter; of two with one node id, the less up-to-date one."""
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
    """Return the greatest end <= ``offset`` that no log with a later last epoch contradicts."""
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
    """Return whether no leader of an unknown epoch can lack the record before ``offset``."""
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
    return (
        f"the records that a majority of the voters ({all_of_them}) has, by the logs of {given}: "
        "committed"
    )
