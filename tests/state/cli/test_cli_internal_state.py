"""``raftlog state`` of consumer offsets, groups and transactions."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from tests.support.cli import rows, run
from tests.support.internal_records import DATA, GROUPS_NODE, InternalLogFile
from tests.support.scripted_brokers import Script, scripted_brokers
from tests.support.small_logs import copy_log

from raftlog_state.cli.internal_state import INTERNAL_KINDS, number_ranges
from raftlog_state.internal.joined_rows import JOINED_KINDS
from raftlog_state.internal.rows import ROW_KINDS

METADATA_NODE = DATA / "kraft-logs" / "three-nodes-4.3.1" / "node-100"
REMOTE_LOG = DATA / "remote-log-metadata-4.3.1" / "__remote_log_metadata-0"
COMMIT = b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x07"


def test_a_nodes_directory_has_the_groups_of_all_its_partitions() -> None:
    found = rows("state", GROUPS_NODE, "groups")
    assert [row["group"] for row in found] == [
        *("atomic", "classic", "modern", "pattern", "shared", "simple")
    ]
    assert rows("state", f"{GROUPS_NODE}/__consumer_offsets-*", "groups") == found
    parts = [
        row
        for path in GROUPS_NODE.glob("__consumer_offsets-*")
        for row in rows("state", path, "groups")
    ]
    assert sorted(parts, key=lambda row: str(row["group"])) == found


def test_the_assignment_epoch_of_a_group_is_that_of_its_target_assignment() -> None:
    """The records are those of kafka-dump-log, see ``test_cli_cat_internal_logs``."""
    epochs = {
        record["key"]["data"]["groupId"]: record["value"]["data"]["assignmentEpoch"]
        for path in GROUPS_NODE.glob("__consumer_offsets-*")
        for record in rows("cat", path)
        if record["type"].endswith("TARGET_ASSIGNMENT_METADATA") and record["value"] is not None
    }
    assert epochs.keys() == {"modern", "pattern", "shared"}
    found = {row["group"]: row["assignment_epoch"] for row in rows("state", GROUPS_NODE, "groups")}
    assert found == dict.fromkeys(found) | epochs


def test_open_transactions_are_reported_and_their_offsets_are_not_state() -> None:
    status, out, err = run("state", GROUPS_NODE, "consumer_offsets")
    assert status == 0
    assert '"offset":99' not in out
    assert "producer 2 has an open transaction since offset 16, " in err
    assert err.splitlines()[0].endswith(", with 1 pending offset")
    (row,) = [
        row for row in rows("state", GROUPS_NODE, "consumer-offsets") if row["group"] == "atomic"
    ]
    assert row["offset"] == 3


def test_a_table_has_assignments_in_the_form_of_kafkas_tool() -> None:
    """As ``ConsumerGroupCommand`` with ``--members --verbose``: ``TOPIC:0,1;OTHER:0``."""
    status, out, _ = run("state", GROUPS_NODE, "group_members", "--format", "table")
    assert status == 0
    (classic,) = [line for line in out.splitlines() if line.startswith("classic ")]
    assert " orders:0,1,2 " in classic
    assert " rkIVHuT-Tayb9T6sEwDlNg:0,1,2 " in out


def test_offsets_of_one_topic_are_selected_by_its_name() -> None:
    found = rows("state", GROUPS_NODE, "consumer_offsets", "--topic", "orders")
    assert found == [
        row for row in rows("state", GROUPS_NODE, "consumer_offsets") if row["topic"] == "orders"
    ]
    assert found
    status, out, err = run("state", GROUPS_NODE, "lag", "--topic", "order")
    assert (status, out) == (0, "")
    assert "lag: no rows of topic 'order'; did you mean orders?" in err
    assert "--topic requires KIND" in run("state", GROUPS_NODE, "groups", "--topic", "orders")[2]


def test_transactions_of_producers_are_those_of_their_own_log() -> None:
    for path in (GROUPS_NODE / "__transaction_state-1", f"{GROUPS_NODE}/__transaction_state-*"):
        found = rows("state", path, "transactions")
        assert [(row["transactional_id"], row["state"]) for row in found] == [
            ("t-ended", "CompleteAbort"),
            ("t-open", "Ongoing"),
        ]


def test_the_state_at_an_offset_has_the_records_below_it(tmp_path: Path) -> None:
    log = InternalLogFile(tmp_path / "__consumer_offsets-0")
    commit = b"\x00\x00" + bytes(7) + b"\x05\x00\x00" + bytes(8)
    log.append((COMMIT, commit))
    log.append((COMMIT, None))
    assert rows("state", log.path, "consumer_offsets") == []
    (row,) = rows("state", log.path, "consumer_offsets", "--at", "1")
    assert (row["group"], row["topic"], row["partition"], row["offset"]) == ("g", "t", 7, 5)
    segment = log.path / "00000000000000000000.log"
    assert rows("state", segment, "consumer_offsets", "--at", "1") == [row]


def test_a_table_has_a_line_for_each_group() -> None:
    status, out, _ = run("state", GROUPS_NODE, "groups", "--format", "table")
    assert status == 0
    head, *lines = out.splitlines()
    assert head.split()[:2] == ["GROUP", "TYPE"]
    assert [line.split()[0] for line in lines][:2] == ["atomic", "classic"]


def test_directories_with_other_names_are_no_partitions(tmp_path: Path) -> None:
    suffix = f"{'4f2a1c6d' * 4}-delete"
    for name in ("1", "12", "2-", "-", "3-4", f"5.{suffix}", "1234567890123", "\u0661"):
        log = InternalLogFile(tmp_path / f"__consumer_offsets-{name}")
        log.append((COMMIT, b"\x00\x00" + bytes(18)))
    for path in (tmp_path, f"{tmp_path}/__consumer_offsets-*"):
        status, out, err = run("state", path, "consumer_offsets")
        assert status == 0
        assert len(out.splitlines()) == 2
        (line,) = [line for line in err.splitlines() if "read up to" in line]
        assert line.startswith("raftlog: __consumer_offsets, partitions 1, 12: each is read up to ")
    for name in ("2-", "\u0661"):
        status, _, err = run("state", tmp_path / f"__consumer_offsets-{name}", "groups")
        assert (status, "is or has no partition" in err) == (2, True)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([4], "4"), ([0, 1], "0, 1"), ([*range(50)], "0 to 49"), ([1, 3, 4, 5, 9], "1, 3 to 5, 9")],
)
def test_partitions_that_follow_each_other_are_printed_as_a_range(
    numbers: list[int], text: str
) -> None:
    assert number_ranges(numbers) == text


def test_two_copies_of_a_partition_are_refused(tmp_path: Path) -> None:
    for node in ("a", "b"):
        InternalLogFile(tmp_path / node / "__transaction_state-3").append(
            (b"\x00\x00\x00\x01t", None)
        )
    status, _, err = run("state", f"{tmp_path}/*/__transaction_state-*", "transactions")
    assert status == 2
    assert "__transaction_state-3 twice" in err


def test_a_state_at_an_offset_that_the_log_does_not_have_is_refused(tmp_path: Path) -> None:
    log = InternalLogFile(tmp_path / "__consumer_offsets-0")
    log.append((COMMIT, None), (COMMIT, None))
    assert rows("state", log.path, "groups", "--at", "2") == []
    status, out, err = run("state", log.path, "groups", "--at", "3")
    assert (status, out) == (1, "")
    assert err.startswith("raftlog: [RAFTLOG_OFFSET_OUT_OF_RANGE]")
    assert "log end offset 2" in err


@pytest.mark.parametrize("kind", ROW_KINDS)
def test_columns_are_chosen_of_those_that_each_row_has(kind: str) -> None:
    path = f"{GROUPS_NODE}/{ROW_KINDS[kind].topic}-*"
    found = rows("state", path, kind)
    assert found
    assert all(tuple(row) == ROW_KINDS[kind].columns for row in found)
    last, *_, first = ROW_KINDS[kind].columns
    chosen = ("--columns", f"{first},{last}")
    assert [list(row.items()) for row in rows("state", path, kind, *chosen)] == [
        [(name, row[name]) for name in (first, last)] for row in found
    ]
    table = run("state", path, kind, *chosen, "--format", "table")[1].splitlines()
    assert len(table) == len(found) + 1
    titles = [name.removesuffix("_ms").replace("_", " ").upper() for name in (first, last)]
    assert table[0].split("  ")[0] == titles[0]
    assert table[0].endswith(titles[1])
    status, out, err = run("state", path, kind, "--columns", "nonsense")
    assert (status, out) == (2, "")
    assert "unknown column 'nonsense'" in err


def test_full_redaction_hides_clients() -> None:
    assert "note of" in run("state", GROUPS_NODE, "consumer_offsets")[1]
    assert "note of" not in run("state", GROUPS_NODE, "consumer_offsets", "--redact", "full")[1]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["{node}", "groups", "--at", "3"], "--at requires one partition"),
        (["{node}", "groups", "--format", "records"], "it cannot be used with KIND"),
        (["{node}/..", "groups"], "is or has no partition of __consumer_offsets"),
        (["{node}/__transaction_state-1", "groups"], "is or has no partition"),
        (["{node}/__nothing-*", "groups"], "is or has no partition"),
        (["groups", "--bootstrap-server", "127.0.0.1:1"], "only lag is read from running brokers"),
    ],
)
def test_calls_that_name_no_such_log_are_refused(arguments: list[str], text: str) -> None:
    status, _, err = run("state", *[word.format(node=GROUPS_NODE) for word in arguments])
    assert status == 2
    assert text in err


def test_a_directory_that_cannot_be_listed_is_no_directory_without_partitions(
    tmp_path: Path,
) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path, text in (
        (loop, "[RAFTLOG_LOG_ACCESS]"),
        (loop / "__consumer_offsets-*", "[RAFTLOG_LOG_ACCESS]"),
        (tmp_path / "none", "[RAFTLOG_LOG_NOT_FOUND]"),
        (METADATA_NODE / "meta.properties", "[RAFTLOG_NOT_A_LOG]"),
    ):
        status, out, err = run("state", path, "lag")
        assert (status, out) == (2, "")
        assert text in err


def test_a_nodes_directory_that_only_may_be_entered_is_an_error_of_access(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = tmp_path / "node-1"
    shutil.copytree(GROUPS_NODE, node)
    listed = os.listdir

    def denied(path: str) -> list[str]:
        if os.path.samefile(path, node):
            raise PermissionError(errno.EACCES, "Permission denied")
        return listed(path)

    monkeypatch.setattr(os, "listdir", denied)
    status, out, err = run("state", "--quiet", node / "__consumer_offsets-1", "lag")
    assert (status, out) == (2, "")
    assert f"[RAFTLOG_LOG_ACCESS] {node} cannot be read: permission denied" in err


def test_the_command_has_every_kind_of_rows() -> None:
    """Its names are written again, because a parser does not import what replays logs."""
    assert {*INTERNAL_KINDS, "transactions"} == ROW_KINDS.keys() | JOINED_KINDS.keys()


# --- Joined with other partitions of the node -----------------------------------------------------


def node_with_groups(tmp_path: Path) -> Path:
    """Return a node's directory with groups, their topic, and a metadata log without the topic."""
    node = tmp_path / "node-1"
    shutil.copytree(GROUPS_NODE, node)
    copy_log(METADATA_NODE / "__cluster_metadata-0", node / "__cluster_metadata-0", end_offset=3131)
    for number in range(2):
        InternalLogFile(node / f"orders-{number}").append(*[(None, b"v")] * (12 + number))
    (node / "orders-2").mkdir()  # being created
    (node / f"orders-0.{'0' * 32}-delete").mkdir()
    return node


