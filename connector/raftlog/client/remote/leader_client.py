"""What a client asks the leader of a quorum besides appends: bounded in time, retried, typed.

Rules of this file:

1. Every question may be asked twice: none of them changes anything. (A producer id is used up.)
2. What may pass is asked again until its time is up (``QuorumUnavailableError``); what does not is
   raised at once.
3. Safe for threads. In a fork everything is made anew when it is first asked for.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from kio.schema.describe_configs.v4.response import DescribeConfigsResponse
from kio.schema.fetch_snapshot.v1.response import FetchSnapshotResponse
from kio.schema.list_offsets.v11.response import ListOffsetsResponse
from kio.schema.offset_for_leader_epoch.v4.response import OffsetForLeaderEpochResponse

from raftlog.errors import (
    AccessDeniedError,
    NodeRefusedError,
    WireError,
)
from raftlog.limits import BATCH_BYTES_MAX, MIB
from raftlog.log.writing.batch_metadata import ValueKind
from raftlog.records.compression import Compression
from raftlog.types import OffsetAndEpoch, SnapshotId
from raftlog.wire import ApiKey, latest_schemas

from . import messages
from .addresses import Address
from .connection import ConnectionLostError
from .messages import Committed, TopicIdentity
from .metadata import LeaderConnection, Metadata, is_access_error
from .network import NetworkThread
from .sendings import LogSettings
from .tls import NO_TLS, TlsOptions, tls_context

TIMEOUT_MS_DEFAULT: Final = 30_000
"""How long a question is asked again (Kafka: ``default.api.timeout.ms``)."""
RESPONSE_TIMEOUT_S: Final = 6.0
FETCH_BYTES: Final = 1 * MIB
PAUSE_FIRST_S: Final = 0.02
PAUSE_LONGEST_S: Final = 0.4
_OFFSET_OUT_OF_RANGE: Final = 1
_RETRIABLE_ERRORS: Final = frozenset(
    (3, 5, 6, 7, 8, 9, 13, 14, 15, 16, 41, 74, 75, 76, 78, 100, 103)
)
"""Kafka's codes after which another try, or another leader, may help."""
_LEADER_IS_BUSY: Final = frozenset((7, 14, 78))
"""Codes of one that leads, and cannot tell yet what is committed."""
_SNAPSHOT_NOT_FOUND: Final = 98

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FetchResult:
    """What the leader says of its log, and a piece of it. Offsets but the first are ends.

    ``high_watermark`` is None if the leader does not know it yet. ``is_out_of_range``: the offset
    lies before the log's start or behind its end. ``snapshot_id``: the leader would rather send
    this checkpoint. ``diverging``: where the epoch that was asked with ends.
    """

    log_start_offset: int
    high_watermark: int | None
    last_stable_offset: int | None
    leader_epoch: int
    data: bytes
    is_out_of_range: bool = False
    snapshot_id: SnapshotId | None = None
    diverging: OffsetAndEpoch | None = None


