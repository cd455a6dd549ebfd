"""Handler of InitProducerId: ids for idempotent producers, unique without being stored.

1. A producer id is (leader epoch << 32) | counter. Only the leader assigns ids, and an epoch has at
   most one leader, so no id is assigned twice.
2. Clients send the request to any node. A node that does not lead returns
   COORDINATOR_LOAD_IN_PROGRESS, which every client retries (Kafka:
   ``TransactionManager.InitProducerIdHandler``; librdkafka: ``rd_kafka_idemp_request_pid_failed``),
   and closes the connection, so that the client retries with another node.
3. Transactions are not supported: a transactional id gets an error that clients do not retry.
"""

from __future__ import annotations

from typing import Final, cast

from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.init_producer_id.v5.response import InitProducerIdResponse
from kio.schema.types import ProducerId

from raftlog.node.access import Rights
from raftlog.wire.log_identity import duration, int16

from .question import Question

_COUNTER_BITS: Final = 32


class ProducerIds:
    """Producer ids assigned by one node."""

    def __init__(self) -> None:
        self._epoch = -1
        self._next = 0

    async def answer(self, question: Question[InitProducerIdRequest]) -> InitProducerIdResponse:
        view = question.view
        if Rights.APPEND not in question.caller.rights:
            return _response(ErrorCode.cluster_authorization_failed)
        if question.request.transactional_id is not None:
            return _response(ErrorCode.unsupported_version)  # transactions are not supported
        if not view.is_leader:
            question.is_last = True
            return _response(ErrorCode.coordinator_load_in_progress)
        producer_id = self._take(view.core.epoch)
        if producer_id is None:
            return _response(ErrorCode.coordinator_load_in_progress)
        return _response(ErrorCode.none, producer_id)

    def _take(self, epoch: int) -> int | None:
        """Return the next id, None if the ids of this epoch are used up."""
        if epoch != self._epoch:
            self._epoch, self._next = epoch, 0
        if self._next >= 1 << _COUNTER_BITS:
            return None
        taken = (epoch << _COUNTER_BITS) | self._next
        self._next += 1
        return taken


def _response(error: ErrorCode, producer_id: int = -1) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        throttle_time=duration(0),
        error_code=error,
        producer_id=cast("ProducerId", producer_id),
        producer_epoch=int16(-1 if producer_id < 0 else 0),
    )
