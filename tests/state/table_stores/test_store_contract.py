"""Contract of ``TableStore``: what the stores in memory, of delta-rs and of Spark do alike.

The fixtures ``store_at`` (no tables yet) and ``filled_store_at`` (tables after ``fill``) open a
store on the test's tables at each call.
"""

from __future__ import annotations

import json
import operator
import os
import random
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Barrier
from typing import Any, Final, Literal, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema
from tests.state.table_stores.rows import (
    CLUSTER,
    TIME,
    VALUES,
    Row,
    change,
    changes,
    log_row,
    of_cluster,
    progress,
    rows_of,
    state_row,
    table_of,
)
from tests.support.memory_store import MemoryStore, MemoryTables

from raftlog_state.errors import ConcurrentWriterError, TablesError
from raftlog_state.image.rows import Entity
from raftlog_state.tables.comments import commented_schema
from raftlog_state.tables.schema import (
    CHANGES_TABLE,
    LOG_TABLE,
    STATE_TABLE,
    STORED_TABLES,
    StoredTable,
    of_entities,
)
from raftlog_state.tables.stores.delta_rs import DeltaRsStore
from raftlog_state.tables.stores.protocol import (
    AnyOf,
    RowSlices,
    TableStore,
    Transaction,
    Where,
    columns_of_entity,
    in_schema,
)

FIRST: Final = 2**33
"""First offset of the filled tables: it does not fit in 32 bits."""
LAST: Final = FIRST + 5
WRITER: Final = "raftlog/cluster-a"
OTHER_CLUSTER: Final = "it's b/c=%2F"
QUOTED: Final = '["it\'s \\ \\" `%`"]'


class StoreAt(Protocol):
    """Tables of one test. A call opens one more store on them."""

    def __call__(self) -> TableStore: ...

    def file_count(self, table: StoredTable) -> int:
        """Return the number of files that the newest version of a table has."""
        ...

    def commit_count(self, table: StoredTable) -> int:
        """Return the number of commits of a table."""
        ...


@dataclass(frozen=True)
class PathStoreAt:
    """Delta tables in a directory; counts are read from the Delta log as files."""

    path: Path
    open_store: Callable[[str], TableStore]

    def __call__(self) -> TableStore:
        return self.open_store(str(self.path))

    def file_count(self, table: StoredTable) -> int:
        files: set[str] = set()
        for commit in self._commits(table):
            actions: list[dict[str, Any]] = [*map(json.loads, commit.read_text().splitlines())]
            files -= {action["remove"]["path"] for action in actions if "remove" in action}
            files |= {action["add"]["path"] for action in actions if "add" in action}
        return len(files)

    def commit_count(self, table: StoredTable) -> int:
        return len(self._commits(table))

    def operations(self, table: StoredTable) -> list[str]:
        """Return the operations of the commits, as Delta's history names them."""
        lines = (
            line for commit in self._commits(table) for line in commit.read_text().splitlines()
        )
        infos = (json.loads(line).get("commitInfo", {}) for line in lines)
        return [info["operation"] for info in infos if "operation" in info]

    def _commits(self, table: StoredTable) -> list[Path]:
        return sorted((self.path / table.name / "_delta_log").glob("*.json"))


@dataclass(frozen=True)
class MemoryStoreAt:
    """Tables in memory, whose chunks are files."""

    tables: MemoryTables = field(default_factory=MemoryTables)

    def __call__(self) -> MemoryStore:
        return MemoryStore(self.tables)

    def file_count(self, table: StoredTable) -> int:
        chunks: int = self.tables.contents[table.name].column(0).num_chunks
        return chunks

    def commit_count(self, table: StoredTable) -> int:
        return sum(commit.table == table.name for commit in self.tables.commits)


OpenStore = Callable[[str], TableStore]

STORES: Final = ("memory", pytest.param("delta-rs", marks=pytest.mark.slow))
with_spark_nightly: Final = pytest.mark.parametrize(
    "open_store",
    [*STORES, pytest.param("spark", marks=(pytest.mark.spark, pytest.mark.nightly))],
    indirect=True,
)
"""Mark of tests that ``make test`` runs with the other stores. What is Spark's own in them is in
another test with Spark, which a comment names."""


@pytest.fixture(scope="module", params=[*STORES, pytest.param("spark", marks=pytest.mark.spark)])
def open_store(request: pytest.FixtureRequest) -> OpenStore | None:
    """Return what opens a store on a directory; None for a store in memory."""
    if request.param == "spark":
        from raftlog_state.tables.stores.spark import SparkStore, session_for_tables

        session = session_for_tables(request.getfixturevalue("spark"))
        return lambda place: SparkStore(session, place)
    return DeltaRsStore if request.param == "delta-rs" else None


