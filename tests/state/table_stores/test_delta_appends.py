"""Appends that ``DeltaRsStore`` commits itself, read by delta-rs; Spark's tests read them too."""

from __future__ import annotations

import gc
import json
import os
import shutil
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from tests.state.table_stores.rows import (
    CLUSTER,
    Row,
    change,
    changes,
    log_row,
    progress,
    rows_of,
    table_of,
)
from tests.support.clock import StoppedClock
from tests.support.small_logs import LogWriter
from tests.support.sweep_size import nightly_except

from raftlog.client import open_path
from raftlog_state.errors import ConcurrentWriterError, TablesError
from raftlog_state.records import Redactor, TopicRecord, encode
from raftlog_state.tables.log_follower import FollowSettings, LogFollower
from raftlog_state.tables.schema import CHANGES_TABLE, LOG_TABLE, StoredTable
from raftlog_state.tables.stores import delta_rs
from raftlog_state.tables.stores.delta_appends import (
    find_torn,
    names_lost_checkpoint,
    newest_checkpoint,
    newest_entry,
)
from raftlog_state.tables.stores.delta_rs import DeltaRsStore
from raftlog_state.tables.stores.protocol import RowSlices, Transaction

pytestmark = pytest.mark.slow


def filled(place: Path, end: int) -> DeltaRsStore:
    """Return a store that has appended a topic at each offset below an end."""
    store = DeltaRsStore(str(place))
    for offset in range(end):
        append(store, offset)
    return store


@pytest.mark.parametrize(
    ("names", "since", "newest"),
    [
        ([], -1, None),
        (["_last_checkpoint", ".s3-optimization-0", "_changes"], -1, None),
        (["0.json", "1.json"], -1, 1),
        (["7.checkpoint.parquet", "7.json", "8.json", "8.crc"], -1, 8),
        (["3.4.compacted.json", "3.json", "4.json", "tmp-5.json"], -1, 4),
        (["0.json", "1.json", "2.json", "5.json"], 1, 2),  # no engine leaves a gap: names after it
        (["4.json", "5.json"], 3, 5),  # entries up to the known one were deleted
        (["0.json"], 9, 0),  # another table is at its place
        (["4.json", "5.checkpoint.parquet"], -1, None),
        (["5.checkpoint.parquet"], 5, None),
    ],
)
def test_the_newest_version_is_found_by_the_names_in_the_log(
    tmp_path: Path, names: list[str], since: int, newest: int | None
) -> None:
    for name in names:
        version, dot, rest = name.partition(".")
        is_version = version.isdecimal() and dot
        (tmp_path / (f"{int(version):020}.{rest}" if is_version else name)).touch()
    assert newest_entry(tmp_path, since) == newest


def test_a_table_without_a_log_has_no_newest_version(tmp_path: Path) -> None:
    assert newest_entry(tmp_path / "_delta_log") is None
    assert newest_entry(tmp_path / "_delta_log", 3) is None


BROKEN_HINTS = ("", '{"version"', "[]", "{}", '{"version": 1e999}')
V2 = "checkpoint.3a0d65cd-4056-49b8-937b-95f9e3ee90e5"


@pytest.mark.parametrize(
    ("names", "hint", "newest"),
    [
        (["0.json"], None, -1),
        (["2.checkpoint.parquet", "4.checkpoint.parquet"], None, 4),
        (["2.checkpoint.parquet", "4.checkpoint.parquet"], '{"version": 2}', 2),
        (["2.checkpoint.parquet"], '{"version": 1}', 2),
        (["2.checkpoint.parquet"], '{"version": 3}', 2),
        *[(["2.checkpoint.parquet"], hint, 2) for hint in BROKEN_HINTS],
        ([f"2.{V2}.parquet", "1.checkpoint.parquet"], '{"version": 2}', 2),
        ([f"2.{V2}.json", "1.checkpoint.parquet"], None, 2),
        (
            ["1.checkpoint.parquet", *[f"2.checkpoint.{at:010}.{2:010}.parquet" for at in (1, 2)]],
            "",
            2,
        ),
        (["1.checkpoint.parquet", f"2.checkpoint.{1:010}.{2:010}.parquet"], '{"version": 2}', 1),
        (["2.checkpoint.parquet.tmp", "2.crc"], None, -1),
    ],
)
def test_the_newest_checkpoint_is_found_without_the_hint_that_names_it(
    tmp_path: Path, names: list[str], hint: str | None, newest: int
) -> None:
    for name in names:
        version, _, rest = name.partition(".")
        (tmp_path / f"{int(version):020}.{rest}").touch()
    if hint is not None:
        (tmp_path / "_last_checkpoint").write_text(hint)
    assert newest_checkpoint(tmp_path) == newest


