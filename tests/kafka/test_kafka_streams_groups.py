"""Records of a streams group that a running coordinator writes (KIP-1071).

The coordinator's description of the group, kafka-streams-groups and kafka-dump-log judge.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kio.schema.streams_group_describe.v0.response import DescribedGroup
from tests.kafka.internal_dumps import assert_printed_as_by_dump_log
from tests.kafka.streams_clients import BrokerConnection, StreamsMember, counting_topology
from tests.support.cli import rows, run
from tests.support.internal_records import records_in
from tests.support.kafka import KafkaNode, run_java, running_node
from tests.support.quorum_processes import eventually

from raftlog_state.records import Redactor
from raftlog_state.records.internal_logs import INTERNAL_LOGS
from raftlog_state.tables.reader import open_tables

pytestmark = pytest.mark.kafka

TOOL = "org.apache.kafka.tools.streams.StreamsGroupCommand"
GROUP = "app"
TOPIC = "__consumer_offsets"
SETTINGS = (
    "offsets.topic.num.partitions=1",
    "group.streams.initial.rebalance.delay.ms=0",
    "group.streams.min.assignment.interval.ms=0",
    "group.streams.assignment.interval.ms=0",
    "group.streams.num.standby.replicas=1",
    # No member expires on a busy machine.
    "group.streams.max.session.timeout.ms=600000",
    "group.streams.session.timeout.ms=600000",
)


class Step(NamedTuple):
    """Group after a request: the coordinator's description, ``raftlog state``, and tables."""

    described: DescribedGroup
    groups: list[dict[str, Any]]
    followed_groups: list[dict[str, Any]]
    followed_members: list[dict[str, Any]]


class History(NamedTuple):
    """Node that has had a streams group, and what was seen of it."""

    node: KafkaNode
    steps: dict[str, Step]
    tool_state: list[str]
    tool_members: list[list[str]]
    groups_after_deletion: list[dict[str, Any]]


class Observer:
    """Reader of the group's records while the members of the group change."""

    def __init__(self, node: KafkaNode, connection: BrokerConnection, tables: Path) -> None:
        self._node = node
        self._connection = connection
        self._tables = tables
        self.steps: dict[str, Step] = {}

    def look(self, name: str) -> DescribedGroup:
        described = self._connection.describe(GROUP)
        pattern = f"{self._node.log_dir}/{TOPIC}-*"
        words = ("--once", "--tail-holdback-ms", "0")
        status, _, err = run("tables", "follow", pattern, self._tables, *words)
        assert status == 0, err
        (one,) = rows("tables", "status", self._tables)
        view = open_tables(str(self._tables), cluster_id=str(one["cluster_id"])).latest()
        self.steps[name] = Step(
            described,
            rows("state", self._node.log_dir, "groups"),
            view.table("groups").to_pylist(),
            view.table("group_members").to_pylist(),
        )
        return described


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    home = tmp_path_factory.mktemp("streams")
    with (
        running_node(home, *SETTINGS) as node,
        BrokerConnection(node.bootstrap, "client-1") as connection,
    ):
        node.admin("create")
        eventually(lambda: connection.has_coordinator(GROUP), "a coordinator", patience_s=60)
        observer = Observer(node, connection, home / "tables")
        topology = counting_topology("orders-1")
        first, second = (StreamsMember(connection, GROUP, name, topology) for name in "ab")
        eventually(first.beat, "the first member joins", patience_s=60)
        observer.look("joined")
        eventually(lambda: first.beat() and first.tasks, "the topics are created", patience_s=60)
        observer.look("assigned")
        second.beat()
        observer.look("second joined")
        first.beat()
        observer.look("revoking")
        eventually(
            lambda: all([first.beat(), second.beat()]) and is_stable(connection), "a stable group"
        )
        observer.look("stable")
        state = describe_with_tool(node, "--state")[0]
        members = describe_with_tool(node, "--members", "--verbose")
        second.leave()
        observer.look("second left")
        first.leave()
        observer.look("empty")
        run_java(
            node.jars, TOOL, "--bootstrap-server", node.bootstrap, "--delete", "--group", GROUP
        )
        deleted = rows("state", node.log_dir, "groups")
        yield History(node, observer.steps, state, members, deleted)


def is_stable(connection: BrokerConnection) -> bool:
    return connection.describe(GROUP).group_state == "Stable"


def describe_with_tool(node: KafkaNode, *what: str) -> list[list[str]]:
    """Return the words of each line that kafka-streams-groups prints of the group."""
    arguments = ("--bootstrap-server", node.bootstrap, "--describe", "--group", GROUP, *what)
    lines = (line.split() for line in run_java(node.jars, TOOL, *arguments).splitlines())
    return [words for words in lines if words and words[0] == GROUP]