class LeaderClient:
    """The nodes of one quorum, as its clients see them."""

    def __init__(
        self,
        bootstrap: tuple[Address, ...],
        tls: TlsOptions = NO_TLS,
        *,
        timeout_ms: float = TIMEOUT_MS_DEFAULT,
    ) -> None:
        self.path: Final = ",".join(map(str, bootstrap))
        self.timeout_ms: Final = timeout_ms
        self._bootstrap = bootstrap
        self._context: ssl.SSLContext | None = tls_context(tls)
        self._lock = threading.Lock()
        self._begin()

    def __repr__(self) -> str:
        return f"LeaderClient({self.path!r})"

    def _begin(self) -> None:
        self._process_id = os.getpid()
        self._metadata = Metadata(self._bootstrap, self._context)
        self._network = NetworkThread(self.path, self._metadata.close)
        self._identity: TopicIdentity | None = None
        weakref.finalize(self, self._network.stop).atexit = False

    @property
    def network(self) -> NetworkThread:
        """The thread of this process."""
        if os.getpid() != self._process_id:
            self._lock = threading.Lock()
            self._begin()
        return self._network

    @property
    def metadata(self) -> Metadata:
        return self._metadata

    def close(self) -> None:
        """End the thread and close the connections."""
        self._network.stop()

    # --- questions --------------------------------------------------------------------------------

    def identity(self) -> TopicIdentity:
        """Which log this is: known since somebody led it first."""
        network = self.network
        if self._identity is None:
            leader: LeaderConnection = network.run(self._leader())
            self._identity = leader.log
        return self._identity

    def leader_epoch(self) -> int:
        """The epoch of whoever leads now."""
        leader: LeaderConnection = self.network.run(self._leader())
        return leader.epoch

    def leader_id(self) -> int:
        """Which node that is."""
        leader: LeaderConnection = self.network.run(self._leader())
        return leader.node_id

    def settings(self) -> LogSettings:
        """How the log takes records. Raises ``NodeRefusedError`` if it is none of raftlog's."""
        if self.identity().is_controller:
            reason = "a controller of Kafka's, whose log can only be read: use raftlog.follow"
            raise self._node_error(ApiKey.DESCRIBE_CONFIGS, 0, reason)
        error, settings = self.send_to_leader(
            ApiKey.DESCRIBE_CONFIGS,
            lambda leader: messages.settings_request(leader.log),
            DescribeConfigsResponse,
            messages.parse_settings,
        )
        del error
        if "raftlog.values" not in settings:
            raise NodeRefusedError(
                path=self.path, api="DescribeConfigs", error=0, reason="it is no log of raftlog's"
            )
        codecs = {codec.name.lower(): codec for codec in Compression}
        return LogSettings(
            values=ValueKind(settings["raftlog.values"]),
            batch_bytes_max=int(settings.get("max.message.bytes", BATCH_BYTES_MAX)),
            compression=codecs.get(settings.get("compression.type", "none"), Compression.NONE),
        )

    def fetch(
        self,
        offset: int,
        *,
        byte_count_max: int = FETCH_BYTES,
        last_epoch: int | None = None,
        wait_ms: int = 0,
    ) -> FetchResult:
        """What lies from ``offset`` on: whole batches, the last one perhaps cut off."""
        network = self.network
        fetched: FetchResult = network.run(self._fetch(offset, byte_count_max, last_epoch, wait_ms))
        return fetched

    def begin_fetch(self, offset: int, *, byte_count_max: int) -> Future[FetchResult]:
        """The same, to be waited for later."""
        return self.network.start(self._fetch(offset, byte_count_max, None, 0))

    def pause(self, duration_ms: int) -> None:
        """Return after that time, or when this is closed (``LogClosedError``)."""
        self.network.run(asyncio.sleep(duration_ms / 1000))

    def list_offset(self, timestamp: int, *, is_committed_only: bool = False) -> int | None:
        """The offset that ListOffsets tells of a time, or of one of Kafka's special ones."""
        _, partition = self.send_to_leader(
            ApiKey.LIST_OFFSETS,
            lambda leader: messages.offset_request(
                leader.log, timestamp, is_committed_only=is_committed_only
            ),
            ListOffsetsResponse,
            _parse_partition,
        )
        return None if partition.offset < 0 else int(partition.offset)

    def start_offset(self, fetched: FetchResult) -> int:
        """Where the log begins: as a fetch told, or by asking, if it was out of range."""
        if self.identity().is_controller or not fetched.is_out_of_range:
            return fetched.log_start_offset
        return self.list_offset(messages.EARLIEST_TIMESTAMP) or 0

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch | None:
        """The newest epoch up to this one, and where its records end; None if there is none."""
        if self.identity().is_controller:
            told = self.fetch(messages.OFFSET_MAX, last_epoch=epoch).diverging
            return told
        _, partition = self.send_to_leader(
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            lambda leader: messages.epoch_end_request(leader.log, epoch),
            OffsetForLeaderEpochResponse,
            _parse_partition,
        )
        if partition.leader_epoch < 0 or partition.end_offset < 0:
            return None
        return OffsetAndEpoch(int(partition.leader_epoch), int(partition.end_offset))

    def last_commit(self, application_id: str, *, timeout_ms: float) -> Committed | None:
        """What OffsetFetch tells of the last commit under an application id."""
        committed: Committed | None
        _, committed = self.send_to_leader(
            ApiKey.OFFSET_FETCH,
            lambda leader: messages.commit_request(leader.log, application_id),
            latest_schemas.OffsetFetchResponse,
            messages.parse_committed,
            timeout_ms=timeout_ms,
        )
        return committed

    def fetch_snapshot(
        self, snapshot_id: SnapshotId, position: int, byte_count_max: int
    ) -> tuple[bytes, int] | None:
        """Bytes of a checkpoint from ``position`` on, and how many it has; None if it is gone."""
        error, partition = self.send_to_leader(
            ApiKey.FETCH_SNAPSHOT,
            lambda leader: messages.snapshot_request(
                leader.log,
                snapshot_id,
                position,
                leader_epoch=leader.epoch,
                byte_count_max=byte_count_max,
            ),
            FetchSnapshotResponse,
            lambda answer: (
                (int(answer.error_code), None) if answer.error_code else _parse_snapshot(answer)
            ),
            allowed=(_SNAPSHOT_NOT_FOUND,),
        )
        if error:
            return None
        return bytes(partition.unaligned_records), int(partition.size)

    def send_to_leader(
        self,
        api_key: ApiKey,
        build: Callable[[LeaderConnection], Any],
        target: type[T],
        parse: Callable[[T], tuple[int, Any]],
        *,
        allowed: tuple[int, ...] = (),
        timeout_ms: float | None = None,
    ) -> tuple[int, Any]:
        """Ask whoever leads, until there is an answer or time is up.

        ``parse`` gives Kafka's error and what an answer holds; what is returned is 0, or an error
        that is allowed, and that.
        """

        async def send() -> tuple[int, Any]:
            error, taken, _ = await self._send_to_leader(
                api_key, build, target, parse, allowed, timeout_ms
            )
            return error, taken

        network = self.network  # first: a fork makes its own leaders
        answer: tuple[int, Any] = network.run(send())
        return answer

    # --- inside -----------------------------------------------------------------------------------

    async def _leader(self) -> LeaderConnection:
        return await self._metadata.leader(
            asyncio.get_running_loop().time() + self.timeout_ms / 1000
        )

    async def _fetch(
        self, offset: int, byte_count_max: int, last_epoch: int | None, wait_ms: int
    ) -> FetchResult:
        def build(leader: LeaderConnection) -> Any:
            epoch = last_epoch
            if epoch is None:  # controllers take who asks for a replica, which has read some epoch
                epoch = leader.epoch if leader.log.is_controller else -1
            return messages.fetch_request(
                leader.log,
                offset,
                leader_epoch=leader.epoch if leader.log.is_controller else -1,
                byte_count_max=byte_count_max,
                is_committed_only=False,
                last_epoch=epoch,
                wait_ms=wait_ms,
            )

        error, partition, leader = await self._send_to_leader(
            ApiKey.FETCH, build, latest_schemas.FetchResponse, _parse_fetch, (_OFFSET_OUT_OF_RANGE,)
        )
        return _fetch_result(partition, leader.epoch, is_out_of_range=bool(error))

    async def _send_to_leader(
        self,
        api_key: ApiKey,
        build: Callable[[LeaderConnection], Any],
        target: type[T],
        parse: Callable[[T], tuple[int, Any]],
        allowed: tuple[int, ...] = (),
        timeout_ms: float | None = None,
    ) -> tuple[int, Any, LeaderConnection]:
        """Ask whoever leads until there is an answer."""
        loop = asyncio.get_running_loop()
        until = loop.time() + (self.timeout_ms if timeout_ms is None else timeout_ms) / 1000
        pause_s = PAUSE_FIRST_S
        while True:
            leader = await self._metadata.leader(until)
            try:
                reply = leader.connection.send(api_key, build(leader))
                self._metadata.watch(leader, reply)
                timeout_s = min(RESPONSE_TIMEOUT_S, max(until - loop.time(), 0))
                answer = await leader.connection.wait(reply, timeout_s)
                error, taken = parse(answer.decoded(target))
            except ConnectionLostError as lost:
                self._metadata.invalidate(leader, str(lost), is_lost=True)
            except WireError as unreadable:
                raise self._node_error(api_key, 0, unreadable.message()) from None
            else:
                if not error or error in allowed:
                    self._metadata.mark_healthy()
                    return error, taken, leader
                if is_access_error(error):
                    reason = f"{api_key.name} is not allowed to this caller (Kafka's error {error})"
                    raise AccessDeniedError(path=self.path, reason=reason)
                if error not in _RETRIABLE_ERRORS:
                    raise self._node_error(api_key, error, "it says no more")
                if error not in _LEADER_IS_BUSY:
                    self._metadata.invalidate(leader, f"{api_key.name}: Kafka's error {error}")
            if loop.time() >= until:
                raise self._metadata.unavailable()
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_LONGEST_S)

    def _node_error(self, api_key: ApiKey, error: int, reason: str) -> NodeRefusedError:
        return NodeRefusedError(path=self.path, api=api_key.name, error=error, reason=reason)


