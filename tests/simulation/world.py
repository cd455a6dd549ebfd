"""Time, chance and the network of a simulated cluster.

Rules of this file:

1. One thread, one heap of what is to happen. Nothing else makes time pass, and nobody sleeps.
2. Chance comes from a generator for each concern, all from one seed: taking a fault away does not
   move the others. The same seed gives the same trace, whatever Python's hashes are.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

US_PER_MS: Final = 1000


class World:
    """Virtual time in microseconds, seeded chance, and a trace of everything that happened."""

    def __init__(self, seed: int, *, keeps_trace: bool = False) -> None:
        self.seed = seed
        self.now_us = 0
        self.event_count = 0
        self.trace: list[str] | None = [] if keeps_trace else None
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self._chances: dict[str, Random] = {}
        self._hash = hashlib.blake2b(digest_size=16)

    @property
    def now_ms(self) -> int:
        return self.now_us // US_PER_MS

    def chance(self, concern: str) -> Random:
        """The generator of one concern."""
        if concern not in self._chances:
            self._chances[concern] = Random(f"{self.seed}:{concern}")
        return self._chances[concern]

    def after(self, delay_us: int, action: Callable[[], None]) -> None:
        """Let something happen later."""
        self._number += 1
        heapq.heappush(self._heap, (self.now_us + max(delay_us, 0), self._number, action))

    def note(self, line: str, data: bytes = b"") -> None:
        """Something happened: it is in the trace, and in its hash, as are bytes that it is of."""
        self._hash.update(f"{self.now_us} {line}\n".encode())
        self._hash.update(data)
        if self.trace is not None:
            self.trace.append(f"{self.now_us / 1000:10.3f} {line}")

    def trace_hash(self) -> str:
        return self._hash.hexdigest()

    def run(self, until_us: int, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Let things happen until then, or until it is over; whether it is."""
        while not is_over():
            if not self._heap or self._heap[0][0] > until_us:
                self.now_us = until_us
                return is_over()
            self.now_us, _, action = heapq.heappop(self._heap)
            self.event_count += 1
            action()
        return True


@dataclass(slots=True, kw_only=True)
class Link:
    """One direction between two nodes. Rates are of messages, delays in microseconds."""

    delay_us: int = 300
    jitter_us: int = 700
    loss: float = 0.0
    duplicates: float = 0.0
    slow: float = 0.0
    """How many are late by up to five seconds."""
    is_cut: bool = False


class Network:
    """Links between nodes, by the ids of both ends."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._links: dict[tuple[int, int], Link] = {}
        self._generations: dict[tuple[int, int], int] = {}
        self.counts: dict[str, int] = {}

    def link(self, source: int, target: int) -> Link:
        return self._links.setdefault((source, target), Link())

    def links(self) -> list[Link]:
        return list(self._links.values())

    def send(self, source: int, target: int, deliver: Callable[[], None]) -> None:
        """Carry something from one node to another: late, twice, or not at all."""
        link, chance = self.link(source, target), self._world.chance("network")
        if link.is_cut:
            self._count("cut")
            return
        if chance.random() < link.loss:
            self._count("lost")
            return
        copies = 1
        if chance.random() < link.duplicates:
            self._count("duplicated")
            copies = 2
        generation = self._generation(source, target)
        for _ in range(copies):
            delay_us = link.delay_us + int(chance.random() * link.jitter_us)
            if chance.random() < link.slow:
                self._count("late")
                delay_us += int(chance.random() * 5_000_000)
            self._world.after(delay_us, lambda: self._arrive(source, target, generation, deliver))

    def _arrive(
        self, source: int, target: int, generation: int, deliver: Callable[[], None]
    ) -> None:
        if self._generation(source, target) == generation:
            deliver()
        else:
            self._count("reset")

    def reset(self, source: int, target: int) -> None:
        """Kill everything that is on its way between two nodes."""
        for ends in ((source, target), (target, source)):
            self._generations[ends] = self._generation(*ends) + 1

    def _generation(self, source: int, target: int) -> int:
        return self._generations.get((source, target), 0)

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
