"""Leader epochs of a quorum's log, requested from its leader from the newest one down.

A leader returns the end offset of an epoch (KIP-101), where the next one starts. Committed records
keep their epoch, so only new epochs are requested again.
"""

from __future__ import annotations

from raftlog.log.format.epoch_cache import EpochCache
from raftlog.types import OffsetAndEpoch

from .leader_client import LeaderClient


def fetch_leader_epochs(
    quorum: LeaderClient, known: EpochCache, log_start_offset: int
) -> EpochCache:
    """Return all epochs from the one at the log's start on. ``known``: those of the last call."""
    found: list[tuple[int, int]] = []
    end = quorum.end_offset_for_epoch(quorum.leader_epoch())
    while end is not None and end.offset > log_start_offset:
        before = _end_before(quorum, end.epoch)
        start_offset = 0 if before is None else before.offset
        if start_offset >= end.offset:
            break  # below its first epoch a leader returns the requested one
        found.append((end.epoch, start_offset))
        entry = next((one for one in known.entries if one.epoch == end.epoch), None)
        if entry is not None and entry.start_offset == start_offset:
            break
        end = before
    return known.assign_all(reversed(found)).without_before(log_start_offset)


def _end_before(quorum: LeaderClient, epoch: int) -> OffsetAndEpoch | None:
    return None if epoch <= 0 else quorum.end_offset_for_epoch(epoch - 1)