def _parse_partition(answer: Any) -> tuple[int, Any]:
    partition = messages.only_partition(answer.topics)
    return int(partition.error_code), partition


def _parse_snapshot(answer: FetchSnapshotResponse) -> tuple[int, Any]:
    partition = messages.only_partition(answer.topics)
    return int(partition.error_code), partition


def _parse_fetch(answer: latest_schemas.FetchResponse) -> tuple[int, Any]:
    if answer.error_code:
        return int(answer.error_code), None
    partition = messages.only_partition(answer.responses)
    return int(partition.error_code), partition


def _fetch_result(partition: Any, leader_epoch: int, *, is_out_of_range: bool) -> FetchResult:
    snapshot, diverging = partition.snapshot_id, partition.diverging_epoch
    return FetchResult(
        log_start_offset=max(int(partition.log_start_offset), 0),
        high_watermark=_known(partition.high_watermark),
        last_stable_offset=_known(partition.last_stable_offset),
        leader_epoch=leader_epoch,
        data=bytes(partition.records or b""),
        is_out_of_range=is_out_of_range,
        snapshot_id=None
        if snapshot.end_offset < 0
        else SnapshotId(int(snapshot.epoch), int(snapshot.end_offset)),
        diverging=None
        if diverging.end_offset < 0
        else OffsetAndEpoch(int(diverging.epoch), int(diverging.end_offset)),
    )


def _known(offset: int) -> int | None:
    return None if offset < 0 else int(offset)
