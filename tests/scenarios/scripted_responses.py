"""Responses that a scenario writes by hand, in place of the receiving node."""

from __future__ import annotations

from raftlog.quorum.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    ErrorCode,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    LeaderAndEpoch,
    Response,
    VoteRequest,
    VoteResponse,
)
from raftlog.records.control import KRaftVoters, Voter, encode_control
from raftlog.records.record import NewRecord
from raftlog.types import ZERO_UUID, OffsetAndEpoch
from tests.simulation.driven_node import TIME_MS
from tests.support.batch_encoding import NewRecordBatch, encode_batch

from .arguments import Arguments
from .formatting import parse_snapshot_id
from .message_queue import Message


def scripted_response(request: Message, words: Arguments) -> Message:
    """Return the response that a command describes, to a request in flight."""
    return Message(
        request.asker,
        request.asked,
        request.life,
        request.correlation_id,
        request.kind,
        _scripted_response(request, words),
        is_response=True,
    )


def _scripted_response(request: Message, words: Arguments) -> Response:
    leader_and_epoch = LeaderAndEpoch(
        epoch=words.number("epoch", 0), leader_id=words.optional("leader")
    )
    error = ErrorCode[words.text("error") or "NONE"]
    snapshot, diverging = words.text("snapshot"), words.text("diverging")
    if isinstance(request.body, VoteRequest):
        granted = words.text("granted") == "yes"
        return VoteResponse(leader_and_epoch=leader_and_epoch, is_granted=granted, error=error)
    if isinstance(request.body, FetchSnapshotRequest):
        return FetchSnapshotResponse(
            leader_and_epoch=leader_and_epoch,
            error=error,
            snapshot_id=request.body.snapshot_id
            if snapshot is None
            else parse_snapshot_id(snapshot),
            position=words.number("position", 0),
            byte_count=words.number("byte_count", 0),
            data=b"?" * words.number("data", 0),
        )
    if isinstance(request.body, BeginQuorumEpochRequest):
        return BeginQuorumEpochResponse(leader_and_epoch=leader_and_epoch, error=error)
    if isinstance(request.body, EndQuorumEpochRequest):
        return EndQuorumEpochResponse(leader_and_epoch=leader_and_epoch, error=error)
    assert isinstance(request.body, FetchRequest), "only these responses can be scripted"
    end = None
    if diverging is not None:
        offset, epoch = diverging.split("@")
        end = OffsetAndEpoch(epoch=int(epoch), offset=int(offset))
    return FetchResponse(
        leader_and_epoch=leader_and_epoch,
        error=error,
        high_watermark=words.optional("high_watermark"),
        records=_batches(words.text("batches")) or (words.text("records") or "").encode(),
        diverging=end,
        snapshot_id=None if snapshot is None else parse_snapshot_id(snapshot),
    )


def _batches(named: str | None) -> bytes:
    """``2/1/a,3/1/b``: one record each, offset, epoch and value.

    ``2/1/kraft-voters:1+2`` is a control record with these voters.
    """
    data = b""
    for words in (named or "").split(",") if named else ():
        offset, epoch, value = words.split("/")
        what, _, ids = value.partition(":")
        is_control = what == "kraft-voters"
        record = _voters_record(ids) if is_control else NewRecord(None, value.encode())
        batch = NewRecordBatch(records=(record,), base_timestamp_ms=TIME_MS, is_control=is_control)
        data += encode_batch(batch, base_offset=int(offset), leader_epoch=int(epoch))
    return data


def _voters_record(ids: str) -> NewRecord:
    """Return a voter set of the voters ``1+2``, which may be invalid."""
    voters = tuple(
        Voter(
            voter_id=int(one),
            voter_directory_id=ZERO_UUID,
            endpoints=(),
            min_supported_version=0,
            max_supported_version=1,
        )
        for one in ids.split("+")
        if one
    )
    return NewRecord(*encode_control(KRaftVoters(voters=voters)))
