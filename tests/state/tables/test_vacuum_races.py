"""Vacuums without retention at each step of a writer, with what other processes do before them.

Every operation of the writer's store is a step. At one of them, another process changes the tables
and deletes all versions but the newest; then the writer continues.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from deltalake import DeltaTable
from tests.support.memory_store import MemoryStore, MemoryTables
from tests.support.metadata_logs import metadata_log, restored
from tests.support.sweep_size import nightly_except
from tests.support.written_tables import CLUSTER, END, History, contents

from raftlog_state.errors import OffsetGapError
from raftlog_state.tables import tails as cluster_tails
from raftlog_state.tables.group_writer import GroupWriter
from raftlog_state.tables.schema import STORED_TABLES
from raftlog_state.tables.stores.delta_rs import DeltaRsStore
from raftlog_state.tables.stores.protocol import TableStore
from raftlog_state.tables.writer import Writer

OTHER = "cluster-b"
GROUP = "one"
BEGUN = 40
OPERATIONS = ("exists", "cluster_ids", "version", "read", "append", "merge", "delete", "fence")

OpenStore: TypeAlias = Callable[[], TableStore]
"""Open one more store of the test's tables."""


class Stepwise:
    """Store that calls a function before each operation, with the number of the operation."""

    def __init__(self, store: TableStore, before_step: Callable[[int], None]) -> None:
        self._store = store
        self._before_step = before_step
        self.step_count = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return partial(self._call, found) if name in OPERATIONS else found

    def _call(self, operation: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self.step_count += 1
        self._before_step(self.step_count)
        return operation(*args, **options)


# --- what others do -------------------------------------------------------------------------------


def merges(store: TableStore, history: History) -> None:
    for name in (CLUSTER, OTHER):
        writer = Writer(store, cluster_id=name, clock_us=lambda: 1)
        writer.progress()
        writer.merge_state()
    writer.compact()


def appends(store: TableStore, history: History) -> None:
    group = GroupWriter(store, GROUP, clock_us=lambda: 1)
    starts = {name: group.progress(name).next_offset for name in (CLUSTER, OTHER)}
    group.apply({n: history.range(start, start + 7) for n, start in starts.items() if start < END})
    group.merge_state()


def truncates(store: TableStore, history: History) -> None:
    writer = Writer(store, cluster_id=CLUSTER, clock_us=lambda: 1)
    writer.truncate_to(writer.progress().offset - 5)
    writer.merge_state()


Other: TypeAlias = Callable[[TableStore, History], None]
OTHERS: tuple[Other, ...] = (merges, appends, truncates)


# --- the writer -----------------------------------------------------------------------------------


def write_group(store: TableStore, history: History, end_offset: int) -> None:
    """Write two clusters up to an end, as a follower does that begins where the tables end."""
    group = GroupWriter(store, GROUP, clock_us=lambda: 1)
    while True:
        starts = {name: group.progress(name).next_offset for name in (CLUSTER, OTHER)}
        batches = {n: history.range(start, end_offset) for n, start in starts.items()}
        batches = {name: rows for name, rows in batches.items() if rows.num_rows}
        if not batches:
            break
        for error in group.apply(batches).failures.values():
            assert isinstance(error, OffsetGapError), "a truncation"
    group.merge_state()


def write_one(store: TableStore, history: History, end_offset: int) -> None:
    """Write one cluster up to an end."""
    writer = Writer(store, cluster_id=CLUSTER, take_over=True, clock_us=lambda: 1)
    while (start := writer.progress().next_offset) < end_offset:
        with suppress(OffsetGapError):  # a truncation
            writer.apply(history.range(start, end_offset), CLUSTER)
    writer.merge_state()


Write: TypeAlias = Callable[[TableStore, History, int], None]


def begun(open_store: OpenStore, history: History) -> None:
    """Write tables of two clusters of a group, of which ``state`` lacks the end."""
    group = GroupWriter(open_store(), GROUP, clock_us=lambda: 1)
    for end in (BEGUN // 2, BEGUN):
        group.merge_state()
        starts = {name: group.progress(name).next_offset for name in (CLUSTER, OTHER)}
        group.apply({name: history.range(start, end) for name, start in starts.items()})


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    directory = restored("three-nodes-4.3.1/node-1", tmp_path_factory.mktemp("log"))
    return History(metadata_log(directory))


Vacuum: TypeAlias = Callable[[], None]


def run(
    write: Write,
    other: Other,
    at_step: int,
    history: History,
    open_store: OpenStore,
    vacuum: Vacuum,
) -> int:
    """Write with the change of another process at a step; return the number of steps."""

    def before_step(number: int) -> None:
        if number == at_step:
            other(open_store(), history)
            vacuum()

    store = Stepwise(open_store(), before_step)
    write(store, history, END)
    return store.step_count


def vacuum_memory(tables: MemoryTables) -> None:
    for table in STORED_TABLES.values():
        MemoryStore(tables).vacuum(table)


def vacuum_files(place: Path) -> None:
    """Delete the files that the newest versions do not have, regardless of their age."""
    for name in STORED_TABLES:
        DeltaTable(str(place / name)).vacuum(
            retention_hours=0, dry_run=False, enforce_retention_duration=False
        )


def contents_of(store: TableStore) -> list[tuple[str, str]]:
    """Return the contents of the tables in files."""
    tables = MemoryTables({name: store.read(table) for name, table in STORED_TABLES.items()})
    return contents(tables, CLUSTER)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows_read", "every", "write", "other"),
    nightly_except(
        [
            (10, 17, write_group, merges),
            (10, 17, write_one, truncates),
            (cluster_tails.ROWS_READ, 17, write_group, appends),
        ],
        itertools.product((10, cluster_tails.ROWS_READ), (17, 1), (write_group, write_one), OTHERS),
    ),
)
def test_a_vacuum_at_any_step_of_a_writer_loses_and_repeats_nothing(
    write: Write,
    other: Other,
    every: int,
    rows_read: int,
    history: History,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_tails, "ROWS_READ", rows_read)
    first = MemoryTables()
    begun(lambda: MemoryStore(first), history)

    def run_at(step: int, tables: MemoryTables) -> int:
        vacuum = partial(vacuum_memory, tables)
        return run(write, other, step, history, lambda: MemoryStore(tables), vacuum)

    step_count = run_at(0, first.copy())
    assert step_count > 20
    for step in range(1, step_count + 1, every):
        tables = first.copy()
        run_at(step, tables)
        write(MemoryStore(tables), history, END)  # a truncation may have been the last change
        assert contents(tables, CLUSTER) == history.contents(END, CLUSTER), step


@pytest.mark.parametrize(
    ("write", "other", "every"),
    [
        pytest.param(write_group, truncates, 41, marks=pytest.mark.slow),
        pytest.param(write_one, truncates, 24, marks=pytest.mark.nightly),
        *(
            pytest.param(write, other, 1, marks=pytest.mark.nightly)
            for write in (write_group, write_one)
            for other in OTHERS
        ),
    ],
)
def test_a_vacuum_of_files_at_any_step_of_a_writer_loses_and_repeats_nothing(
    write: Write,
    other: Other,
    every: int,
    history: History,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """By delta-rs: a version without its files cannot be read, nor a commit be based on it."""
    monkeypatch.setattr(cluster_tails, "ROWS_READ", 10)
    first = tmp_path / "first"
    begun(lambda: DeltaRsStore(str(first)), history)

    def run_at(step: int) -> tuple[int, DeltaRsStore]:
        place = tmp_path / str(step)
        shutil.copytree(first, place)
        vacuum = partial(vacuum_files, place)
        count = run(write, other, step, history, lambda: DeltaRsStore(str(place)), vacuum)
        return count, DeltaRsStore(str(place))

    step_count, _ = run_at(0)
    assert step_count > 20
    for step in range(1, step_count + 1, every):
        _, store = run_at(step)
        write(store, history, END)
        assert contents_of(store) == history.contents(END, CLUSTER), step
        shutil.rmtree(tmp_path / str(step))
