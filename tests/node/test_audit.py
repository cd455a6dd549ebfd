"""Audit log of a node: no event hides another, and its file is private and bounded."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from raftlog.node.access import ANONYMOUS, Principal, Rights
from raftlog.node.audit import (
    APPENDS_S,
    KEYS_MAX,
    MERGED_S,
    RANGES_MAX,
    STRANGER_KEYS_MAX,
    TEXT_LENGTH_MAX,
    AuditFile,
    AuditLog,
)
from raftlog.node.config import AuditConfig
from raftlog.node.errors import ConfigError
from raftlog.wire import APIS, Listener
from tests.support.dangerous_requests import Claim, kinds
from tests.support.plain_messages import request_body
from tests.support.served_node import RawConnection, ServedNode, served_node

WHERE = "10.0.0.7:51000"


def principal(name: str, serial: str | None = "0A") -> Principal:
    return Principal(
        name=name,
        node_id=None,
        listener=Listener.CLIENTS,
        rights=Rights.APPEND,
        certificate_serial=serial,
    )


@dataclass(frozen=True)
class TopicMetadata:
    """Part of a response."""

    error_code: ErrorCode


@dataclass(frozen=True)
class Response:
    """Response with a part for each topic of its request."""

    topics: tuple[TopicMetadata, ...]


class Audit:
    """Audit log of lines in memory, with a clock."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.now_s = 0.0
        self.log = AuditLog(
            self.texts.append, 1, now_s=lambda: self.now_s, wall_s=lambda: self.now_s
        )

    def lines(self, event: str) -> list[dict[str, Any]]:
        found = [json.loads(text) for text in self.texts]
        return [line for line in found if line["event"] == event]


def test_a_change_is_logged_before_it_is_executed_and_with_its_outcome() -> None:
    audit = Audit()
    ended = audit.log.change(principal("operator"), WHERE, "REMOVE_RAFT_VOTER", {"voter": 1})
    (line,) = audit.lines("change")
    assert line == {
        "time": "1970-01-01T00:00:00.000Z",
        "node": 1,
        "event": "change",
        "id": 1,
        "principal": "operator",
        "certificate": "0A",
        "listener": "clients",
        "address": "10.0.0.7",
        "request": "REMOVE_RAFT_VOTER",
        "arguments": {"voter": 1},
        "outcome": "requested",
    }
    ended("NONE")
    assert audit.lines("change")[1]["outcome"] == "NONE"
    assert audit.lines("change")[1]["id"] == 1


def test_decoys_do_not_hide_a_change() -> None:
    """Repeated refusals and failed changes, which a peer may send at will, take no line of it."""
    audit = Audit()
    for _ in range(KEYS_MAX + 1):
        audit.log.refused(None, f"10.0.0.{random.Random(1).random()}:1", "decoy")
        audit.log.change(principal("operator"), WHERE, "REMOVE_RAFT_VOTER", 77)("VOTER_NOT_FOUND")
    audit.log.change(principal("operator"), WHERE, "REMOVE_RAFT_VOTER", 1)("NONE")
    assert len(audit.lines("change")) == 2 * (KEYS_MAX + 2)
    assert audit.lines("change")[-2]["arguments"] == 1


def test_equal_refusals_are_two_lines_with_their_number() -> None:
    audit = Audit()
    for at in range(100):
        audit.log.refused(principal("a"), f"10.0.0.7:{at}", "denied", "PRODUCE")
    audit.log.refused(principal("a"), WHERE, "denied", "FETCH")
    audit.log.refused(principal("b"), WHERE, "denied", "PRODUCE")
    audit.log.refused(principal("a"), "10.0.0.8:1", "denied", "PRODUCE")
    audit.log.refused(principal("a", "0B"), WHERE, "denied", "PRODUCE")
    assert len(audit.lines("refused")) == 5, "those that differ"
    audit.now_s = MERGED_S
    audit.log.write_due()
    assert [line.get("repeated") for line in audit.lines("refused")] == [None] * 5 + [99]
    audit.log.refused(principal("a"), WHERE, "denied", "PRODUCE")
    assert len(audit.lines("refused")) == 7, "the next window begins with a line"