@pytest.fixture(scope="module")
def template(open_store: OpenStore | None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return tables that tests copy, filled once."""
    path = tmp_path_factory.mktemp("template") / "tables"
    if open_store is not None:
        fill(open_store(str(path)))
    return path


@pytest.fixture
def store_at(open_store: OpenStore | None, tmp_path: Path) -> StoreAt:
    """Open stores of tables that do not exist."""
    return MemoryStoreAt() if open_store is None else PathStoreAt(tmp_path / "tables", open_store)


@pytest.fixture
def filled_store_at(store_at: StoreAt, template: Path) -> StoreAt:
    """Open stores of the tables of ``fill``."""
    if isinstance(store_at, PathStoreAt):
        shutil.copytree(template, store_at.path)
    else:
        fill(store_at())
    return store_at


class Merge(NamedTuple):
    """Rows of one key by (incarnation, visible offset, offset), and which of them stays."""

    key: str
    stored: tuple[int, int, int] | None
    merged: tuple[int, int, int] | None
    stays: Literal["stored", "merged"]
    deleted: Literal["stored", "merged"] | None = None

    @property
    def stored_row(self) -> Row:
        assert self.stored
        return state_row(self.key, *self.stored, name="stored", is_deleted=self.deleted == "stored")

    @property
    def merged_row(self) -> Row:
        assert self.merged
        return state_row(self.key, *self.merged, name="merged", is_deleted=self.deleted == "merged")


MERGES: Final = (
    Merge("newer", (0, 5, 5), (0, 9, 8), "merged"),
    Merge("older", (0, 5, 5), (0, 4, 4), "stored"),
    Merge("older, visible later", (0, 5, 3), (0, 4, 4), "stored"),
    Merge("same", (0, 5, 5), (0, 5, 5), "stored"),
    Merge("same visible offset, newer", (0, 5, 4), (0, 5, 5), "merged"),
    Merge("same visible offset, older", (0, 5, 5), (0, 5, 4), "stored"),
    Merge("higher incarnation", (0, 50, 50), (1, 3, 3), "merged"),
    Merge("lower incarnation", (1, 3, 3), (0, 50, 50), "stored"),
    Merge("deleted", (0, 5, 5), (0, 9, 9), "merged", deleted="merged"),
    Merge("deleted earlier", (0, 5, 5), (0, 4, 4), "stored", deleted="merged"),
    Merge("older than the deletion", (0, 9, 9), (0, 5, 5), "stored", deleted="stored"),
    Merge("created again", (0, 5, 5), (0, 9, 9), "merged", deleted="stored"),
    Merge("inserted", None, (0, 9, 9), "merged"),
    Merge("inserted as deleted", None, (0, 9, 9), "merged", deleted="merged"),
    Merge("not merged", (0, 5, 5), None, "stored"),
)


def transaction(version: int, app_id: str = WRITER) -> Transaction:
    return Transaction(app_id=app_id, version=version)


def fill(store: TableStore) -> None:
    """Write two appends to ``changes``, transactions 1 and 2, and the stored rows of ``MERGES``."""
    store.prepare()
    first = [
        change(FIRST),
        change(FIRST + 1, leader_epoch=None, key=QUOTED),
        change(FIRST + 2, record_type=None, op="d", after=None),
        progress(FIRST, FIRST + 2),
    ]
    store.append(CHANGES_TABLE, table_of(CHANGES_TABLE, first), transaction(1))
    store.append(CHANGES_TABLE, changes(FIRST + 3, LAST), transaction(2))
    store.merge(table_of(STATE_TABLE, [case.stored_row for case in MERGES if case.stored]))


def contents(store: TableStore, table: StoredTable = CHANGES_TABLE, where: Where = ()) -> list[Row]:
    return rows_of(table, store.read(table, where))


# --- columns and reads ----------------------------------------------------------------------------


def test_first_write_creates_a_table_with_exactly_the_same_rows(store_at: StoreAt) -> None:
    store = store_at()
    store.prepare()
    for table in STORED_TABLES.values():
        assert not store.exists(table)
        with pytest.raises(TablesError) as raised:
            store.read(table)
        assert raised.value.place == store.place
    log = [
        log_row(0, is_control=True, value_raw=b"", value_json=None),
        log_row(1, log_time=TIME, key_raw=bytes(range(256)), value_json="{}"),
    ]
    ops = [
        *(change(offset, after=value) for offset, value in enumerate(VALUES)),
        *(change(100 + at, op="d", before=value, after=None) for at, value in enumerate(VALUES)),
        change(200, op="u", changed=["name", "isr"], before_origin={"offset": 7, "log_time": TIME}),
        change(201, changed=[], before_origin={}, log_time=None),
    ]
    state = [{**state_row(f"[{at}]", 0, at, at, name=""), "row": v} for at, v in enumerate(VALUES)]
    chunks: list[list[Row]] = [
        [],
        log[:1],
        [],
        log[1:],
    ]  # a filter leaves an empty one where it keeps no row
    log_rows = pa.concat_tables([table_of(LOG_TABLE, rows) for rows in chunks])
    change_rows = table_of(CHANGES_TABLE, ops)
    state_rows = table_of(STATE_TABLE, state)

    store.append(LOG_TABLE, log_rows, transaction(1))
    assert store.exists(LOG_TABLE)
    assert not store.exists(CHANGES_TABLE)
    store.append(CHANGES_TABLE, change_rows, transaction(1))
    store.merge(state_rows)

    for reader in (store, store_at()):
        for table, rows in zip(
            STORED_TABLES.values(), (log_rows, change_rows, state_rows), strict=True
        ):
            assert reader.exists(table)
            assert contents(reader, table) == rows_of(table, rows)
            if isinstance(store_at, PathStoreAt):
                stored = json.loads(DeltaTable(str(store_at.path / table.name)).schema().to_json())
                assert comments_of(stored) == comments_of(
                    json.loads(Schema.from_arrow(commented_schema(table.name)).to_json())
                )
    if isinstance(store_at, PathStoreAt):
        assert "MERGE" not in store_at.operations(STATE_TABLE), "there is nothing to merge with"


def comments_of(kind: dict[str, Any]) -> dict[str, Any]:
    """Return the comments of the columns of a type in Delta's JSON, and of their fields."""
    return {
        field["name"]: (
            field["metadata"].get("comment"),
            comments_of(field["type"]) if isinstance(field["type"], dict) else {},
        )
        for field in kind.get("fields", ())
    }


COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "not in": lambda value, others: value not in others,
}


