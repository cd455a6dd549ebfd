"""Validation of the end of a read against an earlier one, and descriptions of ends.

The end of one copy may decrease between two reads: a voter truncates uncommitted records, or
another directory is given. No record is lost by that: the previous end is kept until the log passes
it again. Loss is a conflicting leader epoch at the offset before the previous end
(``RaftLog.validateOffsetAndEpoch``, ``DivergingEpoch``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from raftlog.errors import DivergedLogError

from .cursor import LogTail
from .epoch_cache import EpochCache
from .reads import EndBasis, ReadEnd


@dataclass(frozen=True, slots=True)
class LogExtent:
    """Path, start and end offset, and leader epochs of one copy of a log."""

    path: str
    log_start_offset: int
    log_end_offset: int
    epochs: EpochCache


def not_below_previous(found: ReadEnd, previous: ReadEnd | None, log: LogExtent) -> ReadEnd:
    """Return ``found``, or ``previous`` with ``lower_offset`` set if the end decreased.

    Raises ``DivergedLogError``, see ``check_leader_epoch``.
    """
    if previous is None:
        return found
    check_leader_epoch(previous.offset, previous.epoch, log)
    if found.offset >= previous.offset:
        return found
    return replace(previous, lower_offset=found.offset)


def check_leader_epoch(offset: int, epoch: int, log: LogExtent) -> None:
    """Check that the record before ``offset`` has leader epoch ``epoch``, if the log has it.

    Passes where that record was deleted or is not replicated to this copy yet, unless a later epoch
    begins before ``offset``. Raises ``DivergedLogError`` if the log has another epoch there.
    """
    if epoch <= 0 or offset <= log.log_start_offset:
        return
    actual = log.epochs.epoch_at(offset - 1)
    if actual is None or (actual < epoch and offset > log.log_end_offset):
        return  # unknown, or the copy lags behind
    if actual != epoch:
        raise DivergedLogError(
            path=log.path,
            offset=offset - 1,
            expected_epoch=epoch,
            epoch=actual,
            remedy="the records that were read there were truncated before they were committed: "
            "read again from an offset before them",
        )


def describe_end(basis: EndBasis, tail: LogTail | None, *, holdback_ms: int = 0) -> str:
    """Return how an end was chosen, and the damage after it, as text."""
    match basis:
        case EndBasis.DIRECTORY:
            text = "the end of this one directory: its last records may not be committed"
        case EndBasis.HOLDBACK:
            text = (
                f"the end of this one directory without records younger than {holdback_ms} ms: "
                "very likely committed"
            )
        case EndBasis.EMBEDDED:
            text = "the synced end of this embedded log: committed"
        case EndBasis.HIGH_WATERMARK:
            text = "the high watermark of the quorum's leader: committed"
        case EndBasis.FILE:
            text = "the end of this one file: its last records may not be committed"
        case EndBasis.MAJORITY:
            text = "the records that a majority of the voters has: committed"
        case EndBasis.REPLICAS:
            text = (
                "the records that all copies have: committed if they include all in-sync replicas"
            )
    if tail is not None and tail.error is not None:
        text += f"; the {tail.byte_count} bytes after it are damaged: {tail.error.reason}"
    return text
