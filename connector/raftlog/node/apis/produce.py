"""Handler of Produce: appends, one batch per partition.

1. Every append waits for its commit, whatever the value of acks; with acks 0 there is no response,
   and the connection is closed if the append fails.
2. All batches of a request are submitted before any is awaited, and requests of one connection in
   their order. A large batch is decoded on the executor, and later requests of the connection wait
   for it. An append that is not committed within the request's timeout gets REQUEST_TIMED_OUT; it
   may still be committed, as in Kafka.
3. A duplicate gets the offsets of the first append: clients treat Kafka's
   DUPLICATE_SEQUENCE_NUMBER as success too, but without the offset.
4. A named commit is compared with the log only for principals that own its application id: others
   learn nothing about its commits from offsets or errors.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from kio.schema.errors import ErrorCode
from kio.schema.produce.v13 import request as requests
from kio.schema.produce.v13 import response as responses

from raftlog.append.requests import AppendRequest, AppendResult, Failed, RequestResult, failed
from raftlog.errors import (
    AppendUnknownError,
    CorruptBatchError,
    DecompressionLimitError,
    InvalidAppendError,
    LogError,
    NotLeaderError,
    UnacknowledgedAppendError,
)
from raftlog.limits import KIB
from raftlog.node.access import Rights
from raftlog.node.request_budget import BudgetShare
from raftlog.records.compression import Compression
from raftlog.records.encoding import PackedRecords
from raftlog.wire import latest_schemas
from raftlog.wire.log_identity import duration, int32, int64, milliseconds, node, or_minus_one
from raftlog.wire.produce_error_messages import (
    Appended,
    appended_message,
    produce_error_code,
    produce_error_message,
)

from .groups import NO_TRANSACTIONS
from .metadata_cache import MetadataCache
from .produced_batch import append_request, read_header
from .question import Question

READ_AT_ONCE_BYTES_MAX: Final = 256 * KIB
"""Maximum size of a batch, also decompressed, that is decoded on the event loop: a larger one would
delay the quorum's heartbeats."""
_TOPIC_IDS_FROM: Final = 13
_ZSTD_FROM: Final = 7
_TEXT_FROM: Final = 8
_ACKS: Final = (-1, 0, 1)
_CODES: Final = {int(one): one for one in ErrorCode}
_WITH_LEADER: Final = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)


@dataclass(frozen=True, slots=True)
class Refused:
    """Rejected append: Kafka's error code and message."""

    error: ErrorCode
    text: str | None = None


_Submitted: TypeAlias = asyncio.Future[RequestResult] | Refused


async def handle_produce(
    question: Question[latest_schemas.ProduceRequest],
) -> latest_schemas.ProduceResponse | None:
    view, request = question.view, question.request
    async with question.origin.placing:
        submitted = [
            [await _submit(question, topic, partition) for partition in topic.partition_data]
            for topic in request.topic_data
        ]
    until_ms = view.node.now_ms() + max(milliseconds(request.timeout), 0)
    topics = [
        latest_schemas.ProducedTopic(
            topic_id=topic.topic_id,
            name=topic.name,
            partition_responses=tuple(
                [
                    _build_response(question, partition.index, await _outcome(view, one, until_ms))
                    for partition, one in zip(topic.partition_data, appends, strict=True)
                ]
            ),
        )
        for topic, appends in zip(request.topic_data, submitted, strict=True)
    ]
    if request.acks == 0:
        _raise_if_failed(topics)
        return None
    return latest_schemas.ProduceResponse(
        responses=tuple(topics),
        throttle_time=duration(0),
        node_endpoints=_endpoints(view, topics),
    )


# --- submitting -----------------------------------------------------------------------------------


async def _submit(
    question: Question[latest_schemas.ProduceRequest],
    topic: latest_schemas.ProduceTopic,
    partition: requests.PartitionProduceData,
) -> _Submitted:
    """Submit one batch to the log, or return why it is rejected."""
    view, request = question.view, question.request
    error = _error(question, topic.topic_id, topic.name, partition.index)
    if error is not ErrorCode.none:
        return Refused(error)
    if request.transactional_id is not None:
        return Refused(ErrorCode.unsupported_version, NO_TRANSACTIONS)
    if not view.is_leader:
        return _not_leader(view)
    config = view.node.replica.log.config
    data = partition.records
    if not data:
        return _refused(
            InvalidAppendError(reason="a request has exactly one record batch per partition")
        )
    try:
        header = read_header(data, byte_count_max=config.batch_bytes_max)
        if header.compression is Compression.ZSTD and question.version < _ZSTD_FROM:
            return Refused(ErrorCode.unsupported_compression_type)
        deadline_ms = view.node.now_ms() + milliseconds(request.timeout)
        gate = question.origin.gate
        read = partial(append_request, data, header, config, deadline_ms=deadline_ms, gate=gate)
        append = await _read(question, read, len(data))
    except LogError as refusal:
        return _refused(refusal)
    if not view.is_leader:
        return _not_leader(view)
    commit_refusal = _commit_refusal(question, append)
    if commit_refusal is not None:
        return commit_refusal
    records = append.records
    result = view.node.append(append)
    if isinstance(records, PackedRecords):
        _hold(question.origin.budget, records.byte_count(), result)
    return result


def _hold(budget: BudgetShare, byte_count: int, result: asyncio.Future[RequestResult]) -> None:
    """Count the decompressed size of a batch until its append is done: it may be a thousand times
    the size of the request."""
    budget.take(byte_count)
    result.add_done_callback(lambda _: budget.give(byte_count))


