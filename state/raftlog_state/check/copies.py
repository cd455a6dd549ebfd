"""Comparison of the replicas of one log with the most up-to-date one."""

from __future__ import annotations

from collections.abc import Generator

from raftlog.client import EndBasis, Isolation
from raftlog.client.inspection import Divergence, QuorumCopies, first_divergence
from raftlog.errors import CorruptBatchError, CorruptFileError, TooFewVotersError

from .findings import Finding, Kind, damage, note


def divergences(log: QuorumCopies) -> Generator[Finding, None, int]:
    """Yield a finding for each replica that diverges from the most up-to-date one.

    Return the number of compared replicas: 0 if one of them cannot be compared.

    A divergence below the committed offset is damage. Above it, a former leader truncates its
    uncommitted records when it becomes a follower.
    """
    try:
        newest = log.newest_log()
        committed = _committed_end(log)
    except (CorruptBatchError, CorruptFileError):
        return 0  # its own check reports a replica without any batch or a valid quorum-state
    for copy in log.logs:
        found = None if copy is newest else first_divergence(newest, copy)
        if found is None:
            continue
        where = found.other.path or copy.path
        reason = f"the replicas diverge here: {found.text()}"
        is_normal = committed is not None and found.offset >= committed and _has_epochs(found)
        make = note if is_normal else damage
        if is_normal:
            reason += "; the offset is not committed, and one of the replicas will be truncated"
        yield make(
            Kind.DIVERGENCE, where, reason, position=found.other.position, offset=found.offset
        )
    return len(log.logs)


def _has_epochs(found: Divergence) -> bool:
    """Return whether the batches differ in epoch, so that Raft's log matching detects it."""
    return found.one.leader_epoch != found.other.leader_epoch


def _committed_end(log: QuorumCopies) -> int | None:
    """Return the end offset of a majority of the voters, None if it is unknown."""
    try:
        end = log.read_end(isolation=Isolation.READ_UNCOMMITTED)
    except (TooFewVotersError, CorruptFileError):
        return None
    return end.offset if end.basis is EndBasis.MAJORITY else None
