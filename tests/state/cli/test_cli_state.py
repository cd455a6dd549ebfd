"""``raftlog state`` and ``raftlog diff``, compared with the snapshots that Kafka wrote."""

from __future__ import annotations

import io
import json
import math
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import Terminal, on_terminal, rows, run
from tests.support.dumps import read_dump
from tests.support.small_logs import LogWriter
from tests.support.sweep_size import nightly_except

from raftlog_state.cli.main import main
from raftlog_state.cli.state import HISTORY_KINDS, KINDS
from raftlog_state.cli.state_text import _cell_text
from raftlog_state.image import METADATA_ENTITIES, Entity, table_of
from raftlog_state.records import (
    BeginTransactionRecord,
    ClientQuotaRecord,
    EntityData,
    TopicRecord,
    encode,
)

LOGS = Path(__file__).parents[2] / "data" / "kraft-logs"
THREE = LOGS / "three-nodes-4.3.1"
NODE = THREE / "node-100"
TRIMMED = LOGS / "trimmed-3.9.2" / "node-1"
CHECKPOINTS = sorted(THREE.rglob("*[1-9]-*.checkpoint"))

KEY_COLUMNS = {
    "features": ("name",),
    "zk_migration": (),
    "brokers": ("broker_id",),
    "controllers": ("controller_id",),
    "topics": ("topic_id",),
    "partitions": ("topic_id", "partition_id"),
    "configs": ("resource_type", "resource_name", "name"),
    "quotas": ("entity", "quota"),
    "producer_ids": (),
    "acls": ("acl_id",),
    "scram": ("user", "mechanism"),
    "tokens": ("token_id",),
}


@pytest.fixture(scope="module")
def bare_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs of the cluster without their snapshots: state must be replayed."""
    place = tmp_path_factory.mktemp("bare")
    for node in THREE.glob("node-*"):
        directory = place / node.name / "__cluster_metadata-0"
        directory.mkdir(parents=True)
        for segment in (node / "__cluster_metadata-0").glob("*.log"):
            shutil.copyfile(segment, directory / segment.name)
    return place


def image(*argv: str | Path) -> dict[str, Any]:
    status, out, err = run("state", *argv)
    assert status == 0, err
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def newest() -> dict[str, Any]:
    """State at the end of the log."""
    return image(NODE)


def canonical(record: dict[str, Any]) -> str:
    """Return the same text for records that differ only in the order of Kafka's hash maps."""
    data = {
        name: sorted(value, key=str) if name in ("endPoints", "features", "entity") else value
        for name, value in record["data"].items()
    }
    return json.dumps({**record, "data": data}, sort_keys=True)


def name_of(path: Path) -> str:
    return f"{path.parent.parent.name}/{path.name}"


@pytest.mark.parametrize("checkpoint", CHECKPOINTS, ids=name_of)
def test_replayed_records_equal_those_that_kafka_wrote(checkpoint: Path, bare_logs: Path) -> None:
    node = checkpoint.parent.parent.name
    end_offset = str(int(checkpoint.name.partition("-")[0]))
    printed = rows("state", bare_logs / node, "--at", end_offset, "--format", "records", "--reveal")
    dumped = [
        (batch, record)
        for batch in read_dump(checkpoint)
        for record in batch.records
        if record.payload is not None
    ]
    expected = Counter(canonical(record.json) for _, record in dumped)
    shown = [{name: row[name] for name in ("type", "version", "data")} for row in printed]
    assert Counter(map(canonical, shown)) == expected
    assert [row["offset"] for row in printed] == [record.offset for _, record in dumped]
    assert {row["leaderEpoch"] for row in printed} == {batch.leader_epoch for batch, _ in dumped}


