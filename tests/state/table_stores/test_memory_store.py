"""Lost and interrupted commits of tables in memory, other writers, and invalid rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import pyarrow as pa
import pytest
from tests.state.table_stores.rows import (
    Row,
    changes,
    log_row,
    rows_of,
    state_row,
    table_of,
)
from tests.support.memory_store import MemoryStore, MemoryTables, Operation, no_hook

from raftlog_state.errors import ConcurrentWriterError, TablesError
from raftlog_state.tables.schema import CHANGES_TABLE, LOG_TABLE, STATE_TABLE, STORED_TABLES
from raftlog_state.tables.stores.protocol import TableStore, Transaction

FIRST: Final = Transaction(app_id="raftlog/cluster-a", version=1)


class CrashError(Exception):
    """End of the process at a hook."""


def state(*rows: Row) -> pa.Table:
    return table_of(STATE_TABLE, list(rows))


def write_everything(store: TableStore) -> None:
    """Commit every kind of operation; repeating it changes nothing."""
    for table, rows in (
        (LOG_TABLE, table_of(LOG_TABLE, [log_row(0), log_row(1)])),
        (CHANGES_TABLE, changes(0, 3)),
    ):
        with suppress(ConcurrentWriterError):  # it is committed
            store.append(table, rows, FIRST)
    store.merge(state(state_row("a", 0, 1, 1, name="old"), state_row("b", 0, 1, 1, name="old")))
    store.merge(state(state_row("a", 0, 3, 3, name="new")))
    store.delete(CHANGES_TABLE, (("offset", "<", 2),))
    store.compact(STATE_TABLE)


COMMITS: Final[list[tuple[Operation, str]]] = [
    ("append", "log"),
    ("append", "changes"),
    ("merge", "state"),
    ("merge", "state"),
    ("delete", "changes"),
    ("compact", "state"),
]


def contents(tables: MemoryTables) -> dict[str, list[Row]]:
    return {name: rows_of(STORED_TABLES[name], rows) for name, rows in tables.contents.items()}


def crash_at(point: int) -> Callable[[Operation, str], None]:
    """Return a hook that raises at its call number ``point``, counted from 0."""
    calls: list[tuple[Operation, str]] = []

    def hook(operation: Operation, table: str) -> None:
        assert (operation, table) == COMMITS[len(calls)]
        calls.append((operation, table))
        if len(calls) > point:
            raise CrashError(f"{operation} {table}")

    return hook


def test_every_commit_is_listed() -> None:
    tables = MemoryTables()
    write_everything(MemoryStore(tables))
    assert tables.commits == COMMITS


@pytest.mark.parametrize("point", range(len(COMMITS)))
@pytest.mark.parametrize("is_durable", [False, True])
def test_interrupted_commit_is_lost_or_durable(point: int, is_durable: bool) -> None:
    complete, tables = MemoryTables(), MemoryTables()
    write_everything(MemoryStore(complete))
    crash = crash_at(point)
    store = MemoryStore(
        tables,
        before_commit=no_hook if is_durable else crash,
        after_commit=crash if is_durable else no_hook,
    )
    with pytest.raises(CrashError):
        write_everything(store)
    assert tables.commits == COMMITS[: point + is_durable]
    write_everything(MemoryStore(tables))
    assert contents(tables) == contents(complete)


def test_operation_without_changes_is_no_commit() -> None:
    tables = MemoryTables()
    write_everything(MemoryStore(tables))
    crash = crash_at(0)
    store = MemoryStore(tables, before_commit=crash, after_commit=crash)
    store.delete(CHANGES_TABLE, (("offset", "<", 0),))
    store.compact(STATE_TABLE)
    store.vacuum(STATE_TABLE)
    assert tables.commits == COMMITS


def racing(tables: MemoryTables, write: Callable[[TableStore], None]) -> MemoryStore:
    """Return a store before whose commits another one writes."""
    return MemoryStore(
        tables,
        before_commit=lambda operation, table: write(MemoryStore(tables)),
        after_commit=crash_at(-1),
    )


def test_append_detects_the_same_transaction_of_a_faster_writer() -> None:
    tables = MemoryTables()
    store = racing(tables, lambda other: other.append(CHANGES_TABLE, changes(0, 3), FIRST))
    with pytest.raises(
        ConcurrentWriterError, match="committed a transaction of raftlog/cluster-a 1"
    ):
        store.append(CHANGES_TABLE, changes(0, 3), FIRST)
    assert contents(tables) == {"changes": rows_of(CHANGES_TABLE, changes(0, 3))}


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.merge(state(state_row("a", 0, 9, 9, name="later"))),
        lambda store: store.delete(STATE_TABLE, (("key", "=", "a"),)),
        lambda store: store.compact(STATE_TABLE),
    ],
    ids=["merge", "delete", "compact"],
)
def test_other_writes_detect_a_faster_writer(write: Callable[[TableStore], None]) -> None:
    tables = MemoryTables()
    MemoryStore(tables).merge(state(state_row("a", 0, 1, 1, name="old")))
    MemoryStore(tables).merge(state(state_row("b", 0, 1, 1, name="old")))
    newer = state(state_row("a", 0, 2, 2, name="faster"))
    with pytest.raises(ConcurrentWriterError, match="another writer changed table state"):
        write(racing(tables, lambda other: other.merge(newer)))
    assert [row["row"]["topic"]["name"] for row in contents(tables)["state"]] == ["faster", "old"]


def test_invalid_rows_are_rejected() -> None:
    tables = MemoryTables()
    store = MemoryStore(tables, place="memory of the test")
    valid = changes(0, 3)
    row = state_row("a", 0, 1, 1, name="")
    invalid: tuple[tuple[Callable[[], None], str], ...] = (
        (lambda: store.append(CHANGES_TABLE, valid.drop_columns("seq"), FIRST), "columns"),
        (lambda: store.append(CHANGES_TABLE, valid.select(valid.column_names[::-1]), FIRST), "col"),
        (lambda: store.append(LOG_TABLE, valid, FIRST), "columns"),
        (lambda: store.append(CHANGES_TABLE, valid.slice(0, 0), FIRST), "no rows"),
        (lambda: store.merge(state(row, row)), "a key more than once"),
    )
    for write, reason in invalid:
        with pytest.raises(TablesError, match=reason) as raised:
            write()
        assert raised.value.place == "memory of the test"
    assert tables == MemoryTables(lock=tables.lock)
