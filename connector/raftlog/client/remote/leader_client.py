"""Requests of a client to the leader of a quorum, except appends.

Retriable errors and lost connections are retried until the timeout (``QuorumUnavailableError``), so
requests must be safe to repeat; other errors are raised immediately. The client is thread-safe. A
forked child opens its own connections when it first uses the client.
"""

from __future__ import annotations

import asyncio
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

from raftlog.client.log_handle import TIMEOUT_MS_DEFAULT
from raftlog.errors import AccessDeniedError, NodeRefusedError
from raftlog.limits import BATCH_BYTES_MAX
from raftlog.log.reading.transactions import ValueKind
from raftlog.records.compression import Compression
from raftlog.types import OffsetAndEpoch, SnapshotId
from raftlog.wire import ApiKey, latest_schemas
from raftlog.wire.errors import WireError

from . import messages
from .commit_waiter import FETCH_BYTES, CommitWaiter
from .connection import ConnectionLostError, NetworkThread, ThrottledError
from .login import SaslLogin, warn_of_plain_secrets
from .messages import Committed, TopicIdentity
from .metadata import PAUSE_FIRST_S, PAUSE_LONGEST_S, LeaderConnection, Metadata
from .nodes import Address
from .producer_batches import LogSettings
from .security import PLAINTEXT, ClientSecurity
from .tls import SslFactory

RESPONSE_TIMEOUT_S: Final = 6.0
_OFFSET_OUT_OF_RANGE: Final = 1
_CORRUPT_MESSAGE: Final = 2
_STORAGE_ERROR: Final = 56
_RETRIABLE_ERRORS: Final = messages.RETRIABLE_ERRORS | {7, 8, 41, _STORAGE_ERROR, 78}
"""Kafka's error codes after which a retry, or another leader, may help: those of all requests,
REQUEST_TIMED_OUT, BROKER_NOT_AVAILABLE (it is shutting down), NOT_CONTROLLER, KAFKA_STORAGE_ERROR
and OFFSET_NOT_AVAILABLE."""
_LEADER_IS_BUSY: Final = frozenset((7, 14, 78))
"""Error codes of a leader that does not know its high watermark yet."""
_SNAPSHOT_NOT_FOUND: Final = 98

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FetchResult:
    """Response to a Fetch: offsets of the leader's log, and batches.

    ``high_watermark`` and ``last_stable_offset`` are exclusive, and None while the leader does not
    know them. ``is_out_of_range``: the offset is before the log's start or after its end.
    ``snapshot_id``: the snapshot to read instead. ``diverging``: the end of the requested epoch.
    """

    log_start_offset: int
    high_watermark: int | None
    last_stable_offset: int | None
    leader_epoch: int
    data: bytes
    is_out_of_range: bool = False
    snapshot_id: SnapshotId | None = None
    diverging: OffsetAndEpoch | None = None


class PendingFetch:
    """Fetch that ``LeaderClient.begin_fetch`` has started."""

    def __init__(self, network: NetworkThread, future: Future[FetchResult]) -> None:
        self._network = network
        self._future = future

    def wait(self) -> FetchResult | None:
        """Return the response; None in a forked child, where the fetch does not continue.

        Raises like ``LeaderClient.fetch``, but returns on the network thread if the fetch is done.
        """
        return None if self._network.is_forked else self._network.wait_for(self._future)


