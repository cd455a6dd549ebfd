"""Produce: appends, one batch for a partition, placed in the order in which they came.

Rules of this file:

1. Every append waits for its commit, whatever acks says; acks 0 only gets no answer, and if it
   fails its connection is closed.
2. All is placed before anything is waited for, and requests of one connection in their order. A
   batch that takes long to read is read beside the loop, and who came later waits for it.
   What was not answered within the request's time may yet be committed: REQUEST_TIMED_OUT, as in
   Kafka.
3. A repeat that the log knows is answered with the offsets that it got then: stock clients take
   Kafka's DUPLICATE_SEQUENCE_NUMBER for success too, but without the offset.
4. A commit is checked against the log only for a caller that its application id belongs to: to
   another, neither offsets nor a refusal tells anything of it.
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

from raftlog.client.requests import AppendRequest, AppendResult, Failed, RequestResult, failed
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
from raftlog.records.packed import PackedRecords
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
"""How large a batch is looked at between two heartbeats of the quorum, decompressed too."""
_TOPIC_IDS_FROM: Final = 13
_ZSTD_FROM: Final = 7
_TEXT_FROM: Final = 8
_ACKS: Final = (-1, 0, 1)
_CODES: Final = {int(one): one for one in ErrorCode}
_WITH_LEADER: Final = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)


@dataclass(frozen=True, slots=True)
class Refused:
    """An append that never was: Kafka's code, and why."""

    error: ErrorCode
    text: str | None = None


_Placed: TypeAlias = asyncio.Future[RequestResult] | Refused


async def handle_produce(
    question: Question[latest_schemas.ProduceRequest],
) -> latest_schemas.ProduceResponse | None:
    view, request = question.view, question.request
    async with question.origin.placing:
        placed = [
            [await _place(question, topic, partition) for partition in topic.partition_data]
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
        for topic, appends in zip(request.topic_data, placed, strict=True)
    ]
    if request.acks == 0:
        _raise_if_failed(topics)
        return None
    return latest_schemas.ProduceResponse(
        responses=tuple(topics),
        throttle_time=duration(0),
        node_endpoints=_endpoints(view, topics),
    )


# --- placing --------------------------------------------------------------------------------------


async def _place(
    question: Question[latest_schemas.ProduceRequest],
    topic: latest_schemas.ProduceTopic,
    partition: requests.PartitionProduceData,
) -> _Placed:
    """Have one batch appended, or say why not."""
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
        return _refused(InvalidAppendError(reason="a request holds one batch for a partition"))
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
    placed = view.node.append(append)
    if isinstance(records, PackedRecords):
        _hold(question.origin.budget, records.byte_count(), placed)
    return placed


def _hold(budget: BudgetShare, byte_count: int, placed: asyncio.Future[RequestResult]) -> None:
    """Count what a batch was decompressed to until its append is answered: the frame that brought
    it may be a thousandth of that."""
    budget.take(byte_count)
    placed.add_done_callback(lambda _: budget.give(byte_count))


async def _read(
    question: Question[latest_schemas.ProduceRequest],
    read: Callable[..., AppendRequest],
    byte_count: int,
) -> AppendRequest:
    """Read a batch at once, or beside the loop if that takes long. Raises what ``read`` raises."""
    if byte_count <= READ_AT_ONCE_BYTES_MAX:
        try:
            return read(decompressed_bytes_max=READ_AT_ONCE_BYTES_MAX)
        except DecompressionLimitError:
            pass  # few bytes may become many
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
    """Why nothing may be appended there by this caller in this way."""
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
    """Return why this caller may not append a commit of this name; None if it may."""
    if append.commit is None:
        return None
    caller, name = question.caller, append.commit.application_id
    if not caller.may_commit(name):
        return Refused(
            ErrorCode.transactional_id_authorization_failed,
            f"{caller.name!r} may not commit under application id {name!r}: no pattern in "
            "[access.commits] of the nodes gives it",
        )
    memory, commits = question.view.node.replica.log.producer_state, caller.commits
    if commits is None or memory.last_commit(name) is not None:
        return None
    own = (one for one in reversed(memory.commits) if commits.owns(one.name.application_id))
    if sum(1 for _ in itertools.islice(own, commits.names_max)) < commits.names_max:
        return None
    return Refused(
        ErrorCode.policy_violation,
        f"the log remembers {commits.names_max} application ids of {caller.name!r}, and {name!r} "
        "is not one of them: use one of those, or raise commit_names_max in [access] of the nodes",
    )


def _refused(error: LogError) -> Refused:
    code = ErrorCode.corrupt_message
    if not isinstance(error, CorruptBatchError):
        code = _CODES.get(produce_error_code(error), ErrorCode.unknown_server_error)
    return Refused(code, produce_error_message(error))


# --- answering ------------------------------------------------------------------------------------


async def _outcome(view: MetadataCache, placed: _Placed, until_ms: int) -> RequestResult | Refused:
    if isinstance(placed, Refused):
        return placed
    if not placed.done():
        await view.node.wait_until(placed.done, timeout_ms=until_ms - view.node.now_ms())
    if placed.done():
        return placed.result()
    reason = "it was not committed in the time that was given"
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
    assert isinstance(result, AppendResult), "an append was asked for"
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
    """Where the leader listens, if an answer sends the client there."""
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
