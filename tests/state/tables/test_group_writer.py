"""Many clusters through one writer, in memory: owners, conflicts, crashes and rejected clusters.

``RAFTLOG_WRITER_SEEDS=1000`` sets the number of random histories.
"""

from __future__ import annotations

import itertools
import json
import os
import random

import pyarrow as pa
import pytest
from tests.state.table_stores.rows import change, table_of
from tests.support.memory_store import (
    AllReads,
    Commit,
    Hook,
    MemoryStore,
    MemoryTables,
    Read,
    no_hook,
)
from tests.support.metadata_logs import metadata_log, restored
from tests.support.source_rows import SCHEMA
from tests.support.sweep_size import nightly_except
from tests.support.written_tables import (
    CrashError,
    History,
    contents,
    read_view,
    rows_in_memory,
    writer_of,
)

from raftlog.errors import DivergedLogError, OffsetOutOfRangeError
from raftlog_state.errors import (
    ClusterOwnedError,
    ConcurrentWriterError,
    OffsetGapError,
    TablesError,
)
from raftlog_state.tables import tails as tails_module
from raftlog_state.tables.change_slices import SLICE_ROWS
from raftlog_state.tables.group_writer import GroupWriter
from raftlog_state.tables.latest import state_rows
from raftlog_state.tables.progress import Progress, changes_progress
from raftlog_state.tables.schema import CHANGES_TABLE, LOG_TABLE, STATE_TABLE
from raftlog_state.tables.stores.protocol import Transaction
from raftlog_state.tables.unmerged import GROUP_UNMERGED_ROWS_MAX
from raftlog_state.tables.writer import Writer

SEEDS = int(os.environ.get("RAFTLOG_WRITER_SEEDS", "30"))
CLUSTERS = ("cluster-a", "cluster-b", "it's c")
END = 80


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Each cluster has the same log: all keys of their rows are equal."""
    return History(
        metadata_log(restored("three-nodes-4.3.1/node-1", tmp_path_factory.mktemp("log")))
    )


def group_of(
    tables: MemoryTables,
    name: str = "one",
    *,
    writes_log: bool = True,
    take_over: bool = False,
    cached_rows_max: int = 1_000,
    unmerged_rows_max: int = GROUP_UNMERGED_ROWS_MAX,
    before_commit: Hook = no_hook,
    after_commit: Hook = no_hook,
    slice_rows: int = SLICE_ROWS,
    has_many_transactions: bool = True,
) -> GroupWriter:
    store = MemoryStore(
        tables,
        before_commit=before_commit,
        after_commit=after_commit,
        has_many_transactions=has_many_transactions,
    )
    return GroupWriter(
        store,
        name,
        take_over=take_over,
        writes_log=writes_log,
        cached_rows_max=cached_rows_max,
        unmerged_rows_max=unmerged_rows_max,
        clock_us=lambda: 1,
        slice_rows=slice_rows,
    )


def filled(history: History, ends: dict[str, int], name: str = "one") -> MemoryTables:
    """Return tables with each cluster's records before its end, written by a group."""
    tables = MemoryTables()
    applied = group_of(tables, name).apply(
        {cluster_id: history.range(0, end) for cluster_id, end in ends.items()}
    )
    assert applied.appended == ends.keys()
    return tables


def check(tables: MemoryTables, history: History, ends: dict[str, int]) -> None:
    """Compare clusters with those in tables of their own."""
    for cluster_id, end in ends.items():
        history.check(read_view(tables, cluster_id))
        assert contents(tables, cluster_id) == history.contents(end, cluster_id)


def in_epoch(rows: pa.Table, epoch: int) -> pa.Table:
    """Return rows of the source as records of another leader epoch."""
    changed = [{**row, "leaderEpoch": epoch} for row in rows.to_pylist()]
    return pa.Table.from_pylist(changed, schema=SCHEMA)


