"""Every state that a power loss could leave of a recorded piece of work, made cheaply.

Rules of this file:

1. A state is what the disk was when recording began, the first operations of the record, and one
   power loss. Nothing is run again: operations are done to a tree that only moves forward, and
   states share what did not change.
2. The same record gives the same states: chance comes from the cut, the survival and a seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from random import Random

from .crash_model import Survival
from .simulated_tree import Operation, Tree


@dataclass(frozen=True, slots=True)
class CrashState:
    """One disk after ``cut`` operations and a death; ``SimulatedDisk.after`` opens it.

    ``survival`` is None where only the process died: then the boot is still the same.
    """

    cut: int
    survival: Survival | None
    seed: int
    boot_number: int
    tree: Tree

    def __str__(self) -> str:
        return f"cut {self.cut}, {self.survival.name if self.survival else 'kill'}, {self.seed}"


class Recording:
    """What was done to a disk since some moment. ``len(operations)`` says how far it is."""

    def __init__(self, start: Tree, boot_number: int) -> None:
        self._start = start
        self._boot_number = boot_number
        self.operations: list[Operation] = []

    def states(
        self,
        survivals: Iterable[Survival | None] = (None, *Survival),
        *,
        cuts: Iterable[int] | None = None,
        seeds: Iterable[int] = (0,),
    ) -> Iterator[CrashState]:
        """Each different state that a death after 0, 1, 2, ... operations may leave.

        ``cuts``: only after these numbers of operations, ascending. ``seeds``: as many tries of
        each survival. A state of a power loss that equals an earlier one of the same cut is left
        out, whatever survival it was made by.
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
