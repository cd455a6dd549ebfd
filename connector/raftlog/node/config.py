"""Configuration of a node: one TOML file.

```toml
# node.toml: one node of three. Relative paths are relative to this file.
[node]
id = 1
directory = "data"                      # created by `raftlog node format`
topic = "decisions"                     # topic name of the log for clients; default: "raftlog"
# rack = "eu-1a"                        # consumers with this client.rack read from this node, even
#                                       # while it is a follower (KIP-392)
bootstrap_servers = ["10.0.0.1:9193", "10.0.0.2:9193", "10.0.0.3:9193"]
retention_check_interval_ms = 300000    # how often to check for segments to delete or compact
# A fixed set of voters (kraft.version 0), instead of formatting with --standalone or
# --initial-voters. Remove it after upgrading kraft.version to 1: the log then contains the voters.
# static_voters = ["1@10.0.0.1:9193", "2@10.0.0.2:9193", "3@10.0.0.3:9193"]

[listeners.clients]
address = "10.0.0.1:9192"               # address to bind
advertised = "log-1.example:9192"       # address that clients connect to; default: `address`
[listeners.clients.tls]                 # required unless `address` is a loopback address
certificate = "clients/log-1.pem"       # PEM, with its chain
key = "clients/log-1.key"               # PEM, not encrypted, mode 0600. Only its owner may have
                                        # write access to the key, this file, and their directories
ca = "clients/ca.pem"                   # CA of the clients' certificates
# crl = "clients/crl.pem"               # certificate revocation lists of all these CAs. If one has
                                        # expired, every connection is refused
# min_version = "1.3"                   # TLS version; "1.2" also accepts older clients
client_certificates = "required"        # or "optional": clients without one are `anonymous`

# [listeners.clients.sasl]              # SCRAM-SHA-256 and -512 instead of names in certificates;
# users = "users.json"                  # use client_certificates = "optional". See raftlog users
# max_reauth_ms = 0                     # lifetime of a session (KIP-368); 0: unlimited
# [listeners.clients.sasl.oauth]        # OAUTHBEARER with JSON Web Tokens, with or without `users`
# keys = "https://idp.example/jwks"     # or a file: JSON Web Key Set, RS256 and ES256, by `kid`.
                                        # Reread after refresh_ms, on SIGHUP, for an unknown kid
# issuer = "https://idp.example"        # required `iss` of a token
# audience = "raftlog"                  # required `aud` of a token
# ca = "idp-ca.pem"                     # CA of the URL; default: the system's CAs
# principal_claim = "sub"               # claim with the name for [access]
# refresh_ms = 3600000
# clock_skew_s = 30

[listeners.voters]                      # or a single [listeners.both] instead of these two
address = "10.0.0.1:9193"
[listeners.voters.tls]                  # client certificates are always required here
certificate = "voters/log-1.pem"        # also this node's client certificate for other voters
key = "voters/log-1.key"
ca = "voters/ca.pem"

[access]                                # rights by the common name in the client's certificate; all
                                        # others are denied. SIGHUP reloads it and the certificates
describe = ["monitoring"]
read = ["reports-*"]
append = ["jobs-*"]
admin = ["operator"]
# groups_max = 1000                     # how many consumer groups with offsets a principal may
                                        # create, except `admin`; without certificates or users,
                                        # all clients are one principal
# principal_mapping_rules = 'RULE:^CN=(.*?),OU=jobs,.*$/jobs-$1/L'  # use distinguished names
                                        # instead of common names, like Kafka's
                                        # ssl.principal.mapping.rules. A name without a match has
                                        # no rights. Does not apply to nodes
[access.nodes]                          # name in the certificate of each node, by node id
1 = "log-1.example"
2 = "log-2.example"
3 = "log-3.example"
# Or one pattern, for future nodes as well: nodes = "log-{id}.example" in [access]. Any certificate
# with such a name has the rights of a voter, so the CA must issue these names only to nodes.
[access.commits]                        # application ids of commits, by principal. Default: {name}
                                        # and {name}:*, or any id if `append` is a single name
"jobs-*" = ["{name}", "{name}:*"]       # {name}: the principal's own name
"jobs-etl" = ["nightly-*"]              # in addition to jobs-*. `admin`: any id. Maximum number of
                                        # ids per principal: [access] commit_names_max = 1000

# [[quotas]]                            # client quotas, as in Kafka: the most specific one applies
# user = "jobs-etl"                     # "*": every user without a quota of its own
# client_id = "*"                       # likewise; without `user`: clients of any user
# producer_byte_rate = 1048576          # bytes per second, on each node
# consumer_byte_rate = 4194304
# request_percentage = 20               # of one processor. SIGHUP reloads quotas. If [controller]
                                        # is enabled they are in the log: use kafka-configs

[quorum]                                # milliseconds and bytes; the values shown are the defaults
election_timeout_ms = 1000
fetch_timeout_ms = 1000                 # time without a leader until an election; Kafka: 2000
request_timeout_ms = 2000
retry_backoff_ms = 20
fetch_max_wait_ms = 500
fetch_hw_delay_ms = 5                   # delay before followers get a high watermark without
                                        # records; saves requests during appends. Kafka: 0
fetch_max_bytes = 1048576
snapshot_max_bytes = 1048576
observer_session_timeout_ms = 300000    # time without a fetch until the leader removes an observer
observers_max = 1000                    # number of observers whose ends the leader tracks

[log]                                   # used to create the log; afterwards: `raftlog configure`.
                                        # All keys: ``LogConfig``
values = "bytes"                        # or "msgpack", "kraft"
batch_bytes_max = 8388608
retention_ms = -1                       # unlimited. A log with values = "kraft" is deleted only
                                        # below its snapshots
cleanup_policy = "delete"               # or "compact", "compact,delete". Use the same on all nodes:
                                        # each node compacts its own log. Records need keys:
                                        # compaction deletes records without one, and a leader that
                                        # does not compact accepts such records
min_cleanable_dirty_ratio = 0.5         # compact the log if more than this share of it is dirty
remote_storage_enable = false           # true: the leader copies sealed segments to an object
                                        # store, and each node deletes them locally according to
                                        # local_retention_ms and local_retention_bytes
# remote_storage_uri = "s3://logs/a"    # URI of the store, or a path that all nodes share
local_retention_ms = -2                 # retention of local segments; -2: same as retention_ms
linger_ms = 0                           # time that an append waits for others to share its sync

[limits]                                # all keys: ``LimitsConfig``
frame_bytes_max = 104857600
connections_max = 1000                  # client connections
connection_age_max_ms = 0               # close connections older than this; 0: never
voters_connections_max = 100            # connections reserved for voters

[controller]
enabled = false                         # true: the node hosts the controller of a Kafka cluster,
                                        # and the log holds its metadata. Requires values = "kraft"
                                        # and the topic "__cluster_metadata", then the default
session_timeout_ms = 9000               # time without a heartbeat until a broker is fenced
max_idle_interval_ms = 500              # interval of the active controller's NoOpRecords; 0: none.
                                        # They make the lag of each replica known at any time
# token_secret = "tokens.key"           # file with the secret key of delegation tokens, mode 0600;
                                        # without it, delegation tokens are disabled

[snapshots]                             # for a log with values = "kraft"
bytes_max = 20971520                    # bytes of the log between two snapshots
interval_ms = 3600000                   # time between two snapshots, if there are new records;
                                        # 0: no limit
skip_rejected = false                   # true: omit records that are damaged or contradict the
                                        # records before them; false: such a record stops
                                        # snapshots. A controller always fails at such a record

[audit]                                 # one JSON object per line: connections, refusals, appends
file = "audit.log"                      # by principal, changes. Mode 0600; SIGHUP reopens it
bytes_max = 104857600                   # a larger file is renamed to audit.log.1,
files_max = 10                          # and the oldest of these files is deleted

[metrics]                               # over HTTP: /metrics in Prometheus' text format, /health,
                                        # and /ready (503 while the node cannot serve)
address = "127.0.0.1:9194"
allow_plaintext_beyond_loopback = false # true: allow an address that other hosts can reach, for
                                        # probes and scrapes, without TLS or authentication
# buckets_s = [0.001, 0.01, 0.1, 1]     # upper bounds of the duration buckets, in seconds
```

Any mistake raises ``ConfigError`` with the file, the key and the expected value. Unknown keys are
mistakes: a misspelled limit must not mean no limit. A listener that other hosts can reach requires
TLS, unless ``[node]`` contains ``allow_plaintext_beyond_loopback = true``. This module only holds
the paths of certificates and keys; ``tls`` reads the files.
"""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, TypeVar

