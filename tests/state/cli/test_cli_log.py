"""``raftlog log`` and ``read_changes``: histories by name, compared with the records of Kafka."""

from __future__ import annotations

import itertools
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import rows, run
from tests.support.small_logs import LogWriter

from raftlog.errors import OptionError
from raftlog_state import read_changes
from raftlog_state.image import Entity, QuotaRow
from raftlog_state.image.delta import Op
from raftlog_state.image.entity_names import name_of, row_filters, split_name
from raftlog_state.loader.image_reader import ImageReader
from raftlog_state.records import (
    AccessControlEntryRecord,
    ConfigRecord,
    Redactor,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    TopicRecord,
    encode,
)

LOGS = Path(__file__).parents[2] / "data" / "kraft-logs"
NODE = LOGS / "three-nodes-4.3.1" / "node-100"
TRIMMED = LOGS / "trimmed-3.9.2" / "node-1"
IDS = ("A" * 21 + "Q", "A" * 21 + "g")


def lines(*argv: str | Path) -> list[str]:
    status, out, err = run("log", *argv)
    assert status == 0, err
    return out.splitlines()


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    """All metadata records of the log."""
    return rows("cat", NODE, "--reveal")


def topic_id(records: list[dict[str, Any]]) -> str:
    """The id of orders-0."""
    (found,) = (
        record["data"]["topicId"]
        for record in records
        if record["type"] == "TOPIC_RECORD" and record["data"]["name"] == "orders-0"
    )
    return str(found)


def test_a_partition_has_the_changes_of_its_records(records: list[dict[str, Any]]) -> None:
    topic = topic_id(records)
    named = [
        record
        for record in records
        if (record["data"].get("topicId"), record["data"].get("partitionId")) == (topic, 1)
    ]
    changes = rows("log", NODE, "partition/orders-0/1", "--json")
    assert [(row["offset"], row["leader_epoch"], row["timestamp_ms"]) for row in changes] == [
        (record["offset"], record["leaderEpoch"], record["timestamp"]) for record in named
    ]
    assert [row["op"] for row in changes] == ["c"] + ["u"] * (len(named) - 1)
    leaders = [
        row["changed"]["leader"]["after"] for row in changes[1:] if "leader" in row["changed"]
    ]
    assert leaders == [
        record["data"]["leader"] for record in named[1:] if record["data"].get("leader") is not None
    ]
    for before, after in itertools.pairwise(changes[1:]):
        for column in before["changed"].keys() & after["changed"].keys():
            assert before["changed"][column]["after"] == after["changed"][column]["before"]


def test_a_topic_is_printed_with_its_configs_and_on_request_its_partitions() -> None:
    own = rows("log", NODE, "topic/orders-0", "--json")
    assert {row["entity"] for row in own} == {"topic", "config"}
    assert {row["name"] for row in own} >= {
        "topic/orders-0",
        "config/topic/orders-0/retention.ms",
    }
    folded = rows("log", NODE, "topic/orders-0", "--partitions", "--json")
    assert [row for row in folded if row["entity"] != "partition"] == own
    partitions = {row["name"] for row in folded} - {row["name"] for row in own}
    assert partitions == {f"partition/orders-0/{number}" for number in range(4)}
    assert [row["offset"] for row in folded] == sorted(row["offset"] for row in folded)


def test_lines_have_time_offset_epoch_name_and_values_before_and_after() -> None:
    assert lines(NODE, "config/topic/orders-0/max.message.bytes", "--from", "epoch:2") == [
        "2026-11-21T08:04:49.508Z      2216      2  config/topic/orders-0/max.message.bytes  "
        "(not set) -> 1000000",
        "2026-11-21T08:04:49.563Z      2218      2  config/topic/orders-0/max.message.bytes  "
        "1000000 -> 1000001",
        "2026-11-21T08:04:49.622Z      2220      2  config/topic/orders-0/max.message.bytes  "
        "1000001 -> 1000002",
        "2026-11-21T08:04:49.688Z      2221      2  config/topic/orders-0/max.message.bytes  "
        "1000002 -> (not set)",
    ]
    broker = lines(NODE, "broker/3", "--from", "100")
    assert [line.split("  ", 3)[-1].strip() for line in broker] == [
        "1231      2  broker/3  fenced false -> true",
        "1270      2  broker/3  deleted",
    ]


