"""SASL at a node: stock clients, wrong passwords, removed users, sessions that end."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import stat
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import raftlog
from raftlog.errors import SaslAuthenticationError
from raftlog.node.config import parse_config
from raftlog.node.errors import ConfigError
from raftlog.node.log_lines import LogLines
from raftlog.node.process import _reload
from raftlog.node.sasl import (
    SaslAuthenticator,
    SaslStateError,
    Users,
    no_users,
    read_users,
    with_password,
    write_users,
)
from raftlog.types import SCRAM_HASHES
from raftlog.wire import ApiKey
from raftlog.wire.sasl import scram_exchange
from tests.support.certificates import Authority
from tests.support.quorum_processes import free_ports
from tests.support.sasl_client import authenticate, handshake, refused, send_message
from tests.support.served_node import ServedNode, served_node

NAME, PASSWORD = "jobs-7", "s3cret, =\u00e9"
ACCESS = '[access]\nread = ["jobs-*"]\nappend = ["jobs-*"]\n[access.nodes]\n1 = "node-1.example"\n'


class SaslPort:
    """Node with SASL for clients; without ``authority`` on a listener without TLS."""

    def __init__(self, home: Path, *, has_tls: bool = False, max_reauth_ms: int = 0) -> None:
        self.home = home
        self.users = home / "users.json"
        self.audit = home / "audit.log"
        self.add(NAME, PASSWORD)
        self._max_reauth_ms = max_reauth_ms
        self._authority = Authority(home / "ca") if has_tls else None

    def add(self, name: str, password: str) -> None:
        users = read_users(str(self.users)) if self.users.exists() else no_users()
        write_users(with_password(users, name, password), str(self.users))

    def options(self, mechanism: str, password: str = PASSWORD) -> dict[str, str]:
        """Return the options of a client."""
        found = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": NAME,
            "sasl.password": password,
        }
        if self._authority is not None:
            found["security.protocol"] = "SASL_SSL"
            found["ssl.ca.location"] = self._authority.path
        return found

    def run(self, check: Callable[[ServedNode], Awaitable[None]]) -> None:
        tls = ""
        if self._authority is not None:
            pair = self._authority.sign("node-1.example")
            tls = (
                f'tls = {{ certificate = "{pair.certificate}", key = "{pair.key}", '
                f'ca = "{self._authority.path}", client_certificates = "optional" }}\n'
            )
        clients, voters = free_ports(2)
        listeners = (
            f'[listeners.clients]\naddress = "127.0.0.1:{clients}"\n{tls}'
            f'sasl = {{ users = "{self.users}", max_reauth_ms = {self._max_reauth_ms} }}\n'
            f'[listeners.voters]\naddress = "127.0.0.1:{voters}"\n'
        )
        extra = f'{ACCESS}[audit]\nfile = "{self.audit}"\n'

        async def with_node() -> None:
            async with served_node(self.home, extra, listeners=listeners) as node:
                await check(node)

        asyncio.run(with_node())

    def audited(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.audit.read_text().splitlines()]
        return [line for line in lines if line["event"] == event]


def _append_and_read(bootstrap: str, options: dict[str, str]) -> list[bytes | None]:
    with raftlog.connect(bootstrap, config=options) as log:
        log.append(b"raftlog")
        return [one.value for one in log.read()]


def _produce(bootstrap: str, options: dict[str, str]) -> str | None:
    """Produce by librdkafka; return the error, None for none."""
    from confluent_kafka import Producer

    errors: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "message.timeout.ms": 15_000,
            "error_cb": lambda error: errors.append(error.name()),
            **options,
        }
    )
    producer.produce("raftlog", b"librdkafka")
    while len(producer) and "_AUTHENTICATION" not in errors:
        producer.poll(0.1)
    producer.purge()
    producer.flush(1)
    return errors[0] if errors else None


async def _produce_by_aiokafka(bootstrap: str, options: dict[str, str]) -> None:
    import ssl

    from aiokafka import AIOKafkaProducer

    ca = options.get("ssl.ca.location")
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        security_protocol=options["security.protocol"],
        sasl_mechanism=options["sasl.mechanism"],
        sasl_plain_username=options["sasl.username"],
        sasl_plain_password=options["sasl.password"],
        ssl_context=None if ca is None else ssl.create_default_context(cafile=ca),
    )
    await producer.start()
    try:
        await producer.send_and_wait("raftlog", b"aiokafka")
    finally:
        await producer.stop()


@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("mechanism", SCRAM_HASHES)
def test_stock_clients_authenticate(tmp_path: Path, mechanism: str, has_tls: bool) -> None:
    port = SaslPort(tmp_path, has_tls=has_tls)

    async def check(node: ServedNode) -> None:
        bootstrap = f"127.0.0.1:{node.port}"
        options = port.options(mechanism)
        assert await asyncio.to_thread(_produce, bootstrap, options) is None
        await _produce_by_aiokafka(bootstrap, options)
        values = await asyncio.to_thread(_append_and_read, bootstrap, options)
        assert values == [b"librdkafka", b"aiokafka", b"raftlog"]

    port.run(check)
    assert {line["principal"] for line in port.audited("connected")} == {NAME}
    appended = port.audited("appended")
    assert {line["principal"] for line in appended} == {NAME}
    assert sum(line["batches"] for line in appended) == 3
    assert PASSWORD not in port.audit.read_text()


def test_clients_with_a_wrong_password_are_refused(tmp_path: Path) -> None:
    port = SaslPort(tmp_path)

    async def check(node: ServedNode) -> None:
        bootstrap = f"127.0.0.1:{node.port}"
        options = port.options("SCRAM-SHA-512", "wrong")
        assert await asyncio.to_thread(_produce, bootstrap, options) == "_AUTHENTICATION"
        with pytest.raises(SaslAuthenticationError, match="authentication failed"):
            await asyncio.to_thread(_append_and_read, bootstrap, options)
        assert not node.node.server.quotas.clients.count

    port.run(check)
    assert not port.audited("connected")
    assert all(NAME in line["reason"] for line in port.audited("refused"))


def test_a_name_of_an_unknown_user_does_not_lengthen_lines(tmp_path: Path) -> None:
    port = SaslPort(tmp_path)

    async def check(node: ServedNode) -> None:
        async with await node.connect() as connection:
            await refused(connection, "SCRAM-SHA-256", "\U000e0001" * 5_000, "wrong")

    port.run(check)
    assert len(port.audited("refused")[0]["reason"]) < 400


def test_a_recorded_exchange_is_not_accepted_again(tmp_path: Path) -> None:
    exchange = scram_exchange("SCRAM-SHA-256", NAME, PASSWORD, "nonce")

    async def check(node: ServedNode) -> None:
        first = next(exchange)
        async with await node.connect() as connection:
            await handshake(connection, "SCRAM-SHA-256")
            challenge = await send_message(connection, first)
            final = exchange.send(bytes(challenge.auth_bytes))
            assert (await send_message(connection, final)).error_code == 0
            assert (await send_message(connection, final)).error_code == 34, "no second handshake"
        for messages in ((first, final), (final,)):
            async with await node.connect() as connection:
                await handshake(connection, "SCRAM-SHA-256")
                for message in messages:
                    response = await send_message(connection, message)
                assert response.error_code == 58
                assert await connection.next_frame() is None

    SaslPort(tmp_path).run(check)


def test_an_unknown_user_is_not_distinguished_from_a_wrong_password(tmp_path: Path) -> None:
    port = SaslPort(tmp_path)

    async def check(node: ServedNode) -> None:
        found = []
        for name in (NAME, "unknown", "unknown"):
            async with await node.connect() as connection:
                found.append(await refused(connection, "SCRAM-SHA-256", name, "wrong"))
        (known_salt, *known), (salt, *unknown), (same_salt, *_) = found
        assert known == unknown
        assert salt == same_salt != known_salt, "a salt that changes would show an unknown user"

    port.run(check)


def _calls(users: Users, name: str) -> Counter[str]:
    """Count the calls of a node during an authentication by a wrong password."""
    exchange = scram_exchange("SCRAM-SHA-256", name, "wrong", "nonce")
    authenticator = SaslAuthenticator(lambda: users, 0)
    authenticator._handshake("SCRAM-SHA-256")
    found: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            found[f"{argument.__module__}.{argument.__qualname__}"] += 1
        elif event == "call":
            found[f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}"] += 1

    message = next(exchange)
    for _ in range(2):
        sys.setprofile(count)
        try:
            response, _ = authenticator._authenticate(message, 0.0)
        finally:
            sys.setprofile(None)
        answer: Any = response
        if answer.error_code == 0:
            message = exchange.send(bytes(answer.auth_bytes))
    assert answer.error_code == 58
    return found


def test_an_unknown_user_takes_the_same_work_as_a_wrong_password() -> None:
    users = with_password(no_users(), NAME, PASSWORD)
    known, unknown = _calls(users, NAME), _calls(users, "jobs-8")
    assert known == unknown, "an attacker could measure which users there are"
    assert sum(count for name, count in known.items() if "hmac" in name) > 1
    assert {count for name, count in known.items() if name.endswith("Users.challenge_of")} == {1}


def test_a_removed_user_and_an_old_password_end_their_connections(tmp_path: Path) -> None:
    port = SaslPort(tmp_path)
    port.add("jobs-8", "other")
    port.add("jobs-9", "third")

    async def check(node: ServedNode) -> None:
        async with (
            await node.connect() as first,
            await node.connect() as second,
            await node.connect() as third,
            await node.connect() as waiting,
        ):
            await authenticate(first, "SCRAM-SHA-256", NAME, PASSWORD)
            await authenticate(second, "SCRAM-SHA-512", "jobs-8", "other")
            await authenticate(third, "SCRAM-SHA-256", "jobs-9", "third")
            users = read_users(str(port.users))
            left = {name: one for name, one in users.credentials.items() if name != NAME}
            changed = with_password(Users(left, users.challenge_key), "jobs-8", "changed")
            write_users(changed, str(port.users))
            access = node.node._settings.access
            node.node._settings.reload()
            assert node.node.access_changed(access, is_trust_reduced=False) == 2
            assert await first.next_frame() is None
            assert await second.next_frame() is None
            third.ask_versions(5)
            assert (await third.answer(ApiKey.API_VERSIONS, 3))[0] == 5
            await authenticate(waiting, "SCRAM-SHA-256", "jobs-8", "changed")

    port.run(check)


def test_a_password_that_is_changed_after_the_challenge_is_refused(tmp_path: Path) -> None:
    port = SaslPort(tmp_path)

    async def check(node: ServedNode) -> None:
        def change() -> None:
            port.add(NAME, "changed")
            node.node._settings.reload()

        async with await node.connect() as connection:
            _, error, *_ = await refused(connection, "SCRAM-SHA-256", NAME, PASSWORD, change)
            assert error == 58
            assert await connection.next_frame() is None
        async with await node.connect() as connection:
            await authenticate(connection, "SCRAM-SHA-256", NAME, "changed")

    port.run(check)


def test_changes_of_users_and_what_is_not_reloaded_are_in_the_audit_log(tmp_path: Path) -> None:
    port = SaslPort(tmp_path)
    port.add("jobs-8", "other")
    lines = LogLines(io.StringIO(), 1)

    async def check(node: ServedNode) -> None:
        users = read_users(str(port.users))
        left = {name: one for name, one in users.credentials.items() if name != NAME}
        changed = with_password(Users(left, users.challenge_key), "jobs-8", "changed")
        write_users(with_password(changed, "jobs-9", "third"), str(port.users))
        rotated = tmp_path / "audit.log.rotated"
        port.audit.rename(rotated)
        _reload(replace(node.config, path=None), node.node._settings, node.node, lines)
        (reloaded,) = port.audited("reload")
        assert reloaded["outcome"] == "reloaded"
        assert reloaded["users.added"] == ["jobs-9"]
        assert reloaded["users.removed"] == [NAME]
        assert reloaded["users.changed"] == ["jobs-8"]
        text = port.audit.read_text()
        for credential in users.credentials[NAME].values():
            assert base64.b64encode(credential.stored_key).decode() not in text

        port.audit.rename(rotated)
        port.users.write_text("{}")
        _reload(replace(node.config, path=None), node.node._settings, node.node, lines)
        assert "not a file of users" in port.audited("reload")[-1]["outcome"]

    port.run(check)


def test_requests_before_the_authentication_are_in_the_audit_log(tmp_path: Path) -> None:
    port = SaslPort(tmp_path)

    async def check(node: ServedNode) -> None:
        async with await node.connect() as connection:
            connection.ask(ApiKey.METADATA, 12, bytes(8))
            assert await connection.next_frame() is None

    port.run(check)
    (refused_line,) = port.audited("refused")
    assert refused_line["request"] == "METADATA"
    assert "before authentication" in refused_line["reason"]
    assert refused_line["principal"] is None


@pytest.mark.slow
def test_a_client_authenticates_again_before_its_session_ends(tmp_path: Path) -> None:
    port = SaslPort(tmp_path, max_reauth_ms=600)

    async def check(node: ServedNode) -> None:
        def append_until_authenticated_again() -> int:
            with raftlog.connect(
                f"127.0.0.1:{node.port}", config=port.options("SCRAM-SHA-256")
            ) as log:
                count = 0
                while node.node.server.metrics.requests["SASL_AUTHENTICATE"] < 12:
                    log.append(b"%d" % count)
                    count += 1
                return len(list(log.read())) - count

        assert await asyncio.to_thread(append_until_authenticated_again) == 0

    port.run(check)


def test_a_session_ends_and_continues_as_the_same_user_only(tmp_path: Path) -> None:
    """With raw requests: a client that does not authenticate in time, or as another user."""
    port = SaslPort(tmp_path, max_reauth_ms=60_000)
    port.add("jobs-8", "other")

    async def check(node: ServedNode) -> None:
        async with await node.connect() as connection:
            await authenticate(connection, "SCRAM-SHA-256", NAME, PASSWORD)
            await authenticate(connection, "SCRAM-SHA-256", NAME, PASSWORD)
            _, error, *_ = await refused(connection, "SCRAM-SHA-256", "jobs-8", "other")
            assert error == 58
            assert await connection.next_frame() is None
        assert node.node.server.metrics.connections == 0

    port.run(check)


def test_requests_after_the_lifetime_of_a_session_are_refused(tmp_path: Path) -> None:
    users = with_password(no_users(), NAME, PASSWORD)
    sasl = SaslAuthenticator(lambda: users, 10.0)
    with pytest.raises(SaslStateError, match="not served before authentication"):
        sasl.check(ApiKey.PRODUCE, 0.0)
    sasl._session = ("SCRAM-SHA-256", NAME, users.credentials[NAME]["SCRAM-SHA-256"])
    sasl._expires_s = 10.0
    sasl.check(ApiKey.PRODUCE, 10.0)
    with pytest.raises(SaslStateError, match="session of user jobs-7 has expired"):
        sasl.check(ApiKey.FETCH, 10.1)
    sasl.check(ApiKey.SASL_HANDSHAKE, 10.1)


# --- configuration --------------------------------------------------------------------------------


def test_users_are_written_privately_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    users = with_password(no_users(), NAME, PASSWORD)
    write_users(users, str(path))
    assert read_users(str(path)) == users
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert PASSWORD not in path.read_text()
    assert [one.name for one in tmp_path.iterdir()] == ["users.json"]
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="other users may read"):
        read_users(str(path))


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values.pop("users"),
        lambda values: values.update(challenge_key="AAAA"),
        lambda values: values["users"].update(anonymous={}),
        lambda values: values["users"][NAME]["SCRAM-SHA-256"].update(iterations=1),
        lambda values: values["users"][NAME]["SCRAM-SHA-256"].update(stored_key="AAAA"),
        lambda values: values["users"][NAME].update(PLAIN={}),
    ],
)
def test_a_damaged_file_of_users_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    path = tmp_path / "users.json"
    write_users(with_password(no_users(), NAME, PASSWORD), str(path))
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match="not a file of users"):
        read_users(str(path))


@pytest.mark.parametrize("name", ["", "anonymous", "ANONYMOUS", "a\nb", "x" * 256])
def test_a_reserved_or_unprintable_name_is_no_user(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        with_password(no_users(), name, PASSWORD)


@pytest.mark.parametrize(
    ("listeners", "reason"),
    [
        ('[listeners.voters]\naddress = "127.0.0.1:1"\nsasl.users = "u"\n', "only"),
        ('[listeners.both]\naddress = "127.0.0.1:1"\nsasl.users = "u"\n', "only"),
        ('[listeners.clients]\naddress = "10.0.0.1:1"\nsasl.users = "u"\n', "TLS is required"),
    ],
)
def test_sasl_is_for_clients_and_without_tls_on_loopback_only(listeners: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_config(f'[node]\nid = 1\ndirectory = "d"\n{listeners}', "node.toml")
