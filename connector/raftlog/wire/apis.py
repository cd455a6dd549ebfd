"""Table of the APIs that a node serves, their versions and listeners.

1. The table lists the versions that kio supports and that are stable in Apache Kafka 4.3; a test
   compares it with both. Group membership is not served: consumers assign their partitions
   themselves, and commit offsets for groups without members.
2. The voters' listener serves Fetch only from version 13 on: older versions have no topic id, and
   Kafka's controllers reject them.
3. FindCoordinator is served because clients use it to find the node for the requests of a group,
   and because librdkafka infers LZ4 support from its version 0. Like Kafka, ApiVersions responses
   list Produce from version 0 on, although it is served only from version 3: librdkafka infers the
   supported compression types from the old versions (KAFKA-18659).
4. Nodes with a controller serve ``CONTROLLER_APIS``, in the versions that Kafka's controllers
   serve. Requests from admin clients are served on both listeners, since in a Kafka cluster the
   brokers forward them. Requests from brokers and controllers are served only on the voters'
   listener.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from .errors import NoCommonVersionError, UnsupportedApiError


class ApiKey(enum.IntEnum):
    """Kafka's API keys of the supported APIs."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    ALLOCATE_PRODUCER_IDS = 67
    CONTROLLER_REGISTRATION = 70
    ASSIGN_REPLICAS_TO_DIRS = 73
    DESCRIBE_TOPIC_PARTITIONS = 75
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82


