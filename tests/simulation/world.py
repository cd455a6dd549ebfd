"""Virtual time, randomness and the network of a simulated cluster.

Invariants:

1. One thread, one heap of scheduled events. Nothing else advances time, and nothing sleeps.
2. Each concern has a random generator of its own, all from one seed: removing a fault does not
   change the others. The same seed gives the same trace, whatever Python's hash seed is.
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
    """Virtual time in microseconds, seeded randomness, and a trace of all events."""

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
        """Return the generator of one concern."""
        if concern not in self._chances:
            self._chances[concern] = Random(f"{self.seed}:{concern}")
        return self._chances[concern]

    def after(self, delay_us: int, action: Callable[[], None]) -> None:
        """Schedule an action."""
        self._number += 1
        heapq.heappush(self._heap, (self.now_us + max(delay_us, 0), self._number, action))

    def note(self, line: str, data: bytes = b"") -> None:
        """Add an event to the trace and its hash, with the bytes that belong to it."""
        self._hash.update(f"{self.now_us} {line}\n".encode())
        self._hash.update(data)
        if self.trace is not None:
            self.trace.append(f"{self.now_us / 1000:10.3f} {line}")

    def trace_hash(self) -> str:
        return self._hash.hexdigest()

    def run(self, until_us: int, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Run events until this time, or until the condition holds; return whether it does."""
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
    """Share of messages that are late by up to five seconds."""
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
        """Send a message from one node to another: late, twice, or not at all."""
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
        """Drop all messages in flight between two nodes."""
        for ends in ((source, target), (target, source)):
            self._generations[ends] = self._generation(*ends) + 1

    def _generation(self, source: int, target: int) -> int:
        return self._generations.get((source, target), 0)

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