def test_a_topic_that_was_created_again_has_one_history(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "__cluster_metadata-0")
    writer.append(encode(TopicRecord(name="a", topic_id=IDS[0])))
    config = ConfigRecord(resource_type=2, resource_name="a", name="retention.ms", value="1")
    writer.append(encode(config))
    writer.append(encode(RemoveTopicRecord(topic_id=IDS[0])))
    writer.append(encode(TopicRecord(name="a", topic_id=IDS[1])))
    changes = rows("log", tmp_path, "topic/a", "--json")
    assert [(row["offset"], row["entity"], row["op"]) for row in changes] == [
        (0, "topic", "c"),
        (1, "config", "c"),
        (2, "config", "d"),
        (2, "topic", "d"),
        (3, "topic", "c"),
    ]


@pytest.mark.parametrize("start", [0, 700, 1231, 3000])
def test_all_changes_from_an_offset_lead_to_the_state_at_the_end(start: int) -> None:
    images = ImageReader(str(NODE), Redactor())
    state = {(row.ENTITY, row.key): row for row in rows_of(images, start)}
    for logged in read_changes(str(NODE), since=start, partitions=True):
        change = logged.change
        assert start <= logged.visible_offset < 3131
        if change.entity in (Entity.EPOCH, Entity.TRANSACTION):
            continue
        key = change.entity, change.key
        assert state.pop(key, None) == change.before
        if change.after is not None:
            state[key] = change.after
    assert state == {(row.ENTITY, row.key): row for row in rows_of(images, 3131)}


def rows_of(images: ImageReader, end_offset: int) -> list[Any]:
    image = images.image_at(end_offset)
    return [
        row
        for entity in Entity
        if entity not in (Entity.EPOCH, Entity.TRANSACTION)
        for row in image.rows(entity)
    ]


def test_a_log_that_begins_with_a_snapshot_prints_its_rows_first() -> None:
    changes = list(read_changes(str(TRIMMED), entity="topic"))
    first = [logged for logged in changes if logged.change.op is Op.READ]
    assert first == changes[: len(first)] != []
    assert len({logged.offset for logged in first}) == 1
    assert (
        rows("log", TRIMMED, "topic", "--from", str(first[0].offset + 1), "--json")
        == rows("log", TRIMMED, "topic", "--json")[len(first) :]
    )


@pytest.mark.parametrize("name", ["start", "earliest"])
def test_the_start_is_the_default_also_of_a_log_that_begins_with_a_snapshot(name: str) -> None:
    assert lines(TRIMMED, "--from", name) == lines(TRIMMED)


def test_a_name_without_changes_is_reported() -> None:
    status, out, err = run("log", NODE, "topic/no-such-topic", "--to", "100")
    assert (status, out) == (0, "")
    assert "no changes of topic/no-such-topic in the offsets from 0 to 100 (exclusive)" in err


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ("topic/order-0", "has no topic/order-0; did you mean topic/orders-0?"),
        ("partition/ordrs-0/1", "has no partition/ordrs-0/1; did you mean partition/orders-0?"),
        ("partition/orders-0/99", "has no partition/orders-0/99"),
        ("config/topic/orders-0/retention", "did you mean config/topic/orders-0/retention.ms?"),
        ("broker/99", "has no broker/99; it has broker/1, broker/2"),
    ],
)
def test_a_name_that_does_not_exist_is_reported_with_similar_ones(what: str, found: str) -> None:
    status, out, err = run("log", NODE, what)
    assert (status, out) == (0, "")
    assert err.splitlines()[-1].startswith("raftlog: the state at end offset 3131 has no ")
    assert err.splitlines()[-1].endswith(found)
    _, out, err = run("log", NODE, "topic/orders-0", "--from", "3130")
    assert (out, "has no topic/orders-0" in err) == ("", False), "it exists, and has no changes"