class Listener(enum.Flag):
    """Purpose of a listener. A listener with both flags serves both sets of APIs."""

    CLIENTS = enum.auto()
    VOTERS = enum.auto()

    def __str__(self) -> str:
        return " and ".join(flag.name.lower() for flag in self if flag.name is not None)


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Range of API versions or of feature levels, both ends inclusive."""

    first: int
    last: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One API, with the versions served on each listener; None if it is not served there."""

    key: ApiKey
    clients: VersionRange | None = None
    voters: VersionRange | None = None
    announced_first: int | None = None
    """Minimum version in ApiVersions responses, if it differs from the first version."""
    _on: dict[Listener, VersionRange | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Cached results of ``on``, which is called for every request."""

    @property
    def versions(self) -> VersionRange:
        """Versions served on any listener, which are also those that raftlog's client supports."""
        both = self.on(Listener.CLIENTS | Listener.VOTERS)
        assert both is not None, "an entry is served on at least one listener"
        return both

    def on(self, listener: Listener) -> VersionRange | None:
        """Return the versions served on a listener; None if the API is not served there."""
        if listener not in self._on:
            self._on[listener] = self._versions_on(listener)
        return self._on[listener]

    def _versions_on(self, listener: Listener) -> VersionRange | None:
        served = [
            versions
            for flag, versions in (
                (Listener.CLIENTS, self.clients),
                (Listener.VOTERS, self.voters),
            )
            if versions is not None and flag in listener
        ]
        if not served:
            return None
        return VersionRange(
            min(versions.first for versions in served), max(versions.last for versions in served)
        )


def _clients(key: ApiKey, first: int, last: int) -> Api:
    return Api(key=key, clients=VersionRange(first, last))


def _voters(key: ApiKey, first: int, last: int) -> Api:
    return Api(key=key, voters=VersionRange(first, last))


def _both(key: ApiKey, first: int, last: int) -> Api:
    return Api(key=key, clients=VersionRange(first, last), voters=VersionRange(first, last))


_TABLE: Final = (
    Api(key=ApiKey.PRODUCE, clients=VersionRange(3, 13), announced_first=0),
    Api(key=ApiKey.FETCH, clients=VersionRange(4, 18), voters=VersionRange(13, 18)),
    _clients(ApiKey.LIST_OFFSETS, 1, 11),
    _clients(ApiKey.METADATA, 0, 13),
    _clients(ApiKey.OFFSET_COMMIT, 2, 10),
    _clients(ApiKey.OFFSET_FETCH, 1, 10),
    _clients(ApiKey.FIND_COORDINATOR, 0, 6),
    _clients(ApiKey.DESCRIBE_GROUPS, 0, 6),
    _clients(ApiKey.LIST_GROUPS, 0, 5),
    _both(ApiKey.API_VERSIONS, 0, 4),
    _clients(ApiKey.DELETE_RECORDS, 0, 2),
    _clients(ApiKey.INIT_PRODUCER_ID, 0, 5),
    _clients(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4),
    _both(ApiKey.DESCRIBE_CONFIGS, 1, 4),
    _clients(ApiKey.DELETE_GROUPS, 0, 2),
    _clients(ApiKey.OFFSET_DELETE, 0, 0),
    _voters(ApiKey.VOTE, 0, 2),
    _voters(ApiKey.BEGIN_QUORUM_EPOCH, 0, 1),
    _voters(ApiKey.END_QUORUM_EPOCH, 0, 1),
    _both(ApiKey.DESCRIBE_QUORUM, 0, 2),
    _voters(ApiKey.FETCH_SNAPSHOT, 0, 1),
    _both(ApiKey.DESCRIBE_CLUSTER, 0, 2),
    _clients(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0),
    _both(ApiKey.ADD_RAFT_VOTER, 0, 1),
    _both(ApiKey.REMOVE_RAFT_VOTER, 0, 0),
    _voters(ApiKey.UPDATE_RAFT_VOTER, 0, 0),
    _both(ApiKey.UPDATE_FEATURES, 0, 2),
)
APIS: Final[Mapping[int, Api]] = {api.key: api for api in _TABLE}
"""APIs of every node."""

_CONTROLLER_TABLE: Final = (
    _both(ApiKey.CREATE_TOPICS, 2, 7),
    _both(ApiKey.DELETE_TOPICS, 1, 6),
    _both(ApiKey.DESCRIBE_ACLS, 1, 3),
    _both(ApiKey.CREATE_ACLS, 1, 3),
    _both(ApiKey.DELETE_ACLS, 1, 3),
    _both(ApiKey.ALTER_CONFIGS, 0, 2),
    _both(ApiKey.CREATE_PARTITIONS, 0, 3),
    _both(ApiKey.CREATE_DELEGATION_TOKEN, 1, 3),
    _both(ApiKey.RENEW_DELEGATION_TOKEN, 1, 2),
    _both(ApiKey.EXPIRE_DELEGATION_TOKEN, 1, 2),
    _both(ApiKey.DESCRIBE_DELEGATION_TOKEN, 1, 3),
    _both(ApiKey.ELECT_LEADERS, 0, 2),
    _both(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1),
    _both(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1),
    _both(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0),
    _both(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1),
    _both(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1),
    _both(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0),
    _both(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0),
    _voters(ApiKey.ALTER_PARTITION, 2, 3),
    _voters(ApiKey.ENVELOPE, 0, 0),
    _voters(ApiKey.BROKER_REGISTRATION, 0, 4),
    _voters(ApiKey.BROKER_HEARTBEAT, 0, 2),
    _both(ApiKey.UNREGISTER_BROKER, 0, 0),
    _voters(ApiKey.ALLOCATE_PRODUCER_IDS, 0, 0),
    _voters(ApiKey.CONTROLLER_REGISTRATION, 0, 0),
    _voters(ApiKey.ASSIGN_REPLICAS_TO_DIRS, 0, 0),
)
CONTROLLER_APIS: Final[Mapping[int, Api]] = {api.key: api for api in _CONTROLLER_TABLE}
"""Additional APIs of a node with a controller."""

SASL_APIS: Final[Mapping[int, VersionRange]] = {
    ApiKey.SASL_HANDSHAKE: VersionRange(1, 1),
    ApiKey.SASL_AUTHENTICATE: VersionRange(0, 2),
}
"""APIs of listeners with SASL. Handshakes of version 0 are followed by messages without headers."""


def served_api(
    api_key: int, version: int, listener: Listener, apis: Mapping[int, Api] = APIS
) -> Api:
    """Return the API of a received request; ``apis`` are those of the node.

    Raises ``UnsupportedApiError`` if the listener does not serve the API or the version.
    """
    api = apis.get(api_key)
    versions = None if api is None else api.on(listener)
    if api is None or versions is None or version not in versions:
        raise UnsupportedApiError(api_key=api_key, version=version, listener=str(listener))
    return api


def common_version(
    key: ApiKey, node_versions: Mapping[int, VersionRange], version_max: int | None = None
) -> int:
    """Return the highest version that both raftlog and a node with these versions support.

    The result is at most ``version_max``. Raises ``NoCommonVersionError``.
    """
    served = CONTROLLER_APIS.get(key) or APIS.get(key)
    own = SASL_APIS[key] if served is None else served.versions
    if version_max is not None:
        own = VersionRange(own.first, min(own.last, version_max))
    peer = node_versions.get(key)
    if peer is not None:
        highest = min(own.last, peer.last)
        if highest in own and highest in peer:
            return highest
    raise NoCommonVersionError(
        api=key.name,
        supported=(own.first, own.last),
        peer_supported=None if peer is None else (peer.first, peer.last),
    )
