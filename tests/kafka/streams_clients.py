"""Members of a streams group (KIP-1071) as their coordinator sees them: heartbeats, and describe.

Requests and responses are read and written by kio, from Kafka's message files.
"""

from __future__ import annotations

import io
import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, Self

from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v4.response import FindCoordinatorResponse
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.streams_group_describe.v0.request import StreamsGroupDescribeRequest
from kio.schema.streams_group_describe.v0.response import (
    DescribedGroup,
    StreamsGroupDescribeResponse,
)
from kio.schema.streams_group_heartbeat.v0.request import (
    CopartitionGroup,
    Endpoint,
    KeyValue,
    StreamsGroupHeartbeatRequest,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)
from kio.schema.streams_group_heartbeat.v0.response import StreamsGroupHeartbeatResponse
from kio.schema.types import GroupId, TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i8, i16, i32, i32Timedelta, u16

_LENGTH_BYTES: Final = 4
_TIMEOUT_S: Final = 60.0
_REBALANCE_TIMEOUT: Final = i32Timedelta.parse(timedelta(minutes=5))
_LEAVE: Final = i32(-1)
_NOT_YET: Final = (
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
)


class BrokerConnection:
    """Connection to a broker. As a context manager it is closed at the end."""

    def __init__(self, address: str, client_id: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)
        self._stream = self._socket.makefile("rb")
        self._client_id = client_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._socket.close()

    def ask(self, request: Any, response: type[Any]) -> Any:
        """Return the response to a request whose versions are flexible."""
        body = io.BytesIO()
        header = RequestHeader(
            request_api_key=request.__api_key__,
            request_api_version=request.__version__,
            correlation_id=i32(1),
            client_id=self._client_id,
        )
        entity_writer(RequestHeader)(body, header)
        entity_writer(type(request))(body, request)
        data = body.getvalue()
        self._socket.sendall(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
        size = int.from_bytes(self._stream.read(_LENGTH_BYTES), "big")
        received = self._stream.read(size)
        _, after = entity_reader(response.__header_schema__)(received, 0)
        found, _ = entity_reader(response)(received, after)
        return found

    def has_coordinator(self, group: str) -> bool:
        """Look for the coordinator of a group, which creates ``__consumer_offsets``."""
        request = FindCoordinatorRequest(key_type=i8(0), coordinator_keys=(group,))
        (found,) = self.ask(request, FindCoordinatorResponse).coordinators
        return bool(found.error_code is ErrorCode.none)

    def describe(self, group: str) -> DescribedGroup:
        """Return the coordinator's description of a streams group."""
        request = StreamsGroupDescribeRequest(
            group_ids=(GroupId(group),), include_authorized_operations=False
        )
        (found,) = self.ask(request, StreamsGroupDescribeResponse).groups
        assert isinstance(found, DescribedGroup)
        assert found.error_code is ErrorCode.none, found
        return found


def counting_topology(source: str) -> Topology:
    """Return a topology that repartitions a topic and counts what it has."""
    counts = TopicName("app-counts-repartition")
    return Topology(
        epoch=i32(0),
        subtopologies=(
            _subtopology(
                "0", source_topics=(TopicName(source),), repartition_sink_topics=(counts,)
            ),
            _subtopology(
                "1",
                repartition_source_topics=(_internal_topic(counts, 2, {}),),
                state_changelog_topics=(
                    _internal_topic("app-counts-changelog", 0, {"cleanup.policy": "compact"}),
                ),
                copartition_groups=(CopartitionGroup(repartition_source_topics=(i16(0),)),),
            ),
        ),
    )


def _subtopology(name: str, **values: Any) -> Subtopology:
    none: dict[str, Any] = dict.fromkeys(
        ("state_changelog_topics", "repartition_source_topics", "copartition_groups"), ()
    )
    return Subtopology(subtopology_id=name, **(none | values))


def _internal_topic(name: str, partitions: int, configs: Mapping[str, str]) -> TopicInfo:
    return TopicInfo(
        name=TopicName(name),
        partitions=i32(partitions),
        replication_factor=i16(1),
        topic_configs=tuple(KeyValue(key=key, value=value) for key, value in configs.items()),
    )


class StreamsMember:
    """Member of a streams group, which reports all tasks that it is assigned as owned."""

    def __init__(
        self, connection: BrokerConnection, group: str, name: str, topology: Topology
    ) -> None:
        self._connection = connection
        self._group = GroupId(group)
        self._topology = topology
        self._epoch = i32(0)
        self.name: Final = name
        self._tasks: dict[str, tuple[TaskIds, ...]] = dict.fromkeys(
            ("active_tasks", "standby_tasks", "warmup_tasks"), ()
        )

    def beat(self) -> bool:
        """Send a heartbeat, the first one of which joins the group; false: not served yet."""
        joining: dict[str, Any] = {}
        if not self._epoch:
            joining = {
                "rack_id": f"rack-{self.name}",
                "rebalance_timeout": _REBALANCE_TIMEOUT,
                "topology": self._topology,
                "process_id": f"process-{self.name}",
                "user_endpoint": Endpoint(host=f"{self.name}.example", port=u16(40_000)),
                "client_tags": (KeyValue(key="zone", value=self.name),),
            }
        response = self._send(self._epoch, joining)
        if response.error_code in _NOT_YET:
            return False
        assert response.error_code is ErrorCode.none, response
        self._epoch = response.member_epoch
        for kind in self._tasks:
            assigned = getattr(response, kind)
            if assigned is not None:
                self._tasks[kind] = tuple(
                    TaskIds(subtopology_id=one.subtopology_id, partitions=one.partitions)
                    for one in assigned
                )
        return True

    @property
    def tasks(self) -> tuple[TaskIds, ...]:
        """Active tasks that it is assigned."""
        return self._tasks["active_tasks"]

    def leave(self) -> None:
        assert self._send(_LEAVE, {}).error_code is ErrorCode.none

    def _send(self, epoch: i32, more: Mapping[str, Any]) -> StreamsGroupHeartbeatResponse:
        unchanged = dict.fromkeys(("client_tags", "task_offsets", "task_end_offsets"))
        request = StreamsGroupHeartbeatRequest(
            group_id=self._group,
            member_id=self.name,
            member_epoch=epoch,
            endpoint_information_epoch=i32(0),
            **{**unchanged, **self._tasks, **more},
        )
        response = self._connection.ask(request, StreamsGroupHeartbeatResponse)
        assert isinstance(response, StreamsGroupHeartbeatResponse)
        return response
