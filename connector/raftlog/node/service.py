"""Services: state machines of a node's log, and the requests that the node passes to them.

The caller of ``run_node`` registers services, so that the node does not depend on them. A service
follows the log as a ``RaftListener``, and appends through ``RaftClient``. Its handlers run on the
node's event loop. The node decodes requests, encodes responses, and keeps their order.

A handler may replace one of the node's own. If a service ``owns_log``, the node accepts no appends
from clients; only the service writes.

Kafka: ``ControllerServer``, which registers its controller and its ``ControllerApis``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from raftlog.limits import WIRE_ELEMENTS_MAX
from raftlog.log.writing.properties import LogConfig
from raftlog.wire import NO_FEATURES, Api, ApiKey, Features

from .access import Authorizer, Principal
from .client_quotas import QuotaLimits
from .config import NodeConfig
from .raft_client import RaftClient, RaftListener
from .request import Request
from .sasl import LogCredentials


@dataclass(frozen=True, slots=True)
class Figure:
    """Metric of a service. ``name`` includes the unit, but not the prefix ``raftlog_``."""

    name: str
    help_text: str
    value: float
    is_counter: bool = False


APPENDING_APIS: Final = (
    ApiKey.PRODUCE,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.OFFSET_COMMIT,
    ApiKey.DELETE_GROUPS,
    ApiKey.OFFSET_DELETE,
)
"""APIs of clients that append."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHandler:
    """Handler of one API. ``request_class``: the class of its requests in the newest version.

    ``handle`` returns the response, or the bytes of its body.

    ``is_large``: long requests are decoded, and responses encoded, in the node's executor instead
    of on the event loop. Then the requests of one connection do not keep their order.
    """

    api: Api
    request_class: type[Any]
    handle: Callable[[Request[Any]], Awaitable[object]]
    elements_max: int = WIRE_ELEMENTS_MAX
    """Maximum number of elements of all arrays in a request together."""
    is_large: bool = False
    describe_change: Callable[[Request[Any]], object | None] = lambda _: None
    """Arguments, without secrets, of a request that changes something, for the audit log; None for
    other requests. It may also be None for a request that is denied."""


class LogAccess(Authorizer, LogCredentials, QuotaLimits, Protocol):
    """ACLs, credentials and quotas in the log."""

    def connection_rate(self, host: str) -> float | None:
        """Return how many connections an address may open per second; None without a quota."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """State machine of a node's log, and its request handlers by API key."""

    listener: RaftListener
    handlers: Mapping[int, RequestHandler] = field(default_factory=dict)
    features: Callable[[], Features] = lambda: NO_FEATURES
    """Features for responses to ApiVersions requests."""
    figures: Callable[[], Sequence[Figure]] = lambda: ()
    warnings: Callable[[], Sequence[str]] = lambda: ()
    """Warnings for an operator, for responses to DescribeQuorum requests."""
    owns_log: bool = False
    access: LogAccess | None = None
    """ACLs and credentials in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """Functions and values that a node offers to a service, for use on its event loop.

    - ``log_config``: the current settings of the log.
    - ``committed_at_start``: see ``QuorumCore``.
    - ``reauthenticate``: closes connections whose credentials have changed.
    - ``sync_snapshot``: syncs a snapshot in another thread, then calls its second argument with the
      error on the event loop.
    - ``ask_leader``: sends a request to the leader's listener for voters, and returns the response,
      an instance of the third argument; raises ``OSError``, ``EOFError`` and ``WireError``.
    - ``forwarded_principal``: returns the principal of a request that another node authenticated
      and forwarded, given that node's principal, the name and the client's address.
    - ``forwarded_audit``: logs a forwarded request in the audit log, given both principals, the
      name of its API and its arguments (like ``AuditLog.answered``), and returns a function that
      logs the response.
    - ``token_secret``: secret key of delegation tokens; None without one.
    - ``log_line``: logs an event with a level and a text.
    """

    config: NodeConfig
    log_config: Callable[[], LogConfig]
    cluster_id: str
    log: RaftClient
    committed_at_start: Callable[[], int | None]
    reauthenticate: Callable[[], int]
    sync_snapshot: Callable[[Callable[[], None], Callable[[Exception | None], None]], None]
    ask_leader: Callable[[ApiKey, object, type[Any]], Awaitable[Any]]
    forwarded_principal: Callable[[Principal, str, str], Principal]
    forwarded_audit: Callable[[Principal, Principal, str, object | None], Callable[[object], None]]
    token_secret: str | None = field(repr=False)
    log_line: Callable[[str, str, str], None]


CreateService: TypeAlias = Callable[[NodeContext], Service | None]