from raftlog.errors import OptionError
from raftlog.limits import (
    INT32_MAX,
    INT64_MAX,
    KIB,
    MIB,
    SNAPSHOT_BYTES_DEFAULT,
    SNAPSHOT_INTERVAL_MS_DEFAULT,
    WIRE_FRAME_BYTES_MAX,
)
from raftlog.log.reading.transactions import ValueKind
from raftlog.log.writing.properties import AS_RETENTION, CleanupPolicy, LogConfig
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.voters import Endpoint, Voter, VoterSet
from raftlog.records.compression import Compression
from raftlog.storage.file_rights import change_by_others
from raftlog.types import CLUSTER_METADATA_TOPIC, ReplicaKey
from raftlog.wire import Listener

from .access import AccessTable
from .access_config import parse_access
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
from .client_quotas import ClientQuota, parse_quotas
from .config_table import ConfigTable
from .durations import DURATION_BUCKETS_S
from .errors import ConfigError
from .oauth import OauthConfig, parse_oauth

TOPIC_DEFAULT: Final = "raftlog"
QUORUM_DEFAULT: Final = QuorumConfig(fetch_timeout_ms=1_000, fetch_hw_delay_ms=5)
"""``fetch_timeout_ms`` is half of Kafka's default: followers fetch at least every 500 ms
(``fetch_max_wait_ms``), and jobs wait for the log during a failover."""
RETENTION_CHECK_INTERVAL_MS: Final = 300_000
"""Kafka: ``log.retention.check.interval.ms``."""
_CONFIG_BYTES_MAX: Final = 1 * MIB
_TOPIC: Final = re.compile(r"(?!\.\.?$)[A-Za-z0-9._-]{1,249}")
_TOPIC_FORM: Final = (
    "a topic name has 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and '-', and is neither '.' "
    "nor '..'"
)
_RACK: Final = re.compile(r"[ -~]{1,249}")
_RACK_FORM: Final = "a rack has 1 to 249 printable ASCII characters"
_DAY_MS: Final = 24 * 60 * 60 * 1000
_MAY_BE_0: Final = (
    "fetch_hw_delay_ms",
    "connection_age_max_ms",
    "compaction_bytes_per_second",
)
_Numbers = TypeVar("_Numbers", QuorumConfig, "LimitsConfig")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """TLS of a listener: absolute paths of PEM files, and whether clients need a certificate.

    ``crl``: certificate revocation lists (RFC 5280) of all CAs in ``ca``. ``allows_tls_1_2``:
    whether peers may use TLS 1.2, and not only 1.3.
    """

    certificate: str
    key: str
    ca: str
    crl: str | None = None
    allows_tls_1_2: bool = False
    is_certificate_required: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslConfig:
    """SASL of a listener for clients.

    ``users``: path of the file of users; None: no SCRAM. ``oauth``: OAUTHBEARER; None: not enabled.
    ``max_reauth_ms``: lifetime of a session; 0: unlimited (Kafka: ``connections.max.reauth.ms``).
    """

    users: str | None = None
    max_reauth_ms: int = 0
    oauth: OauthConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig:
    """Listener of a node: its purpose, the address to bind and the advertised address."""

    listener: Listener
    host: str
    port: int
    advertised_host: str
    advertised_port: int
    tls: TlsConfig | None = None
    sasl: SaslConfig | None = None

    @property
    def address(self) -> str:
        """Return the address to bind as ``host:port``."""
        return address_text(self.host, self.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """Limits on connections, requests and memory: the keys of ``[limits]``.

    Connections:

    - ``connections_max``: connections of clients. ``voters_connections_max`` more are reserved for
      voters.
    - ``stranger_connections_max``: connections of a listener without any rights; these are closed
      after ``handshake_ms``. ``stranger_frame_bytes_max``: request size of clients that may
      neither append nor vote.
    - ``connection_rate_per_address_max``: new connections per second (Kafka:
      ``max.connection.creation.rate``).
    - ``idle_ms``: a connection without requests for this time is closed.
    - ``connection_age_max_ms``: an older connection is closed; 0 for no limit.
    - ``stalled_ms``, ``bytes_per_second_min``: a connection is closed as stalled if its peer
      pauses for this time, or transfers less than this rate, inside a request or response.

    Requests and memory:

    - ``requests_in_flight_max``: requests in flight per connection.
    - ``queued_bytes_max``: memory of all requests and responses of clients, and the same again for
      voters (Kafka: ``queued.max.request.bytes``). A principal can hold at most as much as is
      free, so a single principal can hold half of it.
    - ``compaction_bytes_per_second``: bytes that a compaction reads and writes; 0 for no limit
      (Kafka: ``log.cleaner.io.max.bytes.per.second``).
    - ``remote_log_reader_threads``: threads that read from remote storage, each of which waits for
      the store. ``remote_log_reader_max_pending_tasks`` more reads wait for a thread; any further
      read fails. So does a read without a result after ``remote_fetch_max_wait_ms`` (Kafka: 500).
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
    connection_age_max_ms: int = 0
    stalled_ms: int = 30_000
    bytes_per_second_min: int = 4 * KIB
    handshake_ms: int = 5_000
    compaction_bytes_per_second: int = 0
    remote_log_reader_threads: int = 10
    remote_log_reader_max_pending_tasks: int = 100
    remote_fetch_max_wait_ms: int = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditConfig:
    """The audit log: the keys of ``[audit]``. ``path`` is the key ``file``."""

    path: str
    bytes_max: int = 100 * MIB
    files_max: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """Address of the metrics endpoint, and whether it may be one that other hosts can reach.

    ``buckets_s``: upper bounds of the duration buckets, ascending, in seconds.
    """

    host: str
    port: int
    allow_plaintext_beyond_loopback: bool = False
    buckets_s: tuple[float, ...] = DURATION_BUCKETS_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """The controller of a Kafka cluster in a node: the keys of ``[controller]``.

    ``session_timeout_ms``: time without a heartbeat after which a broker is fenced (Kafka:
    ``broker.session.timeout.ms``). ``max_idle_interval_ms``: interval of the active controller's
    NoOpRecords; 0: none (Kafka: ``metadata.max.idle.interval.ms``, KIP-835). ``token_secret``: path
    of a file with the secret key of delegation tokens, the same on all nodes and brokers (Kafka:
    ``delegation.token.secret.key``).
    """

    session_timeout_ms: int = 9_000
    max_idle_interval_ms: int = 500
    token_secret: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotsConfig:
    """When a node writes snapshots of a metadata log: the keys of ``[snapshots]``.

    ``bytes_max``: bytes of the log since the last snapshot. ``interval_ms``: age of the last
    snapshot; 0: no limit. ``skip_rejected``: whether to omit the records that replay rejects.
    """

    bytes_max: int = SNAPSHOT_BYTES_DEFAULT
    interval_ms: int = SNAPSHOT_INTERVAL_MS_DEFAULT
    skip_rejected: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Configuration of a node.

    ``clients`` and ``voters`` are the same object if they share a socket. ``static_voters`` is None
    if the log contains the voters (kraft.version 1).
    """

    node_id: int
    directory: str
    topic: str = TOPIC_DEFAULT
    rack: str = ""
    """Rack of the node, like Kafka's ``broker.rack``; empty: consumers read from the leader."""
    clients: ListenerConfig | None = None
    voters: ListenerConfig | None = None
    static_voters: VoterSet | None = None
    bootstrap_servers: tuple[Endpoint, ...] = ()
    access: AccessTable = field(default_factory=AccessTable)
    quorum: QuorumConfig = QUORUM_DEFAULT
    log: LogConfig = field(default_factory=LogConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    metrics: MetricsConfig | None = None
    audit: AuditConfig | None = None
    controller: ControllerConfig | None = None
    snapshots: SnapshotsConfig = field(default_factory=SnapshotsConfig)
    quotas: tuple[ClientQuota, ...] = ()
    retention_check_interval_ms: int = RETENTION_CHECK_INTERVAL_MS
    allow_plaintext_beyond_loopback: bool = False
    path: str | None = field(default=None, compare=False)
    """Path of the file, None if the configuration was not read from a file."""

    @property
    def listeners(self) -> tuple[ListenerConfig, ...]:
        """Return the listeners; a shared one once."""
        if self.clients is self.voters:
            return () if self.clients is None else (self.clients,)
        return tuple(one for one in (self.clients, self.voters) if one is not None)


def read_config(path: str | os.PathLike[str]) -> NodeConfig:
    """Read a node's configuration file.

    Raises ``ConfigError``. It is also raised if other users may write the file, because the file
    grants access rights.
    """
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            data = file.read(_CONFIG_BYTES_MAX + 1)
        rights = change_by_others(name)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or "not a path").lower()
        raise ConfigError(path=name, key=None, reason=f"cannot be read: {reason}") from None
    if rights is not None:
        raise ConfigError(path=name, key=None, reason=rights)
    if len(data) > _CONFIG_BYTES_MAX:
        raise ConfigError(
            path=name, key=None, reason=f"the file is larger than {_CONFIG_BYTES_MAX} bytes"
        )
    try:
        return parse_config(data.decode("utf-8"), name)
    except UnicodeDecodeError:
        raise ConfigError(path=name, key=None, reason="not UTF-8 text") from None


def parse_config(text: str, path: str) -> NodeConfig:
    """Parse the text of a node's configuration file.

    ``path`` is the file's path, for errors and for relative paths. Raises ``ConfigError``.
    """
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(path=path, key=None, reason=f"not valid TOML: {error}") from None
    return _parsed(ConfigTable(path, "", values), path)


def reload_access(config: NodeConfig) -> tuple[AccessTable, tuple[ClientQuota, ...]]:
    """Return the current ``[access]`` table and quotas of a running node's configuration file.

    The rest of the file is checked, and takes effect at the next start. Raises ``ConfigError`` if
    anything in the file is wrong, or if the table does not fit the running node.
    """
    assert config.path is not None, "the configuration has no file"
    found, root = read_config(config.path), ConfigTable(config.path, "", {})
    changed = replace(config, access=found.access, quotas=found.quotas)
    _check_identities(changed, root)
    _check_controller(changed, root)
    return found.access, found.quotas


def _parsed(root: ConfigTable, path: str) -> NodeConfig:
    node = root.required_table("node")
    clients, voters = _listeners(root)
    controller = _controller(root.table("controller"))
    default_topic = TOPIC_DEFAULT if controller is None else CLUSTER_METADATA_TOPIC
    config = NodeConfig(
        node_id=node.number("id", at_least=0, at_most=NODE_ID_MAX),
        directory=node.file("directory"),
        topic=node.matching("topic", _TOPIC, _TOPIC_FORM) or default_topic,
        rack=node.matching("rack", _RACK, _RACK_FORM) or "",
        clients=clients,
        voters=voters,
        static_voters=_static_voters(node),
        bootstrap_servers=_bootstrap_servers(node),
        retention_check_interval_ms=node.number(
            "retention_check_interval_ms",
            at_least=1,
            at_most=_DAY_MS,
            default=RETENTION_CHECK_INTERVAL_MS,
        ),
        allow_plaintext_beyond_loopback=node.flag("allow_plaintext_beyond_loopback"),
        access=parse_access(root),
        quotas=parse_quotas(root),
        quorum=_numbers(root.table("quorum"), QUORUM_DEFAULT, at_most=_DAY_MS),
        log=_log(root.table("log")),
        limits=_numbers(root.table("limits"), LimitsConfig(), at_most=INT32_MAX),
        metrics=_metrics(root.table("metrics")),
        audit=_audit(root.table("audit")),
        controller=controller,
        snapshots=_snapshots(root.table("snapshots")),
        path=path,
    )
    node.finish()
    root.finish()
    _check(config, root)
    return config


def voter_of(config: NodeConfig, directory_id: str) -> Voter:
    """Return this node as a voter, with its advertised endpoints."""
    endpoints = [
        Endpoint(name, listener.advertised_host, listener.advertised_port)
        for name, listener in ((CONTROLLER_NAME, config.voters), (CLIENTS_NAME, config.clients))
        if listener is not None
    ]
    return Voter(key=ReplicaKey(config.node_id, directory_id), endpoints=tuple(endpoints))


# --- parts of the file ----------------------------------------------------------------------------


def _listeners(root: ConfigTable) -> tuple[ListenerConfig | None, ListenerConfig | None]:
    missing = root.wrong(
        "listeners", "missing: add [listeners.clients] and [listeners.voters], or [listeners.both]"
    )
    tables = root.table("listeners")
    if tables is None:
        raise missing
    both = tables.table("both")
    clients, voters = tables.table("clients"), tables.table("voters")
    tables.finish()
    if both is not None:
        if clients is not None or voters is not None:
            raise tables.wrong(
                "both",
                "this listener serves clients and voters: remove the tables of the other listeners",
            )
        shared = _listener(both, Listener.CLIENTS | Listener.VOTERS)
        return shared, shared
    if clients is None and voters is None:
        raise missing
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
            "advertised",
            f"{advertised_host} is a wildcard address: set one that other machines can reach",
        )
    tls = table.table("tls")
    found = ListenerConfig(
        listener=listener,
        host=host,
        port=port,
        advertised_host=advertised_host,
        advertised_port=advertised_port,
        tls=None if tls is None else _tls(tls, listener),
        sasl=_sasl(table, listener),
    )
    table.finish()
    return found


