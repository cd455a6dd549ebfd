"""Rights of principals that authenticate by each mechanism, judged by Kafka's own clients."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.node.test_oauth import AUDIENCE, ISSUER, ec_jwk, key_set, signed
from tests.support.certificates import Authority
from tests.support.kafka import kafka_jars, run_java
from tests.support.quorum_processes import free_ports
from tests.support.served_node import served_node

from raftlog.node.access import Rights
from raftlog.node.sasl import no_users, with_password, write_users

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PROGRAM: Final = Path(__file__).parent / "Access.java"
LOGIN: Final = "org.apache.kafka.common.security"
DESCRIBE, READ, APPEND, ADMIN = Rights.DESCRIBE, Rights.READ, Rights.APPEND, Rights.ADMIN
OPERATIONS: Final = {
    "produce": APPEND,
    "consume": READ,
    "offsets": DESCRIBE,
    "delete": ADMIN,
    "topics": DESCRIBE,
    "configs": DESCRIBE,
    "cluster": DESCRIBE,
    "quorum": DESCRIBE,
    "groups": DESCRIBE,
    "group": DESCRIBE,
    "commit": READ,
    "committed": DESCRIBE,
    "delete offsets": ADMIN,
    "delete group": ADMIN,
    "features": ADMIN,
    "add voter": ADMIN,
    "remove voter": ADMIN,
}
"""The right that each operation of Kafka's clients requires, any one of them."""
AT_VOTERS: Final = {"configs", "cluster", "quorum", "features", "add voter", "remove voter"}
"""Operations that the listener for voters serves."""
RIGHTS: Final = {
    "jobs": APPEND | DESCRIBE,
    "reports": READ | DESCRIBE,
    "operator": ADMIN | DESCRIBE,
    "monitoring": DESCRIBE,
    "unauthorized": Rights.NONE,
}
ACCESS: Final = (
    '[access]\ndescribe = ["monitoring"]\nread = ["reports"]\nappend = ["jobs"]\n'
    'admin = ["operator"]\nnodes = "log-{id}.example"\n'
)
SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")


class Clients:
    """Node with a listener for one kind of authentication, and the properties of its clients."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._authority = Authority(home / "ca")
        self._voters = Authority(home / "voters")
        self._users = home / "users.json"
        self._keys = home / "jwks.json"
        self.port, self._voters_port = free_ports(2)

    def listeners(self, *, has_sasl: bool) -> str:
        """Write what the node reads; return the tables of its listeners."""
        users = no_users()
        for name in RIGHTS:
            users = with_password(users, name, f"password of {name}")
        write_users(users, str(self._users))
        self._keys.write_bytes(key_set(ec_jwk()))
        pair = self._authority.sign("log-1.example", dns=["localhost"], file_name="node")
        optional = ', client_certificates = "optional"' if has_sasl else ""
        sasl = (
            f'[listeners.clients.sasl]\nusers = "{self._users}"\n[listeners.clients.sasl.oauth]\n'
            f'keys = "{self._keys}"\nissuer = "{ISSUER}"\naudience = "{AUDIENCE}"\n'
        )
        voters = self._voters.sign("log-1.example", dns=["localhost"], file_name="voter")
        return (
            f'[listeners.clients]\naddress = "localhost:{self.port}"\ntls = {{ certificate = '
            f'"{pair.certificate}", key = "{pair.key}", ca = "{self._authority.path}"'
            f"{optional} }}\n"
            f'{sasl if has_sasl else ""}[listeners.voters]\naddress = "localhost:'
            f'{self._voters_port}"\ntls = {{ certificate = "{voters.certificate}", key = '
            f'"{voters.key}", ca = "{self._voters.path}" }}\n'
        )

    def properties(self, mechanism: str, name: str, *, password: str | None = None) -> Path:
        """Write the properties of a Java client; return their path."""
        values = {
            "bootstrap.servers": f"localhost:{self.port}",
            "security.protocol": "SSL" if mechanism == "SSL" else "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self._authority.path,
        }
        path = self._home / f"{mechanism}-{name}.properties"
        if mechanism == "SSL":
            pair = self._authority.sign(name, file_name=f"client-{name}")
            both = self._home / f"{name}.pem"
            both.write_text(Path(pair.key).read_text() + Path(pair.certificate).read_text())
            values |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(both)}
        elif mechanism == "OAUTHBEARER":
            token = self._home / f"{name}.jwt"
            token.write_text(password or self.token(name))
            handler = f"{LOGIN}.oauthbearer.OAuthBearerLoginCallbackHandler"
            values |= {
                "sasl.mechanism": mechanism,
                "sasl.login.callback.handler.class": handler,
                "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
                "sasl.jaas.config": f"{LOGIN}.oauthbearer.OAuthBearerLoginModule required;",
            }
        else:
            module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
            login = f'username="{name}" password="{password or f"password of {name}"}"'
            jaas = f"{LOGIN}.{module} required {login};"
            values |= {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas}
        path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        return path

    def properties_at_voters(self, name: str) -> Path:
        """Write the properties of an admin client of the listener for voters; return their path."""
        pair = self._voters.sign(name, file_name=f"at-voters-{name}")
        both = self._home / f"at-voters-{name}.pem"
        both.write_text(Path(pair.key).read_text() + Path(pair.certificate).read_text())
        path = self._home / f"at-voters-{name}.properties"
        path.write_text(
            f"bootstrap.controllers=localhost:{self._voters_port}\nsecurity.protocol=SSL\n"
            f"ssl.truststore.type=PEM\nssl.truststore.location={self._voters.path}\n"
            f"ssl.keystore.type=PEM\nssl.keystore.location={both}\n"
            "default.api.timeout.ms=20000\nrequest.timeout.ms=10000\n"
        )
        return path

    @staticmethod
    def token(name: str, *, audience: str = AUDIENCE) -> str:
        """Return a token for an hour that is signed with a key of the node's set."""
        from tests.node.test_oauth import EC_KEY

        now_s = int(time.time())
        claims = {"iss": ISSUER, "aud": audience, "sub": name, "iat": now_s, "exp": now_s + 3600}
        return signed(claims, key=EC_KEY)


