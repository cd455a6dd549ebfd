"""``raftlog diff A B``: the states of two clusters, compared by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import on_terminal, rows, run
from tests.support.small_logs import LogWriter
from tests.support.sweep_size import nightly_except

from raftlog_state import read_changes, read_report
from raftlog_state.records import (
    AccessControlEntryRecord,
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
    encode,
)

LOGS = Path(__file__).parents[2] / "data" / "kraft-logs"
NODE = LOGS / "three-nodes-4.3.1" / "node-100"
OBSERVER = LOGS / "three-nodes-4.3.1" / "node-1"
TRIMMED = LOGS / "trimmed-3.9.2" / "node-1"


def uuid(number: int) -> str:
    return f"{number:021d}A"


def write_cluster(home: Path, first_id: int, *more: MetadataRecord, leader: int = 1) -> Path:
    """Write a cluster of two brokers, two topics and an ACL, whose ids begin at ``first_id``."""
    names = ("a", "b") if first_id % 2 else ("b", "a")
    ids = {name: uuid(first_id + at) for at, name in enumerate(names)}
    writer = LogWriter(home / "__cluster_metadata-0")
    brokers = [
        RegisterBrokerRecord(broker_id=number, incarnation_id=uuid(first_id), broker_epoch=first_id)
        for number in (1, 2)
    ]
    topics: list[MetadataRecord] = []
    for name in names:
        topics.append(TopicRecord(name=name, topic_id=ids[name]))
        topics.append(
            PartitionRecord(
                partition_id=0,
                topic_id=ids[name],
                replicas=(1, 2),
                isr=(1, 2),
                leader=leader,
                leader_epoch=first_id,
                directories=(uuid(first_id + 7), uuid(first_id + 8)),
            )
        )
    acl = AccessControlEntryRecord(
        id=uuid(first_id + 9),
        resource_type=2,
        resource_name="a",
        pattern_type=3,
        principal="User:alice",
        host="*",
        operation=3,
        permission_type=3,
    )
    for record in (*brokers, *topics, acl, *more):
        writer.append(encode(record))
    return home


def differences(*argv: str | Path) -> list[dict[str, Any]]:
    status, out, err = run("diff", *argv)
    found = [json.loads(line) for line in out.splitlines()]
    assert status == (1 if found else 0), err
    return found


def test_clusters_that_differ_in_ids_and_elections_alone_are_equal(tmp_path: Path) -> None:
    one = write_cluster(tmp_path / "one", 11)
    two = write_cluster(tmp_path / "two", 30, leader=2)
    assert differences(one, one) == []
    assert differences(one, two, "--ignore", "ids,epochs,leaders") == []
    ids = differences(one, two, "--ignore", "epochs,leaders")
    assert {column for row in ids for column in row["changed"]} == {
        *("topic_id", "acl_id", "incarnation_id", "directories"),
    }
    leaders = differences(one, two, "--ignore", "ids,epochs")
    assert [(row["entity"], row["key"], row["changed"]) for row in leaders] == [
        ("partition", ["a", 0], {"leader": {"before": 1, "after": 2}}),
        ("partition", ["b", 0], {"leader": {"before": 1, "after": 2}}),
    ]


def test_what_one_cluster_lacks_or_has_otherwise_is_printed(tmp_path: Path) -> None:
    def config(value: str) -> ConfigRecord:
        return ConfigRecord(resource_type=2, resource_name="a", name="retention.ms", value=value)

    one = write_cluster(tmp_path / "one", 11, config("1"))
    two = write_cluster(tmp_path / "two", 30, config("2"), TopicRecord(name="c", topic_id=uuid(99)))
    ignore = ("--ignore", "ids,epochs,leaders")
    found = differences(one, two, *ignore)
    assert [(row["entity"], row["key"], row["op"]) for row in found] == [
        ("topic", ["c"], "c"),
        ("config", [2, "a", "retention.ms"], "u"),
    ]
    assert found[1]["changed"] == {"value": {"before": "1", "after": "2"}}
    reverse = differences(two, one, *ignore)[0]
    assert (reverse["key"], reverse["op"]) == (["c"], "d")


def test_each_side_has_its_point_in_time(tmp_path: Path) -> None:
    checkpoint = next(NODE.rglob("*1762-*.checkpoint"))
    assert differences(NODE, checkpoint, "--from", "1762") == []
    assert differences(NODE, NODE, "--from", "snapshot", "--to", "snapshot") == []
    two = differences(NODE, NODE, "--from", "2026-11-21 08:04:18", "--to", "1232")
    one = rows("diff", NODE, "--from", "2026-11-21 08:04:18", "--to", "1232")
    by_name = {
        tuple(row["key"]) if row["entity"] != "partition" else (row["topic_name"], row["key"][1]): (
            row["changed"]
        )
        for row in one
    }
    assert {tuple(row["key"]): row["changed"] for row in two} == by_name != {}


def test_a_table_has_a_line_for_each_row_that_differs() -> None:
    between = (NODE, "--from", "1231", "--to", "1272", "--format", "table")
    status, out, _ = run("diff", *between)
    head, *lines = out.splitlines()
    assert (status, head.split()) == (0, ["OP", "NAME", "WHAT", "CHANGED"])
    assert [line.split(None, 2) for line in lines if " broker/" in line] == [
        ["deleted", "broker/3", "deleted"]
    ]
    assert len(lines) == len(rows("diff", *between[:-2]))
    assert max(map(len, lines)) <= len("changed  ") + 80 + 2 + 120, "a topic has a longer name"

    status, out, _ = run(
        "diff", NODE, NODE, "--from", "1231", "--to", "1232", "--format", "table", "--ignore", "ids"
    )
    assert (status, [line.split(None, 2) for line in out.splitlines()[1:]]) == (
        1,
        [["changed", "broker/3", "fenced false -> true"]],
    )
    status, out, err = run("diff", NODE, NODE, "--format", "table")
    assert (status, out, err.splitlines()[-1]) == (0, "", "raftlog: the states do not differ")
    status, _, err = run("diff", NODE, NODE, "--format", "table", "--changes")
    assert status == 2
    assert "--format is for differences" in err


def test_a_terminal_gets_a_table_of_differences() -> None:
    between = ("diff", NODE, "--from", "1231", "--to", "1232")
    assert [line.split(None, 2) for line in on_terminal(*between)] == [
        ["OP", "NAME", "WHAT CHANGED"],
        ["changed", "broker/3", "fenced false -> true"],
    ]


def test_real_clusters_differ_by_the_names_of_their_topics() -> None:
    found = differences(NODE, TRIMMED, "--ignore", "ids,epochs,leaders")
    topics = {
        op: {row["key"][0] for row in found if (row["entity"], row["op"]) == ("topic", op)}
        for op in "cdu"
    }
    names = [{row["name"] for row in rows("state", one, "topics")} for one in (NODE, TRIMMED)]
    assert topics == {"d": names[0] - names[1], "c": names[1] - names[0], "u": set()}


def test_no_secret_of_two_sources_is_printed(tmp_path: Path) -> None:
    password = ConfigRecord(
        resource_type=4, resource_name="1", name="ssl.key.password", value="squirrel"
    )
    one = write_cluster(tmp_path / "one", 11)
    two = write_cluster(tmp_path / "two", 11, password)
    status, out, err = run("diff", one, two)
    assert (status, len(out.splitlines())) == (1, 1)
    assert "squirrel" not in out + err


def test_secrets_are_compared_by_their_keyed_hashes_only(tmp_path: Path) -> None:
    one, two = (
        write_cluster(
            tmp_path / value,
            11,
            ConfigRecord(resource_type=4, resource_name="1", name="ssl.key.password", value=value),
        )
        for value in ("squirrel", "marmot")
    )
    key = tmp_path / "key"
    key.write_bytes(b"a key of a test, 32 bytes of text")
    status, out, err = run("diff", one, two)
    assert (status, out) == (0, "")
    assert "secrets are masked and not compared; --redact-key-file compares them" in err
    status, out, err = run("diff", one, two, "--redact-key-file", key)
    assert (status, len(out.splitlines())) == (1, 1)
    assert "not compared" not in err


@pytest.mark.parametrize("option", ["--tls-ca", "--timeout-ms"])
def test_an_option_of_nodes_requires_nodes(option: str) -> None:
    status, _, err = run("diff", NODE, TRIMMED, option, "5")
    assert status == 2
    assert f"{option} requires --bootstrap-server" in err


# --- Delta tables ---------------------------------------------------------------------------------


def follow_once(log: Path, tables: Path, *options: str) -> None:
    holdback = ("--tail-holdback-ms", "0")
    status, _, err = run("tables", "follow", log, tables, "--once", *holdback, *options)
    assert status == 0, err


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of the whole log of one node."""
    place = tmp_path_factory.mktemp("delta") / "tables"
    follow_once(OBSERVER, place)
    return place