@pytest.mark.parametrize(("has_many", "claim_count"), [(True, 1), (False, 3)])
def test_new_clusters_are_claimed_in_one_append_if_the_store_has_many_transactions(
    history: History, has_many: bool, claim_count: int
) -> None:
    tables = MemoryTables()
    first, second = (
        group_of(tables, name, has_many_transactions=has_many) for name in ("one", "two")
    )
    for name in CLUSTERS:
        assert second.progress(name).group is None
    batches = {name: history.range(0, 40) for name in CLUSTERS}
    assert first.apply(batches).appended == batches.keys()
    claims = [Commit("append", CHANGES_TABLE.name)] * claim_count
    assert tables.commits[: claim_count + 1] == [*claims, Commit("append", LOG_TABLE.name)]
    failures = second.apply({name: history.range(0, 60) for name in CLUSTERS}).failures
    assert {type(failures[name]) for name in CLUSTERS} == {ClusterOwnedError}
    check(tables, history, dict.fromkeys(CLUSTERS, 40))


def test_of_two_groups_that_claim_clusters_each_cluster_has_one_owner(history: History) -> None:
    """The other group claims one of them between the read and the claim."""
    tables = MemoryTables()
    is_due = True

    def claim(operation: str, table: str) -> None:
        nonlocal is_due
        if is_due and operation == "append":
            is_due = False
            group_of(tables, "two").apply({CLUSTERS[1]: history.range(0, 40)})

    group = group_of(tables, "one", before_commit=claim)
    applied = group.apply({name: history.range(0, 60) for name in CLUSTERS})
    assert applied.appended == {CLUSTERS[0], CLUSTERS[2]}
    assert isinstance(applied.failures[CLUSTERS[1]], ClusterOwnedError)
    check(tables, history, {CLUSTERS[0]: 60, CLUSTERS[1]: 40, CLUSTERS[2]: 60})


def test_rows_of_all_clusters_are_one_append_of_each_table(history: History) -> None:
    tables = filled(history, {"cluster-a": 20, "cluster-b": 40})
    group = group_of(tables)
    before = len(tables.commits)
    batches = {"cluster-a": history.range(20, 40), "cluster-b": history.range(40, 60)}
    assert group.apply(batches).appended == batches.keys()
    appends = [Commit("append", table.name) for table in (LOG_TABLE, CHANGES_TABLE)]
    assert tables.commits[before:] == appends
    assert group.apply(batches).appended == frozenset(), "repeated ranges"
    assert tables.commits[before:] == appends
    check(tables, history, {"cluster-a": 40, "cluster-b": 60})
    group.merge_state()
    assert tables.commits[before:] == [*appends, Commit("merge", STATE_TABLE.name)]
    check(tables, history, {"cluster-a": 40, "cluster-b": 60})
    assert group.unmerged_row_count() == 0
    for cluster_id in CLUSTERS[:2]:
        assert group.progress(cluster_id) == group_of(tables).progress(cluster_id)
        assert group.epochs(cluster_id) == writer_of(tables, cluster_id=cluster_id).epochs()


@pytest.mark.parametrize("slice_rows", nightly_except((9,), (1, 9)))
def test_a_large_batch_of_one_cluster_is_one_append_with_others(
    history: History, slice_rows: int
) -> None:
    def read(operation: str, table: str) -> None:
        for name in ends:
            history.check(read_view(tables, name))

    ends = {"cluster-a": 20, "cluster-b": 40}
    tables = filled(history, ends)
    group = group_of(tables, slice_rows=slice_rows, after_commit=read)
    before = len(tables.commits)
    group.apply({"cluster-a": history.range(20, 60), "cluster-b": history.range(40, 41)})
    appends = [Commit("append", table.name) for table in (LOG_TABLE, CHANGES_TABLE)]
    assert tables.commits[before:] == appends
    ends = {"cluster-a": 60, "cluster-b": 41}
    check(tables, history, ends)
    group.apply({"cluster-a": history.range(60, 61), "cluster-b": history.range(41, 61)})
    ends = {"cluster-a": 61, "cluster-b": 61}
    check(tables, history, ends)
    assert group.unmerged_row_count() == second_tail(tables)
    group.merge_state()
    check(tables, history, ends)
    assert group.unmerged_row_count() == 0
    assert second_tail(tables) == 0
    for cluster_id in ends:
        assert group.progress(cluster_id) == group_of(tables).progress(cluster_id)