def test_a_time_selects_the_changes_from_it_on() -> None:
    moment = datetime(2026, 11, 21, 8, 4, 18, tzinfo=UTC)
    by_time = list(read_changes(str(NODE), since=moment, until="2026-11-21 08:04:26"))
    assert by_time == list(read_changes(str(NODE), since=799, until=1271))
    assert by_time


def test_no_secret_is_printed_unless_it_is_revealed() -> None:
    hidden = lines(NODE, "scram", "--json")
    revealed = lines(NODE, "scram", "--json", "--reveal")
    secrets = {
        json.loads(line)["after"]["salt"] for line in revealed if "after" in json.loads(line)
    }
    assert len(secrets) > 1
    assert not any(secret in line for secret in secrets for line in hidden)


def test_every_row_is_selected_by_its_name() -> None:
    image = ImageReader(str(NODE), Redactor()).image_at(3131)
    for entity in Entity:
        for row in image.rows(entity):
            filters = row_filters(*split_name(name_of(row)))
            assert any(one.matches(row) for one in filters), name_of(row)


@pytest.mark.parametrize(
    "entity",
    [
        (("client-id", "app"), ("user", "CN=a,O=b")),
        (("client-id", None), ("user", "alice")),
        (("user", None),),
        (("ip", None),),
    ],
)
def test_a_quota_is_selected_by_its_name_and_by_each_pair(
    entity: tuple[tuple[str, str | None], ...],
) -> None:
    row, other, *pairs = (
        QuotaRow(entity=one, quota="producer_byte_rate", value=1.0)
        for one in (entity, (("client-id", "other"),), *((pair,) for pair in entity))
    )
    for name in map(name_of, (row, *pairs)):
        (wanted,) = row_filters(*split_name(name))
        assert wanted.matches(row), name
        assert not wanted.matches(other), name


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("quota/user/orders", 1),
        ("quota/client-id/orders-c/", 0),
        ("quota/user", 2),
        ("config/broker//min.insync.replicas", 1),
        ("Topics/orders-0", 1),
        ("acl/User:unknown", 0),
    ],
)
def test_names_select_rows(name: str, count: int) -> None:
    image = ImageReader(str(NODE), Redactor()).image_at(3131)
    filters = row_filters(*split_name(name))
    keys = {
        getattr(row, "entity_key", row.key)
        for entity in Entity
        for row in image.rows(entity)
        if filters[0].matches(row)
    }
    assert len(keys) == count


@pytest.mark.parametrize(
    ("what", "hint"),
    [
        ("orders", "a name follows its entity, such as topic/orders; entities are feature, "),
        ("topik/orders", "unknown entity 'topik'; did you mean topic?"),
        ("broker/three", "'three' is not a number"),
        ("config/topics/orders", "unknown resource type 'topics' of configs"),
        ("producer_ids/next", "producer_ids is one row: it has no name"),
    ],
)
def test_a_wrong_name_is_refused(what: str, hint: str) -> None:
    status, out, err = run("log", NODE, what)
    assert (status, out) == (2, "")
    assert hint in err
    entity, name = split_name(what)
    with pytest.raises(OptionError):
        read_changes(str(NODE), entity=entity, name=name)


def test_records_of_a_topic_are_those_with_its_name_or_id(records: list[dict[str, Any]]) -> None:
    topic = topic_id(records)
    named = [
        record
        for record in records
        if record["data"].get("topicId") == topic
        or record["data"].get("topicName") == "orders-0"
        or (record["data"].get("resourceName"), record["data"].get("resourceType"))
        == ("orders-0", 2)
    ]
    assert rows("cat", NODE, "--topic", "orders-0", "--reveal") == named
    later = [record for record in named if record["offset"] >= 1000]
    assert rows("cat", NODE, "--topic", "orders-0", "--from", "1000", "--reveal") == later != []
    changes = [record for record in named if record["type"] == "PARTITION_CHANGE_RECORD"]
    typed = ("--topic", "orders-0", "--type", "partition_change")
    assert rows("cat", NODE, *typed) == changes


