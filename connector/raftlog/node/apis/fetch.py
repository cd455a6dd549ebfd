"""Handler of Fetch for consumers: committed batches, with a wait for ``min_bytes``.

1. A consumer reads below the high watermark, or below the last stable offset with read_committed.
   The response contains whole batches, starting with the one that contains the fetch offset: at
   least one, whatever its size, and then as many as fit (KIP-74).
2. A fetch waits up to ``max_wait`` for ``min_bytes``. While it waits, bytes are only counted. They
   are read once memory is available for the response. If no memory is available for
   ``ROOM_WAIT_MS``, the response has no records. Errors and leader changes end the wait
   immediately.
3. There are no fetch sessions: a request for one gets session id 0, and a request within one gets
   FETCH_SESSION_ID_NOT_FOUND (KIP-227).
4. If a partition is repeated, its last occurrence counts (Kafka's request is a map).
5. A fetch has no task: it waits in ``FetchPurgatory``, and for the memory pool if that is full.
6. Records below the local start are read from remote storage, in another thread, for one partition,
   and without waiting for ``min_bytes``.
7. A consumer that exceeds a quota gets no records, and its connection is muted (KIP-219).
8. If a follower is in the consumer's rack, the leader sends the consumer there before anything is
   read from remote storage, and that follower serves it below its own high watermark (KIP-392). If
   a follower does not have an offset, the leader must answer, because it knows the start and the
   end of the log. Consumers without a rack, such as raftlog's own clients, read only from the
   leader.

Kafka: ``ReplicaManager.fetchMessages``, ``Partition.readRecords``; KIP-320, 595 and 951.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from raftlog.errors import LogError, RaftlogError
from raftlog.limits import (
    BATCH_BYTES_MAX,
    BATCH_HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
)
from raftlog.node.audit import AUTHORIZATION_ERRORS
from raftlog.node.request import Request
from raftlog.types import OffsetAndEpoch, Operation
from raftlog.wire import (
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    encode_fetch_response,
)
from raftlog.wire.fetch_codec import NO_END
from raftlog.wire.log_identity import or_minus_one

from .metadata_cache import READ_COMMITTED, WITH_LEADER, MetadataCache

if TYPE_CHECKING:
    from raftlog.log.reading.remote_reader import RemoteReader

_FIRST_EPOCHS: Final = (0, -1)
"""Session epochs that request a new session, and no session."""
_BASE_AND_LENGTH: Final = struct.Struct(">qi")
_LAST_DELTA: Final = struct.Struct(">i")
_LAST_DELTA_POSITION: Final = struct.calcsize(">qiibih")
RESPONSE_BYTES_MAX: Final = BATCH_BYTES_MAX
"""Maximum bytes of records in a response, unless its first batch is larger."""

WAIT_MS_MAX: Final = 60_000
"""Upper bound of ``max_wait``, after which a consumer gets an empty response."""
ROOM_WAIT_MS: Final = 1_000


@dataclass(slots=True, kw_only=True)
class _Part:
    """Partition of a request, and its state at the last check."""

    topic: FetchTopic
    partition: FetchPartition
    error: ErrorCode = ErrorCode.none
    diverging: OffsetAndEpoch | None = None
    records: bytes = b""
    end_offset: int = -1
    """End of the readable records."""
    is_remote: bool = False
    """Whether the fetch offset is below the local start, in remote storage."""
    fetched: bytes | RaftlogError | None = None
    """Bytes read from remote storage, or the error."""
    preferred_replica: int = -1
    """The node that the consumer should fetch from; -1 for this one."""
    counted_byte_count: int = 0
    counted_offset: int
    """Readable bytes counted so far, and the offset up to which they were counted."""

    @property
    def is_final(self) -> bool:
        """Return whether waiting for records cannot change the response."""
        is_refused = self.error is not ErrorCode.none or self.diverging is not None
        return is_refused or self.preferred_replica >= 0


_Request = Request[FetchRequest]


def start_fetch(cache: MetadataCache, request: _Request) -> None:
    """Respond to a fetch now, or delay it."""
    request.attempt(ConsumerFetch(cache, request).start)


class ConsumerFetch:
    """Fetch of a consumer, from its request to its response.

    Kafka: ``DelayedFetch``.
    """

    __slots__ = ("_byte_count_max", "_cache", "_has_room_by", "_parts", "_reading", "_request")

    def __init__(self, cache: MetadataCache, request: _Request) -> None:
        self._cache: Final = cache
        self._request: Final = request
        self._parts: Final = _parts(request.body)
        self._byte_count_max: Final = int(
            min(
                RESPONSE_BYTES_MAX,
                max(request.body.max_bytes, 0),
                cache.quotas.fetch_bytes_max(request),
            )
        )
        """Limit on the size of the records, unless the first batch is larger. A response larger
        than the client's quota allows in a window would never be sent."""
        self._has_room_by: asyncio.TimerHandle | None = None
        """Deadline of the wait for memory while it waits for memory."""
        self._reading: asyncio.Future[bytes] | None = None
        """Read from remote storage, which may wait for other reads."""

    def start(self) -> None:
        """Respond now, or once the response is due."""
        body = self._request.body
        if body.session_epoch not in _FIRST_EPOCHS:
            self._respond(lambda: FetchResponse((), ErrorCode.fetch_session_id_not_found))
            return
        timeout_ms = min(body.max_wait_ms, WAIT_MS_MAX)
        if self._check() or timeout_ms <= 0:
            self.complete()
            return
        self._request.session.fetches[self] = None
        self._cache.raft_node.delay(self, timeout_ms)

    def cancel(self) -> None:
        """Drop the request, because its connection is lost or ends."""
        self._cache.raft_node.fetches.remove(self)
        self._end_wait()
        if self._reading is not None:
            self._reading.cancel()

    # --- waiting for records ----------------------------------------------------------------------

    @property
    def principal_name(self) -> str:
        return self._request.principal.name

    @property
    def awaited_offset(self) -> int:
        return min(part.counted_offset for part in self._parts)

    def is_due(self) -> bool:
        """Return whether the response has enough bytes, or an error. A bug ends the request."""
        is_due = self._request.attempt(self._check)
        if is_due is None:
            self.cancel()
        return bool(is_due)

    def _check(self) -> bool:
        """Update all partitions; return whether the response is due."""
        min_bytes, parts = self._request.body.min_bytes, self._parts
        if not parts or min_bytes <= 0:
            self._check_all()
            return True
        before = [(part.end_offset, part.is_final) for part in parts]
        self._check_all()
        if any(part.is_final or part.is_remote for part in parts):
            return True
        if before == [(part.end_offset, part.is_final) for part in parts]:
            return False
        if min_bytes == 1:
            return any(part.partition.fetch_offset < part.end_offset for part in parts)
        is_cut = [self._count(part) for part in parts]
        return any(is_cut) or sum(part.counted_byte_count for part in parts) >= min_bytes

    def _check_all(self) -> None:
        cache, isolation_level = self._cache, self._request.body.isolation_level
        for part in self._parts:
            part.error = self._error(part)
            part.diverging, part.preferred_replica = None, -1
            if part.error is not ErrorCode.none:
                continue
            local_start = cache.raft_node.replica.log.log_start_offset
            part.is_remote = part.partition.fetch_offset < local_start
            if part.partition.last_fetched_epoch >= 0:
                part.diverging, part.error = _divergence(cache, part.partition)
                if self._is_from_follower and part.is_final:
                    # its log may end with records that were never committed
                    part.diverging, part.error = None, ErrorCode.not_leader_or_follower
            part.end_offset = cache.readable_end(isolation_level)
            part.preferred_replica = self._preferred_replica(part)

    def _preferred_replica(self, part: _Part) -> int:
        rack = self._request.body.rack
        if not rack or part.is_final:
            return -1
        return or_minus_one(self._cache.preferred_replica(rack, part.partition.fetch_offset))

    @property
    def _is_from_follower(self) -> bool:
        """Whether this node serves the request as a follower."""
        has_rack = self._request.body.rack and self._cache.identity.rack
        return bool(has_rack) and not self._cache.is_leader

    def _error(self, part: _Part) -> ErrorCode:
        cache, partition = self._cache, part.partition
        if not self._request.principal.may(Operation.READ, cache.topic):
            return ErrorCode.topic_authorization_failed
        error = cache.topic_error(part.topic.topic_id, part.topic.name, partition.partition)
        if error is ErrorCode.none and self._is_from_follower:
            return cache.follower_error(partition.current_leader_epoch, partition.fetch_offset)
        if error is ErrorCode.none:
            error = cache.leader_error(partition.current_leader_epoch)
        if error is not ErrorCode.none:
            return error
        log = cache.raft_node.replica.log
        if not cache.remote.start_offset <= partition.fetch_offset <= log.end_offset:
            return ErrorCode.offset_out_of_range
        return ErrorCode.none

    def _count(self, part: _Part) -> bool:
        """Count bytes that became readable; return whether a response cannot hold all of them."""
        if part.counted_offset >= part.end_offset:
            return False
        body = self._request.body
        limit = min(self._byte_count_max, part.partition.max_bytes)
        left = max(min(body.min_bytes, limit) - part.counted_byte_count, 0)
        try:
            data, part.counted_offset = _batches(
                self._cache, part.counted_offset, part.end_offset, left
            )
        except LogError:
            return True  # _read reports the error
        part.counted_byte_count += len(data)
        return bool(data) and part.counted_offset < part.end_offset

    # --- waiting for memory -----------------------------------------------------------------------

    def complete(self) -> None:
        """Respond once there is memory for the records; without records after ``ROOM_WAIT_MS``."""
        memory = self._request.session.memory
        if memory.has_room or any(part.is_final for part in self._parts):
            self._respond_with_room()
            return
        self._request.session.fetches[self] = None
        self._has_room_by = asyncio.get_running_loop().call_later(
            ROOM_WAIT_MS / 1000, self._respond_without_records
        )
        memory.wait(self._look_for_room_soon)

    def _look_for_room_soon(self) -> None:
        """Look for memory in the next iteration; another response may take it before that."""
        asyncio.get_running_loop().call_soon(self._look_for_room)

    def _look_for_room(self) -> None:
        if self._has_room_by is None:
            return  # it has ended
        memory = self._request.session.memory
        if memory.has_room:
            self._respond_with_room()
        else:
            memory.wait(self._look_for_room_soon)

    def _end_wait(self) -> None:
        session = self._request.session
        session.fetches.pop(self, None)
        if self._has_room_by is not None:
            self._has_room_by.cancel()
            self._has_room_by = None
            session.memory.cancel_wait(self._look_for_room_soon)

    # --- remote storage ---------------------------------------------------------------------------

    def _respond_with_room(self) -> None:
        """Respond; if a partition's records are in remote storage, once they are read.

        Other responses may use up the memory in the meantime. Then the records are dropped, and
        read again later.

        Kafka: ``DelayedRemoteFetch``, which also reads one partition.
        """
        part = next((one for one in self._parts if one.is_remote and not one.is_final), None)
        if part is None:
            self._respond_with_records()
            return
        self._end_wait()
        self._request.session.fetches[self] = None
        offset = part.partition.fetch_offset
        byte_count_max = min(self._byte_count_max, max(part.partition.max_bytes, 0))

        def read(reader: RemoteReader) -> bytes:
            return reader.read_bytes(offset, byte_count_max)

        def done(reading: asyncio.Future[bytes]) -> None:
            self._reading = None
            if self not in self._request.session.fetches or reading.cancelled():
                return  # the connection is lost, or the node ends
            error = reading.exception()
            if error is not None and not isinstance(error, RaftlogError):
                self._end_wait()
                self._request.attempt(reading.result)
                return
            if not self._request.session.memory.has_room:
                self.complete()
                return
            part.fetched = reading.result() if error is None else error
            self._respond_with_records()

        self._reading = self._cache.remote.read(read)
        self._reading.add_done_callback(done)

    # --- response ---------------------------------------------------------------------------------

    def _respond(self, build: Callable[[], FetchResponse]) -> None:
        self._end_wait()
        self._request.attempt(lambda: self._send(build()))

    def _send(self, response: FetchResponse) -> None:
        """Send a response; without its records if the client exceeds a quota."""
        request = self._request
        parts = encode_fetch_response(request.version, response)
        throttle_ms, has_records = self._cache.quotas.throttle_fetch(request, sum(map(len, parts)))
        if throttle_ms:
            if not has_records:
                response = response._replace(topics=list(map(_without_records, response.topics)))
            response = response._replace(throttle_time_ms=throttle_ms)
            parts = encode_fetch_response(request.version, response)
        request.respond(parts)

    def _respond_with_records(self) -> None:
        self._respond(lambda: self._build(has_room=True))

    def _respond_without_records(self) -> None:
        self._respond(lambda: self._build(has_room=False))

    def _build(self, *, has_room: bool) -> FetchResponse:
        self._check_all()
        self._count_fetch()
        if has_room:
            self._read()
        errors = (part.error for part in self._parts)
        denied = next((one for one in errors if one in AUTHORIZATION_ERRORS), None)
        if denied is not None:
            principal, where = self._request.principal, self._request.connection.where
            self._cache.audit.refused(principal, where, denied.name, "FETCH")
        return self._response()

    def _count_fetch(self) -> None:
        """Count the fetch if a node other than the leader answers it, or should."""
        node = self._cache.raft_node
        if any(part.preferred_replica >= 0 for part in self._parts):
            node.counts.redirected_fetches += 1
        elif self._is_from_follower and not any(part.error for part in self._parts):
            node.counts.follower_fetches += 1

    def _read(self) -> None:
        """Read as many bytes as fit; at least one batch of the first partition with records."""
        left = self._byte_count_max
        is_first = True
        for part in self._parts:
            part.records = b""
            if part.is_final or part.partition.fetch_offset >= part.end_offset:
                continue
            byte_count_max = min(left, max(part.partition.max_bytes, 0))
            if part.is_remote:
                self._take_fetched(part)
                is_first = False
                left = 0
                continue
            try:
                data, _ = _batches(
                    self._cache, part.partition.fetch_offset, part.end_offset, byte_count_max
                )
            except LogError as error:
                part.error = self._cache.read_error(error)
                continue
            if not is_first and len(data) > byte_count_max:
                continue
            part.records = data
            left -= min(len(data), left)
            is_first = False

    def _take_fetched(self, part: _Part) -> None:
        """Set the records, or the error, of a partition that was read from remote storage; no
        records if another one was read."""
        error = part.fetched if isinstance(part.fetched, RaftlogError) else None
        if error is not None or part.fetched == b"":
            # empty: the directory has no list of remote segments, or is no longer a log's
            part.error = ErrorCode.kafka_storage_error
            if error is not None:
                part.error = self._cache.read_error(error)
            if self._is_from_follower:  # its list may contain segments that the leader has deleted
                part.error = ErrorCode.not_leader_or_follower
        elif isinstance(part.fetched, bytes):
            offset = part.partition.fetch_offset
            part.records, _ = _whole_batches(part.fetched, offset, part.end_offset)

    def _response(self) -> FetchResponse:
        topics: dict[tuple[bytes, str], list[FetchedPartition]] = {}
        for part in self._parts:
            found = topics.setdefault((part.topic.topic_id, part.topic.name), [])
            found.append(self._partition(part))
        has_leader = any(part.error in WITH_LEADER for part in self._parts)
        return FetchResponse(
            [FetchedTopic(topic_id, name, found) for (topic_id, name), found in topics.items()],
            endpoints=self._cache.leader_endpoints() if has_leader else (),
        )

    def _partition(self, part: _Part) -> FetchedPartition:
        cache, index = self._cache, part.partition.partition
        log = cache.raft_node.replica.log
        if part.error is ErrorCode.none:
            is_committed = self._request.body.isolation_level == READ_COMMITTED
            diverging = part.diverging
            return FetchedPartition(
                index,
                high_watermark=cache.high_watermark,
                last_stable_offset=cache.last_stable_offset,
                log_start_offset=cache.remote.start_offset,
                aborted=() if is_committed else None,
                preferred_replica=part.preferred_replica,
                records=part.records,
                diverging=NO_END if diverging is None else (diverging.epoch, diverging.offset),
                compacted_offset=log.compacted_offset,
            )
        leader = snapshot = NO_END
        if part.error in WITH_LEADER:
            leader = or_minus_one(cache.leader_id()), cache.core.epoch
        if part.error is ErrorCode.offset_out_of_range and log.snapshots:
            # as a controller of Kafka; consumers ignore it
            newest = log.snapshots[-1]
            if part.partition.fetch_offset < log.log_start_offset:
                snapshot = newest.epoch, newest.end_offset
        return FetchedPartition(
            index, part.error, aborted=None, records=b"", leader=leader, snapshot=snapshot
        )


