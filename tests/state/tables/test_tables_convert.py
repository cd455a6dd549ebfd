"""Rows and columns of the tables: the same as row by row, and the same rows back."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.metadata_logs import CLUSTERS, MetadataLog, at, metadata_log, restored
from tests.support.random_metadata import RandomLog
from tests.support.row_wise_tables import plain_row, row_wise_changes
from tests.support.sweep_size import nightly_except

from raftlog_state.image.delta import Op, RecordChanges, RowChange
from raftlog_state.image.row_schema import Kind, Parts, Special, row_schema
from raftlog_state.image.rows import (
    ROW_TYPES,
    ConfigRow,
    Entity,
    QuotaRow,
    Row,
    TokenRow,
)
from raftlog_state.loader.metadata_loader import MetadataLoader
from raftlog_state.records import ConfigRecord, RemoveTopicRecord, TopicRecord
from raftlog_state.records.declare import Array, Scalar
from raftlog_state.tables.change_slices import ChangeSlices
from raftlog_state.tables.convert import changes_table, columns_of, rows_of
from raftlog_state.tables.latest import overlay, rows_of_state, state_rows
from raftlog_state.tables.origins import Origin, RowOrigins
from raftlog_state.tables.progress import Progress
from raftlog_state.tables.schema import (
    BY_ENTITY,
    CHANGES_TABLE,
    ORIGIN_COLUMNS,
    STATE_TABLE,
    STORED_TABLES,
    TYPED_TABLES,
)
from raftlog_state.tables.stored_rows import split_state, stored_rows

TOPIC_ID = "wP1XW_XDTjOcp3STS81TJA"
SHARED = {
    "cluster_id": "a cluster",
    "topic": "__cluster_metadata",
    "partition": 0,
    "incarnation": 1,
    "committed_at": 0,
}
LONG_MAX = 2**63 - 1
EXACT_MS_MAX = LONG_MAX // 1_000


# --- columns of rows ------------------------------------------------------------------------------


def table_of(entity: Entity, rows: Sequence[Row]) -> pa.Table:
    schema = pa.schema(dict(BY_ENTITY[entity].columns))
    return pa.Table.from_pydict(columns_of(entity, rows), schema=schema)


def check_columns(entity: Entity, rows: Sequence[Row]) -> None:
    """Check that the columns are those of the rows one by one."""
    found = table_of(entity, rows)
    found.validate(full=True)
    assert found.equals(pa.Table.from_pylist(list(map(plain_row, rows)), schema=found.schema))


def check_changes(
    changes: Sequence[RecordChanges], before_origins: Sequence[Origin | None]
) -> None:
    found = changes_table(changes, before_origins, SHARED)
    expected = row_wise_changes(changes, before_origins, SHARED)
    found.validate(full=True)
    assert found.schema == expected.schema
    assert found.equals(expected)


def replayed(cluster: str, directory: Any) -> Iterator[list[RecordChanges]]:
    """Return the changes of a bundled log, and of each of its snapshots."""
    log = metadata_log(restored(cluster, directory))
    yield MetadataLoader().append(log.records)
    for checkpoint in log.checkpoints:
        yield MetadataLoader().bootstrap(checkpoint.snapshot_id, checkpoint.log_records())


def random_changes(level: int) -> list[RecordChanges]:
    log = RandomLog(level, level)
    log.grow(400)
    count = len(log.records)
    return MetadataLoader().append_columns(range(count), [1] * count, range(count), log.records)


@pytest.mark.slow
@pytest.mark.parametrize("cluster", nightly_except(["trimmed-3.9.2/node-1"], CLUSTERS))
def test_changes_of_real_logs_are_those_built_row_by_row(
    cluster: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for changes in replayed(cluster, tmp_path_factory.mktemp("log")):
        assert changes
        check_changes(changes, RowOrigins().apply(changes))


@pytest.mark.parametrize("level", nightly_except((8, 30), (8, 14, 21, 30)))
def test_changes_of_random_logs_are_those_built_row_by_row(level: int) -> None:
    changes = random_changes(level)
    check_changes(changes, RowOrigins().apply(changes))
    origins = RowOrigins()
    for start in range(0, len(changes), 37):
        part = changes[start : start + 37]
        check_changes(part, origins.apply(part))


# --- any values -----------------------------------------------------------------------------------

REDACTED = ("[redacted]", "hmac:" + "0f" * 16, "hmac:5c01a9d2:" + "0f" * 16)
SCALARS: dict[Scalar, st.SearchStrategy[Any]] = {
    Scalar.BOOL: st.booleans(),
    Scalar.INT8: st.integers(-(2**7), 2**7 - 1),
    Scalar.INT16: st.integers(-(2**15), 2**15 - 1),
    Scalar.UINT16: st.integers(0, 2**16 - 1),
    Scalar.INT32: st.integers(-(2**31), 2**31 - 1),
    Scalar.INT64: st.integers(-(2**63), LONG_MAX),
    Scalar.FLOAT64: st.floats(allow_nan=False),
    Scalar.UUID: st.text(max_size=22),
    Scalar.STRING: st.text(max_size=9) | st.sampled_from(REDACTED),
    Scalar.BYTES: st.binary(max_size=9),
}


INT64 = SCALARS[Scalar.INT64]
ORIGINS = st.none() | st.builds(
    Origin, INT64, INT64, SCALARS[Scalar.INT32], st.none() | INT64, INT64
)


def values_of(kind: Kind) -> st.SearchStrategy[Any]:
    """Any values of a field."""
    if isinstance(kind, Parts):
        name = row_schema(kind.part)[0].name
        parts = st.lists(
            instances(kind.part),
            max_size=3,
            unique_by=(lambda part: getattr(part, name)) if kind.by_name else None,
        )
        return parts.map(lambda found: by_name(found, name) if kind.by_name else tuple(found))
    if isinstance(kind, Array):
        assert isinstance(kind.element, Scalar)
        return st.lists(SCALARS[kind.element], max_size=3).map(tuple)
    if kind is Special.TIMESTAMP_MS:
        return SCALARS[Scalar.INT64]
    if kind is Special.TEXT_PAIRS:
        names = st.dictionaries(st.text(max_size=3), st.none() | st.text(max_size=3), max_size=3)
        return names.map(lambda found: tuple(sorted(found.items())))
    return st.sampled_from(kind) if isinstance(kind, type) else SCALARS[kind]


def by_name(parts: list[Any], name: str) -> tuple[Any, ...]:
    return tuple(sorted(parts, key=lambda part: str(getattr(part, name))))


def instances(kind: type) -> st.SearchStrategy[Any]:
    """Any rows or parts of a type; fields that may be None are None at times."""
    values = {entry.name: values_of(entry.kind) for entry in row_schema(kind)}
    for name, annotation in kind.__annotations__.items():
        if annotation.endswith("| None"):
            values[name] |= st.none()
    return st.builds(kind, **values)


ROWS = {entity: instances(kind) for entity, kind in ROW_TYPES.items()}


@st.composite
def any_changes(draw: st.DrawFn) -> list[RecordChanges]:
    """Changes of rows of any entities, some of which are changed again later."""
    offset, changes = 0, []
    current: dict[Entity, Row] = {}
    for _ in range(draw(st.integers(0, 6))):
        of_record = []
        for entity in draw(st.lists(st.sampled_from(Entity), max_size=3)):
            before = current.pop(entity, None)
            after = draw(ROWS[entity] if before is None else ROWS[entity] | st.none())
            op = Op.CREATE if before is None else Op.DELETE if after is None else Op.UPDATE
            if before is None and draw(st.booleans()):
                op = Op.READ
            if after is not None and draw(st.booleans()):
                current[entity] = after
            row = after or before
            assert row is not None
            of_record.append(RowChange(entity, row.key, op, before, after))
        changes.append(
            RecordChanges(
                offset=offset,
                visible_offset=draw(st.integers(offset, LONG_MAX)),
                leader_epoch=draw(SCALARS[Scalar.INT32]),
                timestamp_ms=draw(SCALARS[Scalar.INT64]),
                record_type="ANY_RECORD",
                changes=tuple(of_record),
            )
        )
        offset += draw(st.integers(0, 2))
    return changes


@settings(max_examples=60)
@given(any_changes(), st.data())
def test_changes_of_any_rows_are_those_built_row_by_row(
    changes: list[RecordChanges], data: st.DataObject
) -> None:
    count = sum(len(record.changes) for record in changes)
    check_changes(changes, data.draw(st.lists(ORIGINS, min_size=count, max_size=count)))


def without_clamped_times(row: Row) -> Row:
    names = [entry.name for entry in row_schema(type(row)) if entry.kind is Special.TIMESTAMP_MS]
    times = {name: getattr(row, name) for name in names}
    return replace(row, **{name: time and time // 1_000 for name, time in times.items()})


@pytest.mark.parametrize("entity", Entity)
def test_any_rows_are_converted_one_by_one_and_back(entity: Entity) -> None:
    @settings(max_examples=30)
    @given(st.lists(ROWS[entity], max_size=5))
    def check(rows: list[Row]) -> None:
        check_columns(entity, rows)
        exact = list(map(without_clamped_times, rows))
        assert rows_of(entity, table_of(entity, exact)) == exact

    check()


def test_rows_of_real_logs_round_trip(
    three_nodes: MetadataLog, tmp_path_factory: pytest.TempPathFactory
) -> None:
    trimmed = metadata_log(restored("trimmed-3.9.2/node-1", tmp_path_factory.mktemp("log")))
    for log in (three_nodes, trimmed):
        loader = MetadataLoader()
        loader.append(log.records)
        for entity in Entity:
            rows = loader.image.rows(entity)
            check_columns(entity, rows)
            assert rows_of(entity, table_of(entity, rows)) == rows


def test_every_field_of_a_row_is_a_column() -> None:
    for table in TYPED_TABLES:
        parts = [part.name for part in fields(ROW_TYPES[table.entity])]
        names = {name.replace("_timestamp_ms", "_timestamp") for name in parts}
        assert names <= set(table.columns), table.name
        more = set(table.columns) - names
        assert all(n.endswith("_name") or n in ("redacted", "entity_key") for n in more), more


def test_a_redacted_config_is_marked() -> None:
    values = {"[redacted]": True, "hmac:short": False, "1000": False}
    values |= {f"hmac:{key_id}{'0f' * 16}": True for key_id in ("", "5c01a9d2:")}
    for value, redacted in values.items():
        row = ConfigRow(resource_type=2, resource_name="t", name="n", value=value)
        assert columns_of(Entity.CONFIG, [row])["redacted"].to_pylist() == [redacted]


def test_a_timestamp_outside_the_range_of_the_column_is_clamped() -> None:
    row = TokenRow(
        token_id="t",
        owner="o",
        requester="r",
        renewers=(),
        issue_timestamp_ms=-1,
        max_timestamp_ms=2**63 - 1,
        expiration_timestamp_ms=-(2**63),
    )
    (back,) = rows_of(Entity.TOKEN, table_of(Entity.TOKEN, [row]))
    assert isinstance(back, TokenRow)
    assert back.issue_timestamp_ms == -1
    assert back.max_timestamp_ms == (2**63 - 1) // 1_000
    assert back.expiration_timestamp_ms < 0


def test_a_value_that_is_no_number_stays_one() -> None:
    row = QuotaRow(entity=(), quota="q", value=math.nan)
    (back,) = rows_of(Entity.QUOTA, table_of(Entity.QUOTA, [row]))
    assert isinstance(back, QuotaRow)
    assert math.isnan(back.value)


def test_the_changes_of_one_record_are_numbered() -> None:
    config = ConfigRecord(resource_type=2, resource_name="t", name="n", value="1")
    topic = TopicRecord(name="t", topic_id=TOPIC_ID)
    removed = RemoveTopicRecord(topic_id=TOPIC_ID)
    changes = MetadataLoader().append(at(0, topic, config, removed))
    rows = changes_table(changes, RowOrigins().apply(changes), SHARED).to_pylist()
    assert [(row["offset"], row["seq"]) for row in rows] == [(0, 0), (1, 0), (2, 0), (2, 1)]


def test_a_row_keeps_its_creation_offset() -> None:
    def config(value: str | None) -> ConfigRecord:
        return ConfigRecord(resource_type=4, resource_name="", name="n", value=value)

    loader, origins = MetadataLoader(), RowOrigins()
    rows, created = STATE_TABLE.schema.empty_table(), []
    for offset, value in enumerate(("1", "2", None, "3")):
        changes = loader.append(at(offset, config(value)))
        added = changes_table(changes, origins.apply(changes), SHARED)
        rows = overlay(rows, state_rows(added))
        (row,) = rows.to_pylist()
        assert row["is_deleted"] == (value is None)
        created.append((row["_created_offset"], row["_offset"]))
    assert created == [(0, 0), (0, 1), (0, 2), (3, 3)]


@pytest.mark.parametrize("has_chunk", [False, True])
def test_tables_without_rows_are_read(has_chunk: bool) -> None:
    def empty(schema: pa.Schema) -> pa.Table:
        table = schema.empty_table()
        return table if has_chunk else pa.Table.from_batches([], schema=schema)

    state = empty(STATE_TABLE.schema)
    assert state_rows(empty(CHANGES_TABLE.schema)).equals(state.combine_chunks())
    assert rows_of_state(state) == []
    assert not any(stored_rows(split_state(state)).values())
    for entity in Entity:
        columns = empty(pa.schema(pa.struct(BY_ENTITY[entity].columns)))
        assert rows_of(entity, columns) == []


def row_wise_state(changes: Sequence[RecordChanges]) -> list[dict[str, Any]]:
    """Return the last change of each key as a row of ``state``, with Python's dictionaries."""
    last: dict[tuple[str, str], dict[str, Any]] = {}
    before_origins = RowOrigins().apply(changes)
    for columns in row_wise_changes(changes, before_origins, SHARED).to_pylist():
        before = columns["before_origin"]
        last[columns["entity"], columns["key"]] = {
            **{name: columns[name] for name in STATE_TABLE.columns if name in columns},
            "is_deleted": columns["op"] == "d",
            "row": columns["after"] or columns["before"],
            **{name: columns.get(name[1:]) for name in ORIGIN_COLUMNS},
            "_created_offset": columns["offset"] if before is None else before["created_offset"],
            "_incarnation": columns["incarnation"],
        }
    return list(last.values())


