"""Who may do what, over real TLS: every identity on every port, crossed with every request.

A request that is refused is the dangerous form of it (a vote in a later epoch, a new voter, a
record), and must leave the node as it was. One that is served is a harmless form.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from raftlog.node.access import Rights
from raftlog.records.builder import BatchBuilder
from raftlog.records.record import NewRecord
from raftlog.wire import APIS, ApiKey, Listener, decode_response_header
from raftlog.wire.log_identity import uuid_or_none
from tests.support.certificates import Authority, KeyPair
from tests.support.plain_messages import answered, error_codes, request_body
from tests.support.quorum_processes import free_ports
from tests.support.served_node import RawConnection, ServedNode, served_node

pytestmark = pytest.mark.slow

WRONG_CLUSTER = "AbCdEfGhIjKlMnOpQrStUg"
OTHER_DIRECTORY = "CrUad84nR8KvMEpDpKrwbw"
REFUSED = {29, 30, 31, 53, 104}
"""No right to the topic, the group, the cluster, transactions; another cluster."""
CLIENTS, VOTERS = Listener.CLIENTS, Listener.VOTERS
NONE, DESCRIBE = Rights.NONE, Rights.DESCRIBE


@dataclass(frozen=True)
class Claim:
    """What a message says of who sends it. ``is_harmless``: nothing would come of it."""

    node: ServedNode
    port: Listener
    speaker: int
    cluster_id: str
    is_harmless: bool

    @property
    def epoch(self) -> int:
        """One that is over, or one that would depose the leader."""
        return 0 if self.is_harmless else self.node.node.driver.replica.core.epoch + 10

    @property
    def topic_id(self) -> Any:
        return uuid_or_none(self.node.node.log_identity.topic_id)

    @property
    def endpoint(self) -> dict[str, Any]:
        return {"name": "CONTROLLER", "host": "127.0.0.1", "port": 1}


@dataclass(frozen=True)
class Identity:
    """A certificate at a port, and what it gives there.

    ``speaker``: whose id its messages bear. ``is_let_in`` False: the handshake fails.
    """

    name: str
    port: Listener
    pair: KeyPair | None
    rights: Rights = NONE
    is_let_in: bool = True
    node_id: int | None = None
    speaker: int = 2
    cluster_id: str | None = None


def batch() -> bytes:
    builder = BatchBuilder(base_timestamp_ms=0)
    builder.append([NewRecord(None, b"a record")])
    return bytes(builder.build(0, 0))


def _produce(claim: Claim) -> dict[str, Any]:
    partition = {"index": 0, "records": batch()}
    topic = {"topic_id": claim.topic_id, "partition_data": [partition]}
    return {"acks": -1, "timeout": timedelta(seconds=20), "topic_data": [topic]}


def _fetch(claim: Claim, replica_id: int) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 10_000}
    partition["current_leader_epoch"] = claim.node.node.driver.replica.core.epoch
    if replica_id >= 0:
        # An acknowledgement: all there is, and more.
        partition["fetch_offset"] = claim.node.node.driver.replica.log.end_offset
        partition["last_fetched_epoch"] = partition["current_leader_epoch"]
    return {
        "cluster_id": claim.cluster_id,
        "max_bytes": 10_000,
        "replica_state": {"replica_id": replica_id},
        "topics": [{"topic_id": claim.topic_id, "partitions": [partition]}],
    }


def _vote(claim: Claim) -> dict[str, Any]:
    partition = {
        "partition_index": 0,
        "replica_epoch": max(claim.epoch, 1),  # in the first one this node has voted
        "replica_id": claim.speaker,
        "last_offset_epoch": claim.epoch,
        "last_offset": 0 if claim.is_harmless else 10**9,
        "pre_vote": False,
    }
    topics = [{"topic_name": "raftlog", "partitions": [partition]}]
    return {"cluster_id": claim.cluster_id, "voter_id": 1, "topics": topics}


def _begin(claim: Claim) -> dict[str, Any]:
    partition = {"partition_index": 0, "leader_id": claim.speaker, "leader_epoch": claim.epoch}
    topics = [{"topic_name": "raftlog", "partitions": [partition]}]
    return {
        "cluster_id": claim.cluster_id,
        "voter_id": 1,
        "topics": topics,
        "leader_endpoints": [claim.endpoint],
    }


def _end(claim: Claim) -> dict[str, Any]:
    partition = {"partition_index": 0, "leader_id": claim.speaker, "leader_epoch": claim.epoch}
    topics = [{"topic_name": "raftlog", "partitions": [partition]}]
    return {
        "cluster_id": claim.cluster_id,
        "topics": topics,
        "leader_endpoints": [claim.endpoint],
    }


def _fetch_snapshot(claim: Claim) -> dict[str, Any]:
    partition = {
        "partition": 0,
        "current_leader_epoch": claim.node.node.driver.replica.core.epoch,
        "snapshot_id": {"end_offset": 0, "epoch": 0},
    }
    return {
        "cluster_id": claim.cluster_id,
        "replica_id": claim.speaker,
        "max_bytes": 10_000,
        "topics": [{"name": "raftlog", "partitions": [partition]}],
    }


def _add_voter(claim: Claim) -> dict[str, Any]:
    return {
        "cluster_id": claim.cluster_id,
        "timeout": timedelta(seconds=20),
        "voter_id": 1 if claim.is_harmless else 3,  # 1 is one already
        "voter_directory_id": uuid_or_none(OTHER_DIRECTORY),
        "listeners": [claim.endpoint],
    }


def _remove_voter(claim: Claim) -> dict[str, Any]:
    own = claim.node.node.driver.replica.core.voters.find(1)
    assert own is not None
    directory_id = OTHER_DIRECTORY if claim.is_harmless else own.key.directory_id
    return {
        "cluster_id": claim.cluster_id,
        "voter_id": 1,
        "voter_directory_id": uuid_or_none(directory_id),
    }


def _update_voter(claim: Claim) -> dict[str, Any]:
    own = claim.node.node.driver.replica.core.voters.find(1)
    assert own is not None
    return {
        "cluster_id": claim.cluster_id,
        "current_leader_epoch": claim.node.node.driver.replica.core.epoch,
        "voter_id": claim.speaker,
        "voter_directory_id": uuid_or_none(own.key.directory_id),
        "listeners": [claim.endpoint],
        "k_raft_version_feature": {"min_supported_version": 0, "max_supported_version": 1},
    }


def _topics(claim: Claim, **partition: Any) -> list[dict[str, Any]]:
    return [{"name": "raftlog", "partitions": [{"partition_index": 0, **partition}]}]


@dataclass(frozen=True)
class Kind:
    """One request: its right, and what it says."""

    name: str
    key: ApiKey
    right: Rights
    values: Callable[[Claim], dict[str, Any]]
    names_speaker: bool = False
    codes: tuple[int, ...] = ()
    """What the harmless form of it is answered."""

    @property
    def names_cluster(self) -> bool:
        return self.right in (Rights.VOTE, Rights.ADMIN)


def kinds() -> list[Kind]:
    key = ApiKey
    return [
        Kind("Produce", key.PRODUCE, Rights.APPEND, _produce),
        Kind("Fetch of a consumer", key.FETCH, Rights.READ, lambda claim: _fetch(claim, -1)),
        Kind("ListOffsets", key.LIST_OFFSETS, DESCRIBE, lambda c: {"topics": _topics(c)}),
        Kind("Metadata", key.METADATA, DESCRIBE, lambda _: {"topics": [{"name": "raftlog"}]}),
        Kind(
            "OffsetFetch",
            key.OFFSET_FETCH,
            DESCRIBE,
            lambda _: {"groups": [{"group_id": "app", "topics": None}]},
        ),
        Kind(
            "FindCoordinator", key.FIND_COORDINATOR, DESCRIBE, lambda _: {"coordinator_keys": "a"}
        ),
        Kind("InitProducerId", key.INIT_PRODUCER_ID, Rights.APPEND, _init_producer_id),
        Kind(
            "OffsetForLeaderEpoch",
            key.OFFSET_FOR_LEADER_EPOCH,
            DESCRIBE,
            lambda _: {"topics": [{"topic": "raftlog", "partitions": [{"leader_epoch": 1}]}]},
        ),
        Kind(
            "DescribeConfigs",
            key.DESCRIBE_CONFIGS,
            DESCRIBE,
            lambda _: {"resources": [{"resource_type": 2, "resource_name": "raftlog"}]},
        ),
        Kind("DescribeQuorum", key.DESCRIBE_QUORUM, DESCRIBE, _describe_quorum),
        Kind("DescribeCluster", key.DESCRIBE_CLUSTER, DESCRIBE, _describe_cluster),
        Kind(
            "DescribeTopicPartitions",
            key.DESCRIBE_TOPIC_PARTITIONS,
            DESCRIBE,
            lambda _: {"topics": [{"name": "raftlog"}]},
        ),
        Kind("Vote", key.VOTE, Rights.VOTE, _vote, True),
        Kind("BeginQuorumEpoch", key.BEGIN_QUORUM_EPOCH, Rights.VOTE, _begin, True, (74,)),
        Kind("EndQuorumEpoch", key.END_QUORUM_EPOCH, Rights.VOTE, _end, True, (74,)),
        Kind(
            "Fetch of a replica",
            key.FETCH,
            Rights.VOTE,
            lambda claim: _fetch(claim, claim.speaker),
            names_speaker=True,
        ),
        Kind("FetchSnapshot", key.FETCH_SNAPSHOT, Rights.VOTE, _fetch_snapshot, True, (98,)),
        Kind("UpdateRaftVoter", key.UPDATE_RAFT_VOTER, Rights.VOTE, _update_voter, True, (127,)),
        Kind("AddRaftVoter", key.ADD_RAFT_VOTER, Rights.ADMIN, _add_voter, codes=(126,)),
        Kind("RemoveRaftVoter", key.REMOVE_RAFT_VOTER, Rights.ADMIN, _remove_voter, codes=(127,)),
    ]


def _init_producer_id(_: Claim) -> dict[str, Any]:
    return {"transactional_id": None, "producer_id": -1, "producer_epoch": -1}


def _describe_cluster(claim: Claim) -> dict[str, Any]:
    return {"endpoint_type": 2 if claim.port is VOTERS else 1}


def _describe_quorum(_: Claim) -> dict[str, Any]:
    partitions = [{"partition_index": 0}]
    return {"topics": [{"topic_name": "raftlog", "partitions": partitions}]}


class Authorities:
    """Two CAs, one for each port, and one that nobody knows."""

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
            Identity("nobody", CLIENTS, clients.sign("nobody")),
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

    def context(self, identity: Identity) -> ssl.SSLContext:
        """Of a caller that believes the node, and shows what it has."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        own = self.clients if identity.port is CLIENTS else self.voters
        context.load_verify_locations(own.path)
        if identity.pair is not None:
            context.load_cert_chain(identity.pair.certificate, identity.pair.key)
        return context