def _tls(table: ConfigTable, listener: Listener) -> TlsConfig:
    is_required = True
    if table.has("client_certificates"):
        words = ("required", "optional")
        is_required = table.choice("client_certificates", words) == "required"
        if not is_required and Listener.VOTERS in listener:
            raise table.wrong(
                "client_certificates",
                "a listener for voters always requires client certificates: remove this key",
            )
    found = TlsConfig(
        certificate=table.file("certificate"),
        key=table.file("key"),
        ca=table.file("ca"),
        crl=table.file("crl") if table.has("crl") else None,
        allows_tls_1_2=table.has("min_version")
        and table.choice("min_version", ("1.2", "1.3")) == "1.2",
        is_certificate_required=is_required,
    )
    table.finish()
    return found


def _sasl(listeners: ConfigTable, listener: Listener) -> SaslConfig | None:
    table = listeners.table("sasl")
    if table is None:
        return None
    if listener != Listener.CLIENTS:
        raise listeners.wrong(
            "sasl", "only [listeners.clients] may have SASL: voters authenticate by certificates"
        )
    oauth = table.table("oauth")
    found = SaslConfig(
        users=table.file("users") if oauth is None or table.has("users") else None,
        max_reauth_ms=table.number("max_reauth_ms", at_least=0, at_most=_DAY_MS, default=0),
        oauth=None if oauth is None else parse_oauth(oauth),
    )
    table.finish()
    return found