@pytest.mark.parametrize("level", nightly_except([14], [14, 30]))
def test_rows_of_state_are_the_last_changes_of_each_key(level: int) -> None:
    changes = random_changes(level)
    befores = RowOrigins().apply(changes)
    table = changes_table(changes, befores, SHARED)
    found = state_rows(table)
    assert found.schema == STATE_TABLE.schema
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, row_wise_state(changes)))
    middle = table.num_rows // 2
    parts = overlay(state_rows(table.slice(0, middle)), state_rows(table.slice(middle)))
    assert sorted(map(repr, parts.to_pylist())) == sorted(map(repr, found.to_pylist()))
    living = rows_of_state(found.filter(pc.invert(found["is_deleted"])))
    expected = {(row.ENTITY, row.key): row for row in rows_after(changes)}
    assert {(row.ENTITY, row.key): row for row in living} == expected


@pytest.mark.parametrize("slice_rows", nightly_except([37], [1, 37, 10_000]))
def test_slices_have_the_rows_of_the_whole_table(slice_rows: int) -> None:
    changes = random_changes(30)
    befores = RowOrigins().apply(changes)
    progress = Progress(cluster_id="cluster-a", offset=999, from_offset=0).changes_row(0)
    shared = {**SHARED, "cluster_id": "cluster-a"}
    whole = pa.concat_tables([changes_table(changes, befores, shared), progress])
    slices = ChangeSlices(changes, befores, shared, progress, slice_rows)
    assert slices.num_rows == whole.num_rows
    for _ in range(2):
        assert slices.changes().table().equals(whole)
    found = [part.num_rows for part in slices.changes().slices()]
    assert max(found) == min(slice_rows, whole.num_rows - 1)
    assert slices.changes().reader().read_all().equals(whole)
    assert slices.changes().cluster_ids == ("cluster-a",)
    expected = sorted(map(repr, state_rows(whole).to_pylist()))
    assert sorted(map(repr, slices.state().table().to_pylist())) == expected


def rows_after(changes: Sequence[RecordChanges]) -> list[Row]:
    """Return the rows that are there after changes."""
    found: dict[tuple[Entity, Any], Row | None] = {}
    for record in changes:
        for change in record.changes:
            found[change.entity, change.key] = change.after
    return [row for row in found.values() if row is not None]


def test_tables_use_no_feature_that_other_engines_lack() -> None:
    for table in STORED_TABLES.values():
        assert table.properties["delta.enableDeletionVectors"] == "false"
        assert "delta.columnMapping.mode" not in table.properties
        assert "delta.appendOnly" not in table.properties, "truncations delete rows"
