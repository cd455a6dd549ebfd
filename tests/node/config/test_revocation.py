"""Revoked certificates: at listeners, at nodes that are connected to, and of open connections."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from raftlog.client.remote.security import TlsOptions, parse_security
from raftlog.client.remote.tls import SslFactory, tls_context
from raftlog.errors import OptionError
from raftlog.node.access import AccessTable
from raftlog.node.config import ListenerConfig, NodeConfig
from raftlog.node.errors import ConfigError
from raftlog.node.settings import ReloadableSettings
from raftlog.node.tls import peer_context, revoked_certificates, server_context
from raftlog.wire import Listener
from tests.node.config.test_node_tls import NODES, client_context, shown, tls_of
from tests.support.certificates import Authority, KeyPair, serial_number


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def tls_options(config: dict[str, str]) -> TlsOptions:
    found = parse_security(config).tls
    assert found is not None
    return found


def client_config(authority: Authority, pair: KeyPair, crl: str) -> dict[str, str]:
    """Return the options of a client with a certificate, which checks a revocation list."""
    return {
        "ssl.ca.location": authority.path,
        "ssl.crl.location": crl,
        "ssl.endpoint.identification.algorithm": "none",
        "ssl.certificate.location": pair.certificate,
        "ssl.key.location": pair.key,
    }


def test_a_revoked_certificate_is_refused_and_another_is_accepted(authority: Authority) -> None:
    authority.sign("node-1.example")
    pairs = [authority.sign("jobs-1", file_name=name) for name in ("stolen", "renewed")]
    crl = authority.revoke(pairs[0])
    server = server_context(tls_of(authority, "node-1.example", crl=crl))
    assert isinstance(shown(server, client_context(authority.path, pairs[0])), OSError)
    assert isinstance(shown(server, client_context(authority.path, pairs[1])), dict)


def test_a_node_does_not_connect_to_a_node_with_a_revoked_certificate(authority: Authority) -> None:
    node = authority.sign("node-2.example")
    authority.sign("node-1.example")
    access = AccessTable(nodes=NODES)
    crl = authority.revoke()
    for is_accepted in (True, False):
        client = peer_context(tls_of(authority, "node-1.example", crl=crl), access, 2)
        found = shown(server_context(tls_of(authority, "node-2.example")), client)
        assert isinstance(found, dict) is is_accepted
        authority.revoke(node)


def test_a_client_does_not_connect_to_a_node_with_a_revoked_certificate(
    authority: Authority,
) -> None:
    pair = authority.sign("node-1.example")
    server = server_context(tls_of(authority, "node-1.example"))
    config = client_config(authority, authority.sign("jobs-1"), authority.revoke())

    def connected(**changes: str) -> bool:
        context = tls_context(tls_options(config | changes))
        return isinstance(shown(server, context), dict)

    assert connected()
    authority.revoke(pair)
    assert not connected()
    authority.revoke(has_expired=True)
    assert not connected()


def test_a_client_reads_its_files_again_for_a_new_connection(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream runs for months: for longer than its lists, or a certificate, are valid."""
    node = authority.sign("node-1.example")
    server = server_context(tls_of(authority, "node-1.example"))
    pair = authority.sign("jobs-1")
    crl = Path(authority.revoke(has_expired=True))
    tls = SslFactory(tls_options(client_config(authority, pair, str(crl))))

    def found() -> Mapping[str, Any] | Exception | None:
        return shown(server, tls.context())

    assert isinstance(found(), OSError), "the list has expired"
    authority.revoke()
    assert isinstance(found(), dict), "it was published again"
    first = tls.context()
    assert tls.context() is first, "nothing has changed"
    authority.sign("jobs-2", file_name="jobs-1")  # the same files
    renewed = found()
    assert isinstance(renewed, dict)
    assert renewed["subject"] == ((("commonName", "jobs-2"),),)
    content = crl.read_bytes()
    crl.write_bytes(content[:100])
    assert isinstance(found(), dict), "a list that is written is not read"
    assert "ssl.crl.location" in caplog.text
    crl.write_bytes(content)
    authority.revoke(node)
    assert isinstance(found(), OSError), "the node's certificate was revoked"