def test_a_rejected_cluster_does_not_keep_others_from_being_written(history: History) -> None:
    tables = filled(history, dict.fromkeys(CLUSTERS, 40))
    group = group_of(tables)
    damaged = history.range(40, 60).to_pylist()
    damaged[5]["value"] = b"\x01\x7f"
    batches = {
        "cluster-a": in_epoch(history.range(30, 60), 9),
        "cluster-b": history.range(40, 60),
        "it's c": history.range(45, 60),
        "new": pa.Table.from_pylist(damaged, schema=SCHEMA).slice(0, 0),
    }
    applied = group.apply(batches)
    assert applied.appended == {"cluster-b"}
    assert isinstance(applied.failures["cluster-a"], DivergedLogError)
    assert isinstance(applied.failures["it's c"], OffsetGapError)
    check(tables, history, {"cluster-a": 40, "cluster-b": 60, "it's c": 40})
    bad = pa.Table.from_pylist(damaged, schema=SCHEMA)
    applied = group.apply({"cluster-a": bad, "cluster-b": history.range(60, 70)})
    assert applied.appended == {"cluster-b"}
    assert applied.failures.keys() == {"cluster-a"}
    assert group.apply({"cluster-a": history.range(40, 50)}).appended == {"cluster-a"}
    check(tables, history, {"cluster-a": 50, "cluster-b": 70})


def test_a_cluster_that_was_written_without_log_is_not_continued_with_it(
    history: History,
) -> None:
    tables = MemoryTables()
    without = group_of(tables, writes_log=False)
    without.apply({"cluster-a": history.range(0, 40)})
    assert LOG_TABLE.name not in tables.contents
    group = group_of(tables)
    for end in (50, 60):  # table log exists at the second one
        batches = {"cluster-a": history.range(40, 60), "cluster-b": history.range(0, end)}
        applied = group.apply(batches)
        assert applied.appended == {"cluster-b"}
        assert "log does not contain offset 39" in str(applied.failures["cluster-a"])
        assert "--no-log" in str(applied.failures["cluster-a"])
    check(tables, history, {"cluster-b": 60})
    assert without.apply({"cluster-a": history.range(40, 60)}).appended == {"cluster-a"}


@pytest.mark.parametrize("owner", [None, "other"])
def test_a_cluster_of_another_owner_is_taken_over_only_if_that_is_allowed(
    history: History, owner: str | None
) -> None:
    tables = history.written(40, "cluster-a")
    if owner is not None:
        tables = filled(history, {"cluster-a": 40, "cluster-b": 40}, owner)
    batches = {"cluster-a": history.range(40, 60), "it's c": history.range(0, 60)}
    applied = group_of(tables).apply(batches)
    assert applied.appended == {"it's c"}
    error = applied.failures["cluster-a"]
    assert isinstance(error, ClusterOwnedError)
    assert error.owner == owner
    assert "--take-over" in str(error)
    allowed = group_of(tables, take_over=True)
    assert allowed.apply(batches).appended == {"cluster-a"}
    check(tables, history, {"cluster-a": 60, "it's c": 60})
    with pytest.raises(ClusterOwnedError, match="by group one"):
        writer_of(tables, cluster_id="cluster-a").apply(history.range(60, 70), "cluster-a")
    single = Writer(MemoryStore(tables), cluster_id="cluster-a", take_over=True, clock_us=lambda: 1)
    assert single.apply(history.range(60, 70), "cluster-a")
    applied = group_of(tables).apply(
        {"cluster-a": history.range(70, 80), "it's c": history.range(60, 80)}
    )
    assert applied.appended == {"it's c"}, "it is of no group now"
    check(tables, history, {"cluster-a": 70, "it's c": 80})


@pytest.mark.parametrize("what", ["gap", "diverged", "repeated", "none"])
def test_a_cluster_whose_rows_are_rejected_stays_with_its_owner(
    history: History, what: str
) -> None:
    tables = history.written(40, "cluster-a")
    rows = {
        "gap": history.range(50, 60),
        "diverged": in_epoch(history.range(30, 60), 9),
        "repeated": history.range(20, 40),
        "none": history.range(0, 0),
    }[what]
    commits = list(tables.commits)
    applied = group_of(tables, take_over=True).apply({"cluster-a": rows})
    assert applied.appended == frozenset()
    assert (applied.failures.keys() == {"cluster-a"}) == (what in ("gap", "diverged"))
    assert tables.commits == commits
    assert writer_of(tables, cluster_id="cluster-a").apply(history.range(40, 60), "cluster-a")
    check(tables, history, {"cluster-a": 60})