def test_errors_are_examined_in_a_log_that_cannot_be_read(tmp_path: Path) -> None:
    """Another error there would hide the one of the engine."""
    (tmp_path / "_last_checkpoint").mkdir()
    (tmp_path / f"{1:020}.checkpoint.parquet").touch()
    assert newest_checkpoint(tmp_path) == 1
    assert not names_lost_checkpoint(tmp_path)
    unreadable = tmp_path / f"{2:020}.json"
    unreadable.symlink_to("/proc/self/mem")
    assert unreadable.is_file()
    assert find_torn(tmp_path) is None


def append(store: DeltaRsStore, offset: int, app_id: str = "writer") -> None:
    store.append(CHANGES_TABLE, changes(offset, offset), Transaction(app_id=app_id, version=offset))


def offsets(store: DeltaRsStore) -> list[int]:
    """Return the offsets of the topics."""
    found = store.read(CHANGES_TABLE, (("op", "=", "c"),), ("offset",))
    return sorted(found["offset"].to_pylist())


def log_of(place: Path, table: StoredTable = CHANGES_TABLE) -> Path:
    return place / table.name / "_delta_log"


def entries(place: Path) -> list[list[dict[str, Any]]]:
    """Return the actions of each version."""
    found = sorted(log_of(place).glob("*.json"))
    return [[*map(json.loads, entry.read_text().splitlines())] for entry in found]


def engine_of(actions: list[dict[str, Any]]) -> str:
    [found] = [action["commitInfo"] for action in actions if "commitInfo" in action]
    return str(found["engineInfo"]).partition(" ")[0]


def test_an_append_after_that_of_the_same_store_does_not_read_the_log(tmp_path: Path) -> None:
    store = filled(tmp_path, 3)
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    moved = sorted(log_of(tmp_path).glob("*.json"))
    for entry in moved:  # with which delta-rs would find no table
        entry.rename(hidden / entry.name)
    append(store, 3)
    append(store, 4)
    with pytest.raises(ConcurrentWriterError):
        append(store, 4)
    for entry in moved:
        (hidden / entry.name).rename(entry)
    assert offsets(store) == offsets(DeltaRsStore(str(tmp_path))) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("hundreds", nightly_except([1], [1, 2]))
def test_a_checkpoint_is_written_every_hundred_versions(tmp_path: Path, hundreds: int) -> None:
    end = 100 * hundreds + 5
    store = filled(tmp_path, end)
    names = {path.name for path in log_of(tmp_path).iterdir()}
    assert {name[:20] for name in names if "checkpoint" in name and name[0] == "0"} == {
        f"{version:020}" for version in (99, 199)[:hundreds]
    }
    assert not any(name.endswith(".tmp") for name in names)
    for entry in sorted(log_of(tmp_path).glob("*.json"))[: 100 * hundreds - 1]:
        entry.unlink()
    reader = DeltaRsStore(str(tmp_path))
    assert offsets(reader) == offsets(store) == list(range(end))
    with pytest.raises(ConcurrentWriterError):
        append(reader, 50)
    append(reader, end)
    append(store, end + 1)
    assert offsets(reader) == list(range(end + 2))