def allowed_of(rights: Rights) -> set[str]:
    """Return the operations that these rights allow."""
    return {one for one, required in OPERATIONS.items() if required & rights}


def outcomes(paths: list[Path]) -> Iterator[dict[str, str]]:
    """Yield the outcome of each operation of Kafka's clients, for each file of properties."""
    command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", f"{kafka_jars()}/*", str(PROGRAM)]
    text = "".join(f"{path}\n" for path in paths)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        yield dict(one.split("=") for one in line.split("\t"))


def allowed(found: dict[str, str]) -> set[str]:
    """Return the operations that were not denied."""
    assert found.keys() <= OPERATIONS.keys()
    return {one for one, outcome in found.items() if not outcome.endswith("AuthorizationException")}


@pytest.mark.parametrize("has_sasl", [True, False])
def test_kafkas_clients_have_the_rights_of_their_principal_by_every_mechanism(
    tmp_path: Path, *, has_sasl: bool
) -> None:
    clients = Clients(tmp_path)
    mechanisms = (*SCRAM, "OAUTHBEARER") if has_sasl else ("SSL",)
    cases = [(mechanism, name) for mechanism in mechanisms for name in RIGHTS]

    async def run() -> list[dict[str, str]]:
        async with served_node(tmp_path, ACCESS, listeners=clients.listeners(has_sasl=has_sasl)):
            paths = [clients.properties(*case) for case in cases]
            return await asyncio.to_thread(lambda: list(outcomes(paths)))

    for case, found in zip(cases, asyncio.run(run()), strict=True):
        assert allowed(found) == allowed_of(RIGHTS[case[1]]), (case, found)


def test_kafkas_admin_clients_have_the_rights_of_their_certificate_at_the_voters_listener(
    tmp_path: Path,
) -> None:
    clients = Clients(tmp_path)
    rights = {
        "operator": ADMIN | DESCRIBE,
        "log-2.example": Rights.VOTE | DESCRIBE,
        "jobs": Rights.NONE,
    }

    async def run() -> list[dict[str, str]]:
        async with served_node(tmp_path, ACCESS, listeners=clients.listeners(has_sasl=True)):
            paths = [clients.properties_at_voters(name) for name in rights]
            return await asyncio.to_thread(lambda: list(outcomes(paths)))

    for (name, right), found in zip(rights.items(), asyncio.run(run()), strict=True):
        served = {one for one in found if found[one] != "UnsupportedEndpointTypeException"}
        if right:  # without one the client may not ask for the nodes
            assert served == AT_VOTERS, (name, found)
        assert allowed(found) & AT_VOTERS == allowed_of(right) & AT_VOTERS, (name, found)


def test_kafkas_clients_without_the_credentials_are_not_authenticated(tmp_path: Path) -> None:
    clients = Clients(tmp_path)

    async def run() -> list[dict[str, str]]:
        async with served_node(tmp_path, ACCESS, listeners=clients.listeners(has_sasl=True)):
            paths = [clients.properties(one, "jobs", password="wrong") for one in SCRAM]
            paths.append(clients.properties("PLAIN", "jobs"))
            other = clients.token("jobs", audience="another service")
            paths.append(clients.properties("OAUTHBEARER", "jobs", password=other))
            return await asyncio.to_thread(lambda: list(outcomes(paths)))

    wrong, also_wrong, plain, token = asyncio.run(run())
    for found in (wrong, also_wrong, token):
        assert set(found.values()) == {"SaslAuthenticationException"}
    assert set(plain.values()) == {"UnsupportedSaslMechanismException"}


@pytest.mark.parametrize("mechanism", [*SCRAM, "OAUTHBEARER", "SSL"])
def test_kafkas_console_tools_write_and_read_by_every_mechanism(
    tmp_path: Path, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = Clients(tmp_path)
    tools = "org.apache.kafka.tools"

    def use() -> str:
        writer, reader = (str(clients.properties(mechanism, name)) for name in ("jobs", "reports"))
        urls = ",".join((tmp_path / f"{one}.jwt").as_uri() for one in ("jobs", "reports"))
        monkeypatch.setenv(
            "JDK_JAVA_OPTIONS", f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={urls}"
        )
        at = ("--bootstrap-server", f"localhost:{clients.port}", "--topic", "raftlog")
        command = ["java", "-Xmx256m", "-cp", f"{kafka_jars()}/*", f"{tools}.ConsoleProducer"]
        produced = subprocess.run(
            [*command, *at, "--command-config", writer],
            input="one\ntwo\n",
            capture_output=True,
            text=True,
            check=True,
        )
        assert "ERROR" not in produced.stdout + produced.stderr
        consumer = f"{tools}.consumer.ConsoleConsumer"
        some = ("--partition", "0", "--offset", "earliest", "--max-messages", "2")
        options = (*at, "--command-config", reader, *some, "--timeout-ms", "30000")
        return run_java(kafka_jars(), consumer, *options)

    async def run() -> str:
        tables = clients.listeners(has_sasl=mechanism != "SSL")
        async with served_node(tmp_path, ACCESS, listeners=tables):
            return await asyncio.to_thread(use)

    assert asyncio.run(run()).splitlines() == ["one", "two"]
