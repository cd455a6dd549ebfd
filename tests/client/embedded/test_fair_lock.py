"""The lock of appends between processes: fair, and released when its holder dies."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulated_disk.simulated_disk import SimulatedDisk

from raftlog.client.embedded.writer import LOCK_NAME, TURNSTILE_NAME, FairLock
from raftlog.clock import Clock


def fair_lock(disk: SimulatedDisk, pause: Callable[[float], None] = lambda _: None) -> FairLock:
    return FairLock(disk.another_process(), "/", Clock(pause=pause))


def always() -> bool:
    return True


def never() -> bool:
    return False


def test_a_free_lock_is_acquired_without_waiting() -> None:
    disk = SimulatedDisk()
    pauses: list[float] = []
    lock = fair_lock(disk, pauses.append).acquire(never)
    assert lock is not None
    assert pauses == []
    assert fair_lock(disk).acquire(never) is None
    lock.release()
    assert fair_lock(disk).acquire(never) is not None


def test_a_waiter_acquires_the_lock_when_it_is_released() -> None:
    disk = SimulatedDisk()
    held = fair_lock(disk).acquire(never)
    assert held is not None
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 30:
            held.release()

    assert fair_lock(disk, pause).acquire(always) is not None
    assert len(pauses) == 30
    assert max(pauses) <= 0.005
    assert pauses == sorted(pauses)


def test_a_process_that_returns_waits_after_earlier_waiters() -> None:
    disk = SimulatedDisk()
    first = fair_lock(disk)
    held = first.acquire(never)
    assert held is not None
    back: list[object] = []

    def pause(_: float) -> None:
        held.release()
        back.append(first.acquire(never))

    second = fair_lock(disk, pause).acquire(always)
    assert second is not None
    assert back == [None]


def test_a_waiter_that_times_out_blocks_no_other() -> None:
    disk = SimulatedDisk()
    held = fair_lock(disk).acquire(never)
    assert held is not None
    assert fair_lock(disk).acquire(never) is None
    held.release()
    assert fair_lock(disk).acquire(never) is not None


def test_a_dead_process_holds_no_lock() -> None:
    disk = SimulatedDisk()
    for name in (LOCK_NAME, TURNSTILE_NAME):
        other = disk.another_process()
        assert other.try_lock(f"/{name}") is not None
        assert fair_lock(disk).acquire(never) is None
        other.kill()
    assert fair_lock(disk).acquire(never) is not None
