"""Stable one-line formats of the events of a scenario.

A request is ``sender -> receiver Kind fields``, its response ``sender <- receiver Kind fields``.
"""

from __future__ import annotations

from collections.abc import Iterator

from raftlog.append import AppendRequest, Done, RequestResult
from raftlog.errors import CorruptBatchError, UnexpectedEndOffsetError
from raftlog.quorum.effects import ElectionState, RoleChanged
from raftlog.quorum.messages import (
    AddVoterRequest,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    ErrorCode,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RemoveVoterRequest,
    Request,
    Response,
    UpdateVoterRequest,
    VersionsRequest,
    VersionsResponse,
    VoterChangeResponse,
    VoteRequest,
    VoteResponse,
)
from raftlog.quorum.roles import Follower, Prospective, Role, RoleType, Unattached
from raftlog.records.batch import RecordBatch, TornTail, read_batch
from raftlog.records.control import control_name
from raftlog.types import ReplicaKey, SnapshotId


def format_request(request: Request) -> str:
    match request:
        case VoteRequest():
            kind = "PreVote" if request.is_pre_vote else "Vote"
            return (
                f"{kind} epoch={request.epoch} last_offset={request.last_offset} "
                f"last_epoch={request.last_epoch}"
            )
        case BeginQuorumEpochRequest():
            return f"Begin epoch={request.epoch} leader={request.leader_id}"
        case EndQuorumEpochRequest():
            preferred = ",".join(str(key.node_id) for key in request.preferred_successors)
            return f"End epoch={request.epoch} leader={request.leader_id} preferred={preferred}"
        case FetchRequest():
            return (
                f"Fetch epoch={request.epoch} offset={request.fetch_offset} "
                f"last_fetched_epoch={request.last_fetched_epoch} "
                f"high_watermark={_or_none(request.high_watermark)}"
            )
        case FetchSnapshotRequest():
            return (
                f"FetchSnapshot epoch={request.epoch} id={format_snapshot_id(request.snapshot_id)} "
                f"position={request.position}"
            )
        case AddVoterRequest() | UpdateVoterRequest():
            kind = "AddVoter" if isinstance(request, AddVoterRequest) else "UpdateVoter"
            return f"{kind} voter={request.voter.key.node_id}"
        case RemoveVoterRequest():
            return f"RemoveVoter voter={request.voter.node_id}"
        case VersionsRequest():
            return "Versions"


def format_response(response: Response, *, is_pre_vote: bool = False) -> str:
    if isinstance(response, VersionsResponse):
        return f"Versions {response.kraft_version_min} to {response.kraft_version_max}"
    error = response.error
    leader_and_epoch = response.leader_and_epoch
    outcome = f"epoch={leader_and_epoch.epoch} leader={_or_none(leader_and_epoch.leader_id)}"
    match response:
        case VoteResponse():
            kind = "PreVote" if is_pre_vote else "Vote"
            said = "granted" if response.is_granted else "refused"
        case BeginQuorumEpochResponse():
            kind, said = "Begin", "done"
        case EndQuorumEpochResponse():
            kind, said = "End", "done"
        case FetchResponse():
            kind, said = "Fetch", _fetched(response)
        case FetchSnapshotResponse():
            kind = "FetchSnapshot"
            said = (
                f"{format_snapshot_id(response.snapshot_id)} bytes {response.position} to "
                f"{response.position + len(response.data)} of {response.byte_count}"
            )
        case VoterChangeResponse():
            kind, said = "VoterChange", "done"
            if response.reason is not None:
                outcome = f"({response.reason}) {outcome}"
    return f"{kind} {said if error is ErrorCode.NONE else error.name} {outcome}"


def _fetched(response: FetchResponse) -> str:
    high_watermark = f"high_watermark={_or_none(response.high_watermark)}"
    if response.diverging is not None:
        end = response.diverging
        return f"diverging end_offset={end.offset} of_epoch={end.epoch} {high_watermark}"
    if response.snapshot_id is not None:
        return f"snapshot={format_snapshot_id(response.snapshot_id)} {high_watermark}"
    return f"{format_records(response.records) or 'nothing'} {high_watermark}"


