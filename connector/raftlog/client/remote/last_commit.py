"""Lookup of the last named commit of an application id, by three requests:

1. OffsetFetch returns its version and query id, but no offsets.
2. Produce appends the same commit again, with a required offset that no log reaches. The leader
   checks the identity first and returns the existing offsets, which it has even after retention
   deleted the records; otherwise it refuses the offset. So nothing is ever written.
3. Fetch returns its batch, which has the timestamp.

If another commit was appended in between, the lookup starts again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftlog.append.requests import AppendRequest, AppendResult
from raftlog.errors import (
    AppendUnknownError,
    ForeignCommitError,
    InvalidAppendError,
    QuorumUnavailableError,
    StaleCommitError,
    UnexpectedEndOffsetError,
)
from raftlog.log.writing.batch_metadata import CommitName, ValueKind
from raftlog.log.writing.producer_state import LastCommit
from raftlog.records.batch import RecordBatch, read_batch

from .leader_client import LeaderClient
from .sendings import IMPOSSIBLE_OFFSET

ATTEMPTS_MAX: Final = 100
_ANY_VALUE: Final = {
    ValueKind.BYTES: b"",
    ValueKind.MSGPACK: b"\x93\x00\x00\x90",  # [0, 0, []]
    ValueKind.KRAFT: b"\x01\x00\x00",  # frame version 1, api key 0, version 0
}


def last_commit(
    quorum: LeaderClient,
    values: ValueKind,
    application_id: str,
    deadline_ms: float,
    submit: Callable[[AppendRequest], None],
    now_ms: Callable[[], float],
) -> LastCommit | None:
    """Return the last commit of an application id, or None if the log has none.

    Its ``timestamp_ms`` is -1 if its records are deleted. Raises as ``LeaderClient.last_commit``
    and ``submit``.
    """
    began_ms = now_ms()
    for _ in range(ATTEMPTS_MAX):
        left_ms = max(deadline_ms - now_ms(), 0)
        committed = quorum.last_commit(application_id, timeout_ms=left_ms)
        if committed is None:
            return None
        name = CommitName(application_id, committed.query_id, committed.version)
        try:
            appended = _appended(name, values, deadline_ms, submit)
        except AppendUnknownError as lost:  # nothing was written: the required offset is impossible
            waited_ms = int(now_ms() - began_ms)
            raise QuorumUnavailableError(
                path=quorum.path, waited_ms=waited_ms, reason=lost.reason
            ) from None
        if appended is None:
            continue
        timestamp_ms = _timestamp_of(quorum, appended)
        return LastCommit(name, appended.base_offset, appended.last_offset, timestamp_ms)
    raise QuorumUnavailableError(
        path=quorum.path, waited_ms=0, reason=f"{application_id!r} committed again in every attempt"
    )


def _appended(
    name: CommitName,
    values: ValueKind,
    deadline_ms: float,
    submit: Callable[[AppendRequest], None],
) -> AppendResult | None:
    """Return the offsets of a commit in the log; None if it is not the last one any more."""
    request = AppendRequest(
        records=(_ANY_VALUE[values],),
        required_base_offset=IMPOSSIBLE_OFFSET,
        is_atomic=True,
        commit=name,
        deadline_ms=deadline_ms,
    )
    submit(request)
    try:
        return request.future.result()
    except (ForeignCommitError, StaleCommitError, UnexpectedEndOffsetError, InvalidAppendError):
        return None


def _timestamp_of(quorum: LeaderClient, appended: AppendResult) -> int:
    """Return the timestamp of a commit's batch; -1 if the batch is deleted."""
    byte_count_max = 1
    while True:
        fetched = quorum.fetch(appended.base_offset, byte_count_max=byte_count_max)
        if not fetched.data:
            return -1
        batch = read_batch(fetched.data, path=quorum.path)
        if isinstance(batch, RecordBatch):
            is_there = batch.base_offset == appended.base_offset
            return batch.max_timestamp_ms if is_there else -1
        byte_count_max = max(2 * len(fetched.data), 1024)
