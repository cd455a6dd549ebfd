"""Compare the copies of one log: each with the most up-to-date one."""

from __future__ import annotations

from collections.abc import Iterator

from raftlog.client import EndBasis, Isolation
from raftlog.client.inspection import Divergence, QuorumCopies, first_divergence
from raftlog.errors import CorruptBatchError, CorruptFileError, TooFewVotersError

from .findings import Finding, Kind, damage, note


def divergences(log: QuorumCopies) -> Iterator[Finding]:
    """Where copies differ.

    It is damage, except in offsets that a quorum has not committed: a node that led without a
    majority truncates those when it follows again.
    """
    try:
        newest = log.newest_log()
        committed = _committed_end(log)
    except CorruptBatchError:
        return  # nothing in one of them is a batch: its own check says so
    for copy in log.logs:
        found = None if copy is newest else first_divergence(newest, copy)
        if found is None:
            continue
        where = found.other.path or copy.path
        reason = f"the copies diverge here: {found.text()}"
        is_normal = committed is not None and found.offset >= committed and _has_epochs(found)
        made = note if is_normal else damage
        if is_normal:
            reason += "; the offset is not committed, and one of them will be truncated"
        yield made(
            Kind.DIVERGENCE, where, reason, position=found.other.position, offset=found.offset
        )


def _has_epochs(found: Divergence) -> bool:
    """Whether the epochs of the batches tell them apart: then nodes notice it themselves."""
    return found.one.leader_epoch != found.other.leader_epoch


def _committed_end(log: QuorumCopies) -> int | None:
    """What a majority of the voters holds, None if that is not known."""
    try:
        end = log.read_end(isolation=Isolation.READ_UNCOMMITTED)
    except (TooFewVotersError, CorruptFileError):
        return None
    return end.offset if end.basis is EndBasis.MAJORITY else None