def configuration(authorities: Authorities) -> tuple[str, str]:
    """The listeners of a node, and its table of rights."""
    ports = free_ports(2)
    listeners = ""
    for name, own, port in zip(
        ("clients", "voters"), (authorities.clients, authorities.voters), ports, strict=True
    ):
        pair = own.sign("node-1.example", file_name="server")
        listeners += (
            f'[listeners.{name}]\naddress = "127.0.0.1:{port}"\n'
            f'tls = {{ certificate = "{pair.certificate}", key = "{pair.key}", '
            f'ca = "{own.path}" }}\n'
        )
    access = (
        '[access]\ndescribe = ["monitoring"]\nread = ["reports-*"]\nappend = ["jobs-*"]\n'
        'admin = ["operator"]\n[access.nodes]\n'
    )
    access += "".join(f'{one} = "node-{one}.example"\n' for one in (1, 2, 3))
    return listeners, access


def state_of(node: ServedNode) -> object:
    """All that a request may change: in memory, and in the files of the log."""
    replica = node.node.driver.replica
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
    """One node and all who come to it."""

    def __init__(self, node: ServedNode, authorities: Authorities) -> None:
        self._node = node
        self._authorities = authorities
        self.counts = {"served": 0, "refused": 0, "closed": 0, "not let in": 0}
        self.wrong: list[str] = []

    async def try_all(self) -> None:
        for identity in self._authorities.identities():
            if not identity.is_let_in:
                await self._check_shut_out(identity)
                continue
            for kind in kinds():
                await self._try(identity, kind)

    async def _check_shut_out(self, identity: Identity) -> None:
        before = state_of(self._node)
        connection = None
        with contextlib.suppress(OSError):
            connection = await self._connect(identity)
        if connection is not None:
            # With TLS 1.3 the refusal comes behind the caller's own end of the handshake.
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
            if came == "refused" and b"a record" in data:
                self.wrong.append(f"{identity.name}: {kind.name} was refused with records")
        self.counts[came] += 1
        expected = "served" if is_allowed else "refused" if is_served else "closed"
        where = f"{identity.name} at the port for {identity.port}: {kind.name}"
        if came != expected:
            self.wrong.append(f"{where} was {came}, not {expected}")
        if came != "served" and state_of(self._node) != before:
            self.wrong.append(f"{where} changed something")

    @staticmethod
    def _is_allowed(identity: Identity, kind: Kind) -> bool:
        if kind.right not in identity.rights:
            return False
        if kind.names_cluster and identity.cluster_id is not None:
            return False
        return not kind.names_speaker or identity.speaker == identity.node_id

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
        reader, writer = await asyncio.open_connection(
            "127.0.0.1",
            listener.port,
            ssl=self._authorities.context(identity),
            server_hostname="node-1.example",
        )
        return RawConnection(reader, writer)


def test_every_identity_is_served_or_refused_every_request_as_it_should_be(tmp_path: Path) -> None:
    authorities = Authorities(tmp_path)
    listeners, access = configuration(authorities)

    async def check() -> None:
        async with served_node(tmp_path, access, listeners=listeners) as node:
            matrix = Matrix(node, authorities)
            await matrix.try_all()
            assert not matrix.wrong, "\n".join(matrix.wrong)
            assert all(matrix.counts.values()), matrix.counts
            assert node.node.driver.replica.core.is_leader

    asyncio.run(check())


def test_every_request_that_is_served_is_in_the_matrix() -> None:
    assert {kind.key for kind in kinds()} == set(APIS) - {ApiKey.API_VERSIONS}