def test_memory_and_lines_of_one_window_are_bounded() -> None:
    audit = Audit()
    for at in range(STRANGER_KEYS_MAX + 500):
        audit.log.refused(None, f"host-{at}:1", "no certificate")
    assert len(audit.texts) == STRANGER_KEYS_MAX + 1
    audit.log.close()
    assert audit.lines("refused")[-1]["address"] == "others"
    assert audit.lines("refused")[-1]["repeated"] == 499


def test_every_appended_offset_has_its_principal_once() -> None:
    audit, rng = Audit(), random.Random(20261126)
    owners: dict[int, str] = {}
    offset = 0
    for _ in range(20_000):
        name = rng.choice(("jobs-1", "jobs-2", "jobs-3"))
        count = rng.choice((1, 1, 1, 5))
        audit.log.appended(principal(name), WHERE, offset, offset + count - 1)
        owners.update(dict.fromkeys(range(offset, offset + count), name))
        offset += count + rng.choice((0, 0, 1))
        audit.now_s += 0.001
        audit.log.write_due()
    audit.log.close()
    logged: dict[int, str] = {}
    for line in audit.lines("appended"):
        assert len(line["offsets"]) <= RANGES_MAX
        for first, last in line["offsets"]:
            for one in range(first, last + 1):
                assert one not in logged
                logged[one] = line["principal"]
    assert logged == owners


def test_large_offsets_are_not_cut_off() -> None:
    audit = Audit()
    first = 2**63 - 1 - 2 * RANGES_MAX
    for at in range(first, first + 2 * RANGES_MAX, 2):
        audit.log.appended(principal("jobs-1"), WHERE, at, at)
    (line,) = audit.lines("appended")
    assert line["offsets"] == [[at, at] for at in range(first, first + 2 * RANGES_MAX, 2)]


def test_refusals_of_unknown_peers_hide_neither_connections_nor_refusals_of_principals() -> None:
    audit = Audit()
    for at in range(KEYS_MAX + 1):
        audit.log.refused(None, WHERE, f"SASL: authentication failed (user '{at}')")
    audit.log.connected(principal("operator"), WHERE)
    audit.log.refused(principal("operator"), WHERE, "denied", "PRODUCE")
    assert [line["principal"] for line in audit.lines("connected")] == ["operator"]
    assert audit.lines("refused")[-1]["principal"] == "operator"


def test_refusals_of_principals_hide_neither_connections_nor_refusals_of_unknown_peers() -> None:
    audit = Audit()
    for at in range(KEYS_MAX + 1):
        audit.log.refused(principal("app"), WHERE, "denied", f"request {at}")
    audit.log.connected(principal("operator"), WHERE)
    audit.log.refused(None, WHERE, "no certificate")
    assert [line["principal"] for line in audit.lines("connected")] == ["operator"]
    assert audit.lines("refused")[-1]["reason"] == "no certificate"


def test_every_part_of_a_response_is_in_the_outcome() -> None:
    """Twenty parts without an error would hide the error of another one."""
    audit = Audit()
    parts = tuple(
        TopicMetadata(error_code=error)
        for error in (*[ErrorCode.none] * 200, ErrorCode.topic_authorization_failed)
    )
    response = Response(topics=parts)
    audit.log.change(principal("operator"), WHERE, "CREATE_TOPICS", ["topics"])(response)
    assert audit.lines("change")[1]["outcome"] == ["NONE", "TOPIC_AUTHORIZATION_FAILED"]
    audit.log.answered(principal("jobs-1"), WHERE, "METADATA", None)(response)
    assert audit.lines("refused")[0]["reason"] == "topic_authorization_failed"


