"""Kafka's other internal logs followed into tables: each partition is a log of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.support.cli import rows as printed
from tests.support.cli import run
from tests.support.clock import StoppedClock
from tests.support.internal_records import DATA, GROUPS_NODE, InternalLogFile, offset_commit
from tests.support.memory_store import MemoryStore, MemoryTables
from tests.support.small_logs import copy_log
from tests.support.sweep_size import nightly_except
from tests.support.written_tables import read_view

from raftlog.client import Isolation, LogKind, open_path
from raftlog.errors import DivergedLogError, NotALogError, OptionError
from raftlog.types import ZERO_UUID
from raftlog_state import read_state
from raftlog_state.errors import ClustersFailedError, TablesError
from raftlog_state.image.rows import ConsumerOffsetRow, Row, row_json, table_of
from raftlog_state.internal.loader import InternalState
from raftlog_state.records import Redactor
from raftlog_state.records.internal_logs import (
    CONSUMER_OFFSETS,
    GROUP_RECORDS,
    SHARE_GROUP_STATE,
    SHARE_RECORDS,
    log_id_of,
)
from raftlog_state.records.keyed_serde import KeyedRecord
from raftlog_state.records.schema_coordinators import ShareSnapshotKey, ShareSnapshotValue
from raftlog_state.records.schema_groups import GroupMetadataKey
from raftlog_state.tables.group_follower import GroupFollower
from raftlog_state.tables.log_follower import FollowSettings, LogFollower
from raftlog_state.tables.reader import ArrowTables, open_tables
from raftlog_state.tables.stores.protocol import TableStore
from raftlog_state.tables.writer import Writer

REMOTE_LOG = DATA / "remote-log-metadata-4.3.1"
METADATA = DATA / "kraft-logs" / "three-nodes-4.3.1" / "node-1" / "__cluster_metadata-0"
CLUSTER = "c"
LOG_ID = log_id_of(CLUSTER, CONSUMER_OFFSETS, 0)
OF_TOPIC = {
    "__consumer_offsets": "consumer_offsets",
    "__transaction_state": "transactions_of_producers",
    "__share_group_state": "share_partitions",
    "__remote_log_metadata": "remote_segments",
}


def ignore(event: str) -> None:
    """Do nothing."""


def settings_of(
    record_count_max: int = 100_000, redactor: Redactor | None = None
) -> FollowSettings:
    return FollowSettings(
        redactor=redactor or Redactor(),
        cluster_id=CLUSTER,
        holdback_ms=0,
        is_once=True,
        record_count_max=record_count_max,
    )


def follow(
    store: TableStore,
    paths: Iterable[Path],
    *,
    record_count_max: int = 100_000,
    redactor: Redactor | None = None,
    group: str = "offsets",
) -> None:
    """Append what the logs have to the tables, as a new process."""
    GroupFollower(
        {str(path): partial(open_path, str(path)) for path in paths},
        store,
        settings_of(record_count_max, redactor),
        group=group,
        clock=StoppedClock().as_clock(),
        log_event=ignore,
    ).run()


def share_snapshot(group: str, start_offset: int) -> tuple[bytes | None, bytes | None]:
    """Return key and value of a snapshot of a share partition."""
    key = ShareSnapshotKey(group_id=group, topic_id=ZERO_UUID, partition=0)
    return SHARE_RECORDS.encode(
        KeyedRecord(key, ShareSnapshotValue(start_offset=start_offset), None)
    )


def offsets_in(rows: Iterable[Row]) -> dict[str, int]:
    return {row.group: row.offset for row in rows if isinstance(row, ConsumerOffsetRow)}


def offsets_below(path: Path, end_offset: int) -> dict[str, int]:
    """Return what ``raftlog state --at`` prints."""
    found = printed("state", path, "consumer_offsets", "--at", str(end_offset))
    return {str(row["group"]): int(str(row["offset"])) for row in found}


def replayed(path: Path) -> dict[str, int]:
    """Return the offsets that one replay of the whole log gives."""
    log = open_path(str(path), kind=LogKind.PARTITION)
    state = InternalState(CONSUMER_OFFSETS)
    state.read(log, log.read_end(isolation=Isolation.READ_UNCOMMITTED).offset)
    return offsets_in(state.rows(ConsumerOffsetRow))


@pytest.mark.parametrize("topic", OF_TOPIC)
def test_tables_have_the_rows_that_raftlog_state_prints(topic: str) -> None:
    node = REMOTE_LOG if topic == "__remote_log_metadata" else GROUPS_NODE
    paths = sorted(node.glob(f"{topic}-*"))
    tables = MemoryTables()
    follow(MemoryStore(tables), paths)
    found = []
    for path in paths:
        log_id = f"{CLUSTER}@{path.name}"
        rows = read_view(tables, log_id).rows
        found += [row_json(row) for row in rows if table_of(row.ENTITY) == OF_TOPIC[topic]]
    kind = "transactions" if topic == "__transaction_state" else OF_TOPIC[topic]
    expected = printed("state", f"{node}/{topic}-*", kind)
    for row in expected:
        row.pop("only_remote", None)
    assert expected
    assert sorted(map(json.dumps, found)) == sorted(map(json.dumps, expected))


def without_nulls(member: dict[str, Any]) -> dict[str, Any]:
    """Return a member as the command prints it."""
    parts = [
        {name: one[name] for name in one if one[name] is not None} for one in member["assignment"]
    ]
    return {name: member[name] for name in member if name[0] != "_"} | {"assignment": parts}


@pytest.mark.parametrize("path", sorted(GROUPS_NODE.glob("__consumer_offsets-*")), ids=str)
def test_groups_and_members_of_each_offset_are_those_of_a_replay(path: Path) -> None:
    """Each run continues from rows alone."""
    store = MemoryStore(MemoryTables())
    log = open_path(str(path), kind=LogKind.PARTITION)
    follow(store, [path], record_count_max=1)
    table = ArrowTables(store, f"{CLUSTER}@{path.name}")
    step = max(log.log_end_offset // 12, 1)
    for offset in range(log.log_end_offset - 1, -1, -step):
        view = table.at(offset=offset)
        groups = {row["group"]: row for row in view.groups().to_pylist()}
        members: dict[str, list[Any]] = {name: [] for name in groups}
        for member in view.group_members().to_pylist():
            assert member.pop("cluster_id") == CLUSTER
            members[member.pop("group")].append(without_nulls(member))
        expected = printed("state", path, "groups", "--at", str(offset + 1))
        assert {str(row["group"]): row["members"] for row in expected} == members
        for row in expected:
            found = groups[str(row["group"])]
            assert {name: found[name] for name in row if name != "members"} == {
                name: row[name] for name in row if name != "members"
            }
            assert found["member_count"] == len(members[str(row["group"])])


def test_an_aborted_commit_never_shows_and_an_open_one_when_it_has_ended(tmp_path: Path) -> None:
    log, tables = InternalLogFile(tmp_path / "__consumer_offsets-0"), MemoryTables()
    store = MemoryStore(tables)
    log.append(offset_commit("a", 1), offset_commit("b", 1))
    log.append(offset_commit("a", 2), producer_id=7)
    log.append(offset_commit("b", 2), producer_id=8)
    follow(store, [log.path])
    assert offsets_in(read_view(tables, LOG_ID).rows) == {"a": 1, "b": 1}
    pending = ArrowTables(store, LOG_ID).latest().pending_offsets()
    names = ("producer_id", "group", "offset", "record_offset")
    assert [tuple(row[name] for name in names) for row in pending.to_pylist()] == [
        *((7, "a", 2, 2), (8, "b", 2, 3))
    ]
    log.end(7, commit=False)
    log.append(offset_commit("c", 5))
    follow(store, [log.path])
    assert offsets_in(read_view(tables, LOG_ID).rows) == {"a": 1, "b": 1, "c": 5}
    log.end(8, commit=True)
    log.append(offset_commit("a", None))
    follow(store, [log.path])
    assert offsets_in(read_view(tables, LOG_ID).rows) == {"b": 2, "c": 5}
    table = ArrowTables(store, LOG_ID)
    assert table.latest().consumer_offsets()["cluster_id"].to_pylist() == [CLUSTER, CLUSTER]
    changes = table.changes(table="consumer_offsets").select(["offset", "op"]).to_pylist()
    assert [tuple(one.values()) for one in changes] == [
        *((0, "c"), (1, "c"), (5, "c"), (6, "u"), (7, "d"))
    ]
    at = [table.at(offset=end).consumer_offsets() for end in range(log.next_offset)]
    assert [
        dict(zip(one["group"].to_pylist(), one["offset"].to_pylist(), strict=True)) for one in at
    ] == [offsets_below(log.path, end + 1) for end in range(log.next_offset)]


@pytest.mark.parametrize("is_in_transaction", [True, False])
def test_a_simple_group_remains_when_its_only_pending_offset_is_committed(
    is_in_transaction: bool, tmp_path: Path
) -> None:
    log = InternalLogFile(tmp_path / "__consumer_offsets-0")
    log.append(offset_commit("a", 1), producer_id=7)
    if is_in_transaction:
        log.end(7, commit=True)
    else:
        log.append(offset_commit("a", 2))
    store = MemoryStore(MemoryTables())
    follow(store, [log.path])
    view = ArrowTables(store, LOG_ID).latest()
    assert [row["offset"] for row in view.consumer_offsets().to_pylist()] == [
        1 if is_in_transaction else 2
    ]
    (group,) = view.groups().to_pylist()
    assert (group["_offset"], group["_created_offset"]) == (0, 0)
    assert view.history("groups").num_rows == 1


def test_a_tombstone_of_a_simple_group_is_no_change(tmp_path: Path) -> None:
    log = InternalLogFile(tmp_path / "__consumer_offsets-0")
    deletion = GROUP_RECORDS.encode(KeyedRecord(GroupMetadataKey(group="a"), None, None))
    log.append(offset_commit("a", 1), deletion, deletion)
    store = MemoryStore(MemoryTables())
    follow(store, [log.path])
    view = ArrowTables(store, LOG_ID).latest()
    (group,) = view.groups().to_pylist()
    assert (group["_offset"], group["_created_offset"]) == (0, 0)
    assert view.history("groups").num_rows == 1


def test_the_past_of_a_partition_is_read_at_its_offsets(tmp_path: Path) -> None:
    log, tables = InternalLogFile(tmp_path / "__consumer_offsets-0"), MemoryTables()
    store = MemoryStore(tables)
    for offset in (10, 20, None, 30):
        log.append(offset_commit("g", offset))
    follow(store, [log.path], record_count_max=2)
    found = ArrowTables(store, LOG_ID)
    committed = [
        found.at(offset=at).consumer_offsets()["offset"].to_pylist()
        for at in range(log.next_offset)
    ]
    assert committed == [[10], [20], [], [30]]
    history = found.history("consumer_offsets").select(["offset", "valid_from", "valid_to"])
    assert sorted(tuple(one.values()) for one in history.to_pylist()) == [
        *((10, 0, 1), (20, 1, 2), (30, 3, None))
    ]
    names = ("consumer_offsets", "pending_offsets", "groups", "group_members")
    assert found.status().row_counts == dict(zip(names, (1, 0, 1, 0), strict=True))


@pytest.mark.parametrize("seed", nightly_except(range(3), range(12)))
def test_any_runs_and_batches_give_the_offsets_of_a_replay(seed: int, tmp_path: Path) -> None:
    rng = Random(seed)
    log, tables = InternalLogFile(tmp_path / "__consumer_offsets-0"), MemoryTables()
    open_producers: set[int] = set()
    for _ in range(6):
        for _ in range(rng.randrange(1, 8)):
            producer = rng.choice((-1, -1, 1, 2))
            if producer in open_producers and rng.random() < 0.5:
                log.end(producer, commit=rng.random() < 0.5)
                open_producers.discard(producer)
                continue
            records = [
                offset_commit(rng.choice("abc"), rng.choice((None, rng.randrange(100))))
                for _ in range(rng.randrange(1, 4))
            ]
            log.append(*records, producer_id=producer)
            if producer >= 0:
                open_producers.add(producer)
            if rng.random() < 0.3:  # compacted: offsets are missing
                log.next_offset += rng.randrange(3)
        follow(MemoryStore(tables), [log.path], record_count_max=rng.choice((1, 2, 5, 100)))
        if tables.contents:
            assert offsets_in(read_view(tables, LOG_ID).rows) == replayed(log.path)


def test_a_metadata_log_and_internal_logs_share_tables(tmp_path: Path) -> None:
    store = MemoryStore(MemoryTables())
    directory = copy_log(METADATA, tmp_path / "node" / METADATA.name, end_offset=100)
    cluster_id = open_path(str(directory)).cluster_id
    LogFollower(
        partial(open_path, str(directory)),
        store,
        FollowSettings(redactor=Redactor(), holdback_ms=0, is_once=True),
        log_event=ignore,
    ).run()
    follow(store, sorted(GROUPS_NODE.glob("__consumer_offsets-*")))
    found = ArrowTables(store)
    assert found.status().cluster_id == cluster_id
    assert found.latest().topics().num_rows
    assert found.latest().consumer_offsets().num_rows == 0
    assert "consumer_offsets" not in found.status().row_counts


def test_a_log_with_other_records_at_the_end_of_the_tables_is_refused(tmp_path: Path) -> None:
    log, tables = InternalLogFile(tmp_path / "a" / "__consumer_offsets-0"), MemoryTables()
    log.append(offset_commit("g", 1), offset_commit("g", 2))
    follow(MemoryStore(tables), [log.path])
    shutil.rmtree(log.path)
    other = InternalLogFile(log.path)
    other.append(offset_commit("g", 1), epoch_of_leader=3)
    other.append(offset_commit("g", 4), epoch_of_leader=3)
    with pytest.raises(ClustersFailedError) as caught:
        follow(MemoryStore(tables), [other.path])
    (failure,) = caught.value.failures.values()
    assert isinstance(failure, DivergedLogError)


def test_full_redaction_hides_what_clients_commit() -> None:
    texts = {}
    for full in (False, True):
        tables = MemoryTables()
        paths = sorted(GROUPS_NODE.glob("__consumer_offsets-*"))
        follow(MemoryStore(tables), paths, redactor=Redactor(full=full))
        texts[full] = str(tables.contents)
    assert "note of orders-0" in texts[False]
    assert "note of orders-0" not in texts[True]


def test_the_state_of_a_partition_is_an_arrow_table() -> None:
    path = GROUPS_NODE / "__consumer_offsets-1"
    state = read_state(str(path))
    found = state.consumer_offsets()
    assert found.schema.names[:3] == ["cluster_id", "group", "topic"]
    expected = {(row["group"], row["offset"]) for row in printed("state", path, "consumer_offsets")}
    assert {*zip(found["group"].to_pylist(), found["offset"].to_pylist(), strict=True)} == expected
    assert read_state(str(path), at=0).consumer_offsets().num_rows == 0
    with pytest.raises(OptionError, match="no table topics; read the state of the metadata log"):
        state.topics()
    with pytest.raises(OptionError, match="no table consumer_offsets; read the state of a part"):
        read_state(str(METADATA)).consumer_offsets()


def test_the_command_follows_a_pattern_of_partitions(tmp_path: Path) -> None:
    place = tmp_path / "tables"
    pattern = f"{GROUPS_NODE}/__consumer_offsets-*"
    call: list[Any] = ["tables", "follow", pattern, place, "--once", "--tail-holdback-ms", "0"]
    status, _, err = run(*call)
    assert (status, "--cluster-id: is required" in err) == (2, True)
    for _ in range(2):
        status, _, err = run(*call, "--cluster-id", CLUSTER)
        assert (status, err.count("is not followed")) == (0, 0), err
    assert run("tables", "maintain", place)[0] == 0
    found: dict[str, list[Any]] = {}
    for row in printed("tables", "status", place):
        assert row["group"] == f"{CLUSTER}/{CONSUMER_OFFSETS}"
        table = open_tables(str(place), cluster_id=row["cluster_id"]).latest().consumer_offsets()
        for one in table.to_pylist():
            found.setdefault(one["group"], []).append(
                [one["topic"], one["partition"], one["offset"], one["metadata"]]
            )
    admin = json.loads((GROUPS_NODE.parent / "admin.json").read_text())
    assert {group: sorted(one) for group, one in found.items()} == {
        group: sorted(one) for group, one in admin["offsets"].items()
    }


def test_a_pattern_without_partitions_and_an_ordinary_partition_are_refused(tmp_path: Path) -> None:
    call = ("tables", "follow", f"{tmp_path}/__consumer_offsets-*", tmp_path / "tables", "--once")
    status, _, err = run(*call)
    assert (status, "RAFTLOG_LOG_NOT_FOUND" in err) == (2, True)
    log = InternalLogFile(tmp_path / "orders-0")
    log.append((b"k", b"v"))
    status, _, err = run("tables", "follow", log.path, tmp_path / "tables", "--once")
    assert (status, NotALogError.__name__ in err or "RAFTLOG_NOT_A_LOG" in err) == (2, True)


def test_a_leader_epoch_may_be_compacted_away(tmp_path: Path) -> None:
    log, tables = InternalLogFile(tmp_path / "a" / "__consumer_offsets-0"), MemoryTables()
    log.append(offset_commit("old", 1), epoch_of_leader=1)
    log.append(offset_commit("g", 1), epoch_of_leader=2)
    follow(MemoryStore(tables), [log.path])
    shutil.rmtree(log.path)
    compacted = InternalLogFile(log.path)
    compacted.append(offset_commit("old", 1), epoch_of_leader=1)
    compacted.next_offset = 5
    compacted.append(offset_commit("g", 7), epoch_of_leader=3)
    follow(MemoryStore(tables), [log.path])
    assert offsets_in(read_view(tables, LOG_ID).rows) == {"old": 1, "g": 7}


def test_a_log_that_continues_in_an_earlier_epoch_is_refused(tmp_path: Path) -> None:
    log, tables = InternalLogFile(tmp_path / "a" / "__consumer_offsets-0"), MemoryTables()
    log.append(offset_commit("g", 1), epoch_of_leader=1)
    log.append(offset_commit("g", 2), epoch_of_leader=3)
    follow(MemoryStore(tables), [log.path])
    shutil.rmtree(log.path)
    other = InternalLogFile(log.path)
    for offset in (1, 4, 5):
        other.append(offset_commit("g", offset), epoch_of_leader=2)
    with pytest.raises(ClustersFailedError) as caught:
        follow(MemoryStore(tables), [log.path])
    (failure,) = caught.value.failures.values()
    assert isinstance(failure, DivergedLogError)
    assert offsets_in(read_view(tables, LOG_ID).rows) == {"g": 2}


def test_empty_batches_do_not_end_a_follower(tmp_path: Path) -> None:
    log, tables = InternalLogFile(tmp_path / "__consumer_offsets-0"), MemoryTables()
    log.append(offset_commit("a", 1))
    log.append_empty(3)
    log.append(offset_commit("b", 1), offset_commit("c", 1))
    for _ in range(2):
        follow(MemoryStore(tables), [log.path], record_count_max=1)
    assert offsets_in(read_view(tables, LOG_ID).rows) == {"a": 1, "b": 1, "c": 1}


def reasons_for_gap(log: InternalLogFile, what: str) -> None:
    """Delete the records up to offset 6, or only those of offset 2 and 3."""
    shutil.rmtree(log.path)
    start_offset = 7 if what == "start" else 1
    later = InternalLogFile(log.path, start_offset=start_offset)
    if what == "compaction":
        later.append(offset_commit("g", 1))
        later.next_offset = 7
    later.append(offset_commit("g", 5), offset_commit("new", 1), epoch_of_leader=1)
    log.next_offset = later.next_offset


@pytest.mark.parametrize("what", ["start", "compaction"])
def test_tables_that_missed_deleted_records_get_the_state_of_the_whole_log(
    what: str, tmp_path: Path
) -> None:
    """Of the records that were deleted, one may have been the tombstone of ``deleted``."""
    log, tables = InternalLogFile(tmp_path / "__consumer_offsets-0"), MemoryTables()
    store = MemoryStore(tables)
    log.append(offset_commit("deleted", 1), offset_commit("g", 1))
    follow(store, [log.path])
    reasons_for_gap(log, what)
    for _ in range(2):
        follow(store, [log.path])
        assert offsets_in(read_view(tables, LOG_ID).rows) == {"g": 5, "new": 1}
    found = ArrowTables(store, LOG_ID)
    assert found.status().gaps == ((2, 8),)
    assert sorted(found.latest().groups()["group"].to_pylist()) == ["g", "new"]
    assert found.at(offset=1).consumer_offsets().num_rows == 2
    with pytest.raises(TablesError, match="no history at offset 5"):
        found.at(offset=5)
    changes = found.changes(table="consumer_offsets").select(["offset", "op", "key"]).to_pylist()
    assert sorted((one["offset"], one["op"], json.loads(one["key"])[0]) for one in changes) == [
        *((0, "c", "deleted"), (1, "c", "g")),
        *((8, "d", "deleted"), (8, "r", "g"), (8, "r", "new")),
    ]
    epochs = found.latest().epochs().select(["leader_epoch", "start_offset", "end_offset"])
    assert [tuple(one.values()) for one in epochs.to_pylist()] == [(0, 0, 7), (1, 7, None)]
    log.append(offset_commit("later", 1), epoch_of_leader=1)
    follow(store, [log.path])
    assert found.status().gaps == ((2, 8),)
    assert found.at(offset=8).consumer_offsets().num_rows == 2


def test_tables_that_are_truncated_while_they_are_written_get_the_records_again(
    tmp_path: Path,
) -> None:
    log, store = InternalLogFile(tmp_path / "__consumer_offsets-0"), MemoryStore(MemoryTables())
    clock = StoppedClock()
    follower = GroupFollower(
        {"log": partial(open_path, str(log.path))},
        store,
        replace(settings_of(), is_once=False),
        group="offsets",
        clock=clock.as_clock(),
        log_event=ignore,
    )
    log.append(*(offset_commit("g", value) for value in range(4)))
    assert follower.append_round() == 1
    Writer(store, cluster_id=LOG_ID).truncate_to(1)
    log.append(offset_commit("h", 9))
    assert follower.append_round() == 0
    clock.sleep_ms(60_000)
    assert follower.append_round() == 1
    found = ArrowTables(store, LOG_ID)
    assert [found.at(offset=2).consumer_offsets()["offset"].to_pylist()] == [[2]]
    assert sorted(found.latest().consumer_offsets()["offset"].to_pylist()) == [3, 9]


def test_tables_that_are_truncated_after_the_first_load_may_have_missed_deleted_records(
    tmp_path: Path,
) -> None:
    """One that is not the first load has no ``delete.retention.ms`` for what it continues."""
    path, store = tmp_path / "__consumer_offsets-0", MemoryStore(MemoryTables())
    log, clock = InternalLogFile(path), StoppedClock()
    follower = GroupFollower(
        {"log": partial(open_path, str(path))},
        store,
        replace(settings_of(), is_once=False),
        group="offsets",
        clock=clock.as_clock(),
        log_event=ignore,
    )
    log.append(offset_commit("deleted", 1), offset_commit("g", 1), offset_commit("deleted", None))
    log.append(offset_commit("g", 3))
    assert [follower.append_round() for _ in range(2)] == [1, None]
    Writer(store, cluster_id=LOG_ID).truncate_to(1)
    shutil.rmtree(path)
    compacted = InternalLogFile(path)
    compacted.next_offset = 3
    compacted.append(offset_commit("g", 3), offset_commit("h", 4))
    for _ in range(3):
        follower.append_round()
        clock.sleep_ms(60_000)
    found = ArrowTables(store, LOG_ID).latest().consumer_offsets()
    assert sorted(found["group"].to_pylist()) == ["g", "h"]


def test_rows_that_a_whole_log_does_not_change_are_no_changes(tmp_path: Path) -> None:
    log, store = InternalLogFile(tmp_path / "__consumer_offsets-0"), MemoryStore(MemoryTables())
    log.append(offset_commit("same", 3), offset_commit("g", 1))
    follow(store, [log.path])
    log.next_offset = 5
    log.append(offset_commit("g", 2))
    follow(store, [log.path])
    found = ArrowTables(store, LOG_ID)
    assert found.status().gaps == ((2, 5),)
    changes = found.changes(table="consumer_offsets").select(["offset", "key"]).to_pylist()
    assert [(one["offset"], json.loads(one["key"])[0]) for one in changes] == [
        *((0, "same"), (1, "g"), (5, "g"))
    ]


def test_the_first_load_of_a_compacted_log_has_its_history(tmp_path: Path) -> None:
    log, store = InternalLogFile(tmp_path / "__consumer_offsets-0", 3), MemoryStore(MemoryTables())
    for offset in range(1, 5):
        log.append(offset_commit("g", offset))
        log.next_offset += 2
    follow(store, [log.path], record_count_max=1)
    found = ArrowTables(store, LOG_ID)
    assert found.status().gaps == ()
    offsets = found.history("consumer_offsets").select(["valid_from", "offset"]).to_pylist()
    assert sorted(tuple(one.values()) for one in offsets) == [(3, 1), (6, 2), (9, 3), (12, 4)]


def test_share_partitions_below_the_start_of_their_log_are_no_rows(tmp_path: Path) -> None:
    """The share coordinator deletes records below the snapshots of all share partitions."""
    log = InternalLogFile(tmp_path / "__share_group_state-0")
    store = MemoryStore(MemoryTables())
    log.append(share_snapshot("a", 1), share_snapshot("b", 1), share_snapshot("a", 2))
    follow(store, [log.path])
    shutil.rmtree(log.path)
    later = InternalLogFile(log.path, start_offset=9)
    later.append(share_snapshot("a", 7), share_snapshot("c", 8))
    follow(store, [later.path])
    rows = ArrowTables(store, log_id_of(CLUSTER, SHARE_GROUP_STATE, 0)).latest().share_partitions()
    found = zip(rows["group"].to_pylist(), rows["start_offset"].to_pylist(), strict=True)
    assert sorted(found) == [("a", 7), ("c", 8)]


@pytest.mark.parametrize("seed", nightly_except(range(4), range(20)))
def test_a_follower_that_is_stopped_has_the_state_of_what_is_left(
    seed: int, tmp_path: Path
) -> None:
    """Each time it runs, the log was compacted or its start was moved, or neither."""
    rng = Random(seed)
    path, tables = tmp_path / "__consumer_offsets-0", MemoryTables()
    written: list[tuple[int, tuple[bytes | None, bytes | None]]] = []
    end, start = 0, 0
    for _ in range(6):
        for _ in range(rng.randrange(1, 10)):
            written.append((end, offset_commit(rng.choice("abcd"), rng.choice((None, end)))))
            end += 1
        if rng.random() < 0.5:  # all of the last records of keys are above the start
            last = {record[0]: offset for offset, record in written}
            start = rng.randrange(start, min(last.values(), default=start) + 1)
            written = [one for one in written if one[0] >= start]
        if rng.random() < 0.5:
            last = {record[0]: offset for offset, record in written}
            written = [
                (offset, record)
                for offset, record in written
                if offset == end - 1 or (record[1] is not None and last[record[0]] == offset)
            ]
        shutil.rmtree(path, ignore_errors=True)
        log = InternalLogFile(path, start_offset=start)
        for offset, record in written:
            log.next_offset = offset
            log.append(record)
        follow(MemoryStore(tables), [path], record_count_max=rng.choice((1, 3, 100)))
        assert offsets_in(read_view(tables, LOG_ID).rows) == replayed(path)


def test_leader_epochs_have_the_id_of_their_log_and_other_rows_that_of_the_cluster(
    tmp_path: Path,
) -> None:
    """In SQL: ``test_cluster_group_spark.py``. Each log of a cluster has an epoch 0."""
    log, store = InternalLogFile(tmp_path / "__consumer_offsets-0"), MemoryStore(MemoryTables())
    log.append(offset_commit("g", 1), offset_commit("g", 2))
    follow(store, [log.path])
    tables = ArrowTables(store, LOG_ID)
    view = tables.latest()
    for rows in (view.epochs(), view.history("epochs"), tables.changes(), tables.diff(0, 1)):
        assert {*rows["cluster_id"].to_pylist()} == {LOG_ID}
    for rows in (view.consumer_offsets(), view.history("consumer_offsets"), view.groups()):
        assert {*rows["cluster_id"].to_pylist()} == {CLUSTER}


def test_a_single_writer_refuses_an_internal_log(tmp_path: Path) -> None:
    log = InternalLogFile(tmp_path / "__consumer_offsets-0")
    log.append(offset_commit("a", 1))
    segment = next(log.path.iterdir())
    call: list[Any] = ["tables", "follow", segment, tmp_path / "tables", "--once"]
    status, _, err = run(*call, "--cluster-id", CLUSTER, "--tail-holdback-ms", "0")
    assert (status, "RAFTLOG_NOT_A_LOG" in err) == (2, True)
    assert not (tmp_path / "tables" / "changes").exists()


def test_an_internal_log_has_no_image_and_counts_its_own_rows(tmp_path: Path) -> None:
    log, tables = InternalLogFile(tmp_path / "__consumer_offsets-0"), MemoryTables()
    log.append(offset_commit("a", 1), offset_commit("a", None))
    follow(MemoryStore(tables), [log.path])
    found = ArrowTables(MemoryStore(tables), LOG_ID)
    assert {*found.status().row_counts.values()} == {0}
    assert "topics" not in found.status().row_counts
    with pytest.raises(TablesError, match="no metadata log, for which an image is"):
        found.image()
    with pytest.raises(TablesError, match="no metadata log, for which a replay is"):
        found.record_changes(-1, 1)
