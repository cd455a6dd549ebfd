"""One Kafka controller with a listener for each security protocol, and its credentials."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.certificates import Authority, KeyPair
from tests.support.kafka import KafkaNode, running_node
from tests.support.quorum_processes import free_ports

PASSWORD = 'hunter2-\u00e9 "=,\\'
"""With letters that JAAS, SCRAM and properties files escape."""
SCRAM_PASSWORD = "xyzzy-4711"
LOGIN = "org.apache.kafka.common.security"
PLAIN = f"{LOGIN}.plain.PlainLoginModule"
SCRAM = f"{LOGIN}.scram.ScramLoginModule"
OAUTH = f"{LOGIN}.oauthbearer.OAuthBearerLoginModule"
LISTENERS = {
    "SASLPLAIN": "SASL_PLAINTEXT",
    "SASLTLS": "SASL_SSL",
    "MUTUAL": "SSL",
    "SHORT": "SASL_PLAINTEXT",
}
"""Name to security protocol. Sessions of SHORT end after two seconds."""


@dataclass(frozen=True)
class SecuredKafka:
    """Running node, the addresses of its listeners for controllers, and the client's files."""

    node: KafkaNode
    addresses: dict[str, str]
    authority: Authority
    client: KeyPair

    def options(self, listener: str, mechanism: str | None = None) -> dict[str, str]:
        """Return the options of a client with the right credentials."""
        protocol = LISTENERS[listener]
        options = {"security.protocol": protocol}
        if protocol.endswith("SSL"):
            options["ssl.ca.location"] = self.authority.path
        if protocol == "SSL":
            options["ssl.certificate.location"] = self.client.certificate
            options["ssl.key.location"] = self.client.key
        if mechanism is None:
            return options
        options["sasl.mechanism"] = mechanism
        if mechanism == "OAUTHBEARER":
            return options | {"sasl.oauthbearer.token": unsecured_token("alice")}
        password = PASSWORD if mechanism == "PLAIN" else SCRAM_PASSWORD
        return options | {"sasl.username": "alice", "sasl.password": password}


def unsecured_token(subject: str, *, lifetime_s: int = 3600) -> str:
    """Return an unsecured JWS, which Kafka accepts without a validator of its own."""
    now_s = int(time.time())
    claims = {"sub": subject, "iat": now_s - 7200, "exp": now_s + lifetime_s}
    parts = [json.dumps(part).encode() for part in ({"alg": "none"}, claims)]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts) + "."


def _quoted(text: str) -> str:
    """Return a text as a value of JAAS in a properties file."""
    jaas = text.replace("\\", "\\\\").replace('"', '\\"')
    return (
        jaas.replace("\\", "\\\\")
        .encode("ascii", "backslashreplace")
        .decode()
        .replace("\\xe9", "\\u00e9")
    )


def _mechanisms(listener: str) -> tuple[str, ...]:
    if listener == "SHORT":
        return ("SCRAM-SHA-256", "OAUTHBEARER")
    return ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


def _lines(listener: str) -> list[str]:
    name = f"listener.name.{listener.lower()}"
    claim = "unsecuredLoginStringClaim_sub"
    return [
        f"{name}.sasl.enabled.mechanisms={','.join(_mechanisms(listener))}",
        f'{name}.plain.sasl.jaas.config={PLAIN} required user_alice="{_quoted(PASSWORD)}";',
        f"{name}.scram-sha-256.sasl.jaas.config={SCRAM} required;",
        f"{name}.scram-sha-512.sasl.jaas.config={SCRAM} required;",
        f'{name}.oauthbearer.sasl.jaas.config={OAUTH} required {claim}="admin";',
    ]


@contextmanager
def secured_kafka(directory: Path) -> Iterator[SecuredKafka]:
    """Run the node. Its listener for the broker is plain text, as that of other tests."""
    authority = Authority(directory / "keys")
    server = authority.sign("controller-1", dns=["localhost"])
    store = directory / "keys" / "store.pem"
    store.write_text(Path(server.key).read_text() + Path(server.certificate).read_text())
    ports = free_ports(len(LISTENERS))
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(LISTENERS, ports, strict=True)}
    with running_node(
        directory,
        *_tls_lines(store, authority),
        *(line for name in LISTENERS if name != "MUTUAL" for line in _lines(name)),
        "listener.name.short.connections.max.reauth.ms=2000",
        "super.users=User:ANONYMOUS;User:alice;User:CN=alice",
        format_with=tuple(
            part
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
            for part in ("--add-scram", f"{mechanism}=[name=alice,password={SCRAM_PASSWORD}]")
        ),
        listeners={name: (LISTENERS[name], at) for name, at in addresses.items()},
    ) as node:
        yield SecuredKafka(node, addresses, authority, authority.sign("alice"))


def _tls_lines(store: Path, authority: Authority) -> list[str]:
    return [
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={store}",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={authority.path}",
        "listener.name.mutual.ssl.client.auth=required",
    ]
