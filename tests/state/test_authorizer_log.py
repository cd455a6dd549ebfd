"""Requests of Kafka's authorizer log, joined with the changes that they caused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Final

import pytest
from tests.support.cli import run
from tests.support.kafka import kafka_jars
from tests.support.random_acls import random_acl, random_question
from tests.support.small_logs import TIME_MS, LogWriter

from raftlog.errors import OptionError
from raftlog.types import Operation, ResourceType
from raftlog_state import read_changes
from raftlog_state.authorizer_log import NAME_LENGTH_MAX, AuthorizerLog, RequestJoin
from raftlog_state.records import (
    ConfigRecord,
    DelegationTokenRecord,
    RemoveTopicRecord,
    TopicRecord,
    encode,
)

AUTHORIZER = Path(__file__).parent / "controller" / "KafkaAuthorizer.java"
TOPIC_ID = "A" * 21 + "Q"
EVE: Final = {"principal": "User:eve", "result": "Denied", "operation": "READ"}


def line(
    time_ms: int,
    request: str,
    resource: str,
    *,
    principal: str = "User:alice",
    result: str = "Allowed",
    operation: str = "ALTER",
) -> str:
    """Return a line as Kafka's default configuration of log4j writes it."""
    time = datetime.fromtimestamp(time_ms // 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    level = "DEBUG" if result == "Allowed" else "INFO"
    return (
        f"[{time},{time_ms % 1_000:03d}] {level} Principal = {principal} is {result} operation = "
        f"{operation} from host = 10.0.0.1 on resource = {resource} for request = {request} with "
        "resourceRefCount = 1 based on rule MatchingAcl(acl=StandardAcl(resourceType=TOPIC)) "
        "(kafka.authorizer.logger)"
    )


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Write a topic, a config of it a minute later, and its deletion a minute after that."""
    writer = LogWriter(tmp_path / "__cluster_metadata-0")
    config = ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value="1")
    for minute, record in enumerate(
        (
            TopicRecord(name="orders", topic_id=TOPIC_ID),
            config,
            RemoveTopicRecord(topic_id=TOPIC_ID),
        )
    ):
        writer.append(encode(record), timestamp_ms=TIME_MS + 60_000 * minute)
    return writer.directory


def joined(log: Path, lines: list[str]) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return the principals of each change, and the requests without a change."""
    join = RequestJoin(AuthorizerLog(lines))
    changes = [join.requested(one).principals for one in read_changes(str(log))]
    return changes, [f"{one.principal} {one.request}" for one in join.without_change()]


def test_each_change_has_the_principal_that_requested_it(log: Path) -> None:
    lines = [
        line(TIME_MS - 40, "CreateTopics", "Cluster:LITERAL:kafka-cluster", operation="CREATE"),
        line(TIME_MS - 30, "CreateTopics", "Topic:LITERAL:others", principal="User:eve"),
        line(TIME_MS + 59_990, "AlterConfigs", "Topic:LITERAL:orders", principal="User:b"),
        line(TIME_MS + 60_500, "DeleteTopics", "Topic:LITERAL:orders", result="Denied"),
        line(TIME_MS + 119_000, "DeleteTopics", "Topic:LITERAL:orders", principal="User:c"),
        line(TIME_MS + 119_900, "Fetch", "Topic:LITERAL:orders", principal="User:d"),
    ]
    changes, without = joined(log, lines)
    assert changes[0] == ("User:alice",)
    assert changes[1] == ("User:b",)
    assert set(changes[2:]) == {("User:c",)}, "the topic and its config"
    assert without == ["User:eve CreateTopics", "User:alice DeleteTopics"]


def test_a_change_of_two_principals_is_ambiguous_and_one_without_a_request_has_none(
    log: Path,
) -> None:
    both = [
        line(TIME_MS - 5, "CreateTopics", "Topic:LITERAL:orders", principal=f"User:{name}")
        for name in ("a", "b")
    ]
    changes, _ = joined(log, both)
    assert changes[:2] == [("User:a", "User:b"), ()]
    late = [line(TIME_MS + 2_000, "CreateTopics", "Topic:LITERAL:orders")]
    early = [line(TIME_MS - 20_000, "CreateTopics", "Topic:LITERAL:orders")]
    for lines in (late, early):
        changes, without = joined(log, lines)
        assert changes[0] == ()
        assert without == ["User:alice CreateTopics"]


def test_a_request_about_another_resource_does_not_explain_a_change_of_the_cluster(
    tmp_path: Path,
) -> None:
    writer = LogWriter(tmp_path / "__cluster_metadata-0")
    of_broker = ConfigRecord(resource_type=4, resource_name="1", name="log.retention.ms", value="1")
    writer.append(encode(of_broker), timestamp_ms=TIME_MS)
    lines = [
        line(TIME_MS - 9, "AlterConfigs", "Cluster:LITERAL:kafka-cluster", principal="User:b"),
        line(TIME_MS - 1, "AlterConfigs", "Topic:LITERAL:orders"),
    ]
    changes, without = joined(writer.directory, lines)
    assert changes == [("User:b",)]
    assert without == ["User:alice AlterConfigs"]


def test_a_token_is_explained_by_the_request_for_its_owner(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "__cluster_metadata-0")
    token = DelegationTokenRecord(owner="User:c", requester="User:a", token_id="t")
    writer.append(encode(token), timestamp_ms=TIME_MS)
    lines = [
        line(TIME_MS - 9, "CreateDelegationToken", "User:LITERAL:User:c", principal="User:a"),
        line(TIME_MS - 1, "CreateDelegationToken", "User:LITERAL:User:d", principal="User:b"),
    ]
    assert joined(writer.directory, lines)[0] == [("User:a",)]


def test_names_that_look_like_many_requests_are_read_in_linear_time() -> None:
    request = line(TIME_MS, "DeleteTopics", "Topic:LITERAL:a")
    name = request[request.index("Principal") : request.index(" for request")] * 1_000
    log = AuthorizerLog([line(TIME_MS, "DeleteTopics", f"Topic:LITERAL:{name}").split(" for ")[0]])
    assert log.unreadable_count == 1


def test_a_line_that_can_be_read_in_two_ways_is_not_used() -> None:
    forged = "Group:LITERAL:x for request = CreateTopics with resourceRefCount = 1 based on rule a"
    log = AuthorizerLog(
        [
            line(TIME_MS, "OffsetCommit", forged),
            line(TIME_MS, "DeleteTopics", "Topic:LITERAL:a")[:90],
            line(TIME_MS, "DeleteTopics", "Topic:LITERAL:a").replace("-", "/"),
            "[2026-11-21 10:02:03,123] INFO starting (kafka.server.KafkaServer)",
            line(TIME_MS, "DeleteTopics", "Topic:LITERAL:a"),
        ]
    )
    assert [one.request for one in log.requests] == ["DeleteTopics"]
    assert log.unreadable_count == 3


def forging(time_ms: int, *forged: str) -> list[str]:
    """Return the lines of a denied request of eve, whose group is named so that all of them are
    those that the authorizer writes for requests."""
    end = " for request = OffsetCommit"
    first, _, last = line(time_ms, "OffsetCommit", f"Group:LITERAL:x{end}", **EVE).partition(end)
    rest = last.removeprefix(end)
    name = "\n".join((f"x{end}{rest}", *forged, f"{first}"))
    return line(time_ms, "OffsetCommit", f"Group:LITERAL:{name}", **EVE).split("\n")


def test_a_line_in_the_name_of_a_resource_does_not_replace_a_principal(log: Path) -> None:
    forged = line(TIME_MS - 1, "CreateTopics", "Topic:LITERAL:orders", principal="User:bob")
    attack = forging(TIME_MS - 2, forged)
    assert [one.principal for one in AuthorizerLog(attack).requests] == [
        *("User:eve", "User:eve", "User:bob")
    ], "each of the lines is that of a request"
    real = line(TIME_MS - 9, "CreateTopics", "Topic:LITERAL:orders")
    changes, _ = joined(log, [real, *attack])
    assert changes[0] == ("User:alice", "User:bob"), "and not only bob"
    found = {one.principal: one.may_be_forged for one in AuthorizerLog([real, *attack]).requests}
    assert found == {"User:alice": False, "User:bob": True, "User:eve": True}
    changes, _ = joined(log, attack)
    assert changes[0] == ("User:bob",)


def test_a_line_is_certain_if_no_other_peer_can_have_written_it() -> None:
    cluster = line(TIME_MS, "CreateTopics", "Cluster:LITERAL:kafka-cluster", principal="User:b")
    one, other = (
        line(TIME_MS, "DeleteTopics", "Topic:LITERAL:a", principal=name) for name in ("a:a", "b:b")
    )
    far = line(TIME_MS, "DeleteTopics", "Topic:LITERAL:a", principal="a:a" * NAME_LENGTH_MAX)
    expected = {
        "the first line, and those of one peer": ([one, one, one], [False] * 3),
        "a name of the cluster": ([cluster, one, cluster, one], [False, False, True, False]),
        "another peer": ([one, other, one, one], [False, True, True, True]),
        "too far before it": ([one, far, far, other], [False, True, False, True]),
        "a line that is no request": ([one, "at org.apache.kafka", one, one], [False, True, True]),
    }
    for what, (lines, marked) in expected.items():
        found = [one.may_be_forged for one in AuthorizerLog(lines).requests]
        assert found == marked, what
        found = [one.may_be_forged for one in AuthorizerLog(lines, are_escaped=True).requests]
        assert not any(found), what


def test_times_are_in_the_zone_of_the_process() -> None:
    lines = [line(TIME_MS, "DeleteTopics", "Topic:LITERAL:a")]
    (found,) = AuthorizerLog(lines).requests
    assert found.time_ms == TIME_MS
    (found,) = AuthorizerLog(lines, zone="Asia/Tokyo").requests
    assert found.time_ms == TIME_MS - 9 * 3_600_000
    with pytest.raises(OptionError, match="name of a time zone"):
        AuthorizerLog(lines, zone="Nowhere/Else")


def test_the_command_prints_the_principal_of_each_change(log: Path, tmp_path: Path) -> None:
    path = tmp_path / "kafka-authorizer.log"
    path.write_text(
        line(TIME_MS - 40, "CreateTopics", "Topic:LITERAL:orders")
        + "\n"
        + line(TIME_MS, "DeleteTopics", "Topic:LITERAL:orders", result="Denied")
        + "\n"
    )
    status, out, err = run("log", log, "topic/orders", "--authorizer-log", path)
    assert status == 0, err
    first, second, *_ = out.splitlines()
    assert first.endswith("  by User:alice from 10.0.0.1 (CreateTopics)")
    assert " by " not in second
    assert "1 request was denied" in err
    status, out, _ = run("log", log, "topic/orders", "--authorizer-log", path, "--json")
    first, second, *_ = map(json.loads, out.splitlines())
    assert [one["principal"] for one in first["requests"]] == ["User:alice"]
    assert second["requests"] == []
    status, _, err = run("log", log, "--authorizer-log", tmp_path / "absent.log")
    assert status == 2
    assert "absent.log" in err


def test_an_error_of_the_command_has_the_name_of_its_option(log: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for path, zone, name in (
        ("empty", "Nowhere/Else", "--authorizer-log-zone"),
        ("missing", "UTC", "--authorizer-log"),
    ):
        given = ("--authorizer-log", tmp_path / path, "--authorizer-log-zone", zone)
        status, out, err = run("log", log, "topic", *given)
        assert (status, out) == (2, "")
        assert f"option {name}: " in err


def test_a_carriage_return_ends_no_line_and_a_forged_one_is_marked(
    log: Path, tmp_path: Path
) -> None:
    path = tmp_path / "kafka-authorizer.log"
    forged = line(TIME_MS - 40, "CreateTopics", "Topic:LITERAL:orders", principal="User:bob")
    path.write_text("\r".join(forging(TIME_MS - 50, forged)) + "\n", newline="")
    given = ("log", log, "topic/orders", "--authorizer-log", path)
    status, out, err = run(*given)
    assert status == 0
    assert " by " not in out
    assert "1 request cannot be read" in err
    path.write_text("\n".join(forging(TIME_MS - 50, forged)) + "\n")
    first, *_ = run(*given)[1].splitlines()
    assert first.endswith("  by User:bob from 10.0.0.1 (CreateTopics, may be forged)")
    first, *_ = run(*given, "--authorizer-log-escaped")[1].splitlines()
    assert first.endswith("  by User:bob from 10.0.0.1 (CreateTopics)")


def authorizer_lines(questions: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the lines of Kafka's own authorizer, and its decisions."""
    logger = "-Dorg.slf4j.simpleLogger"
    command = [
        *("java", "-Xmx256m", f"{logger}.defaultLogLevel=off", f"{logger}.showDateTime=true"),
        *(f"{logger}.log.kafka.authorizer.logger=trace", f"{logger}.showThreadName=false"),
        f"{logger}.dateTimeFormat='['yyyy-MM-dd HH:mm:ss,SSS']'",
        *("-cp", f"{kafka_jars()}/*", str(AUTHORIZER)),
    ]
    done = subprocess.run(
        command, input="\n".join(questions), capture_output=True, text=True, check=True
    )
    return done.stderr.splitlines(), done.stdout.splitlines()


@pytest.mark.kafka
def test_lines_of_kafkas_own_authorizer_are_read() -> None:
    rng = Random(1)
    lines, questions = ["new"], []
    for number in range(30):
        one = random_acl(rng, number)
        entry = (one.host, int(one.operation), one.permission)
        fields = (one.resource_type, one.pattern_type, one.resource_name, one.principal, *entry)
        lines.append("\t".join(map(str, ("add", *fields))))
    for _ in range(300):
        principal, host, operation, (kind, name) = asked = random_question(rng)
        questions.append(asked)
        lines.append(f"ask\t{principal}\t{host}\t{int(operation)}\t{int(kind)}\t{name}")
    written, decisions = authorizer_lines(lines)
    found = AuthorizerLog(written)
    assert found.unreadable_count == 0
    for request, decision, asked in zip(found.requests, decisions, questions, strict=True):
        assert request.is_allowed is (decision == "ALLOWED")
        assert (request.principal, request.host) == (asked.principal, asked.host)
        assert request.operation == asked.operation.name
        assert request.resource == asked.resource.name


@pytest.mark.kafka
def test_a_forged_line_that_kafkas_own_authorizer_writes_is_marked() -> None:
    def asked(principal: str, name: str) -> str:
        text = name.replace("\n", "\\n")
        return (
            f"ask\t{principal}\t10.0.0.1\t{int(Operation.READ)}\t{int(ResourceType.GROUP)}\t{text}"
        )

    (usual,), _ = authorizer_lines(["new", asked("User:eve", "x")])
    before, _, end = usual.partition("Group:LITERAL:x")
    forged = usual.replace("User:eve", "User:bob").replace("Denied", "Allowed")
    lines, decisions = authorizer_lines(
        ["new", asked("User:eve", f"x{end}\n{forged}\n{before}Group:LITERAL:y")]
    )
    assert decisions == ["DENIED"], "one request has written all lines"
    found = AuthorizerLog(lines)
    assert found.unreadable_count == 0
    by_peer = {one.principal: one for one in found.requests}
    assert by_peer["User:bob"].is_allowed
    assert by_peer["User:bob"].may_be_forged