def _static_voters(node: ConfigTable) -> VoterSet | None:
    if not node.has("static_voters"):
        return None
    texts = node.texts("static_voters")
    if not texts:
        raise node.wrong(
            "static_voters", "the list is empty: name the voters, or remove it (dynamic quorum)"
        )
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


def _log(table: ConfigTable | None) -> LogConfig:
    if table is None:
        return LogConfig()
    values: dict[str, Any] = {}
    for one in fields(LogConfig):
        if not table.has(one.name):
            continue
        if one.name == "values":
            values[one.name] = ValueKind(table.choice(one.name, [kind.value for kind in ValueKind]))
        elif one.name == "remote_storage_enable":
            values[one.name] = table.flag(one.name)
        elif one.name == "remote_storage_uri":
            values[one.name] = table.text(one.name)
        elif one.name == "cleanup_policy":
            policies = [policy.value for policy in CleanupPolicy]
            values[one.name] = CleanupPolicy(table.choice(one.name, policies))
        elif one.name == "min_cleanable_dirty_ratio":
            values[one.name] = table.decimal(one.name)
        elif one.name == "compression":
            codecs = {codec.name.lower(): codec for codec in Compression}
            values[one.name] = codecs[table.choice(one.name, codecs)]
        else:
            number = table.number(one.name, at_least=AS_RETENTION, at_most=INT64_MAX)
            values[one.name] = None if one.default is None and number == -1 else number
        try:
            LogConfig(**values)  # with the fields before it, which it may contradict
        except OptionError as error:
            raise table.wrong(one.name, error.reason) from None
    table.finish()
    return LogConfig(**values)