async def _read(
    question: Question[latest_schemas.ProduceRequest],
    read: Callable[..., AppendRequest],
    byte_count: int,
) -> AppendRequest:
    """Decode a batch here, or on the executor if it is large. Raises the errors of ``read``."""
    if byte_count <= READ_AT_ONCE_BYTES_MAX:
        try:
            return read(decompressed_bytes_max=READ_AT_ONCE_BYTES_MAX)
        except DecompressionLimitError:
            pass  # large once decompressed
    return await question.view.executor(read)


def _not_leader(view: MetadataCache) -> Refused:
    epoch = view.core.epoch
    return _refused(NotLeaderError(epoch=epoch, current_epoch=epoch))


def _error(
    question: Question[latest_schemas.ProduceRequest],
    topic_id: uuid.UUID | None,
    name: str,
    partition: int,
) -> ErrorCode:
    """Return the error of an append by topic, partition, rights and acks, or ``none``."""
    view, request = question.view, question.request
    if request.acks not in _ACKS:
        return ErrorCode.invalid_required_acks
    if Rights.APPEND not in question.caller.rights:
        return ErrorCode.topic_authorization_failed
    if question.version >= _TOPIC_IDS_FROM:
        return view.id_error(topic_id, partition)
    return view.name_error(name, partition)


def _commit_refusal(
    question: Question[latest_schemas.ProduceRequest], append: AppendRequest
) -> Refused | None:
    """Return why the principal may not append a named commit, None if it may."""
    if append.commit is None:
        return None
    caller, name = question.caller, append.commit.application_id
    if not caller.may_commit(name):
        return Refused(
            ErrorCode.transactional_id_authorization_failed,
            f"{caller.name!r} may not commit under application id {name!r}: no pattern in "
            "[access.commits] of the nodes allows it",
        )
    memory, commits = question.view.node.replica.log.producer_state, caller.commits
    if commits is None or memory.last_commit(name) is not None:
        return None
    own = (one for one in reversed(memory.commits) if commits.owns(one.name.application_id))
    if sum(1 for _ in itertools.islice(own, commits.names_max)) < commits.names_max:
        return None
    return Refused(
        ErrorCode.policy_violation,
        f"the log has {commits.names_max} application ids of {caller.name!r}, the maximum, and "
        f"{name!r} is not one of them: reuse one, or raise commit_names_max in [access] of the "
        "nodes",
    )


def _refused(error: LogError) -> Refused:
    code = ErrorCode.corrupt_message
    if not isinstance(error, CorruptBatchError):
        code = _CODES.get(produce_error_code(error), ErrorCode.unknown_server_error)
    return Refused(code, produce_error_message(error))


# --- response -------------------------------------------------------------------------------------


async def _outcome(
    view: MetadataCache, submitted: _Submitted, until_ms: int
) -> RequestResult | Refused:
    if isinstance(submitted, Refused):
        return submitted
    if not submitted.done():
        await view.node.wait_until(submitted.done, timeout_ms=until_ms - view.node.now_ms())
    if submitted.done():
        return submitted.result()
    reason = "it was not committed within the timeout of the request"
    return failed(AppendUnknownError(path=view.node.replica.log.path, reason=reason))


def _build_response(
    question: Question[latest_schemas.ProduceRequest], index: int, outcome: RequestResult | Refused
) -> responses.PartitionProduceResponse:
    view = question.view
    if isinstance(outcome, Failed):
        code = _CODES.get(produce_error_code(outcome.error), ErrorCode.unknown_server_error)
        outcome = Refused(code, produce_error_message(outcome.error))
    if isinstance(outcome, Refused):
        leader = responses.LeaderIdAndEpoch()
        if outcome.error in _WITH_LEADER:
            leader = responses.LeaderIdAndEpoch(
                leader_id=node(view.leader_id()), leader_epoch=int32(view.core.epoch)
            )
        return responses.PartitionProduceResponse(
            index=int32(index),
            error_code=outcome.error,
            base_offset=int64(-1),
            log_append_time=None,
            record_errors=(),
            error_message=outcome.text,
            current_leader=leader,
        )
    result = outcome.value
    assert isinstance(result, AppendResult), "the request is an append"
    return responses.PartitionProduceResponse(
        index=int32(index),
        error_code=ErrorCode.none,
        base_offset=int64(result.base_offset),
        log_append_time=None,
        log_start_offset=int64(or_minus_one(view.node.replica.log.log_start_offset)),
        record_errors=(),
        error_message=appended_message(
            Appended(result.epoch, result.was_duplicate, result.last_offset)
        )
        if question.version >= _TEXT_FROM
        else None,
    )


def _endpoints(
    view: MetadataCache, topics: Sequence[latest_schemas.ProducedTopic]
) -> tuple[responses.NodeEndpoint, ...]:
    """Return the leader's endpoint if a partition's response refers to the leader (KIP-951)."""
    is_asked = any(
        one.current_leader.leader_id >= 0 for topic in topics for one in topic.partition_responses
    )
    leader = view.leader() if is_asked else None
    if leader is None:
        return ()
    endpoint = responses.NodeEndpoint(
        node_id=node(leader.node_id), host=leader.host, port=int32(leader.port)
    )
    return (endpoint,)


def _raise_if_failed(topics: Sequence[latest_schemas.ProducedTopic]) -> None:
    for topic in topics:
        for one in topic.partition_responses:
            if one.error_code is not ErrorCode.none:
                reason = one.error_message or one.error_code.name
                raise UnacknowledgedAppendError(reason=reason)
