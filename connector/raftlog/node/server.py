"""Server of a node: accepts connections, enforces limits, dispatches requests.

1. A connection is counted (``connection_quotas``) before any byte is read. It must authenticate
   within ``handshake_ms``. Connections are closed if they are idle or if the peer stalls within a
   request or response; slow ones are closed earlier if other connections wait for memory.
2. The replica handles replicas' requests, and ``ClientApis`` handles clients' requests. A Fetch is
   a replica's if its replica id is not negative.
3. Voters have their own memory pool, so that clients cannot delay votes. In either pool every
   principal has a share; without an authenticated principal, every host has one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakValueDictionary

from raftlog.wire import (
    QUORUM_APIS,
    SASL_APIS,
    Api,
    ApiKey,
    Listener,
    encode_versions_response,
)

from .access import ANONYMOUS, Principal, Rights
from .apis.client_apis import ClientApis
from .audit import AuditLog
from .config import LimitsConfig
from .connection import Connection, FlushQueue, RequestQueue, TransferDeadline
from .connection_quotas import QUOTA, ConnectionQuotas, CountedConnection, LimitExceeded
from .errors import NodeAddressError
from .event_loop import NodeEventLoop, RestrictedSocket
from .memory_pool import MemoryPool
from .raft_node import RaftNode
from .raft_request_handler import RaftRequestHandler
from .request import Request
from .sasl import SaslAuthenticator, SaslStateError

_BACKLOG: Final = 1024
ACCEPTED_PER_TURN: Final = 16
"""Connections to accept in one turn while the pool of peers without any right is full."""
_PAUSE_AFTER_FAILURE_S: Final = 0.1
_CHECKS: Final = 4
"""Number of checks for overdue connections within the shortest timeout."""
_CHECK_S_MAX: Final = 1.0
_RELIEF: Final = 4
"""While connections wait for memory, each check frees about 1/4 of the pool."""
_NO_RIGHT: Final = (
    "not authorized in time: the TLS handshake is incomplete, or [access] gives the certificate no "
    "right"
)
_DESCRIPTORS: Final = "open files"
_API_KEYS: Final = {int(key): key for key in ApiKey}
_API_NAMES: Final = {key: key.name for key in ApiKey}
"""API names by number. For each request, an enumeration's call and its member's name would take
several times as long."""
_NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSocket:
    """Address to bind.

    ``tls`` is called for each connection, so that certificates can be reloaded. ``authenticate``
    returns the principal for a certificate, or for a user that has authenticated with SASL, at an
    address; None to refuse the connection. ``sasl`` begins the SASL authentication of a connection.
    """

    host: str
    port: int
    listener: Listener
    authenticate: Callable[[ssl.SSLObject | None, str | None, str], Principal | None]
    sasl: Callable[[], SaslAuthenticator] | None = None
    tls: Callable[[], ssl.SSLContext | None] = lambda: None


@dataclass(slots=True)
class ServerMetrics:
    """Counters for metrics."""

    connections: int = 0
    refused_connections: Counter[str] = field(default_factory=Counter)
    """Refused connections by limit."""
    closed_connections: Counter[str] = field(default_factory=Counter)
    """Closed connections by reason."""
    requests: Counter[str] = field(default_factory=Counter)


class Server:
    """Listeners and connections of a node, on the running event loop."""

    def __init__(
        self,
        raft_node: RaftNode,
        apis: ClientApis,
        listener_sockets: list[ListenerSocket],
        limits: LimitsConfig,
        log_event: Callable[[str, str, str], None],
        audit: AuditLog,
        flush_queue: FlushQueue,
        has_descriptors: Callable[[], bool] = lambda: True,
    ) -> None:
        """``has_descriptors`` returns whether the log's reserve of file descriptors is free."""
        self.metrics: Final = ServerMetrics()
        self._raft_node = raft_node
        self._apis = apis
        sasl_apis = {key: Api(key=ApiKey(key), clients=at) for key, at in SASL_APIS.items()}
        self._apis_with_sasl: Final[Mapping[int, Api]] = {**apis.served, **sasl_apis}
        self._raft_handler = RaftRequestHandler(raft_node, log_event, audit, apis.quotas)
        self._listener_sockets = listener_sockets
        self._limits = limits
        self.clients_memory: Final = MemoryPool(limits.queued_bytes_max)
        self.voters_memory: Final = MemoryPool(limits.queued_bytes_max)
        self._log_event = log_event
        self._audit = audit
        self._has_descriptors = has_descriptors
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: set[Connection] = set()
        self._entered: dict[Connection, CountedConnection] = {}
        """Connections of listeners with SASL, until they are closed."""
        self._restricted: dict[CountedConnection, RestrictedSocket] = {}
        """Sockets of connections without any right; others are served first."""
        self._flush_queue: Final = flush_queue
        self._iteration = self._loop.iteration if isinstance(self._loop, NodeEventLoop) else None
        self._unprivileged_queue: Final = RequestQueue(self._loop, is_unprivileged=True)
        self._request_queues: WeakValueDictionary[str, RequestQueue] = WeakValueDictionary()
        """Queues of principals with a right, by the key of their memory share."""
        self._versions_responses: dict[tuple[int, Listener, bool], bytes] = {}
        self._versions_state: object = None
        """The features that the stored responses to ApiVersions contain."""
        self.quotas: Final = ConnectionQuotas(limits)
        self.wall_s: Callable[[], float] = time.time
        """Clock for the validity of certificates, in seconds since 1970."""

    @property
    def connections(self) -> tuple[Connection, ...]:
        """Return the open connections."""
        return tuple(self._connections)

    def reauthenticate(self) -> int:
        """Close connections whose principal changed, after their responses; return how many."""
        found = [one for one in self._connections if one.needs_reauthentication]
        for connection in found:
            connection.finish()
        return len(found)

    # --- listening --------------------------------------------------------------------------------

    def listen(self) -> list[int]:
        """Bind all listeners and return their ports. Raises ``NodeAddressError``."""
        for listener_socket in self._listener_sockets:
            self._sockets.append(_listening(listener_socket.host, listener_socket.port))
        for listener_socket, listening in zip(self._listener_sockets, self._sockets, strict=True):
            self._start(self._accept(listener_socket, listening))
        self._start(self._close_idle_connections())
        return [one.getsockname()[1] for one in self._sockets]

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self, *, timeout_ms: int) -> None:
        """Stop accepting, wait up to ``timeout_ms`` for responses in flight, and close."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:  # before their sockets are closed, after which others may get their descriptors
            await asyncio.wait(tasks)
        for listening in self._sockets:
            listening.close()
        for connection in list(self._connections):
            connection.finish()
        deadline_s = self._loop.time() + timeout_ms / 1000
        while self._connections and self._loop.time() < deadline_s:
            await asyncio.sleep(0.005)
        for connection in list(self._connections):
            connection.abort()

    async def _accept(self, listener_socket: ListenerSocket, listening: socket.socket) -> None:
        self._restrict(listening, listener_socket, "listener")
        while True:
            await self._wait_until_readable(listening)
            while not self._has_descriptors():
                self._note_no_descriptor()
                await asyncio.sleep(_PAUSE_AFTER_FAILURE_S)
            try:
                peer, address = await self._loop.sock_accept(listening)
            except OSError as error:
                if listening.fileno() < 0:
                    return
                if error.errno in _NO_DESCRIPTOR:
                    self._note_no_descriptor()
                else:  # one lost connection, or a network that is down
                    self._log_refused("all peers", error.strerror or str(error))
                await asyncio.sleep(_PAUSE_AFTER_FAILURE_S)
                continue
            self._enter(listener_socket, peer, address)
            if self.quotas.is_full(listener_socket.listener):
                self._accept_known(listener_socket, listening)

    def _accept_known(self, listener_socket: ListenerSocket, listening: socket.socket) -> None:
        """Accept more connections in the same turn, up to the first one from a known address, and
        refuse the others. The kernel has all of them in one queue, in which a known address would
        otherwise wait one turn for each.
        """
        for _ in range(ACCEPTED_PER_TURN - 1):
            if not self._has_descriptors():
                return
            try:
                peer, address = listening.accept()
            except OSError:  # there is no connection, or the next turn logs the error
                return
            if self._enter(listener_socket, peer, address, may_replace=False):
                return

    async def _wait_until_readable(self, listening: socket.socket) -> None:
        """Wait until the event loop returns a listener; otherwise the whole backlog would be
        accepted before requests of other connections are handled."""
        is_readable = asyncio.Event()
        self._loop.add_reader(listening, is_readable.set)
        try:
            await is_readable.wait()
        finally:
            self._loop.remove_reader(listening)

    def _restrict(
        self,
        one: socket.socket,
        listener_socket: ListenerSocket,
        kind: str,
        address: str | None = None,
    ) -> RestrictedSocket | None:
        """Serve a socket after those of connections with a right, in a process's event loop. A
        listener's kinds of sockets take turns."""
        if isinstance(self._loop, NodeEventLoop):
            return self._loop.restrict(one.fileno(), (id(listener_socket), kind), address)
        return None

    def _release(self, entered: CountedConnection) -> None:
        restricted = self._restricted.pop(entered, None)
        if restricted is not None and isinstance(self._loop, NodeEventLoop):
            self._loop.release(restricted)

    def _note_no_descriptor(self) -> None:
        """Log that no connection is accepted: the remaining descriptors are for the log's files."""
        self.metrics.refused_connections[_DESCRIPTORS] += 1
        reason = "too many open files: no connection is accepted until file descriptors are free"
        self._log_event("limit", _DESCRIPTORS, reason)
        self.quotas.close_oldest_unprivileged()

    def _enter(
        self,
        listener_socket: ListenerSocket,
        peer: socket.socket,
        peer_address: tuple[Any, ...],
        *,
        may_replace: bool = True,
    ) -> bool:
        """Start the handshake with a peer, if the limits allow it; return whether they do."""
        host, where = str(peer_address[0]), f"{peer_address[0]}:{peer_address[1]}"

        def close() -> None:
            self.metrics.closed_connections["no right"] += 1
            self._log_refused(where, _NO_RIGHT)
            self._loop.call_soon(handshake.cancel)  # before its first step it would skip `finally`

        entered = self.quotas.enter(
            listener_socket.listener, host, close, self._loop.time(), may_replace=may_replace
        )
        if isinstance(entered, LimitExceeded):
            self._refuse(entered, where)
            peer.close()
            return False
        self.metrics.connections += 1
        kind = "known" if entered.is_known else "unknown"
        restricted = self._restrict(peer, listener_socket, kind, entered.address)
        if restricted is not None:
            self._restricted[entered] = restricted
        handshake = self._start(self._handshake(listener_socket, peer, entered, host, where))
        return True

    def _refuse(self, refusal: LimitExceeded, where: str) -> None:
        """Count and log a refused connection; log lines are throttled for each limit."""
        self.metrics.refused_connections[refusal.limit] += 1
        reason = f"connection from {where} refused: {refusal.reason}"
        limit = refusal.limit if refusal.limit == QUOTA else f"limits.{refusal.limit}"
        self._log_event("limit", limit, reason)
        self._audit.refused(None, where, limit)

    def _log_refused(self, where: str, reason: str) -> None:
        """Log a refused connection."""
        self._log_event("refused", where, reason)
        self._audit.refused(None, where, reason)

    async def _handshake(
        self,
        listener_socket: ListenerSocket,
        peer: socket.socket,
        entered: CountedConnection,
        host: str,
        where: str,
    ) -> None:
        """Perform the TLS handshake; then asyncio drives the connection."""
        is_known = False

        def authenticate(transport: asyncio.Transport) -> Principal | None:
            nonlocal is_known
            user = None if sasl is None else sasl.user
            ssl_object = transport.get_extra_info("ssl_object")
            principal = listener_socket.authenticate(ssl_object, user, host)
            was_known, is_known = is_known, True
            if was_known or (sasl is not None and principal is not None):
                return principal  # for needs_reauthentication, or until SASL
            return self._admit(entered, principal, where)

        sasl = None if listener_socket.sasl is None else listener_socket.sasl()
        connection = Connection(
            sasl=sasl,
            where=where,
            authenticate=authenticate,
            handle=self._handle,
            closed=lambda connection: self._closed(connection, entered),
            log_event=self._log_event,
            apis=self._served(has_sasl=sasl is not None),
            frame_bytes_max=self._frame_bytes_max,
            in_flight_max=self._limits.requests_in_flight_max,
            memory_share=lambda principal: self._memory_of(principal).share_of(
                _memory_key(principal, host)
            ),
            deadline=TransferDeadline(
                self._limits.stalled_ms / 1000, self._limits.bytes_per_second_min
            ),
            flush_queue=self._flush_queue,
            request_queue=lambda principal: self._request_queue_of(principal, host),
        )
        self._connections.add(connection)
        if sasl is not None:
            self._entered[connection] = entered
        tls = listener_socket.tls()
        try:
            peer.setblocking(False)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # detects vanished peers
            await self._loop.connect_accepted_socket(
                lambda: connection,
                peer,
                ssl=tls,
                ssl_handshake_timeout=self._limits.handshake_ms / 1000 if tls else None,
            )
        except (OSError, ssl.SSLError) as error:
            self._log_refused(where, _handshake_reason(error))
        finally:
            if not is_known:
                peer.close()
                self._remove(connection, entered)
            elif entered.pool is None:
                entered.close = lambda: self._abort_connection(connection, "no right", _NO_RIGHT)

    def _admit(
        self, entered: CountedConnection, principal: Principal | None, where: str
    ) -> Principal | None:
        """Return the principal of a connection if its rights and the limits allow it."""
        if principal is None:
            self._log_refused(where, "the peer is not authenticated")
            return None
        if not principal.is_decided:
            self._log_refused(where, "the ACLs of the log are not loaded yet")
            return None
        refusal = self.quotas.admit(entered, principal)
        if refusal is not None:
            self._refuse(refusal, where)
            return None
        if entered.pool is not None:
            self._release(entered)
        self._audit.connected(principal, where)
        return principal

    def _closed(self, connection: Connection, entered: CountedConnection) -> None:
        self._raft_node.throttled.remove(connection)
        refusal = None if connection.sasl is None else connection.sasl.unacknowledged_refusal
        if refusal is not None:
            self._log_sasl_failure(connection, refusal)
        for number in connection.raft_request_ids:
            self._raft_node.drop(number)
        self._remove(connection, entered)

    def _remove(self, connection: Connection, entered: CountedConnection) -> None:
        """Remove a connection that is closed, or whose handshake has failed."""
        self._connections.discard(connection)
        self._entered.pop(connection, None)
        self._release(entered)
        self.metrics.connections -= 1
        self.quotas.leave(entered)

    def _served(self, *, has_sasl: bool) -> Mapping[int, Api]:
        return self._apis_with_sasl if has_sasl else self._apis.served

    def _frame_bytes_max(self, principal: Principal) -> int:
        """Return the size limit of a request, which is small unless the principal may append,
        replicate or administer."""
        limits = self._limits
        sends_much = principal.possible_rights & (Rights.APPEND | Rights.VOTE | Rights.ADMIN)
        return limits.frame_bytes_max if sends_much else limits.stranger_frame_bytes_max

    def _memory_of(self, principal: Principal) -> MemoryPool:
        return self.voters_memory if principal.rights & Rights.VOTE else self.clients_memory

    def _request_queue_of(self, principal: Principal, host: str) -> RequestQueue:
        if principal.possible_rights is Rights.NONE:
            return self._unprivileged_queue
        key = _memory_key(principal, host)
        found = self._request_queues.get(key)
        if found is None:
            found = RequestQueue(self._loop, is_unprivileged=False, iteration=self._iteration)
            self._request_queues[key] = found
        return found

    async def _close_idle_connections(self) -> None:
        """At intervals, close connections that are stalled, idle or too old, whose certificate has
        expired, or that hold memory that others wait for."""
        limits, idle_s = self._limits, self._limits.idle_ms / 1000
        age_s_max = limits.connection_age_max_ms / 1000 or math.inf
        shortest_s = min(limits.idle_ms, limits.stalled_ms, limits.handshake_ms) / 1000
        while True:
            await asyncio.sleep(min(shortest_s / _CHECKS, _CHECK_S_MAX))
            now_s = self._loop.time()
            self.quotas.close_overdue(now_s)
            self._audit.write_due()
            for connection in list(self._connections):
                if connection.is_stalled(now_s):
                    reason = "the peer stalled inside a request, or does not read its responses"
                    self._abort_connection(connection, "stalled", reason)
                    continue
                if now_s - connection.began_s > age_s_max:
                    self._end_connection(connection, "age")
                elif connection.has_expired(self.wall_s()):
                    self._end_connection(connection, "certificate expired")
                silent_s = now_s - connection.last_request_s
                if connection.in_flight_count or silent_s <= idle_s:
                    continue
                if silent_s > 2 * idle_s:  # it does not read its last responses either
                    connection.abort()
                else:
                    connection.finish()
            self._free_memory(now_s)

    def _end_connection(self, connection: Connection, why: str) -> None:
        """Close a connection after the responses to its requests."""
        if not connection.is_finishing:
            self.metrics.closed_connections[why] += 1
            connection.finish()

    def _free_memory(self, now_s: float) -> None:
        """While connections wait for memory, close those that hold the most and whose peers are too
        slow to send or read it within ``stalled_ms``."""
        slow: dict[MemoryPool, list[Connection]] = {}
        for connection in self._connections:
            left_s = connection.measure_remaining_s(now_s)
            share = connection.memory_share
            if left_s is None or share is None or not connection.is_open:
                continue
            if left_s * 1000 <= self._limits.stalled_ms:
                continue
            slow.setdefault(share.pool, []).append(connection)
        for pool, connections in slow.items():
            wanted = pool.byte_count_max // _RELIEF if pool.waiting_count else 0
            for connection in sorted(
                connections, key=lambda one: one.memory.byte_count, reverse=True
            ):
                if wanted <= 0:
                    break
                wanted -= connection.memory.byte_count
                reason = "the peer is too slow, and other connections wait for memory that it holds"
                self._abort_connection(connection, "memory", reason)

    def _abort_connection(self, connection: Connection, why: str, reason: str) -> None:
        self.metrics.closed_connections[why] += 1
        self._log_event("refused", connection.where, reason)
        connection.abort()

    # --- requests ---------------------------------------------------------------------------------

    def _handle(self, connection: Connection, request: Request[Any]) -> None:
        """Dispatch a request. Raises ``MalformedMessageError``."""
        key = _API_KEYS[request.header.api_key]
        self.metrics.requests[_API_NAMES[key]] += 1
        if connection.sasl is not None:
            self._check_session(connection, connection.sasl, request)
            if key in SASL_APIS:
                self._authenticate(connection, connection.sasl, request)
                return
        if key is ApiKey.FETCH:
            request.body = self._raft_handler.handle_fetch(connection, request)
            if request.body is not None:
                self._apis.start(request)
            return
        if key is ApiKey.API_VERSIONS:
            request.attempt(lambda: request.respond(self._versions(connection, request)))
        elif key in QUORUM_APIS:
            self._raft_handler.handle(connection, request)
        else:
            self._apis.start(request)

    def _check_session(
        self, connection: Connection, sasl: SaslAuthenticator, request: Request[Any]
    ) -> None:
        """Raise ``SaslStateError``, and log it for audit, if a request may not be served now."""
        key = ApiKey(request.header.api_key)
        try:
            sasl.check(key, self._loop.time())
        except SaslStateError as error:
            self.metrics.closed_connections["sasl"] += 1
            principal = request.principal if sasl.is_authenticated else None
            self._audit.refused(principal, connection.where, error.message(), key.name)
            raise

    def _authenticate(
        self, connection: Connection, sasl: SaslAuthenticator, request: Request[Any]
    ) -> None:
        """Handle a SASL request. Raises ``MalformedMessageError``."""
        was_authenticated = sasl.is_authenticated
        body, reason = sasl.handle(request, self._loop.time())
        principal = None
        if reason is None and sasl.is_authenticated:
            principal = connection.authenticate_again()
            if principal is None:
                reason = "the peer is not authenticated"
            elif not was_authenticated:
                principal = self._admit(self._entered[connection], principal, connection.where)
        if principal is not None:
            connection.change_principal(principal)
        request.respond(body)
        if reason is not None:
            self._log_sasl_failure(connection, reason)
        if principal is None and (reason is not None or sasl.is_authenticated):
            connection.finish()

    def _log_sasl_failure(self, connection: Connection, reason: str) -> None:
        self.metrics.closed_connections["sasl"] += 1
        self._log_refused(connection.where, f"SASL: {reason}")

    def _versions(self, connection: Connection, request: Request[Any]) -> bytes:
        """Return the response to ApiVersions. A response without a throttle time is kept until
        features change, with the epoch as of which they are the same, because peers without any
        right may request it."""
        core = self._raft_node.replica.core
        known = core.voters_at(core.high_watermark or 0)
        features, kraft_version = self._apis.features(), None if known is None else known[1]
        state = features, kraft_version, core.high_watermark is None
        if state != self._versions_state:
            self._versions_state = state
            self._versions_responses.clear()
        has_sasl = connection.sasl is not None
        key = request.version, request.principal.listener, has_sasl
        throttle_time_ms = self._apis.quotas.throttle(request)
        found = self._versions_responses.get(key)
        if found is None or throttle_time_ms:
            found = encode_versions_response(
                request.version,
                request.principal.listener,
                kraft_version=kraft_version,
                features_epoch=core.high_watermark,
                apis=self._served(has_sasl=has_sasl),
                features=features,
                throttle_time_ms=throttle_time_ms,
            )
        if not throttle_time_ms:
            self._versions_responses[key] = found
        return found


def _memory_key(principal: Principal, host: str) -> str:
    """Return the key of a memory share: the authenticated principal, or else the peer's host."""
    return f"host {host}" if principal.name in ("", ANONYMOUS) else f"name {principal.name}"


def _handshake_reason(error: OSError) -> str:
    """Return why a handshake has failed."""
    if isinstance(error, ssl.SSLError) and error.reason == "UNSUPPORTED_PROTOCOL":
        return "the peer's version of TLS is below min_version in the tls of the listener"
    return str(error) or "the peer closed the connection"


def _listening(host: str, port: int) -> socket.socket:
    """Return a listening socket on the first address of a host. Raises ``NodeAddressError``."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
        with contextlib.ExitStack() as unless_it_works:
            unless_it_works.callback(listening.close)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(_BACKLOG)
            listening.setblocking(False)
            unless_it_works.pop_all()
        return listening
    except OSError as error:
        reason = error.strerror or str(error)
        raise NodeAddressError(host=host, port=port, reason=reason) from None
