"""Numbers of different kinds in each other's place are found by mypy, not by a run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

HOME = Path(__file__).parents[2]
CORRECT = """
from raftlog.log.format.epoch_cache import EpochEntry, EpochValidation
from raftlog.log.segment import BatchHeader
from raftlog.log.writing.active_segment import ActiveSegment, SyncState
from raftlog.quorum.effects import Send
from raftlog.quorum.state import ReplicaState
from raftlog.types import NodeId, Position

def use(
    header: BatchHeader, segment: ActiveSegment, state: ReplicaState, log: EpochValidation
) -> None:
    EpochEntry(epoch=header.leader_epoch, start_offset=header.base_offset)
    log.validate(offset=header.base_offset, epoch=header.leader_epoch)
    SyncState(header.base_offset, segment.byte_count)
    state.become_follower(header.leader_epoch, NodeId(2))
"""
SWAPPED = """
    EpochEntry(header.base_offset, header.leader_epoch)
    log.validate(header.leader_epoch, header.base_offset)
    SyncState(segment.byte_count, header.base_offset)
    state.become_follower(NodeId(2), header.leader_epoch)
    Send(2, 7, (), state)
"""


@pytest.mark.nightly
def test_mypy_rejects_each_call_with_two_numbers_swapped(tmp_path: Path) -> None:
    """Without the cache of ``make check``, which has the correct calls of the sources."""
    source = tmp_path / "calls.py"
    source.write_text(CORRECT + SWAPPED.removeprefix("\n"))
    config = ["--config-file", str(HOME / "setup.cfg"), "--cache-dir", str(tmp_path / "cache")]
    output, trouble, _ = api.run([*config, "--no-error-summary", str(source)])
    first = CORRECT.count("\n") + 1
    rejected = {int(line) for line in re.findall(r"calls\.py:(\d+): error:", output)}
    assert not trouble
    assert rejected == set(range(first, first + SWAPPED.count("\n") - 1)), output