@pytest.mark.parametrize("checkpoint", CHECKPOINTS[:2], ids=name_of)
def test_a_snapshot_and_a_replay_to_its_end_show_the_same(
    checkpoint: Path, bare_logs: Path
) -> None:
    end_offset = str(int(checkpoint.name.partition("-")[0]))
    alone = image(checkpoint)
    node = checkpoint.parent.parent
    replayed = image(bare_logs / node.name, "--at", end_offset)
    assert alone == replayed
    status, _, err = run("state", node, "--at", end_offset)
    assert status == 0
    assert err.endswith(f"is built from snapshot {checkpoint.stem}\n")


def test_a_snapshot_is_described_as_committed() -> None:
    err = run("state", CHECKPOINTS[0], "topics")[2]
    end_offset = int(CHECKPOINTS[0].name.partition("-")[0])
    assert err.splitlines()[0] == (
        f"raftlog: the end offset is {end_offset} (exclusive): the end of this snapshot: committed"
    )


def test_the_end_and_the_base_are_logged() -> None:
    status, _, err = run("state", NODE, "topics")
    assert status == 0
    end, base = err.splitlines()
    assert end.startswith("raftlog: the end offset is 3131 (exclusive): the end of this one dir")
    assert base == (
        "raftlog: the state at end offset 3131 is built from snapshot "
        "00000000000000003128-0000000002"
    )


def test_several_voters_end_at_the_end_of_a_majority() -> None:
    nodes = ",".join(str(THREE / f"node-{n}") for n in (100, 101, 102))
    status, _, err = run("state", nodes, "features")
    assert status == 0
    assert err.startswith("raftlog: the end offset is 3132 (exclusive): the records that a")


def test_at_is_an_end_offset() -> None:
    first_topic = rows("cat", NODE, "--type", "topic")[0]["offset"]
    assert rows("state", NODE, "--at", str(first_topic), "topics") == []
    (topic,) = rows("state", NODE, "--at", str(first_topic + 1), "topics")
    assert topic["topic_id"]
    empty = image(NODE, "--at", "0")
    assert empty["end_offset"] == 0
    assert not any(empty[kind] for kind in KINDS)


def test_an_open_transaction_is_not_in_the_state() -> None:
    # Offsets 3 to 11 are Kafka's own bootstrap transaction.
    status, out, err = run("state", NODE, "--at", "11", "features")
    assert (status, out) == (0, "")
    assert "the metadata transaction that begins at offset 3 is open at the end offset" in err
    assert len(rows("state", NODE, "--at", "12", "features")) == 6


def test_the_default_end_is_before_an_open_transaction(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "__cluster_metadata-0")
    writer.append(encode(TopicRecord(name="a", topic_id="A" * 21 + "Q")))
    writer.append(encode(BeginTransactionRecord(name="t")))
    writer.append(encode(TopicRecord(name="b", topic_id="A" * 21 + "g")))
    status, out, err = run("state", tmp_path, "topics")
    assert status == 0
    assert [json.loads(line)["name"] for line in out.splitlines()] == ["a"]
    assert err.startswith("raftlog: the end offset is 1 (exclusive)")


@pytest.mark.parametrize("kind", [*KINDS, *HISTORY_KINDS])
def test_a_kind_is_printed_one_row_a_line(kind: str, newest: dict[str, Any]) -> None:
    printed = rows("state", NODE, kind.upper().replace("_", "-"))
    assert printed == newest[kind] if kind in KINDS else printed


def test_every_entity_of_the_metadata_has_a_kind() -> None:
    assert {*KINDS, *HISTORY_KINDS} == {table_of(entity) for entity in METADATA_ENTITIES}


def test_earlier_states_are_replayed_from_before_the_snapshot() -> None:
    starts = [(row["leader_epoch"], row["start_offset"]) for row in rows("state", NODE, "epochs")]
    assert starts == [(1, 0), (2, 721)]
    assert rows("state", NODE, "transactions")[0]["name"] == "Bootstrap records"


