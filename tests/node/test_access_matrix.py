"""Authorization over real TLS: every identity on every port with every request.

A refused request has its dangerous form (a vote in a later epoch, a new voter, a record) and must
not change the node. A served request has a harmless form.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from raftlog.node.access import Rights
from raftlog.node.sasl import no_users, with_password, write_users
from raftlog.wire import APIS, ApiKey, Listener, decode_response_header
from tests.support.certificates import Authority, KeyPair
from tests.support.dangerous_requests import RECORD, Claim, Kind, kinds
from tests.support.plain_messages import answered, error_codes, request_body
from tests.support.quorum_processes import free_ports
from tests.support.sasl_client import authenticate
from tests.support.served_node import RawConnection, ServedNode, served_node

WRONG_CLUSTER = "AbCdEfGhIjKlMnOpQrStUg"
REFUSED = {29, 30, 31, 53, 104}
"""No rights to the topic, the group, the cluster, transactions; another cluster."""
PASSWORD = "of every user"
CLIENTS, VOTERS = Listener.CLIENTS, Listener.VOTERS
BOTH = CLIENTS | VOTERS
ANY_NAME = -2
"""Requests without a checked sender id, since no certificate proves it."""
NONE, DESCRIBE = Rights.NONE, Rights.DESCRIBE


@dataclass(frozen=True)
class Identity:
    """Certificate at a port, and the rights that it has there.

    ``speaker``: the node id in its messages. ``is_let_in`` False: the handshake fails.
    """

    name: str
    port: Listener
    pair: KeyPair | None
    rights: Rights = NONE
    is_let_in: bool = True
    node_id: int | None = None
    speaker: int = 2
    cluster_id: str | None = None
    user: str | None = None
    """User that authenticates by SASL."""


class Authorities:
    """Two CAs, one for each port, and an unknown one."""

    def __init__(self, home: Path) -> None:
        self.clients = Authority(home / "clients", "clients' CA")
        self.voters = Authority(home / "voters", "voters' CA")
        self.unknown = Authority(home / "unknown", "somebody's CA")

    def identities(self) -> list[Identity]:
        clients, voters, unknown = self.clients, self.voters, self.unknown
        operator, node = "operator", "node-2.example"
        return [
            Identity("no certificate", CLIENTS, None, is_let_in=False),
            Identity("wrong CA", CLIENTS, unknown.sign(operator), is_let_in=False),
            Identity("the voters' CA", CLIENTS, voters.sign("jobs-1"), is_let_in=False),
            Identity(
                "expired",
                CLIENTS,
                clients.sign(operator, has_expired=True, file_name="old"),
                is_let_in=False,
            ),
            Identity("unauthorized", CLIENTS, clients.sign("unauthorized")),
            Identity("a node on the clients' port", CLIENTS, clients.sign(node)),
            Identity("monitoring", CLIENTS, clients.sign("monitoring"), DESCRIBE),
            Identity("reports", CLIENTS, clients.sign("reports-1"), Rights.READ | DESCRIBE),
            Identity("a job", CLIENTS, clients.sign("jobs-7"), Rights.APPEND | DESCRIBE),
            Identity("an operator", CLIENTS, clients.sign(operator), Rights.ADMIN | DESCRIBE),
            Identity("no certificate", VOTERS, None, is_let_in=False),
            Identity("wrong CA", VOTERS, unknown.sign(node), is_let_in=False),
            Identity("a client of the clients' CA", VOTERS, clients.sign("a"), is_let_in=False),
            Identity(
                "expired",
                VOTERS,
                voters.sign(node, has_expired=True, file_name="old"),
                is_let_in=False,
            ),
            Identity("a client of the voters' CA", VOTERS, voters.sign("jobs-7")),
            Identity("an operator", VOTERS, voters.sign(operator), Rights.ADMIN | DESCRIBE),
            Identity(
                "two nodes in one",
                VOTERS,
                voters.sign(node, dns=["node-3.example"], file_name="both"),
            ),
            *(
                Identity(
                    f"node 2 as {speaker}{'' if cluster_id is None else ' of another cluster'}",
                    VOTERS,
                    voters.sign(node),
                    Rights.VOTE | DESCRIBE,
                    node_id=2,
                    speaker=speaker,
                    cluster_id=cluster_id,
                )
                for speaker, cluster_id in ((2, None), (1, None), (3, None), (2, WRONG_CLUSTER))
            ),
        ]

    def identities_at_one_port(self) -> list[Identity]:
        """Return the identities of one port for clients and voters, which has the voters' CA."""
        voters = self.voters
        jobs = Rights.APPEND | DESCRIBE
        replica = Rights.VOTE | DESCRIBE
        return [
            Identity("no certificate", BOTH, None, is_let_in=False),
            Identity("wrong CA", BOTH, self.clients.sign("jobs-7"), is_let_in=False),
            Identity("unauthorized", BOTH, voters.sign("unauthorized")),
            Identity("a job", BOTH, voters.sign("jobs-7"), jobs),
            Identity("a report", BOTH, voters.sign("reports-7"), Rights.READ | DESCRIBE),
            *(
                Identity(
                    f"node 2 as {speaker}",
                    BOTH,
                    voters.sign("node-2.example"),
                    replica,
                    node_id=2,
                    speaker=speaker,
                )
                for speaker in (2, 1, 3)
            ),
        ]

    def context(self, identity: Identity) -> ssl.SSLContext:
        """Return the context of a caller that trusts the node, with the identity's certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        own = self.clients if identity.port is CLIENTS else self.voters
        context.load_verify_locations(own.path)
        if identity.pair is not None:
            context.load_cert_chain(identity.pair.certificate, identity.pair.key)
        return context


def configuration(**listener_authorities: Authority) -> tuple[str, str]:
    """Return the listeners of a node, each with its CA, and its access table."""
    listeners = ""
    ports = free_ports(len(listener_authorities))
    for (name, own), port in zip(listener_authorities.items(), ports, strict=True):
        pair = own.sign("node-1.example", file_name="server")
        listeners += (
            f'[listeners.{name}]\naddress = "127.0.0.1:{port}"\n'
            f'tls = {{ certificate = "{pair.certificate}", key = "{pair.key}", '
            f'ca = "{own.path}" }}\n'
        )
    access = (
        '[access]\ndescribe = ["monitoring"]\nread = ["reports-*"]\nappend = ["jobs-*"]\n'
        'admin = ["operator"]\n[access.commits]\n"jobs-*" = ["app"]\n[access.nodes]\n'
    )
    access += "".join(f'{one} = "node-{one}.example"\n' for one in (1, 2, 3))
    return listeners, access


def state_of(node: ServedNode) -> object:
    """Return all state that a request may change: in memory, and in the files of the log."""
    replica = node.node.raft_node.replica
    core, log = replica.core, replica.log
    directory = Path(node.config.directory) / "raftlog-0"
    files = {
        path.name: path.read_bytes()
        for path in directory.iterdir()
        if path.suffix == ".log" or path.name in ("quorum-state", "leader-epoch-checkpoint")
    }
    known = (core.epoch, core.leader_id, core.is_leader, core.high_watermark, core.voters)
    return known, log.end_offset, log.log_start_offset, files


class Matrix:
    """One node and all identities that connect to it."""

    def __init__(self, node: ServedNode, authorities: Authorities | None) -> None:
        self._node = node
        self._authorities = authorities
        self.counts = {"served": 0, "refused": 0, "closed": 0, "not let in": 0}
        self.wrong: list[str] = []
        self._denied: set[tuple[str, str, bool]] = set()
        """Principal, API, and whether there is a certificate, of the requests that were refused."""

    async def try_all(self, identities: Iterable[Identity]) -> None:
        for identity in identities:
            if not identity.is_let_in:
                await self._check_refused_handshake(identity)
                continue
            for kind in kinds():
                await self._try(identity, kind)

    async def _check_refused_handshake(self, identity: Identity) -> None:
        before = state_of(self._node)
        connection = None
        with contextlib.suppress(OSError):
            connection = await self._connect(identity)
        if connection is not None:
            # With TLS 1.3 the server refuses after the client has completed its side of the
            # handshake.
            async with connection:
                for kind in kinds():
                    self._ask(connection, identity, kind, is_harmless=False)
                with contextlib.suppress(OSError):
                    if await connection.next_frame() is not None:
                        self.wrong.append(f"{identity.name} was answered at {identity.port}")
        if state_of(self._node) != before:
            self.wrong.append(f"{identity.name} changed something at {identity.port}")
        self.counts["not let in"] += 1

    async def _try(self, identity: Identity, kind: Kind) -> None:
        is_served = APIS[kind.key].on(identity.port) is not None
        is_allowed = is_served and self._is_allowed(identity, kind)
        before = state_of(self._node)
        async with await self._connect(identity) as connection:
            version = self._ask(connection, identity, kind, is_harmless=is_allowed)
            data = await connection.next_frame()
        came = "closed"
        if data is not None:
            _, start = decode_response_header(data, kind.key, version)
            codes = error_codes(answered(kind.key, version, data[start:]))
            came = "refused" if codes & REFUSED else "served"
            if came == "served" and codes != set(kind.codes):
                self.wrong.append(f"{identity.name}: {kind.name} was answered with {codes}")
            if came == "refused" and RECORD in data:
                self.wrong.append(f"{identity.name}: {kind.name} was refused with records")
        self.counts[came] += 1
        expected = "served" if is_allowed else "refused" if is_served else "closed"
        where = f"{identity.name} at the port for {identity.port}: {kind.name}"
        if came == "refused":
            has_certificate = identity.pair is not None
            self._denied.add((_principal(identity), kind.key.name, has_certificate))
        if came != expected:
            self.wrong.append(f"{where} was {came}, not {expected}")
        if came != "served" and state_of(self._node) != before:
            self.wrong.append(f"{where} changed something")

    def check_audit(self) -> None:
        """Compare the audit log with the requests that were refused.

        Requests before an authentication, after which the connection is closed, have no principal.
        """
        assert self._node.config.audit is not None
        lines = map(json.loads, Path(self._node.config.audit.path).read_text().splitlines())
        refused = [line for line in lines if line["event"] == "refused" and "request" in line]
        logged = {
            (line["principal"], line["request"], line["certificate"] is not None)
            for line in refused
            if line["principal"] is not None
        }
        assert logged == self._denied

    @staticmethod
    def _is_allowed(identity: Identity, kind: Kind) -> bool:
        if not kind.right & identity.rights:
            return False
        if kind.names_cluster and identity.cluster_id is not None:
            return False
        return not kind.names_speaker or identity.node_id in (identity.speaker, ANY_NAME)

    def _ask(
        self, connection: RawConnection, identity: Identity, kind: Kind, *, is_harmless: bool
    ) -> int:
        versions = APIS[kind.key].on(identity.port) or APIS[kind.key].versions
        claim = Claim(
            node=self._node,
            port=identity.port,
            speaker=identity.speaker,
            cluster_id=identity.cluster_id or self._node.node.log_identity.cluster_id,
            is_harmless=is_harmless,
        )
        body = request_body(kind.key, versions.last, kind.values(claim))
        connection.ask(kind.key, versions.last, body)
        return versions.last

    async def _connect(self, identity: Identity) -> RawConnection:
        config = self._node.config
        listener = config.clients if identity.port is CLIENTS else config.voters
        assert listener is not None
        context = None if self._authorities is None else self._authorities.context(identity)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1",
            listener.port,
            ssl=context,
            server_hostname=None if context is None else "node-1.example",
        )
        connection = RawConnection(reader, writer)
        if identity.user is not None:
            await authenticate(connection, "SCRAM-SHA-256", identity.user, PASSWORD)
        return connection


def _principal(identity: Identity) -> str:
    if identity.user is not None:
        return identity.user
    if identity.pair is None:
        return "anonymous"
    certificate = x509.load_pem_x509_certificate(Path(identity.pair.certificate).read_bytes())
    (name,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(name.value)


def check_all(
    home: Path,
    identities: list[Identity],
    authorities: Authorities | None,
    *,
    listeners: str,
    access: str = "",
) -> dict[str, int]:
    """Send every request of every identity; return how often each result occurred."""

    async def check() -> dict[str, int]:
        extra = f'{access}[audit]\nfile = "{home / "audit.log"}"\n'
        async with served_node(home, extra, listeners=listeners) as node:
            matrix = Matrix(node, authorities)
            await matrix.try_all(identities)
            assert not matrix.wrong, "\n".join(matrix.wrong)
            matrix.check_audit()
            assert node.node.raft_node.replica.core.is_leader
            return matrix.counts

    return asyncio.run(check())


@pytest.mark.slow
def test_every_identity_is_served_or_refused_every_request_according_to_its_rights(
    tmp_path: Path,
) -> None:
    authorities = Authorities(tmp_path)
    listeners, access = configuration(clients=authorities.clients, voters=authorities.voters)
    counts = check_all(
        tmp_path, authorities.identities(), authorities, listeners=listeners, access=access
    )
    assert all(counts.values()), counts


@pytest.mark.nightly
def test_a_shared_port_grants_every_identity_only_its_own_rights(tmp_path: Path) -> None:
    """``make test`` has two ports, and stock clients at one in ``test_tls_quorum.py``."""
    authorities = Authorities(tmp_path)
    listeners, access = configuration(both=authorities.voters)
    identities = authorities.identities_at_one_port()
    counts = check_all(tmp_path, identities, authorities, listeners=listeners, access=access)
    assert not counts["closed"], "everything is served on such a port"


@pytest.mark.slow
def test_without_tls_every_caller_has_all_rights_of_the_port(tmp_path: Path) -> None:
    ports = free_ports(2)
    listeners = "".join(
        f'[listeners.{name}]\naddress = "127.0.0.1:{port}"\n'
        for name, port in zip(("clients", "voters"), ports, strict=True)
    )
    on_clients = Rights.READ | Rights.APPEND | Rights.ADMIN | DESCRIBE
    on_voters = Rights.VOTE | Rights.ADMIN | DESCRIBE
    identities = [
        Identity("anonymous", CLIENTS, None, on_clients),
        *(
            Identity("anonymous", VOTERS, None, on_voters, node_id=ANY_NAME, speaker=speaker)
            for speaker in (2, 3)
        ),
        Identity("another cluster", VOTERS, None, on_voters, cluster_id=WRONG_CLUSTER),
    ]
    counts = check_all(tmp_path, identities, None, listeners=listeners)
    assert counts["served"]


@pytest.mark.slow
def test_users_of_sasl_have_only_the_rights_of_their_names(tmp_path: Path) -> None:
    authorities = Authorities(tmp_path)
    clients, operator = authorities.clients, authorities.clients.sign("operator")
    rights = {
        "monitoring": DESCRIBE,
        "reports-1": Rights.READ | DESCRIBE,
        "jobs-7": Rights.APPEND | DESCRIBE,
        "operator": Rights.ADMIN | DESCRIBE,
        "unauthorized": NONE,
        "node-2.example": NONE,
    }
    users = no_users()
    for name in rights:
        users = with_password(users, name, PASSWORD)
    path = tmp_path / "users.json"
    write_users(users, str(path))
    listeners, access = configuration(clients=clients, voters=authorities.voters)
    listeners = listeners.replace(
        " }\n", f', client_certificates = "optional" }}\nsasl.users = "{path}"\n', 1
    )
    identities = [
        Identity("no user", CLIENTS, None, is_let_in=False),
        Identity("a certificate and no user", CLIENTS, operator, is_let_in=False),
        *(Identity(f"user {name}", CLIENTS, None, at, user=name) for name, at in rights.items()),
        Identity(
            "a user with the certificate of another principal",
            CLIENTS,
            operator,
            rights["jobs-7"],
            user="jobs-7",
        ),
    ]
    counts = check_all(tmp_path, identities, authorities, listeners=listeners, access=access)
    assert all(counts.values()), counts


@pytest.mark.slow
def test_every_served_request_is_in_the_matrix() -> None:
    assert {kind.key for kind in kinds()} == set(APIS) - {ApiKey.API_VERSIONS}
