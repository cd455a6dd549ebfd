"""PartitionChangeRecord of one change: leader election, ISR, ELR and reassignment.

1. A record has only the fields that change. A leader in the record increments the leader epoch,
   even if it is the current leader, which fences a removed replica.
2. The leader is elected from the ISR or, if that is empty, from the ELR (KIP-966). It is elected
   from other replicas only in an unclean election.
3. A reassignment completes with the change that adds its last new replica to the ISR. If it reduces
   the number of replicas, it waits until all remaining replicas are in the ISR, so that it does not
   shrink the ISR::

       replicas 1 2 3 -> 3 4
       start       replicas 3 4 1 2   adding 4   removing 1 2   isr 1 2 3
       complete    replicas 3 4       adding     removing       isr 3 4     after isr 1 2 3 4

Source: Kafka 4.3 ``PartitionChangeBuilder``, ``PartitionReassignmentReplicas``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from raftlog_state.image import PartitionRow
from raftlog_state.image.record_versions import LEVEL_NO_EPOCH_BUMP, RecordVersions
from raftlog_state.records import PartitionChangeRecord
from raftlog_state.replay.topics import LEADER_UNCHANGED, RECOVERY_UNCHANGED

from .controller_state import NO_LEADER

T = TypeVar("T")

RECOVERED: Final = 0
RECOVERING: Final = 1


class Election(enum.Enum):
    """Kind of a leader election (Kafka: ``PartitionChangeBuilder.Election``)."""

    PREFERRED = "preferred"
    ONLINE = "online"
    UNCLEAN = "unclean"


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionContext:
    """State of the cluster that a partition change depends on.

    ``is_acceptable_leader``: whether a broker is active and the replica's directory online.
    ``default_directory``: directory in which a broker creates a new replica.
    ``min_isr``: effective min.insync.replicas, at most the replication factor.
    """

    versions: RecordVersions
    is_acceptable_leader: Callable[[int], bool]
    default_directory: Callable[[int], str]
    min_isr: int


@dataclass(slots=True, kw_only=True)
class Target:
    """Target of a partition change; None: no change. ``directory``: one broker replica's."""

    isr: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    removing: tuple[int, ...] | None = None
    adding: tuple[int, ...] | None = None
    recovery: int | None = None
    election: Election = Election.ONLINE
    unclean_shutdown: tuple[int, ...] = ()
    directory: tuple[int, str] | None = None


def partition_change(
    row: PartitionRow, target: Target, context: ElectionContext
) -> PartitionChangeRecord | None:
    """Return the record that changes a partition to its target; None if nothing changes."""
    return _PartitionChangeBuilder(row, target, context).build()