def test_an_incomplete_snapshot_is_skipped(tmp_path: Path) -> None:
    node = tmp_path / "node"
    shutil.copytree(NODE, node, ignore=shutil.ignore_patterns("*.gz"))
    newest = node / "__cluster_metadata-0" / "00000000000000003128-0000000002.checkpoint"
    newest.write_bytes(newest.read_bytes()[:-100])
    status, out, err = run("state", node)
    assert status == 0
    assert "skipped: [RAFTLOG_CORRUPT_SNAPSHOT]" in err
    assert "is built from snapshot 00000000000000001762-0000000002" in err
    assert json.loads(out) == image(NODE)


def test_a_state_without_snapshot_and_records_is_an_error() -> None:
    status, out, err = run("state", TRIMMED, "--at", "500")
    assert (status, out) == (1, "")
    assert "[RAFTLOG_DATA_LOSS.OFFSETS_DELETED]" in err
    assert "its snapshots end at [1022]" in err
    assert len(rows("state", TRIMMED, "--at", "1022", "scram")) == 3


def test_a_state_after_the_end_is_an_error() -> None:
    status, out, err = run("state", NODE, "--at", "3132")
    assert (status, out) == (1, "")
    assert "[RAFTLOG_OFFSET_OUT_OF_RANGE]" in err


def test_an_ordinary_partition_has_no_state() -> None:
    for command in (("state",), ("diff", "--from", "0")):
        status, out, err = run(*command, THREE / "node-1" / "orders-0-0")
        assert (status, out) == (2, "")
        assert "orders-0-0" in err


# --- diff -----------------------------------------------------------------------------------------


def by_key(found: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (kind, json.dumps([row[name] for name in KEY_COLUMNS[kind]])): row
        for kind in KINDS
        for row in found[kind]
    }


@pytest.mark.parametrize(
    ("start", "end"), [(0, 400), (400, 721), (700, 1762), (12, 12), (1762, 3131)]
)
def test_a_difference_is_the_changes_from_one_state_to_the_other(start: int, end: int) -> None:
    before = by_key(image(NODE, "--at", str(start), "--reveal"))
    after = by_key(image(NODE, "--at", str(end), "--reveal"))
    kinds = {entity.value: table_of(entity) for entity in Entity}
    for line in rows("diff", NODE, "--from", str(start), "--to", str(end), "--reveal"):
        kind = kinds[line["entity"]]
        columns = KEY_COLUMNS[kind]
        match line["op"]:
            case "c":
                row = line["after"]
                before[kind, json.dumps([row[name] for name in columns])] = row
            case "d":
                row = line["before"]
                assert before.pop((kind, json.dumps([row[name] for name in columns]))) == row
            case "u":
                key = line["key"] if columns else []
                if kind == "quotas":
                    key = [json.loads(key[0]), key[1]]
                row = before[kind, json.dumps(key)]
                for name, change in line["changed"].items():
                    assert row[name] == change["before"] != change["after"]
                    row[name] = change["after"]
    drop_derived(before)
    drop_derived(after)
    assert before == after


def drop_derived(found: dict[tuple[str, str], dict[str, Any]]) -> None:
    """Omit the names of numbers: a difference has the numbers only."""
    for row in found.values():
        for name in [name for name in row if name.endswith("_name") and name[:-5] in row]:
            del row[name]


def test_a_partition_is_named_by_its_topic() -> None:
    (line,) = [
        row
        for row in rows("diff", NODE, "--from", "1000", "--to", "1001")
        if row["entity"] == "partition"
    ]
    (change,) = rows("cat", NODE, "--from", "1000", "--to", "1001")
    assert line["key"] == [change["data"]["topicId"], change["data"]["partitionId"]]
    assert line["topic_name"].startswith("orders")
    assert line["changed"]["isr"]["after"] == change["data"]["isr"]


