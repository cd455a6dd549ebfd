"""Several clusters in one set of tables: each has the rows that it has in tables of its own."""

from __future__ import annotations

import random

import pytest
from tests.support.memory_store import MemoryStore, MemoryTables
from tests.support.metadata_logs import metadata_log, restored
from tests.support.written_tables import (
    END,
    CrashError,
    History,
    contents,
    read_view,
    writer_of,
)

from raftlog.errors import WrongClusterError
from raftlog_state.errors import TablesError
from raftlog_state.tables.progress import cluster_in
from raftlog_state.tables.schema import CHANGES_TABLE, LOG_TABLE, UNKNOWN_CLUSTER
from raftlog_state.tables.writer import Writer

CLUSTERS = ("cluster-a", "cluster-b", "it's c")


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Each cluster has the same log: all keys of their rows are equal."""
    return History(
        metadata_log(restored("three-nodes-4.3.1/node-1", tmp_path_factory.mktemp("log")))
    )


def filled(history: History, ends: dict[str, int]) -> MemoryTables:
    """Return tables with each cluster's records before its end."""
    tables = MemoryTables()
    for cluster_id, end in ends.items():
        assert writer_of(tables, cluster_id=cluster_id).apply(history.range(0, end), cluster_id)
    return tables


@pytest.mark.parametrize(
    ("seed", "step_count"),
    [
        (1, 15),
        pytest.param(2, 25, marks=pytest.mark.slow),
        *(pytest.param(seed, 60, marks=pytest.mark.nightly) for seed in range(2, 6)),
    ],
)
def test_clusters_have_the_rows_that_each_has_in_tables_of_its_own(
    history: History, seed: int, step_count: int
) -> None:
    chance = random.Random(seed)
    tables = MemoryTables()
    alone = {cluster_id: MemoryTables() for cluster_id in CLUSTERS}
    others = {cluster_id: writer_of(alone[cluster_id]) for cluster_id in CLUSTERS}
    writers = {cluster_id: writer_of(tables, cluster_id=cluster_id) for cluster_id in CLUSTERS}
    for _ in range(step_count):
        cluster_id = chance.choice(CLUSTERS)
        writer, other = writers[cluster_id], others[cluster_id]
        act(chance.random(), writer, other, history, cluster_id, chance.randint(1, 30))
        for name in CLUSTERS:
            view = read_view(tables, name)
            assert view.offset == others[name].progress().offset
            if view.offset >= 0:
                history.check(view)
        if chance.random() < 0.2:
            writers[cluster_id] = writer_of(tables, cluster_id=cluster_id)
    for cluster_id, progress in ((name, others[name].progress()) for name in CLUSTERS):
        if progress.offset >= 0:
            assert contents(tables, cluster_id) == contents(alone[cluster_id], cluster_id)


def act(
    what: float, writer: Writer, other: Writer, history: History, cluster_id: str, count: int
) -> None:
    """Do the same with both writers of a cluster."""
    next_offset = writer.progress().next_offset
    for one in (writer, other):
        if what < 0.6 or next_offset < 40:
            end = min(END, next_offset + count)
            one.apply(history.range(next_offset, end), cluster_id)
        elif what < 0.75:
            one.merge_state()
        elif what < 0.8:
            one.compact()
        elif what < 0.9:
            one.truncate_to(next_offset - count)
        else:
            progress = one.progress()
            one.expire(min(progress.oldest_offset + count // 4, progress.offset))


def test_a_truncation_leaves_the_rows_of_other_clusters(history: History) -> None:
    tables = filled(history, {"cluster-a": END, "cluster-b": END})
    before = contents(tables, "cluster-b")

    def crash(operation: str, table: str) -> None:
        if operation == "merge":
            raise CrashError

    with pytest.raises(CrashError):
        writer_of(tables, cluster_id="cluster-a", after_commit=crash).truncate_to(40)
    assert read_view(tables, "cluster-a").offset == 40
    assert contents(tables, "cluster-b") == before
    assert writer_of(tables, cluster_id="cluster-a").progress().offset == 40
    assert contents(tables, "cluster-b") == before
    assert writer_of(tables, cluster_id="cluster-b").progress().incarnation == 0


def test_the_cluster_must_be_named_if_there_are_several(history: History) -> None:
    tables = filled(history, {"cluster-a": 40, "cluster-b": 60})
    with pytest.raises(TablesError, match=r"2 clusters.*cluster-a, cluster-b"):
        writer_of(tables).progress()
    assert writer_of(tables, cluster_id="cluster-b").progress().offset == 59
    assert writer_of(tables, cluster_id="cluster-c").progress().offset == -1


def test_a_log_of_another_cluster_is_refused_unless_that_is_named(history: History) -> None:
    tables = filled(history, {"cluster-a": 40})
    with pytest.raises(WrongClusterError):
        writer_of(tables).apply(history.range(40, 60), "cluster-b")
    with pytest.raises(WrongClusterError):
        writer_of(tables, cluster_id="cluster-b").apply(history.range(0, 60), "cluster-a")
    assert read_view(tables, "cluster-a").offset == 39
    assert cluster_in(MemoryStore(tables), None) == "cluster-a"


def test_a_log_without_a_cluster_id_is_one_cluster_whose_id_is_learned(history: History) -> None:
    tables = MemoryTables()
    writer_of(tables).apply(history.range(0, 40), None)
    assert cluster_in(MemoryStore(tables), None) == UNKNOWN_CLUSTER
    writer_of(tables).apply(history.range(40, 60), "cluster-a")
    for table in (LOG_TABLE, CHANGES_TABLE):
        assert MemoryStore(tables).cluster_ids(table) == [UNKNOWN_CLUSTER]
    with pytest.raises(WrongClusterError):
        writer_of(tables).apply(history.range(60, 80), "cluster-b")
    assert writer_of(tables).progress().log_cluster_id == "cluster-a"


@pytest.mark.parametrize("others", [{}, {"cluster-b": 80}], ids=["alone", "with another"])
def test_records_that_a_crash_left_in_log_are_those_of_their_cluster(
    history: History, others: dict[str, int]
) -> None:
    tables = filled(history, others)
    named = "cluster-a" if others else None

    def crash(operation: str, table: str) -> None:
        raise CrashError

    with pytest.raises(CrashError):
        writer_of(tables, cluster_id=named, after_commit=crash).apply(
            history.range(0, 60), "cluster-a"
        )
    assert writer_of(tables, cluster_id=named).apply(history.range(0, 70), "cluster-a")
    expected = filled(history, {"cluster-a": 70})
    assert contents(tables, "cluster-a") == contents(expected, "cluster-a")
