"""Every crash of a recorded run can be enumerated."""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random

import pytest
from tests.simulated_disk.crash_points import Recording
from tests.simulated_disk.simulated_disk import CrashPoint, SimulatedDisk, Survival


def segment_workload(disk: SimulatedDisk, operation_count: int = 300) -> None:
    """Append to two files with syncs and rolls, and replace small files."""
    chance, segment, position = Random(7), 0, 0
    start = disk.operation_count
    log = disk.create_file("/d/0.log")
    index = disk.create_file("/d/0.index")
    while disk.operation_count - start < operation_count - 12:
        data = chance.randbytes(chance.randint(100, 2000))
        log.write_at(position, data)
        position += len(data)
        if chance.random() < 0.3:
            index.write_at(index.byte_count(), data[:8])
        if chance.random() < 0.4:
            log.sync()
        if chance.random() < 0.05:
            log.sync()
            segment, position = segment + 1, 0
            log = disk.create_file(f"/d/{segment}.log")
            index = disk.create_file(f"/d/{segment}.index")
            with disk.create_file("/d/small.tmp") as small:
                small.write_at(0, str(segment).encode())
                small.sync()
            disk.rename("/d/small.tmp", "/d/small")
            disk.sync_directory("/d")
            if segment >= 2:
                disk.unlink(f"/d/{segment - 2}.index")
            if segment == 4:
                log.truncate(0)


def recorded(operation_count: int = 300) -> tuple[SimulatedDisk, Recording]:
    disk = SimulatedDisk()
    disk.make_directory("/d")
    disk.sync_directory("/")
    recording = disk.record()
    segment_workload(disk, operation_count)
    return disk, recording


def test_a_rebuilt_disk_equals_the_disk_at_that_operation() -> None:
    _, recording = recorded(120)
    states = {
        (state.cut, state.survival): SimulatedDisk.after(state)
        for state in recording.states((None, Survival.NOTHING, Survival.EVERYTHING))
    }
    for cut in range(len(recording.operations) + 1):
        disk = SimulatedDisk()
        disk.make_directory("/d")
        disk.sync_directory("/")
        disk.stop_at(disk.operation_count + cut)
        try:
            segment_workload(disk, 120)
        except CrashPoint:
            disk.kill()
        assert states[cut, None].files() == disk.files()
        assert states[cut, None].durable_files() == disk.durable_files()
        assert states[cut, None].boot_id() == disk.boot_id()
        nothing = states[cut, Survival.NOTHING]
        assert nothing.files() == nothing.durable_files() == disk.durable_files()
        assert nothing.boot_id() != disk.boot_id()
        everything = states.get((cut, Survival.EVERYTHING), nothing)
        assert everything.durable_files() == disk.files()


def test_states_share_no_written_data() -> None:
    _, recording = recorded(40)
    first, second = (
        SimulatedDisk.after(next(recording.states((Survival.EVERYTHING,), cuts=(40,))))
        for _ in range(2)
    )
    name = first.list_names("/d")[0]
    before = second.files()
    with first.open_for_writing(f"/d/{name}") as file:
        file.truncate(0)
    assert second.files() == before
    assert first.files() != before
    assert recording.operations
    again = SimulatedDisk.after(next(recording.states((Survival.EVERYTHING,), cuts=(40,))))
    assert again.files() == before


def test_the_same_record_gives_the_same_states() -> None:
    def seen() -> list[tuple[str, dict[str, bytes]]]:
        _, recording = recorded(60)
        states = recording.states(seeds=(1, 2))
        return [(str(state), SimulatedDisk.after(state).files()) for state in states]

    assert seen() == seen()


def test_states_of_one_cut_differ() -> None:
    _, recording = recorded(80)
    seen = set()
    for state in recording.states(tuple(Survival), seeds=range(3)):
        content = (state.cut, tuple(SimulatedDisk.after(state).files().items()))
        assert content not in seen
        seen.add(content)
    assert len(seen) > 500


def test_a_crash_during_recovery_is_recorded_as_any_other() -> None:
    _, recording = recorded(40)
    state = next(recording.states((Survival.NAMES_ONLY,), cuts=(20,)))
    disk = SimulatedDisk.after(state)
    second = disk.record()
    with disk.create_file("/d/saved") as file:
        file.write_at(0, b"x")
    found = {
        tuple(SimulatedDisk.after(again).files().items())
        for again in second.states((Survival.NOTHING, Survival.EVERYTHING))
    }
    assert len(found) == 3  # no file, an empty one, a complete one
    assert {SimulatedDisk.after(again).boot_id() for again in second.states((None,))} == {
        disk.boot_id()
    }


def test_a_recording_ends_with_a_power_loss() -> None:
    disk, recording = recorded(40)
    count = len(recording.operations)
    disk.crash()
    disk.put("/d/after", b"x")
    assert len(recording.operations) == count


def test_every_cut_has_its_kill_and_each_distinct_power_loss_once() -> None:
    _, recording = recorded(40)
    cuts = range(len(recording.operations) + 1)
    counts = []
    for seeds in (range(1), range(3)):
        kills: Counter[int] = Counter()
        losses: defaultdict[int, list[tuple[object, ...]]] = defaultdict(list)
        for state in recording.states(seeds=seeds):
            if state.survival is None:
                kills[state.cut] += 1
            else:
                losses[state.cut].append(tuple(state.tree.paths()))
        assert kills == Counter(cuts)
        assert set(losses) == set(cuts)
        assert all(len(found) == len(set(found)) for found in losses.values())
        counts.append(sum(map(len, losses.values())))
    assert counts[0] < counts[1]


def test_operations_on_an_unlinked_file_omitted_from_a_state_have_no_effect() -> None:
    disk = SimulatedDisk()
    for number in range(50):
        disk.put("/a", b"%d" % number)
    with disk.open_for_writing("/a") as file:
        disk.unlink("/a")
        disk.sync_directory("/")
        recording = disk.record()
        file.write_at(0, b"x")
        file.truncate(9)
        file.sync()
        disk.put("/b", b"y")
        assert file.read_at(0, 1) == b"x"
    for state in recording.states():
        assert len(state.tree.nodes) <= 2
        assert SimulatedDisk.after(state).files().keys() <= {"/b"}


def test_an_operation_has_a_readable_text() -> None:
    disk = SimulatedDisk()
    recording = disk.record()
    with disk.create_file("/a") as file:
        file.write_at(0, b"xyz")
        file.truncate(1)
        file.sync()
    disk.rename("/a", "/b")
    disk.sync_directory("/")
    with pytest.raises(StopIteration):
        next(recording.states(cuts=()))
    assert [str(operation) for operation in recording.operations] == [
        "create /a",
        "write /a 3 bytes",
        "truncate /a at 1",
        "sync /a",
        "rename /a to b",
        "sync_directory /",
    ]