def _controller(table: ConfigTable | None) -> ControllerConfig | None:
    if table is None:
        return None
    is_enabled = table.flag("enabled")
    usual = ControllerConfig()
    session_timeout_ms = table.number(
        "session_timeout_ms", at_least=1, at_most=_DAY_MS, default=usual.session_timeout_ms
    )
    max_idle_interval_ms = table.number(
        "max_idle_interval_ms", at_least=0, at_most=_DAY_MS, default=usual.max_idle_interval_ms
    )
    token_secret = table.file("token_secret") if table.has("token_secret") else None
    table.finish()
    found = ControllerConfig(
        session_timeout_ms=session_timeout_ms,
        max_idle_interval_ms=max_idle_interval_ms,
        token_secret=token_secret,
    )
    return found if is_enabled else None


def _snapshots(table: ConfigTable | None) -> SnapshotsConfig:
    usual = SnapshotsConfig()
    if table is None:
        return usual
    found = SnapshotsConfig(
        bytes_max=table.number("bytes_max", at_least=1, at_most=INT64_MAX, default=usual.bytes_max),
        interval_ms=table.number(
            "interval_ms", at_least=0, at_most=INT64_MAX, default=usual.interval_ms
        ),
        skip_rejected=table.flag("skip_rejected"),
    )
    table.finish()
    return found


