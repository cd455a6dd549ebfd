"""``raftlog cat --key``: records by fields of their key, of metadata by those of the record."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import rows, run
from tests.support.internal_records import DATA, InternalLogFile, internal_segments, topic_of

from raftlog_state.records.internal_logs import INTERNAL_LOGS, REMOTE_LOG_METADATA

LOGS = DATA / "kraft-logs" / "three-nodes-4.3.1"
NODE = LOGS / "node-100"
INTERNAL = DATA / "internal-logs-4.3.1" / "node-1"
EVERY_RECORD = DATA / "kraft-logs" / "every-record-4.3.1" / "none" / "__cluster_metadata-0"
REMOTE = DATA / "remote-log-metadata-4.3.1"
SEGMENTS = internal_segments("4.3.1")

Row = dict[str, Any]


def texts(conditions: dict[str, object]) -> list[str]:
    """Return the options for fields that have these values in a printed record."""
    return [part for name, value in conditions.items() for part in ("--key", f"{name}={value}")]


def with_one_name(key: Row) -> Row:
    """Return the fields of a key, with one name for the id of the group."""
    return {"group" if name == "groupId" else name: value for name, value in key.items()}


@pytest.mark.parametrize("topic", sorted({topic_of(segment) for segment in SEGMENTS}))
def test_each_key_of_a_coordinator_selects_its_records(topic: str) -> None:
    paths = [segment.parent for segment in SEGMENTS if topic_of(segment) == topic]
    for path in paths:
        everything = rows("cat", path)
        keys = {json.dumps(row["key"]["data"]): row["key"]["data"] for row in everything}
        for key in keys.values():
            if any(value == "" for value in key.values()):
                continue
            wanted = with_one_name(key).items()
            chosen = [
                row for row in everything if wanted <= with_one_name(row["key"]["data"]).items()
            ]
            assert rows("cat", path, *texts(key)) == chosen != []


def test_a_part_of_a_key_selects_the_records_of_all_types_that_have_it() -> None:
    path = INTERNAL / "__consumer_offsets-1"
    everything = rows("cat", path)
    of_group = [
        row
        for row in everything
        if "modern" in (row["key"]["data"].get("group"), row["key"]["data"].get("groupId"))
    ]
    assert {row["key"]["data"].get("group") for row in of_group} == {None, "modern"}
    for name in ("group", "groupId"):
        assert rows("cat", path, "--key", f"{name}=modern") == of_group
    commits = ("--key", "topic=orders", "--key", "partition=0", "--type", "offset_commit")
    assert {row["key"]["data"]["partition"] for row in rows("cat", path, *commits)} == {0}
    status, out, err = run("cat", path, "--key", "group=modern", "--key", "partition=9")
    assert (status, out) == (0, "")
    assert "no records of key group=modern,partition=9" in err


@pytest.mark.parametrize(
    ("conditions", "matches"),
    [
        ({"partitionId": 3}, lambda data: data.get("partitionId") == 3),
        ({"name": "orders-0"}, lambda data: data.get("name") == "orders-0"),
        ({"resourceType": 2, "name": "cleanup.policy"}, lambda data: "resourceType" in data),
        ({"isLeaderRecovery": "?"}, None),
    ],
    ids=["number", "text", "both", "unknown"],
)
def test_metadata_is_selected_by_the_fields_of_a_record(
    conditions: dict[str, object], matches: Callable[[Row], bool] | None
) -> None:
    if matches is None:
        status, out, err = run("cat", NODE, *texts(conditions))
        assert (status, out) == (2, "")
        assert "records of this log have no field 'isLeaderRecovery'" in err
        return
    chosen = [
        row
        for row in rows("cat", NODE)
        if matches(row["data"])
        and all(str(row["data"].get(name)) == str(value) for name, value in conditions.items())
    ]
    assert rows("cat", NODE, *texts(conditions)) == chosen != []


@pytest.mark.parametrize("quota", ["1.0E300", "-1.5", "0.0"])
def test_a_number_with_a_fraction_is_compared_as_it_is_printed(quota: str) -> None:
    _, out, _ = run("cat", EVERY_RECORD, "--type", "client_quota")
    chosen = [line for line in out.splitlines() if f'"value":{quota},' in line]
    status, out, _ = run("cat", EVERY_RECORD, "--key", f"value={quota}")
    assert (status, out.splitlines()) == (0, chosen)
    assert chosen


def test_a_key_and_a_topic_select_one_partition() -> None:
    of_topic = rows("cat", NODE, "--topic", "orders-0")
    chosen = [row for row in of_topic if row["data"].get("partitionId") == 1]
    assert rows("cat", NODE, "--topic", "orders-0", "--key", "partitionId=1") == chosen != []


def test_fields_of_a_struct_are_named_with_dots() -> None:
    path = sorted(REMOTE.iterdir())[0]
    everything = rows("cat", path)
    segment = everything[0]["data"]["remoteLogSegmentId"]
    name = segment["topicIdPartition"]["name"]
    chosen = [
        row
        for row in everything
        if row["data"].get("remoteLogSegmentId", {}).get("topicIdPartition", {}).get("name") == name
    ]
    where = f"remoteLogSegmentId.topicIdPartition.name={name}"
    assert rows("cat", path, "--key", where) == chosen != []


def test_the_key_of_an_ordinary_partition_is_a_text(tmp_path: Path) -> None:
    log = InternalLogFile(tmp_path / "orders-0")
    log.append((b"a=1", b"1"), (b"b", b"2"), (None, b"3"), (b"a=1", None))
    assert [row["offset"] for row in rows("cat", log.path, "--key", "a=1")] == [0, 3]
    status, _, err = run("cat", log.path, "--key", "a=1", "--key", "b")
    assert status == 2
    assert "is one text" in err


def test_damaged_values_of_the_key_are_reported(tmp_path: Path) -> None:
    log = InternalLogFile(tmp_path / "__consumer_offsets-0")
    log.append(
        (b"\x00\x02\x00\x01g", b""), (b"\x00\x02\x00\x01h", b""), (b"\x00\x02\x00\x09g", None)
    )
    status, out, err = run("cat", log.path, "--key", "group=g")
    assert (status, out) == (1, "")
    assert err.count("offset 0: ") == 1
    assert err.count("offset 1: ") == 0
    assert err.count("offset 2: ") == 1


def test_a_secret_is_not_found_by_its_value(tmp_path: Path) -> None:
    shutil.copytree(DATA / "kraft-logs" / "every-record-4.3.1", tmp_path, dirs_exist_ok=True)
    path = next(tmp_path.rglob("__cluster_metadata-0"))
    (shown,) = rows("cat", path, "--type", "user_scram_credential", "--reveal", "--to", "end")[:1]
    salt = shown["data"]["salt"]
    assert rows("cat", path, "--key", f"salt={salt}", "--reveal")
    assert run("cat", path, "--key", f"salt={salt}")[1] == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--key", "group"], "is not of the form FIELD=VALUE; fields are group, topic, "),
        (["--key", "gruop=a"], "did you mean group?"),
        (["--key", "gruop=a"], "partition, groupId, memberId, regularExpression; did you mean"),
        (["--key", "group=a", "--batches"], "--batches cannot be combined with"),
    ],
)
def test_a_condition_that_cannot_be_used_is_refused(words: list[str], message: str) -> None:
    status, out, err = run("cat", INTERNAL / "__consumer_offsets-1", *words)
    assert (status, out) == (2, "")
    assert message in err


@pytest.mark.parametrize("topic", sorted({topic_of(segment) for segment in SEGMENTS}))
def test_the_help_has_each_field_of_the_keys_of_an_internal_log(topic: str) -> None:
    if topic == REMOTE_LOG_METADATA:
        return  # its records have no key
    _, out, _ = run("cat", "--help")
    shown = " ".join(out.split())
    for kind in INTERNAL_LOGS[topic].key_types():
        for field in kind.fields_schema:
            assert re.search(rf"\b{field.json_name}\b", shown), field.json_name
