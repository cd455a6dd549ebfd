"""The leader epochs of a quorum's log, asked of its leader from the newest down.

Rules of this file:

1. An epoch begins where the one before it ends, and that is what a leader tells (KIP-101).
2. What is committed keeps its epoch: only epochs that are new are asked for again.
"""

from __future__ import annotations

from raftlog.log.epoch_cache import EpochCache
from raftlog.types import OffsetAndEpoch

from .leader_client import LeaderClient


def fetch_leader_epochs(
    quorum: LeaderClient, known: EpochCache, log_start_offset: int
) -> EpochCache:
    """All epochs from the one at the log's start on; ``known`` were told before."""
    found: list[tuple[int, int]] = []
    told = quorum.end_offset_for_epoch(quorum.leader_epoch())
    while told is not None and told.offset > log_start_offset:
        before = _end_before(quorum, told.epoch)
        start_offset = 0 if before is None else before.offset
        if start_offset >= told.offset:
            break  # below the first epoch a leader names whatever was asked for
        found.append((told.epoch, start_offset))
        entry = next((one for one in known.entries if one.epoch == told.epoch), None)
        if entry is not None and entry.start_offset == start_offset:
            break
        told = before
    return known.assign_all(reversed(found)).without_before(log_start_offset)


def _end_before(quorum: LeaderClient, epoch: int) -> OffsetAndEpoch | None:
    return None if epoch <= 0 else quorum.end_offset_for_epoch(epoch - 1)
