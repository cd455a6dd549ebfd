"""Reader that runs beside writers, and whose states are verified with the invariant pack."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from threading import Event
from typing import TYPE_CHECKING

import pyarrow as pa

from raftlog_state.errors import TablesError
from raftlog_state.tables.invariants import Violation, reads, rules, violations
from raftlog_state.tables.reader import ArrowTables, ArrowView
from raftlog_state.tables.schema import CLUSTER_ID, TYPED_TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HISTORY = "_history"
BEGUN_MAX = 4
"""States whose second half is read later."""


class InvariantReader:
    """Reads states of one cluster; ``open_tables`` opens its tables for each of them.

    In the views of the rules each state is a cluster of its own: one query of Spark applies all
    rules to all states, where one for each state would take seconds.
    """

    def __init__(self, open_tables: Callable[[], ArrowTables]) -> None:
        self._open = open_tables
        self._begun: deque[Iterator[None]] = deque()
        self._rows: dict[str, list[pa.Table]] = {name: [] for name in _views()}
        self.state_count = 0
        self.offsets: set[int] = set()

    def read(self) -> None:
        """Read the first half of the newest state's views, and the second half of an earlier one.

        So writers commit between the reads of one state. Before the first publication it does
        nothing.
        """
        if len(self._begun) == BEGUN_MAX:
            self._complete()
        try:
            newest = self._open().latest()
        except TablesError as error:
            if "nothing was published" not in str(error):
                raise
            return
        halves = self._halves(newest)
        next(halves)
        self._begun.append(halves)

    def violations(self, spark: SparkSession) -> tuple[Violation, ...]:
        """Return what the states that were read violate. Rows name their state as the cluster."""
        while self._begun:
            self._complete()
        views = {name: spark.createDataFrame(_joined(rows)) for name, rows in self._rows.items()}
        return violations(views)

    def _complete(self) -> None:
        for _ in self._begun.popleft():
            pass

    def _halves(self, view: ArrowView) -> Iterator[None]:
        names = _views()
        found: dict[str, pa.Table] = {}
        for at, name in enumerate(names):
            if at == len(names) // 2:
                yield
            typed, is_history = name.removesuffix(HISTORY), name.endswith(HISTORY)
            found[name] = view.history(typed) if is_history else view.table(typed)
        self.state_count += 1
        self.offsets.add(view.offset)
        for name, rows in found.items():
            state = pa.array([f"state {self.state_count} at offset {view.offset}"] * rows.num_rows)
            at = rows.column_names.index(CLUSTER_ID)
            self._rows[name].append(rows.set_column(at, rows.field(at), state.cast(pa.string())))


def _joined(tables: list[pa.Table]) -> pa.Table:
    """Return tables as one: Spark ends a partition at an empty batch, and needs one batch."""
    rows = pa.concat_tables(tables).combine_chunks()
    return rows if rows.num_rows else rows.schema.empty_table()


@contextmanager
def reading(reader: InvariantReader) -> Iterator[None]:
    """Read in a thread throughout."""
    is_done = Event()

    def read() -> None:
        while not is_done.is_set():
            reader.read()

    with ThreadPoolExecutor(1) as pool:
        read_all = pool.submit(read)
        try:
            yield
        finally:
            is_done.set()
        read_all.result()


@cache
def _views() -> tuple[str, ...]:
    """Return the views that rules read: the topics are in the first half, partitions later."""
    names = [name for table in TYPED_TABLES for name in (table.name, f"{table.name}{HISTORY}")]
    found = [name for name in names if any(reads(query, name) for query in rules().values())]
    return tuple(sorted(found, key=lambda name: name.startswith("partitions")))
