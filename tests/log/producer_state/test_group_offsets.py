"""Committed offsets of consumer groups in the state of a log: positions, bounds, snapshots."""

from __future__ import annotations

import contextlib
import random

import pytest

from raftlog.errors import CorruptFileError
from raftlog.limits import GROUP_OFFSETS_BYTES_MAX, OFFSET_METADATA_BYTES_MAX
from raftlog.log.reading.transactions import BatchMetadata
from raftlog.log.writing.group_offsets import reader_position
from raftlog.log.writing.producer_state import ProducerStateManager
from raftlog.records.control import (
    ControlType,
    OffsetCommit,
    control_json,
    decode_control,
    encode_control,
)

PATH = "/x"


class Log:
    """Producer state of a log to which batches are appended."""

    def __init__(self) -> None:
        self.state = ProducerStateManager(PATH)

    def add(self, count: int = 1, *control: OffsetCommit, is_control: bool = False) -> None:
        base = self.state.end_offset
        self.state.apply(
            BatchMetadata(
                base_offset=base,
                last_offset=base + max(count, len(control)) - 1,
                leader_epoch=1,
                max_timestamp_ms=5,
                record_count=count,
                is_control=is_control or bool(control),
                control=control,
            )
        )

    def position(self, offset: int) -> int:
        state = self.state
        ends = {"data_end_offset": state.data_end_offset, "end_offset": state.end_offset}
        return reader_position(offset, **ends)

    def is_current(self, one: OffsetCommit) -> bool:
        state = self.state
        ends = {"data_end_offset": state.data_end_offset, "end_offset": state.end_offset}
        return state.group_offsets.is_current(one, **ends)

    def restarted(self) -> ProducerStateManager:
        data = self.state.encode_snapshot()
        return ProducerStateManager.decode_snapshot(data, PATH, self.state.end_offset)


def commit(offset: int, group: str = "g", metadata: str = "", epoch: int = -1) -> OffsetCommit:
    return OffsetCommit(
        group=group,
        offset=offset,
        leader_epoch=epoch,
        metadata=metadata,
        commit_timestamp_ms=7,
    )


def test_the_last_commit_of_a_group_is_kept_and_may_go_back() -> None:
    log = Log()
    log.add(10)
    for offset in (3, 9, 4):
        log.add(1, commit(offset))
    log.add(1, commit(8, "other", "text"))
    offsets = log.state.group_offsets
    assert offsets.commit_of("g") == commit(4)
    assert offsets.commit_of("other") == commit(8, "other", "text")
    assert offsets.commit_of("none") is None
    assert [one.record_offset for one in offsets.values()] == [12, 13]


def test_a_reader_of_all_data_is_at_the_end_whatever_commits_follow() -> None:
    log = Log()
    log.add(10)
    log.add(1, commit(10))
    log.add(1, is_control=True)  # of a new leader
    log.add(1, commit(4, "other"))
    assert [log.position(at) for at in (0, 9, 10, 11, 13, 14)] == [0, 9, 13, 13, 13, 14]
    log.add(1)
    assert [log.position(at) for at in (10, 13, 14)] == [10, 13, 14]


def test_a_commit_of_the_same_position_changes_nothing() -> None:
    log = Log()
    log.add(10)
    log.add(1, commit(10, epoch=1), commit(3, "other", epoch=1))
    assert log.is_current(commit(10, epoch=1))
    assert log.is_current(commit(12, epoch=1)), "it has read the commits too"
    assert not log.is_current(commit(9, epoch=1))
    assert not log.is_current(commit(13, epoch=1))
    assert not log.is_current(commit(12, epoch=1, metadata="other"))
    assert not log.is_current(commit(3, "other", epoch=2))
    assert not log.is_current(commit(10, "new"))
    log.add(1)
    assert not log.is_current(commit(13, epoch=1)), "it has read the record"


def test_a_snapshot_has_all_commits_in_their_order() -> None:
    log = Log()
    log.add(10)
    log.add(1, *(commit(at, f"g{at}", "m" * at, epoch=at) for at in range(9)))
    log.add(1, commit(2, "g0"))
    again = log.restarted()
    assert again.group_offsets.values() == log.state.group_offsets.values()
    assert [one.commit.group for one in again.group_offsets.values()][-1] == "g0"
    assert again.data_end_offset == 10
    assert again.encode_snapshot() == log.state.encode_snapshot()


