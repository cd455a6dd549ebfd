"""Client of the brokers of a Kafka cluster: committed offsets of groups, and partition offsets.

It works like Kafka's admin client, but for all groups: each broker lists the groups that it
coordinates (ListGroups) and returns their offsets (OffsetFetch), and each leader returns the
offsets of its partitions (ListOffsets). A call repeats requests that failed with a retriable error,
using the brokers and leaders in a new Metadata response, until none fails or the timeout passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any, Final, TypeAlias, TypeVar

from kio.schema.list_groups.v5.request import ListGroupsRequest
from kio.schema.list_groups.v5.response import ListGroupsResponse
from kio.schema.list_offsets.v11 import request as list_offsets
from kio.schema.list_offsets.v11.response import ListOffsetsResponse
from kio.schema.metadata.v13.request import MetadataRequestTopic

from raftlog.errors import (
    AccessDeniedError,
    BrokersUnavailableError,
    NodeRefusedError,
    WrongClusterError,
)
from raftlog.wire import ApiKey, latest_schemas
from raftlog.wire.errors import NoCommonVersionError, WireError
from raftlog.wire.log_identity import duration, int8, int32, int64, name, node, uuid_text

from . import messages
from .connection import Connection, ConnectionLostError, Connections, NetworkThread
from .login import SaslLogin, warn_of_plain_secrets
from .nodes import Address
from .security import PLAINTEXT, ClientSecurity
from .tls import SslFactory

T = TypeVar("T")
PartitionName: TypeAlias = tuple[str, int]
"""Topic and number of a partition."""

CONNECT_TIMEOUT_S: Final = 5.0
RESPONSE_TIMEOUT_S: Final = 10.0
PAUSE_FIRST_S: Final = 0.05
PAUSE_LONGEST_S: Final = 1.0
GROUPS_PER_REQUEST: Final = 100
TOPICS_PER_REQUEST: Final = 500
PARTITIONS_PER_REQUEST: Final = 2_000
_OFFSET_FETCH_VERSION_MAX: Final = 9
"""Newer versions have topic ids and omit deleted topics; Kafka's admin client uses this one."""
_UNKNOWN_TOPIC: Final = frozenset((3, 17))
"""Error codes of a topic that does not exist, or has an invalid name."""
_GROUP_NOT_FOUND: Final = 69
_RETRIABLE_ERRORS: Final = messages.RETRIABLE_ERRORS | {7, 8, 56, 78}
"""Kafka's error codes after which a retry may help: those of all requests, REQUEST_TIMED_OUT,
BROKER_NOT_AVAILABLE, KAFKA_STORAGE_ERROR and OFFSET_NOT_AVAILABLE."""
_NO_RESULT: Final = 6
"""Error code for a partition that a response lacks, as if the broker did not lead it."""
_NAME_BROKERS: Final = (
    "give the address of a broker: controllers and the nodes of raftlog have no groups"
)
_GRANT: Final = "grant this principal DESCRIBE on the groups and topics"
_SHARE: Final = "share"
"""Type of groups that have no committed offsets; their OffsetFetch is refused."""


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """Offset that a group has committed for a partition."""

    group: str
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """Start and end offset of a partition at its leader. ``end`` is the high watermark."""

    start: int
    end: int


