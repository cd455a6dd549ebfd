"""Long work on an event loop, in bounded steps: an iterator that is advanced once per turn.

    steps = begin(load(snapshot))     the first step; None: the work is done
    next(steps)                       in a later turn, until StopIteration

Other events are handled between steps, so a state is neither published nor read before the last
one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=tuple[Any, ...])

Steps: TypeAlias = Iterator[None] | None
"""Remaining steps, None if there are none."""

RECORDS_PER_STEP: Final = 1_000
"""Records that are replayed in one step, which takes some 20 ms."""

CHANGES_PER_STEP: Final = 10_000
"""Row changes that are examined in one step, which takes some 10 ms."""

SORTED_PER_STEP: Final = 10_000
"""Keys that are sorted in one step, which takes some 10 ms."""


def begin(steps: Iterator[None]) -> Steps:
    """Run the first step, and return the remaining ones."""
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


def sorted_in_steps(keys: Iterable[K]) -> Generator[None, None, Iterator[K]]:
    """Return an iterator over keys in order; ``SORTED_PER_STEP`` of them are sorted in one step."""
    remaining, runs = iter(keys), list[list[K]]()
    while run := sorted(islice(remaining, SORTED_PER_STEP)):
        if runs:
            yield
        runs.append(run)
    return heapq.merge(*runs)