def test_records_are_printed_as_by_dump_log(history: History) -> None:
    segments = sorted(history.node.log_dir.glob(f"{TOPIC}-*/*.log"))
    types = set()
    for segment in segments:
        assert assert_printed_as_by_dump_log(history.node.jars, segment)
        for _, key, value in records_in(segment):
            text = INTERNAL_LOGS[TOPIC].text(key, value, Redactor())
            types.add((text.type_name, value is None))
    names = {name for name, _ in types}
    assert len(names) == 6
    assert types == {(name, is_deletion) for name in names for is_deletion in (False, True)}


def test_the_group_has_had_all_states(history: History) -> None:
    """So that no comparison below is of a group that did nothing."""
    found = {name: step.described.group_state for name, step in history.steps.items()}
    assert found == {
        "joined": "NotReady",
        "assigned": "Stable",
        "second joined": "Reconciling",
        "revoking": "Reconciling",
        "stable": "Stable",
        "second left": "Assigning",
        "empty": "Empty",
    }


def test_groups_are_those_that_the_coordinator_describes(history: History) -> None:
    for name, step in history.steps.items():
        described = step.described
        expected = {
            "group": GROUP,
            "type": "streams",
            "protocol_type": "streams",
            "state": None if described.members else described.group_state,
            "epoch": described.group_epoch,
            "assignment_epoch": described.assignment_epoch,
            "protocol": None,
            "leader": None,
        }
        ((row,), (followed,)) = step.groups, step.followed_groups
        assert {**row, "members": None} == {**expected, "members": None}, name
        assert followed.items() >= expected.items(), name
        assert followed["member_count"] == len(described.members), name
    assert history.groups_after_deletion == []


def test_members_are_those_that_the_coordinator_describes(history: History) -> None:
    for name, step in history.steps.items():
        expected = [
            {
                "member_id": one.member_id,
                "instance_id": one.instance_id,
                "client_id": one.client_id,
                "client_host": one.client_host,
                "rack_id": one.rack_id,
                "epoch": one.member_epoch,
                "assignment": [
                    (task.subtopology_id, sorted(task.partitions))
                    for task in one.assignment.active_tasks
                ],
            }
            for one in sorted(step.described.members, key=lambda one: one.member_id)
        ]
        followed = sorted(step.followed_members, key=lambda row: str(row["member_id"]))
        for found in (step.groups[0]["members"], followed):
            assert [
                {column: row[column] for column in one}
                | {
                    "assignment": [
                        (task["subtopology_id"], task["partitions"]) for task in row["assignment"]
                    ]
                }
                for one, row in zip(expected, found, strict=True)
            ] == expected, name


def test_the_state_of_a_member_is_what_it_waits_for(history: History) -> None:
    """A member revokes tasks, the other one waits for them. Kafka: ``streams.MemberState``."""
    found = {
        name: {row["member_id"]: row["state"] for row in step.followed_members}
        for name, step in history.steps.items()
    }
    assert found == {
        "joined": {"a": "Stable"},
        "assigned": {"a": "Stable"},
        "second joined": {"a": "Stable", "b": "UnreleasedTasks"},
        "revoking": {"a": "UnrevokedTasks", "b": "UnreleasedTasks"},
        "stable": {"a": "Stable", "b": "Stable"},
        "second left": {"a": "Stable"},
        "empty": {},
    }


def test_a_stable_group_is_what_kafkas_tool_prints(history: History) -> None:
    step = history.steps["stable"]
    (group,) = step.followed_groups
    assert history.tool_state[-2:] == ["Stable", str(group["member_count"])]
    printed = [
        # Group, assignment epoch, topology epoch, member, protocol, epoch, process, client, tasks
        (words[0], words[1], words[3], words[5], words[7], active_tasks(words[8:]))
        for words in history.tool_members
    ]
    assert sorted(printed) == sorted(
        (
            *(row["group"], str(group["assignment_epoch"]), row["member_id"], str(row["epoch"])),
            row["client_id"],
            "".join(f"{one['subtopology_id']}:{one['partitions']};" for one in row["assignment"]),
        )
        for row in step.followed_members
    )


def active_tasks(words: list[str]) -> str:
    """Return the active tasks of a member, which the tool prints first: ``ACTIVE: 0:[1]; ...``."""
    text = "".join(words)
    assert text.startswith("ACTIVE:")
    return text.removeprefix("ACTIVE:").partition("STANDBY:")[0]
