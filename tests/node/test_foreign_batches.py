"""Batches that another process wrote into the log of a quorum's node are found, and not served."""

from __future__ import annotations

import pytest

from raftlog.errors import DiskFullError, ForeignBatchError
from raftlog.log.format.directory import (
    PUBLISHED_NAME,
    QUORUM_STATE_NAME,
    encode_quorum_state,
    parse_quorum_state,
)
from raftlog.log.writing.atomic_files import replace_checked
from raftlog.log.writing.single_voter_log import SingleVoterLog
from tests.simulated_disk.crash_model import Survival
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.appending import append
from tests.support.one_replica import DIRECTORY, TIME_MS, OneReplica

SEGMENT = f"{DIRECTORY}/00000000000000000000.log"


def leader() -> OneReplica:
    node = OneReplica()
    node.elect()
    return node


def open_as_embedded(disk: SimulatedDisk) -> SingleVoterLog:
    """Open a node's log as an embedded log, which no public call does."""
    return SingleVoterLog.open(disk.another_process(), DIRECTORY, now_ms=TIME_MS)


def append_foreign(disk: SimulatedDisk) -> None:
    """Append a batch in the epoch of the node's log, and leave no trace but the batch."""
    log = open_as_embedded(disk)
    append(log, b"intruder")
    log.flush()
    disk.unlink(f"{DIRECTORY}/{PUBLISHED_NAME}")


def backups(disk: SimulatedDisk) -> list[bytes]:
    return [data for path, data in disk.files().items() if ".log.cut-" in path]


def test_bytes_appended_to_a_running_node_end_it_and_are_not_in_its_log() -> None:
    node = leader()
    before = node.disk.files()[SEGMENT]
    append_foreign(node.disk)
    with pytest.raises(ForeignBatchError, match="saved as") as caught:
        append(node.replica.log, b"own")
    assert caught.value.offset == 1
    assert node.disk.files()[SEGMENT] == before
    assert [b"intruder" in data for data in backups(node.disk)] == [True]
    node.restarted()
    assert b"intruder" not in node.disk.files()[SEGMENT]


def test_bytes_appended_to_a_running_node_are_removed_when_it_closes() -> None:
    node = leader()
    before = node.disk.files()[SEGMENT]
    append_foreign(node.disk)
    node.replica.log.close()
    assert node.disk.files()[SEGMENT] == before
    assert len(backups(node.disk)) == 1


def test_bytes_removed_from_a_running_node_end_it() -> None:
    node = leader()
    with node.disk.another_process().open_for_writing(SEGMENT) as file:
        file.truncate(0)
    with pytest.raises(ForeignBatchError, match="has 0 bytes"):
        append(node.replica.log, b"own")


def test_a_node_does_not_start_with_batches_of_an_epoch_that_it_does_not_know() -> None:
    node = leader()
    node.replica.log.close()
    foreign = open_as_embedded(node.disk)
    foreign.claim(now_ms=TIME_MS)
    foreign.close()
    node.disk.crash(Survival.EVERYTHING)  # another boot, in which `synced` does not count
    with pytest.raises(ForeignBatchError, match="its leader epoch is 2, and the latest epoch"):
        OneReplica(node.disk)


def test_a_node_does_not_start_with_an_epoch_that_another_leader_began() -> None:
    node = leader()
    node.replica.log.close()
    state = parse_quorum_state(node.disk.files()[f"{DIRECTORY}/{QUORUM_STATE_NAME}"], "")
    assert (state.leader_epoch, state.leader_id) == (1, 1)
    other = encode_quorum_state(type(state)(version=1, leader_epoch=1, leader_id=2, voted_id=None))
    replace_checked(node.disk, DIRECTORY, {QUORUM_STATE_NAME: other})
    with pytest.raises(ForeignBatchError, match="begun by leader 1, and its leader in quorum-st"):
        node.restarted()


def test_a_node_does_not_start_after_its_log_was_opened_as_an_embedded_log() -> None:
    node = leader()
    node.replica.log.close()
    open_as_embedded(node.disk).close()
    with pytest.raises(ForeignBatchError, match=PUBLISHED_NAME):
        node.restarted()
    node.disk.unlink(f"{DIRECTORY}/{PUBLISHED_NAME}")
    node.restarted().elect()


def test_a_node_starts_although_the_first_batch_of_its_epoch_is_damaged() -> None:
    """It is before the newest snapshot, so that neither recovery nor the voters need it."""
    node = leader()
    while len([path for path in node.disk.files() if path.endswith(".log")]) < 3:
        node.log.append(1, [b"value" * 50])
    writer = node.replica.begin_snapshot(node.replica.log.end_offset, time_ms=TIME_MS)
    assert writer is not None
    with writer:
        writer.freeze()
    node.replica.log.close()
    node.disk.flip_bit(SEGMENT, 8 * 70)
    assert node.restarted().replica.core.is_leader


def test_a_node_that_cannot_save_bytes_of_another_process_closes_its_files() -> None:
    node = leader()
    append_foreign(node.disk)
    node.disk.leave_room(0)
    with pytest.raises(DiskFullError):
        node.replica.log.close()
    assert node.replica.log.is_closed
    assert node.disk.open_files == 0
    node.disk.full_at(None)
    node.restarted()
    assert b"intruder" not in node.disk.files()[SEGMENT]
