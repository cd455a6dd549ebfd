"""Reassignment of partitions, ISR changes and leader elections.

Source: Kafka ``ReplicationControlManager`` (alterPartitionReassignments, alterPartition,
electLeaders, generateLeaderAndIsrUpdates), ``PartitionReassignmentRevert``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from raftlog_state.image import BrokerRow, PartitionRow
from raftlog_state.image.rows import DIRECTORY_MIGRATING

from .api_exception import (
    ELECTION_NOT_NEEDED,
    ELIGIBLE_LEADERS_NOT_AVAILABLE,
    INELIGIBLE_REPLICA,
    INVALID_REPLICA_ASSIGNMENT,
    INVALID_REPLICATION_FACTOR,
    INVALID_REQUEST,
    NO_REASSIGNMENT_IN_PROGRESS,
    PREFERRED_LEADER_NOT_AVAILABLE,
    UNKNOWN_TOPIC_OR_PARTITION,
    ApiException,
)
from .change_requests import ElectLeader, ReassignPartition, SetIsr
from .configs import MIN_ISR
from .controller_state import NO_LEADER
from .dispatch import write
from .partition_change import (
    RECOVERED,
    Election,
    ElectionContext,
    Target,
    partition_change,
)
from .pending_state import PendingState
from .topics import DIRECTORY_UNASSIGNED, default_directory, topic_of, validate_assignment

DIRECTORY_LOST: Final = "AAAAAAAAAAAAAAAAAAAAAg"
"""Directory that is offline (Kafka: ``DirectoryId.LOST``)."""

UNCLEAN: Final = "unclean.leader.election.enable"


@write.register
def reassign_partition(change: ReassignPartition, state: PendingState) -> None:
    """Start or cancel the reassignment of a partition."""
    row = partition_of(change.topic, change.partition, state)
    if change.replicas is None:
        _write_change(row, _cancel_reassignment(row, state), state)
        return
    wanted = tuple(change.replicas)
    validate_assignment((wanted,), _describe(row), state, replication_factor=None)
    factor = len([one for one in row.replicas if one not in row.removing_replicas])
    if not change.allow_replication_factor_change and len(wanted) != factor:
        reason = f"The replication factor is changed from {factor} to {len(wanted)}"
        remedy = f"set allow_replication_factor_change, or give {factor} replicas"
        raise ApiException(_describe(row), reason, remedy, INVALID_REPLICATION_FACTOR)
    removing = tuple(sorted(set(row.replicas) - set(wanted)))
    adding = tuple(sorted(set(wanted) - set(row.replicas)))
    target = Target(replicas=(*wanted, *removing), removing=removing or None, adding=adding or None)
    _write_change(row, target, state)


@write.register
def set_isr(change: SetIsr, state: PendingState) -> None:
    """Set a partition's ISR; complete a reassignment that was waiting for it."""
    row = partition_of(change.topic, change.partition, state)
    reason, code = None, INVALID_REQUEST
    outside = sorted(set(change.isr) - set(row.replicas))
    ineligible = [one for one in change.isr if not state.current.is_active(one)]
    if row.leader == NO_LEADER:
        reason = "the partition has no leader, which must be in the ISR"
    elif outside:
        reason = f"invalid ISR: {outside} are not among the replicas {list(row.replicas)}"
    elif len(set(change.isr)) != len(change.isr):
        reason = "invalid ISR: a replica occurs more than once"
    elif row.leader not in change.isr:
        reason = f"invalid ISR: it does not include the leader {row.leader}"
    elif ineligible:
        reason = f"ineligible replicas {ineligible}: not registered, fenced or shutting down"
        code = INELIGIBLE_REPLICA
    if reason is not None:
        raise ApiException(_describe(row), reason, "list the in-sync replicas", code)
    election = Election.UNCLEAN if _allows_unclean(row, state) else Election.ONLINE
    target = Target(isr=tuple(change.isr), recovery=RECOVERED, election=election)
    _write_change(row, target, state)


@write.register
def elect_leader(change: ElectLeader, state: PendingState) -> None:
    """Elect the preferred leader, or any live replica in an unclean election."""
    row = partition_of(change.topic, change.partition, state)
    kind = change.election.lower()
    if kind not in (Election.PREFERRED.value, Election.UNCLEAN.value):
        reason = f"Unknown election type {change.election!r}"
        raise ApiException(_describe(row), reason, "use preferred or unclean")
    election = Election(kind)
    is_preferred = election is Election.PREFERRED
    if row.leader == row.replicas[0] if is_preferred else row.leader != NO_LEADER:
        reason = f"Leader election not needed for topic partition: the leader is {row.leader}"
        raise ApiException(_describe(row), reason, "leave the row out", ELECTION_NOT_NEEDED)
    if not _write_change(row, Target(election=election), state):
        reason = (
            "Eligible topic partition leaders are not available"
            if not is_preferred
            else f"The preferred leader {row.replicas[0]} was not available"
        )
        code = PREFERRED_LEADER_NOT_AVAILABLE if is_preferred else ELIGIBLE_LEADERS_NOT_AVAILABLE
        raise ApiException(_describe(row), reason, "unfence a replica's broker first", code)