def test_a_copy_is_independent() -> None:
    log = Log()
    log.add(1, commit(0))
    copied = log.state.copy()
    log.add(1, commit(0, "other"))
    assert len(copied.group_offsets) == 1
    assert len(log.state.group_offsets) == 2


def test_groups_beyond_the_bound_are_evicted_the_least_recently_written_first() -> None:
    log, metadata = Log(), "m" * OFFSET_METADATA_BYTES_MAX
    count = GROUP_OFFSETS_BYTES_MAX // OFFSET_METADATA_BYTES_MAX
    for at in range(count):
        log.add(1, commit(at, f"g{at}", metadata))
        log.add(1, commit(at, "g0", metadata))
    offsets = log.state.group_offsets
    names = [one.commit.group for one in offsets.values()]
    assert "g0" in names
    assert "g1" not in names
    assert names[-2] == f"g{count - 1}"
    byte_count = sum(len(one.encode()) for one in offsets.values())
    assert GROUP_OFFSETS_BYTES_MAX - 2 * len(metadata) < byte_count <= GROUP_OFFSETS_BYTES_MAX
    assert log.restarted().group_offsets.values() == offsets.values()


@pytest.mark.parametrize("seed", range(20))
def test_damaged_commits_of_a_snapshot_are_an_error_or_other_commits(seed: int) -> None:
    chance, log = random.Random(seed), Log()
    log.add(1, *(commit(at, f"g{at}", "text") for at in range(5)))
    snapshot = log.state.encode_snapshot()
    field = log.state.group_offsets.to_tagged_fields(log.state.data_end_offset)[0].data
    data = bytearray(field)
    for _ in range(chance.randint(1, 4)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    states = ProducerStateManager.decode_snapshot(snapshot, PATH, 5)
    assert states.group_offsets.values() == log.state.group_offsets.values()
    with contextlib.suppress(CorruptFileError):
        ProducerStateManager.decode_snapshot(with_field(snapshot, field, bytes(data)), PATH, 5)


def with_field(snapshot: bytes, old: bytes, new: bytes) -> bytes:
    """Return a producer snapshot with other bytes of a field, and a valid CRC."""
    from raftlog.log.format.directory import encode_producer_snapshot, split_producer_snapshot

    states, trailer = split_producer_snapshot(snapshot, PATH)
    assert trailer.count(old) == 1
    return encode_producer_snapshot(iter(states), trailer.replace(old, new))


def test_the_control_record_is_decoded_as_it_was_encoded_and_printed_without_metadata() -> None:
    record = commit(2**40, "a group", "of the user", epoch=3)
    key, value = encode_control(record)
    assert key == bytes.fromhex("00007266")
    assert decode_control(key, value) == record
    assert record.control_type is ControlType.OFFSET_COMMIT
    assert control_json(record) == {
        "version": 0,
        "group": "a group",
        "offset": 2**40,
        "leaderEpoch": 3,
        "commitTimestamp": 7,
    }


@pytest.mark.parametrize("owners", [("x", "", "y", "x"), ("", "", "", "")])
def test_owners_of_groups_survive_a_restart(owners: tuple[str, ...]) -> None:
    log = Log()
    for at, owner in enumerate(owners):
        log.add(1, commit(at, f"group {at}").owned_by(owner))
    log.add(1, commit(-1, "group 0"))
    for state in (log.state, log.restarted()):
        offsets = state.group_offsets
        assert [one.commit.owner for one in offsets.values()] == list(owners[1:])
        assert [offsets.group_count(one) for one in "xy"] == [
            sum(owner == one for owner in owners[1:]) for one in "xy"
        ]
    assert log.restarted().encode_snapshot() == log.state.encode_snapshot()


def test_an_owner_is_a_field_that_an_older_release_keeps() -> None:
    found = decode_control(*encode_control(commit(3).owned_by("User:a")))
    assert isinstance(found, OffsetCommit)
    assert found.owner == "User:a"
    assert found.owned_by("") == commit(3)
