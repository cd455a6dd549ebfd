"""Every state that a power loss could leave of a recorded run, computed without running it again.

Invariants:

1. A state is the disk at the start of the recording, the first operations of the record, and one
   power loss. Operations are applied to a tree that only advances, and states share unchanged
   contents.
2. The same record gives the same states: randomness depends on the cut, the survival and a seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Final

from .crash_model import Survival
from .simulated_tree import Operation, Tree


@dataclass(frozen=True, slots=True)
class CrashState:
    """Disk after ``cut`` operations and a crash; ``SimulatedDisk.after`` opens it.

    ``survival`` is None if only the process died: the boot is then the same.
    """

    cut: int
    survival: Survival | None
    seed: int
    boot_number: int
    tree: Tree

    def __str__(self) -> str:
        return f"cut {self.cut}, {self.survival.name if self.survival else 'kill'}, {self.seed}"


KINDS: Final = (None, *Survival)
"""Kinds of crashes: a killed process, and what a power loss leaves of unsynced data."""


class Recording:
    """Operations of a disk since the recording began. ``len(operations)`` is its position."""

    def __init__(self, start: Tree, boot_number: int) -> None:
        self._start = start
        self._boot_number = boot_number
        self.operations: list[Operation] = []

    def states(
        self,
        survivals: Iterable[Survival | None] = KINDS,
        *,
        cuts: Iterable[int] | None = None,
        seeds: Iterable[int] = (0,),
    ) -> Iterator[CrashState]:
        """Yield each distinct state that a crash after 0, 1, 2, ... operations may leave.

        ``cuts``: only after these numbers of operations, ascending. ``seeds``: draws per survival.
        A state of a power loss that equals an earlier one of the same cut is omitted, whatever its
        survival.
        """
        survivals, seeds = tuple(survivals), tuple(seeds)
        tree, done = self._start.copy(), 0
        for cut in range(len(self.operations) + 1) if cuts is None else cuts:
            for operation in self.operations[done:cut]:
                tree.do(operation)
            done = cut
            seen = set()
            if None in survivals:
                yield CrashState(cut, None, 0, self._boot_number, tree.copy())
            for survival, seed in product(filter(None, survivals), seeds):
                after = tree.after_crash(survival, Random(f"{seed} {cut} {survival.name}"))
                fingerprint = tuple(after.paths())
                if fingerprint not in seen:
                    seen.add(fingerprint)
                    yield CrashState(cut, survival, seed, self._boot_number + 1, after)

    def states_in_turn(self, *, seeds: Iterable[int] = (0,)) -> Iterator[CrashState]:
        """Yield states of crashes after every operation, of two kinds of the nine in turn."""
        for turn, kind in enumerate(KINDS):
            survivals = (kind, KINDS[(turn + 4) % len(KINDS)])
            cuts = range(turn, len(self.operations) + 1, len(KINDS))
            yield from self.states(survivals, cuts=cuts, seeds=seeds)
