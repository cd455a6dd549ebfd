"""Dispatch of client requests: decode, call the API's handler, encode the response.

The response contains the throttle time if the client exceeds a quota. Handlers do not deal with
frames, and deal with versions only where the meaning of a field depends on them. As in Kafka's
brokers, trailing bytes after a request are ignored: librdkafka 2.16 appends three to a Metadata
request for all topics. Produce and Fetch requests have no task: they start when they are received,
and respond when their appends are done or their records are available. Any other request has its
own task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar, cast

from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.delete_records.v2.request import DeleteRecordsRequest
from kio.schema.describe_cluster.v2.request import DescribeClusterRequest
from kio.schema.describe_configs.v4.request import DescribeConfigsRequest
from kio.schema.describe_groups.v6.request import DescribeGroupsRequest
from kio.schema.describe_quorum.v2.request import DescribeQuorumRequest
from kio.schema.describe_topic_partitions.v0.request import DescribeTopicPartitionsRequest
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.list_groups.v5.request import ListGroupsRequest
from kio.schema.list_offsets.v11.request import ListOffsetsRequest
from kio.schema.offset_delete.v0.request import OffsetDeleteRequest
from kio.schema.offset_for_leader_epoch.v4.request import OffsetForLeaderEpochRequest

from raftlog.limits import WIRE_ELEMENTS_MAX
from raftlog.node.access import Principal, Rights
from raftlog.node.audit import NO_AUDIT, AuditLog
from raftlog.node.client_quotas import NO_QUOTAS, ClientQuotas, QuotaLimits
from raftlog.node.raft_node import RaftNode
from raftlog.node.request import INTERNAL_ERROR, Request
from raftlog.node.service import APPENDING_APIS, RequestHandler, Service
from raftlog.wire import (
    APIS,
    Api,
    ApiKey,
    Features,
    decode,
    decode_fetch_request,
    decode_produce_request,
    encode,
    latest_schemas,
)
from raftlog.wire.errors import UnsupportedApiError, WireError
from raftlog.wire.log_identity import duration

from .cluster import handle_describe_cluster, handle_describe_quorum
from .configs import handle_describe_configs
from .deletion import describe_deletion, handle_delete_records
from .features import describe_update, handle_update_features
from .fetch import start_fetch
from .group_offsets import (
    describe_group_deletion,
    handle_delete_groups,
    handle_offset_commit,
    handle_offset_delete,
    handle_offset_fetch,
)
from .groups import handle_describe_groups, handle_find_coordinator, handle_list_groups
from .metadata import handle_describe_topic_partitions, handle_metadata
from .metadata_cache import MetadataCache
from .offsets import handle_list_offsets, handle_offset_for_leader_epoch
from .produce import ProducerIds, start_produce

T = TypeVar("T")

DECODED_ON_LOOP_BYTES_MAX: Final = 1 << 16
"""Maximum size of a request that is decoded on the event loop if its handler ``is_large``."""

_Handler: TypeAlias = Callable[[MetadataCache, Request[Any]], Awaitable[object]]


class ClientApis:
    """Handlers of one node's client requests, on the node's event loop."""

    def __init__(
        self,
        raft_node: RaftNode,
        *,
        is_one_socket: bool = False,
        services: Sequence[Service] = (),
        audit: AuditLog = NO_AUDIT,
        quota_limits: QuotaLimits = NO_QUOTAS,
    ) -> None:
        """``is_one_socket``: the nodes have one listener for clients and voters."""
        self.quotas: Final = ClientQuotas(raft_node, quota_limits)
        self._executor: Final = ThreadPoolExecutor(1, thread_name_prefix="raftlog-executor")
        self._services: Final = tuple(services)
        self._cache: Final = MetadataCache(
            raft_node,
            self._executor,
            is_one_socket=is_one_socket,
            is_read_only=any(service.owns_log for service in self._services),
            warnings=self.warnings,
            audit=audit,
            quotas=self.quotas,
        )
        own: dict[ApiKey, tuple[type[Any], _Handler]] = {
            ApiKey.LIST_OFFSETS: (ListOffsetsRequest, handle_list_offsets),
            ApiKey.METADATA: (latest_schemas.MetadataRequest, handle_metadata),
            ApiKey.OFFSET_COMMIT: (latest_schemas.OffsetCommitRequest, handle_offset_commit),
            ApiKey.DESCRIBE_GROUPS: (DescribeGroupsRequest, handle_describe_groups),
            ApiKey.LIST_GROUPS: (ListGroupsRequest, handle_list_groups),
            ApiKey.OFFSET_FETCH: (latest_schemas.OffsetFetchRequest, handle_offset_fetch),
            ApiKey.FIND_COORDINATOR: (
                latest_schemas.FindCoordinatorRequest,
                handle_find_coordinator,
            ),
            ApiKey.INIT_PRODUCER_ID: (InitProducerIdRequest, ProducerIds().handle),
            ApiKey.OFFSET_FOR_LEADER_EPOCH: (
                OffsetForLeaderEpochRequest,
                handle_offset_for_leader_epoch,
            ),
            ApiKey.DESCRIBE_CONFIGS: (DescribeConfigsRequest, handle_describe_configs),
            ApiKey.DESCRIBE_QUORUM: (DescribeQuorumRequest, handle_describe_quorum),
            ApiKey.DESCRIBE_CLUSTER: (DescribeClusterRequest, handle_describe_cluster),
            ApiKey.DESCRIBE_TOPIC_PARTITIONS: (
                DescribeTopicPartitionsRequest,
                handle_describe_topic_partitions,
            ),
        }

        handlers: dict[int, RequestHandler] = {
            key: RequestHandler(
                api=APIS[key], request_class=kind, handle=partial(handler, self._cache)
            )
            for key, (kind, handler) in own.items()
        }
        handlers |= _changing_handlers(self._cache)
        served = dict(APIS)
        for service in self._services:
            if service.owns_log:
                for key in APPENDING_APIS:
                    del served[key]
            handlers.update(service.handlers)
            served.update((key, one.api) for key, one in service.handlers.items())
        self._handlers: Final[Mapping[int, RequestHandler]] = handlers
        self.served: Final[Mapping[int, Api]] = served
        """APIs of this node, including the quorum's."""

    def features(self) -> Features:
        """Return the features of all services."""
        found = [service.features() for service in self._services]
        return Features(
            supported={name: at for one in found for name, at in one.supported.items()},
            finalized={name: at for one in found for name, at in one.finalized.items()},
        )

    def warnings(self) -> list[str]:
        """Return the warnings of all services."""
        return [text for service in self._services for text in service.warnings()]

    def start(self, request: Request[Any]) -> None:
        """Start a request. Its connection gets the response, or refuses the request.

        Decodes the body unless it is already decoded. Raises ``MalformedMessageError``.
        """
        api_key = request.header.api_key
        if api_key == ApiKey.PRODUCE and api_key not in self._handlers:
            request.body = decode_produce_request(
                request.version, request.frame, start=request.body_start
            )
            start_produce(self._cache, request)
            return
        if api_key == ApiKey.FETCH:
            if request.body is None:
                request.body = decode_fetch_request(
                    request.version, request.frame, start=request.body_start
                )
            start_fetch(self._cache, request)
            return
        tasks = request.connection.tasks
        task = asyncio.get_running_loop().create_task(self._respond(request))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _respond(self, request: Request[Any]) -> None:
        connection = request.connection
        try:
            body = await request.in_steps(self._handle(request))
        except WireError as error:
            connection.refuse(error)
            return
        except Exception:
            connection.refuse(INTERNAL_ERROR)
            raise
        self.quotas.record_rest(request)
        request.respond(body)
        if request.closes_connection:
            connection.finish()

    async def _handle(self, request: Request[Any]) -> bytes:
        """Return the body of the response. Raises ``MalformedMessageError``."""
        api_key, version = request.header.api_key, request.version
        handler = self._handlers.get(api_key)
        if handler is None:
            listener = str(request.principal.listener)
            raise UnsupportedApiError(api_key=api_key, version=version, listener=listener)
        if request.body is None:
            read = partial(
                decode,
                handler.request_class,
                version,
                request.frame,
                start=request.body_start,
                elements_max=_elements_max(handler, request.principal),
                may_trail=True,
            )
            is_long = handler.is_large and len(request.frame) > DECODED_ON_LOOP_BYTES_MAX
            request.body = await self._in_executor(request, read) if is_long else read()
        ended = self._cache.audit.answered(
            request.principal,
            request.connection.where,
            ApiKey(api_key).name,
            handler.describe_change(request),
        )
        response = await handler.handle(request)
        ended(response)
        throttle_ms = self.quotas.throttle(request)
        if isinstance(response, bytes):
            return response  # of the active controller, which has not throttled the client
        if throttle_ms and hasattr(response, "throttle_time"):
            response = replace(cast("Any", response), throttle_time=duration(throttle_ms))
        write = partial(encode, response, version)
        return await self._in_executor(request, write) if handler.is_large else write()

    async def _in_executor(self, request: Request[Any], work: Callable[[], T]) -> T:
        """Return the result of work on a request that runs outside the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, request.timed(work))

    def close(self) -> None:
        """Stop the executor. There must be no further requests."""
        self._executor.shutdown(cancel_futures=True)
        self._cache.remote.close()


def _changing_handlers(cache: MetadataCache) -> dict[int, RequestHandler]:
    """Return the handlers of requests that change something and are in the audit log."""
    return {
        ApiKey.DELETE_RECORDS: RequestHandler(
            api=APIS[ApiKey.DELETE_RECORDS],
            request_class=DeleteRecordsRequest,
            handle=partial(handle_delete_records, cache),
            describe_change=describe_deletion,
        ),
        ApiKey.DELETE_GROUPS: RequestHandler(
            api=APIS[ApiKey.DELETE_GROUPS],
            request_class=DeleteGroupsRequest,
            handle=partial(handle_delete_groups, cache),
            describe_change=describe_group_deletion,
        ),
        ApiKey.OFFSET_DELETE: RequestHandler(
            api=APIS[ApiKey.OFFSET_DELETE],
            request_class=OffsetDeleteRequest,
            handle=partial(handle_offset_delete, cache),
            describe_change=describe_group_deletion,
        ),
        ApiKey.UPDATE_FEATURES: RequestHandler(
            api=APIS[ApiKey.UPDATE_FEATURES],
            request_class=latest_schemas.UpdateFeaturesRequest,
            handle=partial(handle_update_features, cache),
            describe_change=describe_update,
        ),
    }


def _elements_max(handler: RequestHandler, principal: Principal) -> int:
    """Return the limit of a request's array elements: small without a right, like its frame's."""
    is_known = principal.possible_rights & (Rights.ADMIN | Rights.VOTE)
    return handler.elements_max if is_known else min(handler.elements_max, WIRE_ELEMENTS_MAX)