def _metrics(table: ConfigTable | None) -> MetricsConfig | None:
    if table is None:
        return None
    host, port = table.parsed("address", parse_address)
    is_allowed = table.flag("allow_plaintext_beyond_loopback")
    buckets_s = table.ascending("buckets_s", default=DURATION_BUCKETS_S)
    table.finish()
    return MetricsConfig(
        host=host, port=port, allow_plaintext_beyond_loopback=is_allowed, buckets_s=buckets_s
    )


def _audit(table: ConfigTable | None) -> AuditConfig | None:
    if table is None:
        return None
    usual = AuditConfig(path=table.file("file"))
    found = AuditConfig(
        path=usual.path,
        bytes_max=table.number(
            "bytes_max", at_least=MIB, at_most=INT64_MAX, default=usual.bytes_max
        ),
        files_max=table.number("files_max", at_least=2, at_most=1_000, default=usual.files_max),
    )
    table.finish()
    return found


def _numbers(table: ConfigTable | None, defaults: _Numbers, *, at_most: int) -> _Numbers:
    """Return ``defaults`` with the numbers of the table: at least 1, or 0 if that has a meaning."""
    if table is None:
        return defaults
    names = [one.name for one in fields(defaults)]
    found = {
        name: table.number(name, at_least=int(name not in _MAY_BE_0), at_most=at_most)
        for name in names
        if table.has(name)
    }
    table.finish(names)
    return replace(defaults, **found)


