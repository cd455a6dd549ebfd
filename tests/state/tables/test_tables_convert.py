"""Rows round trip through columns, and the declared columns are those of the rows."""

from __future__ import annotations

from dataclasses import fields

import pyarrow as pa
import pytest
from tests.support.metadata_logs import MetadataLog, at, metadata_log, restored
from tests.support.random_metadata import RandomLog

from raftlog_state.image import MetadataImage
from raftlog_state.image.rows import ROW_TYPES, ConfigRow, Entity, Row, TokenRow
from raftlog_state.loader.metadata_loader import MetadataLoader
from raftlog_state.records import ConfigRecord, RemoveTopicRecord, TopicRecord
from raftlog_state.tables.convert import changes_table, columns_of, plain_rows, row_of
from raftlog_state.tables.pending import Pending
from raftlog_state.tables.schema import (
    BY_ENTITY,
    GROWING_TABLES,
    TYPED_TABLES,
    Table,
    arrow_schema,
    properties,
    struct,
)


def round_trip(rows: list[Row], entity: Entity) -> list[Row]:
    schema = arrow_schema(struct(BY_ENTITY[entity].columns))
    table = pa.Table.from_pylist([columns_of(row) for row in rows], schema=schema)
    return [row_of(entity, columns) for columns in plain_rows(table)]


def images() -> list[MetadataImage]:
    found = []
    for level in (8, 14, 21, 30):
        log = RandomLog(level, level)
        log.grow(400)
        loader = MetadataLoader()
        loader.append_columns(
            range(len(log.records)), [1] * len(log.records), [0] * len(log.records), log.records
        )
        found.append(loader.image)
    return found


def test_rows_of_real_logs_round_trip(
    three_nodes: MetadataLog, tmp_path_factory: pytest.TempPathFactory
) -> None:
    trimmed = metadata_log(restored("trimmed-3.9.2/node-1", tmp_path_factory.mktemp("log")))
    for log in (three_nodes, trimmed):
        loader = MetadataLoader()
        loader.append(log.records)
        for entity in Entity:
            rows = loader.image.rows(entity)
            assert round_trip(rows, entity) == rows


def test_rows_of_random_logs_round_trip() -> None:
    for image in images():
        for entity in Entity:
            rows = image.rows(entity)
            assert round_trip(rows, entity) == rows


def test_every_field_of_a_row_is_a_column() -> None:
    renamed = {f"{name}_timestamp_ms": f"{name}_timestamp" for name in ("issue", "max")}
    renamed["expiration_timestamp_ms"] = "expiration_timestamp"
    for table in TYPED_TABLES:
        names = {renamed.get(part.name, part.name) for part in fields(ROW_TYPES[table.entity])}
        assert names <= set(table.columns), table.name
        more = set(table.columns) - names
        assert all(n.endswith("_name") or n in ("redacted", "entity_key") for n in more), more


def test_a_redacted_config_is_marked() -> None:
    values = {"[redacted]": True, "hmac:" + "0f" * 16: True, "hmac:short": False, "1000": False}
    for value, redacted in values.items():
        row = ConfigRow(resource_type=2, resource_name="t", name="n", value=value)
        assert columns_of(row)["redacted"] is redacted


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
    (back,) = round_trip([row], Entity.TOKEN)
    assert isinstance(back, TokenRow)
    assert back.issue_timestamp_ms == -1
    assert back.max_timestamp_ms == (2**63 - 1) // 1_000
    assert back.expiration_timestamp_ms < 0


TOPIC_ID = "wP1XW_XDTjOcp3STS81TJA"
SHARED = dict.fromkeys(("cluster_id", "topic", "partition", "incarnation", "_writer_epoch"))


def test_the_changes_of_one_record_are_numbered() -> None:
    config = ConfigRecord(resource_type=2, resource_name="t", name="n", value="1")
    topic = TopicRecord(name="t", topic_id=TOPIC_ID)
    removed = RemoveTopicRecord(topic_id=TOPIC_ID)
    changes = MetadataLoader().append(at(0, topic, config, removed))
    rows = changes_table(changes, {**SHARED, "topic": "t", "partition": 0}).to_pylist()
    assert [(row["offset"], row["seq"]) for row in rows] == [(0, 0), (1, 0), (2, 0), (2, 1)]


def test_a_row_keeps_its_creation_offset() -> None:
    def config(value: str | None) -> ConfigRecord:
        return ConfigRecord(resource_type=4, resource_name="", name="n", value=value)

    loader, pending = MetadataLoader(), Pending()
    created = []
    for offset, value in enumerate(("1", "2", None, "3")):
        pending.note(loader.append(at(offset, config(value))))
        (row,) = pending.rows(BY_ENTITY[Entity.CONFIG], with_deleted=True).to_pylist()
        created.append((row["_created_offset"], row["_offset"]))
    assert created == [(0, 0), (0, 1), (0, 2), (3, 3)]


def test_tables_use_no_feature_that_other_engines_lack() -> None:
    every: tuple[Table, ...] = (*TYPED_TABLES, *GROWING_TABLES.values())
    for table in every:
        found = properties(table)
        assert found["delta.enableDeletionVectors"] == "false"
        assert "delta.columnMapping.mode" not in found
        grows = table.name in GROWING_TABLES
        assert found.get("delta.appendOnly") == ("true" if grows else None)
