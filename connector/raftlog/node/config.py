"""How a node is configured: one TOML file.

```toml
# node.toml: one node of three. Paths are relative to this file.
[node]
id = 1
directory = "data"                      # made by `raftlog node format`
topic = "decisions"                     # default "raftlog": what clients call the log
bootstrap_servers = ["10.0.0.1:9193", "10.0.0.2:9193", "10.0.0.3:9193"]
retention_check_interval_ms = 300000    # how often retention is looked at
# instead of formatting with --standalone or --initial-voters, voters that never change:
# static_voters = ["1@10.0.0.1:9193", "2@10.0.0.2:9193", "3@10.0.0.3:9193"]

[listeners.clients]
address = "10.0.0.1:9192"               # where it listens
advertised = "log-1.example:9192"       # what others are told; default: the address
[listeners.clients.tls]                 # a must beyond loopback
certificate = "clients/log-1.pem"       # with its chain
key = "clients/log-1.key"               # of mode 0600, not encrypted; others may not write
                                        # its directory, nor this file and its directory
ca = "clients/ca.pem"                   # who signs callers' certificates
client_certificates = "required"        # or "optional": others are `anonymous`

[listeners.voters]                      # or one [listeners.both] in place of these two
address = "10.0.0.1:9193"
[listeners.voters.tls]                  # callers must show a certificate; also shown to voters
certificate = "voters/log-1.pem"
key = "voters/log-1.key"
ca = "voters/ca.pem"

[access]                                # by the common name of a certificate; else denied
                                        # SIGHUP: this table is read again, and certificates are
describe = ["monitoring"]
read = ["reports-*"]
append = ["jobs-*"]
admin = ["operator"]
[access.nodes]                          # which name in a certificate proves which node
1 = "log-1.example"
2 = "log-2.example"
3 = "log-3.example"
# or for nodes to come, too: nodes = "log-{id}.example" in [access]; then each certificate with such
# a name, of any id, may ask as a voter does: the CA must issue them to nodes alone
[access.commits]                        # the application ids that a name may commit under; without
                                        # it {name} and {name}:*, or any if append is one name
"jobs-*" = ["{name}", "{name}:*"]       # {name}: its own
"jobs-etl" = ["nightly-*"]              # these too; admin: any; [access] commit_names_max = 1000

[quorum]                                # milliseconds and bytes; these are the defaults
election_timeout_ms = 1000
fetch_timeout_ms = 1000                 # how long a dead leader is believed in; Kafka: 2000
request_timeout_ms = 2000
retry_backoff_ms = 20
fetch_max_wait_ms = 500
fetch_max_bytes = 1048576
snapshot_max_bytes = 1048576

[log]                                   # how the log is made; later by `raftlog configure`
values = "bytes"                        # or "msgpack", "kraft"
batch_bytes_max = 8388608
retention_ms = -1                       # no limit; without effect if values are "kraft": a node
                                        # makes no snapshots, below which such a log is trimmed
linger_ms = 0                           # how long appends wait for others to share their sync

[limits]
frame_bytes_max = 104857600
connections_max = 1000                  # of clients
voters_connections_max = 100            # kept for voters

[metrics]                               # Prometheus' text format over HTTP, on loopback
address = "127.0.0.1:9194"
```

Rules of this file:

1. Every mistake is a ``ConfigError`` that names the file and the key, and says what is expected.
   An unknown key is one: a misspelt limit must not be a limit that is not there.
2. A node that can be reached from elsewhere has TLS. The one way around it has a long name:
   ``allow_plaintext_beyond_loopback = true`` in ``[node]``.
3. Certificates and keys are named here and read in ``tls``; no secret is ever held here.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, TypeVar

from raftlog.errors import ConfigError, OptionError
from raftlog.limits import (
    COMMITS_MAX,
    COMMITS_PER_PRINCIPAL_MAX,
    KIB,
    MIB,
    WIRE_FRAME_BYTES_MAX,
)
from raftlog.log.writing.batch_metadata import ValueKind
from raftlog.log.writing.properties import LogConfig
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.voters import Endpoint, Voter, VoterSet
from raftlog.records.compression import Compression
from raftlog.storage.file_rights import change_by_others
from raftlog.types import ReplicaKey
from raftlog.wire import Listener

from .access import NODE_ID_PLACEHOLDER, AccessTable
from .addresses import (
    CLIENTS_NAME,
    CONTROLLER_NAME,
    NODE_ID_MAX,
    address_text,
    is_loopback,
    is_wildcard,
    parse_address,
    parse_static_voters,
)
from .config_table import ConfigTable

TOPIC_DEFAULT: Final = "raftlog"
QUORUM_DEFAULT: Final = QuorumConfig(fetch_timeout_ms=1_000)
"""Half of Kafka's time until a dead leader is missed: a log that jobs wait for is small, and its
followers ask again every half second even if nothing happens."""
RETENTION_CHECK_INTERVAL_MS: Final = 300_000
"""Kafka: ``log.retention.check.interval.ms``."""
_CONFIG_BYTES_MAX: Final = 1 * MIB
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_INT32_MAX: Final = 2**31 - 1
_DAY_MS: Final = 24 * 60 * 60 * 1000
_Numbers = TypeVar("_Numbers", QuorumConfig, "LimitsConfig")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """Files in PEM form, and whether who calls must show a certificate. Paths are absolute."""

    certificate: str
    key: str
    ca: str
    is_certificate_required: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig:
    """A socket that is listened on, whom it is for, and what others are told of it."""

    listener: Listener
    host: str
    port: int
    advertised_host: str
    advertised_port: int
    tls: TlsConfig | None = None

    @property
    def address(self) -> str:
        """Where it listens, as text."""
        return address_text(self.host, self.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """What callers may take. ``stranger_*`` holds until a caller has proven a right.

    ``connections_max`` is for clients, ``voters_connections_max`` for voters alone, whatever
    clients do; ``stranger_connections_max`` is for each listener, and those stay ``handshake_ms``.
    ``connection_rate_per_address_max`` is a second's (Kafka: ``max.connection.creation.rate``).
    ``requests_in_flight_max`` is for one connection, ``queued_bytes_max`` for all requests of
    clients with their answers, and again for those of voters (Kafka: ``queued.max.request.bytes``).
    One principal may hold as much of it as is free: half of it alone.
    ``stalled_ms``: a peer that stops so long in the middle of a frame or of an answer is cut off,
    and so is one that moves less than ``bytes_per_second_min`` there.
    """

    frame_bytes_max: int = WIRE_FRAME_BYTES_MAX
    stranger_frame_bytes_max: int = 64 * KIB
    connections_max: int = 1_000
    voters_connections_max: int = 100
    stranger_connections_max: int = 250
    connections_per_address_max: int = 500
    connections_per_principal_max: int = 500
    connection_rate_per_address_max: int = 100
    requests_in_flight_max: int = 100
    queued_bytes_max: int = 256 * MIB
    idle_ms: int = 600_000
    stalled_ms: int = 30_000
    bytes_per_second_min: int = 4 * KIB
    handshake_ms: int = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """Where metrics are served."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """All that a node is told. ``clients`` and ``voters`` are one object if they share a socket.

    ``static_voters`` None: the log says who votes (kraft.version 1).
    """

    node_id: int
    directory: str
    topic: str = TOPIC_DEFAULT
    clients: ListenerConfig | None = None
    voters: ListenerConfig | None = None
    static_voters: VoterSet | None = None
    bootstrap_servers: tuple[Endpoint, ...] = ()
    access: AccessTable = field(default_factory=AccessTable)
    quorum: QuorumConfig = QUORUM_DEFAULT
    log: LogConfig = field(default_factory=LogConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    metrics: MetricsConfig | None = None
    retention_check_interval_ms: int = RETENTION_CHECK_INTERVAL_MS
    allow_plaintext_beyond_loopback: bool = False
    path: str | None = field(default=None, compare=False)
    """The file that it was read from, if it was."""

    @property
    def listeners(self) -> tuple[ListenerConfig, ...]:
        """The sockets to listen on, each once."""
        if self.clients is self.voters:
            return () if self.clients is None else (self.clients,)
        return tuple(one for one in (self.clients, self.voters) if one is not None)


def read_config(path: str | os.PathLike[str]) -> NodeConfig:
    """Read a node's file. Raises ``ConfigError``, also if other users may change the file: it says
    who has which rights."""
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            data = file.read(_CONFIG_BYTES_MAX + 1)
        rights = change_by_others(name)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or "not a path").lower()
        raise ConfigError(path=name, key=None, reason=f"it cannot be read: {reason}") from None
    if rights is not None:
        raise ConfigError(path=name, key=None, reason=rights)
    if len(data) > _CONFIG_BYTES_MAX:
        raise ConfigError(
            path=name, key=None, reason=f"it is larger than {_CONFIG_BYTES_MAX} bytes"
        )
    try:
        return parse_config(data.decode("utf-8"), name)
    except UnicodeDecodeError:
        raise ConfigError(path=name, key=None, reason="it is not UTF-8 text") from None


def parse_config(text: str, path: str) -> NodeConfig:
    """Read the text of a node's file; ``path`` is for errors, and where relative paths begin.

    Raises ``ConfigError``.
    """
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(path=path, key=None, reason=f"it is not TOML: {error}") from None
    return _parsed(ConfigTable(path, "", values), path)


def reload_access(config: NodeConfig) -> AccessTable:
    """What ``[access]`` says by now in the file that a running node was read from.

    Everything else of the file is looked at, and waits for a restart. Raises ``ConfigError`` if
    anything in it is wrong, and if the table does not fit the node as it runs.
    """
    assert config.path is not None, "it was read from a file"
    access = read_config(config.path).access
    _check_identities(replace(config, access=access), ConfigTable(config.path, "", {}))
    return access


def _parsed(root: ConfigTable, path: str) -> NodeConfig:
    node = root.required_table("node")
    clients, voters = _listeners(root)
    config = NodeConfig(
        node_id=node.number("id", at_least=0, at_most=NODE_ID_MAX),
        directory=node.file("directory"),
        topic=_topic(node),
        clients=clients,
        voters=voters,
        static_voters=_static_voters(node),
        bootstrap_servers=_bootstrap_servers(node),
        retention_check_interval_ms=(
            node.number("retention_check_interval_ms", at_least=1, at_most=_DAY_MS)
            if node.has("retention_check_interval_ms")
            else RETENTION_CHECK_INTERVAL_MS
        ),
        allow_plaintext_beyond_loopback=node.flag("allow_plaintext_beyond_loopback"),
        access=_access(root),
        quorum=_numbers(root.table("quorum"), QUORUM_DEFAULT, at_most=_DAY_MS),
        log=_log(root.table("log")),
        limits=_numbers(root.table("limits"), LimitsConfig(), at_most=_INT32_MAX),
        metrics=_metrics(root.table("metrics")),
        path=path,
    )
    node.finish()
    root.finish()
    _check(config, root)
    return config


def voter_of(config: NodeConfig, directory_id: str) -> Voter:
    """This node as a member of the quorum."""
    endpoints = [
        Endpoint(name, listener.advertised_host, listener.advertised_port)
        for name, listener in ((CONTROLLER_NAME, config.voters), (CLIENTS_NAME, config.clients))
        if listener is not None
    ]
    return Voter(key=ReplicaKey(config.node_id, directory_id), endpoints=tuple(endpoints))


# --- parts of the file ----------------------------------------------------------------------------


def _listeners(root: ConfigTable) -> tuple[ListenerConfig | None, ListenerConfig | None]:
    tables = root.table("listeners")
    if tables is None:
        raise root.wrong("listeners", "a node needs [listeners.clients] and [listeners.voters]")
    both = tables.table("both")
    clients, voters = tables.table("clients"), tables.table("voters")
    tables.finish()
    if both is not None:
        if clients is not None or voters is not None:
            raise tables.wrong("both", "it stands alone: it is the one for clients and for voters")
        shared = _listener(both, Listener.CLIENTS | Listener.VOTERS)
        return shared, shared
    if clients is None and voters is None:
        raise root.wrong("listeners", "a node needs [listeners.clients] and [listeners.voters]")
    return (
        None if clients is None else _listener(clients, Listener.CLIENTS),
        None if voters is None else _listener(voters, Listener.VOTERS),
    )


def _listener(table: ConfigTable, listener: Listener) -> ListenerConfig:
    host, port = table.parsed("address", parse_address)
    advertised_host, advertised_port = host, port
    if table.has("advertised"):
        advertised_host, advertised_port = table.parsed("advertised", parse_address)
    if is_wildcard(advertised_host):
        raise table.wrong(
            "advertised", "others must be told a host: this one means every address of a machine"
        )
    tls = table.table("tls")
    found = ListenerConfig(
        listener=listener,
        host=host,
        port=port,
        advertised_host=advertised_host,
        advertised_port=advertised_port,
        tls=None if tls is None else _tls(tls, listener),
    )
    table.finish()
    return found


def _tls(table: ConfigTable, listener: Listener) -> TlsConfig:
    is_required = True
    if table.has("client_certificates"):
        words = ("required", "optional")
        is_required = table.choice("client_certificates", words) == "required"
        if not is_required and Listener.VOTERS in listener:
            raise table.wrong("client_certificates", "voters always show theirs: leave it out")
    found = TlsConfig(
        certificate=table.file("certificate"),
        key=table.file("key"),
        ca=table.file("ca"),
        is_certificate_required=is_required,
    )
    table.finish()
    return found


def _topic(node: ConfigTable) -> str:
    if not node.has("topic"):
        return TOPIC_DEFAULT
    topic = node.text("topic")
    if _TOPIC.fullmatch(topic) is None or topic in (".", ".."):
        raise node.wrong("topic", "a topic has 1 to 249 letters of a-z, A-Z, 0-9, '.', '_' and '-'")
    return topic


def _static_voters(node: ConfigTable) -> VoterSet | None:
    if not node.has("static_voters"):
        return None
    texts = node.texts("static_voters")
    if not texts:
        raise node.wrong("static_voters", "somebody has to vote; leave it out for a dynamic quorum")
    try:
        return parse_static_voters(texts)
    except ValueError as error:
        raise node.wrong("static_voters", str(error)) from None


def _bootstrap_servers(node: ConfigTable) -> tuple[Endpoint, ...]:
    found = []
    for text in node.texts("bootstrap_servers") if node.has("bootstrap_servers") else ():
        try:
            host, port = parse_address(text)
        except ValueError as error:
            raise node.wrong("bootstrap_servers", f"{text!r}: {error}") from None
        found.append(Endpoint(CONTROLLER_NAME, host, port))
    return tuple(found)


def _access(root: ConfigTable) -> AccessTable:
    table = root.table("access")
    if table is None:
        return AccessTable()
    given = {
        name: table.texts(name) if table.has(name) else ()
        for name in ("describe", "read", "append", "admin")
    }
    for name, patterns in given.items():
        if not all(patterns):
            raise table.wrong(name, "a name is empty")
    found = AccessTable(
        describe=given["describe"],
        read=given["read"],
        append=given["append"],
        admin=given["admin"],
        nodes={} if table.is_text("nodes") else _names_of_nodes(table.table("nodes")),
        node_names=_names_of_all_nodes(table) if table.is_text("nodes") else None,
        commits=_commits(table.table("commits")),
        commit_names_max=(
            table.number("commit_names_max", at_least=1, at_most=COMMITS_MAX)
            if table.has("commit_names_max")
            else COMMITS_PER_PRINCIPAL_MAX
        ),
    )
    table.finish()
    return found


def _commits(table: ConfigTable | None) -> Mapping[str, tuple[str, ...]] | None:
    if table is None:
        return None
    found = {principals: table.texts(principals) for principals in table.names()}
    for principals, patterns in found.items():
        if not principals or not all(patterns):
            raise table.wrong(principals, "a pattern is empty")
    return found


def _names_of_all_nodes(table: ConfigTable) -> str:
    names = table.text("nodes")
    if names.count(NODE_ID_PLACEHOLDER) != 1 or "*" in names:
        raise table.wrong(
            "nodes",
            f'a table of names was expected, or one for all: "log-{NODE_ID_PLACEHOLDER}.example"',
        )
    return names


def _names_of_nodes(table: ConfigTable | None) -> Mapping[int, str]:
    names: dict[int, str] = {}
    if table is None:
        return names
    for key in table.names():
        name = table.text(key)
        if not (key.isascii() and key.isdigit()) or len(key) > 10 or int(key) > NODE_ID_MAX:
            raise table.wrong(key, 'a line is NODE_ID = "name in its certificate"')
        if not name or "*" in name:
            raise table.wrong(key, "one node has one name, without '*'")
        if name.lower() in (other.lower() for other in names.values()):
            raise table.wrong(key, "another node has this name: then it proves neither")
        names[int(key)] = name
    table.finish()
    return names


def _log(table: ConfigTable | None) -> LogConfig:
    if table is None:
        return LogConfig()
    values: dict[str, Any] = {}
    for one in fields(LogConfig):
        if not table.has(one.name):
            continue
        if one.name == "values":
            values[one.name] = ValueKind(table.choice(one.name, [kind.value for kind in ValueKind]))
        elif one.name == "compression":
            codecs = {codec.name.lower(): codec for codec in Compression}
            values[one.name] = codecs[table.choice(one.name, codecs)]
        else:
            number = table.number(one.name, at_least=-1, at_most=2**63 - 1)
            values[one.name] = None if one.default is None and number == -1 else number
        try:
            LogConfig(**{one.name: values[one.name]})
        except OptionError as error:
            raise table.wrong(one.name, error.reason) from None
    table.finish()
    return LogConfig(**values)


def _metrics(table: ConfigTable | None) -> MetricsConfig | None:
    if table is None:
        return None
    host, port = table.parsed("address", parse_address)
    table.finish()
    return MetricsConfig(host=host, port=port)


def _numbers(table: ConfigTable | None, defaults: _Numbers, *, at_most: int) -> _Numbers:
    """A dataclass of positive numbers, as it is where the table says nothing."""
    if table is None:
        return defaults
    names = [one.name for one in fields(defaults)]
    found = {
        name: table.number(name, at_least=1, at_most=at_most) for name in names if table.has(name)
    }
    table.finish(names)
    return replace(defaults, **found)


# --- what must fit together -----------------------------------------------------------------------


def _check(config: NodeConfig, root: ConfigTable) -> None:
    limits = config.limits
    if limits.stranger_frame_bytes_max > limits.frame_bytes_max:
        raise root.wrong("limits.stranger_frame_bytes_max", "it is above frame_bytes_max")
    if config.log.batch_bytes_max >= limits.frame_bytes_max:
        raise root.wrong("limits.frame_bytes_max", "no frame would hold a batch of the log")
    places = [listener.address for listener in config.listeners]
    if config.metrics is not None:
        places.append(address_text(config.metrics.host, config.metrics.port))
    twice = next((place for place in places if places.count(place) > 1), None)
    if twice is not None:
        raise root.wrong(
            "listeners",
            f"{twice} is there twice; clients and voters share a socket by [listeners.both]",
        )
    _check_plaintext(config, root)
    _check_identities(config, root)
    _check_static_voters(config, root)


def _check_plaintext(config: NodeConfig, root: ConfigTable) -> None:
    if config.allow_plaintext_beyond_loopback:
        return
    for listener in config.listeners:
        if listener.tls is None and not is_loopback(listener.host):
            name = _table_of(listener)
            raise root.wrong(
                f"{name}.address",
                f"{listener.host} can be reached from elsewhere, so it needs [{name}.tls]; or "
                "listen on 127.0.0.1",
            )
    if config.metrics is not None and not is_loopback(config.metrics.host):
        raise root.wrong(
            "metrics.address",
            f"{config.metrics.host} can be reached from elsewhere, and metrics are served without "
            "TLS; listen on 127.0.0.1",
        )


def _check_identities(config: NodeConfig, root: ConfigTable) -> None:
    access = config.access
    has_tls = any(listener.tls is not None for listener in config.listeners)
    if not has_tls and access != AccessTable():
        raise root.wrong("access", "without TLS nobody proves a name: set up TLS, or leave it out")
    has_tls = config.voters is not None and config.voters.tls is not None
    if has_tls and access.name_of(config.node_id) is None:
        raise root.wrong(
            f"access.nodes.{config.node_id}",
            "it is missing: which name in a certificate proves that a node is this one? Name "
            "every node there",
        )


def _check_static_voters(config: NodeConfig, root: ConfigTable) -> None:
    if config.static_voters is None:
        return
    found = config.static_voters.find(config.node_id)
    if found is None:
        return
    voters = config.voters
    if voters is None:
        raise root.wrong("listeners.voters", "this node is among the static voters: it needs one")
    named = found.endpoints[0]
    if (named.host, named.port) != (voters.advertised_host, voters.advertised_port):
        advertised = address_text(voters.advertised_host, voters.advertised_port)
        raise root.wrong(
            "node.static_voters",
            f"others are told that this node is at {address_text(named.host, named.port)}, and "
            f"its listener for voters says {advertised}",
        )


def _table_of(listener: ListenerConfig) -> str:
    names = {Listener.CLIENTS: "clients", Listener.VOTERS: "voters"}
    return f"listeners.{names.get(listener.listener, 'both')}"
