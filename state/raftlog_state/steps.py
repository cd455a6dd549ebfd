"""Long work on an event loop, in steps of bounded work: an iterator that is advanced in each turn.

    steps = begin(load(snapshot))     the first step; None: the work is done
    next(steps)                       in a later turn, until StopIteration

Between steps other events are handled, so that a state is not published, and is not read, before
the last one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=tuple[Any, ...])

Steps: TypeAlias = Iterator[None] | None
"""Steps that are left, None without any."""

RECORDS_PER_STEP: Final = 1_000
"""Records that are replayed in one step: some 20 ms."""

CHANGES_PER_STEP: Final = 10_000
"""Changes of rows that are looked at in one step: some 10 ms."""

SORTED_PER_STEP: Final = 10_000
"""Keys that are sorted in one step: some 10 ms."""


def begin(steps: Iterator[None]) -> Steps:
    """Run the first step, and return those that are left."""
    for _ in steps:
        return steps
    return None


def complete(steps: Generator[None, None, T]) -> T:
    """Run all steps, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


def for_each_in_steps(
    elements: Iterable[T], act: Callable[[T], object], count: int = RECORDS_PER_STEP
) -> Iterator[None]:
    """Call ``act`` for each element, at most ``count`` of them in one step."""
    for number, element in enumerate(elements):
        if number and not number % count:
            yield
        act(element)


def sorted_in_steps(
    keys: Iterable[K], count: int = SORTED_PER_STEP
) -> Generator[None, None, Iterator[K]]:
    """Return an iterator over keys in order; ``count`` of them are sorted in one step."""
    remaining, runs = iter(keys), list[list[K]]()
    while run := sorted(islice(remaining, count)):
        if runs:
            yield
        runs.append(run)
    return heapq.merge(*runs)
