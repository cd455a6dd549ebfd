"""Allocation of producer ids to brokers, in blocks of 1,000.

Source: Kafka 4.3 ``ProducerIdControlManager``, ``ProducerIdsBlock``.
"""

from __future__ import annotations

from typing import Final

from raftlog_state.image import ProducerIdsRow
from raftlog_state.records import ProducerIdsRecord

from .api_exception import UNKNOWN_SERVER_ERROR, ApiException
from .partitions import check_broker_epoch
from .pending_state import PendingState

BLOCK_SIZE: Final = 1_000
_ID_MAX: Final = 2**63 - 1


def allocate_producer_ids(broker_id: int, broker_epoch: int, state: PendingState) -> range:
    """Allocate a block of producer ids to a broker, and return it. Raises ``ApiException``."""
    check_broker_epoch(broker_id, broker_epoch, state)
    first = next_producer_id(state)
    if first > _ID_MAX - BLOCK_SIZE:
        reason = (
            "Exhausted all producerIds as the next block's end producerId has exceeded the int64 "
            "type limit"
        )
        raise ApiException("producer ids", reason, "create another cluster", UNKNOWN_SERVER_ERROR)
    state.write(
        ProducerIdsRecord(
            broker_id=broker_id, broker_epoch=broker_epoch, next_producer_id=first + BLOCK_SIZE
        )
    )
    return range(first, first + BLOCK_SIZE)


def next_producer_id(state: PendingState) -> int:
    """Return the first id of the next block."""
    row = state.current.find(ProducerIdsRow, "next")
    return 0 if row is None else row.next_producer_id
