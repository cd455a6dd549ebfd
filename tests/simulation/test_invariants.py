"""What a bystander takes for a broken promise, and what not."""

from __future__ import annotations

import pytest

from raftlog.log.writing.replica_log import ReplicaLog
from tests.simulation.invariants import BrokenPromiseError, Witness
from tests.support.one_replica import OneReplica

OTHER = 2
LIFE = 1


def log_of_epochs(*values: bytes) -> ReplicaLog:
    """The log of a node that led once for each of these values, and appended it."""
    one = OneReplica()
    for number, value in enumerate(values):
        if number:
            one = one.restarted()
        one.elect()
        one.log.append(one.replica.core.epoch, [value])
    return one.replica.log


def commit(witness: Witness, log: ReplicaLog) -> int:
    """All of a log is committed; the epoch in which."""
    witness.saw_high_watermark(1, LIFE, log.end_offset, log)
    return log.epoch


@pytest.mark.parametrize("later", [0, 1, 5])
def test_a_leader_without_what_was_committed_up_to_its_epoch_breaks_the_promise(
    later: int,
) -> None:
    witness, whole = Witness(), log_of_epochs(b"a", b"b")
    epoch = commit(witness, whole) + later
    with pytest.raises(BrokenPromiseError, match="leader completeness"):
        witness.saw_leader(OTHER, LIFE, epoch, log_of_epochs(b"a"))


def test_a_leader_whose_begin_was_held_up_needs_nothing_that_a_later_one_committed() -> None:
    """Not even what is of his own epoch, or of an older one."""
    witness = Witness()
    short, whole = log_of_epochs(b"a"), log_of_epochs(b"a", b"b", b"c")
    first = commit(witness, short)
    assert commit(witness, whole) > first + 1
    witness.saw_leader(OTHER, LIFE, first + 1, short)


def test_a_leader_whose_begin_was_held_up_still_holds_the_same_history() -> None:
    witness = Witness()
    epoch = commit(witness, log_of_epochs(b"a"))
    other = log_of_epochs(b"b")
    with pytest.raises(BrokenPromiseError, match="never change"):
        witness.saw_leader(OTHER, LIFE, epoch + 1, other)
    witness.saw_leader(OTHER, LIFE, epoch - 1, other)
