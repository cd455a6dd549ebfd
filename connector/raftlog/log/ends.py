"""Ends of reads, compared over time: may the end have fallen, and what do we say of it?

Rules of this file:

1. An end may fall between two looks: a voter truncates what was never committed, another directory
   is given. Nothing is lost by it; the previous end stands until the log passes it again.
2. Loss is only what contradicts: where the log has another epoch at the offset before the previous
   end than was read there (Kafka: ``RaftLog.validateOffsetAndEpoch``, ``DivergingEpoch``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from raftlog.errors import DivergedLogError

from .cursor import LogTail
from .epoch_cache import EpochCache
from .reads import EndBasis, ReadEnd


@dataclass(frozen=True, slots=True)
class LogExtent:
    """The extent and lineage of one copy of a log."""

    path: str
    log_start_offset: int
    log_end_offset: int
    epochs: EpochCache


def not_below_previous(found: ReadEnd, previous: ReadEnd | None, log: LogExtent) -> ReadEnd:
    """``found``, or ``previous`` if the end fell. Raises ``DivergedLogError``."""
    if previous is None:
        return found
    check_leader_epoch(previous.offset, previous.epoch, log)
    if found.offset >= previous.offset:
        return found
    return replace(previous, lower_offset=found.offset)


def check_leader_epoch(offset: int, epoch: int, log: LogExtent) -> None:
    """Check that a log which holds the record before ``offset`` has it from ``epoch``.

    Nothing can be said where that record is not on disk any more, or not yet; but a later epoch
    that begins before ``offset`` says that it never will be. Raises ``DivergedLogError``.
    """
    if epoch <= 0 or offset <= log.log_start_offset:
        return
    actual = log.epochs.epoch_at(offset - 1)
    if actual is None or (actual < epoch and offset > log.log_end_offset):
        return  # not known, or a copy that is behind
    if actual != epoch:
        raise DivergedLogError(
            path=log.path,
            offset=offset - 1,
            expected_epoch=epoch,
            epoch=actual,
            remedy="the records that were read there were never committed: "
            "go back to an offset before them and read again",
        )


def describe_end(basis: EndBasis, tail: LogTail | None, *, holdback_ms: int = 0) -> str:
    """Say how an end was chosen, and what lies behind it that was not believed."""
    match basis:
        case EndBasis.DIRECTORY:
            words = "the end of this one directory: its last records may not be committed"
        case EndBasis.HOLDBACK:
            words = (
                f"this one directory without what is younger than {holdback_ms} ms: "
                "very likely committed"
            )
        case EndBasis.EMBEDDED:
            words = "what the writers of this embedded log have synced: committed"
        case EndBasis.HIGH_WATERMARK:
            words = "the high watermark, as the leader of the quorum told it: committed"
        case EndBasis.FILE:
            words = "the end of this one file: its last records may not be committed"
        case EndBasis.MAJORITY:
            words = "what a majority of the voters holds: committed"
        case EndBasis.REPLICAS:
            words = "what all copies hold: committed if all in-sync replicas are among them"
    if tail is not None and tail.error is not None:
        words += f"; the {tail.byte_count} bytes behind it are damaged: {tail.error.reason}"
    return words