class _PartitionChangeBuilder:
    def __init__(self, row: PartitionRow, target: Target, context: ElectionContext) -> None:
        self._row = row
        self._context = context
        self._elr_enabled = context.versions.elr
        self._election = target.election
        self._unclean_shutdown = target.unclean_shutdown
        self._directory = target.directory
        self._recovery = _coalesce(target.recovery, row.leader_recovery_state)
        self._isr = _coalesce(target.isr, row.isr)
        self._replicas = _coalesce(target.replicas, row.replicas)
        self._removing = _coalesce(target.removing, row.removing_replicas)
        self._adding = _coalesce(target.adding, row.adding_replicas)
        self._elr = row.elr
        # fields of the record
        self._new_leader = LEADER_UNCHANGED
        self._new_isr: tuple[int, ...] | None = None
        self._new_recovery = RECOVERY_UNCHANGED
        self._new_elr: tuple[int, ...] | None = None
        self._new_last_known_elr: tuple[int, ...] | None = None

    def build(self) -> PartitionChangeRecord | None:
        row = self._row
        self._complete_reassignment()
        self._populate_target_elr()
        self._try_election()
        if self._new_leader == LEADER_UNCHANGED and not _contains_all(self._replicas, row.replicas):
            self._new_leader = row.leader
        self._set_elr()
        is_allowed = bool(self._isr) or self._elr_enabled
        if self._new_isr is None and is_allowed and self._isr != row.isr:
            self._new_isr = self._isr
        self._bump_leader_epoch_for_isr_shrink()
        self._update_last_known_leader()
        if self._recovery != row.leader_recovery_state:
            self._new_recovery = self._recovery
        record = PartitionChangeRecord(
            partition_id=row.partition_id,
            topic_id=row.topic_id,
            isr=self._new_isr,
            leader=self._new_leader,
            replicas=_if_changed(self._replicas, row.replicas) if self._replicas else None,
            removing_replicas=_if_changed(self._removing, row.removing_replicas),
            adding_replicas=_if_changed(self._adding, row.adding_replicas),
            leader_recovery_state=self._new_recovery,
            directories=self._directories(),
            eligible_leader_replicas=self._new_elr,
            last_known_elr=self._new_last_known_elr,
        )
        nothing = PartitionChangeRecord(partition_id=row.partition_id, topic_id=row.topic_id)
        return None if record == nothing else record

    def _complete_reassignment(self) -> None:
        if not self._removing and not self._adding:
            return
        isr = _without(self._isr, self._removing)
        replicas = _without(self._replicas, self._removing)
        if self._removing and (not isr or not replicas):
            return
        is_waiting = not _contains_all(isr, self._adding)
        if len(self._adding) < len(self._removing):
            is_waiting = is_waiting or not _contains_all(isr, replicas)
        if is_waiting:
            return
        self._isr, self._replicas = isr, replicas
        self._removing = self._adding = ()

    def _populate_target_elr(self) -> None:
        if not self._elr_enabled:
            return
        if len(self._isr) >= self._context.min_isr:
            self._elr = ()
            return
        candidates = {*self._elr, *self._row.isr}
        removed = {*self._isr, *self._unclean_shutdown}
        self._elr = tuple(sorted(candidates - removed))

    # --- leader election --------------------------------------------------------------------------

    def _try_election(self) -> None:
        leader, is_unclean = self._elect_leader()
        if leader == self._row.leader:
            return
        if leader in self._elr:
            self._isr = (leader,)
            self._elr = _without(self._elr, self._isr)
        self._new_leader = leader
        if is_unclean:
            self._new_isr = (leader,)
            if self._row.leader_recovery_state != RECOVERING:
                self._new_recovery = RECOVERING

    def _elect_leader(self) -> tuple[int, bool]:
        preferred = self._replicas[:1] if self._election is Election.PREFERRED else ()
        for leader in (*preferred, self._row.leader, *self._replicas):
            if self._is_valid_new_leader(leader):
                return leader, False
        if self._can_elect_last_known_leader():
            return self._row.last_known_elr[0], True
        if self._election is Election.UNCLEAN:
            for leader in self._replicas:
                if self._context.is_acceptable_leader(leader):
                    return leader, True
        return NO_LEADER, False

    def _is_valid_new_leader(self, replica: int) -> bool:
        is_eligible = replica in self._isr or (not self._isr and replica in self._elr)
        return is_eligible and self._context.is_acceptable_leader(replica)

    def _can_elect_last_known_leader(self) -> bool:
        """Return whether ISR and ELR are empty and the last known leader is available (KIP-966)."""
        if not self._elr_enabled or self._elr or self._isr:
            return False
        known = self._row.last_known_elr
        if len(known) != 1 or known[0] not in self._replicas:  # it has been reassigned since
            return False
        return self._context.is_acceptable_leader(known[0])

    # --- fields of the record ---------------------------------------------------------------------

    def _set_elr(self) -> None:
        if self._new_isr is not None or not self._elr_enabled:
            self._elr = ()
        self._new_elr = _if_changed(self._elr, self._row.elr)

    def _bump_leader_epoch_for_isr_shrink(self) -> None:
        if self._context.versions.level >= LEVEL_NO_EPOCH_BUMP:
            return
        if self._new_leader != LEADER_UNCHANGED or self._new_isr is None:
            return
        if not _contains_all(self._new_isr, self._row.isr):
            self._new_leader = self._row.leader

    def _update_last_known_leader(self) -> None:
        if not self._elr_enabled:
            return
        known = self._row.last_known_elr
        if self._new_leader == NO_LEADER and not known:
            self._new_last_known_elr = (self._row.leader,)
        elif self._new_leader >= 0 and known:
            self._new_last_known_elr = ()

    def _directories(self) -> tuple[str, ...] | None:
        if not self._replicas or not self._context.versions.directories:
            return None
        row = self._row
        known = dict(zip(row.replicas, row.directories, strict=True))
        if self._directory is not None:
            known.update([self._directory])
        found = tuple(
            known[replica] if replica in known else self._context.default_directory(replica)
            for replica in self._replicas
        )
        return _if_changed(found, row.directories)


def _coalesce(value: T | None, default: T) -> T:
    return default if value is None else value


def _if_changed(now: tuple[T, ...], before: tuple[T, ...]) -> tuple[T, ...] | None:
    return None if now == before else now


def _contains_all(some: Collection[int], all_of: Iterable[int]) -> bool:
    return set(all_of) <= set(some)


def _without(some: tuple[int, ...], removed: Collection[int]) -> tuple[int, ...]:
    return tuple(one for one in some if one not in removed)
