"""Handlers of Produce, with one batch per partition, and of InitProducerId.

1. Every append waits for its commit, whatever the value of acks. With acks=0 there is no response,
   and the connection is closed if the append fails.
2. All batches of a request are submitted together, and the requests of a connection are submitted
   in order. A large batch is decoded on the executor, and later requests of the connection wait for
   it. An append that is not committed within the request's timeout gets REQUEST_TIMED_OUT; as in
   Kafka, it may still be committed. A request has no task: it responds when the last of its appends
   is done.
3. A duplicate gets the offsets of the first append. Clients would also treat Kafka's
   DUPLICATE_SEQUENCE_NUMBER as success, but without the offset.
4. A named commit is compared with the log only for principals that own its application id, and a
   condition on keys only for principals that may read, so that others learn nothing from offsets or
   errors.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias, cast

from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.init_producer_id.v5.response import InitProducerIdResponse
from kio.schema.types import ProducerId

from raftlog.append import AppendRequest, AppendResult, Done, Failed, RequestResult
from raftlog.errors import (
    CorruptBatchError,
    DecompressionLimitError,
    InvalidAppendError,
    LogError,
    NotLeaderError,
)
from raftlog.limits import KIB
from raftlog.node.access import Rights
from raftlog.node.audit import AUTHORIZATION_ERRORS
from raftlog.node.client_quotas import QuotaType
from raftlog.node.request import QueuedAppend, Request
from raftlog.records.compression import Compression
from raftlog.records.encoding import PackedRecords, SealedBatch
from raftlog.types import Operation
from raftlog.wire import (
    ProducedBatch,
    ProducedTopic,
    ProduceRequest,
    ProduceResult,
    encode_produce_response,
)
from raftlog.wire.errors import WireError
from raftlog.wire.fields import error_of
from raftlog.wire.log_identity import duration, int16, or_minus_one
from raftlog.wire.produce_codec import (
    Appended,
    appended_message,
    produce_error_code,
    produce_error_message,
)

from .groups import NO_TRANSACTIONS
from .metadata_cache import WITH_LEADER, MetadataCache
from .produced_batch import append_request, plain_request, read_header

READ_AT_ONCE_BYTES_MAX: Final = 256 * KIB
"""Maximum size of a batch, even when decompressed, that is decoded on the event loop; a larger one
would delay the quorum's heartbeats."""
_ZSTD_FROM: Final = 7
_TEXT_FROM: Final = 8
_COUNTER_BITS: Final = 32
_ACKS: Final = (-1, 0, 1)


class UnacknowledgedAppendError(WireError, code="RAFTLOG_UNACKNOWLEDGED_APPEND"):
    """A failed append with acks=0. It has no response, so closing the connection is the only signal
    to the producer."""

    reason: str

    def message(self) -> str:
        return f"append with acks=0 failed: {self.reason}; close the connection"


@dataclass(frozen=True, slots=True)
class Refused:
    """Rejected append, with Kafka's error code and message."""

    error: ErrorCode
    text: str | None = None


Outcome: TypeAlias = RequestResult | Refused


_Request = Request[ProduceRequest]


def start_produce(cache: MetadataCache, request: _Request) -> None:
    """Submit a request after its connection's earlier requests."""
    appends = request.session.appends
    appends.append(DelayedProduce(cache, request))
    if len(appends) == 1:
        _submit(appends)


def _submit(appends: deque[QueuedAppend]) -> None:
    """Submit requests in order, up to one with a batch that is read on the executor."""
    while appends and appends[0].submit():
        appends.popleft()


