"""Commits of delta-rs to local Delta tables, beside other commits and after a loss of power."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.table import ProtocolVersions
from tests.state.table_stores.rows import changes, state_row, table_of
from tests.state.table_stores.test_delta_durability import append, losing_power, offsets
from tests.support.sweep_size import nightly_except

from raftlog_state.errors import ConcurrentWriterError, TablesError
from raftlog_state.tables.schema import CHANGES_TABLE, STATE_TABLE, StoredTable
from raftlog_state.tables.stores import compaction, delta_rs
from raftlog_state.tables.stores.delta_rs import TRIES, DeltaRsStore
from raftlog_state.tables.stores.protocol import Transaction, Where
from raftlog_state.tables.stores.staged_rewrites import (
    conflicts_are_known,
    copy_log,
    delete_conflicts,
)


def merge(place: Path, offset: int, *, key: str = "k", cluster_id: str = "cluster-a") -> None:
    row = {**state_row(key, 0, offset, offset, name="a"), "cluster_id": cluster_id}
    DeltaRsStore(str(place)).merge(table_of(STATE_TABLE, [row]))


def merged(place: Path) -> list[tuple[str, str, int]]:
    """Return cluster, key and offset of each row of ``state``."""
    rows = DeltaRsStore(str(place)).read(STATE_TABLE, (), ("cluster_id", "key", "_offset"))
    return sorted((row["cluster_id"], row["key"], row["_offset"]) for row in rows.to_pylist())


def before_the_commit(monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]) -> None:
    """Run an action when a merge or a compaction is written, and not committed to the table."""
    link = os.link

    def link_later(*names: Any, **directories: Any) -> None:
        if str(names[0]).startswith("_commit_"):
            monkeypatch.setattr(os, "link", link)
            action()
        link(*names, **directories)

    monkeypatch.setattr(os, "link", link_later)


def filled(place: Path, end: int) -> DeltaRsStore:
    """Return a store that has appended a topic at each offset below an end."""
    store = DeltaRsStore(str(place))
    for offset in range(end):
        append(store, offset)
    return store


def sizes(place: Path) -> dict[str, int]:
    """Return the sizes of the files of ``changes``, by their paths."""
    table = DeltaTable(str(place / CHANGES_TABLE.name))
    files = pa.table(table.get_add_actions().select(["path", "size_bytes"])).to_pylist()
    return {file["path"]: file["size_bytes"] for file in files}


def alter(place: Path) -> None:
    """Add a check that raftlog's appends do not know."""
    table = DeltaTable(str(place / CHANGES_TABLE.name))
    table.alter.add_constraint({"is_early": "offset < 99"})