@pytest.mark.parametrize(
    ("name", "rights"), [("stranger", Rights.NONE), (ANONYMOUS, Rights.DESCRIBE), ("", Rights.NONE)]
)
@pytest.mark.parametrize(
    "error",
    [ErrorCode.cluster_authorization_failed, ErrorCode.delegation_token_request_not_allowed],
)
def test_denied_changes_of_a_peer_that_may_change_nothing_do_not_fill_the_log(
    name: str, rights: Rights, error: ErrorCode
) -> None:
    audit = Audit()
    peer = replace(principal(name), rights=rights)
    for at in range(1_000):
        audit.log.answered(peer, WHERE, "CREATE_ACLS", [at])(TopicMetadata(error_code=error))
    assert not audit.lines("change")
    assert [line["reason"] for line in audit.lines("refused")] == [error.name]
    operator = replace(principal("operator"), rights=Rights.ADMIN)
    audit.log.answered(operator, WHERE, "CREATE_ACLS", [1])(TopicMetadata(error_code=error))
    assert len(audit.lines("change")) == 2


def test_contiguous_appends_are_one_range_until_the_window_ends() -> None:
    audit = Audit()
    for at in range(5_000):
        audit.log.appended(principal("jobs-1"), WHERE, at, at)
    assert not audit.texts
    audit.now_s = APPENDS_S
    audit.log.write_due()
    (line,) = audit.lines("appended")
    assert (line["offsets"], line["batches"]) == ([[0, 4_999]], 5_000)


def test_a_line_is_bounded_and_of_printable_characters() -> None:
    audit = Audit()
    audit.log.change(principal("a\n\x1b[2J\u202e"), WHERE, "CREATE_TOPICS", ["x" * 100_000])
    (text,) = audit.texts
    assert text.isprintable()
    assert len(text) < TEXT_LENGTH_MAX + 1_000
    assert json.loads(text)["principal"] == "a\n\x1b[2J\u202e"


# --- file -----------------------------------------------------------------------------------------


def test_a_full_file_is_renamed_and_the_oldest_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    file = AuditFile(AuditConfig(path=str(path), bytes_max=100, files_max=3), pytest.fail)
    before = os.umask(0)
    try:
        for at in range(50):
            file.write(f"{at:020d}")
    finally:
        os.umask(before)
        file.close()
    found = sorted(tmp_path.iterdir())
    assert [one.name for one in found] == ["audit.log", "audit.log.1", "audit.log.2"]
    assert all(one.stat().st_size <= 100 for one in found)
    assert {stat.S_IMODE(one.stat().st_mode) for one in found} == {0o600}
    lines = [int(line) for one in reversed(found) for line in one.read_text().split()]
    assert lines == list(range(lines[0], 50))


def test_a_renamed_file_is_created_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    file = AuditFile(AuditConfig(path=str(path)), pytest.fail)
    file.write("one")
    path.rename(tmp_path / "rotated")
    file.reopen()
    file.write("two")
    file.close()
    assert path.read_text() == "two\n"


def test_a_file_that_cannot_be_written_is_reported_and_continued_later(tmp_path: Path) -> None:
    path = tmp_path / "directory" / "audit.log"
    path.parent.mkdir()
    failures: list[str] = []
    file = AuditFile(AuditConfig(path=str(path)), failures.append)
    path.unlink()
    path.parent.rmdir()
    file.reopen()
    file.write("lost")
    assert failures == ["No such file or directory"]
    path.parent.mkdir()
    file.write("written")
    file.close()
    assert path.read_text() == "written\n"