def holds(row: Row, where: Where) -> bool:
    """Return whether all conditions hold for a row; none does for a null."""
    return all(
        row[column] is not None and COMPARISONS[comparison](row[column], value)
        for column, comparison, value in where
    )


def test_reads_return_the_rows_for_which_all_conditions_hold(filled_store_at: StoreAt) -> None:
    store = filled_store_at()
    rows = contents(store)
    conditions: tuple[Where, ...] = (
        (("offset", "=", FIRST + 1),),
        (("offset", "<", FIRST + 1),),
        (("offset", "<=", FIRST + 1),),
        (("visible_offset", ">", FIRST + 1),),
        (("visible_offset", ">=", FIRST + 1),),
        (("seq", "=", -1),),
        (("op", "!=", "c"),),
        (("record_type", "!=", ""),),
        (("entity", "=", "progress"),),
        (("key", "=", QUOTED),),
        (("leader_epoch", "<=", 1),),
        (("record_type", ">", ""),),
        (("key", "not in", (QUOTED, "")),),
        (("record_type", "not in", ("",)),),
        (("offset", ">", FIRST), ("offset", "<", LAST), ("op", "=", "c"), ("partition", "=", 0)),
    )
    for where in conditions:
        expected = [(row["offset"], row["seq"]) for row in rows if holds(row, where)]
        assert 0 < len(expected) < len(rows), where
        found = store.read(CHANGES_TABLE, where, ("offset", "seq"))
        assert sorted((row["offset"], row["seq"]) for row in found.to_pylist()) == expected, where
    assert contents(store, CHANGES_TABLE, (("offset", "<", FIRST),)) == []

    read = store.read(CHANGES_TABLE, (("op", "=", "p"),), ("after", "offset"))
    assert read.schema.names == ["after", "offset"]
    assert read.schema.field("after").type == CHANGES_TABLE.columns["after"]
    assert sorted(read["offset"].to_pylist()) == [FIRST + 2, LAST]


@with_spark_nightly  # writers read their progress so: test_both_engines_write_the_same_tables
def test_structs_are_read_with_one_field(store_at: StoreAt) -> None:
    store = store_at()
    store.prepare()
    rows = [change(offset, before=None, after=value) for offset, value in enumerate(VALUES)]
    rows += [change(len(VALUES), before=VALUES[0], after=None)]
    store.append(CHANGES_TABLE, table_of(CHANGES_TABLE, rows), transaction(1))
    whole = contents(store)

    for name in ("broker", "quota", "epoch", "topic"):
        read = store.read(CHANGES_TABLE, columns=("offset", f"before.{name}", f"after.{name}"))
        types = {side: CHANGES_TABLE.columns[side].field(name).type for side in ("before", "after")}
        assert read.schema.names == ["offset", *types]
        for side, kind in types.items():
            assert read.schema.field(side).type == pa.struct({name: kind})
            values = (row[side] and row[side][name] for row in whole)
            expected = [value and {name: value} for value in values]
            assert [row[side] for row in sorted(read.to_pylist(), key=_offset)] == expected

    none = store.read(CHANGES_TABLE, (("op", "=", "d"),), ("after.topic",))
    assert none.num_rows == 0
    assert none.schema.field("after").type == read.schema.field("after").type


def _offset(row: Row) -> int:
    offset: int = row["offset"]
    return offset


def slices_of(table: StoredTable, *parts: list[Row], fails: bool = False) -> RowSlices:
    def slices() -> Iterator[pa.Table]:
        for part in parts:
            yield table_of(table, part)
        if fails:
            raise RuntimeError("no more slices")

    return RowSlices(cluster_ids=(CLUSTER,), schema=table.schema, slices=slices)


@with_spark_nightly  # test_first_write_creates_a_table_with_exactly_the_same_rows
def test_rows_after_an_empty_chunk_are_written(store_at: StoreAt) -> None:
    """A filter of rows in chunks leaves an empty one where it keeps no row."""
    parts = [[], [log_row(0), log_row(1)], [], [log_row(2)], []]
    rows = pa.concat_tables([table_of(LOG_TABLE, part) for part in parts])
    assert [len(chunk) for chunk in rows["offset"].chunks] == [0, 2, 0, 1, 0]
    store = store_at()
    store.append(LOG_TABLE, rows, transaction(1))
    more = changes(LAST + 1, LAST + 1)
    store.append(CHANGES_TABLE, pa.concat_tables([more.slice(0, 0), more]), transaction(1))
    assert contents(store, LOG_TABLE) == rows_of(LOG_TABLE, rows)
    assert contents(store) == rows_of(CHANGES_TABLE, more)
    states = [state_row(key, 0, 5, 5, name=key) for key in ("a", "b")]
    parts = [states[:1], [], states[1:]]
    store.merge(pa.concat_tables([table_of(STATE_TABLE, part) for part in parts]))
    assert {row["key"] for row in contents(store, STATE_TABLE)} == {"a", "b"}


