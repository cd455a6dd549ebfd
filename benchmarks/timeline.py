"""Snapshots of state in memory: timeline collections, copies, and persistent maps.

    python -m benchmarks.timeline [--keys N] [--rounds N] [--json]

Each round is what a controller does for one write: a snapshot, 100 puts of random existing keys,
one read of each at that snapshot, and deletion of the snapshot 10 rounds before. A `dict` is copied
for each snapshot; `immutables.Map` (HAMT) and `pyrsistent.pmap` are snapshots by themselves. Also:
the memory that one snapshot needs while 100 keys are replaced.
"""

from __future__ import annotations

import argparse
import random
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import immutables
import pyrsistent
from benchmarks.run import Row, print_row, row

from raftlog_state.timeline import SnapshotRegistry, TimelineDict

PUTS: Final = 100
KEPT: Final = 10


class State(Protocol):
    """One way to keep the state of former epochs."""

    def put(self, key: int, value: int) -> None: ...

    def snapshot(self, epoch: int) -> Callable[[], Mapping[int, int]]:
        """Keep the state; return what returns it."""
        ...

    def forget(self, epoch: int) -> None: ...


class Timeline:
    def __init__(self, contents: Mapping[int, int]) -> None:
        self.registry = SnapshotRegistry()
        self.now: TimelineDict[int, int] = TimelineDict(self.registry)
        self.now.update(contents)

    def put(self, key: int, value: int) -> None:
        self.now[key] = value

    def snapshot(self, epoch: int) -> Callable[[], Mapping[int, int]]:
        self.registry.get_or_create_snapshot(epoch)
        return lambda: self.now.at(epoch)

    def forget(self, epoch: int) -> None:
        self.registry.delete_snapshots_up_to(epoch + 1)


class Copies:
    def __init__(self, contents: Mapping[int, int]) -> None:
        self.now = dict(contents)

    def put(self, key: int, value: int) -> None:
        self.now[key] = value

    def snapshot(self, epoch: int) -> Callable[[], Mapping[int, int]]:
        copy = dict(self.now)
        return lambda: copy

    def forget(self, epoch: int) -> None:
        pass


class Persistent:
    """A map whose ``set`` returns another one."""

    def __init__(self, now: Any) -> None:
        self.now = now

    def put(self, key: int, value: int) -> None:
        self.now = self.now.set(key, value)

    def snapshot(self, epoch: int) -> Callable[[], Mapping[int, int]]:
        kept = self.now
        return lambda: kept

    def forget(self, epoch: int) -> None:
        pass


def states(contents: Mapping[int, int]) -> dict[str, Callable[[], State]]:
    """Return what is measured, by name; the first is the project's."""
    return {
        "TimelineDict": lambda: Timeline(contents),
        "dict copies": lambda: Copies(contents),
        "immutables.Map": lambda: Persistent(immutables.Map(contents)),
        "pyrsistent.pmap": lambda: Persistent(pyrsistent.pmap(contents)),
    }


def cpu_us_a_round(state: State, key_count: int, rounds: int) -> float:
    """Return the CPU time of one round in microseconds."""
    chance = random.Random(key_count)
    kept: deque[Callable[[], Mapping[int, int]]] = deque(maxlen=KEPT)
    began_s = time.process_time()
    for epoch in range(rounds):
        kept.append(state.snapshot(epoch))
        for _ in range(PUTS):
            state.put(chance.randrange(key_count), epoch)
        before = kept[-1]()
        for _ in range(PUTS):
            before[chance.randrange(key_count)]
        if epoch >= KEPT:
            state.forget(epoch - KEPT)
    return (time.process_time() - began_s) / rounds * 1e6


def snapshot_bytes(state: State, key_count: int) -> int:
    """Return the memory that one snapshot needs while 100 keys are replaced."""
    chance = random.Random(key_count)
    values = list(range(key_count, key_count + PUTS))
    tracemalloc.start()
    kept = state.snapshot(1)
    for value in values:
        state.put(chance.randrange(key_count), value)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(kept()) == key_count
    return held


def measure(key_count: int, rounds: int) -> list[Row]:
    """Return the rows of one number of keys."""
    contents = dict.fromkeys(range(key_count), -1)
    found: list[Row] = []
    ways = states(contents)
    times = {
        name: cpu_us_a_round(create(), key_count, rounds if name != "dict copies" else 30)
        for name, create in ways.items()
    }
    sizes = {name: snapshot_bytes(create(), key_count) for name, create in ways.items()}
    ours = next(iter(ways))
    for figures, what, unit in (
        (times, "snapshot, 100 puts, 100 reads at it", "us CPU"),
        (sizes, "memory of a snapshot after 100 puts", "bytes"),
    ):
        for other in list(ways)[1:]:
            label = f"{what}, {key_count:,} keys"
            found.append(row(label, figures[ours], unit, figures[other], other))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--keys", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    for key_count in given.keys:
        for one in measure(key_count, given.rounds):
            print_row(one, as_json=given.json)


if __name__ == "__main__":
    main()