@pytest.mark.slow
@pytest.mark.parametrize(
    "at",
    nightly_except(
        ["2026-11-21T08:04:18.007Z"],
        [
            *("1231", "epoch:2", "end", "2026-11-21T08:04:18.007Z"),
            *("799", "2685", "2026-11-21 08:04:18", "timestamp:1795248258007"),
        ],
    ),
)
def test_tables_have_the_states_of_their_log(tables: Path, at: str) -> None:
    assert differences(tables, OBSERVER, "--from", at, "--to", at) == []
    assert rows("state", tables, "epochs", "--at", at) == rows(
        "state", OBSERVER, "epochs", "--at", at
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", nightly_except(["configs"], ["partitions", "configs"]))
def test_tables_have_the_rows_of_their_log(tables: Path, kind: str) -> None:
    assert differences(OBSERVER, tables, "--from", "1231", "--to", "1231") == []
    assert rows("state", tables, kind, "--at", "1231") == rows(
        "state", OBSERVER, kind, "--at", "1231"
    )


@pytest.mark.slow
@pytest.mark.parametrize("command", [("diff", OBSERVER), ("report", "-o", "c.svg")])
def test_nodes_beside_tables_are_refused(tables: Path, command: tuple[str, ...]) -> None:
    """They were ignored: the answer was that of the tables."""
    name, *rest = command
    status, out, err = run(name, tables, *rest, "--bootstrap-server", "localhost:1")
    assert (status, out) == (2, "")
    assert "PATH and --bootstrap-server are mutually exclusive" in err
    assert not Path("c.svg").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(("--json",), marks=pytest.mark.nightly),
        ("topic/orders-0", "--partitions"),
        ("broker/3", "--from", "1200", "--to", "2026-11-21 08:04:50", "--json"),
        pytest.param(
            ("config/topic/orders-0/cleanup.policy", "--from", "epoch:2"),
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_tables_have_the_history_of_their_log(tables: Path, wanted: tuple[str, ...]) -> None:
    status, out, err = run("log", tables, *wanted)
    assert (status, out) == (0, run("log", OBSERVER, *wanted)[1])
    assert out, err


def test_a_name_without_changes_in_tables_is_reported(tables: Path) -> None:
    status, out, err = run("log", tables, "topic/nope", "--from", "start")
    assert (status, out) == (0, "")
    assert "no changes of topic/nope in the offsets from 0 to 2685 (exclusive)" in err


def test_tables_are_not_followed(tables: Path) -> None:
    status, _, err = run("log", tables, "--follow")
    assert status == 2
    assert "--follow requires a log: PATH is a directory of Delta tables" in err


def test_functions_read_tables_as_logs(tables: Path) -> None:
    of_tables, of_log = (
        list(read_changes(source, entity="broker", since=1200, until="2026-11-21 08:04:50"))
        for source in (tables, OBSERVER)
    )
    assert of_tables == of_log != []
    report = read_report(tables, since=1200, until=2000)
    assert report.before == read_report(OBSERVER, since=1200, until=2000).before


def test_tables_at_two_offsets_differ_as_the_log_does(tables: Path) -> None:
    between = ("--from", "1000", "--to", "2000")
    found = rows("diff", tables, *between)
    assert found == rows("diff", OBSERVER, *between) != []
    assert (
        run("diff", tables, *between, "--changes")[1]
        == (run("diff", OBSERVER, *between, "--changes")[1])
    )


@pytest.mark.slow
def test_one_of_several_clusters_in_tables_is_chosen_on_each_side(tmp_path: Path) -> None:
    homes = [write_cluster(tmp_path / name, at) for name, at in (("one", 11), ("two", 30))]
    for home, cluster in zip(homes, ("c1", "c2"), strict=True):
        follow_once(home, tmp_path / "both", "--cluster-id", cluster)
    both = tmp_path / "both"
    sides = ("--cluster-id", "c1", "--other-cluster-id", "c2")
    assert {row["entity"] for row in differences(both, both, *sides)} >= {"topic", "broker"}
    assert differences(both, both, *sides, "--ignore", "ids,epochs,leaders") == []
    assert differences(both, homes[0], "--cluster-id", "c1") == []
    assert differences(homes[1], both, "--other-cluster-id", "c2") == []
    status, out, err = run("diff", both, homes[0])
    assert (status, out) == (2, ""), "not 1, which is that the states differ"
    assert "c1, c2" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (("--from", "snapshot"), "option --from: tables have no snapshots"),
        (("--from", "200", "--to", "100"), "option --from: offset 200 is after that of --to, 100"),
        (("--from", "1", "--timeout-ms", "5"), "--timeout-ms requires --bootstrap-server"),
        (("--from", "2026-13-21"), "is not an offset"),
    ],
)
def test_wrong_points_of_tables_are_refused(tables: Path, argv: tuple[str, ...], hint: str) -> None:
    status, out, err = run("diff", tables, *argv)
    assert (status, out) == (2, "")
    assert hint in err