@with_spark_nightly  # test_rows_of_files_are_written_in_one_commit
def test_slices_are_written_in_one_commit(store_at: StoreAt) -> None:
    store = store_at()
    store.prepare()
    first, second = [change(10)], [change(11), change(12)]
    for version, kept in enumerate(([], [*first, *second]), start=1):
        store.append(CHANGES_TABLE, slices_of(CHANGES_TABLE, first, second), transaction(version))
        expected = table_of(CHANGES_TABLE, [*kept, *first, *second])
        assert contents(store) == rows_of(CHANGES_TABLE, expected)
    commits = store_at.commit_count(CHANGES_TABLE)
    with pytest.raises(ConcurrentWriterError):
        store.append(CHANGES_TABLE, slices_of(CHANGES_TABLE, first, second), transaction(2))
    assert store_at.commit_count(CHANGES_TABLE) == commits

    old, new = (state_row("[1]", 0, at, at, name=str(at)) for at in (1, 2))
    other = state_row("[2]", 0, 1, 1, name="other")
    store.merge(slices_of(STATE_TABLE, [old], [other]))
    commits = store_at.commit_count(STATE_TABLE)
    store.merge(slices_of(STATE_TABLE, [other], [new]))
    assert store_at.commit_count(STATE_TABLE) == commits + 1
    assert contents(store, STATE_TABLE) == rows_of(STATE_TABLE, table_of(STATE_TABLE, [new, other]))


@with_spark_nightly  # test_rows_of_files_are_written_in_one_commit
def test_slices_that_end_with_an_error_write_nothing(store_at: StoreAt) -> None:
    """Neither the table, if it does not exist, nor rows."""
    store = store_at()
    store.prepare()
    rows = slices_of(CHANGES_TABLE, [change(11)], [change(12)], fails=True)
    for exists in (False, True):
        with pytest.raises((TablesError, RuntimeError), match=r"no more slices|delta-rs failed"):
            store.append(CHANGES_TABLE, rows, transaction(2))
        assert store_at().exists(CHANGES_TABLE) == exists
        if not exists:
            store.append(CHANGES_TABLE, table_of(CHANGES_TABLE, [change(1)]), transaction(1))
    assert contents(store_at()) == rows_of(CHANGES_TABLE, table_of(CHANGES_TABLE, [change(1)]))
    store.append(CHANGES_TABLE, table_of(CHANGES_TABLE, [change(12)]), transaction(2))


# --- transactions ---------------------------------------------------------------------------------


def test_repeated_transaction_writes_nothing(filled_store_at: StoreAt) -> None:
    store = filled_store_at()
    before, commits = contents(store), filled_store_at.commit_count(CHANGES_TABLE)
    same, more = changes(FIRST + 3, LAST), changes(LAST + 1, LAST + 2)
    for version, rows in ((2, same), (2, more), (0, more)):
        with pytest.raises(ConcurrentWriterError) as raised:
            store.append(CHANGES_TABLE, rows, transaction(version))
        assert raised.value.place == store.place
    assert contents(store) == before
    assert filled_store_at.commit_count(CHANGES_TABLE) == commits


@with_spark_nightly  # test_views_of_a_schema_have_the_rows_of_each_cluster is of two applications
def test_transactions_of_another_application_and_table_are_independent(
    filled_store_at: StoreAt,
) -> None:
    store = filled_store_at()
    before = contents(store)
    log = table_of(LOG_TABLE, [log_row(0)])
    store.append(LOG_TABLE, log, transaction(1))
    more = changes(LAST + 1, LAST + 2)
    store.append(CHANGES_TABLE, more, transaction(1, "raftlog/another"))
    assert contents(store, LOG_TABLE) == rows_of(LOG_TABLE, log)
    assert contents(store) == [*before, *rows_of(CHANGES_TABLE, more)]


@with_spark_nightly  # test_concurrent_appends_of_a_transaction_commit_once
def test_slower_writer_of_a_transaction_writes_nothing(filled_store_at: StoreAt) -> None:
    first, second = filled_store_at(), filled_store_at()
    before = contents(first)
    assert contents(second) == before
    same, longer = changes(LAST + 1, LAST + 1), changes(LAST + 1, LAST + 2)
    first.append(CHANGES_TABLE, same, transaction(3))
    for rows in (same, longer):
        with pytest.raises(ConcurrentWriterError):
            second.append(CHANGES_TABLE, rows, transaction(3))
    assert contents(second) == contents(first) == [*before, *rows_of(CHANGES_TABLE, same)]
    second.append(CHANGES_TABLE, changes(LAST + 2, LAST + 2), transaction(4))
    assert contents(first)[-1]["offset"] == LAST + 2