def test_batches_of_a_follower_leave_nothing_to_the_garbage_collection(tmp_path: Path) -> None:
    """A full collection is thousands of batches later, and cycles fill memory until then."""
    log = LogWriter(tmp_path / "__cluster_metadata-0", cluster_id="cluster")
    follower = LogFollower(
        lambda: open_path(str(log.directory)),
        DeltaRsStore(str(tmp_path / "tables")),
        FollowSettings(redactor=Redactor(), holdback_ms=0),
        clock=StoppedClock().as_clock(),
        log_event=lambda event: None,
    )

    def follow(names: str) -> None:
        for name in names:
            log.append(encode(TopicRecord(name=name, topic_id=f"{name:A<22}")))
            assert follower.append_next() is not None

    follow("AB")  # creates the tables
    gc.collect()
    gc.freeze()  # cycles of other tests, whose threads may end only now
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        follow("CDEFG")
        gc.collect()
        left = Counter(type(one).__name__ for one in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.unfreeze()
    assert left == Counter()
    assert DeltaRsStore(str(tmp_path / "tables")).size(CHANGES_TABLE).file_count == 7


def test_a_thread_returns_what_delta_rs_frees() -> None:
    """What threads free that have ended stayed: 70 MiB grew to 140 in 2,500 batches.

    Only on Linux: jemalloc has no such thread on other platforms.
    """
    code = (
        "import os; from pathlib import Path; from raftlog_state.tables.stores import delta_rs; "
        "print(os.environ.get('_RJEM_MALLOC_CONF'), "
        "*(one.read_text() for one in Path('/proc/self/task').glob('*/comm')))"
    )
    inherited = {name: one for name, one in os.environ.items() if name != "_RJEM_MALLOC_CONF"}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=inherited
    )
    is_linux = sys.platform == "linux"
    assert ("background_thread:true" in ran.stdout) == is_linux
    assert ("jemalloc_bg_thd" in ran.stdout) == is_linux


def test_an_append_after_commits_of_other_stores_reads_their_entries_alone(tmp_path: Path) -> None:
    store, other = filled(tmp_path, 3), DeltaRsStore(str(tmp_path))
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    moved = sorted(log_of(tmp_path).glob("*.json"))
    append(other, 3, "other")
    other.compact(CHANGES_TABLE)
    for entry in moved:  # without which delta-rs finds no table
        entry.rename(hidden / entry.name)
    with pytest.raises(ConcurrentWriterError):
        append(store, 3, "other")
    append(store, 4)
    append(store, 5, "other")
    for entry in moved:
        (hidden / entry.name).rename(entry)
    assert offsets(store) == offsets(DeltaRsStore(str(tmp_path))) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("is_created", [True, False])
def test_a_log_is_listed_again_if_an_entry_was_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_created: bool
) -> None:
    """A listing of a directory may have an entry, and lack one that was created before it."""
    filled(tmp_path, 4)
    entry = log_of(tmp_path) / f"{2:020}.json"
    text = entry.read_text()
    opened: list[tuple[Any, ...]] = []
    entry.unlink()

    class Opened(DeltaTable):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            opened.append(arguments)
            if is_created and len(opened) == 2:
                entry.write_text(text)
            super().__init__(*arguments, **more)

    monkeypatch.setattr(delta_rs, "DeltaTable", Opened)
    if is_created:
        assert offsets(DeltaRsStore(str(tmp_path))) == [0, 1, 2, 3]
    else:
        with pytest.raises(TablesError, match="found gap"):
            offsets(DeltaRsStore(str(tmp_path)))
    assert len(opened) == 2