class DelayedProduce:
    """Produce request that responds once all of its batches have an outcome.

    Kafka: ``DelayedProduce``, which also responds for all partitions.
    """

    __slots__ = ("_batches", "_cache", "_count", "_outcomes", "_reading", "_request")

    def __init__(self, cache: MetadataCache, request: _Request) -> None:
        self._cache: Final = cache
        self._request: Final = request
        self._batches: Final = [
            (topic, batch) for topic in request.body.topics for batch in topic.batches
        ]
        self._outcomes: Final[list[Outcome | None]] = []
        """Outcomes of the batches that are submitted or refused; None while unknown."""
        self._count = len(self._batches)
        """Number of batches without an outcome."""
        self._reading: asyncio.Future[AppendRequest] | None = None
        """The first batch without an outcome, if the executor has read it."""

    def submit(self) -> bool:
        """Submit or refuse the batches; return False if the executor must read one first, or if the
        request has failed."""
        return bool(self._request.attempt(self._submit))

    def _submit(self) -> bool:
        while len(self._outcomes) < len(self._batches):
            append = self._next()
            if append is None:
                return False
            self._append(append)
        if not self._batches:
            self._respond()
        return True

    # --- reading ----------------------------------------------------------------------------------

    def _next(self) -> AppendRequest | Refused | None:
        """Return the next append, or why it is refused; None if the executor must read it first."""
        reading, self._reading = self._reading, None
        try:
            if reading is not None:
                return reading.result()
            topic, batch = self._batches[len(self._outcomes)]
            refusal = self._refusal(topic, batch)
            return refusal or self._read(batch.records or b"")
        except LogError as error:
            return _refused(error)

    def _refusal(self, topic: ProducedTopic, batch: ProducedBatch) -> Refused | None:
        """Return why a batch is refused before it is read; None if it is not refused."""
        error = self._error(topic, batch.partition)
        if error is not ErrorCode.none:
            return Refused(error)
        if self._request.body.transactional_id is not None:
            return Refused(ErrorCode.unsupported_version, NO_TRANSACTIONS)
        if not self._cache.is_leader:
            return _not_leader(self._cache)
        if not batch.records:
            return _refused(
                InvalidAppendError(reason="a request has exactly one record batch per partition")
            )
        return None

    def _error(self, topic: ProducedTopic, partition: int) -> ErrorCode:
        """Return the error of an append by topic, partition, rights and acks, or ``none``."""
        request = self._request
        if request.body.acks not in _ACKS:
            return ErrorCode.invalid_required_acks
        if Rights.APPEND not in request.principal.rights:
            return ErrorCode.topic_authorization_failed
        return self._cache.topic_error(topic.topic_id, topic.name, partition)

    def _read(self, data: bytes) -> AppendRequest | Refused | None:
        """Return the append of a batch; None if it is large and read on the executor.

        Raises the errors of ``read_header`` and ``append_request``.
        """
        cache, request = self._cache, self._request
        config = cache.raft_node.replica.log.config
        deadline_ms = cache.raft_node.now_ms() + request.body.timeout_ms
        gate = request.session.append_gate
        if len(data) <= READ_AT_ONCE_BYTES_MAX:
            plain = plain_request(data, config, deadline_ms=deadline_ms, gate=gate)
            if plain is not None:
                return plain
        header = read_header(data, byte_count_max=config.batch_bytes_max)
        if header.compression is Compression.ZSTD and request.version < _ZSTD_FROM:
            return Refused(ErrorCode.unsupported_compression_type)
        read = partial(
            append_request,
            data,
            header,
            config,
            deadline_ms=deadline_ms,
            gate=gate,
        )
        if len(data) <= READ_AT_ONCE_BYTES_MAX:
            try:
                return read(decompressed_bytes_max=READ_AT_ONCE_BYTES_MAX)
            except DecompressionLimitError:
                pass  # large once decompressed
        reading = asyncio.get_running_loop().run_in_executor(cache.executor, request.timed(read))
        reading.add_done_callback(self._has_read)
        return None

    def _has_read(self, reading: asyncio.Future[AppendRequest]) -> None:
        """Continue after a batch was read on the executor, unless the connection is lost."""
        if reading.cancelled():
            return
        reading.exception()  # retrieved, or asyncio logs it if the connection is lost
        appends = self._request.session.appends
        if appends and appends[0] is self:
            self._reading = reading
            _submit(appends)

    # --- submitting -------------------------------------------------------------------------------

    def _append(self, append: AppendRequest | Refused) -> None:
        """Submit an append, unless it is refused."""
        cache, request = self._cache, self._request
        if isinstance(append, AppendRequest):
            if not cache.is_leader:
                append = _not_leader(cache)
            else:
                append = self._condition_refusal(append) or append
        if isinstance(append, Refused):
            self._refuse(append)
            return
        ordinal, records = len(self._outcomes), append.records
        self._outcomes.append(None)
        byte_count = 0
        if isinstance(records, SealedBatch | PackedRecords):
            byte_count = records.byte_count()
        # Counted until the append is done: decompressed, it may be a thousand times as large as the
        # request.
        request.session.memory.allocate(byte_count)
        cache.raft_node.append(
            append,
            partial(self._complete, ordinal, byte_count),
            timeout_ms=request.body.timeout_ms,
        )

    def _condition_refusal(self, append: AppendRequest) -> Refused | None:
        """Return why the principal may not use a condition or a commit's name; None if it may."""
        principal = self._request.principal
        if append.unchanged is not None and not principal.may(Operation.READ, self._cache.topic):
            return Refused(
                ErrorCode.topic_authorization_failed,
                f"{principal.name!r} may not read the log, which a condition on keys requires",
            )
        if append.commit is None:
            return None
        name = append.commit.application_id
        if not principal.may_commit(name):
            return Refused(
                ErrorCode.transactional_id_authorization_failed,
                f"{principal.name!r} may not commit under application id {name!r}: no pattern in "
                "[access.commits] of the nodes allows it",
            )
        memory, commits = self._cache.raft_node.replica.log.producer_state, principal.commits
        if commits is None or memory.last_commit(name) is not None:
            return None
        own = (one for one in reversed(memory.commits) if commits.owns(one.name.application_id))
        if sum(1 for _ in itertools.islice(own, commits.names_max)) < commits.names_max:
            return None
        return Refused(
            ErrorCode.policy_violation,
            f"the log has {commits.names_max} application ids of {principal.name!r}, the maximum, "
            f"and {name!r} is not one of them: reuse one, or raise commit_names_max in [access] of "
            "the nodes",
        )

    def _refuse(self, refusal: Refused) -> None:
        """Set the outcome of a batch that is not submitted."""
        if refusal.error in AUTHORIZATION_ERRORS:
            request = self._request
            self._cache.audit.refused(
                request.principal, request.connection.where, refusal.error.name, "PRODUCE"
            )
        self._outcomes.append(None)
        self._set_outcome(len(self._outcomes) - 1, refusal)

    def _complete(self, ordinal: int, byte_count: int, result: RequestResult) -> None:
        """Set the outcome of a submitted batch."""
        request = self._request
        request.session.memory.release(byte_count)
        audit = self._cache.audit
        if audit.is_written and isinstance(result, Done) and not result.value.was_duplicate:
            audit.appended(
                request.principal,
                request.connection.where,
                result.value.base_offset,
                result.value.last_offset,
            )
        self._set_outcome(ordinal, result)

    def _set_outcome(self, ordinal: int, outcome: Outcome) -> None:
        self._outcomes[ordinal] = outcome
        self._count -= 1
        if not self._count:
            self._respond()

    # --- response ---------------------------------------------------------------------------------

    def _respond(self) -> None:
        """Respond, or refuse the request. It raises nothing, because it is called within a step of
        the replica."""
        request = self._request
        request.attempt(lambda: request.respond(self._encode_response()))

    def _encode_response(self) -> bytes | None:
        """Return the response's body; None without one. Raises ``UnacknowledgedAppendError``."""
        cache, request = self._cache, self._request
        throttle_ms, quotas = 0, cache.quotas
        if quotas.may_throttle:
            throttle_ms = quotas.throttle(request, QuotaType.PRODUCE, len(request.frame))
        results = [
            self._result(batch.partition, outcome)
            for (_, batch), outcome in zip(self._batches, self._outcomes, strict=True)
            if outcome is not None
        ]
        if request.body.acks == 0:
            _raise_if_failed(results)
            return None
        has_leader = any(one.leader_id >= 0 for one in results)
        endpoints = cache.leader_endpoints() if has_leader else ()
        return encode_produce_response(
            request.version, request.body, results, endpoints, throttle_time_ms=throttle_ms
        )

    def _result(self, partition: int, outcome: Outcome) -> ProduceResult:
        cache = self._cache
        if isinstance(outcome, Failed):
            code = error_of(produce_error_code(outcome.error))
            outcome = Refused(code, produce_error_message(outcome.error))
        if isinstance(outcome, Refused):
            error, text = outcome.error, outcome.text
            if error not in WITH_LEADER:
                return ProduceResult(partition, error, message=text)
            leader_id = or_minus_one(cache.leader_id())
            return ProduceResult(
                partition, error, message=text, leader_id=leader_id, leader_epoch=cache.core.epoch
            )
        result = outcome.value
        assert isinstance(result, AppendResult), "the request is an append"
        message = None
        if self._request.version >= _TEXT_FROM:
            message = appended_message(
                Appended(result.epoch, result.was_duplicate, result.last_offset)
            )
        log_start_offset = cache.raft_node.replica.log.log_start_offset
        return ProduceResult(partition, 0, result.base_offset, log_start_offset, message)


