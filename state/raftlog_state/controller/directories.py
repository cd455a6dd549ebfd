"""Log directories of brokers: the replicas in them, and those that are offline or cordoned.

Source: Kafka 4.3 ``ReplicationControlManager`` (handleAssignReplicasToDirs,
handleDirectoriesOffline, handleDirectoriesCordoned); KIP-858, KIP-1066.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from raftlog_state.image import BrokerRow, PartitionRow, TopicRow
from raftlog_state.image.record_versions import LEVEL_CORDONED, LEVEL_DIRECTORIES
from raftlog_state.records import BrokerRegistrationChangeRecord

from .api_exception import (
    NOT_LEADER_OR_FOLLOWER,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_VERSION,
    ApiException,
)
from .partition_change import Target
from .partitions import check_broker_epoch, is_online, update_leader_and_isr, write_change
from .pending_state import PendingState


@dataclass(frozen=True, slots=True)
class DirectoryAssignment:
    """Directory of a broker's replica of a partition."""

    directory: str
    topic_id: str
    partition: int


def assign_replicas_to_dirs(
    broker_id: int,
    broker_epoch: int,
    assignments: Sequence[DirectoryAssignment],
    state: PendingState,
) -> Generator[None, None, list[ApiException | None]]:
    """Record the directories of a broker's replicas; return the refusal of each one.

    A replica in a directory that is not online leaves the ISR. Raises ``ApiException`` if the
    broker's epoch is stale.
    """
    if not state.current.versions.directories:
        reason = "Directory assignment is not supported yet"
        remedy = f"upgrade metadata.version to {LEVEL_DIRECTORIES} or higher first"
        raise ApiException("the log", reason, remedy, UNSUPPORTED_VERSION)
    check_broker_epoch(broker_id, broker_epoch, state)
    found = yield from state.attempt_each(
        partial(_assign, broker_id, one, state) for one in assignments
    )
    offline = dict.fromkeys(
        (one.topic_id, one.partition)
        for one, refused in zip(assignments, found, strict=True)
        if refused is None and not is_online(broker_id, one.directory, state)
    )
    rows = (state.current.find(PartitionRow, *key) for key in offline)
    yield from update_leader_and_isr(
        (row for row in rows if row is not None), state, broker_to_remove=broker_id
    )
    return found


def take_directories_offline(
    broker_id: int, directories: Collection[str], state: PendingState
) -> Iterator[None]:
    """Remove directories of a broker that were online, and their replicas from the ISRs."""
    broker = state.current.find(BrokerRow, broker_id)
    assert broker is not None, "the broker is registered"
    offline = [one for one in broker.log_dirs if one in directories]
    if not offline or not state.current.versions.directories:
        return
    for row in (yield from state.current.partitions_in_isr(broker_id)):
        if row.directories[row.replicas.index(broker_id)] in offline:
            yield from update_leader_and_isr([row], state, broker_to_remove=broker_id)
        else:
            yield from state.pause()
    online = tuple(one for one in broker.log_dirs if one not in directories)
    record = BrokerRegistrationChangeRecord(
        broker_id=broker_id, broker_epoch=broker.broker_epoch, log_dirs=online
    )
    state.write(record, version=2)


def cordon_directories(broker_id: int, directories: Collection[str], state: PendingState) -> None:
    """Set, if they change, the directories of a broker that receive no new replicas."""
    broker = state.current.find(BrokerRow, broker_id)
    assert broker is not None, "the broker is registered"
    before = broker.cordoned_log_dirs
    if state.current.level < LEVEL_CORDONED:
        return
    if before is None or set(before) != set(directories):
        record = BrokerRegistrationChangeRecord(
            broker_id=broker_id,
            broker_epoch=broker.broker_epoch,
            cordoned_log_dirs=tuple(directories),
        )
        state.write(record, version=3)


def _assign(broker_id: int, assignment: DirectoryAssignment, state: PendingState) -> None:
    what = f"topic id {assignment.topic_id} partition {assignment.partition}"
    row = state.current.find(PartitionRow, assignment.topic_id, assignment.partition)
    remedy = "fetch new metadata"
    if state.current.find(TopicRow, assignment.topic_id) is None:
        reason = "This server does not host this topic ID"
        raise ApiException(what, reason, remedy, UNKNOWN_TOPIC_ID)
    if row is None:
        reason = "the topic has no such partition"
        raise ApiException(what, reason, remedy, UNKNOWN_TOPIC_OR_PARTITION)
    if broker_id not in row.replicas:
        reason = f"broker {broker_id} has no replica of it"
        raise ApiException(what, reason, remedy, NOT_LEADER_OR_FOLLOWER)
    write_change(row, Target(directory=(broker_id, assignment.directory)), state)