class LeaderClient:
    """Client of the leader of one quorum."""

    def __init__(
        self,
        bootstrap: tuple[Address, ...],
        security: ClientSecurity = PLAINTEXT,
        *,
        timeout_ms: float = TIMEOUT_MS_DEFAULT,
        cluster_id: str | None = None,
    ) -> None:
        """``cluster_id``: the nodes' cluster id; None: that of the first node that responds."""
        self.path: Final = ",".join(map(str, bootstrap))
        self.timeout_ms: Final = timeout_ms
        self._bootstrap = bootstrap
        self._cluster_id = cluster_id
        self._tls = None if security.tls is None else SslFactory(security.tls)
        self._sasl = security.sasl
        warn_of_plain_secrets(security)
        self._lock = threading.Lock()
        self._begin()

    def __repr__(self) -> str:
        return f"LeaderClient({self.path!r})"

    def _begin(self) -> None:
        self._compacted_offset = 0
        """The greatest one in responses to ``fetch``. Set on the event loop."""
        login = None if self._sasl is None else SaslLogin(self._sasl)
        self._metadata = Metadata(self._bootstrap, self._tls, login, self._cluster_id)
        self._waiter = CommitWaiter(self._metadata, self._tls, login)
        metadata, waiter = self._metadata, self._waiter

        def close() -> None:  # without a reference to this client
            waiter.close()
            metadata.close()

        self._network = NetworkThread(self.path, close)
        self._identity: TopicIdentity | None = None
        weakref.finalize(self, self._network.stop).atexit = False

    @property
    def network(self) -> NetworkThread:
        """The network thread of this process."""
        if self._network.is_forked:
            self._lock = threading.Lock()
            self._begin()
        return self._network

    @property
    def metadata(self) -> Metadata:
        return self._metadata

    def close(self) -> None:
        """Stop the network thread and close the connections."""
        self._network.stop()

    # --- requests ---------------------------------------------------------------------------------

    def identity(self) -> TopicIdentity:
        """Return the identity of the log, requested once."""
        network = self.network
        if self._identity is None:
            leader: LeaderConnection = network.run(self._leader())
            self._identity = leader.log
        return self._identity

    def leader_epoch(self) -> int:
        """Return the epoch of the current leader."""
        leader: LeaderConnection = self.network.run(self._leader())
        return leader.epoch

    def leader_id(self) -> int:
        """Return the node id of the current leader."""
        leader: LeaderConnection = self.network.run(self._leader())
        return leader.node_id

    def settings(self) -> LogSettings:
        """Return the settings for appends. Raises ``NodeRefusedError`` if it is no raftlog log."""
        if self.identity().is_controller:
            reason = "it is a Kafka controller, whose log can only be read: use raftlog.follow"
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
                path=self.path, api="DescribeConfigs", error=0, reason="it is not a raftlog log"
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
        timeout_ms: float | None = None,
    ) -> FetchResult:
        """Fetch batches from ``offset`` on; the last one may be incomplete."""
        network = self.network
        work = self._fetch(offset, byte_count_max, last_epoch, wait_ms, timeout_ms)
        fetched: FetchResult = network.run(work)
        return fetched

    def begin_fetch(self, offset: int, *, byte_count_max: int) -> PendingFetch:
        """Start a ``fetch``."""
        network = self.network
        work = self._fetch(offset, byte_count_max, None, 0, None)
        return PendingFetch(network, network.start(work))

    def begin_wait(self, offset: int) -> Future[bool]:
        """Start to wait until the record at ``offset`` is committed, like ``CommitWaiter.wait``."""
        network = self.network  # first, because in a forked child it replaces the waiter
        return network.start(self._waiter.wait(offset))

    @property
    def compacted_offset(self) -> int:
        """The greatest compacted offset in responses to fetches: states below it may lack keys."""
        return max(self._compacted_offset, self._waiter.compacted_offset)

    def awaited(self, offset: int) -> FetchResult | None:
        """Return the response that ``begin_wait`` got for an offset; None if it has no records.

        The last response is kept until the next one, because several readers may wait for the same
        records.
        """
        found = self._waiter.fetched
        if found is None or found[0] != offset:
            return None
        return _fetch_result(found[1], found[2], is_out_of_range=False)

    def forget_awaited(self) -> None:
        """Drop the response of ``awaited`` because it is damaged and could never be read."""
        self._waiter.fetched = None

    def pause(self, duration_ms: int) -> None:
        """Sleep. Raises ``LogClosedError`` when the client is closed."""
        self.network.run(asyncio.sleep(duration_ms / 1000))

    def list_offset(self, timestamp: int, *, is_committed_only: bool = False) -> int | None:
        """Return the offset of a timestamp in milliseconds or of a special timestamp, if any."""
        _, partition = self.send_to_leader(
            ApiKey.LIST_OFFSETS,
            lambda leader: messages.offset_request(
                leader.log, timestamp, is_committed_only=is_committed_only
            ),
            ListOffsetsResponse,
            messages.parse_partition,
        )
        return None if partition.offset < 0 else int(partition.offset)

    def start_offset(self, fetched: FetchResult) -> int:
        """Return the log start offset in ``fetched``; request it if that was out of range."""
        if self.identity().is_controller or not fetched.is_out_of_range:
            return fetched.log_start_offset
        return self.list_offset(messages.EARLIEST_TIMESTAMP) or 0

    def end_offset_for_epoch(self, epoch: int | None) -> OffsetAndEpoch | None:
        """Return the newest epoch up to ``epoch`` and its end offset, if there is one. None means
        up to the leader's epoch; it may have been elected again since the last request."""
        if self.identity().is_controller:
            end = self.fetch(messages.OFFSET_MAX, last_epoch=epoch).diverging
            return end
        _, partition = self.send_to_leader(
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            lambda leader: messages.epoch_end_request(
                leader.log,
                leader.epoch if epoch is None else epoch,
                leader_epoch=leader.epoch,  # an earlier one is refused, then retried
            ),
            OffsetForLeaderEpochResponse,
            messages.parse_partition,
        )
        if partition.leader_epoch < 0 or partition.end_offset < 0:
            return None
        return OffsetAndEpoch(epoch=int(partition.leader_epoch), offset=int(partition.end_offset))

    def last_commit(self, application_id: str, *, timeout_ms: float) -> Committed | None:
        """Return the last commit of an application id, by OffsetFetch."""
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
        """Return a snapshot's bytes from ``position`` on, and its size; None if it was deleted."""
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
            messages.parse_partition,
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
        """Send a request to the leader, and retry until it is answered or the timeout passes.

        ``parse`` returns Kafka's error code and the content of a response. They are the result if
        the error code is 0 or in ``allowed``. Raises ``QuorumUnavailableError``,
        ``AccessDeniedError``, ``WrongClusterError`` and ``NodeRefusedError``.
        """

        async def send() -> tuple[int, Any]:
            until = self._until(timeout_ms)
            error, content, _ = await self._send_to_leader(
                api_key, build, target, parse, allowed, until
            )
            return error, content

        network = self.network  # first: in a forked child it replaces the metadata
        result: tuple[int, Any] = network.run(send())
        return result

    # --- inside -----------------------------------------------------------------------------------

    async def _leader(self) -> LeaderConnection:
        return await self._metadata.leader(self._until(None))

    def _until(self, timeout_ms: float | None) -> float:
        """Return the loop time at which a call must end; None: after this client's timeout."""
        wait_ms = self.timeout_ms if timeout_ms is None else timeout_ms
        return asyncio.get_running_loop().time() + wait_ms / 1000

    async def _fetch(
        self,
        offset: int,
        byte_count_max: int,
        last_epoch: int | None,
        wait_ms: int,
        timeout_ms: float | None,
    ) -> FetchResult:
        until = self._until(timeout_ms)
        fetched, is_controller = await self._fetch_once(
            offset, byte_count_max, last_epoch, wait_ms, until
        )
        is_in_log = 0 < fetched.log_start_offset <= offset
        if last_epoch is None and is_controller and fetched.snapshot_id and is_in_log:
            epoch = await self._epoch_before_log_start(fetched, until)
            fetched, _ = await self._fetch_once(offset, byte_count_max, epoch, wait_ms, until)
        return fetched

    async def _epoch_before_log_start(self, fetched: FetchResult, until: float) -> int:
        """Return the epoch of a controller's oldest snapshot, at whose end its log starts.

        A controller returns records from its log's start only to a fetch with this last fetched
        epoch; to older ones it returns the id of its newest snapshot (Kafka:
        ``validateOffsetAndEpoch``).
        """
        assert fetched.snapshot_id is not None, "the controller refers to a snapshot"
        if fetched.snapshot_id.end_offset == fetched.log_start_offset:
            return fetched.snapshot_id.epoch
        low, high = 0, fetched.snapshot_id.epoch
        while low < high:
            middle = (low + high) // 2
            found, _ = await self._fetch_once(messages.OFFSET_MAX, 1, middle, 0, until)
            if found.snapshot_id is None:
                high = middle
            else:
                low = middle + 1
        return low

    async def _fetch_once(
        self,
        offset: int,
        byte_count_max: int,
        last_epoch: int | None,
        wait_ms: int,
        until: float,
    ) -> tuple[FetchResult, bool]:
        """Fetch once; also return whether a Kafka controller responded."""

        def build(leader: LeaderConnection) -> Any:
            epoch = last_epoch
            if epoch is None:  # controllers expect a replica's request, with an epoch
                epoch = leader.epoch if leader.log.is_controller else -1
            return messages.fetch_request(
                leader.log,
                offset,
                leader_epoch=leader.epoch if leader.log.is_controller else -1,
                byte_count_max=byte_count_max,
                last_epoch=epoch,
                wait_ms=wait_ms,
            )

        error, partition, leader = await self._send_to_leader(
            ApiKey.FETCH,
            build,
            latest_schemas.FetchResponse,
            lambda response: messages.parse_partition(response, response.responses),
            (_OFFSET_OUT_OF_RANGE,),
            until,
        )
        self._compacted_offset = max(self._compacted_offset, partition.compacted_offset)
        fetched = _fetch_result(partition, leader.epoch, is_out_of_range=bool(error))
        return fetched, leader.log.is_controller

    async def _send_to_leader(
        self,
        api_key: ApiKey,
        build: Callable[[LeaderConnection], Any],
        target: type[T],
        parse: Callable[[T], tuple[int, Any]],
        allowed: tuple[int, ...],
        until: float,
    ) -> tuple[int, Any, LeaderConnection]:
        """Send a request to the leader; also return the leader that answered it."""
        loop = asyncio.get_running_loop()
        pause_s = PAUSE_FIRST_S
        while True:
            leader = await self._metadata.leader(until)
            if throttle_s := self._metadata.throttle_pause_s(leader):
                if loop.time() >= until:
                    raise self._metadata.unavailable()
                await asyncio.sleep(min(throttle_s, until - loop.time()))
                continue
            try:
                sent = leader.connection.send(api_key, build(leader), target)
                self._metadata.watch(leader, sent)
                timeout_s = min(RESPONSE_TIMEOUT_S, max(until - loop.time(), 0))
                error, content = parse(await leader.connection.wait(sent, timeout_s))
            except ThrottledError as throttled:
                self._metadata.note_problem(str(throttled))
            except ConnectionLostError as lost:
                self._metadata.invalidate(leader, str(lost), is_lost=True)
            except WireError as unreadable:
                raise self._node_error(api_key, 0, unreadable.message()) from None
            else:
                if not error or error in allowed:
                    self._metadata.mark_healthy()
                    return error, content, leader
                if messages.is_access_error(error):
                    reason = f"client not authorized for {api_key.name} (Kafka's error {error})"
                    raise AccessDeniedError(path=self.path, reason=reason)
                if error == _CORRUPT_MESSAGE:
                    raise self._damage(api_key, leader)
                if error not in _RETRIABLE_ERRORS:
                    raise self._node_error(api_key, error, "no details given")
                if error not in _LEADER_IS_BUSY:
                    reason = f"{api_key.name}: Kafka's error {error}"
                    if error == _STORAGE_ERROR:
                        reason = (
                            f"{api_key.name}: the node could not use its disk or its object store "
                            f"(Kafka's error {error}); its log lines may name the cause"
                        )
                    self._metadata.invalidate(leader, reason)
            if loop.time() >= until:
                raise self._metadata.unavailable()
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_LONGEST_S)

    def _damage(self, api_key: ApiKey, leader: LeaderConnection) -> NodeRefusedError:
        node = f"node {leader.node_id} ({leader.connection.address})"
        return NodeRefusedError(
            path=self.path,
            api=api_key.name,
            error=_CORRUPT_MESSAGE,
            reason=f"the log on {node}, or one of its remote segments, is damaged or missing",
            remedy="run `raftlog doctor` with the node's node.toml there: it finds the damage and "
            "names the next command",
        )

    def _node_error(self, api_key: ApiKey, error: int, reason: str) -> NodeRefusedError:
        return NodeRefusedError(path=self.path, api=api_key.name, error=error, reason=reason)


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
        else SnapshotId(epoch=int(snapshot.epoch), end_offset=int(snapshot.end_offset)),
        diverging=None
        if diverging.end_offset < 0
        else OffsetAndEpoch(epoch=int(diverging.epoch), offset=int(diverging.end_offset)),
    )


def _known(offset: int) -> int | None:
    return None if offset < 0 else int(offset)
