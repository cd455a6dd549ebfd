"""Two commands on one set of tables at the same time: each has its effect, or raises a typed error.

The second runs whole before a commit of the first one, after that has read what it commits; at each
commit. ``make test`` has each command once as the first one and once as the second, and
``make nightly`` each pair.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.state.tables.test_bulk_load import load
from tests.state.tables.test_writer import expired, history
from tests.support.memory_store import MemoryStore, MemoryTables
from tests.support.random_metadata_log import write_random_log
from tests.support.sweep_size import nightly_except
from tests.support.written_tables import (
    CLUSTER,
    END,
    History,
    contents,
    followed,
    read_view,
    writer_of,
)

from raftlog_state.errors import ConcurrentWriterError, OffsetGapError
from raftlog_state.tables.writer import Writer

__all__ = ["history"]

TRUNCATED_TO = 40
EXPIRED_TO = 30


def maintain(writer: Writer) -> None:
    writer.merge_state()
    writer.compact()


COMMANDS: dict[str, Callable[[Writer, History], Any]] = {
    "append": lambda writer, history: writer.apply(history.range(60, END), CLUSTER),
    "truncate": lambda writer, _: writer.truncate_to(TRUNCATED_TO),
    "expire": lambda writer, _: writer.expire(EXPIRED_TO),
    "maintain": lambda writer, _: maintain(writer),
}
USUAL = (
    ("append", "truncate"),
    ("truncate", "expire"),
    ("expire", "maintain"),
    ("maintain", "append"),
)
"""Pairs of commands of ``make test``."""


class Commands:
    """Commands on tables; ``done`` has those that returned."""

    def __init__(self, history: History, tables: MemoryTables) -> None:
        self._history = history
        self._tables = tables
        self.done: set[str] = set()

    def run(self, name: str, *, before_commit: Callable[[str, str], None] | None = None) -> None:
        hooks: Any = {} if before_commit is None else {"before_commit": before_commit}
        try:
            COMMANDS[name](writer_of(self._tables, **hooks), self._history)
        except ConcurrentWriterError:
            pass
        except OffsetGapError:
            assert name == "append", "the tables were truncated before it"
        else:
            self.done.add(name)
        self._history.check(read_view(self._tables))


def partly_merged(history: History) -> MemoryTables:
    """Return tables with changes in ``state``, others that are not, and two files."""
    tables = history.written(45)
    writer = writer_of(tables)
    writer.merge_state()
    writer.apply(history.range(45, 60), CLUSTER)
    return tables


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"), nightly_except(USUAL, itertools.product(COMMANDS, COMMANDS))
)
def test_two_commands_have_the_effect_of_one_after_the_other(
    first: str, second: str, history: History
) -> None:
    begun, at = partly_merged(history), 0
    while interleaved(history, begun.copy(), first, second, at):
        at += 1
    assert at > 0


def interleaved(history: History, tables: MemoryTables, first: str, second: str, at: int) -> bool:
    """Run ``second`` before a commit of ``first``; return whether that has so many commits."""
    commands, counts = Commands(history, tables), itertools.count()

    def before_commit(operation: str, table: str) -> None:
        if next(counts) == at:
            commands.run(second)

    commands.run(first, before_commit=before_commit)
    check(history, tables, commands.done)
    return next(counts) > at


@pytest.mark.parametrize("command", COMMANDS)
def test_a_merge_beside_a_command_of_the_same_writer_reverts_nothing(
    command: str, history: History
) -> None:
    tables = partly_merged(history)
    writer = writer_of(tables)
    merged = writer.begin_merge()
    rows = writer.rows_on(MemoryStore(tables))
    COMMANDS[command](writer, history)
    is_late = command in ("truncate", "expire")
    try:
        rows.merge(merged)
    except ConcurrentWriterError:
        assert is_late, "the rows that it has are reverted"
        writer.forget()
    else:
        writer.end_merge(merged)
        assert writer.unmerged_row_count() == writer_of(tables).unmerged_row_count()
    history.check(read_view(tables))
    check(history, tables, {command})


def check(history: History, tables: MemoryTables, done: set[str]) -> None:
    """The tables are those of the commands that are done, and are continued to the end."""
    writer = writer_of(tables)
    progress = writer.progress()
    if "truncate" in done:
        assert progress.offset == TRUNCATED_TO
    elif "append" in done:
        assert progress.offset in (END - 1, TRUNCATED_TO)
    if "expire" in done:
        assert progress.expired_to == EXPIRED_TO
    assert progress.expired_to in (None, EXPIRED_TO)
    if progress.expired_to is not None:
        writer.expire(EXPIRED_TO)  # of an expiry that conflicted, a repeated one deletes the rows
    writer.apply(history.range(0, END), CLUSTER)
    assert contents(tables) == expired(history.contents(END), progress.expired_to)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "rival"),
    nightly_except(
        (("changes", "truncate"),),
        (("load", "expire"), ("log", "truncate"), ("changes", "truncate"), ("changes", "maintain")),
    ),
)
def test_a_load_beside_another_command_gives_the_same_tables(
    step: str, rival: str, tmp_path: Path
) -> None:
    log = write_random_log(tmp_path, 3, 200).directory
    expected, tables = followed(log), MemoryTables()
    is_due = [True]

    def run_rival(name: str) -> None:
        [*is_second] = [commit for commit in tables.commits if commit.table == "changes"]
        if name == step and is_second and is_due:
            is_due.clear()
            writer = writer_of(tables)
            end = writer.progress().offset
            if rival == "truncate":
                writer.truncate_to(end - 20)
            elif rival == "expire":
                writer.expire(end // 2)
            else:
                maintain(writer)

    load(log, tables, tmp_path / "staging", after_step=run_rival, range_records=70)
    assert not is_due
    expired_to = writer_of(tables).progress().expired_to
    assert (expired_to is not None) == (rival == "expire")
    assert contents(tables) == expired(contents(expected), expired_to)