def partition_of(topic: str, number: int, state: PendingState) -> PartitionRow:
    """Return a partition by its topic's name. Raises ``ApiException``."""
    row = state.current.find(PartitionRow, topic_of(topic, state).topic_id, number)
    if row is None:
        what = f"topic {topic!r} partition {number}"
        remedy = "correct the number, or add partitions first"
        reason = f"Unable to find partition {topic}:{number}"
        raise ApiException(what, reason, remedy, UNKNOWN_TOPIC_OR_PARTITION)
    return row


def update_leader_and_isr(
    rows: Iterable[PartitionRow],
    state: PendingState,
    *,
    broker_to_remove: int | None = None,
    broker_to_add: int | None = None,
    unclean: int | None = None,
) -> None:
    """Update partitions for a broker that is added or removed (generateLeaderAndIsrUpdates).

    ``broker_to_remove``: removed from the ISR, and not electable.
    ``broker_to_add``: electable, even if still fenced.
    ``unclean``: removed after an unclean shutdown, from the ELR too.
    """

    def is_acceptable(broker_id: int) -> bool:
        if broker_id in (broker_to_remove, unclean):
            return False
        return broker_id == broker_to_add or state.current.is_active(broker_id)

    for row in rows:
        target = Target(
            isr=tuple(one for one in row.isr if one not in (broker_to_remove, unclean)),
            election=Election.UNCLEAN if _allows_unclean(row, state) else Election.ONLINE,
            unclean_shutdown=() if unclean is None else (unclean,),
        )
        _write_change(row, target, state, is_acceptable)


# --- helpers --------------------------------------------------------------------------------------


def _describe(row: PartitionRow) -> str:
    return f"topic {row.topic_name!r} partition {row.partition_id}"


def _write_change(
    row: PartitionRow,
    target: Target,
    state: PendingState,
    is_acceptable: Callable[[int], bool] | None = None,
) -> bool:
    """Write the record of a change; return False if nothing changes."""
    is_alive = state.current.is_active if is_acceptable is None else is_acceptable
    directory_of = dict(zip(row.replicas, row.directories, strict=True))

    def is_acceptable_leader(broker_id: int) -> bool:
        directory = directory_of.get(broker_id, DIRECTORY_UNASSIGNED)
        return is_alive(broker_id) and _is_online(broker_id, directory, state)

    context = ElectionContext(
        versions=state.current.versions,
        is_acceptable_leader=is_acceptable_leader,
        default_directory=lambda broker_id: default_directory(broker_id, state),
        min_isr=_min_isr(row, state),
    )
    record = partition_change(row, target, context)
    if record is not None:
        state.write(record)
    return record is not None


def _cancel_reassignment(row: PartitionRow, state: PendingState) -> Target:
    if not row.adding_replicas and not row.removing_replicas:
        raise ApiException(
            _describe(row),
            "No partition reassignment is in progress",
            "set replicas to start one",
            NO_REASSIGNMENT_IN_PROGRESS,
        )
    replicas = tuple(one for one in row.replicas if one not in row.adding_replicas)
    isr = tuple(one for one in row.isr if one not in row.adding_replicas)
    allows_unclean = _allows_unclean(row, state)
    if not replicas or (not isr and not allows_unclean):
        raise ApiException(
            _describe(row),
            f"Unable to revert partition assignment for {row.topic_name}:{row.partition_id} "
            "because it would require an unclean leader election",
            f"wait until the reassignment completes, or set {UNCLEAN}=true",
            INVALID_REPLICA_ASSIGNMENT,
        )
    return Target(
        isr=isr or replicas[:1],
        replicas=replicas,
        removing=(),
        adding=(),
        election=Election.UNCLEAN if allows_unclean else Election.ONLINE,
    )


def _allows_unclean(row: PartitionRow, state: PendingState) -> bool:
    value = state.current.topic_config(row.topic_name, UNCLEAN)
    return value is not None and value.strip().lower() == "true"


def _min_isr(row: PartitionRow, state: PendingState) -> int:
    """Return min.insync.replicas, at most the replication factor of partition 0 (Kafka:
    ``getTopicEffectiveMinIsr``)."""
    value = (state.current.topic_config(row.topic_name, MIN_ISR) or "").strip()
    wanted = int(value) if value.isascii() and value.isdigit() else 1
    first = state.current.find(PartitionRow, row.topic_id, 0)
    return min(wanted, len(row.replicas if first is None else first.replicas))


def _is_online(broker_id: int, directory: str, state: PendingState) -> bool:
    """Source: Kafka ``DirectoryId.isOnline``."""
    if directory in (DIRECTORY_UNASSIGNED, DIRECTORY_MIGRATING):
        return state.current.find(BrokerRow, broker_id) is not None
    if directory == DIRECTORY_LOST:
        return False
    row = state.current.find(BrokerRow, broker_id)
    return row is not None and (not row.log_dirs or directory in row.log_dirs)