def test_lag_has_the_ends_of_the_nodes_partitions_and_the_state_of_topics(tmp_path: Path) -> None:
    node = node_with_groups(tmp_path)
    found = rows("state", node, "lag")
    assert rows("state", f"{node}/__consumer_offsets-*", "lag") == found
    commits = rows("state", node, "consumer_offsets")
    assert [(row["group"], row["offset"]) for row in found] == [
        (row["group"], row["offset"]) for row in commits
    ]
    modern = [row for row in found if row["group"] == "modern"]
    assert [(row["log_end_offset"], row["lag"]) for row in modern] == [
        *((12, 2), (13, 3), (None, None))
    ]
    assert {row["topic_state"] for row in found} == {"Deleted"}
    shutil.rmtree(node / "__cluster_metadata-0")
    assert {row["topic_state"] for row in rows("state", node, "lag")} == {None}


def test_open_transactions_hang_unless_a_coordinator_knows_them(tmp_path: Path) -> None:
    node = node_with_groups(tmp_path)
    bills = InternalLogFile(node / "bills-0")
    bills.append((b"k", b"v"), producer_id=2)
    bills.append((b"k", b"v"), producer_id=77, epoch=3)
    found = rows("state", node, "hanging_transactions")
    assert [(row["topic"], row["producer_id"], row["start_offset"]) for row in found] == [
        ("bills", 77, 1)
    ]
    assert rows("state", node / "__transaction_state-1", "hanging-transactions") == found
    never = ("--max-transaction-timeout", "99999999")
    assert rows("state", node, "hanging_transactions", *never) == []
    shutil.rmtree(node / "__transaction_state-1")
    status, _, err = run("state", node, "hanging_transactions")
    assert (status, "no partition of __transaction_state" in err) == (2, True)