def _not_leader(cache: MetadataCache) -> Refused:
    epoch = cache.core.epoch
    return _refused(NotLeaderError(epoch=epoch, current_epoch=epoch))


def _refused(error: LogError) -> Refused:
    code = ErrorCode.corrupt_message
    if not isinstance(error, CorruptBatchError):
        code = error_of(produce_error_code(error))
    return Refused(code, produce_error_message(error))


def _raise_if_failed(results: Sequence[ProduceResult]) -> None:
    for one in results:
        if one.error:
            raise UnacknowledgedAppendError(reason=one.message or ErrorCode(one.error).name)


# --- InitProducerId -------------------------------------------------------------------------------


class ProducerIds:
    """Ids of idempotent producers, assigned by one node, which are unique without being stored.

    1. A producer id is (leader epoch << 32) | counter. Only the leader assigns ids, and an epoch
       has at most one leader, so no id is assigned twice.
    2. Clients send the request to any node. A node that does not lead returns
       COORDINATOR_LOAD_IN_PROGRESS, which every client retries (Kafka:
       ``TransactionManager.InitProducerIdHandler``; librdkafka:
       ``rd_kafka_idemp_request_pid_failed``), and closes the connection, so that the client retries
       with another node.
    3. Transactions are not supported: a transactional id gets an error that clients do not retry.
    """

    def __init__(self) -> None:
        self._epoch = -1
        self._next = 0

    async def handle(
        self, cache: MetadataCache, request: Request[InitProducerIdRequest]
    ) -> InitProducerIdResponse:
        if Rights.APPEND not in request.principal.rights:
            return _producer_id_response(ErrorCode.cluster_authorization_failed)
        if request.body.transactional_id is not None:
            # transactions are not supported
            return _producer_id_response(ErrorCode.unsupported_version)
        if not cache.is_leader:
            request.closes_connection = True
            return _producer_id_response(ErrorCode.coordinator_load_in_progress)
        producer_id = self._next_id(cache.core.epoch)
        if producer_id is None:
            return _producer_id_response(ErrorCode.coordinator_load_in_progress)
        return _producer_id_response(ErrorCode.none, producer_id)

    def _next_id(self, epoch: int) -> int | None:
        """Return the next id; None if the ids of this epoch are used up."""
        if epoch != self._epoch:
            self._epoch, self._next = epoch, 0
        if self._next >= 1 << _COUNTER_BITS:
            return None
        taken = (epoch << _COUNTER_BITS) | self._next
        self._next += 1
        return taken


def _producer_id_response(error: ErrorCode, producer_id: int = -1) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        throttle_time=duration(0),
        error_code=error,
        producer_id=cast("ProducerId", producer_id),
        producer_epoch=int16(-1 if producer_id < 0 else 0),
    )