# --- consistency ----------------------------------------------------------------------------------


def _check(config: NodeConfig, root: ConfigTable) -> None:
    limits = config.limits
    if limits.stranger_frame_bytes_max > limits.frame_bytes_max:
        raise root.wrong("limits.stranger_frame_bytes_max", "larger than limits.frame_bytes_max")
    if config.log.batch_bytes_max >= limits.frame_bytes_max:
        raise root.wrong("limits.frame_bytes_max", "must be larger than log.batch_bytes_max")
    addresses = [listener.address for listener in config.listeners]
    if config.metrics is not None:
        addresses.append(address_text(config.metrics.host, config.metrics.port))
    twice = next((address for address in addresses if addresses.count(address) > 1), None)
    if twice is not None:
        raise root.wrong(
            "listeners",
            f"{twice} is used twice; [listeners.both] serves clients and voters on one address",
        )
    _check_plaintext(config, root)
    _check_tokens(config, root)
    _check_identities(config, root)
    _check_static_voters(config, root)
    _check_controller(config, root)


def _check_controller(config: NodeConfig, root: ConfigTable) -> None:
    if config.controller is None:
        return
    if config.topic != CLUSTER_METADATA_TOPIC:
        raise root.wrong(
            "node.topic",
            f"with [controller] enabled the log is {CLUSTER_METADATA_TOPIC}: remove the key",
        )
    if config.quotas:
        raise root.wrong(
            "quotas",
            "with [controller] enabled the quotas are in the log: set them by kafka-configs, and "
            "remove these tables",
        )
    if config.log.values is not ValueKind.KRAFT:
        raise root.wrong(
            "log.values", 'with [controller] enabled the log holds metadata: set values = "kraft"'
        )