def test_checkpoints_of_another_store_do_not_concern_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one of a version whose append has not returned yet."""
    filled(tmp_path, 1)
    path = str(log_of(tmp_path).parent)
    DeltaTable(path).alter.set_table_properties({"delta.checkpointInterval": "2"})
    store = DeltaRsStore(str(tmp_path), writes_checkpoints=False)
    upkeep, link = DeltaRsStore(str(tmp_path)), os.link

    def link_first(*names: Any, **directories: Any) -> None:
        link(*names, **directories)
        upkeep.checkpoint(CHANGES_TABLE)

    def checkpoints() -> list[int]:
        found = log_of(tmp_path).glob("*.checkpoint.parquet")
        return sorted(int(path.name[:20]) for path in found)

    assert checkpoints() == [3], "that of the altered table, by delta-rs"
    append(store, 1)
    monkeypatch.setattr(os, "link", link_first)
    for offset in range(2, 6):
        append(store, offset)
    assert checkpoints() == [3, 5, 7]
    for entry in sorted(log_of(tmp_path).glob("*.json"))[:-1]:
        entry.unlink()
    append(store, 6)
    assert offsets(store) == offsets(DeltaRsStore(str(tmp_path))) == list(range(7))


@pytest.mark.parametrize("rounds", nightly_except([8], [8, 25]))
def test_appends_of_different_transactions_at_the_same_time_all_commit(
    tmp_path: Path, rounds: int
) -> None:
    filled(tmp_path, 1)
    writers = 4
    start = Barrier(writers)

    def work(at: int) -> None:
        store = DeltaRsStore(str(tmp_path))
        start.wait()
        for number in range(rounds):
            append(store, 1 + number * writers + at, f"writer-{at}")

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(work, range(writers)))
    store = DeltaRsStore(str(tmp_path))
    assert offsets(store) == list(range(1 + writers * rounds))
    assert store.version(CHANGES_TABLE) == len(entries(tmp_path)) - 1


def before_the_next_link(monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]) -> None:
    """Run an action when an append has written all, and not committed: before its hard link."""
    link = os.link

    def link_later(*names: Any, **directories: Any) -> None:
        monkeypatch.setattr(os, "link", link)
        action()
        link(*names, **directories)

    monkeypatch.setattr(os, "link", link_later)


@pytest.mark.parametrize("rival", [3, 2])
def test_a_transaction_that_is_committed_meanwhile_is_a_conflict(
    tmp_path: Path, rival: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one of an earlier version: it was not known when the append began."""
    store = filled(tmp_path, 2)
    before_the_next_link(monkeypatch, lambda: append(DeltaRsStore(str(tmp_path)), rival))
    with pytest.raises(ConcurrentWriterError):
        append(store, 3)
    assert offsets(store) == [0, 1, rival]
    append(store, 4)


def test_an_append_beside_a_compaction_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path, 3)
    before_the_next_link(monkeypatch, lambda: DeltaRsStore(str(tmp_path)).compact(CHANGES_TABLE))
    append(store, 3)
    assert offsets(store) == offsets(DeltaRsStore(str(tmp_path))) == [0, 1, 2, 3]
    assert store.size(CHANGES_TABLE).file_count == 2


def test_an_append_whose_version_was_deleted_meanwhile_is_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was suspended for so long that others deleted their entry of the version."""
    store = filled(tmp_path, 3)

    def delete_entries() -> None:
        rival = DeltaRsStore(str(tmp_path))
        for offset in range(3, 6):
            append(rival, offset, "rival")
        DeltaTable(str(log_of(tmp_path).parent)).create_checkpoint()
        for entry in sorted(log_of(tmp_path).glob("*.json"))[:-1]:
            entry.unlink()

    before_the_next_link(monkeypatch, delete_entries)
    with pytest.raises(ConcurrentWriterError):
        append(store, 3)
    assert offsets(store) == [0, 1, 2, 3, 4, 5]
    append(store, 6)
    assert offsets(DeltaRsStore(str(tmp_path))) == [0, 1, 2, 3, 4, 5, 6]


def test_an_append_does_not_commit_to_a_table_that_replaced_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version would be a gap in its log, which no engine reads."""
    store = filled(tmp_path, 5)
    fsync = os.fsync

    def replace_table(descriptor: int) -> None:
        """Replace the table once the file of the append is written: at the sync of its name."""
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            monkeypatch.setattr(os, "fsync", fsync)
            shutil.rmtree(log_of(tmp_path).parent)
            append(DeltaRsStore(str(tmp_path)), 1, "rival")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", replace_table)
    with pytest.raises(ConcurrentWriterError):
        append(store, 9, "another")
    assert offsets(store) == offsets(DeltaRsStore(str(tmp_path))) == [1]
    append(store, 2)
    assert offsets(DeltaRsStore(str(tmp_path))) == [1, 2]