def counted_copies(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the copies of tables from now on, a growing list."""
    copies: list[Path] = []

    def copied(directory: Path, copy: Path, checkpoint_version: int) -> None:
        copies.append(copy)
        copy_log(directory, copy, checkpoint_version)

    monkeypatch.setattr(delta_rs, "copy_log", copied)
    return copies


@pytest.mark.slow
def test_a_loss_of_power_in_a_merge_leaves_all_of_it_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of the first rows of a cluster, whose files have a directory of their own."""
    place, restored = tmp_path / "tables", tmp_path / "restored"
    merge(place, 5)
    found: list[list[tuple[str, str, int]]] = []
    before, after = [("cluster-a", "k", 5)], [("cluster-a", "k", 6)]
    with losing_power(
        place, restored, monkeypatch, lambda state: found.append(merged(state))
    ) as disk:
        merge(place, 6)
        assert {*map(tuple, found)} == {tuple(before), tuple(after)}
        found.clear()
        disk.restore(lambda state: found.append(merged(state)))
        assert found == [after], "it is durable when it returns"
        merge(place, 1, cluster_id="cluster-b")
        both = [*after, ("cluster-b", "k", 1)]
        assert {*map(tuple, found)} == {tuple(after), tuple(both)}
        found.clear()
        disk.restore(lambda state: found.append(merged(state)))
        assert found == [both]


@pytest.mark.slow
def test_a_loss_of_power_in_a_compaction_loses_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append after it is not durable without it."""
    place, restored = tmp_path / "tables", tmp_path / "restored"
    store = DeltaRsStore(str(place))
    for offset in range(3):
        append(store, offset)
    found: list[list[int]] = []
    with losing_power(
        place, restored, monkeypatch, lambda state: found.append(offsets(state))
    ) as disk:
        store.compact(CHANGES_TABLE)
        assert {*map(tuple, found)} == {(0, 1, 2)}
        assert store.size(CHANGES_TABLE).file_count == 1
        disk.restore(lambda _: None)
        assert DeltaRsStore(str(restored)).size(CHANGES_TABLE).file_count == 1
        append(store, 3)
        assert {*map(tuple, found)} == {(0, 1, 2), (0, 1, 2, 3)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_altered", "is_rewritten"),
    nightly_except([(True, True)], itertools.product((False, True), repeat=2)),
)
def test_a_loss_of_power_in_a_delete_leaves_all_of_it_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_rewritten: bool, is_altered: bool
) -> None:
    place, restored = tmp_path / "tables", tmp_path / "restored"
    store = filled(place, 3)
    if is_altered:
        alter(place)
    if is_rewritten:  # all rows are in one file
        store.compact(CHANGES_TABLE)
    found: list[list[int]] = []
    with losing_power(
        place, restored, monkeypatch, lambda state: found.append(offsets(state))
    ) as disk:
        store.delete(CHANGES_TABLE, (("offset", "=", 1),))
        assert {*map(tuple, found)} == {(0, 1, 2), (0, 2)}
        found.clear()
        disk.restore(lambda state: found.append(offsets(state)))
        assert found == [[0, 2]], "it is durable when it returns"
    assert [path.name for path in place.iterdir()] == [CHANGES_TABLE.name]


@pytest.mark.slow
def test_a_loss_of_power_in_an_append_to_an_altered_table_leaves_all_of_it_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, restored = tmp_path / "tables", tmp_path / "restored"
    store = filled(place, 1)
    alter(place)
    found: list[list[int]] = []
    with losing_power(
        place, restored, monkeypatch, lambda state: found.append(offsets(state))
    ) as disk:
        append(store, 1)
        assert {*map(tuple, found)} == {(0,), (0, 1)}
        found.clear()
        disk.restore(lambda state: found.append(offsets(state)))
        assert found == [[0, 1]]


@pytest.mark.parametrize(("sign", "left", "tries"), [("<=", [2, 3], 1), (">=", [0], 2)])
def test_a_delete_beside_an_append_is_tried_again_if_it_may_have_to_delete_its_rows(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sign: Literal["<=", ">="],
    left: list[int],
    tries: int,
) -> None:
    store, other = filled(tmp_path, 3), DeltaRsStore(str(tmp_path))
    copies = counted_copies(monkeypatch)
    before_the_commit(monkeypatch, lambda: append(other, 3))
    store.delete(CHANGES_TABLE, (("offset", sign, 1),))
    assert offsets(tmp_path) == left
    assert len(copies) == tries


def test_a_delete_that_conflicts_each_time_is_an_error_and_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = filled(tmp_path, 1), DeltaRsStore(str(tmp_path))
    copies = counted_copies(monkeypatch)

    link = os.link

    def link_late(*names: Any, **directories: Any) -> None:
        if str(names[0]).startswith("_commit_"):
            monkeypatch.setattr(os, "link", link)
            append(other, len(copies))
            monkeypatch.setattr(os, "link", link_late)
        link(*names, **directories)

    monkeypatch.setattr(os, "link", link_late)
    with pytest.raises(ConcurrentWriterError):
        store.delete(CHANGES_TABLE, (("offset", ">=", 0),))
    monkeypatch.setattr(os, "link", link)
    assert len(copies) == TRIES
    assert offsets(tmp_path) == [*range(TRIES + 1)]


def test_appends_to_an_altered_table_beside_other_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are repeated after a compaction, and not after one of the same transaction."""
    store, other = filled(tmp_path, 2), DeltaRsStore(str(tmp_path))
    alter(tmp_path)
    copies = counted_copies(monkeypatch)
    before_the_commit(monkeypatch, lambda: other.compact(CHANGES_TABLE))
    append(store, 2)
    assert len(copies) == 3, "that of the compaction is one"
    before_the_commit(monkeypatch, lambda: append(other, 3))
    with pytest.raises(ConcurrentWriterError):
        append(store, 3)
    assert offsets(tmp_path) == [0, 1, 2, 3]
    assert len(copies) == 5


def test_an_append_to_an_altered_table_is_not_repeated_after_that_of_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which committed the same transaction before the table was copied."""
    store, other = filled(tmp_path, 2), DeltaRsStore(str(tmp_path))
    alter(tmp_path)

    def copy_later(directory: Path, copy: Path, checkpoint_version: int) -> None:
        monkeypatch.setattr(delta_rs, "copy_log", copy_log)
        append(other, 2)
        copy_log(directory, copy, checkpoint_version)

    monkeypatch.setattr(delta_rs, "copy_log", copy_later)
    with pytest.raises(ConcurrentWriterError):
        append(store, 2)
    assert offsets(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize("table", [CHANGES_TABLE, STATE_TABLE], ids=["delete", "merge"])
def test_a_table_with_a_change_data_feed_has_that_of_a_commit(
    tmp_path: Path, table: StoredTable
) -> None:
    """Its files are those of a commit, too: readers of the feed would find none."""
    store = filled(tmp_path, 3)
    store.compact(CHANGES_TABLE)
    merge(tmp_path, 5)
    opened = DeltaTable(str(tmp_path / table.name))
    opened.alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    if table is CHANGES_TABLE:
        store.delete(table, (("offset", "=", 1),))
    else:
        merge(tmp_path, 6)
    feed = DeltaTable(str(tmp_path / table.name)).load_cdf(opened.version() + 1)
    changed = pa.table(feed.read_all())["_change_type"].to_pylist()
    expected = {"delete"} if table is CHANGES_TABLE else {"update_preimage", "update_postimage"}
    assert {*changed} == expected


@pytest.mark.parametrize(
    ("reader_version", "writer_version", "features", "are_known"),
    [
        (1, 2, None, True),
        (1, 4, None, True),
        (2, 5, None, False),
        (1, 6, None, False),
        (3, 7, ["checkConstraints", "changeDataFeed", "deletionVectors"], True),
        (3, 7, [], True),
        (3, 7, ["checkConstraints", "rowTracking"], False),
    ],
)
def test_any_commit_conflicts_if_a_table_has_features_that_may_need_it(
    reader_version: int, writer_version: int, features: list[str] | None, are_known: bool
) -> None:
    protocol = ProtocolVersions(reader_version, writer_version, features, features)
    assert conflicts_are_known(protocol) is are_known


@pytest.mark.parametrize(
    ("where", "is_conflict"),
    [
        ((("offset", "=", 5),), True),
        ((("offset", "=", 9),), True),
        ((("offset", "=", 4),), False),
        ((("offset", "=", 10),), False),
        ((("offset", "<", 5),), False),
        ((("offset", "<=", 5),), True),
        ((("offset", ">", 9),), False),
        ((("offset", ">=", 9),), True),
        ((("offset", "!=", 5),), True),
        ((("incarnation", "!=", 2),), False),
        ((("incarnation", "=", 2), ("offset", "<", 5)), False),
        ((("incarnation", "=", 2), ("offset", "<", 6)), True),
        ((("key", "=", "without statistics"), ("offset", "<", 6)), True),
        ((("cluster_id", "=", "c"),), False),
        ((("cluster_id", "=", "b"),), True),
        ((), True),
    ],
)
def test_a_delete_conflicts_with_rows_that_it_may_have_to_delete(
    where: Where, is_conflict: bool
) -> None:
    """By the statistics of their file; also as one of several alternatives."""
    statistics = {
        "minValues": {"offset": 5, "incarnation": 2, "cluster_id": "a"},
        "maxValues": {"offset": 9, "incarnation": 2, "cluster_id": "b"},
    }
    added = {"path": "p", "partitionValues": {}, "dataChange": True}
    with_statistics = {**added, "stats": json.dumps(statistics)}
    is_other: Where = (("offset", ">", 99),)
    for conflicts in (delete_conflicts(where, ()), delete_conflicts((), (is_other, where))):
        assert conflicts([], [{"add": with_statistics}]) is is_conflict
        assert conflicts([], [{"add": added}])
        assert not conflicts([], [{"add": {**added, "dataChange": False}}]), "a compaction"
    assert delete_conflicts(where, ())([], [{"metaData": {}}])


@pytest.mark.slow
def test_an_append_after_a_delete_of_delta_rs_is_not_durable_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of power would leave an incomplete entry before that of the append."""
    place, restored = tmp_path / "tables", tmp_path / "restored"
    store = DeltaRsStore(str(place))
    for offset in range(3):
        append(store, offset)
    found: list[list[int]] = []
    with losing_power(
        place, restored, monkeypatch, lambda state: found.append(offsets(state))
    ) as disk:
        DeltaTable(str(place / CHANGES_TABLE.name)).delete("offset = 0")
        append(store, 3)
        assert {*map(tuple, found)} == {(0, 1, 2), (1, 2), (1, 2, 3)}
        found.clear()
        disk.restore(lambda state: found.append(offsets(state)))
        assert found == [[1, 2, 3]]


@pytest.mark.nightly
def test_compactions_rewrite_a_row_once_for_each_doubling_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``make test`` has it in ``test_table_compaction.py``, where delta-rs is a model."""
    full_bytes = 100_000
    monkeypatch.setattr(compaction, "FULL_BYTES", full_bytes)
    monkeypatch.setattr(delta_rs, "COMPACT_BYTES", 2 * full_bytes)
    chance, store, offset = random.Random(1), DeltaRsStore(str(tmp_path)), 0
    appended_bytes = rewritten_bytes = 0
    first_bytes = []
    for _ in range(12):
        before = sizes(tmp_path) if offset else {}
        for _ in range(chance.randint(2, 4)):
            end = offset + chance.choice((1, 50, 400))
            transaction = Transaction(app_id="writer", version=end)
            store.append(CHANGES_TABLE, changes(offset, end - 1), transaction)
            offset = end
        appended = sizes(tmp_path)
        first_bytes += [size for path, size in appended.items() if path not in before]
        appended_bytes += sum(appended.values()) - sum(before.values())
        store.compact(CHANGES_TABLE)
        after = sizes(tmp_path)
        kept = appended.keys() & after.keys()
        assert {path for path, size in appended.items() if size >= 2 * full_bytes} <= kept
        rewritten_bytes += sum(size for path, size in appended.items() if path not in kept)
        small = sorted(size for size in after.values() if size < full_bytes)
        assert len(small) <= 2 + math.log2(full_bytes / min(first_bytes))
    assert rewritten_bytes <= appended_bytes * (1 + math.log2(full_bytes / min(first_bytes)))
    assert offsets(tmp_path) == [*range(offset)]


@pytest.mark.slow
@pytest.mark.parametrize("hint", [None, "", '{"version"', '{"version": 2}'])
def test_a_rewrite_needs_no_hint_of_the_newest_checkpoint(tmp_path: Path, hint: str | None) -> None:
    """A copy or a backup may lack ``_last_checkpoint``, and a loss of power may leave it empty."""
    store = filled(tmp_path, 5)
    table = DeltaTable(str(tmp_path / CHANGES_TABLE.name))
    table.create_checkpoint()
    log = tmp_path / CHANGES_TABLE.name / "_delta_log"
    for version in range(table.version()):
        (log / f"{version:020}.json").unlink()
    (log / "_last_checkpoint").unlink()
    if hint is not None:
        (log / "_last_checkpoint").write_text(hint)
    for reopened in (store, DeltaRsStore(str(tmp_path))):
        reopened.compact(CHANGES_TABLE)
        assert reopened.size(CHANGES_TABLE).file_count == 1
    store.delete(CHANGES_TABLE, (("offset", "<", 3),))
    assert offsets(tmp_path) == [3, 4]


@pytest.mark.slow
def test_a_hint_of_a_checkpoint_that_is_missing_is_named_with_its_remedy(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    DeltaTable(str(tmp_path / CHANGES_TABLE.name)).create_checkpoint()
    log = tmp_path / CHANGES_TABLE.name / "_delta_log"
    [checkpoint] = log.glob("*.checkpoint.parquet")
    checkpoint.unlink()
    with pytest.raises(
        TablesError, match=r"_last_checkpoint .* does not exist.*; delete this file"
    ):
        offsets(tmp_path)
    (log / "_last_checkpoint").unlink()
    assert offsets(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize("is_altered", [False, True])
def test_a_compaction_beside_appends_commits_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_altered: bool
) -> None:
    """It would never commit to an altered table that is appended to each second."""
    store, upkeep = filled(tmp_path, 3), DeltaRsStore(str(tmp_path))
    if is_altered:
        alter(tmp_path)

    def append_more() -> None:
        for offset in (3, 4):
            append(store, offset)

    before_the_commit(monkeypatch, append_more)
    upkeep.compact(CHANGES_TABLE)
    assert offsets(tmp_path) == [0, 1, 2, 3, 4]
    assert upkeep.size(CHANGES_TABLE).file_count == 3
    append(store, 5)
    assert offsets(tmp_path) == [0, 1, 2, 3, 4, 5]


def test_of_two_compactions_at_the_same_time_one_conflicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, upkeep = DeltaRsStore(str(tmp_path)), DeltaRsStore(str(tmp_path))
    for offset in range(3):
        append(store, offset)
    files: set[Path] = set()

    def compact() -> None:
        files.update((tmp_path / CHANGES_TABLE.name).glob("*.parquet"))
        store.compact(CHANGES_TABLE)

    before_the_commit(monkeypatch, compact)
    with pytest.raises(ConcurrentWriterError):
        upkeep.compact(CHANGES_TABLE)
    assert offsets(tmp_path) == [0, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == [CHANGES_TABLE.name]
    left = {*(tmp_path / CHANGES_TABLE.name).glob("*.parquet")}
    assert len(files) == 4, "those of the appends, and the one that is not committed"
    assert len(left - files) == 1
    assert len(files - left) == 1


def test_a_commit_whose_link_is_reported_to_exist_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a network file system whose response was lost."""
    store, link = filled(tmp_path, 3), os.link

    def link_twice(*names: Any, **directories: Any) -> None:
        link(*names, **directories)
        if str(names[0]).startswith("_commit_"):
            monkeypatch.setattr(os, "link", link)
            link(*names, **directories)

    monkeypatch.setattr(os, "link", link_twice)
    copies = counted_copies(monkeypatch)
    store.delete(CHANGES_TABLE, (("offset", "<=", 1),))
    assert len(copies) == 1
    assert offsets(tmp_path) == [2]
    append(store, 3)
    assert offsets(tmp_path) == [2, 3]


@pytest.mark.parametrize("key", ["k", "other"])
def test_of_two_merges_of_a_cluster_at_the_same_time_one_conflicts(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge(tmp_path, 5)
    before_the_commit(monkeypatch, lambda: merge(tmp_path, 6, key=key))
    with pytest.raises(ConcurrentWriterError):
        merge(tmp_path, 7, key="other")
    kept = [] if key == "k" else [("cluster-a", "k", 5)]
    assert merged(tmp_path) == sorted([*kept, ("cluster-a", key, 6)])
    merge(tmp_path, 7, key="other")
    assert ("cluster-a", "other", 7) in merged(tmp_path)


def test_merges_of_two_clusters_at_the_same_time_both_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge(tmp_path, 5)
    before_the_commit(monkeypatch, lambda: merge(tmp_path, 6, cluster_id="cluster b/%"))
    merge(tmp_path, 7)
    merge(tmp_path, 8, cluster_id="cluster b/%")
    assert merged(tmp_path) == [("cluster b/%", "k", 8), ("cluster-a", "k", 7)]


def test_copies_of_processes_that_were_killed_are_deleted_a_day_later(tmp_path: Path) -> None:
    store = DeltaRsStore(str(tmp_path))
    append(store, 1)
    old, new = (tmp_path / f".{CHANGES_TABLE.name}-copy-{name}" for name in ("old", "new"))
    for path in (old, new):
        path.mkdir()
    time_s = time.time() - 25 * 60 * 60
    os.utime(old, (time_s, time_s))
    store.vacuum(CHANGES_TABLE)
    assert (old.exists(), new.exists()) == (False, True), "a process may work on the new one"
    assert offsets(tmp_path) == [1]