def format_records(data: bytes) -> str:
    """``0 leader-change @1, 1-2 "a" "b" @1``: offsets, records, epoch."""
    try:
        return ", ".join(format_batch(batch) for batch in batches_of(data))
    except CorruptBatchError:
        return f"{len(data)} bytes that are damaged"


def batches_of(data: bytes) -> Iterator[RecordBatch]:
    position = 0
    while not isinstance(batch := read_batch(data, position), TornTail):
        yield batch
        position += batch.byte_count


def format_batch(batch: RecordBatch) -> str:
    first, last = batch.base_offset, batch.next_offset - 1
    place = str(first) if first == last else f"{first}-{last}"
    if batch.is_control:
        said = " ".join(_dashed(control_name(record.key)) for record in batch.records())
    else:
        said = " ".join(
            quoted(record.value) if record.value is not None else "null"
            for record in batch.records()
        )
    return f"{place} {said} @{batch.leader_epoch}"


def quoted(value: bytes) -> str:
    text = value.decode(errors="replace")
    return f'"{text}"' if len(text) <= 20 else f'"{text[:8]}..." ({len(value)} bytes)'


def _dashed(name: str) -> str:
    return name.lower().replace("_", "-")


def format_role(role: Role) -> str:
    return _format_role(type(role), role.epoch, role.leader_id)


def format_role_change(change: RoleChanged) -> str:
    return _format_role(change.new, change.epoch, change.leader_id)


def _format_role(kind: RoleType, epoch: int, leader_id: int | None) -> str:
    words = f"{kind.__name__.lower()} epoch={epoch}"
    if kind in (Unattached, Prospective, Follower):
        words += f" leader={_or_none(leader_id)}"
    return words


def format_election(state: ElectionState) -> str:
    return (
        f"epoch={state.epoch} leader={_or_none(state.leader_id)} "
        f"voted={'none' if state.voted_key is None else state.voted_key.node_id}"
    )


def format_snapshot_id(snapshot_id: SnapshotId) -> str:
    return f"{snapshot_id.end_offset}@{snapshot_id.epoch}"


def parse_snapshot_id(words: str) -> SnapshotId:
    """``5@1``: end offset 5, epoch 1 of the last record."""
    end_offset, epoch = words.split("@")
    return SnapshotId(epoch=int(epoch), end_offset=int(end_offset))


def parse_replica_key(words: str) -> ReplicaKey:
    """``2``, or ``2/<directory id>``."""
    node_id, _, directory_id = words.partition("/")
    return ReplicaKey(int(node_id), directory_id) if directory_id else ReplicaKey(int(node_id))


def format_append(request: AppendRequest) -> str:
    """Return the records of an append request; empty if there are no records."""
    return " ".join(
        quoted(record if isinstance(record, bytes) else record.value or b"")
        for record in request.records
    )


def format_append_result(records: str, answer: RequestResult) -> str:
    """Return the result of an append, after the text of ``format_append``."""
    user = f"user {records}".rstrip()
    if isinstance(answer, Done):
        result = answer.value
        said = "found at" if result.was_duplicate else "done at"
        if not records:
            return f"{user}: the end is {result.end_offset} in epoch {result.epoch}"
        return f"{user}: {said} {result.base_offset}-{result.last_offset} in epoch {result.epoch}"
    error = answer.error
    words = f"{user}: {type(error).__name__}"
    if isinstance(error, UnexpectedEndOffsetError):
        if error.required_end_offset is not None:
            words += f" wanted_end={error.required_end_offset} next={error.next_available_offset}"
        else:
            words += f" wanted_base={error.required_base_offset} next={error.log_end_offset}"
    return words


def _or_none(value: object) -> str:
    return "none" if value is None else str(value)