def test_a_version_of_a_table_that_replaced_another_one_is_read(tmp_path: Path) -> None:
    """Tables that are written again from a log have the same versions, and other files."""
    store = filled(tmp_path, 3)
    version = store.version(CHANGES_TABLE)
    before = store.read(CHANGES_TABLE, version=version)
    shutil.rmtree(log_of(tmp_path).parent)
    assert filled(tmp_path, 3).version(CHANGES_TABLE) == version
    assert store.version(CHANGES_TABLE) == version
    found = store.read(CHANGES_TABLE, version=version)
    assert found.sort_by("offset").select(["offset"]) == before.sort_by("offset").select(["offset"])


def test_a_table_that_was_altered_is_appended_to_by_delta_rs(tmp_path: Path) -> None:
    store = filled(tmp_path, 2)
    assert engine_of(entries(tmp_path)[-1]) == "raftlog"
    path = str(log_of(tmp_path).parent)
    DeltaTable(path).alter.set_table_properties({"delta.appendOnly": "true"})
    append(store, 2)
    assert engine_of(entries(tmp_path)[-1]) == "raftlog", "it does not concern appends"
    DeltaTable(path).alter.add_constraint({"is_early": "offset < 4"})
    append(store, 3)
    assert engine_of(entries(tmp_path)[-1]).startswith("delta-rs")
    with pytest.raises(ConcurrentWriterError):
        append(store, 3)
    with pytest.raises(TablesError, match="validation check"):
        append(store, 4)
    store.fence(CHANGES_TABLE, [Transaction(app_id="writer", version=9)])
    with pytest.raises(ConcurrentWriterError):
        append(DeltaRsStore(str(tmp_path)), 9)
    rows = RowSlices.of_files(CLUSTER, CHANGES_TABLE, [], changes(3, 3))
    store.append(CHANGES_TABLE, rows, Transaction(app_id="writer", version=10))
    assert offsets(store) == [0, 1, 2, 3, 3]


@pytest.mark.parametrize(
    ("table", "row", "check"),
    [
        (CHANGES_TABLE, change(5, visible_offset=4), "visible_when_or_after_written"),
        (CHANGES_TABLE, change(5, visible_offset=None), "visible_when_or_after_written"),
        (CHANGES_TABLE, change(5, op="x"), "op_is_known"),
        (CHANGES_TABLE, change(5, op=None), "op_is_known"),
        (LOG_TABLE, log_row(-1), "offset_not_negative"),
        (LOG_TABLE, log_row(5, leader_epoch=-1), "epoch_not_negative"),
    ],
)
def test_rows_that_violate_a_check_are_not_written(
    table: StoredTable, row: Row, check: str, tmp_path: Path
) -> None:
    store = DeltaRsStore(str(tmp_path))
    valid = change(1) if table is CHANGES_TABLE else log_row(1)
    store.append(table, table_of(table, [valid]), Transaction(app_id="writer", version=1))
    violating = table_of(table, [valid, row])
    for version in (2, 3):
        with pytest.raises(TablesError, match=check):
            store.append(table, violating, Transaction(app_id="writer", version=version))
    assert store.read(table).num_rows == 1
    other = DeltaRsStore(str(tmp_path / "other"))
    with pytest.raises(TablesError, match=check):
        other.append(table, violating, Transaction(app_id="writer", version=1))
    assert not other.exists(table)