@dataclass(slots=True)
class ListedOffsets:
    """Offsets of partitions, ids of existing topics, and reasons for missing offsets."""

    offsets: dict[PartitionName, PartitionOffsets] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)
    missing: dict[PartitionName, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Round:
    """Requests that failed in one round, and may succeed in the next one."""

    problem: str | None = None
    by_partition: dict[PartitionName, str] = field(default_factory=dict)

    def fail(self, problem: str, partitions: Iterable[PartitionName] = ()) -> None:
        self.problem = problem
        self.by_partition.update(dict.fromkeys(partitions, problem))


class BrokerClient:
    """Client of the brokers of one cluster, for one thread of one process.

    Calls raise ``AccessDeniedError``, ``WrongClusterError``, ``NodeRefusedError`` if nodes are not
    brokers, and ``BrokersUnavailableError`` after the timeout.
    """

    def __init__(
        self,
        bootstrap: tuple[Address, ...],
        security: ClientSecurity = PLAINTEXT,
        *,
        timeout_ms: float,
        cluster_id: str | None = None,
    ) -> None:
        """``timeout_ms``: how long a call repeats failed requests, each of which has its own limit.
        ``cluster_id``: None to use the id of the first broker that responds."""
        self.path: Final = ",".join(map(str, bootstrap))
        self._bootstrap = bootstrap
        self._timeout_ms = timeout_ms
        self._cluster_id = cluster_id
        self._brokers: Mapping[int, Address] = {}
        tls = None if security.tls is None else SslFactory(security.tls)
        login = None if security.sasl is None else SaslLogin(security.sasl)
        warn_of_plain_secrets(security)
        self._connections = Connections(tls, login, timeout_s=CONNECT_TIMEOUT_S)
        self._network = NetworkThread(self.path, self._connections.close)

    def close(self) -> None:
        """Stop the network thread and close the connections."""
        self._network.stop()

    def group_offsets(self) -> list[GroupOffset]:
        """Return the committed offsets of all groups, by group and partition.

        Offsets in open transactions are not committed. Share groups have no committed offsets.
        """
        return self._network.run(self._group_offsets())

    def list_offsets(self, partitions: Collection[PartitionName]) -> ListedOffsets:
        """Return the start and end offsets of partitions at their leaders.

        A partition whose leader does not respond before the timeout is in ``missing``; a partition
        that does not exist is in none of the fields.
        """
        return self._network.run(self._list_offsets(partitions))

    # --- rounds -----------------------------------------------------------------------------------

    async def _repeat(self, execute: Callable[[_Round], Awaitable[None]]) -> _Round:
        """Execute rounds until one has no failures or the timeout passes; return the last round."""
        until_s = asyncio.get_running_loop().time() + self._timeout_ms / 1000
        pause_s = PAUSE_FIRST_S
        while True:
            this = _Round()
            await execute(this)
            left_s = until_s - asyncio.get_running_loop().time()
            if this.problem is None or left_s <= pause_s:
                return this
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_LONGEST_S)

    def _unavailable(self, reason: str) -> BrokersUnavailableError:
        return BrokersUnavailableError(
            path=self.path, waited_ms=round(self._timeout_ms), reason=reason
        )

    # --- committed offsets ------------------------------------------------------------------------

    async def _group_offsets(self) -> list[GroupOffset]:
        found: dict[str, list[GroupOffset]] = {}

        async def execute(this: _Round) -> None:
            if await self._metadata((), this) is not None:
                brokers = self._brokers.values()
                await asyncio.gather(*(self._coordinated(one, found, this) for one in brokers))

        last = await self._repeat(execute)
        if last.problem is not None:
            raise self._unavailable(last.problem)
        flat = (one for offsets in found.values() for one in offsets)
        return sorted(flat, key=lambda one: (one.group, one.topic, one.partition))

    async def _coordinated(
        self, broker: Address, found: dict[str, list[GroupOffset]], this: _Round
    ) -> None:
        """Add the offsets of the groups that a broker coordinates."""
        response = await self._request(
            broker, ApiKey.LIST_GROUPS, ListGroupsRequest(), ListGroupsResponse, this
        )
        if response is None or self._failed(
            broker, ApiKey.LIST_GROUPS, int(response.error_code), this
        ):
            return
        groups = [
            one.group_id
            for one in response.groups
            if one.group_type.lower() != _SHARE and one.group_id not in found
        ]
        for some in _chunks(groups, GROUPS_PER_REQUEST):
            await self._fetch_offsets(broker, some, found, this)

    async def _fetch_offsets(
        self,
        broker: Address,
        groups: list[Any],
        found: dict[str, list[GroupOffset]],
        this: _Round,
    ) -> None:
        request = latest_schemas.OffsetFetchRequest(
            groups=tuple(
                latest_schemas.OffsetFetchGroup(group_id=group, topics=None) for group in groups
            ),
            require_stable=False,
        )
        response = await self._request(
            broker,
            ApiKey.OFFSET_FETCH,
            request,
            latest_schemas.OffsetFetchResponse,
            this,
            version_max=_OFFSET_FETCH_VERSION_MAX,
        )
        if response is None:
            return
        answered = {one.group_id: one for one in response.groups}
        for group in groups:
            one = answered.get(group)
            if one is None:
                this.fail(f"{broker} returned no offsets of group {group!r}")
            elif one.error_code == _GROUP_NOT_FOUND:  # deleted after it was listed
                found[group] = []
            elif not self._failed(broker, ApiKey.OFFSET_FETCH, int(one.error_code), this):
                offsets = list(_committed(group, one.topics))
                errors = {error for error, _ in offsets if error}
                if not any(self._failed(broker, ApiKey.OFFSET_FETCH, e, this) for e in errors):
                    found[group] = [offset for _, offset in offsets if offset.offset >= 0]

    # --- offsets of partitions --------------------------------------------------------------------

    async def _list_offsets(self, partitions: Collection[PartitionName]) -> ListedOffsets:
        listed = ListedOffsets()
        pending = set(partitions)

        async def execute(this: _Round) -> None:
            by_leader: dict[Address, list[PartitionName]] = {}
            topics = sorted({topic for topic, _ in pending})
            for names in _chunks(topics, TOPICS_PER_REQUEST):
                response = await self._metadata(names, this)
                if response is None:
                    this.fail(this.problem or "", pending)
                    return
                of_topics = set(names)
                wanted = [one for one in pending if one[0] in of_topics]
                self._find_leaders(response, wanted, by_leader, listed, this)
            await asyncio.gather(
                *(
                    self._offsets_at(leader, some, listed, this)
                    for leader, led in by_leader.items()
                    for some in _chunks(sorted(led), PARTITIONS_PER_REQUEST)
                )
            )
            pending.intersection_update(this.by_partition)

        listed.missing = (await self._repeat(execute)).by_partition
        return listed

    def _find_leaders(
        self,
        response: latest_schemas.MetadataResponse,
        wanted: Collection[PartitionName],
        by_leader: dict[Address, list[PartitionName]],
        listed: ListedOffsets,
        this: _Round,
    ) -> None:
        """Add the partitions to their leaders' partitions."""
        by_topic: dict[str, list[PartitionName]] = {}
        for one in wanted:
            by_topic.setdefault(one[0], []).append(one)
        for topic in response.topics:
            topic_name, error = str(topic.name), int(topic.error_code)
            of_topic = by_topic.get(topic_name, [])
            if error in _UNKNOWN_TOPIC:
                listed.topic_ids.pop(topic_name, None)
                continue
            if self._failed(self.path, ApiKey.METADATA, error, this, of_topic):
                continue
            listed.topic_ids[topic_name] = uuid_text(topic.topic_id)
            leaders = {int(one.partition_index): int(one.leader_id) for one in topic.partitions}
            for one in of_topic:
                leader = self._brokers.get(leaders.get(one[1], -1))
                if leader is not None:
                    by_leader.setdefault(leader, []).append(one)
                elif one[1] in leaders:
                    this.fail("it has no leader", [one])

    async def _offsets_at(
        self,
        leader: Address,
        partitions: list[PartitionName],
        listed: ListedOffsets,
        this: _Round,
    ) -> None:
        """Add the start and end offsets of partitions that a broker leads."""
        ends: dict[int, dict[PartitionName, int]] = {}
        for timestamp in (messages.EARLIEST_TIMESTAMP, messages.LATEST_TIMESTAMP):
            response = await self._request(
                leader,
                ApiKey.LIST_OFFSETS,
                _offsets_request(partitions, timestamp),
                ListOffsetsResponse,
                this,
                partitions,
            )
            if response is None:
                return
            results = {
                (str(topic.name), int(one.partition_index)): one
                for topic in response.topics
                for one in topic.partitions
            }
            errors = {
                one: int(results[one].error_code) if one in results else _NO_RESULT
                for one in partitions
            }
            partitions = [
                one
                for one, error in errors.items()
                if not self._failed(leader, ApiKey.LIST_OFFSETS, error, this, [one])
            ]
            if not partitions:
                return
            ends[timestamp] = {one: int(results[one].offset) for one in partitions}
        for one in partitions:
            listed.offsets[one] = PartitionOffsets(
                start=ends[messages.EARLIEST_TIMESTAMP][one],
                end=ends[messages.LATEST_TIMESTAMP][one],
            )

    # --- requests ---------------------------------------------------------------------------------

    async def _metadata(
        self, topics: Iterable[str], this: _Round
    ) -> latest_schemas.MetadataResponse | None:
        """Return the metadata of topics, and store the brokers; None if all of them failed."""
        request = latest_schemas.MetadataRequest(
            topics=tuple(MetadataRequestTopic(topic_id=None, name=name(one)) for one in topics),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        failed = _Round()
        for address in dict.fromkeys((*self._brokers.values(), *self._bootstrap)):
            response = await self._request(
                *(address, ApiKey.METADATA, request, latest_schemas.MetadataResponse),
                failed,
            )
            if response is None or self._failed(
                address, ApiKey.METADATA, int(response.error_code), failed
            ):
                continue
            self._check_cluster(address, response.cluster_id)
            self._brokers = {
                int(one.node_id): Address(one.host, int(one.port)) for one in response.brokers
            }
            return response
        this.fail(failed.problem or "no broker was asked")
        return None

    def _check_cluster(self, address: Address, cluster_id: str | None) -> None:
        if self._cluster_id is None:
            self._cluster_id = cluster_id
        if cluster_id is not None and cluster_id != self._cluster_id:
            assert self._cluster_id is not None, "set above"
            raise WrongClusterError(
                path=str(address),
                expected_cluster_id=self._cluster_id,
                cluster_id=cluster_id,
                remedy="give addresses of brokers of one cluster",
            )

    def _failed(
        self,
        address: Address | str,
        api_key: ApiKey,
        error: int,
        this: _Round,
        partitions: Iterable[PartitionName] = (),
    ) -> bool:
        """Return whether there is an error. Record it if a retry may help; otherwise raise it."""
        if not error:
            return False
        if messages.is_access_error(error):
            reason = f"client not authorized for {api_key.name} (Kafka's error {error})"
            raise AccessDeniedError(path=str(address), reason=reason, remedy=_GRANT)
        if error not in _RETRIABLE_ERRORS:
            raise NodeRefusedError(
                path=str(address), api=api_key.name, error=error, reason="no details given"
            )
        this.fail(f"{address}: {api_key.name}: Kafka's error {error}", partitions)
        return True

    async def _request(
        self,
        address: Address,
        api_key: ApiKey,
        message: Any,
        target: type[T],
        this: _Round,
        partitions: Iterable[PartitionName] = (),
        *,
        version_max: int | None = None,
    ) -> T | None:
        """Return the response; if the connection was lost, record that and return None."""
        connection: Connection | None = None
        try:
            connection = await self._connections.get(address)
            return await connection.request(
                *(api_key, message, target),
                timeout_s=RESPONSE_TIMEOUT_S,
                version_max=version_max,
            )
        except ConnectionLostError as error:
            await self._connections.check_protocol(address, connection, error)
            this.fail(str(error), partitions)
            return None
        except NoCommonVersionError as error:
            raise NodeRefusedError(
                path=str(address),
                api=api_key.name,
                error=0,
                reason=f"it is no broker, or too old: {error.message()}",
                remedy=_NAME_BROKERS,
            ) from None
        except WireError as error:
            raise NodeRefusedError(
                path=str(address), api=api_key.name, error=0, reason=error.message()
            ) from None


def _committed(
    group: str, topics: Iterable[latest_schemas.FetchedOffsetsTopic]
) -> Iterator[tuple[int, GroupOffset]]:
    """Yield the error code and the offset of each partition."""
    for topic in topics:
        for one in topic.partitions:
            offset = GroupOffset(
                group, str(topic.name), int(one.partition_index), int(one.committed_offset)
            )
            yield int(one.error_code), offset


def _offsets_request(
    partitions: list[PartitionName], timestamp: int
) -> list_offsets.ListOffsetsRequest:
    """Return a consumer's request for an offset of each of these sorted partitions."""
    topics = (
        list_offsets.ListOffsetsTopic(
            name=name(topic),
            partitions=tuple(
                list_offsets.ListOffsetsPartition(
                    partition_index=int32(number), timestamp=int64(timestamp)
                )
                for _, number in of_topic
            ),
        )
        for topic, of_topic in groupby(partitions, key=lambda one: one[0])
    )
    return list_offsets.ListOffsetsRequest(
        replica_id=node(None), isolation_level=int8(0), topics=tuple(topics), timeout=duration(0)
    )


def _chunks(values: Iterable[T], count: int) -> Iterator[list[T]]:
    rest = iter(values)
    while some := list(islice(rest, count)):
        yield some
