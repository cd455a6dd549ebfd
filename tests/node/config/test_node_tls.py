"""TLS of a node: over real sockets on loopback, with real certificates."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raftlog.node.access import AccessTable, Principal, Rights, principal_of
from raftlog.node.config import ListenerConfig, NodeConfig, TlsConfig
from raftlog.node.errors import ConfigError
from raftlog.node.settings import ReloadableSettings
from raftlog.node.tls import peer_context, server_context
from raftlog.wire import Listener
from tests.support.certificates import Authority, KeyPair

NODES = {1: "node-1.example", 2: "node-2.example"}
_LIMIT_S = 20


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    created = Authority(tmp_path_factory.mktemp("ca"))
    for name in ("node-1.example", "node-2.example", "jobs-7"):
        created.sign(name)
    return created


@pytest.fixture(scope="module")
def unknown_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    created = Authority(tmp_path_factory.mktemp("other"), "another CA")
    created.sign("node-1.example")
    created.sign("node-2.example")
    return created


def tls_of(authority: Authority, name: str, **others: Any) -> TlsConfig:
    directory = os.path.dirname(authority.path)
    return TlsConfig(
        certificate=f"{directory}/{name}.pem",
        key=f"{directory}/{name}.key",
        ca=authority.path,
        **others,
    )


def client_context(ca: str, pair: KeyPair | None, **others: Any) -> ssl.SSLContext:
    """Return the context of a client that trusts certificates signed by ``ca``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(ca)
    if pair is not None:
        context.load_cert_chain(pair.certificate, pair.key)
    for name, value in others.items():
        setattr(context, name, value)
    return context


def shown(
    server: ssl.SSLContext, client: ssl.SSLContext | None
) -> Mapping[str, Any] | Exception | None:
    """Return what a server reads of a client's certificate, or the error of the handshake."""

    async def talk() -> Mapping[str, Any] | Exception | None:
        seen: asyncio.Future[Mapping[str, Any] | None] = asyncio.get_running_loop().create_future()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if await reader.read(1):
                seen.set_result(writer.get_extra_info("ssl_object").getpeercert())
                writer.write(b"!")
            writer.close()

        listening = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server)
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        port = listening.sockets[0].getsockname()[1]
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=client, server_hostname="anything" if client else None
            )
            writer.write(b"?" * 64)
            try:
                if await reader.read(1) != b"!":
                    return ConnectionError("closed")
            finally:
                writer.close()
            return await seen
        except OSError as error:
            return error
        finally:
            listening.close()

    return asyncio.run(asyncio.wait_for(talk(), _LIMIT_S))


def test_a_voter_is_identified_by_its_certificate(authority: Authority) -> None:
    one, two = tls_of(authority, "node-1.example"), tls_of(authority, "node-2.example")
    access = AccessTable(nodes=NODES)
    seen = shown(server_context(two), peer_context(one, access, 2))
    assert isinstance(seen, dict)
    assert access.node_of(seen) == 1


@pytest.mark.parametrize("node_id", [2, -1, -7])
def test_a_called_node_must_prove_its_id_or_that_it_is_a_node(
    authority: Authority, node_id: int
) -> None:
    one, two = tls_of(authority, "node-1.example"), tls_of(authority, "node-2.example")
    seen = shown(server_context(two), peer_context(one, AccessTable(nodes=NODES), node_id))
    assert isinstance(seen, dict)


@pytest.mark.parametrize(
    ("name", "node_id", "words"),
    [
        ("node-1.example", 2, "names node-1.example, which does not identify node 2: expected"),
        ("jobs-7", 2, "names jobs-7"),
        ("jobs-7", -1, "does not identify a node"),
        ("node-1.example", 3, "see [access.nodes]"),
    ],
)
def test_nothing_is_sent_to_a_node_that_does_not_prove_its_id(
    authority: Authority, name: str, node_id: int, words: str
) -> None:
    context = peer_context(tls_of(authority, "node-1.example"), AccessTable(nodes=NODES), node_id)
    error = shown(server_context(tls_of(authority, name)), context)
    assert isinstance(error, ssl.SSLCertVerificationError)
    assert words in str(error)