def test_concurrent_appends_of_a_transaction_commit_once(filled_store_at: StoreAt) -> None:
    before = contents(filled_store_at())
    appends = [changes(LAST + 1, LAST + 1), changes(LAST + 1, LAST + 2)]
    start = Barrier(len(appends))

    def append(at: int) -> int | None:
        """Append when the others do; return which rows are committed, None if they are not."""
        store = filled_store_at()
        start.wait()
        try:
            store.append(CHANGES_TABLE, appends[at], transaction(3))
        except ConcurrentWriterError:
            return None
        return at

    with ThreadPoolExecutor(len(appends)) as pool:
        committed = [at for at in pool.map(append, range(len(appends))) if at is not None]
    assert len(committed) == 1
    rows = rows_of(CHANGES_TABLE, appends[committed[0]])
    assert contents(filled_store_at()) == [*before, *rows]


def test_an_append_of_several_transactions_needs_all_of_them(filled_store_at: StoreAt) -> None:
    first, second = filled_store_at(), filled_store_at()
    if not first.has_many_transactions:
        return
    before, more = contents(first), changes(LAST + 1, LAST + 1)
    assert contents(second) == before
    pair = [transaction(1, name) for name in ("raftlog/one", "raftlog/two")]
    first.append(CHANGES_TABLE, more, *pair)
    commits = filled_store_at.commit_count(CHANGES_TABLE)
    for store in (first, second):
        for one in pair:
            for others in ([one], [one, transaction(1, "raftlog/new")], [transaction(9), one]):
                with pytest.raises(ConcurrentWriterError):
                    store.append(CHANGES_TABLE, changes(LAST + 2, LAST + 2), *others)
    assert filled_store_at.commit_count(CHANGES_TABLE) == commits
    assert contents(second) == [*before, *rows_of(CHANGES_TABLE, more)]
    second.append(CHANGES_TABLE, changes(LAST + 2, LAST + 2), transaction(9))


@with_spark_nightly  # of a truncation: test_views_of_a_schema_have_the_rows_of_each_cluster
def test_a_fence_ends_transactions_without_rows(filled_store_at: StoreAt) -> None:
    first, second = filled_store_at(), filled_store_at()
    before = contents(first)
    assert contents(second) == before
    others = ("raftlog/another", "raftlog/third")
    first.fence(CHANGES_TABLE, [transaction(5), *(transaction(1, name) for name in others)])
    for store in (first, second):
        for name, version in ((WRITER, 5), (WRITER, 3), *((name, 1) for name in others)):
            with pytest.raises(ConcurrentWriterError):
                store.append(CHANGES_TABLE, changes(LAST + 1, LAST + 1), transaction(version, name))
        store.fence(CHANGES_TABLE, [transaction(4), transaction(1, others[0])])
        store.fence(CHANGES_TABLE, [])
    assert contents(second) == before
    more = changes(LAST + 1, LAST + 2)
    second.append(CHANGES_TABLE, more, transaction(6))
    third = changes(LAST + 3, LAST + 3)
    second.append(CHANGES_TABLE, third, transaction(2, others[1]))
    appended = [*rows_of(CHANGES_TABLE, more), *rows_of(CHANGES_TABLE, third)]
    assert contents(first) == [*before, *appended]


# --- merge ----------------------------------------------------------------------------------------


def test_merge_keeps_the_latest_row_of_each_key(filled_store_at: StoreAt) -> None:
    store = filled_store_at()
    stored = [case.stored_row for case in MERGES if case.stored]
    merged = [case.merged_row for case in MERGES if case.merged]
    same_key = state_row("newer", 0, 0, 0, name="of another entity", entity="broker")
    left = [case.stored_row if case.stays == "stored" else case.merged_row for case in MERGES]
    expected = rows_of(STATE_TABLE, table_of(STATE_TABLE, [*left, same_key]))

    for rows in ([*merged, same_key], stored):
        store.merge(table_of(STATE_TABLE, rows))
        assert contents(store, STATE_TABLE) == expected
    assert contents(filled_store_at(), STATE_TABLE) == expected


# --- clusters -------------------------------------------------------------------------------------


@with_spark_nightly  # test_views_of_a_schema_have_the_rows_of_each_cluster
def test_rows_of_clusters_are_kept_apart(filled_store_at: StoreAt) -> None:
    store = filled_store_at()
    before = {name: contents(store, STORED_TABLES[name]) for name in ("changes", "state")}
    assert store.cluster_ids(CHANGES_TABLE, CLUSTER) == [CLUSTER]
    of_other = of_cluster(CHANGES_TABLE, changes(0, 2), OTHER_CLUSTER)
    store.append(CHANGES_TABLE, of_other, transaction(1, "raftlog/other"))
    for known in (None, CLUSTER, OTHER_CLUSTER):
        found = store.cluster_ids(CHANGES_TABLE, known)
        assert sorted(found) == sorted((CLUSTER, OTHER_CLUSTER))

    key = before["state"][0]["key"]
    row = {**state_row(key, 9, 9, 9, name="of another cluster"), "cluster_id": OTHER_CLUSTER}
    filled_store_at().merge(table_of(STATE_TABLE, [row]))
    for table, added in ((CHANGES_TABLE, of_other), (STATE_TABLE, table_of(STATE_TABLE, [row]))):
        for cluster_id, rows in (
            (CLUSTER, before[table.name]),
            (OTHER_CLUSTER, rows_of(table, added)),
        ):
            found = store.read(table, (("cluster_id", "=", cluster_id),))
            assert rows_of(table, found) == rows