def test_a_client_reads_an_unusable_file_again_until_it_is_usable(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that becomes readable has no other time: the right to read it was given later, or
    the process had too many open files."""
    node = authority.sign("node-1.example")
    server = server_context(tls_of(authority, "node-1.example"))
    pair = authority.sign("jobs-1")
    crl = Path(authority.revoke())
    tls = SslFactory(tls_options(client_config(authority, pair, str(crl))))
    authority.revoke(node)
    content, state = crl.read_bytes(), crl.stat()
    crl.write_bytes(bytes(len(content)))
    os.utime(crl, ns=(state.st_atime_ns, state.st_mtime_ns))
    for _ in range(2):
        assert isinstance(shown(server, tls.context()), dict), "the list before is in use"
    assert len(caplog.records) == 1, "one file is logged once"
    crl.write_bytes(content)
    os.utime(crl, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert isinstance(shown(server, tls.context()), OSError), "the node's certificate was revoked"


@pytest.mark.parametrize("text", ["", "no list", None])
def test_a_client_refuses_a_file_without_a_revocation_list(
    authority: Authority, tmp_path: Path, text: str | None
) -> None:
    path = tmp_path / "crl.pem"
    path.write_text(Path(authority.path).read_text() if text is None else text)
    config = {"ssl.ca.location": authority.path, "ssl.crl.location": str(path)}
    with pytest.raises(OptionError, match=r"ssl\.crl\.location"):
        tls_context(tls_options(config))


def test_a_certificate_in_a_file_of_lists_does_not_become_a_ca(
    authority: Authority, tmp_path: Path
) -> None:
    """Lists are signed, and fetched without TLS: an attacker may add its CA and a list of it."""
    attacker = Authority(tmp_path / "attacker", "other")
    lists = "".join(Path(one.revoke()).read_text() for one in (authority, attacker))
    authority.sign("node-1.example")
    path = tmp_path / "lists.pem"
    tls = tls_of(authority, "node-1.example", crl=str(path))
    config = {"ssl.ca.location": authority.path, "ssl.crl.location": str(path)}
    path.write_text(lists + Path(attacker.path).read_text())
    with pytest.raises(ConfigError, match="contains a certificate"):
        server_context(tls)
    with pytest.raises(ConfigError, match="contains a certificate"):
        peer_context(tls, AccessTable(nodes=NODES), 2)
    with pytest.raises(OptionError, match="contains a certificate"):
        tls_context(tls_options(config))
    path.write_text(lists + Path(authority.path).read_text())  # its CA is trusted already
    server_context(tls)
    tls_context(tls_options(config))


def test_lists_that_are_old_or_of_another_ca_refuse_every_certificate(
    authority: Authority, tmp_path: Path
) -> None:
    authority.sign("node-1.example")
    client = client_context(authority.path, authority.sign("jobs-1"))
    for crl in (authority.revoke(has_expired=True), Authority(tmp_path / "b", "other").revoke()):
        server = server_context(tls_of(authority, "node-1.example", crl=crl))
        assert isinstance(shown(server, client), OSError)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected certificate revocation lists in PEM format"),
        ("-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n", "PEM format"),
        (None, "no such file"),
    ],
)
def test_an_unusable_file_is_refused(
    authority: Authority, tmp_path: Path, text: str | None, reason: str
) -> None:
    authority.sign("node-1.example")
    path = tmp_path / "crl.pem"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        server_context(tls_of(authority, "node-1.example", crl=str(path)))


def test_certificates_without_a_list_are_refused(authority: Authority) -> None:
    authority.sign("node-1.example")
    with pytest.raises(ConfigError, match="contains no certificate revocation list"):
        server_context(tls_of(authority, "node-1.example", crl=authority.path))


@pytest.mark.parametrize("count", [0, 1, 300])
def test_revoked_certificates_are_those_that_another_parser_finds(
    authority: Authority, count: int
) -> None:
    """300 make the list longer than 64 KiB: its lengths have several digits."""
    pair = authority.sign("node-1.example")
    crl = authority.revoke(*(pair for _ in range(count)))
    parsed = x509.load_pem_x509_crl(Path(crl).read_bytes())
    expected = {one.serial_number for one in parsed}
    issuer = parsed.issuer.public_bytes()
    found = revoked_certificates(tls_of(authority, "node-1.example", crl=crl))
    content = issuer[2 if issuer[1] < 0x80 else 2 + (issuer[1] & 0x7F) :]
    assert all(one.startswith(content) for one in found)
    serials = {int.from_bytes(one[len(content) :], "big", signed=True) for one in found}
    assert serials == expected == ({serial_number(pair)} if count else set())


class Contexts:
    """Contexts of a node with one listener, and a client's open connection."""

    def __init__(self, authority: Authority, home: Path) -> None:
        self._pairs: list[KeyPair] = []
        self._authority = authority
        authority.sign("node-1.example")
        self.listener = ListenerConfig(
            listener=Listener.CLIENTS | Listener.VOTERS,
            host="127.0.0.1",
            port=1,
            advertised_host="127.0.0.1",
            advertised_port=1,
            tls=tls_of(authority, "node-1.example", crl=authority.revoke()),
        )
        config = NodeConfig(
            node_id=1,
            directory=str(home),
            clients=self.listener,
            voters=self.listener,
            access=AccessTable(nodes=NODES),
        )
        self.tls = ReloadableSettings(config)

    def revoke(self, name: str) -> bool:
        """Revoke another certificate, and reload; return whether trust in nodes was reduced."""
        self._pairs.append(self._authority.sign(name, file_name=f"{name}-{len(self._pairs)}"))
        return self.refresh()

    def refresh(self) -> bool:
        """Publish the same list with a new number, and reload."""
        self._authority.revoke(*self._pairs, number=2 + len(self._pairs))
        return self.tls.reload()

    @property
    def current(self) -> ssl.SSLContext:
        found = self.tls.for_listener(self.listener)
        assert found is not None
        return found


def test_connections_that_were_verified_before_a_revocation_are_not_trusted(
    authority: Authority, tmp_path: Path
) -> None:
    contexts = Contexts(authority, tmp_path)
    first = contexts.current
    assert not contexts.refresh()
    assert contexts.tls.trusts(contexts.listener, first), "nothing was revoked"
    assert contexts.revoke("jobs-1")
    assert not contexts.tls.trusts(contexts.listener, first)
    second = contexts.current
    assert contexts.tls.trusts(contexts.listener, second)
    contexts.refresh()
    assert contexts.tls.trusts(contexts.listener, second)
    assert not contexts.tls.trusts(contexts.listener, first)
    assert contexts.revoke("jobs-2")
    assert not contexts.tls.trusts(contexts.listener, second)