def test_a_caller_must_have_a_certificate_of_the_listeners_own_ca(
    authority: Authority, unknown_authority: Authority
) -> None:
    server = server_context(tls_of(authority, "node-1.example"))
    expired = authority.sign("node-2.example", has_expired=True, file_name="expired")
    of_stranger = tls_of(unknown_authority, "node-2.example")
    for pair in (None, expired, KeyPair(of_stranger.certificate, of_stranger.key)):
        assert isinstance(shown(server, client_context(authority.path, pair)), OSError)
    good = tls_of(authority, "jobs-7")
    seen = shown(server, client_context(authority.path, KeyPair(good.certificate, good.key)))
    assert isinstance(seen, dict)


def test_a_node_does_not_call_nodes_with_another_ca_or_an_expired_certificate(
    authority: Authority, unknown_authority: Authority
) -> None:
    context = peer_context(tls_of(authority, "node-1.example"), AccessTable(nodes=NODES), 2)
    error = shown(server_context(tls_of(unknown_authority, "node-2.example")), context)
    assert isinstance(error, ssl.SSLCertVerificationError)
    old = authority.sign("node-2.example", has_expired=True, file_name="expired-2")
    config = TlsConfig(certificate=old.certificate, key=old.key, ca=authority.path)
    error = shown(server_context(config), context)
    assert isinstance(error, ssl.SSLCertVerificationError)
    assert "expired" in str(error)


def test_tls_below_1_3_is_by_choice_and_plaintext_is_refused(authority: Authority) -> None:
    strict = server_context(tls_of(authority, "node-1.example"))
    assert isinstance(shown(strict, None), OSError)
    server = server_context(tls_of(authority, "node-1.example", allows_tls_1_2=True))
    assert server.minimum_version == ssl.TLSVersion.TLSv1_2
    good = tls_of(authority, "jobs-7")
    pair = KeyPair(good.certificate, good.key)
    newer = client_context(authority.path, pair, minimum_version=ssl.TLSVersion.TLSv1_3)
    assert isinstance(shown(server, newer), dict)
    assert isinstance(shown(strict, newer), dict)
    older = client_context(authority.path, pair, maximum_version=ssl.TLSVersion.TLSv1_2)
    assert isinstance(shown(server, older), dict)
    assert isinstance(shown(strict, older), OSError)


def test_a_client_certificate_may_be_optional_but_not_invalid(
    authority: Authority, unknown_authority: Authority
) -> None:
    server = server_context(tls_of(authority, "node-1.example", is_certificate_required=False))
    assert shown(server, client_context(authority.path, None)) in (None, {})
    wrong = tls_of(unknown_authority, "node-2.example")
    context = client_context(authority.path, KeyPair(wrong.certificate, wrong.key))
    assert isinstance(shown(server, context), OSError)


def listener_of(tls: TlsConfig, listener: Listener = Listener.VOTERS) -> ListenerConfig:
    return ListenerConfig(
        listener=listener,
        host="127.0.0.1",
        port=9193,
        advertised_host="127.0.0.1",
        advertised_port=9193,
        tls=tls,
    )


def test_certificates_are_reloaded_for_new_connections(
    authority: Authority, unknown_authority: Authority, tmp_path: Path
) -> None:
    mine = Authority(tmp_path / "mine", "a third CA")
    mine.sign("node-1.example")
    tls = tls_of(mine, "node-1.example")
    voters = listener_of(tls)
    config = NodeConfig(
        node_id=1, directory=str(tmp_path), voters=voters, access=AccessTable(nodes=NODES)
    )
    contexts = ReloadableSettings(config)
    before, peer = contexts.for_listener(voters), contexts.for_peer(2)
    assert before is not None
    assert contexts.for_peer(2) is peer
    caller = tls_of(authority, "node-2.example")
    client = client_context(mine.path, KeyPair(caller.certificate, caller.key))
    assert isinstance(shown(before, client), OSError)

    Path(mine.path).write_bytes(Path(mine.path).read_bytes() + Path(authority.path).read_bytes())
    contexts.reload()
    after = contexts.for_listener(voters)
    assert after is not None
    assert isinstance(shown(after, client), dict)
    assert contexts.for_peer(2) is not peer

    Path(tls.certificate).write_text("no certificate")
    with pytest.raises(ConfigError, match=r"PEM form"):
        contexts.reload(AccessTable(nodes=NODES, read=("jobs-*",)))
    assert contexts.access == AccessTable(nodes=NODES)
    assert contexts.for_listener(voters) is after
    assert contexts.for_peer(2) is not None
    with pytest.raises(ssl.SSLError, match=r"PEM form"):
        contexts.for_peer(7)


