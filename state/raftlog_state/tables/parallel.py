"""Concurrent work on several tables: Spark's driver idles between small jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")

TABLES_AT_ONCE: Final = 4


def for_each(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return results in the order of items. After all items, the first error is raised."""
    with ThreadPoolExecutor(TABLES_AT_ONCE, thread_name_prefix="raftlog-tables") as pool:
        futures = [pool.submit(work, item) for item in items]
    return [future.result() for future in futures]