@pytest.mark.parametrize("table", [None, LOG_TABLE.name, CHANGES_TABLE.name])
def test_an_owner_that_lost_a_cluster_writes_its_other_ones(
    history: History, table: str | None
) -> None:
    """The take-over is before the append, before that to log, and between log and changes."""
    tables = filled(history, dict.fromkeys(CLUSTERS, 40))
    taking = group_of(tables, "other", take_over=True)
    is_due = table is not None

    def take_over(operation: str, name: str) -> None:
        nonlocal is_due
        if is_due and operation == "append" and name == table:
            is_due = False
            taking.apply({"cluster-a": history.range(40, 50)})

    group = group_of(tables, before_commit=take_over)
    group.progress("cluster-a")
    batches = {cluster_id: history.range(40, 60) for cluster_id in CLUSTERS}
    if table is None:
        taking.apply({"cluster-a": history.range(40, 50)})
    applied = group.apply(batches)
    assert applied.appended == {"cluster-b", "it's c"}
    assert isinstance(applied.failures["cluster-a"], ClusterOwnedError)
    check(tables, history, {"cluster-a": 50, "cluster-b": 60, "it's c": 60})
    taking.apply({"cluster-a": history.range(50, 70)})
    group.apply({"cluster-b": history.range(60, 70)})
    check(tables, history, {"cluster-a": 70, "cluster-b": 70, "it's c": 60})


@pytest.mark.parametrize(
    ("owner", "last"),
    nightly_except(
        (("one", "one"), (None, "two"), ("one", None)),
        itertools.product(("one", None), ("one", "two", None)),
    ),
)
@pytest.mark.parametrize("stops", ["before log", "before changes"])
def test_an_owner_that_is_stopped_while_the_cluster_changes_hands_leaves_no_records(
    history: History, owner: str | None, last: str | None, stops: str
) -> None:
    """It continues at its next commit, after two others have appended."""
    tables = MemoryTables()
    is_due = True

    def append(name: str | None, start: int, end: int, before_commit: Hook = no_hook) -> None:
        if name is not None:
            group = group_of(tables, name, take_over=True, before_commit=before_commit)
            group.apply({"cluster-a": history.range(start, end)})
        else:
            store = MemoryStore(tables, before_commit=before_commit)
            writer = Writer(store, cluster_id="cluster-a", take_over=True, clock_us=lambda: 1)
            writer.apply(history.range(start, end), "cluster-a")

    def change_hands(operation: str, table: str) -> None:
        nonlocal is_due
        stop_table = LOG_TABLE if stops == "before log" else CHANGES_TABLE
        if is_due and operation == "append" and table == stop_table.name:
            is_due = False
            append("three", 40, 60)
            append(last, 60, 70)

    append(owner, 0, 40)
    append(owner, 40, 50, change_hands)
    check(tables, history, {"cluster-a": 70})


@pytest.mark.parametrize("change", ["append", "truncation"])
def test_a_conflict_about_one_cluster_does_not_repeat_rows_of_others(
    history: History, change: str
) -> None:
    """Rows of others were replayed before another writer is found to have changed the cluster."""
    tables = filled(history, {"cluster-a": 60})
    single = writer_of(tables, cluster_id="cluster-b")
    single.apply(history.range(0, 60), "cluster-b")
    is_due = change == "append"

    def be_faster(operation: str, table: str) -> None:
        nonlocal is_due
        if is_due and operation == "append":
            is_due = False
            single.apply(history.range(60, 65), "cluster-b")

    group = group_of(tables, take_over=True, before_commit=be_faster)
    group.epochs("cluster-a")
    start = 60
    if change == "truncation":
        group.apply({"cluster-b": history.range(60, 65)})
        single.truncate_to(40)
        start = 41
    rows = (
        in_epoch(history.range(start, 70), 9) if change == "truncation" else history.range(60, 70)
    )
    applied = group.apply({"cluster-a": history.range(60, 70), "cluster-b": rows})
    assert applied.failures == {}
    assert applied.appended == {"cluster-a", "cluster-b"}
    assert group.progress("cluster-b").offset == 69
    check(tables, history, {"cluster-a": 70})


def test_two_processes_of_one_group_write_every_record_once(history: History) -> None:
    tables = filled(history, dict.fromkeys(CLUSTERS, 20))
    first, second = group_of(tables), group_of(tables)
    for group in (first, second):
        assert group.progress("cluster-a").offset == 19
    first.apply({"cluster-a": history.range(20, 40), "cluster-b": history.range(20, 30)})
    second.apply({"cluster-a": history.range(20, 40), "it's c": history.range(20, 60)})
    first.apply({"it's c": history.range(20, 60), "cluster-b": history.range(30, 50)})
    check(tables, history, {"cluster-a": 40, "cluster-b": 50, "it's c": 60})


