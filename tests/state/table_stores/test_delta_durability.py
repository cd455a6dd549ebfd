"""Delta tables after a loss of power, of which delta-rs reads what was synced."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from tests.state.table_stores.rows import (
    CLUSTER,
    change,
    changes,
    state_row,
    table_of,
)

from raftlog_state.errors import TablesError
from raftlog_state.tables.schema import CHANGES_TABLE, STATE_TABLE
from raftlog_state.tables.stores.delta_rs import DeltaRsStore
from raftlog_state.tables.stores.protocol import RowSlices, Transaction

pytestmark = pytest.mark.slow

Check = Callable[[Path], None]
State = frozenset[tuple[str, bytes]]
"""Paths with the contents of files."""


class PowerLoss:
    """What is on disk of a directory: contents and names as of the last sync of each.

    Names that were not synced may be there: each directory is restored both ways. Files that were
    there at the beginning are durable.
    """

    def __init__(self, root: Path, restored: Path) -> None:
        self._root, self._restored = root, restored
        self._contents = {path.stat().st_ino: path.read_bytes() for path in _files(root)}
        self._names = {path.stat().st_ino: _names(path) for path in _directories(root)}
        self.states = 0

    def synced(self, status: os.stat_result) -> None:
        """Record the sync of a file or a directory below the root."""
        for path in (*_files(self._root), *_directories(self._root)):
            if path.stat().st_ino == status.st_ino:
                if path.is_dir():
                    self._names[status.st_ino] = _names(path)
                else:
                    self._contents[status.st_ino] = path.read_bytes()
                return

    def restore(self, check: Check, checked: set[State] | None = None) -> None:
        """Call ``check`` with each state in which a loss of power now leaves the directory.

        States in ``checked`` are omitted, and others are added to it.
        """
        unsynced = [
            path
            for path in _directories(self._root)
            if self._names.get(path.stat().st_ino) != _names(path)
        ]
        for are_there in product((False, True), repeat=len(unsynced)):
            kept = {path for path, is_there in zip(unsynced, are_there, strict=True) if is_there}
            if checked is not None:
                state = frozenset(self._state(self._root, "", kept))
                if state in checked:
                    continue
                checked.add(state)
            shutil.rmtree(self._restored, ignore_errors=True)
            self._copy(self._root, self._restored, kept)
            self.states += 1
            check(self._restored)

    def _state(self, source: Path, below: str, kept: set[Path]) -> Iterator[tuple[str, bytes]]:
        """Yield the paths of what is left below a directory, and the contents of files."""
        yield below, b""
        for name, inode in self._left(source, kept).items():
            if (source / name).is_dir():
                yield from self._state(source / name, f"{below}/{name}", kept)
            else:
                yield f"{below}/{name}", self._contents.get(inode, b"")

    def _left(self, directory: Path, kept: set[Path]) -> dict[str, int]:
        """Return the names that are left in a directory, and their inodes."""
        is_kept = directory in kept
        return _names(directory) if is_kept else self._names.get(directory.stat().st_ino, {})

    def _copy(self, source: Path, target: Path, kept: set[Path]) -> None:
        target.mkdir()
        for name, inode in self._left(source, kept).items():
            if (source / name).is_dir():
                self._copy(source / name, target / name, kept)
            else:
                (target / name).write_bytes(self._contents.get(inode, b""))


def _files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def _directories(root: Path) -> list[Path]:
    return [root, *(path for path in root.rglob("*") if path.is_dir())]


def _names(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in directory.iterdir()}


@contextmanager
def losing_power(
    root: Path, restored: Path, monkeypatch: pytest.MonkeyPatch, check: Check
) -> Iterator[PowerLoss]:
    """Check what a loss of power leaves at each sync and change of a name in the block."""
    disk = PowerLoss(root, restored)
    checked: set[State] = set()  # most states of two adjacent moments are equal
    fsync, link, rename = os.fsync, os.link, os.rename

    def recorded_fsync(descriptor: int) -> None:
        disk.restore(check, checked)
        fsync(descriptor)
        disk.synced(os.fstat(descriptor))
        disk.restore(check, checked)

    def recorded_link(*names: Any, **directories: Any) -> None:
        link(*names, **directories)
        disk.restore(check, checked)

    def recorded_rename(source: Any, target: Any) -> None:
        rename(source, target)
        disk.restore(check, checked)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", recorded_fsync)
        patched.setattr(os, "link", recorded_link)
        patched.setattr(os, "rename", recorded_rename)
        yield disk


def append(store: DeltaRsStore, offset: int) -> None:
    transaction = Transaction(app_id="writer", version=offset)
    store.append(CHANGES_TABLE, changes(offset, offset), transaction)


def offsets(place: Path) -> list[int]:
    """Return the offsets of the topics, without statistics of files."""
    found = DeltaRsStore(str(place)).read(CHANGES_TABLE, (), ("offset", "op"))
    rows = found.to_pylist()
    return sorted(row["offset"] for row in rows if row["op"] == "c")


def test_a_loss_of_power_in_an_append_leaves_all_of_it_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, restored = tmp_path / "tables", tmp_path / "restored"
    store, file = DeltaRsStore(str(place)), tmp_path / "11.parquet"
    append(store, 1)
    pq.write_table(table_of(CHANGES_TABLE, [change(11)]), file)
    rows = RowSlices.of_files(CLUSTER, CHANGES_TABLE, [str(file)], changes(12, 12))
    found: list[list[int]] = []
    with losing_power(
        place, restored, monkeypatch, lambda state: found.append(offsets(state))
    ) as disk:
        append(store, 2)
        assert {*map(tuple, found)} == {(1,), (1, 2)}, "without its entry, and with it"
        found.clear()
        disk.restore(lambda state: found.append(offsets(state)))
        assert found == [[1, 2]], "it is durable when it returns"
        store.append(CHANGES_TABLE, rows, Transaction(app_id="writer", version=3))
        assert {*map(tuple, found)} == {(1, 2), (1, 2, 11, 12)}
        found.clear()
        disk.restore(lambda state: found.append(offsets(state)))
        assert found == [[1, 2, 11, 12]]


def test_a_loss_of_power_while_a_table_is_created_leaves_all_of_it_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, restored = tmp_path / "tables", tmp_path / "restored"
    place.mkdir()
    found: list[list[int] | None] = []

    def check(state: Path) -> None:
        has_table = (state / CHANGES_TABLE.name).exists()
        found.append(offsets(state) if has_table else None)

    with losing_power(place, restored, monkeypatch, check) as disk:
        append(DeltaRsStore(str(place)), 1)
        assert {*map(repr, found)} == {repr(None), repr([1])}
        found.clear()
        disk.restore(check)
        assert found == [[1]]


def test_commits_of_delta_rs_and_checkpoints_are_durable_when_they_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, restored = tmp_path / "tables", tmp_path / "restored"
    store = DeltaRsStore(str(place))
    for offset in range(3):
        append(store, offset)
    row = state_row("k", 0, 5, 5, name="a")
    store.merge(table_of(STATE_TABLE, [row]))
    path = str(place / CHANGES_TABLE.name)
    DeltaTable(path).alter.set_table_properties({"delta.checkpointInterval": "3"})

    def durable(disk: PowerLoss) -> Path:
        states = disk.states
        disk.restore(lambda _: None)
        assert disk.states == states + 1, "all names are synced"
        return restored

    with losing_power(place, restored, monkeypatch, lambda _: None) as disk:
        store.merge(table_of(STATE_TABLE, [{**row, "_visible_offset": 6, "_offset": 6}]))
        merged = DeltaRsStore(str(durable(disk))).read(STATE_TABLE)
        assert merged["_offset"].to_pylist() == [6]
        for offset in range(3, 6):
            append(store, offset)
        log = durable(disk) / CHANGES_TABLE.name / "_delta_log"
        [*checkpoints] = log.glob("*.checkpoint.parquet")
        assert checkpoints
        for checkpoint in checkpoints:
            assert pq.read_metadata(checkpoint).num_rows
        assert (log / "_last_checkpoint").stat().st_size
        assert offsets(restored) == [0, 1, 2, 3, 4, 5]
        store.delete(CHANGES_TABLE, (("offset", "<", 1),))
        assert offsets(durable(disk)) == [1, 2, 3, 4, 5]
        store.compact(CHANGES_TABLE)
        assert offsets(durable(disk)) == [1, 2, 3, 4, 5]
        assert DeltaTable(str(restored / CHANGES_TABLE.name)).version() == store.version(
            CHANGES_TABLE
        )
        DeltaTable(path).alter.add_constraint({"is_early": "offset < 9"})
        append(store, 6)
        assert offsets(durable(disk)) == [1, 2, 3, 4, 5, 6]


def test_a_vacuum_deletes_staged_entries_of_a_day_ago(tmp_path: Path) -> None:
    store = DeltaRsStore(str(tmp_path))
    append(store, 1)
    log = tmp_path / CHANGES_TABLE.name / "_delta_log"
    old, new = (log / f"_commit_{name}.json.tmp" for name in ("old", "new"))
    for path in (old, new):
        path.write_text("{")
    time_s = time.time() - 25 * 60 * 60
    os.utime(old, (time_s, time_s))
    store.vacuum(CHANGES_TABLE)
    assert (old.exists(), new.exists()) == (False, True), "a process may commit the new one"
    assert offsets(tmp_path) == [1]


def test_a_file_system_without_hard_links_is_an_error_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DeltaRsStore(str(tmp_path))
    append(store, 1)

    def refuse(*_: str, **__: int) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", refuse)
        with pytest.raises(TablesError, match=r"hard link.*use a file system with hard links"):
            append(store, 2)
    append(store, 2)
    log = tmp_path / CHANGES_TABLE.name / "_delta_log"
    assert not list(log.glob("*.tmp"))
    assert offsets(tmp_path) == [1, 2]


@pytest.mark.parametrize("torn", [b"\0" * 80, b'{"add"'])
def test_an_incomplete_last_entry_of_delta_rs_is_named_with_its_remedy(
    torn: bytes, tmp_path: Path
) -> None:
    """A loss of power before the sync of a merge leaves such an entry; the merge is repeated."""
    store = DeltaRsStore(str(tmp_path))
    rows = [table_of(STATE_TABLE, [state_row("k", 0, at, at, name="a")]) for at in (5, 6)]
    store.merge(rows[0])
    store.merge(rows[1])
    newest = max((tmp_path / STATE_TABLE.name / "_delta_log").glob("0*.json"))
    newest.write_bytes(torn)
    reopened = DeltaRsStore(str(tmp_path))
    for fails in (lambda: reopened.read(STATE_TABLE), lambda: reopened.merge(rows[1])):
        with pytest.raises(
            TablesError, match=rf"{newest.name} in its _delta_log; delete this file"
        ):
            fails()
    newest.unlink()
    reopened.merge(rows[1])
    assert reopened.read(STATE_TABLE)["_offset"].to_pylist() == [6]


def test_an_empty_last_entry_of_delta_rs_is_a_version_without_changes(tmp_path: Path) -> None:
    """File systems that allocate late leave it; Spark reads it like delta-rs."""
    store = DeltaRsStore(str(tmp_path))
    rows = [table_of(STATE_TABLE, [state_row("k", 0, at, at, name="a")]) for at in (5, 6)]
    for each in rows:
        store.merge(each)
    newest = max((tmp_path / STATE_TABLE.name / "_delta_log").glob("0*.json"))
    newest.write_bytes(b"")
    reopened = DeltaRsStore(str(tmp_path))
    assert reopened.read(STATE_TABLE)["_offset"].to_pylist() == [5]
    reopened.merge(rows[1])
    assert reopened.read(STATE_TABLE)["_offset"].to_pylist() == [6]


def test_an_entry_that_no_engine_reads_is_an_error_and_not_an_endless_append(
    tmp_path: Path,
) -> None:
    store = DeltaRsStore(str(tmp_path))
    append(store, 1)
    log = tmp_path / CHANGES_TABLE.name / "_delta_log"
    taken = log / f"{store.version(CHANGES_TABLE) + 1:020}.json"
    taken.mkdir()
    with pytest.raises(TablesError, match=f"{taken.name} .* does not read it"):
        append(store, 2)
    taken.rmdir()
    append(store, 2)
    assert offsets(tmp_path) == [1, 2]


def test_a_failed_sync_is_an_error_and_its_append_has_no_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also that of the entry: a later sync of the same pages may report nothing."""
    store = DeltaRsStore(str(tmp_path))
    append(store, 1)
    for failing in range(3):  # the file, its name, the entry
        calls = iter(range(10))

        def fail(_: int, calls: Iterator[int] = calls, failing: int = failing) -> None:
            if next(calls) == failing:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", fail)
            with pytest.raises(TablesError, match="table changes cannot be used: Input/output"):
                append(store, 2)
        assert offsets(tmp_path) == [1]
    append(store, 2)
    assert offsets(tmp_path) == [1, 2]
