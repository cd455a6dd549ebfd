"""What a bystander takes for a broken promise, and what not."""

from __future__ import annotations

import pytest

from raftlog.log.writing.replica_log import ReplicaLog
from tests.simulation.invariants import BrokenPromiseError, Witness
from tests.support.one_replica import OneReplica

OTHER = 2
LIFE = 1


def log_with(values: list[bytes]) -> ReplicaLog:
    """The log of a node that led epoch 1 and appended this."""
    one = OneReplica()
    one.elect()
    if values:
        one.log.append(1, values)
    return one.replica.log


def test_a_leader_without_what_was_committed_before_its_epoch_breaks_the_promise() -> None:
    witness = Witness()
    whole, short = log_with([b"a"]), log_with([])
    witness.saw_high_watermark(1, LIFE, 1, whole.end_offset, whole)
    witness.saw_leader(OTHER, LIFE, 2, whole)
    with pytest.raises(BrokenPromiseError, match="leader completeness"):
        witness.saw_leader(OTHER, LIFE, 3, short)


def test_a_leader_whose_begin_was_held_up_needs_nothing_of_a_later_epoch() -> None:
    witness = Witness()
    whole, short = log_with([b"a"]), log_with([])
    witness.saw_high_watermark(1, LIFE, 1, short.end_offset, whole)
    witness.saw_high_watermark(1, LIFE, 5, whole.end_offset, whole)
    witness.saw_leader(OTHER, LIFE, 4, short)
    with pytest.raises(BrokenPromiseError, match="leader completeness"):
        witness.saw_leader(OTHER, LIFE, 6, short)


def test_a_leader_whose_begin_was_held_up_still_holds_the_same_history() -> None:
    witness = Witness()
    whole, other = log_with([b"a"]), log_with([b"b"])
    witness.saw_high_watermark(1, LIFE, 3, whole.end_offset, whole)
    with pytest.raises(BrokenPromiseError, match="never change"):
        witness.saw_leader(OTHER, LIFE, 4, other)
    witness.saw_leader(OTHER, LIFE, 2, other)