def test_an_append_of_the_same_ends_by_another_process_is_not_taken_for_ones_own(
    history: History,
) -> None:
    """Both append the same rows of one cluster in one transaction; the other has more clusters."""
    tables = filled(history, dict.fromkeys(CLUSTERS, 20))
    rival = group_of(tables)
    is_due = True

    def be_faster(operation: str, name: str) -> None:
        nonlocal is_due
        if is_due and operation == "append":
            is_due = False
            rows = history.range(20, 40)
            rival.apply({"cluster-a": rows, "cluster-b": rows})

    group = group_of(tables, before_commit=be_faster)
    group.epochs("cluster-b")
    group.apply({"cluster-a": history.range(20, 40)})
    group.apply({"cluster-b": history.range(20, 50)})
    check(tables, history, {"cluster-a": 40, "cluster-b": 50, "it's c": 20})


@pytest.mark.parametrize("is_running", nightly_except((True,), (True, False)))
@pytest.mark.parametrize("step", [None, "fence", "truncate", "truncate fence"])
def test_one_cluster_of_a_group_is_truncated_and_the_group_continues_there(
    history: History, is_running: bool, step: str | None
) -> None:
    tables = filled(history, dict.fromkeys(CLUSTERS, 60))
    group = group_of(tables)
    group.apply({"cluster-a": history.range(60, 70)})

    def crash(done: str) -> None:
        if done == step:
            raise CrashError

    writer = Writer(
        MemoryStore(tables), cluster_id="cluster-a", after_step=crash, clock_us=lambda: 1
    )
    if step is None:
        assert writer.truncate_to(40) == 40
    else:
        with pytest.raises(CrashError):
            writer.truncate_to(40)
    if not is_running:
        group = group_of(tables)
    end = 70 if step == "fence" else 41
    applied = group.apply({"cluster-a": history.range(end, 75), "cluster-b": history.range(60, 70)})
    assert applied.failures == {}
    assert applied.appended == {"cluster-a", "cluster-b"}
    check(tables, history, {"cluster-a": 75, "cluster-b": 70, "it's c": 60})
    assert group.progress("cluster-a").group == "one"


def test_a_version_that_only_reverted_rows_had_is_known(history: History) -> None:
    """The group appends between two steps of a truncation, which then deletes these rows."""
    tables = filled(history, {"cluster-a": 60})
    group = group_of(tables)
    group.epochs("cluster-a")

    def append(operation: str, table: str) -> None:
        if operation == "merge":
            group.apply({"cluster-a": history.range(60, 70)})

    writer_of(tables, cluster_id="cluster-a", before_commit=append).truncate_to(40)
    for started in (group_of(tables), group):
        end = started.progress("cluster-a").next_offset
        started.apply({"cluster-a": history.range(end, end + 5)})
        group.merge_state()
    check(tables, history, {"cluster-a": 51})


def test_changes_of_one_cluster_expire_while_the_group_runs(history: History) -> None:
    tables = filled(history, dict.fromkeys(CLUSTERS, 60))
    group = group_of(tables)
    group.epochs("cluster-a")
    assert writer_of(tables, cluster_id="cluster-a").expire(40) == 40
    group.apply({name: history.range(60, 70) for name in CLUSTERS})
    assert group.progress("cluster-a").expired_to == 40
    history.check(read_view(tables, "cluster-a"))
    check(tables, history, {"cluster-b": 70, "it's c": 70})


@pytest.mark.parametrize("cached_rows_max", nightly_except((0,), (0, 150)))
def test_states_that_are_dropped_are_read_again(history: History, cached_rows_max: int) -> None:
    tables = MemoryTables()
    group = group_of(tables, cached_rows_max=cached_rows_max)
    for start in range(0, END, 10):
        for names in (CLUSTERS, CLUSTERS[:1], CLUSTERS[1:]):
            ends = {name: group.progress(name).next_offset for name in names}
            ends = {name: end for name, end in ends.items() if end < start + 10}
            group.apply({name: history.range(end, start + 10) for name, end in ends.items()})
        if start % 20 == 0:
            group.merge_state()
    check(tables, history, {name: group.progress(name).next_offset for name in CLUSTERS})
    group.merge_state()
    assert group_of(tables).progress("cluster-a") == group.progress("cluster-a")
    assert second_tail(tables) == 0