def test_the_default_of_to_is_the_end() -> None:
    explicit = rows("diff", NODE, "--from", "3000", "--to", "3131")
    assert rows("diff", NODE, "--from", "3000") == explicit != []
    status, out, err = run("diff", NODE, "--from", "3132")
    assert (status, out) == (2, "")
    assert "offset 3132 is out of range" in err


def test_states_and_records_are_found_by_time() -> None:
    # A broker was fenced by one batch, whose records are those from offset 799 to 1231.
    fenced_ms = 1795248258007
    assert rows("cat", NODE, "--from", "799", "--to", "1232")[-1]["timestamp"] == fenced_ms
    times = ("--from", "2026-11-21 08:04:18.007", "--to", "timestamp:1795248258008")
    status, out, err = run("diff", NODE, *times)
    assert status == 0
    assert [json.loads(line) for line in out.splitlines()] == rows(
        "diff", NODE, "--from", "799", "--to", "1232"
    )
    assert (
        "raftlog: --from is offset 799: the first record at or after 2026-11-21T08:04:18.007Z, "
        "its time is 2026-11-21T08:04:18.007Z\n"
    ) in err
    printed = rows("cat", NODE, *times)
    assert (printed[0]["offset"], printed[-1]["offset"]) == (799, 1231)
    assert {row["timestamp"] for row in printed} == {fenced_ms}
    later = rows("state", NODE, "--at", "2026-11-21T08:04:18.008Z", "brokers")
    assert [row["broker_id"] for row in later if row["fenced"]] == [3]
    assert rows("state", NODE, "--at", "timestamp:1795248258007", "brokers") != later


def test_states_are_found_by_epoch_snapshot_and_age() -> None:
    assert image(NODE, "--at", "epoch:2")["end_offset"] == 721
    assert image(NODE, "--at", "snapshot")["end_offset"] == 3128
    assert image(NODE, "--at", "-1d") == image(NODE, "--at=-1s") == image(NODE, "--at", "end")
    status, out, err = run("state", NODE, "--at", "epoch:7")
    assert (status, out) == (1, "")
    assert "has no leader epoch 7; its leader epochs are 1, 2" in err


def test_milliseconds_that_are_taken_for_an_offset_are_explained() -> None:
    status, _, err = run("state", NODE, "--at", "1795248258007")
    assert status == 1
    assert "a time is timestamp:1795248258007" in err


def test_a_snapshot_file_has_no_offsets_by_time() -> None:
    checkpoint = CHECKPOINTS[0]
    assert rows("cat", checkpoint, "--from", "start", "--to", "end") == rows("cat", checkpoint)
    status, _, err = run("cat", checkpoint, "--from", "-1d")
    assert status == 2
    assert "option --from: a snapshot has offsets of its own" in err


@pytest.fixture(autouse=True)
def terminal_without_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of pytest-xdist have a width of their own."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.mark.parametrize(
    "kind", nightly_except(("brokers", "configs", HISTORY_KINDS[0]), (*KINDS, *HISTORY_KINDS))
)
def test_a_terminal_gets_a_table_with_a_line_for_each_row(kind: str) -> None:
    table = on_terminal("state", NODE, kind)
    printed = rows("state", NODE, kind)
    assert len(table) == len(printed) + bool(printed)
    assert run("state", NODE, kind, "--format", "table")[1].splitlines() == table
    assert [
        json.loads(line) for line in on_terminal("state", NODE, kind, "--format", "json")
    ] == printed


