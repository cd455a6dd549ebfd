"""Which requests a node serves, in which versions, on which listener: one table.

Rules of this file:

1. A version is in the table if kio has it and Apache Kafka 4.3 counts it as stable; a test compares
   with both. Group membership is not served: consumers assign partitions themselves.
2. On the listener for voters Fetch begins at version 13: older ones name no topic id, and Kafka's
   controllers refuse them.
3. FindCoordinator is there because librdkafka takes version 0 of it as the sign that a broker knows
   LZ4, and because stock clients ask it where OffsetFetch goes to. Produce is announced from
   version 0, as Kafka does, though served from 3: librdkafka looks for old versions to learn what
   compressions a broker knows (KAFKA-18659).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from raftlog.errors import NoCommonVersionError, UnsupportedApiError


class ApiKey(enum.IntEnum):
    """Kafka's numbers of the requests that we speak."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_CONFIGS = 32
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_TOPIC_PARTITIONS = 75
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82


class Listener(enum.Flag):
    """Whom a listener is for. One for both serves what either serves."""

    CLIENTS = enum.auto()
    VOTERS = enum.auto()

    def __str__(self) -> str:
        return " and ".join(one.name.lower() for one in self if one.name is not None)


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Versions of a request, or levels of a feature; both ends are inside."""

    first: int
    last: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One kind of request. ``flexible_from`` is the first version with tagged fields."""

    key: ApiKey
    flexible_from: int
    clients: VersionRange | None = None
    voters: VersionRange | None = None
    announced_first: int | None = None
    """What ApiVersions says instead of the first version."""

    @property
    def versions(self) -> VersionRange:
        """Of either listener: what our own client speaks."""
        both = self.on(Listener.CLIENTS | Listener.VOTERS)
        assert both is not None, "an entry is served somewhere"
        return both

    def on(self, listener: Listener) -> VersionRange | None:
        """What is served there; None for nothing."""
        found = [
            one
            for whom, one in ((Listener.CLIENTS, self.clients), (Listener.VOTERS, self.voters))
            if one is not None and whom in listener
        ]
        if not found:
            return None
        return VersionRange(min(one.first for one in found), max(one.last for one in found))

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible_from


def _clients(key: ApiKey, first: int, last: int, flexible_from: int) -> Api:
    return Api(key=key, flexible_from=flexible_from, clients=VersionRange(first, last))


def _voters(key: ApiKey, first: int, last: int, flexible_from: int) -> Api:
    return Api(key=key, flexible_from=flexible_from, voters=VersionRange(first, last))


def _both(key: ApiKey, first: int, last: int, flexible_from: int) -> Api:
    versions = VersionRange(first, last)
    return Api(key=key, flexible_from=flexible_from, clients=versions, voters=versions)


_TABLE: Final = (
    Api(key=ApiKey.PRODUCE, flexible_from=9, clients=VersionRange(3, 13), announced_first=0),
    Api(
        key=ApiKey.FETCH,
        flexible_from=12,
        clients=VersionRange(4, 18),
        voters=VersionRange(13, 18),
    ),
    _clients(ApiKey.LIST_OFFSETS, 1, 11, flexible_from=6),
    _clients(ApiKey.METADATA, 0, 13, flexible_from=9),
    _clients(ApiKey.OFFSET_FETCH, 1, 10, flexible_from=6),
    _clients(ApiKey.FIND_COORDINATOR, 0, 6, flexible_from=3),
    _both(ApiKey.API_VERSIONS, 0, 4, flexible_from=3),
    _clients(ApiKey.INIT_PRODUCER_ID, 0, 5, flexible_from=2),
    _clients(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, flexible_from=4),
    _both(ApiKey.DESCRIBE_CONFIGS, 1, 4, flexible_from=4),
    _voters(ApiKey.VOTE, 0, 2, flexible_from=0),
    _voters(ApiKey.BEGIN_QUORUM_EPOCH, 0, 1, flexible_from=1),
    _voters(ApiKey.END_QUORUM_EPOCH, 0, 1, flexible_from=1),
    _both(ApiKey.DESCRIBE_QUORUM, 0, 2, flexible_from=0),
    _voters(ApiKey.FETCH_SNAPSHOT, 0, 1, flexible_from=0),
    _both(ApiKey.DESCRIBE_CLUSTER, 0, 2, flexible_from=0),
    _clients(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, flexible_from=0),
    _both(ApiKey.ADD_RAFT_VOTER, 0, 1, flexible_from=0),
    _both(ApiKey.REMOVE_RAFT_VOTER, 0, 0, flexible_from=0),
    _voters(ApiKey.UPDATE_RAFT_VOTER, 0, 0, flexible_from=0),
)
APIS: Final[Mapping[int, Api]] = {api.key: api for api in _TABLE}


def served_api(api_key: int, version: int, listener: Listener) -> Api:
    """The entry of a request that arrived; ``UnsupportedApiError`` if it is not served there."""
    api = APIS.get(api_key)
    versions = None if api is None else api.on(listener)
    if api is None or versions is None or version not in versions:
        raise UnsupportedApiError(api_key=api_key, version=version, listener=str(listener))
    return api


def common_version(key: ApiKey, node_versions: Mapping[int, VersionRange]) -> int:
    """The highest version of a request that we and a peer speak, by what the peer announced.

    Raises ``NoCommonVersionError``.
    """
    ours, theirs = APIS[key].versions, node_versions.get(key)
    if theirs is not None:
        highest = min(ours.last, theirs.last)
        if highest in ours and highest in theirs:
            return highest
    raise NoCommonVersionError(
        api=key.name,
        ours=(ours.first, ours.last),
        theirs=None if theirs is None else (theirs.first, theirs.last),
    )