def _parts(body: FetchRequest) -> list[_Part]:
    """Return the requested partitions, each once."""
    found: dict[tuple[object, ...], _Part] = {}
    for topic in body.topics:
        for one in topic.partitions:
            found[(topic.topic_id, topic.name, one.partition)] = _Part(
                topic=topic, partition=one, counted_offset=one.fetch_offset
            )
    return list(found.values())


def _without_records(topic: FetchedTopic) -> FetchedTopic:
    return topic._replace(partitions=[one._replace(records=b"") for one in topic.partitions])


def _divergence(
    cache: MetadataCache, partition: FetchPartition
) -> tuple[OffsetAndEpoch | None, ErrorCode]:
    """Return where the consumer's records diverge from this log, if they do."""
    log = cache.raft_node.replica.log
    end = log.epochs.end_offset_for(partition.last_fetched_epoch, log.end_offset)
    if end is None:
        return None, ErrorCode.offset_out_of_range
    if end.epoch < partition.last_fetched_epoch or end.offset < partition.fetch_offset:
        return end, ErrorCode.none
    return None, ErrorCode.none


def _batches(
    cache: MetadataCache, offset: int, end_offset: int, byte_count_max: int
) -> tuple[bytes, int]:
    """Return whole batches below ``end_offset``, from the one that contains ``offset`` on, and the
    offset after them. An invalid batch length is damage: only the batches before it are returned.
    """
    log = cache.raft_node.replica.log
    data = log.read_bytes(offset, byte_count_max)
    if not data:
        data = log.read_bytes(log.base_offset_at(offset), byte_count_max)
    return _whole_batches(data, offset, end_offset)


def _whole_batches(data: bytes, offset: int, end_offset: int) -> tuple[bytes, int]:
    """Return the whole batches of ``data`` below ``end_offset``, and the offset after them."""
    position, next_offset = 0, offset
    while position + _BASE_AND_LENGTH.size <= len(data):
        base_offset, length = _BASE_AND_LENGTH.unpack_from(data, position)
        after = position + length + LOG_OVERHEAD_BYTES
        is_batch = length >= BATCH_HEADER_BYTES - LOG_OVERHEAD_BYTES
        if not is_batch or base_offset >= end_offset or after > len(data):
            break
        (last_delta,) = _LAST_DELTA.unpack_from(data, position + _LAST_DELTA_POSITION)
        position, next_offset = after, base_offset + last_delta + 1
    return data[:position], next_offset