@pytest.mark.parametrize("cached_rows_max", nightly_except((0,), (0, 1_000)))
def test_changes_in_memory_of_all_clusters_are_bounded_while_merges_fail(
    history: History, cached_rows_max: int
) -> None:
    tables, are_failing = MemoryTables(), True

    def fail(operation: str, table: str) -> None:
        if are_failing and operation == "merge":
            raise TablesError(place="memory", reason="the disk is full", remedy="free space")

    group = group_of(
        tables, cached_rows_max=cached_rows_max, unmerged_rows_max=40, before_commit=fail
    )
    unmerged_count = 0
    for end in range(10, END, 10):
        for names in (CLUSTERS[:1], CLUSTERS[1:]):
            starts = {name: group.progress(name).next_offset for name in names}
            group.apply({name: history.range(start, end) for name, start in starts.items()})
            with pytest.raises(TablesError, match="the disk is full"):
                group.merge_state()
            tails = group.begin_merge()
            appended_count = group.unmerged_row_count() - unmerged_count
            assert rows_in_memory(tails.values()) <= 40 + appended_count
            group.end_merge(tails, is_merged=False)
            unmerged_count += appended_count
    assert unmerged_count > 150
    are_failing = False
    group.merge_state()
    check(tables, history, {name: group.progress(name).next_offset for name in CLUSTERS})
    assert group.unmerged_row_count() == second_tail(tables) == 0


class CountingStore(MemoryStore):
    """Store that counts the reads of whole clusters in ``state``: of their partitions."""

    read_count = 0

    def has_read(self, read: Read) -> None:
        self.read_count += ("entity", "=", "partition") in read.where


def test_a_merge_is_of_the_clusters_that_have_changes(history: History) -> None:
    """Also if states are dropped: a group may have hundreds of clusters, of which a few change."""
    tables = filled(history, dict.fromkeys(CLUSTERS, 40))
    group = group_of(tables, cached_rows_max=1)
    assert group.begin_merge() == {}
    for end, name in ((50, CLUSTERS[0]), (60, CLUSTERS[1]), (70, CLUSTERS[0])):
        assert group.apply({name: history.range(group.progress(name).next_offset, end)}).appended
        tails = group.begin_merge()
        assert tails.keys() == {name}
        group.rows_on(MemoryStore(tables)).merge(tails)
        group.end_merge(tails)
        assert group.unmerged_row_count() == 0
        assert group.begin_merge() == {}
    group_of(tables, "two", take_over=True).apply({CLUSTERS[2]: history.range(40, 60)})
    check(tables, history, dict(zip(CLUSTERS, (70, 60, 60), strict=True)))


@pytest.mark.parametrize("offsets_read", nightly_except((10,), (10, 1_000)))
def test_a_restart_reads_the_unmerged_changes_of_all_clusters_in_windows(
    history: History, offsets_read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails_module, "ROWS_READ", offsets_read)
    tables = filled(history, dict.fromkeys(CLUSTERS, 8))
    group = group_of(tables)
    for end in range(12, 60, 4):
        for name in CLUSTERS:
            group.apply({name: history.range(group.progress(name).next_offset, end)})
    second = group_of(tables)
    end = group.progress(CLUSTERS[0]).next_offset
    second.apply({name: history.range(end, 70) for name in CLUSTERS})
    merge_count = len([commit for commit in tables.commits if commit.operation == "merge"])
    second.forget()
    second.apply({name: history.range(70, END) for name in CLUSTERS})
    second.merge_state()
    merges = [commit for commit in tables.commits[merge_count:] if commit.operation == "merge"]
    assert len(merges) > 10 if offsets_read == 10 else len(merges) == 1
    check(tables, history, dict.fromkeys(CLUSTERS, END))