@pytest.mark.parametrize("start", [0, 2])
def test_records_of_a_topic_are_its_acls_and_their_removals(tmp_path: Path, start: int) -> None:
    """A removal has the id of an ACL only, which may have been created before the first record."""
    log = LogWriter(tmp_path / "__cluster_metadata-0")
    ids = {name: f"{number:021d}A" for number, name in enumerate(("a", "b"))}
    for name, acl_id in ids.items():
        acl = AccessControlEntryRecord(
            id=acl_id,
            resource_type=2,
            resource_name=name,
            pattern_type=3,
            principal="User:alice",
            host="*",
            operation=3,
            permission_type=3,
        )
        log.append(encode(acl))
    for acl_id in ids.values():
        log.append(encode(RemoveAccessControlEntryRecord(id=acl_id)))
    found = rows("cat", tmp_path, "--topic", "a", "--from", str(start))
    assert [record["offset"] for record in found] == [at for at in (0, 2) if at >= start]


@pytest.mark.parametrize("broker", [2, 3])
def test_records_of_a_broker_are_its_registrations_and_configs(
    records: list[dict[str, Any]], broker: int
) -> None:
    found = rows("cat", NODE, "--broker", str(broker), "--reveal")
    config = (str(broker), 4)
    assert [record["offset"] for record in found] == [
        record["offset"]
        for record in records
        if (record["data"].get("brokerId") == broker and record["type"] != "PRODUCER_IDS_RECORD")
        or (record["data"].get("resourceName"), record["data"].get("resourceType")) == config
    ]
    assert {record["type"] for record in found} >= {"REGISTER_BROKER_RECORD"}


def test_records_of_a_topic_before_the_first_snapshot_are_reported(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "__cluster_metadata-0", base_offset=9)
    writer.append(encode(TopicRecord(name="a", topic_id=IDS[0])))
    status, out, err = run("cat", tmp_path, "--topic", "a")
    assert (status, len(out.splitlines())) == (0, 1)
    assert "topics that were created before are left out: the state at end offset 9" in err


@pytest.mark.parametrize(
    ("option", "name", "message"),
    [
        ("--topic", "order-0", "no records of topic/order-0; did you mean orders-0?"),
        ("--broker", "9", "no records of broker/9"),
        ("--type", "zk_migration_state", "no records with the requested types"),
        ("--from", "3131", "no records; not printed are NoOpRecords (--noop) and control records"),
    ],
)
def test_a_filter_without_records_is_reported(option: str, name: str, message: str) -> None:
    status, out, err = run("cat", NODE, option, name)
    assert (status, out) == (0, "")
    assert message in err.splitlines()[-1]
    _, out, err = run("cat", NODE, "--broker", "1")
    assert out
    assert "no records" not in err


def test_filters_are_for_metadata_and_exclude_each_other() -> None:
    orders = LOGS / "three-nodes-4.3.1" / "node-1" / "orders-0-0"
    for argv, hint in (
        ((orders, "--topic", "a"), "is not a metadata log"),
        ((NODE, "--topic", "a", "--broker", "1"), "mutually exclusive"),
        ((NODE, "--topic", "a", "--batches"), "--batches cannot be combined"),
    ):
        status, out, err = run("cat", *argv)
        assert (status, out) == (2, "")
        assert hint in err


@pytest.mark.parametrize(
    ("entity", "name", "message"),
    [
        (None, "orders-0", "option entity: a name requires an entity, such as entity='topic', "),
        (None, "broker/3", "such as entity='broker', name='3'"),
        ("orders-0", None, "a name is an argument of its own, such as entity='topic', name="),
        ("topic/orders-0", None, "such as entity='topic', name='orders-0'"),
        ("brokr", "3", "option entity: unknown entity 'brokr'; did you mean broker?"),
        ("partition", "orders-0/x", "option name: 'x' is not a number"),
    ],
)
def test_a_call_is_answered_in_its_own_words(
    entity: str | None, name: str | None, message: str
) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        read_changes(str(NODE), entity=entity, name=name)