def _check_plaintext(config: NodeConfig, root: ConfigTable) -> None:
    if config.allow_plaintext_beyond_loopback:
        return
    for listener in config.listeners:
        if listener.tls is None and not is_loopback(listener.host):
            name = _table_of(listener)
            raise root.wrong(
                f"{name}.address",
                f"{listener.host} is not a loopback address, so TLS is required: add [{name}.tls], "
                "or use 127.0.0.1",
            )
    metrics = config.metrics
    if metrics is None or metrics.allow_plaintext_beyond_loopback or is_loopback(metrics.host):
        return
    raise root.wrong(
        "metrics.address",
        f"{metrics.host} is not a loopback address, and metrics have no TLS: use 127.0.0.1, or set "
        "metrics.allow_plaintext_beyond_loopback",
    )


def _check_tokens(config: NodeConfig, root: ConfigTable) -> None:
    """A token that others can read is theirs, so plaintext beyond loopback is never allowed."""
    for listener in config.listeners:
        has_tokens = listener.sasl is not None and listener.sasl.oauth is not None
        if has_tokens and listener.tls is None and not is_loopback(listener.host):
            name = _table_of(listener)
            raise root.wrong(f"{name}.sasl.oauth", f"tokens require TLS: add [{name}.tls]")


def _check_identities(config: NodeConfig, root: ConfigTable) -> None:
    access = config.access
    has_names = any(one.tls is not None or one.sasl is not None for one in config.listeners)
    if not has_names and access != AccessTable():
        raise root.wrong(
            "access",
            "principals are names in client certificates, or users: configure TLS or SASL of a "
            "listener, or remove [access]",
        )
    has_tls = config.voters is not None and config.voters.tls is not None
    if has_tls and access.name_of(config.node_id) is None:
        raise root.wrong(
            f"access.nodes.{config.node_id}",
            "missing: set the name in this node's certificate, and likewise for every other node",
        )


def _check_static_voters(config: NodeConfig, root: ConfigTable) -> None:
    if config.static_voters is None:
        return
    found = config.static_voters.find(config.node_id)
    if found is None:
        return
    voters = config.voters
    if voters is None:
        raise root.wrong(
            "listeners.voters", "missing: node.static_voters contains this node, so it is required"
        )
    named = found.endpoints[0]
    if (named.host, named.port) != (voters.advertised_host, voters.advertised_port):
        advertised = address_text(voters.advertised_host, voters.advertised_port)
        raise root.wrong(
            "node.static_voters",
            f"it has {address_text(named.host, named.port)} for this node, but its listener for "
            f"voters advertises {advertised}",
        )


def _table_of(listener: ListenerConfig) -> str:
    names = {Listener.CLIENTS: "clients", Listener.VOTERS: "voters"}
    return f"listeners.{names.get(listener.listener, 'both')}"