def test_lag_is_that_of_running_brokers() -> None:
    """In ``tests/kafka`` it is compared with kafka-consumer-groups."""
    script = Script(
        groups={"orders": (0, "Classic")},
        commits={"orders": {("t", 0): 3, ("t", 1): 5, ("gone", 0): 1}},
        leaders={("t", 0): 0, ("t", 1): -1},
        ends={("t", 0): (1, 9)},
    )
    with scripted_brokers(script, broker_count=1) as address:
        given = ("--bootstrap-server", address, "--timeout-ms", "0")
        status, out, err = run("state", *given, "lag")
        assert run("state", *given, "lag", "--cluster-id", "other")[0] == 2
    assert (status, [tuple(json.loads(line).values()) for line in out.splitlines()]) == (
        0,
        [
            ("orders", "gone", 0, 1, None, None, None, "Deleted"),
            ("orders", "t", 0, 3, 1, 9, 6, "Current"),
            ("orders", "t", 1, 5, None, None, None, "Current"),
        ],
    )
    assert "t-1: the lag is unknown: it has no leader" in err


def test_the_options_of_joined_kinds_are_checked() -> None:
    for words, problem in (
        (("lag", "--at", "3"), "present ends"),
        (("lag", "--max-transaction-timeout", "3"), "requires KIND hanging_transactions"),
        (("hanging_transactions", "--max-transaction-timeout", "-3"), "number of minutes"),
        (("lag", "--columns", "lags"), "lag"),
        (("lag", "--timeout-ms", "5"), "requires --bootstrap-server"),
    ):
        status, _, err = run("state", GROUPS_NODE, *words)
        assert (status, problem in err) == (2, True), err


def test_remote_segments_are_printed_with_what_the_node_has(tmp_path: Path) -> None:
    node = tmp_path / "node-1"
    shutil.copytree(REMOTE_LOG, node / REMOTE_LOG.name)
    found = rows("state", node, "remote_segments")
    assert found
    assert {row["only_remote"] for row in found} == {None}
    copied = {
        row["data"]["remoteLogSegmentId"]["id"]
        for row in rows("cat", REMOTE_LOG)
        if row["type"] == "REMOTE_LOG_SEGMENT_METADATA_RECORD"
    }
    assert {row["segment_id"] for row in found} == copied
    first = found[0]
    InternalLogFile(node / f"{first['topic']}-{first['partition']}").append((None, b"v"))
    assert {row["only_remote"] for row in rows("state", node, "remote_segments")} == {False}