def test_files_have_the_fields_that_their_rows_have(tmp_path: Path) -> None:
    store = filled(tmp_path, 1)
    before = {"broker": {"broker_id": 7, "fenced": True}}
    rows = table_of(CHANGES_TABLE, [change(1, op="d", before=before, after=None), progress(1, 1)])
    store.append(CHANGES_TABLE, rows, Transaction(app_id="writer", version=1))
    named = {
        name.split(".")[1]
        for path in (tmp_path / CHANGES_TABLE.name).glob("*.parquet")
        for name in _columns(path)
        if name.startswith(("before.", "after."))
    }
    assert named == {"topic", "broker", "progress"}
    found = rows_of(CHANGES_TABLE, store.read(CHANGES_TABLE))
    assert found == rows_of(CHANGES_TABLE, pa.concat_tables([changes(0, 0), rows]))
    store.compact(CHANGES_TABLE)
    assert rows_of(CHANGES_TABLE, store.read(CHANGES_TABLE)) == found


def _columns(path: Path) -> list[str]:
    schema = pq.read_metadata(path).schema
    return [schema.column(at).path for at in range(len(schema.names))]


def test_rows_of_times_that_python_does_not_represent_are_found(tmp_path: Path) -> None:
    store = DeltaRsStore(str(tmp_path))
    times = pa.array([-(2**60), 2**60], pa.int64()).cast(LOG_TABLE.columns["log_time"])
    for at, time in enumerate(times):
        rows = table_of(LOG_TABLE, [log_row(at)])
        column = rows.schema.get_field_index("log_time")
        values = pa.array([time.value], pa.int64()).cast(LOG_TABLE.columns["log_time"])
        rows = rows.set_column(column, rows.schema.field(column), values)
        store.append(LOG_TABLE, rows, Transaction(app_id="writer", version=at))
    found = store.read(LOG_TABLE, (("offset", ">=", 1),))
    assert found["log_time"].cast(pa.int64()).to_pylist() == [2**60]


def test_statistics_of_times_have_years_of_four_digits(tmp_path: Path) -> None:
    """Of a record with such a time, which a producer is free to write."""
    store = DeltaRsStore(str(tmp_path))
    rows = table_of(LOG_TABLE, [log_row(1)])
    column = rows.schema.get_field_index("log_time")
    times = pa.array([-62_009_452_800_000_000], pa.int64()).cast(LOG_TABLE.columns["log_time"])
    rows = rows.set_column(column, rows.schema.field(column), times)
    store.append(LOG_TABLE, rows, Transaction(app_id="writer", version=1))
    newest = max(log_of(tmp_path, LOG_TABLE).glob("*.json")).read_text()
    [added] = [json.loads(line)["add"] for line in newest.splitlines() if '"add"' in line]
    assert json.loads(added["stats"])["minValues"]["log_time"] == "0004-12-31T00:00:00.000000Z"


@pytest.mark.parametrize("value", ["0", "-1", "often"])
def test_an_invalid_interval_of_checkpoints_has_no_effect(value: str, tmp_path: Path) -> None:
    store = filled(tmp_path, 1)
    properties = {"delta.checkpointInterval": value}
    DeltaTable(str(log_of(tmp_path).parent)).alter.set_table_properties(properties)
    append(store, 1)
    assert offsets(store) == [0, 1]


def test_a_table_without_a_declared_column_is_not_appended_to(tmp_path: Path) -> None:
    """Its readers would never see the values."""
    fields = [field for field in LOG_TABLE.schema if field.name != "value_raw"]
    table = DeltaTable.create(str(tmp_path / LOG_TABLE.name), pa.schema(fields))
    table.alter.add_constraint({name: one.sql for name, one in LOG_TABLE.checks.items()})
    store = DeltaRsStore(str(tmp_path))
    with pytest.raises(TablesError, match="number of fields does not match"):
        store.append(
            LOG_TABLE, table_of(LOG_TABLE, [log_row(1)]), Transaction(app_id="writer", version=1)
        )
    assert store.version(LOG_TABLE) == 1


def test_a_table_with_another_column_is_appended_to(tmp_path: Path) -> None:
    store = filled(tmp_path, 1)
    path = str(log_of(tmp_path).parent)
    DeltaTable(path).alter.add_columns([Field("note", PrimitiveType("string"))])
    append(store, 1)
    assert engine_of(entries(tmp_path)[-1]) == "raftlog"
    assert offsets(DeltaRsStore(str(tmp_path))) == [0, 1]