def test_a_restart_of_500_clusters_reads_their_unmerged_progress_rows() -> None:
    """It reads a row for each append since the last merge; new clusters are not in ``state`` yet.

    Other changes are not read, nor are the appends before the merge.
    """
    old, new = ([f"{word} {number}" for number in range(250)] for word in ("old", "new"))
    tables = MemoryTables()
    store = MemoryStore(tables)
    for version in range(1, 12):
        names = [*old, *new] if version == 11 else old
        ends = [
            Progress(cluster_id=name, offset=10 * version, group="one").appended_by("one", version)
            for name in names
        ]
        others = table_of(CHANGES_TABLE, [change(10 * version, cluster_id=name) for name in old])
        rows = pa.concat_tables([changes_progress(ends, 1), others])
        store.append(CHANGES_TABLE, rows, Transaction(app_id="one", version=version))
        if version == 9:
            store.merge(state_rows(rows))
    reads = AllReads(tables)
    group = GroupWriter(reads, "one", writes_log=False, clock_us=lambda: 1)
    for name in (old[0], new[-1]):
        assert group.progress(name) == Progress(
            cluster_id=name, offset=110, group="one", group_versions={"one": 11}
        )
    found = [(read.table.name, read.found.num_rows) for read in reads.reads]
    assert found == [("state", len(old)), ("changes", len(old) * len((9, 10, 11)) + len(new))]
    assert all(read.columns is not None for read in reads.reads)


def test_the_states_that_are_kept_have_a_limit(history: History) -> None:
    tables = filled(history, dict.fromkeys(CLUSTERS, 40))
    group_of(tables).merge_state()
    writer_of(tables, cluster_id="cluster-a").merge_state()
    row_count = sum(group_of(tables).progress("cluster-a").row_counts.values())
    store = CountingStore(tables)
    group = GroupWriter(store, "one", cached_rows_max=2 * row_count + 20, clock_us=lambda: 1)
    a, b, c = CLUSTERS
    for name, read_count in ((a, 1), (b, 2), (a, 2), (c, 3), (a, 3), (b, 4), (c, 5), (a, 6)):
        start = group.progress(name).next_offset
        group.apply({name: history.range(start, start + 1)})
        assert store.read_count == read_count


def test_a_state_that_is_larger_than_the_limit_is_kept_while_it_is_used(history: History) -> None:
    tables = filled(history, dict.fromkeys(CLUSTERS, 40))
    writer_of(tables, cluster_id=CLUSTERS[0]).merge_state()
    store = CountingStore(tables)
    group = GroupWriter(store, "one", cached_rows_max=1, clock_us=lambda: 1)
    a, b, _ = CLUSTERS
    for name, read_count in ((a, 1), (a, 1), (b, 2), (b, 2), (a, 3)):
        start = group.progress(name).next_offset
        group.apply({name: history.range(start, start + 1)})
        assert store.read_count == read_count


def second_tail(tables: MemoryTables) -> int:
    """Return the rows of ``changes`` that ``state`` does not include."""
    return sum(writer_of(tables, cluster_id=name).unmerged_row_count() for name in CLUSTERS)


def test_records_that_a_crash_left_in_log_alone_are_reverted(history: History) -> None:
    tables = filled(history, {"cluster-a": 20, "cluster-b": 30})

    def crash(operation: str, table: str) -> None:
        if table == LOG_TABLE.name:
            raise CrashError

    rows = {"cluster-a": history.range(20, 60), "cluster-b": history.range(30, 60)}
    with pytest.raises(CrashError):
        group_of(tables, after_commit=crash).apply(rows)
    rows = {"cluster-a": history.range(20, 40), "it's c": history.range(0, 60)}
    group_of(tables).apply(rows)
    check(tables, history, {"cluster-a": 40, "cluster-b": 30, "it's c": 60})


# --- random histories -----------------------------------------------------------------------------


