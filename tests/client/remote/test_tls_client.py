"""Authentication and authorization of a client over TLS, and its errors."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.certificates import Authority, KeyPair
from tests.support.quorum_processes import QuorumProcesses

import raftlog
from raftlog.errors import (
    AccessDeniedError,
    OptionError,
    QuorumUnavailableError,
    SecurityProtocolError,
)

pytestmark = pytest.mark.slow

TLS = """tls = { certificate = "node.pem", key = "node.key", ca = "../ca.pem" }
[access]
read = ["reports-*", "jobs-*"]
append = ["jobs-*"]
[access.nodes]
1 = "node-1.example"
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("quorum"))


@pytest.fixture(scope="module")
def quorum(authority: Authority) -> Iterator[QuorumProcesses]:
    nodes = QuorumProcesses(Path(authority.path).parent, 1, extra=TLS)
    pair = authority.sign("node-1.example", file_name="of-1")
    shutil.copy(pair.certificate, nodes.nodes[0].home / "node.pem")
    shutil.copy(pair.key, nodes.nodes[0].home / "node.key")
    with nodes:
        yield nodes


def options(authority: Authority, pair: KeyPair | None, **more: str) -> dict[str, Any]:
    """Return arguments of ``connect``; names of ``more`` have underscores for dots."""
    config = {"ssl.ca.location": authority.path}
    if pair is not None:
        config |= {"ssl.certificate.location": pair.certificate, "ssl.key.location": pair.key}
    config |= {name.replace("_", "."): value for name, value in more.items()}
    return {"config": config, "timeout_ms": 5000}


def test_a_principal_with_all_rights_appends_and_reads(
    quorum: QuorumProcesses, authority: Authority
) -> None:
    pair = authority.sign("jobs-1")
    with raftlog.connect(quorum.bootstrap, **options(authority, pair)) as log:
        result = log.append([b"x" * 100_000] * 20, commit=("jobs-1:app", "q", 1))
        assert [len(one.value or b"") for one in log.read(result.base_offset)] == [100_000] * 20
        assert log.last_commit("jobs-1:app") is not None


def test_a_key_may_have_a_password(quorum: QuorumProcesses, authority: Authority) -> None:
    pair = authority.sign("jobs-2", password=b"hunter2")
    given = options(authority, pair)
    right = options(authority, pair, ssl_key_password="hunter2")
    with raftlog.connect(quorum.bootstrap, **right) as log:
        assert log.append(b"x").epoch >= 1
        assert "hunter2" not in repr(log)
    with pytest.raises(OptionError, match=r"ssl\.key") as caught:
        raftlog.connect(quorum.bootstrap, **given)
    assert "hunter2" not in str(caught.value)


def test_a_principal_that_may_only_read_gets_an_authorization_error(
    quorum: QuorumProcesses, authority: Authority
) -> None:
    pair = authority.sign("reports-1")
    with raftlog.connect(quorum.bootstrap, **options(authority, pair)) as log:
        list(log.read())
        for arguments in ({}, {"commit": ("app", "q", 9)}, {"required_base_offset": 1}):
            with pytest.raises(AccessDeniedError, match="not authorized"):
                log.append(b"x", timeout_ms=20_000, **arguments)


def test_a_client_without_rights_or_certificate_is_refused_by_every_node(
    quorum: QuorumProcesses, authority: Authority, tmp_path: Path
) -> None:
    unknown = authority.sign("unauthorized")
    unknown_client = Authority(tmp_path, "another CA").sign("jobs-1")
    with pytest.raises(AccessDeniedError, match="may not describe the topic"):
        raftlog.connect(quorum.bootstrap, **options(authority, unknown))
    for pair in (unknown_client, None):
        given = options(authority, pair) | {"timeout_ms": 1000}
        with pytest.raises(QuorumUnavailableError, match="may require a client certificate"):
            raftlog.connect(quorum.bootstrap, **given)


def test_a_node_without_a_valid_certificate_is_rejected(
    quorum: QuorumProcesses, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "another CA")
    pair = authority.sign("jobs-1", file_name="again")
    given = options(authority, pair, ssl_ca_location=other.path)
    with pytest.raises(AccessDeniedError, match="certificate"):
        raftlog.connect(quorum.bootstrap, **given)
    elsewhere = quorum.bootstrap.replace("127.0.0.1", "localhost")
    with pytest.raises(AccessDeniedError, match=r"(?i)hostname"):
        raftlog.connect(elsewhere, **options(authority, pair))
    unchecked = options(authority, pair, ssl_endpoint_identification_algorithm="none")
    with raftlog.connect(elsewhere, **unchecked) as log:
        assert log.end_offset > 0


def test_plain_text_and_tls_cannot_connect_to_each_other(
    quorum: QuorumProcesses, authority: Authority, tmp_path: Path
) -> None:
    with pytest.raises(SecurityProtocolError, match="requires TLS; set security"):
        raftlog.connect(quorum.bootstrap, timeout_ms=20_000)
    with (
        QuorumProcesses(tmp_path, 1) as plain,
        pytest.raises(SecurityProtocolError, match="has no TLS; set security"),
    ):
        raftlog.connect(plain.bootstrap, **options(authority, None))
