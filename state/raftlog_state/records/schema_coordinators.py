"""Records of the transaction coordinator and of the share coordinator (KIP-932).

They are in ``__transaction_state`` and ``__share_group_state``.

Source: the message files of Kafka's ``transaction-coordinator`` and ``share-coordinator`` modules,
4.3; ``TransactionState``.
"""

from __future__ import annotations

from raftlog.types import ZERO_UUID

from .declare import (
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UUID,
    Array,
    Message,
    Struct,
    field,
    key,
    record,
    struct,
)


@key(api_key=0)
class TransactionLogKey(Message):
    """Key of a transactional id."""

    transactional_id: str = field(STRING, default="")


@struct
class PartitionsSchema(Struct):
    """Partitions of a topic that take part in a transaction."""

    topic: str = field(STRING, default="")
    partition_ids: tuple[int, ...] = field(Array(INT32), default=())


@record(api_key=0, latest_version=1, flexible_since=1)
class TransactionLogValue(Message):
    """State of a transactional id.

    ``transaction_status``: 0 empty, 1 ongoing, 2 prepare commit, 3 prepare abort, 4 complete
    commit, 5 complete abort, 6 dead, 7 prepare epoch fence.
    """

    producer_id: int = field(INT64, default=0)
    previous_producer_id: int = field(INT64, since=1, tag=0, default=-1)
    next_producer_id: int = field(INT64, since=1, tag=1, default=-1)
    producer_epoch: int = field(INT16, default=0)
    next_producer_epoch: int = field(INT16, since=1, tag=3, default=-1)
    transaction_timeout_ms: int = field(INT32, default=0)
    transaction_status: int = field(INT8, default=0)
    transaction_partitions: tuple[PartitionsSchema, ...] | None = field(
        Array(PartitionsSchema), nullable=True, default=()
    )
    transaction_last_update_timestamp_ms: int = field(INT64, default=0)
    transaction_start_timestamp_ms: int = field(INT64, default=0)
    client_transaction_version: int = field(INT16, since=1, tag=2, default=0)


@struct
class SharePartitionKey(Message):
    """Key of a share partition: a partition as a share group reads it."""

    group_id: str = field(STRING, default="")
    topic_id: str = field(UUID, default=ZERO_UUID)
    partition: int = field(INT32, default=0)


@key(api_key=0)
class ShareSnapshotKey(SharePartitionKey):
    """Key of a share partition's state."""


@struct
class StateBatch(Struct):
    """Range of records in one delivery state: 0 available, 2 acknowledged, 4 archived."""

    first_offset: int = field(INT64, default=0)
    last_offset: int = field(INT64, default=0)
    delivery_state: int = field(INT8, default=0)
    delivery_count: int = field(INT16, default=0)


@record(api_key=0)
class ShareSnapshotValue(Message):
    """State of a share partition."""

    snapshot_epoch: int = field(INT32, default=0)
    state_epoch: int = field(INT32, default=0)
    leader_epoch: int = field(INT32, default=0)
    start_offset: int = field(INT64, default=0)
    delivery_complete_count: int = field(INT32, tag=0, default=-1)
    create_timestamp: int = field(INT64, default=0)
    write_timestamp: int = field(INT64, default=0)
    state_batches: tuple[StateBatch, ...] = field(Array(StateBatch), default=())


@key(api_key=1)
class ShareUpdateKey(SharePartitionKey):
    """Key of a change of a share partition's state."""


@record(api_key=1)
class ShareUpdateValue(Message):
    """Change of a share partition's state since the snapshot of the same epoch."""

    snapshot_epoch: int = field(INT32, default=0)
    leader_epoch: int = field(INT32, default=0)
    start_offset: int = field(INT64, default=0)
    delivery_complete_count: int = field(INT32, tag=0, default=-1)
    state_batches: tuple[StateBatch, ...] = field(Array(StateBatch), default=())