@with_spark_nightly  # test_one_query_writes_the_states_of_its_clusters_and_...
def test_an_append_has_rows_of_many_clusters_in_one_transaction(store_at: StoreAt) -> None:
    names = [f"cluster-{at}'" for at in range(400)]
    store, other = store_at(), store_at()
    store.prepare()
    appends = [changes(0, last) for last in range(3)]
    parts = [of_cluster(CHANGES_TABLE, appends[at % 3], name) for at, name in enumerate(names)]
    store.append(CHANGES_TABLE, pa.concat_tables(parts), transaction(1, "group"))
    commits = store_at.commit_count(CHANGES_TABLE)
    assert sorted(store.cluster_ids(CHANGES_TABLE)) == sorted(names)
    for rows in (parts[7], pa.concat_tables(parts[:9])):
        with pytest.raises(ConcurrentWriterError):
            other.append(CHANGES_TABLE, rows, transaction(1, "group"))
    assert store_at.commit_count(CHANGES_TABLE) == commits
    # The rows of each from an end of its own on, in one read.
    ends = {name: at % 4 for at, name in enumerate(names[1:])}
    any_of: AnyOf = tuple(
        (("cluster_id", "=", name), ("offset", ">=", end)) for name, end in ends.items()
    )
    found = other.read(CHANGES_TABLE, (("op", "=", "p"),), ("cluster_id", "offset"), any_of=any_of)
    expected = [(name, at % 3) for at, name in enumerate(names) if at % 3 >= ends.get(name, 9)]
    assert sorted((row["cluster_id"], row["offset"]) for row in found.to_pylist()) == sorted(
        expected
    )
    store.delete(CHANGES_TABLE, (("op", "=", "p"),), any_of=any_of)
    left = other.read(CHANGES_TABLE, (("op", "=", "p"),), ("cluster_id",))
    assert sorted(left["cluster_id"].to_pylist()) == sorted(set(names) - {n for n, _ in expected})


@with_spark_nightly  # test_merge_keeps_the_latest_row_of_each_key
def test_concurrent_merges_of_different_clusters_commit(filled_store_at: StoreAt) -> None:
    names = [f"cluster-{at}" for at in range(2)]
    rows = [{**state_row("k", 0, 0, 0, name=name), "cluster_id": name} for name in names]
    filled_store_at().merge(table_of(STATE_TABLE, rows))  # each has its partition
    later = [{**row, "_offset": 1} for row in rows]
    start = Barrier(len(names))

    def merge(row: Row) -> None:
        store = filled_store_at()
        start.wait()
        store.merge(table_of(STATE_TABLE, [row]))

    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(merge, later))
    store = filled_store_at()
    found = [store.read(STATE_TABLE, (("cluster_id", "=", name),)) for name in names]
    assert [part["_offset"].to_pylist() for part in found] == [[1]] * len(names)


@with_spark_nightly  # test_first_write_creates_a_table_with_exactly_the_same_rows
def test_first_merges_at_the_same_time_keep_the_rows_of_both(store_at: StoreAt) -> None:
    rows = [{**state_row("k", 0, 0, 0, name=name), "cluster_id": name} for name in ("a", "b")]
    stores = [store_at() for _ in rows]
    stores[0].prepare()
    start = Barrier(len(rows))

    def merge(store: TableStore, row: Row) -> None:
        start.wait()
        store.merge(table_of(STATE_TABLE, [row]))

    with ThreadPoolExecutor(len(rows)) as pool:
        list(pool.map(merge, stores, rows))
    expected = rows_of(STATE_TABLE, table_of(STATE_TABLE, rows))
    for store in (*stores, store_at()):
        assert sorted(contents(store, STATE_TABLE), key=repr) == sorted(expected, key=repr)


# --- delete and maintenance -----------------------------------------------------------------------


def test_delete_deletes_the_rows_for_which_all_conditions_hold(filled_store_at: StoreAt) -> None:
    store, reader = filled_store_at(), filled_store_at()
    before, read = contents(store), reader.read(CHANGES_TABLE)
    commits = filled_store_at.commit_count(CHANGES_TABLE)

    store.delete(CHANGES_TABLE, (("offset", "<", LAST), ("op", "=", "r")))
    assert filled_store_at.commit_count(CHANGES_TABLE) == commits
    where: Where = (("leader_epoch", "<=", 1), ("offset", ">", FIRST), ("op", "=", "c"))
    store.delete(CHANGES_TABLE, where)
    assert filled_store_at.commit_count(CHANGES_TABLE) == commits + 1

    left = [row for row in before if not holds(row, where)]
    assert FIRST + 1 in [row["offset"] for row in left], "its null fulfils no condition"
    assert 0 < len(left) < len(before)
    assert contents(store) == contents(reader) == left
    assert rows_of(CHANGES_TABLE, read) == before, "the rows of an earlier read"