def test_names_of_called_nodes_are_reloaded(authority: Authority, tmp_path: Path) -> None:
    voters = listener_of(tls_of(authority, "node-1.example"))
    config = NodeConfig(
        node_id=1, directory=str(tmp_path), voters=voters, access=AccessTable(nodes=NODES)
    )
    contexts = ReloadableSettings(config)
    server = server_context(tls_of(authority, "node-2.example"))
    assert isinstance(shown(server, contexts.for_peer(2)), dict)
    contexts.reload(AccessTable(nodes={1: "node-1.example", 2: "another.example"}))
    assert not isinstance(shown(server, contexts.for_peer(2)), dict)
    contexts.reload()
    assert contexts.access.name_of(2) == "another.example", "only files were reloaded"


def test_a_node_without_tls_has_no_contexts(tmp_path: Path) -> None:
    voters = replace(listener_of(TlsConfig(certificate="", key="", ca="")), tls=None)
    contexts = ReloadableSettings(NodeConfig(node_id=1, directory=str(tmp_path), voters=voters))
    assert contexts.for_listener(voters) is None
    assert contexts.for_peer(2) is None


@pytest.mark.parametrize("what", ["certificate", "key", "ca"])
def test_a_file_that_is_missing_or_not_pem_is_reported(
    authority: Authority, tmp_path: Path, what: str
) -> None:
    good = tls_of(authority, "node-1.example")
    missing = str(tmp_path / "gone.pem")
    changed: dict[str, Any] = {what: missing}
    with pytest.raises(ConfigError, match=r"gone\.pem|no such file"):
        server_context(replace(good, **changed))
    Path(missing).write_text("not PEM at all")
    os.chmod(missing, 0o600)
    with pytest.raises(ConfigError, match=r"PEM format|contains no CA certificate"):
        server_context(replace(good, **changed))


def test_a_key_that_is_world_readable_or_encrypted_is_refused(
    authority: Authority,
) -> None:
    open_to_all = authority.sign("open")
    os.chmod(open_to_all.key, 0o644)
    config = TlsConfig(certificate=open_to_all.certificate, key=open_to_all.key, ca=authority.path)
    with pytest.raises(ConfigError, match=r"may read the key .*chmod 600"):
        server_context(config)
    os.chmod(open_to_all.key, 0o602)
    with pytest.raises(ConfigError, match=r"may change .*chmod 600"):
        server_context(config)
    encrypted = authority.sign("encrypted", password=b"secret")
    config = TlsConfig(certificate=encrypted.certificate, key=encrypted.key, ca=authority.path)
    with pytest.raises(ConfigError, match=r"encrypted: store it without a password"):
        server_context(config)


def test_a_key_in_a_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "keys")
    pair = authority.sign("node-1.example")
    config = TlsConfig(certificate=pair.certificate, key=pair.key, ca=authority.path)
    server_context(config)
    os.chmod(tmp_path / "keys", 0o757)
    with pytest.raises(ConfigError, match=r"may replace it"):
        server_context(config)


def test_a_key_of_another_certificate_is_refused(authority: Authority) -> None:
    one, two = tls_of(authority, "node-1.example"), tls_of(authority, "node-2.example")
    with pytest.raises(ConfigError, match=r"key values mismatch"):
        server_context(replace(one, key=two.key))


def test_a_certificate_has_different_rights_on_each_port_of_a_node(authority: Authority) -> None:
    access = AccessTable(append=("jobs-*",), nodes=NODES)

    def caller(name: str, listener: Listener) -> Principal:
        good = tls_of(authority, name)
        config = listener_of(tls_of(authority, "node-2.example"), listener)
        assert config.tls is not None
        client = client_context(authority.path, KeyPair(good.certificate, good.key))
        seen = shown(server_context(config.tls), client)
        assert isinstance(seen, dict)
        return principal_of(seen, config, access)

    assert caller("node-1.example", Listener.VOTERS).rights == Rights.VOTE | Rights.DESCRIBE
    assert caller("node-1.example", Listener.CLIENTS).rights == Rights.NONE
    assert caller("jobs-7", Listener.CLIENTS).rights == Rights.APPEND | Rights.DESCRIBE
    assert caller("jobs-7", Listener.VOTERS).rights == Rights.NONE
