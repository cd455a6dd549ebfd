"""Reassignment of partitions to other brokers.

Source: Kafka ``ReplicationControlManager`` (alterPartitionReassignments,
listPartitionReassignments), ``PartitionReassignmentReplicas``, ``PartitionReassignmentRevert``.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from raftlog_state.image import PartitionRow

from .api_exception import (
    INVALID_REPLICA_ASSIGNMENT,
    INVALID_REPLICATION_FACTOR,
    NO_REASSIGNMENT_IN_PROGRESS,
    ApiException,
)
from .change_requests import ReassignPartition
from .controller_state import ControllerState, is_reassigning
from .partition_change import Election, Target
from .partitions import (
    UNCLEAN,
    allows_unclean,
    check_partition_epoch,
    describe,
    partition_of,
    write_change,
)
from .pending_state import PendingState, write_in_steps
from .topics import validate_assignment


@dataclass(frozen=True, slots=True)
class Reassignment:
    """Replicas that a partition is to have; None cancels the reassignment in progress."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None


def alter_partition_reassignments(
    reassignments: Sequence[Reassignment],
    state: PendingState,
    *,
    allow_replication_factor_change: bool = True,
) -> Generator[None, None, list[ApiException | None]]:
    """Start and cancel reassignments; return the refusal of each one."""
    return state.attempt_each(
        partial(_reassign, one, allow_replication_factor_change, state) for one in reassignments
    )


def list_partition_reassignments(
    partitions: Iterable[tuple[str, int]], state: ControllerState
) -> list[PartitionRow]:
    """Return those of the given partitions that are being reassigned, in order.

    Partitions that do not exist are left out.
    """
    found: list[PartitionRow] = []
    for name, number in partitions:
        topic = state.topic(name)
        row = None if topic is None else state.find(PartitionRow, topic.topic_id, number)
        if row is not None and is_reassigning(row):
            found.append(row)
    return found


@write_in_steps.register
def reassign_partition(change: ReassignPartition, state: PendingState) -> None:
    """Start or cancel the reassignment of a partition."""
    row = partition_of(change.topic, change.partition, state)
    check_partition_epoch(row, change.partition_epoch)
    replicas = None if change.replicas is None else tuple(change.replicas)
    reassignment = Reassignment(change.topic, change.partition, replicas)
    _reassign(reassignment, change.allow_replication_factor_change, state)


# --- helpers --------------------------------------------------------------------------------------


def _reassign(
    change: Reassignment, allow_replication_factor_change: bool, state: PendingState
) -> None:
    row = partition_of(change.topic, change.partition, state)
    wanted = change.replicas
    if wanted is None:
        write_change(row, _cancel_reassignment(row, state), state)
        return
    validate_assignment((wanted,), describe(row), state, replication_factor=None)
    factor = len([one for one in row.replicas if one not in row.removing_replicas])
    if not allow_replication_factor_change and len(wanted) != factor:
        reason = f"The replication factor is changed from {factor} to {len(wanted)}"
        remedy = f"set allow_replication_factor_change, or give {factor} replicas"
        raise ApiException(describe(row), reason, remedy, INVALID_REPLICATION_FACTOR)
    removing = tuple(sorted(set(row.replicas) - set(wanted)))
    adding = tuple(sorted(set(wanted) - set(row.replicas)))
    target = Target(replicas=(*wanted, *removing), removing=removing or None, adding=adding or None)
    write_change(row, target, state)


def _cancel_reassignment(row: PartitionRow, state: PendingState) -> Target:
    if not is_reassigning(row):
        raise ApiException(
            describe(row),
            "No partition reassignment is in progress",
            "set replicas to start one",
            NO_REASSIGNMENT_IN_PROGRESS,
        )
    replicas = tuple(one for one in row.replicas if one not in row.adding_replicas)
    isr = tuple(one for one in row.isr if one not in row.adding_replicas)
    may_be_unclean = allows_unclean(row, state)
    if not replicas or (not isr and not may_be_unclean):
        raise ApiException(
            describe(row),
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
        election=Election.UNCLEAN if may_be_unclean else Election.ONLINE,
    )