@with_spark_nightly  # test_a_view_is_fixed_while_the_tables_advance
def test_a_version_keeps_its_rows(filled_store_at: StoreAt) -> None:
    store, writer = filled_store_at(), filled_store_at()
    before, version = contents(store), store.version(CHANGES_TABLE)
    rows = store.read(CHANGES_TABLE, version=version)
    writer.append(CHANGES_TABLE, changes(LAST + 1, LAST + 1), transaction(3))
    writer.compact(CHANGES_TABLE)
    later = store.version(CHANGES_TABLE)
    assert later > version
    assert contents(store) != before
    where: Where = (("offset", ">=", LAST),)
    for reader in (store, filled_store_at(), store):
        for at, count in ((version, 1), (later, 2)):
            found = reader.read(CHANGES_TABLE, where, ("offset",), version=at)
            assert sorted(set(found["offset"].to_pylist())) == [LAST, LAST + 1][:count]
    again = store.read(CHANGES_TABLE, version=version)
    assert rows_of(CHANGES_TABLE, again) == rows_of(CHANGES_TABLE, rows)


def test_maintenance_keeps_rows_and_transactions(filled_store_at: StoreAt) -> None:
    store, reader = filled_store_at(), filled_store_at()
    for at in (1, 2):
        store.append(CHANGES_TABLE, changes(LAST + at, LAST + at), transaction(2 + at))
    before, read = contents(store), reader.read(CHANGES_TABLE)
    files = filled_store_at.file_count(CHANGES_TABLE)

    size = store.size(CHANGES_TABLE)
    assert size.file_count == files
    assert size.byte_count > 0
    store.compact(CHANGES_TABLE)
    assert filled_store_at.file_count(CHANGES_TABLE) < files
    assert store.size(CHANGES_TABLE).file_count == filled_store_at.file_count(CHANGES_TABLE)
    store.vacuum(CHANGES_TABLE)
    assert contents(store) == contents(reader) == before
    assert rows_of(CHANGES_TABLE, read) == before, "the rows of an earlier read"

    more = changes(LAST + 3, LAST + 3)
    for writer in (store, reader):
        with pytest.raises(ConcurrentWriterError):
            writer.append(CHANGES_TABLE, more, transaction(4))
    store.append(CHANGES_TABLE, more, transaction(5))
    with pytest.raises(ConcurrentWriterError):
        reader.append(CHANGES_TABLE, more, transaction(5))
    assert contents(filled_store_at()) == [*before, *rows_of(CHANGES_TABLE, more)]


@with_spark_nightly  # test_maintenance_keeps_rows_and_transactions
def test_a_compaction_leaves_a_file_that_is_larger_than_those_after_it(store_at: StoreAt) -> None:
    """It is rewritten when they are together as large: its cost is not that of all rows."""
    store, chance = store_at(), random.Random(1)
    in_one_file = isinstance(store, MemoryStore)
    at = CHANGES_TABLE.schema.get_field_index("key")

    def append(offset: int, key_bytes: int) -> None:
        rows = changes(offset, offset)
        keys = pa.array([chance.randbytes(key_bytes).hex() for _ in range(rows.num_rows)])
        store.append(CHANGES_TABLE, rows.set_column(at, "key", keys), transaction(offset + 1))

    append(0, 500_000)
    for offsets in (range(1, 4), range(4, 7)):
        for offset in offsets:
            append(offset, 10)
        store.compact(CHANGES_TABLE)
        file_count = store_at.file_count(CHANGES_TABLE)
        assert file_count == 1 if in_one_file else file_count in (2, 3)
    append(7, 500_000)
    store.compact(CHANGES_TABLE)
    assert store_at.file_count(CHANGES_TABLE) == 1
    rows = store.read(CHANGES_TABLE, (("op", "=", "c"),), ("offset",))
    assert sorted(rows["offset"].to_pylist()) == [*range(8)]


@pytest.mark.parametrize("is_altered", [False, True])
def test_a_compaction_and_no_append_cleans_the_log_of_delta_rs(
    is_altered: bool, tmp_path: Path
) -> None:
    store = DeltaRsStore(str(tmp_path))
    log = tmp_path / CHANGES_TABLE.name / "_delta_log"
    for offset in range(4):
        store.append(CHANGES_TABLE, table_of(CHANGES_TABLE, [change(offset)]), transaction(offset))
    if is_altered:  # and delta-rs commits the appends
        DeltaTable(str(log.parent)).alter.add_constraint({"is_change": "op <> 'p'"})
    DeltaTable(str(log.parent)).create_checkpoint()
    expired = [path for path in sorted(log.glob("*.json")) if path.stem < _newest(log)]
    for path in log.iterdir():
        os.utime(path, (0, 0))
    store.append(CHANGES_TABLE, table_of(CHANGES_TABLE, [change(4)]), transaction(4))
    assert all(path.exists() for path in expired)
    store.compact(CHANGES_TABLE)
    assert not any(path.exists() for path in expired)
    assert len(contents(DeltaRsStore(str(tmp_path)))) == 5


def _newest(log: Path) -> str:
    return max(path.stem for path in log.glob("*.json"))


