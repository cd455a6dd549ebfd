"""Tables read as Arrow equal a replay, whatever was merged, truncated or expired before.

``RAFTLOG_READER_SEEDS=1000`` sets the number of random histories.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.support.memory_store import MemoryStore, MemoryTables
from tests.support.metadata_logs import MetadataLog, at
from tests.support.small_logs import TIME_MS, LogWriter
from tests.support.source_rows import checkpoint_rows, source_rows, without_secrets
from tests.support.sweep_size import nightly_except

from raftlog.client import open_path
from raftlog.client.offset_spec import OffsetSpec, OffsetSpecKind, resolve
from raftlog.clock import Clock
from raftlog.errors import OffsetOutOfRangeError, OptionError
from raftlog.records.batch_columns import Scan
from raftlog_state.errors import ConcurrentWriterError, TablesError
from raftlog_state.image import ConfigRow, MetadataImage
from raftlog_state.image.delta import key_json
from raftlog_state.image.entity_names import matching, row_filters
from raftlog_state.image.rows import Entity, Key, Row, table_of
from raftlog_state.loader.metadata_loader import LogRecord, MetadataLoader
from raftlog_state.log_changes import logged
from raftlog_state.records import (
    BeginTransactionRecord,
    ConfigRecord,
    DecodedRecord,
    EndTransactionRecord,
    NoOpRecord,
    encode,
)
from raftlog_state.tables import reader
from raftlog_state.tables.convert import rows_of
from raftlog_state.tables.reader import OFFSETS_READ, ArrowTables
from raftlog_state.tables.reader import to_micros as micros_at
from raftlog_state.tables.schema import (
    BY_NAME,
    CHANGES_TABLE,
    CLUSTER_ID,
    LOG_TABLE,
    METADATA_TABLES,
    ORIGIN_COLUMNS,
    TYPED_TABLES,
)
from raftlog_state.tables.selection import key_text
from raftlog_state.tables.writer import Writer

END = 300
NAMED = (
    ("topic", "orders-0", False),
    ("topic", "orders-0", True),
    ("config", "topic/orders-0/max.message.bytes", False),
    ("broker", "1", False),
    ("quota", "user/orders", False),
    ("acl", None, False),
    ("partition", "orders-0/1", False),
)
SEEDS = int(os.environ.get("RAFTLOG_READER_SEEDS", "4"))


class Replayed:
    """Rows of a log, and the state after each offset that is outside a transaction."""

    def __init__(self, log: MetadataLog) -> None:
        self.log = log
        self.rows = source_rows(log.records[:END])
        self.images: dict[int, MetadataImage] = {}
        loader = MetadataLoader()
        for record in without_secrets(log.records[:END]):
            loader.append([record])
            if loader.open_transaction_offset is None:
                self.images[record.offset] = loader.image

    def range(self, start_offset: int, end_offset: int) -> pa.Table:
        return self.rows.slice(start_offset, end_offset - start_offset)


@pytest.fixture(scope="module")
def replayed(three_nodes: MetadataLog) -> Replayed:
    return Replayed(three_nodes)


@pytest.fixture(scope="module")
def written(replayed: Replayed) -> MemoryTables:
    """Return tables whose ``state`` is older than ``changes``. They are not changed."""
    tables = MemoryTables()
    writer = Writer(MemoryStore(tables))
    writer.apply(replayed.range(0, 200), "cluster-a")
    writer.merge_state()
    writer.apply(replayed.range(200, END), None)
    return tables


def open_memory(tables: MemoryTables, now_ms: int = 0) -> ArrowTables:
    return ArrowTables(MemoryStore(tables), clock=Clock(wall_ms=lambda: now_ms))


def rows_at(image: MetadataImage, entity: Entity) -> dict[Key, Row]:
    return dict(image.map(entity))


def check_view(opened: ArrowTables, image: MetadataImage, offset: int) -> None:
    """Compare all typed tables after an offset with a replay."""
    view = opened.at(offset=offset)
    for table in TYPED_TABLES:
        found = view.table(table.name)
        assert found.schema == pa.schema(
            {CLUSTER_ID: pa.string(), **table.columns, **ORIGIN_COLUMNS}
        )
        rows = rows_of(table.entity, found)
        assert len(rows) == len(image.map(table.entity))
        assert {row.key: row for row in rows} == rows_at(image, table.entity)


def check_difference(opened: ArrowTables, replayed: Replayed, since: int, until: int) -> None:
    """Compare a difference with those of two images."""
    found = opened.diff(since, until).to_pylist()
    expected = {}
    for entity in Entity:
        before, after = (rows_at(replayed.images[at], entity) for at in (since, until))
        for key in before.keys() | after.keys():
            if before.get(key) != after.get(key):
                op = "c" if key not in before else "d" if key not in after else "u"
                expected[str(entity), key_json(key)] = op
    assert {(row["entity"], row["key"]): row["op"] for row in found} == expected
    assert len(found) == len(expected)
    for row in found:
        sides = [row[side] and row[side][row["entity"]] for side in ("before", "after")]
        names = [] if None in sides else list(sides[0])
        assert row["changed"] == [name for name in names if sides[0][name] != sides[1][name]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds",
    [range(1), pytest.param(range(1, SEEDS), marks=pytest.mark.nightly)],
    ids=["some", "many"],
)
def test_states_and_differences_equal_a_replay(replayed: Replayed, seeds: range) -> None:
    for seed in seeds:
        chance, tables = random.Random(seed), MemoryTables()
        writer = Writer(MemoryStore(tables))
        while writer.progress().next_offset < END - 100:
            next_offset = writer.progress().next_offset
            what = chance.choice(("apply", "apply", "apply", "merge", "truncate"))
            if what == "merge":
                writer.merge_state()
            elif what == "truncate" and next_offset > 30:
                writer.truncate_to(next_offset - chance.randint(1, 20))
            else:
                end_offset = min(END, next_offset + chance.randint(1, 60))
                writer.apply(replayed.range(next_offset, end_offset), "cluster-a")
        opened = open_memory(tables)
        offsets = [offset for offset in replayed.images if offset <= opened.latest().offset]
        for offset in (offsets[-1], *chance.choices(offsets, k=3)):
            check_view(opened, replayed.images[offset], offset)
        for _ in range(2):
            since, until = sorted(chance.choices(offsets, k=2))
            check_difference(opened, replayed, since, until)


def test_the_history_has_each_version_in_its_interval(
    replayed: Replayed, written: MemoryTables
) -> None:
    opened, closed_count = open_memory(written), 0
    offsets = sorted(replayed.images)
    for entity in (Entity.TOPIC, Entity.PARTITION, Entity.BROKER, Entity.CONFIG):
        found = opened.history(table_of(entity))
        expected, previous = set(), MetadataImage()
        for offset in offsets:
            image = replayed.images[offset]
            for key, row in image.map(entity).items():
                if previous.get(entity, key) is not row:
                    expected.add((key, offset))
            previous = image
        rows = rows_of(entity, found)
        froms, tos = found["valid_from"].to_pylist(), found["valid_to"].to_pylist()
        assert {(row.key, start) for row, start in zip(rows, froms, strict=True)} == expected
        for row, start, end in zip(rows, froms, tos, strict=True):
            closed_count += end is not None
            last = max(offset for offset in offsets if end is None or offset < end)
            assert replayed.images[start].get(entity, row.key) == row
            assert replayed.images[last].get(entity, row.key) == row
    assert closed_count > 20


def test_the_history_has_no_version_that_a_transaction_replaced() -> None:
    config = partial(ConfigRecord, resource_type=2, resource_name="orders", name="retention.ms")
    values = (
        config(value="1"),
        BeginTransactionRecord(),
        config(value="2"),
        config(value="3"),
        EndTransactionRecord(),
    )
    tables = MemoryTables()
    Writer(MemoryStore(tables)).apply(source_rows(at(0, *values)), None)
    found = open_memory(tables).history("configs")
    versions = found.select(["value", "valid_from", "valid_to"]).to_pylist()
    assert sorted(tuple(version.values()) for version in versions if version["valid_to"]) == [
        ("1", 0, 4)
    ]
    assert [version["value"] for version in versions if version["valid_to"] is None] == ["3"]


def test_a_view_is_fixed_while_the_tables_advance(replayed: Replayed) -> None:
    tables = MemoryTables()
    writer = Writer(MemoryStore(tables))
    writer.apply(replayed.range(0, 150), None)
    opened = open_memory(tables)
    view = opened.latest()
    before = {name: view.table(name) for name in (*BY_NAME, "changes", "log")}
    writer.apply(replayed.range(150, END), None)
    writer.merge_state()
    writer.compact()
    writer.truncate_to(100)
    for name, rows in before.items():
        assert view.table(name).equals(rows)
    assert view.topics().equals(before["topics"])
    assert opened.latest().offset == 100
    check_view(opened, replayed.images[100], 100)
    assert pc.max(opened.latest().table("log")["offset"]).as_py() == 100


def test_changes_are_found_by_table_key_name_range_and_time(
    replayed: Replayed, written: MemoryTables
) -> None:
    opened = open_memory(written)
    everything = opened.changes()
    assert everything.schema == CHANGES_TABLE.schema
    assert "progress" not in everything["entity"].to_pylist()
    order = everything.select(["visible_offset", "offset", "seq"])
    assert order.equals(order.sort_by([(name, "ascending") for name in order.column_names]))
    part = opened.changes(table="partitions", since=120, until=260)
    assert set(part["entity"].to_pylist()) == {"partition"}
    offsets = part["visible_offset"].to_pylist()
    assert 120 < min(offsets) <= max(offsets) <= 260
    key = part["key"][0].as_py()
    (one,) = {row["key"] for row in opened.changes(key=key).to_pylist()}
    assert one == key
    for entity, name, partitions in NAMED:
        filters = row_filters(entity, name, partitions=partitions)
        loader = MetadataLoader()
        changes = matching(loader.append(without_secrets(replayed.log.records[:END])), filters)
        expected = [
            (one.offset, one.change.key_json, str(one.change.op)) for one in logged(changes)
        ]
        found = opened.changes(entity=entity, name=name, partitions=partitions)
        rows = found.select(["offset", "key", "op"]).to_pylist()
        assert [tuple(row.values()) for row in rows] == expected != []
    brokers = opened.changes(table="brokers", key=1)
    assert set(brokers["key"].to_pylist()) == {"[1]"}
    moment = everything["log_time"][100].as_py()
    later = opened.changes(since=moment)
    assert pc.min(later["visible_offset"]).as_py() == opened.at(time=moment).offset + 1
    assert min(later["log_time"].to_pylist()) == moment


def test_a_time_is_the_state_before_the_first_record_not_earlier(
    three_nodes: MetadataLog, written: MemoryTables
) -> None:
    times = [record.timestamp_ms for record in three_nodes.records[:END]]
    expected = next(offset for offset, time in enumerate(times) if time >= times[150]) - 1
    opened = open_memory(written, times[150] + 7_000)
    moment = datetime.fromtimestamp(times[150] / 1000, UTC)
    local = moment.astimezone()
    texts = (
        *(moment.isoformat(), local.isoformat(), moment.replace(tzinfo=None).isoformat()),
        *(str(times[150]), f"timestamp:{times[150]}", "-7s"),
    )
    for time in (moment, *texts, local.replace(tzinfo=None)):
        assert opened.at(time=time).offset == expected
    assert opened.at(time=moment + timedelta(days=9)).offset == END - 1
    for early in ("1999-12-31T23:59:59+01:00", f"timestamp:{times[0]}"):
        with pytest.raises(TablesError, match="none of their records is earlier than the time"):
            opened.at(time=early)


@pytest.mark.parametrize("offsets_read", nightly_except((7,), (1, 7, OFFSETS_READ)))
@pytest.mark.parametrize("writes_log", [True, False])
def test_a_time_is_that_of_the_log_although_clocks_go_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes_log: bool, offsets_read: int
) -> None:
    """The clock of the leader of epoch 2 is 60 s slow; without ``log`` only changes are known."""
    monkeypatch.setattr(reader, "OFFSETS_READ", offsets_read)
    random_times, tables = random.Random(19), MemoryTables()
    log_writer = LogWriter(tmp_path / "__cluster_metadata-0")
    writer = Writer(MemoryStore(tables), writes_log=writes_log)
    images: dict[int, MetadataImage] = {}
    loader, records = MetadataLoader(), list[LogRecord]()
    for offset in range(60):
        epoch = 1 + offset // 20
        last_ms = 1_000 * offset - (60_000 if epoch == 2 else 0) + random_times.randrange(3_000)
        last_ms += TIME_MS
        config = ConfigRecord(
            resource_type=2, resource_name="a", name="retention.ms", value=str(offset)
        )
        is_change = not writes_log or random_times.random() < 0.5
        written = DecodedRecord(0, config if is_change else NoOpRecord())
        record = LogRecord(offset, epoch, last_ms, written)
        log_writer.append(encode(written), epoch=epoch, timestamp_ms=last_ms)
        records.append(record)
        loader.append([record])
        images[offset] = loader.image
    for at_offset in range(0, 60, 12):
        writer.apply(source_rows(records[at_offset : at_offset + 12]), "cluster-a")
    log, opened = open_path(str(tmp_path)), open_memory(tables)
    all_times = {record_ms for scan in log.scan(0, 60) for record_ms in times_of(scan)}
    for time_ms in sorted({*all_times, *(one + 1 for one in all_times)}):
        spec = OffsetSpec(OffsetSpecKind.TIME, time_ms)
        end = resolve(spec, log, now_ms=0, read_end=lambda: 60).offset
        if end == 0:
            with pytest.raises(TablesError, match="earlier than the time"):
                opened.at(time=f"timestamp:{time_ms}")
            continue
        view = opened.at(time=f"timestamp:{time_ms}")
        assert view.offset == end - 1
        values = view.table("configs")["value"].to_pylist()
        assert values == [row.value for row in images[end - 1].rows_of(ConfigRow)]


def times_of(scan: Scan) -> list[int]:
    assert scan.records.timestamp_ms is not None
    return [int(one) for one in scan.records.timestamp_ms.to_pylist()]


def test_a_word_is_the_state_before_an_epoch_or_at_an_end(
    three_nodes: MetadataLog,
) -> None:
    tables, second = MemoryTables(), 721
    assert [three_nodes.records[at].leader_epoch for at in (second - 1, second)] == [1, 2]
    Writer(MemoryStore(tables)).apply(source_rows(three_nodes.records[: second + 9]), "cluster-a")
    opened = open_memory(tables)
    assert opened.at(time="epoch:2").offset == second - 1
    assert opened.at(time="end").offset == opened.at(time="latest").offset == second + 8
    assert opened.at(time="start").offset == opened.status().oldest_offset
    since = opened.changes(since="epoch:2")["visible_offset"]
    assert since.to_pylist() == [
        offset for offset in opened.changes()["visible_offset"].to_pylist() if offset >= second
    ]
    with pytest.raises(TablesError, match="the start of leader epoch 9 is unknown"):
        opened.at(time="epoch:9")
    with pytest.raises(OptionError, match="tables have no snapshots"):
        opened.at(time="snapshot")


def test_microseconds_of_times() -> None:
    to_micros = partial(micros_at, now_ms=90_000)
    assert to_micros("-1m") == 30_000_000
    assert to_micros("1970-01-01 00:00:01") == 1_000_000
    assert to_micros("1970-01-01T00:00:00Z") == 0
    assert to_micros("1969-12-31T23:59:59.999999Z") == -1
    assert to_micros("2026-11-21T03:12:00.5+01:00") == 1_795_227_120_500_000
    assert to_micros("yesterday") is None
    late = datetime.max.replace(tzinfo=timezone(-timedelta(hours=1)))
    assert to_micros(late) is None, "its year is 10000 in UTC"


@pytest.mark.parametrize("offset", [0, 40, 150, 199, 230, END - 1])
def test_an_image_is_the_replayed_state(
    replayed: Replayed, written: MemoryTables, offset: int
) -> None:
    image, expected = open_memory(written).image(offset), replayed.images[offset]
    assert image.same_rows(expected)
    assert image.map(Entity.EPOCH) == expected.map(Entity.EPOCH)
    assert (image.offset, image.leader_epoch) == (offset, expected.leader_epoch)
    assert image.quorum == expected.quorum
    assert image.timestamp_ms <= expected.timestamp_ms


def test_there_is_no_image_inside_a_transaction() -> None:
    config = ConfigRecord(resource_type=2, resource_name="a", name="retention.ms", value="1")
    later = replace(config, value="2")
    records = at(0, config, BeginTransactionRecord(name="t"), later, EndTransactionRecord())
    tables = MemoryTables()
    Writer(MemoryStore(tables)).apply(source_rows(records), "cluster-a")
    opened = open_memory(tables)
    for offset in (1, 2):
        with pytest.raises(TablesError, match="inside the metadata transaction that begins at 1"):
            opened.image(offset)
    values = [[row.value for row in opened.image(one).rows_of(ConfigRow)] for one in (0, 3)]
    assert values == [["1"], ["2"]]


def test_states_that_cannot_be_read_are_refused(
    replayed: Replayed, three_nodes: MetadataLog, written: MemoryTables
) -> None:
    opened: Any = open_memory(written)
    calls: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: opened.at(), "exactly one"),
        (lambda: opened.at(offset=1, time="2026-11-21"), "exactly one"),
        (lambda: opened.at(offset="1"), "must be an integer"),
        (lambda: opened.at(time="soon"), "must be a time"),
        (lambda: opened.diff(20, 10), "offset 20 is after offset 10"),
    )
    for call, words in calls:
        with pytest.raises(OptionError, match=words):
            call()
    for offset in (-1, END):
        with pytest.raises(OffsetOutOfRangeError):
            opened.at(offset=offset)
    for call in (opened.latest().table, opened.history):
        with pytest.raises(TablesError, match="unknown table nothing"):
            call("nothing")
    empty = open_memory(MemoryTables())
    with pytest.raises(TablesError, match="nothing was published yet"):
        empty.latest()
    assert ArrowTables(MemoryStore(MemoryTables()), "named").status().cluster_id == "named"
    status = empty.status()
    assert (status.offset, status.log_offset, status.oldest_offset) == (-1, -1, None)

    tables = MemoryTables()
    writer = Writer(MemoryStore(tables), writes_log=False)
    checkpoint = three_nodes.checkpoints[0]
    snapshot_id = checkpoint.snapshot_id
    rows = checkpoint_rows(
        checkpoint.log_records(),
        end_offset=snapshot_id.end_offset,
        epoch=snapshot_id.epoch,
        timestamp_ms=5,
    )
    writer.apply(rows, None)
    opened = open_memory(tables)
    last = snapshot_id.end_offset - 1
    assert opened.status().gaps == ((0, last),)
    assert opened.status().log_offset == -1
    assert len(opened.latest().topics()) > 0
    with pytest.raises(OffsetOutOfRangeError):
        opened.at(offset=last - 1)
    with pytest.raises(TablesError, match="no table log"):
        opened.latest().table("log")


def test_the_status_names_the_end_of_changes_and_of_log(
    replayed: Replayed, written: MemoryTables
) -> None:
    status = open_memory(written).status()
    assert (status.offset, status.log_offset, status.oldest_offset) == (END - 1, END - 1, 0)
    assert (status.cluster_id, status.incarnation) == ("cluster-a", 0)
    image = replayed.images[END - 1]
    counts = {table.name: len(image.map(table.entity)) for table in METADATA_TABLES}
    assert status.row_counts == counts
    ahead = MemoryTables(dict(written.contents))
    log = ahead.contents[LOG_TABLE.name]
    ahead.contents[LOG_TABLE.name] = log.filter(pc.less(log["offset"], 50))
    assert open_memory(ahead).status().log_offset == 49


def test_a_view_whose_files_were_deleted_says_to_read_again(replayed: Replayed) -> None:
    tables = MemoryTables()
    writer = Writer(MemoryStore(tables))
    writer.apply(replayed.range(0, 200), "cluster-a")
    writer.merge_state()
    opened = open_memory(tables)
    view = opened.latest()
    writer.apply(replayed.range(200, END), None)
    writer.merge_state()
    writer.vacuum()
    with pytest.raises(ConcurrentWriterError, match="; read the tables again; if that fails too, "):
        view.topics()
    check_view(opened, replayed.images[END - 1], END - 1)


def test_a_key_may_be_a_name_that_begins_like_json() -> None:
    for name in ("[eu] orders", '["a"', "["):
        assert key_text(name) == key_json([name])
    assert key_text(["[1]"]) == '["[1]"]'
    assert key_text('[ "a", 1 ]') == key_text(["a", 1]) == '["a",1]'
    assert key_text("[]") == "[]"


def test_states_before_an_expiry_are_refused(replayed: Replayed) -> None:
    tables = MemoryTables()
    writer = Writer(MemoryStore(tables))
    writer.apply(replayed.range(0, END), None)
    writer.expire(150)
    opened = open_memory(tables)
    assert opened.status().oldest_offset == 150
    check_view(opened, replayed.images[150], 150)
    check_view(opened, replayed.images[END - 1], END - 1)
    with pytest.raises(OffsetOutOfRangeError):
        opened.at(offset=149)