class Processes:
    """Groups and writers of single clusters on one set of tables, each with its own cache.

    A process ends before or after a commit; a reader reads a cluster after each commit.
    """

    def __init__(self, history: History, seed: int) -> None:
        self.tables = MemoryTables()
        self.crash_count = 0
        self.move_count = 0
        self._history = history
        self._chance = random.Random(seed)
        self._groups = [self._group(at) for at in range(3)]

    def step(self) -> None:
        """Let a process do something at random."""
        at = self._chance.randrange(len(self._groups))
        try:
            if self._chance.random() < 0.7:
                self._append(self._groups[at])
            else:
                self._change_one()
        except CrashError:
            self._groups[at] = self._group(at)
        except (ConcurrentWriterError, OffsetOutOfRangeError, OffsetGapError):
            pass

    def finish(self) -> dict[str, int]:
        """Write all clusters up to their end; return the expired offsets."""
        group = group_of(self.tables, "last", take_over=True)
        ends = {name: group.progress(name).next_offset for name in CLUSTERS}
        applied = group.apply({n: self._history.range(end, END) for n, end in ends.items()})
        assert not applied.failures
        for name in CLUSTERS:
            progress = group.progress(name)
            writer_of(self.tables, cluster_id=name).expire(progress.oldest_offset)
        return {name: group.progress(name).expired_to or 0 for name in CLUSTERS}

    def _group(self, at: int) -> GroupWriter:
        return group_of(
            self.tables,
            ("one", "one", "two")[at],
            take_over=self._chance.random() < 0.5,
            cached_rows_max=self._chance.choice((0, 100, 1_000)),
            before_commit=self._crash,
            after_commit=self._read_and_crash,
            slice_rows=(2, 9, SLICE_ROWS)[at],
            has_many_transactions=at > 0,
        )

    def _append(self, group: GroupWriter) -> None:
        batches = {}
        for name in self._chance.sample(CLUSTERS, self._chance.randint(1, 3)):
            start = group.progress(name).next_offset
            first = max(0, start - self._chance.randint(0, 3))
            if start < END:
                batches[name] = self._history.range(first, min(END, start + self._length()))
        owners = self._owners()
        applied = group.apply(batches)
        for error in applied.failures.values():
            assert isinstance(error, ClusterOwnedError | OffsetGapError), error
        self.move_count += owners != self._owners()
        if self._chance.random() < 0.2:
            group.merge_state()

    def _owners(self) -> dict[str, str | None]:
        found = {name: self._progress(name) for name in CLUSTERS}
        return {name: progress.group for name, progress in found.items()}

    def _change_one(self) -> None:
        name = self._chance.choice(CLUSTERS)
        writer = Writer(
            MemoryStore(self.tables, before_commit=self._crash, after_commit=self._read_and_crash),
            cluster_id=name,
            take_over=True,
            clock_us=lambda: 1,
        )
        progress = writer.progress()
        start = progress.next_offset
        what = self._chance.choice(("apply", "truncate", "expire", "merge", "compact"))
        if what == "apply" and start < END:
            writer.apply(self._history.range(start, min(END, start + self._length())), name)
        elif what == "merge":
            writer.merge_state()
        elif what == "compact":
            writer.compact()
        elif start > progress.oldest_offset + 20:
            offset = self._chance.randint(progress.oldest_offset + 1, start - 1)
            if what == "truncate":
                writer.truncate_to(offset)
            elif what == "expire":
                writer.expire(offset // 2)

    def _length(self) -> int:
        return self._chance.randint(1, 30)

    def _progress(self, name: str) -> Progress:
        return group_of(self.tables, "reader").progress(name)

    def _read_and_crash(self, operation: str, table: str) -> None:
        view = read_view(self.tables, self._chance.choice(CLUSTERS))
        if view.offset >= 0:
            self._history.check(view)
        self._crash(operation, table)

    def _crash(self, operation: str, table: str) -> None:
        if self._chance.random() < 0.06:
            self.crash_count += 1
            raise CrashError


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(1, 2), marks=pytest.mark.slow),
        pytest.param(range(2, 6), marks=pytest.mark.nightly),
        pytest.param(range(6, 6 + SEEDS), marks=pytest.mark.nightly),
    ],
    ids=["one", "some", "many"],
)
def test_groups_and_writers_with_crashes_write_each_record_of_each_cluster_once(
    history: History, seeds: range
) -> None:
    crash_count = move_count = 0
    expected = {name: history.contents(END, name) for name in CLUSTERS}
    for seed in seeds:
        processes = Processes(history, seed)
        for _ in range(40):
            processes.step()
        expired = processes.finish()
        for name in CLUSTERS:
            found = contents(processes.tables, name)
            assert found == unexpired(expected[name], expired[name]), (seed, name)
        crash_count += processes.crash_count
        move_count += processes.move_count
    assert min(crash_count, move_count) >= len(seeds)


def unexpired(found: list[tuple[str, str]], offset: int) -> list[tuple[str, str]]:
    """Return contents without the changes up to an offset; 0: all."""
    return [
        (name, text)
        for name, text in found
        if not offset or name != "changes" or json.loads(text)["visible_offset"] > offset
    ]