@pytest.fixture
def limit_file_size() -> Iterator[Callable[[int], None]]:
    """Limit of the size of files, which has the errors and the short writes of a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(byte_count: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (byte_count, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("then", ["continue", "reopen", "close"])
def test_after_a_full_disk_lines_are_whole_and_written_again(
    tmp_path: Path, limit_file_size: Callable[[int], None], then: str
) -> None:
    path = tmp_path / "audit.log"
    failures: list[str] = []
    file = AuditFile(AuditConfig(path=str(path)), failures.append)
    file.write("first")
    limit_file_size(10)
    file.write("lost, in part")
    assert len(failures) == 1
    if then == "reopen":
        file.reopen()
    elif then == "close":
        file.close()
        file = AuditFile(AuditConfig(path=str(path)), failures.append)
    limit_file_size(resource.RLIM_INFINITY)
    file.write("last")
    file.close()
    assert path.read_text() == "first\nlast\n"
    assert len(failures) == 1


def test_a_line_that_a_power_loss_has_cut_off_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_text('{"time": "19')
    file = AuditFile(AuditConfig(path=str(path)), pytest.fail)
    file.write("{}")
    file.close()
    assert path.read_text().splitlines()[1:] == ["{}"]


def test_a_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    """The next open of a FIFO would block the node until it has a reader."""
    path = tmp_path / "audit.log"
    os.mkfifo(path, 0o600)
    with pytest.raises(OSError, match="not a regular file"):
        AuditFile(AuditConfig(path=str(path)), pytest.fail)


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("")
    path = tmp_path / "audit.log"
    path.symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"):
        AuditFile(AuditConfig(path=str(path)), pytest.fail)


# --- node -----------------------------------------------------------------------------------------


def audit_lines(node: ServedNode) -> list[dict[str, Any]]:
    assert node.config.audit is not None
    return [json.loads(line) for line in Path(node.config.audit.path).read_text().splitlines()]


async def _send(node: ServedNode, connection: RawConnection, name: str) -> None:
    """Send the harmless form of a request, and wait for its response."""
    (kind,) = (one for one in kinds() if one.name == name)
    version = APIS[kind.key].versions.last
    claim = Claim(
        node=node,
        port=Listener.CLIENTS | Listener.VOTERS,
        speaker=2,
        cluster_id=node.node.log_identity.cluster_id,
        is_harmless=True,
    )
    connection.ask(kind.key, version, request_body(kind.key, version, kind.values(claim)))
    await connection.answer(kind.key, version)


def test_a_node_logs_connections_appends_changes_of_voters_and_deletions(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"

    async def check() -> None:
        async with served_node(tmp_path, f'[audit]\nfile = "{path}"\n') as node:
            async with await node.connect() as connection:
                await _send(node, connection, "Produce")
                await _send(node, connection, "AddRaftVoter")
                await _send(node, connection, "RemoveRaftVoter")
                await _send(node, connection, "DeleteRecords")
            offsets = node.node.raft_node.replica.log.end_offset
            started = audit_lines(node)[0]
            assert started["event"] == "started"
            assert started["settings"]["node_id"] == 1
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [line["event"] for line in lines if line["event"] != "change"] == [
            "started",
            "connected",
            "appended",
            "stopped",
        ]
        changes = [line for line in lines if line["event"] == "change"]
        assert [line["request"] for line in changes] == ["ADD_RAFT_VOTER"] * 2 + [
            "REMOVE_RAFT_VOTER"
        ] * 2 + ["DELETE_RECORDS"] * 2
        assert [line["outcome"] == "requested" for line in changes] == [True, False] * 3
        assert changes[4]["arguments"] == [{"topic": "raftlog", "partition": 0, "offset": 10**9}]
        assert changes[5]["outcome"] == ["OFFSET_OUT_OF_RANGE"]
        assert changes[0]["arguments"]["voter"]["key"]["node_id"] >= 0
        (appended,) = (line for line in lines if line["event"] == "appended")
        assert appended["principal"] == "anonymous"
        ((first, last),) = appended["offsets"]
        assert 0 < first <= last < offsets

    asyncio.run(check())


def test_a_node_counts_the_lines_that_it_cannot_write(tmp_path: Path) -> None:
    path = tmp_path / "audit" / "audit.log"
    path.parent.mkdir()

    async def check() -> None:
        async with served_node(tmp_path, f'[audit]\nfile = "{path}"\n') as node:
            path.parent.rename(tmp_path / "other")
            node.node.reopen_audit_log()
            for _ in range(3):
                node.node.audit.log("event")
            assert node.node.lost_audit_lines == 3
            (line,) = node.lines("audit")
            assert "no such file" in line["reason"].lower()

    asyncio.run(check())


def test_a_node_whose_audit_log_cannot_be_opened_does_not_start(tmp_path: Path) -> None:
    async def start() -> None:
        async with served_node(tmp_path, f'[audit]\nfile = "{tmp_path}/missing/audit.log"\n'):
            pytest.fail("started")

    with pytest.raises(ConfigError, match=r"audit\.file.*no such file"):
        asyncio.run(start())