def test_columns_of_a_table_are_aligned_and_long_values_are_cut() -> None:
    head, *table = on_terminal("state", NODE, "partitions")
    starts = [head.index(name) for name in ("PARTITION ID", "LEADER", "TOPIC ID")]
    partitions = rows("state", NODE, "partitions")
    by_name = sorted(partitions, key=lambda row: (row["topic_name"], row["partition_id"]))
    for line, row in zip(table, by_name, strict=True):
        cells = [line[start:].split("  ")[0] for start in starts]
        assert cells == [str(row["partition_id"]), str(row["leader"]), row["topic_id"]]
        assert line.startswith(row["topic_name"][:37])
    endpoints = rows("state", NODE, "brokers")[0]["endpoints"][0]
    brokers = on_terminal("state", NODE, "brokers")
    assert f"{endpoints['name']} {endpoints['host']}:{endpoints['port']}" in brokers[1]
    wide = {"name": "n" * 80, "value": "v" * 41}
    assert [_cell_text(*pair) for pair in wide.items()] == ["n" * 80, "v" * 37 + "..."]
    names = "team-a.orders.".ljust(100, "x") + "-v1"
    assert _cell_text("topic_name", names) == "team-a.orders." + "x" * 23 + "..." + "x" * 37 + "-v1"
    assert _cell_text("issue_timestamp_ms", 1795248258007) == "2026-11-21T08:04:18.007Z"


def test_a_table_has_the_in_sync_replicas_also_if_all_partitions_are_offline() -> None:
    head, first, *_ = on_terminal("state", NODE, "partitions")
    assert first[head.index("ISR") :].split()[0] == "-"


def test_names_that_differ_in_their_ends_are_distinct_on_a_narrow_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LogWriter(tmp_path / "__cluster_metadata-0")
    names = [f"team-orders.service-of-the-shop.events-of-payments.v{at}" for at in range(9)]
    for at, name in enumerate(names):
        writer.append(encode(TopicRecord(name=name, topic_id=f"{at}" * 21 + "A")))
    monkeypatch.setenv("COLUMNS", "40")
    head, *table = on_terminal("state", tmp_path, "topics")
    assert (head, len(set(table)), max(map(len, table))) == ("NAME", 9, 40)
    assert all(line.endswith(name[-20:]) for line, name in zip(table, names, strict=True))


def test_a_kind_without_rows_is_reported() -> None:
    for layout in ("json", "table"):
        status, out, err = run("state", NODE, "tokens", "--format", layout)
        assert (status, out, err.splitlines()[-1]) == (0, "", "raftlog: tokens: no rows")
    err = run("state", NODE, "configs", "--topic", "orders-m-1")[2]
    assert err.splitlines()[-1] == "raftlog: configs: no rows of topic 'orders-m-1'"


