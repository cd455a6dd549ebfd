"""Rights that change while a node runs: its file is reloaded, open connections are checked."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import raftlog
from raftlog import ConnectedLog
from raftlog.errors import AccessDeniedError, AppendUnknownError, QuorumUnavailableError
from tests.support.certificates import Authority
from tests.support.quorum_processes import NodeProcess, QuorumProcesses, eventually

TLS = 'tls = { certificate = "node.pem", key = "node.key", ca = "../ca.pem" }\n'
RIGHTS = """[access]
read = ["*-1"]
append = ["jobs-*", "both-*"]
admin = ["operator"]
[access.nodes]
1 = "node-1.example"
2 = "node-2.example"
3 = "node-3.example"
"""


class Cluster:
    """Nodes with certificates, and clients with theirs."""

    def __init__(self, home: Path, node_count: int) -> None:
        self.authority = Authority(home)
        self.nodes = QuorumProcesses(home, node_count, extra=TLS + RIGHTS)
        for node in self.nodes.nodes:
            pair = self.authority.sign(f"node-{node.node_id}.example")
            shutil.copy(pair.certificate, node.home / "node.pem")
            shutil.copy(pair.key, node.home / "node.key")

    def connect(self, name: str, *, ca: str | None = None) -> ConnectedLog:
        pair = self.authority.sign(name)
        return raftlog.connect(
            self.nodes.bootstrap,
            config={
                "ssl.ca.location": ca or self.authority.path,
                "ssl.certificate.location": pair.certificate,
                "ssl.key.location": pair.key,
                "ssl.endpoint.identification.algorithm": "none",
            },
        )


def read_again(node: NodeProcess, rights: str) -> dict[str, Any]:
    """Make a node reload its file with these rights; return what it logs about them."""
    file = node.config.read_text()
    node.config.write_text(file[: file.index("[access]")] + rights)
    return logged_reload(node)


def logged_reload(node: NodeProcess) -> dict[str, Any]:
    """Send the signal; return what the node then logs about the reload."""

    def lines() -> list[dict[str, Any]]:
        return [line for line in node.lines() if line["event"] == "reload"]

    before = len(lines())
    assert node.process is not None
    node.process.send_signal(signal.SIGHUP)
    return eventually(lambda: lines()[before:], f"node {node.node_id} logs its reload")[0]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    created = Cluster(tmp_path, 1)
    with created.nodes:
        yield created


@pytest.mark.slow
def test_new_rights_apply_to_open_connections(cluster: Cluster) -> None:
    (node,) = cluster.nodes.nodes
    with ExitStack() as stack:
        jobs, reports, both = (
            stack.enter_context(cluster.connect(name)) for name in ("jobs-1", "reports-1", "both-1")
        )
        jobs.append(b"by jobs")
        both.append(b"by both")
        with pytest.raises(AccessDeniedError):
            reports.append(b"by reports")

        logged = read_again(node, RIGHTS.replace('"jobs-*"', '"reports-*"'))
        assert logged["closed_connections"] == 2, "nothing has changed for the third"
        assert reports.append(b"by reports").base_offset == both.end_offset - 1
        with pytest.raises(AccessDeniedError):
            jobs.append(b"by jobs again")
        assert [one.value for one in jobs.read()] == [b"by jobs", b"by both", b"by reports"]

        logged = read_again(node, RIGHTS)
        assert logged["closed_connections"] == 2
        jobs.append(b"by jobs again")


@pytest.mark.slow
def test_an_invalid_file_changes_nothing(cluster: Cluster) -> None:
    (node,) = cluster.nodes.nodes
    with cluster.connect("jobs-1") as jobs, cluster.connect("reports-1") as reports:
        jobs.append(b"before")
        for wrong, words in (
            (RIGHTS + "[limits]\nidle_ms = 'long'\n", "limits.idle_ms"),
            (RIGHTS.replace("[access]", "[access] ["), "not valid TOML"),
            (RIGHTS.replace("append", "appends"), "did you mean append?"),
            (RIGHTS.replace('1 = "node-1.example"', ""), "access.nodes.1"),
        ):
            logged = read_again(node, wrong.replace('"jobs-*"', '"reports-*"'))
            assert logged["level"] == "error"
            assert "nothing is reloaded" in logged["reason"]
            assert words in logged["reason"]
            jobs.append(b"behind")
            with pytest.raises(AccessDeniedError):
                reports.append(b"no")


@pytest.mark.nightly
def test_a_missing_file_changes_nothing_and_no_certificate_is_reloaded(
    cluster: Cluster, tmp_path: Path
) -> None:
    """As an invalid one, which ``make test`` has."""
    (node,) = cluster.nodes.nodes
    other = Authority(tmp_path / "other", "other CA")
    with cluster.connect("jobs-1") as jobs:
        node.config.unlink()
        Path(cluster.authority.path).write_text(Path(other.path).read_text())
        assert "no such file" in logged_reload(node)["reason"]
        jobs.append(b"still there")


@pytest.mark.slow
def test_a_removed_ca_ends_the_connections_that_it_may_have_verified(
    cluster: Cluster, tmp_path: Path
) -> None:
    (node,) = cluster.nodes.nodes
    ca = Path(cluster.authority.path)
    first, other = ca.read_text(), Path(Authority(tmp_path / "other", "other CA").path).read_text()
    trusted = shutil.copy(ca, tmp_path / "of-clients.pem")
    with cluster.connect("jobs-1", ca=str(trusted)) as jobs:
        jobs.append(b"before")
        ca.write_text(first + other)
        assert logged_reload(node)["closed_connections"] == 0, "one was added"
        jobs.append(b"on the same connection")
        ca.write_text(other)
        assert logged_reload(node)["closed_connections"] == 1
        with pytest.raises((AccessDeniedError, AppendUnknownError, QuorumUnavailableError)):
            jobs.append(b"no", timeout_ms=3000)
        ca.write_text(first)
        assert logged_reload(node)["closed_connections"] == 0
        jobs.append(b"after")
        assert [one.value for one in jobs.read()] == [
            b"before",
            b"on the same connection",
            b"after",
        ]


@pytest.mark.nightly
def test_new_rights_wait_for_readable_certificates(cluster: Cluster) -> None:
    """``make test`` has an unreadable certificate in ``test_tls_quorum.py``."""
    (node,) = cluster.nodes.nodes
    pair = (node.home / "node.pem").read_bytes()
    with cluster.connect("reports-1") as reports:
        (node.home / "node.pem").write_text("no certificate")
        file = node.config.read_text()
        node.config.write_text(file.replace('"jobs-*"', '"reports-*"'))
        assert "all old settings stay in use" in logged_reload(node)["reason"]
        with pytest.raises(AccessDeniedError):
            reports.append(b"no")
        (node.home / "node.pem").write_bytes(pair)
        logged_reload(node)
        reports.append(b"now")


@pytest.mark.slow
def test_a_name_that_no_longer_proves_a_node_ends_its_delayed_requests(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    with cluster.nodes, cluster.connect("jobs-1") as log:
        log.append(b"for all")
        away = next(node for node in cluster.nodes.nodes if node.node_id != log.leader_id)
        others = [node for node in cluster.nodes.nodes if node is not away]
        path = away.directory / "raftlog-0" / f"{0:020d}.log"
        eventually(lambda: b"for all" in path.read_bytes(), "the node follows")

        name = f'"node-{away.node_id}.example"'
        for node in others:
            read_again(node, RIGHTS.replace(name, '"somebody.else"'))
        log.append(b"what it had asked for before is still answered")
        for _ in range(20):  # time enough for connections that still receive records
            log.append(b"for two")
        assert b"for two" not in path.read_bytes()
        for node in others:
            read_again(node, RIGHTS)
        eventually(lambda: b"for two" in path.read_bytes(), "the node follows again")


@pytest.mark.nightly
def test_a_leader_whose_name_no_longer_proves_a_node_is_not_followed(
    tmp_path: Path,
) -> None:
    """``make test`` has a follower's name."""
    cluster = Cluster(tmp_path, 3)
    with cluster.nodes, cluster.connect("jobs-1") as log:
        before = log.append(b"under the first leader")
        first = log.leader_id
        for node in cluster.nodes.nodes:
            if node.node_id != first:
                read_again(node, RIGHTS.replace(f'"node-{first}.example"', '"somebody.else"'))
        after = log.append(b"under another")
        assert after.epoch > before.epoch
