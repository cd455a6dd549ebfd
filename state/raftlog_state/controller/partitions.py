"""ISR changes and leader elections.

Epochs are tokens. If a change names the epoch of a partition or broker, it is refused unless that
epoch is current, so it cannot overwrite a change that its sender has not seen.

Source: Kafka ``ReplicationControlManager`` (alterPartition, electLeaders,
generateLeaderAndIsrUpdates, maybeBalancePartitionLeaders, maybeElectUncleanLeaders).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from raftlog_state.image import BrokerRow, PartitionRow, TopicRow
from raftlog_state.image.rows import DIRECTORY_MIGRATING
from raftlog_state.steps import for_each_in_steps

from .api_exception import (
    ELECTION_NOT_NEEDED,
    ELIGIBLE_LEADERS_NOT_AVAILABLE,
    FENCED_LEADER_EPOCH,
    INELIGIBLE_REPLICA,
    INVALID_REQUEST,
    INVALID_UPDATE_VERSION,
    NEW_LEADER_ELECTED,
    NOT_CONTROLLER,
    PREFERRED_LEADER_NOT_AVAILABLE,
    STALE_BROKER_EPOCH,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    ApiException,
)
from .change_requests import ElectLeader, SetIsr
from .config_values import parse_integer
from .configs import MIN_ISR
from .controller_state import NO_LEADER
from .partition_change import (
    RECOVERED,
    RECOVERING,
    Election,
    ElectionContext,
    Target,
    partition_change,
)
from .pending_state import PendingState, write_in_steps
from .topics import DIRECTORY_UNASSIGNED, default_directory, topic_of

DIRECTORY_LOST: Final = "AAAAAAAAAAAAAAAAAAAAAg"
"""Directory that is offline (Kafka: ``DirectoryId.LOST``)."""

UNCLEAN: Final = "unclean.leader.election.enable"
ANY_BROKER_EPOCH: Final = -1
ELECTIONS_MAX: Final = 1_000
"""Elections in one periodic task (Kafka: ``maxElectionsPerImbalance``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartition:
    """ISR of a partition that its leader requests, with the epochs that the leader knows.

    ``isr``: ids of brokers with their epochs; -1: any epoch.
    """

    topic_id: str
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    leader_recovery_state: int = RECOVERED


def alter_partition(
    broker_id: int, broker_epoch: int, requests: Sequence[AlterPartition], state: PendingState
) -> Generator[None, None, list[PartitionRow | ApiException]]:
    """Change the ISRs of partitions that a broker leads; return the new rows, or each refusal.

    NEW_LEADER_ELECTED is returned although the change is written, if it completed a reassignment
    that removed the leader. Raises ``ApiException`` if the broker's epoch is stale.
    """
    check_broker_epoch(broker_id, broker_epoch, state)
    found = []
    for request in requests:
        found.append(_alter_partition(broker_id, request, state))
        yield from state.pause()
    return found


def elect_leaders(
    election: Election, partitions: Sequence[tuple[str, int]] | None, state: PendingState
) -> Generator[None, None, dict[tuple[str, int], ApiException | None]]:
    """Elect leaders of partitions, by topic name; return the refusal of each partition.

    None: elect leaders of all partitions, without returning those that need no election.
    """
    if partitions is None:
        is_preferred = election is Election.PREFERRED
        current, found = state.current, list[tuple[str, int]]()
        rows = yield from (
            current.imbalanced_partitions() if is_preferred else current.leaderless_partitions()
        )
        yield from for_each_in_steps(
            rows, lambda row: found.append((row.topic_name, row.partition_id))
        )
        partitions = found
    refused = yield from state.attempt_each(
        partial(_elect_leader, topic, number, election, state) for topic, number in partitions
    )
    return dict(zip(partitions, refused, strict=True))


def balance_partition_leaders(
    state: PendingState, election_count_max: int = ELECTIONS_MAX
) -> Generator[None, None, bool]:
    """Elect preferred leaders of partitions with other leaders; return whether there are more."""
    rows = yield from state.current.imbalanced_partitions()
    return (yield from _elect_many(rows, Election.PREFERRED, state, election_count_max))


def elect_unclean_leaders(
    state: PendingState, election_count_max: int = ELECTIONS_MAX
) -> Generator[None, None, bool]:
    """Elect leaders of leaderless partitions whose topics allow unclean elections.

    Return whether there are more.
    """
    rows = yield from state.current.leaderless_partitions()
    return (yield from _elect_many(rows, Election.UNCLEAN, state, election_count_max))


@write_in_steps.register
def set_isr(change: SetIsr, state: PendingState) -> None:
    """Set a partition's ISR; complete a reassignment that was waiting for it."""
    row = partition_of(change.topic, change.partition, state)
    check_partition_epoch(row, change.partition_epoch)
    if row.leader == NO_LEADER:
        reason = "the partition has no leader, which must be in the ISR"
        raise ApiException(describe(row), reason, "elect a leader first")
    isr = [(one, ANY_BROKER_EPOCH) for one in change.isr]
    _check_isr(row, isr)
    _check_eligible(row, isr, state)
    _write_isr(row, change.isr, RECOVERED, state)


@write_in_steps.register
def elect_leader(change: ElectLeader, state: PendingState) -> None:
    """Elect the preferred leader, or any live replica in an unclean election."""
    row = partition_of(change.topic, change.partition, state)
    check_partition_epoch(row, change.partition_epoch)
    kind = change.election.lower()
    if kind not in (Election.PREFERRED.value, Election.UNCLEAN.value):
        reason = f"Unknown election type {change.election!r}"
        raise ApiException(describe(row), reason, "use preferred or unclean")
    _elect_leader(change.topic, change.partition, Election(kind), state)


# --- shared with reassignments, directories and brokers -------------------------------------------


def partition_of(topic: str, number: int, state: PendingState) -> PartitionRow:
    """Return a partition by its topic's name. Raises ``ApiException``."""
    row = state.current.find(PartitionRow, topic_of(topic, state).topic_id, number)
    if row is None:
        what = f"topic {topic!r} partition {number}"
        remedy = "correct the number, or add partitions first"
        reason = f"Unable to find partition {topic}:{number}"
        raise ApiException(what, reason, remedy, UNKNOWN_TOPIC_OR_PARTITION)
    return row


def check_partition_epoch(row: PartitionRow, expected: int | None) -> None:
    """Raise ``ApiException`` unless ``expected`` is None or the current epoch of a partition."""
    if expected is not None and expected != row.partition_epoch:
        reason = f"its partition epoch is {row.partition_epoch}, not {expected}"
        remedy = "read the partition again, and repeat the change if it is still right"
        raise ApiException(describe(row), reason, remedy, INVALID_UPDATE_VERSION)


def check_broker_epoch(broker_id: int, broker_epoch: int, state: PendingState) -> None:
    """Raise ``ApiException`` unless a broker is registered with this epoch."""
    row = state.current.find(BrokerRow, broker_id)
    reason = None
    if row is None:
        reason = f"No broker registration found for broker id {broker_id}"
    elif row.broker_epoch != broker_epoch:
        reason = f"Expected broker epoch {row.broker_epoch}, but got broker epoch {broker_epoch}"
    if reason is not None:
        remedy = "register the broker, and use the epoch of its registration"
        raise ApiException(f"broker {broker_id}", reason, remedy, STALE_BROKER_EPOCH)


def update_leader_and_isr(
    rows: Iterable[PartitionRow],
    state: PendingState,
    *,
    broker_to_remove: int | None = None,
    broker_to_add: int | None = None,
    unclean: int | None = None,
) -> Iterator[None]:
    """Update partitions for a broker that is added or removed (generateLeaderAndIsrUpdates).

    ``broker_to_remove``: removed from the ISR and not electable.
    ``broker_to_add``: electable even if it is still fenced.
    ``unclean``: the broker is removed after an unclean shutdown, and from the ELR, too.
    """

    def is_acceptable(broker_id: int) -> bool:
        if broker_id in (broker_to_remove, unclean):
            return False
        return broker_id == broker_to_add or state.current.is_active(broker_id)

    for row in rows:
        target = Target(
            isr=tuple(one for one in row.isr if one not in (broker_to_remove, unclean)),
            election=Election.UNCLEAN if allows_unclean(row, state) else Election.ONLINE,
            unclean_shutdown=() if unclean is None else (unclean,),
        )
        write_change(row, target, state, is_acceptable)
        yield from state.pause()


def describe(row: PartitionRow) -> str:
    """Return the name of a partition in messages."""
    return f"topic {row.topic_name!r} partition {row.partition_id}"


def write_change(
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
        return is_alive(broker_id) and is_online(broker_id, directory, state)

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


def allows_unclean(row: PartitionRow, state: PendingState) -> bool:
    """Return whether a partition may have an unclean leader election."""
    value = state.current.topic_config(row.topic_name, UNCLEAN)
    return value is not None and value.strip().lower() == "true"


def _min_isr(row: PartitionRow, state: PendingState) -> int:
    """Return min.insync.replicas, at most the replication factor of partition 0.

    Kafka: ``getTopicEffectiveMinIsr``.
    """
    value = (state.current.topic_config(row.topic_name, MIN_ISR) or "").strip()
    wanted = parse_integer(value, 32)
    first = state.current.find(PartitionRow, row.topic_id, 0)
    return min(
        1 if wanted is None else wanted, len(row.replicas if first is None else first.replicas)
    )


def is_online(broker_id: int, directory: str, state: PendingState) -> bool:
    """Return whether a log directory of a broker is online (Kafka: ``hasOnlineDir``)."""
    if directory in (DIRECTORY_UNASSIGNED, DIRECTORY_MIGRATING):
        return state.current.find(BrokerRow, broker_id) is not None
    if directory == DIRECTORY_LOST:
        return False
    row = state.current.find(BrokerRow, broker_id)
    return row is not None and (not row.log_dirs or directory in row.log_dirs)


# --- helpers --------------------------------------------------------------------------------------


def _alter_partition(
    broker_id: int, request: AlterPartition, state: PendingState
) -> PartitionRow | ApiException:
    key = (request.topic_id, request.partition)
    try:
        row = _altered_partition(broker_id, request, state)
        isr = tuple(one for one, _ in request.isr)
        _write_isr(row, isr, request.leader_recovery_state, state)
    except ApiException as refused:
        return refused
    after = state.current.find(PartitionRow, *key)
    assert after is not None, "it was changed"
    if after.leader != broker_id:
        reason = "The request successfully updated the partition state but the leader has changed"
        return ApiException(describe(after), reason, "fetch new metadata", NEW_LEADER_ELECTED)
    return after


def _altered_partition(
    broker_id: int, request: AlterPartition, state: PendingState
) -> PartitionRow:
    """Return the current row of a partition whose change is valid. Raises ``ApiException``."""
    what = f"topic id {request.topic_id} partition {request.partition}"
    remedy = "fetch new metadata"
    row = state.current.find(PartitionRow, request.topic_id, request.partition)
    reason, code = None, INVALID_REQUEST
    if state.current.find(TopicRow, request.topic_id) is None:
        reason, code = "This server does not host this topic ID", UNKNOWN_TOPIC_ID
    elif row is None:
        reason, code = "the topic has no such partition", UNKNOWN_TOPIC_OR_PARTITION
    else:
        reason, code = _epoch_reason(broker_id, request, row)
    if reason is not None or row is None:
        raise ApiException(what, reason or "", remedy, code)
    _check_isr(row, request.isr)
    if request.leader_recovery_state not in (RECOVERED, RECOVERING):
        reason = f"unknown leader recovery state {request.leader_recovery_state}"
    elif request.leader_recovery_state == RECOVERING and len(request.isr) > 1:
        reason = "the ISR has more than one replica while the leader is recovering"
    elif request.leader_recovery_state == RECOVERING != row.leader_recovery_state:
        reason = "the leader recovery state cannot change from RECOVERED to RECOVERING"
    if reason is not None:
        raise ApiException(what, reason, "correct leader_recovery_state")
    _check_eligible(row, request.isr, state)
    return row


def _epoch_reason(
    broker_id: int, request: AlterPartition, row: PartitionRow
) -> tuple[str | None, int]:
    """Return why a request of a broker is not based on the current state, and Kafka's code."""
    epochs = f"leader epoch {row.leader_epoch} and partition epoch {row.partition_epoch}"
    if request.leader_epoch > row.leader_epoch or request.partition_epoch > row.partition_epoch:
        return f"this controller knows an older state, {epochs}", NOT_CONTROLLER
    if request.leader_epoch < row.leader_epoch:
        return f"the request has an older leader epoch; there are {epochs}", FENCED_LEADER_EPOCH
    if broker_id != row.leader:
        return f"its leader is {row.leader}, not {broker_id}", INVALID_REQUEST
    if request.partition_epoch < row.partition_epoch:
        reason = f"the request has an older partition epoch; there are {epochs}"
        return reason, INVALID_UPDATE_VERSION
    return None, INVALID_REQUEST


def _check_isr(row: PartitionRow, isr: Sequence[tuple[int, int]]) -> None:
    """Raise ``ApiException`` unless an ISR consists of distinct replicas, including the leader."""
    ids = [one for one, _ in isr]
    outside = sorted(set(ids) - set(row.replicas))
    reason = None
    if outside:
        reason = f"invalid ISR: {outside} are not among the replicas {list(row.replicas)}"
    elif len(set(ids)) != len(ids):
        reason = "invalid ISR: a replica occurs more than once"
    elif row.leader not in ids:
        reason = f"invalid ISR: it does not include the leader {row.leader}"
    if reason is not None:
        raise ApiException(describe(row), reason, "list the in-sync replicas")


def _check_eligible(row: PartitionRow, isr: Sequence[tuple[int, int]], state: PendingState) -> None:
    """Raise ``ApiException`` unless all brokers of an ISR are active in their epochs."""
    ineligible = []
    for broker_id, epoch in isr:
        broker = state.current.find(BrokerRow, broker_id)
        reason = None
        if broker is None:
            reason = "not registered"
        elif broker.in_controlled_shutdown:
            reason = "shutting down"
        elif broker.fenced:
            reason = "fenced"
        elif epoch not in (ANY_BROKER_EPOCH, broker.broker_epoch):
            reason = f"broker epoch mismatch: requested={epoch} VS expected={broker.broker_epoch}"
        if reason is not None:
            ineligible.append(f"{broker_id} ({reason})")
    if ineligible:
        reason = f"ineligible replicas: {', '.join(ineligible)}"
        raise ApiException(describe(row), reason, "list the in-sync replicas", INELIGIBLE_REPLICA)


def _write_isr(row: PartitionRow, isr: tuple[int, ...], recovery: int, state: PendingState) -> None:
    election = Election.UNCLEAN if allows_unclean(row, state) else Election.ONLINE
    write_change(row, Target(isr=isr, recovery=recovery, election=election), state)


def _elect_many(
    rows: Iterable[PartitionRow], election: Election, state: PendingState, count_max: int
) -> Generator[None, None, bool]:
    count = 0
    for row in rows:
        if count >= count_max:
            break
        if election is not Election.UNCLEAN or allows_unclean(row, state):
            count += write_change(row, Target(election=election), state)
        yield from state.pause()
    return count >= count_max


def _elect_leader(topic: str, number: int, election: Election, state: PendingState) -> None:
    row = partition_of(topic, number, state)
    is_preferred = election is Election.PREFERRED
    if row.leader == row.replicas[0] if is_preferred else row.leader != NO_LEADER:
        reason = f"Leader election not needed for topic partition: the leader is {row.leader}"
        raise ApiException(describe(row), reason, "leave the row out", ELECTION_NOT_NEEDED)
    if not write_change(row, Target(election=election), state):
        reason = (
            "Eligible topic partition leaders are not available"
            if not is_preferred
            else f"The preferred leader {row.replicas[0]} was not available"
        )
        code = PREFERRED_LEADER_NOT_AVAILABLE if is_preferred else ELIGIBLE_LEADERS_NOT_AVAILABLE
        raise ApiException(describe(row), reason, "unfence a replica's broker first", code)