@pytest.mark.parametrize("kind", ["brokers", "partitions", "controllers", "topics"])
def test_a_table_is_not_wider_than_its_terminal(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = on_terminal("state", NODE, kind)
    columns = 60 if kind == "topics" else 80
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal, stderr = Terminal(), io.StringIO()
    assert main(["state", str(NODE), kind], terminal, stderr) == 0
    narrow = terminal.getvalue().decode().splitlines()
    assert max(map(len, narrow)) <= columns < max(map(len, wide))
    assert len(narrow) == len(wide)
    (names,) = re.findall(r"columns left out on this terminal: (.*);", stderr.getvalue())
    for name in names.split(", "):
        assert name.removesuffix("_name").removesuffix("_ms").replace("_", " ").upper() in wide[0]
    if kind == "partitions":
        assert narrow[0].split()[-2:] == ["ISR", "LEADER"]
        chosen = ("--columns", "topic_name,directories,leader")
        assert max(map(len, on_terminal("state", NODE, kind, *chosen))) > 80
    assert run("state", NODE, kind, "--format", "table")[1].splitlines() == wide, "a pipe has all"


def test_rows_of_one_topic_are_selected_by_its_name() -> None:
    for kind, column in (("topics", "name"), ("partitions", "topic_name")):
        all_rows = rows("state", NODE, kind)
        found = [row for row in all_rows if row[column] == "orders-0"]
        assert rows("state", NODE, kind, "--topic", "orders-0") == found != []
    configs = rows("state", NODE, "configs", "--topic", "orders-0")
    assert {(row["resource_type_name"], row["resource_name"]) for row in configs} == {
        ("TOPIC", "orders-0")
    }
    table = on_terminal("state", NODE, "partitions", "--topic", "orders-0")
    assert len(table) == 1 + len(rows("state", NODE, "partitions", "--topic", "orders-0"))
    status, out, err = run("state", NODE, "partitions", "--topic", "order-0")
    assert (status, out) == (0, "")
    assert "there is no topic 'order-0'; did you mean orders-0?" in err
    status, out, err = run("state", NODE, "brokers", "--topic", "orders-0")
    assert (status, out) == (2, "")
    assert "--topic requires KIND topics, partitions, configs" in err


def test_a_narrow_terminal_lacks_no_column_that_changes_the_meaning_of_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    (head, *_) = on_terminal("state", NODE, "acls")
    for name in ("PRINCIPAL", "PATTERN TYPE", "HOST", "OPERATION", "PERMISSION"):
        assert name in head
    assert "VALUE" in on_terminal("state", NODE, "configs")[0]


def test_a_terminal_gets_a_table_of_each_kind_that_has_rows(newest: dict[str, Any]) -> None:
    first, *table = on_terminal("state", NODE)
    assert first.startswith("end offset 3131, leader epoch 2, 2026-11-21T08:0")
    titles = [line for line in table if ": " in line and line[0].islower()]
    assert titles[: len(KINDS)] == [
        f"{kind}: {len(newest[kind])}" for kind in KINDS if newest[kind]
    ]


@pytest.mark.parametrize("layout", ["json", "table"])
def test_columns_of_a_kind_are_chosen_and_not_cut(layout: str) -> None:
    chosen = ("--columns", "name,topic_id", "--format", layout)
    status, out, err = run("state", NODE, "topics", *chosen, "--quiet")
    assert (status, err) == (0, "")
    everything = rows("state", NODE, "topics")
    assert max(len(row["name"]) for row in everything) > 100
    expected = [(row["name"], row["topic_id"]) for row in everything]
    lines = out.splitlines()
    if layout == "json":
        assert [tuple(json.loads(line).items()) for line in lines] == [
            (("name", name), ("topic_id", topic_id)) for name, topic_id in expected
        ]
    else:
        assert lines[0].split() == ["NAME", "TOPIC", "ID"]
        assert [tuple(line.split()) for line in lines[1:]] == sorted(expected)


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (("topics", "--columns", "nane"), "unknown column 'nane'; did you mean name?"),
        (("--columns", "name"), "--columns requires KIND"),
    ],
)
def test_wrong_columns_are_refused(argv: tuple[str, ...], hint: str) -> None:
    status, out, err = run("state", NODE, *argv)
    assert (status, out) == (2, "")
    assert hint in err


def test_a_quiet_command_prints_warnings_and_errors_only() -> None:
    assert run("diff", NODE, "--from", "1231", "--to", "1232", "--quiet")[2] == ""
    status, _, err = run("state", NODE, "--at", "9999", "--quiet")
    assert status == 1
    assert err.startswith("raftlog: [RAFTLOG_OFFSET_OUT_OF_RANGE]")
    err = run("state", NODE, "--as", "commands", "--quiet")[2]
    assert err
    assert all(line.startswith("raftlog: left out: ") for line in err.splitlines())


def test_a_quota_without_limit_is_valid_json(tmp_path: Path) -> None:
    """Kafka's controllers accept an infinite request_percentage."""
    user = EntityData(entity_type="user", entity_name="ana")
    quota = ClientQuotaRecord(entity=(user,), key="request_percentage", value=math.inf)
    LogWriter(tmp_path / "__cluster_metadata-0").append(encode(quota))

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    for argv in (("state",), ("diff", "--from", "0"), ("log", "--json")):
        _, out, _ = run(argv[0], tmp_path, *argv[1:])
        lines = [out] if argv == ("state",) else out.splitlines()
        found = [json.loads(line, parse_constant=refuse) for line in lines]
        assert '"Infinity"' in json.dumps(found), argv