def test_rows_of_files_are_written_in_one_commit(store_at: StoreAt, tmp_path: Path) -> None:
    store = store_at()
    parts = [[change(11), change(12)], [change(13)], [change(14)], [change(15)]]
    files = []
    for number, part in enumerate(parts[:-1]):
        files.append(str(tmp_path / f"{number}.parquet"))
        pq.write_table(table_of(CHANGES_TABLE, part), files[-1])
    rest = table_of(CHANGES_TABLE, parts[-1])
    for version in (1, 2):
        rows = RowSlices.of_files(
            CLUSTER, CHANGES_TABLE, files[2 * version - 2 : 2 * version], rest
        )
        store.append(CHANGES_TABLE, rows, transaction(version))
    expected = [row for part in (*parts[:2], parts[3], *parts[2:]) for row in part]
    assert contents(store) == rows_of(CHANGES_TABLE, table_of(CHANGES_TABLE, expected))
    rows = RowSlices.of_files(CLUSTER, CHANGES_TABLE, files, rest)
    with pytest.raises(ConcurrentWriterError):
        store.append(CHANGES_TABLE, rows, transaction(2))
    later = store.read(CHANGES_TABLE, (("visible_offset", ">", 11), ("key", ">", "")))
    assert later.num_rows == 5, "the statistics of the files are those of their rows"
    states = [state_row(key, 0, 5, 5, name=key) for key in ("a", "b", "c")]
    for number, count in enumerate((1, 2)):
        file = str(tmp_path / f"state-{number}.parquet")
        pq.write_table(table_of(STATE_TABLE, states[:count]), file)
        rest = table_of(STATE_TABLE, states[2:])
        store.merge(RowSlices.of_files(CLUSTER, STATE_TABLE, [file], rest))
    assert {row["key"] for row in contents(store, STATE_TABLE)} == {"a", "b", "c"}
    assert all(map(os.path.exists, files)), "they belong to the caller"


def test_a_vacuum_does_not_delete_an_old_file_that_is_about_to_be_added(tmp_path: Path) -> None:
    """An interrupted load that is continued after days has such files."""
    store, file = DeltaRsStore(str(tmp_path / "tables")), tmp_path / "old.parquet"
    store.append(CHANGES_TABLE, changes(1, 3), transaction(1))
    pq.write_table(table_of(CHANGES_TABLE, [change(11)]), file)
    os.utime(file, (1_000_000, 1_000_000))
    store.append(
        CHANGES_TABLE, RowSlices.of_files(CLUSTER, CHANGES_TABLE, [str(file)]), transaction(2)
    )
    added = DeltaTable(str(tmp_path / "tables" / "changes")).get_add_actions()
    oldest_ms = min(pa.table(added)["modification_time"].to_pylist())
    assert oldest_ms > 1_000_000_000, "its age is that of the link"


@with_spark_nightly  # test_an_append_writes_the_fields_that_its_rows_have
def test_fields_that_a_file_lacks_are_read_as_null(store_at: StoreAt, tmp_path: Path) -> None:
    """Also after the file was rewritten; rows of other files keep theirs."""
    rows = table_of(CHANGES_TABLE, [change(11), change(12), change(13)])
    narrow = of_entities(CHANGES_TABLE.schema, [Entity.TOPIC])
    file = str(tmp_path / "narrow.parquet")
    pq.write_table(in_schema(rows, narrow), file)
    assert pq.read_metadata(file).num_columns < 30, "all of them are more than 200"
    store = store_at()
    rest = table_of(CHANGES_TABLE, [change(14), progress(14, 14)])
    store.append(
        CHANGES_TABLE, RowSlices.of_files(CLUSTER, CHANGES_TABLE, [file], rest), transaction(1)
    )
    expected = rows_of(CHANGES_TABLE, pa.concat_tables([rows, rest]))
    assert contents(store) == expected
    for entity in ("topic", "broker", "progress"):
        columns = columns_of_entity(CHANGES_TABLE, entity)
        found = store.read(CHANGES_TABLE, (("entity", "=", entity),), columns)
        assert found["after"].null_count == 0
        assert found.num_rows == sum(row["entity"] == entity for row in expected)
    store.compact(CHANGES_TABLE)
    assert contents(store) == expected
    store.delete(CHANGES_TABLE, (("visible_offset", "<=", 11),))
    assert contents(store) == [row for row in expected if row["visible_offset"] > 11]


def test_a_store_that_was_not_used_for_long_reads_the_newest_version(tmp_path: Path) -> None:
    """Entries of Delta's log that follow its version have been deleted since."""
    place = str(tmp_path / "tables")
    idle, busy = DeltaRsStore(place), DeltaRsStore(place)
    fill(idle)
    before = contents(idle)
    for version in range(3, 8):
        offset = LAST + version
        busy.append(CHANGES_TABLE, changes(offset, offset), transaction(version))
    log = tmp_path / "tables" / CHANGES_TABLE.name / "_delta_log"
    DeltaTable(str(log.parent)).create_checkpoint()
    for path in sorted(log.glob("*.json"))[:-1]:
        path.unlink()
    assert len(contents(idle)) == len(before) + 5 * 2
    with pytest.raises(ConcurrentWriterError):
        idle.append(CHANGES_TABLE, changes(LAST + 3, LAST + 3), transaction(3))
