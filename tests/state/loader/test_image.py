"""Images, deltas and rows as values: equality, digests, differences, reversal, JSON."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle
import tracemalloc
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.metadata_logs import LOGS

from raftlog.client import open_path
from raftlog.fast_dataclass import fast_dataclass
from raftlog.limits import KIB
from raftlog_state.image import (
    METADATA_ENTITIES,
    ROW_TYPES,
    AclRow,
    ConfigRow,
    ControllerRow,
    Endpoint,
    Entity,
    EpochRow,
    FeatureRange,
    MetadataImage,
    PartitionRow,
    ProducerIdsRow,
    Quorum,
    QuotaRow,
    Row,
    ScramRow,
    TopicRow,
    Voter,
    VoterEndpoint,
    group_of,
    row_json,
    table_of,
)
from raftlog_state.image.delta import MetadataDelta, Op, RecordChanges, RowChange
from raftlog_state.image.differences import diff
from raftlog_state.image.rows import Key, column_json
from raftlog_state.loader.image_reader import ImageReader
from raftlog_state.records import Redactor
from raftlog_state.replay import Position

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TOPICS = [TopicRow(topic_id=str(number), name=f"t{number}") for number in range(4)]


def image_of(*rows: Row, offset: int = 5) -> MetadataImage:
    return MetadataImage.from_rows(rows, offset=offset, leader_epoch=2)


def partition(topic: str, number: int, leader: int = 1) -> PartitionRow:
    return PartitionRow(
        topic_id=topic,
        partition_id=number,
        topic_name=f"t{topic}",
        replicas=(1, 2),
        isr=(1,),
        adding_replicas=(),
        removing_replicas=(),
        elr=(),
        last_known_elr=(),
        directories=("d", "e"),
        leader=leader,
        leader_epoch=0,
        partition_epoch=0,
        leader_recovery_state=1,
    )


# --- equality and digest --------------------------------------------------------------------------


def test_equality_and_digest_do_not_depend_on_the_order_of_rows() -> None:
    one, other = image_of(*TOPICS), image_of(*reversed(TOPICS))
    assert one == other
    assert one.digest() == other.digest()
    assert one.rows(Entity.TOPIC) == other.rows(Entity.TOPIC) == TOPICS


def test_images_differ_by_rows_offset_epoch_and_quorum() -> None:
    image = image_of(*TOPICS)
    assert image != image_of(*TOPICS[1:])
    assert image != image_of(*TOPICS, offset=6)
    assert image != dataclasses.replace(image, leader_epoch=3)
    assert image != dataclasses.replace(image, quorum=Quorum(1, ()))
    assert image == dataclasses.replace(image, timestamp_ms=9)
    assert image != "an image"


def test_a_digest_depends_on_rows_and_not_on_offsets() -> None:
    image = image_of(*TOPICS)
    assert image.digest() == image_of(*TOPICS, offset=99).digest()
    assert image.digest() != image_of(*TOPICS[1:]).digest()
    assert image.digest() != image_of(*TOPICS[1:], TopicRow(topic_id="0", name="x")).digest()
    assert MetadataImage.empty().digest() == "0" * 64
    assert len(image.digest()) == 64


def test_a_digest_is_the_same_in_every_process() -> None:
    row = QuotaRow(entity=(("user", None),), quota="rate", value=12.5)
    text = json.dumps([Entity.QUOTA, [[["user", None]], "rate", 12.5]], separators=(",", ":"))
    assert image_of(row).digest() == hashlib.sha256(text.encode()).hexdigest()


def test_the_owner_of_producer_ids_is_not_compared() -> None:
    known = ProducerIdsRow(next_producer_id=5, broker_id=1, broker_epoch=2)
    assert image_of(known).digest() == image_of(ProducerIdsRow(next_producer_id=5)).digest()


def test_an_image_survives_pickling() -> None:
    image = image_of(*TOPICS, partition("0", 1))
    assert pickle.loads(pickle.dumps(image)) == image


def test_rows_and_maps_cannot_be_changed_from_outside() -> None:
    image = image_of(*TOPICS)
    with pytest.raises(TypeError):
        image.map(Entity.TOPIC)[("9",)] = TOPICS[0]  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        TOPICS[0].name = "x"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        image.offset = 7  # type: ignore[misc]


def test_rows_are_found_by_type_by_entity_and_by_group() -> None:
    config = ConfigRow(resource_type=2, resource_name="t0", name="x", value="1")
    image = image_of(*TOPICS, partition("0", 1), partition("0", 0), partition("1", 0), config)
    assert image.find(TopicRow, "2") == image.get(Entity.TOPIC, ("2",)) == TOPICS[2]
    assert image.find(TopicRow, "9") is None
    assert sorted(image.group((Entity.PARTITION, "0", ""))) == [("0", 0), ("0", 1)]
    assert image.group((Entity.CONFIG, 2, "t0")) == ((2, "t0", "x"),)
    assert image.topic("t3") == TOPICS[3]
    assert image.topic("t9") is None
    assert image.rows_of(PartitionRow)[0] == partition("0", 0)


# --- differences ----------------------------------------------------------------------------------


def test_diff_returns_added_removed_and_changed_rows() -> None:
    before = image_of(TOPICS[0], TOPICS[1], partition("0", 0))
    after = image_of(TOPICS[1], TOPICS[2], partition("0", 0, leader=2))
    changes = diff(before, after)
    assert [(change.entity, change.op, change.key, change.changed) for change in changes] == [
        (Entity.TOPIC, Op.DELETE, ("0",), ()),
        (Entity.TOPIC, Op.CREATE, ("2",), ()),
        (Entity.PARTITION, Op.UPDATE, ("0", 0), ("leader",)),
    ]
    assert diff(before, before) == []


# --- deltas ---------------------------------------------------------------------------------------

KEYS = st.integers(0, 5)
STEPS = st.lists(st.tuples(KEYS, KEYS, st.one_of(st.none(), st.integers(1, 9))), max_size=30)


def written(delta: MetadataDelta, steps: list[tuple[int, int, int | None]]) -> dict[Key, Row]:
    """Apply steps (topic, partition, leader or None to delete) to a delta and to a dict."""
    rows: dict[Key, Row] = {}
    for key in delta.keys(Entity.PARTITION):
        row = delta.get(Entity.PARTITION, key)
        assert row is not None
        rows[key] = row
    for topic, number, leader in steps:
        key = (str(topic), number)
        if leader is None:
            assert delta.delete(Entity.PARTITION, key) == (rows.pop(key, None) is not None)
        else:
            rows[key] = partition(str(topic), number, leader)
            delta.put(rows[key])
    return rows


@pytest.mark.slow
@given(STEPS, STEPS)
def test_a_delta_behaves_as_a_dict_over_an_image(
    first: list[tuple[int, int, int | None]], second: list[tuple[int, int, int | None]]
) -> None:
    delta = MetadataDelta(MetadataImage.empty())
    written(delta, first)
    image = delta.apply(offset=1, leader_epoch=1, timestamp_ms=0)
    rows, digest = dict(image.map(Entity.PARTITION)), image.digest()
    delta = MetadataDelta(image)
    expected = written(delta, second)
    after = delta.apply(offset=2, leader_epoch=1, timestamp_ms=0)
    assert after.map(Entity.PARTITION) == expected
    assert sorted(delta.keys(Entity.PARTITION)) == sorted(expected)
    for topic in map(str, range(6)):
        group = (Entity.PARTITION, topic, "")
        keys = sorted(key for key in expected if key[0] == topic)
        assert sorted(delta.group(group)) == sorted(after.group(group)) == keys
    assert after.digest() == image_of(*expected.values()).digest()
    assert (image.map(Entity.PARTITION), image.digest()) == (rows, digest)


@pytest.mark.slow
@given(STEPS, STEPS)
def test_reversing_changes_newest_first_restores_the_previous_state(
    first: list[tuple[int, int, int | None]], second: list[tuple[int, int, int | None]]
) -> None:
    delta = MetadataDelta(MetadataImage.empty())
    expected = written(delta, first)
    delta.take_changes()
    written(delta, second)
    delta.undo(reversed(delta.take_changes()))
    after = delta.apply(offset=1, leader_epoch=1, timestamp_ms=0)
    assert after.map(Entity.PARTITION) == expected
    assert after.groups() == {k: v for k, v in after.groups().items() if v}


@given(STEPS)
def test_changes_transform_one_state_into_the_next(
    steps: list[tuple[int, int, int | None]],
) -> None:
    delta = MetadataDelta(MetadataImage.empty())
    expected = written(delta, steps)
    rows: dict[Key, Row] = {}
    for change in delta.take_changes():
        assert rows.get(change.key) == change.before
        assert change.op is (
            Op.DELETE if change.after is None else Op.UPDATE if change.before else Op.CREATE
        )
        if change.after is None:
            del rows[change.key]
        else:
            rows[change.key] = change.after
    assert rows == expected


def test_memory_of_a_delta_is_that_of_its_rows_and_not_of_all_that_were_deleted() -> None:
    """A long log creates and deletes topics, and is replayed in one delta."""
    delta = MetadataDelta(image_of(TOPICS[0]))

    def create_and_delete(topics: range) -> None:
        for topic in map(str, topics):
            rows: list[Row] = [TopicRow(topic_id=topic, name=topic), partition(topic, 0)]
            for row in rows:
                delta.put(row)
            for row in rows:
                delta.delete(row.ENTITY, row.key)
            delta.take_changes()

    create_and_delete(range(10, 20))
    tracemalloc.start()
    try:
        create_and_delete(range(1000, 2000))
        assert tracemalloc.get_traced_memory()[0] < 64 * KIB
    finally:
        tracemalloc.stop()
    assert delta.is_empty()
    delta.delete(Entity.TOPIC, TOPICS[0].key)
    assert delta.get(Entity.TOPIC, TOPICS[0].key) is None


def test_a_new_image_shares_unchanged_maps() -> None:
    image = image_of(*TOPICS, partition("0", 0))
    delta = MetadataDelta(image)
    delta.put(partition("0", 0, leader=2))
    after = delta.apply(offset=6, leader_epoch=2, timestamp_ms=0)
    assert after.maps[Entity.TOPIC] is image.maps[Entity.TOPIC]
    assert after.maps[Entity.PARTITION] is not image.maps[Entity.PARTITION]


# --- rows -----------------------------------------------------------------------------------------


def test_every_entity_has_a_table_name_and_a_row_type() -> None:
    assert {table_of(entity) for entity in METADATA_ENTITIES} == {
        "acls",
        "brokers",
        "configs",
        "controllers",
        "epochs",
        "features",
        "partitions",
        "producer_ids",
        "quotas",
        "scram",
        "tokens",
        "topics",
        "transactions",
        "zk_migration",
    }
    assert all(kind.ENTITY is entity for entity, kind in ROW_TYPES.items())


def test_json_has_columns_names_beside_numbers_and_bytes_as_base64() -> None:
    scram = ScramRow(
        user="u", mechanism=2, iterations=1, salt=b"\x00", stored_key=b"", server_key=b"\xff"
    )
    assert row_json(scram) == {
        "user": "u",
        "mechanism": 2,
        "mechanism_name": "SCRAM-SHA-512",
        "iterations": 1,
        "salt": "AA==",
        "stored_key": "",
        "server_key": "/w==",
    }
    quota = QuotaRow(entity=(("client-id", "c"), ("user", None)), quota="rate", value=1.5)
    assert row_json(quota)["entity"] == {"client-id": "c", "user": None}
    assert row_json(partition("0", 1))["leader_recovery_state_name"] == "RECOVERING"


def test_json_of_nested_parts_has_names_too() -> None:
    controller = ControllerRow(
        controller_id=1,
        incarnation_id="i",
        zk_migration_ready=False,
        endpoints=(Endpoint("C", "h", 9093, 3),),
        features=(FeatureRange("f", 0, 1),),
    )
    found = row_json(controller)
    assert found["endpoints"] == [
        {"name": "C", "host": "h", "port": 9093, "protocol": 3, "protocol_name": "SASL_SSL"}
    ]
    assert found["features"] == [{"name": "f", "min_version": 0, "max_version": 1}]
    epoch = EpochRow(
        leader_epoch=1,
        start_offset=0,
        end_offset=None,
        leader_id=1,
        voters=(Voter(1, "d", (VoterEndpoint("C", "h", 9093),), 0, 1),),
        kraft_version=1,
    )
    (voter,) = json.loads(json.dumps(row_json(epoch)))["voters"]
    assert voter["endpoints"] == [{"name": "C", "host": "h", "port": 9093}]


def test_an_unknown_number_of_kafka_is_its_own_name() -> None:
    acl = AclRow(
        acl_id="i",
        resource_type=70,
        resource_name="r",
        pattern_type=71,
        principal="p",
        host="h",
        operation=72,
        permission=73,
    )
    names = [name for name in row_json(acl) if name.endswith("_name") and name != "resource_name"]
    assert [row_json(acl)[name] for name in names] == ["70", "71", "72", "73"]


def test_an_image_as_json_can_be_limited_to_some_entities() -> None:
    image = image_of(*TOPICS[:2], partition("0", 1))
    found = image.to_json([Entity.TOPIC])
    assert found == {
        "offset": 5,
        "leader_epoch": 2,
        "timestamp_ms": -1,
        "kraft_version": 0,
        "topics": [{"topic_id": "0", "name": "t0"}, {"topic_id": "1", "name": "t1"}],
    }
    assert json.loads(json.dumps(image.to_json()))["partitions"][0]["replicas"] == [1, 2]


def test_groups_are_by_topic_resource_and_name() -> None:
    assert group_of(partition("0", 1)) == (Entity.PARTITION, "0", "")
    assert group_of(TOPICS[0]) == (Entity.TOPIC, "t0", "")
    assert group_of(ProducerIdsRow(next_producer_id=1)) is None


# --- construction of frozen values ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (PartitionRow, partition("0", 1)),
        (Position, Position(1, 2, 3, 4)),
        (RecordChanges, RecordChanges(1, 2, 3, 4, "T", ())),
        (RowChange, RowChange(Entity.TOPIC, ("0",), Op.CREATE, None, TOPICS[0])),
        (ProducerIdsRow, ProducerIdsRow(next_producer_id=5)),
    ],
)
def test_a_fast_constructed_value_equals_the_value(
    kind: Callable[..., object], value: DataclassInstance
) -> None:
    columns = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    changes = fast_dataclass(kind)(**columns)
    assert type(changes) is type(value)
    assert changes == value
    assert hash(changes) == hash(value)
    assert repr(changes) == repr(value)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(changes, next(iter(columns)), None)
    with pytest.raises(TypeError):
        fast_dataclass(kind)(unknown=1)


@pytest.mark.parametrize("node", ["three-nodes-4.3.1/node-100", "trimmed-3.9.2/node-1"])
def test_a_column_as_json_is_that_of_its_row(node: str) -> None:
    images = ImageReader(open_path(str(LOGS / node)), Redactor())
    image = images.image_at(images.end_offset())
    quota = QuotaRow(entity=(("client-id", "c"), ("user", None)), quota="q", value=1.0)
    for row in (quota, *(row for entity in Entity for row in image.rows(entity))):
        whole = row_json(row)
        assert whole == {name: column_json(row, name) for name in whole}
