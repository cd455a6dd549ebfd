"""Authentication and authorization of requests: principals and their rights.

Rights derive from the connection's TLS certificate or SASL user, never from the content of a
request. With TLS or SASL, every right that the table does not grant is denied. Without either,
clients cannot be distinguished, and every client has all rights of the listener; such a listener is
allowed only on loopback.

A listener also limits its clients' rights: the listener for clients accepts no replica requests,
and the one for voters no reads or appends. A certificate that names several nodes identifies none
of them (CVE-2018-1288: a fetch with a replica's id moves the high watermark).

If the node has a controller, ``Principal.may`` also checks the ACLs in the log (``Authorizer``).
The table is their bootstrap. Its administrators and nodes are what Kafka calls super users: no ACL
denies their rights. Its other rights are defaults, which an ACL can deny. No ACL grants a replica's
requests: those require a certificate that identifies the node.

The application ids of named commits belong to the principals whose patterns match them. Like
Kafka's ACLs for transactional ids, this is configuration: the log contains no owners, so there is
nothing to replicate, snapshot or migrate.
"""

from __future__ import annotations

import enum
import functools
import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from raftlog.limits import COMMITS_PER_PRINCIPAL_MAX, GROUPS_PER_PRINCIPAL_MAX
from raftlog.types import CLUSTER, Operation, Resource, ResourceType
from raftlog.wire import Listener

from .addresses import NODE_ID_MAX
from .principal_mapping import mapped_name

if TYPE_CHECKING:
    from .config import ListenerConfig

ANONYMOUS: Final = "anonymous"
"""Principal name without a certificate (Kafka: ``User:ANONYMOUS``)."""
KAFKA_ANONYMOUS: Final = "ANONYMOUS"
"""Name that Kafka's brokers forward for a client that has not authenticated."""

NODE_ID_PLACEHOLDER: Final = "{id}"
PRINCIPAL_PLACEHOLDER: Final = "{name}"
"""The part of a pattern of application ids that the principal's name replaces."""

OWN_COMMITS: Final[Mapping[str, tuple[str, ...]]] = dict.fromkeys(
    ("*", ANONYMOUS), (PRINCIPAL_PLACEHOLDER, f"{PRINCIPAL_PLACEHOLDER}:*")
)
"""Default of ``[access.commits]``: principal ``a`` owns the application ids ``a`` and ``a:*``."""

PeerCertificate: TypeAlias = Mapping[str, Any]
"""Verified certificate, as returned by ``SSLSocket.getpeercert()``."""


class Rights(enum.Flag):
    """Rights of a principal. Without any right, every request is refused."""

    NONE = 0
    DESCRIBE = enum.auto()
    READ = enum.auto()
    APPEND = enum.auto()
    ADMIN = enum.auto()
    """Add and remove voters, and read every named commit."""
    VOTE = enum.auto()
    """Act as a replica: fetch with a replica id, request votes, lead."""


_NEEDED: Final[Mapping[Operation, Rights]] = {
    **dict.fromkeys(Operation, Rights.ADMIN),
    Operation.READ: Rights.READ,
    Operation.WRITE: Rights.APPEND,
    Operation.IDEMPOTENT_WRITE: Rights.APPEND,
    Operation.TWO_PHASE_COMMIT: Rights.APPEND,
    Operation.DESCRIBE: Rights.DESCRIBE,
    Operation.DESCRIBE_CONFIGS: Rights.DESCRIBE,
    Operation.CLUSTER_ACTION: Rights.VOTE,
}
"""Right in the table that allows an operation on every resource."""


class Authorizer(Protocol):
    """ACLs of a cluster, as known to a node."""

    @property
    def is_ready(self) -> bool:
        """Whether it has loaded all ACLs that were committed when the node started."""

    def authorize(
        self, principal: str, host: str, operation: Operation, resource: Resource
    ) -> bool | None:
        """Return whether an operation is allowed (True) or denied; None if no ACL matches."""

    def allowed_operations(self, principal: str, host: str) -> Iterable[Operation]:
        """Return the operations that ACLs allow on at least one resource."""


@dataclass(frozen=True, slots=True)
class CommitAccess:
    """Application ids of named commits that belong to a principal.

    In ``patterns``, ``*`` matches any text and ``{name}`` is the principal's ``name``.
    ``names_max``: maximum number of the principal's application ids in the log.
    """

    name: str
    patterns: tuple[str, ...]
    names_max: int = COMMITS_PER_PRINCIPAL_MAX

    def owns(self, application_id: str) -> bool:
        """Return whether an application id belongs to the principal."""
        return _ids_of(self.name, self.patterns).fullmatch(application_id) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Authenticated peer of a connection.

    ``name`` is the name in the certificate, or ``anonymous``; ``node_id`` is the node that the
    certificate identifies, or None. ``commits``: application ids that it may commit under; None for
    all. ``groups_max``: number of consumer groups with offsets that it may create; None for any
    number. ``certificate_serial``: in hex, None without a certificate; ``not_after``: the end of
    the certificate's validity, as in ``PeerCertificate``. ``rights``: the rights in the table.
    ``host``: address of the client in the form of Kafka's ACLs; 0.0.0.0 if unknown. ``authorizer``:
    None if the table alone decides.
    """

    name: str
    node_id: int | None
    listener: Listener
    rights: Rights
    commits: CommitAccess | None = None
    groups_max: int | None = GROUPS_PER_PRINCIPAL_MAX
    certificate_serial: str | None = None
    not_after: str | None = None
    host: str = "0.0.0.0"
    authorizer: Authorizer | None = field(default=None, compare=False, repr=False)

    def may(
        self, operation: Operation, resource: Resource = CLUSTER, *, is_sensitive: bool = False
    ) -> bool:
        """Return whether an operation on a resource is allowed.

        In the table every right implies DESCRIBE, but to describe what ``is_sensitive`` requires
        ADMIN. An ACL denies nothing to a super user.
        """
        needed = _NEEDED[operation]
        if is_sensitive:
            by_table = Rights.ADMIN in self.rights
        else:
            by_table = bool(self.rights) if needed is Rights.DESCRIBE else needed in self.rights
        if self.authorizer is None or not self.name or needed is Rights.VOTE:
            return by_table
        if by_table and self._is_super_user:
            return True
        if needed not in _rights_on(self.listener):
            return False
        allowed = self.authorizer.authorize(self._acl_name, self.host, operation, resource)
        return by_table if allowed is None else allowed

    @property
    def possible_rights(self) -> Rights:
        """Return the rights that it has on at least one resource."""
        if self.authorizer is None or not self.name:
            return self.rights
        found = Rights.NONE
        for operation in self.authorizer.allowed_operations(self._acl_name, self.host):
            found |= _NEEDED[operation] | Rights.DESCRIBE
        return self.rights | (found & _rights_on(self.listener) & ~Rights.VOTE)

    @property
    def is_decided(self) -> bool:
        """Return whether its requests can be decided: the ACLs are loaded or not needed."""
        return self.authorizer is None or self._is_super_user or self.authorizer.is_ready

    @property
    def has_acls(self) -> bool:
        """Return whether ACLs also apply to its requests."""
        return self.authorizer is not None

    @property
    def may_have_tokens(self) -> bool:
        """Return whether it may create, renew and expire delegation tokens of its own."""
        return bool(self.possible_rights) and self.name not in ("", ANONYMOUS)

    @property
    def may_change(self) -> bool:
        """Return whether it may change something: the settings of a resource, or its tokens."""
        return Rights.ADMIN in self.possible_rights or self.may_have_tokens

    @property
    def _is_super_user(self) -> bool:
        return bool(self.rights & (Rights.ADMIN | Rights.VOTE))

    @property
    def kafka_name(self) -> str:
        """Return its name in the form of Kafka's ACLs and quotas."""
        return KAFKA_ANONYMOUS if self.name == ANONYMOUS else self.name

    @property
    def _acl_name(self) -> str:
        return f"User:{self.kafka_name}"

    @property
    def is_node(self) -> bool:
        """Return whether it may send a node's requests."""
        return Rights.VOTE in self.rights

    def may_act_as(self, node_id: int) -> bool:
        """Return whether it may send requests as this node. If a certificate identifies a node,
        only that node's id is accepted."""
        return self.is_node and self.node_id in (None, node_id)

    def may_commit(self, application_id: str) -> bool:
        """Return whether it may append commits of an application id, and take that id over."""
        is_owner = self.commits is None or self.commits.owns(application_id)
        return is_owner and Rights.APPEND in self.rights

    def may_read_commit(self, application_id: str) -> bool:
        """Return whether it may read the last commit of an application id."""
        if self.authorizer is not None:
            return self.may(Operation.DESCRIBE, Resource(ResourceType.GROUP, application_id))
        return bool(self.rights & (Rights.READ | Rights.ADMIN)) or self.may_commit(application_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessTable:
    """Rights by the names in certificates: the ``[access]`` table.

    ``describe`` to ``admin`` hold patterns of names, in which ``*`` matches any text. No pattern
    matches ``anonymous``; it must be listed by name. READ, APPEND and ADMIN imply DESCRIBE, as in
    Kafka. ``nodes``: the certificate name of each node id. ``node_names``: a pattern for other
    nodes, in which ``{id}`` is the node id. Every certificate whose name matches it has a voter's
    rights, even if no node has that id. It cannot depose a leader or use up epochs, but it can
    disturb elections.

    ``commits``: patterns of application ids by patterns of names. None means any application id if
    ``append`` is a single name, and otherwise ``OWN_COMMITS``, so that no principal can use
    another's id. ADMIN may use any application id and create any number of groups.
    ``commit_names_max``: see ``CommitAccess``; ``groups_max``: see ``Principal``.

    ``principal_mapping_rules``: rules for the names in certificates (``principal_mapping``), except
    nodes' certificates; None: the common name.
    """

    describe: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    append: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()
    nodes: Mapping[int, str] = field(default_factory=dict)
    node_names: str | None = None
    commits: Mapping[str, tuple[str, ...]] | None = None
    commit_names_max: int = COMMITS_PER_PRINCIPAL_MAX
    groups_max: int = GROUPS_PER_PRINCIPAL_MAX
    principal_mapping_rules: str | None = None

    def rights_of(self, name: str) -> Rights:
        """Return the rights of a name before the listener limits them; none for an empty name."""
        given = Rights.NONE
        for right, patterns in (
            (Rights.DESCRIBE, self.describe),
            (Rights.READ | Rights.DESCRIBE, self.read),
            (Rights.APPEND | Rights.DESCRIBE, self.append),
            (Rights.ADMIN | Rights.DESCRIBE, self.admin),
        ):
            if any(_matches(pattern, name) for pattern in patterns):
                given |= right
        return given

    def commits_of(self, name: str) -> CommitAccess | None:
        """Return the application ids of a name; None if it may use any."""
        is_one_party = len(self.append) == 1 and "*" not in self.append[0]
        if Rights.ADMIN in self.rights_of(name) or (self.commits is None and is_one_party):
            return None
        commits = OWN_COMMITS if self.commits is None else self.commits
        found = tuple(
            one
            for pattern, patterns in commits.items()
            if _matches(pattern, name)
            for one in patterns
        )
        return CommitAccess(name, found, self.commit_names_max)

    def groups_of(self, name: str) -> int | None:
        """Return how many consumer groups a name may create; None for any number."""
        return None if Rights.ADMIN in self.rights_of(name) else self.groups_max

    def node_of(self, certificate: PeerCertificate) -> int | None:
        """Return the node that a certificate identifies; None if it names no node or several."""
        proven = {self._node_named(name.lower()) for name in certificate_names(certificate)}
        proven.discard(None)
        return proven.pop() if len(proven) == 1 else None

    def name_of(self, node_id: int) -> str | None:
        """Return the certificate name of a node; None if the table has none."""
        name = self.nodes.get(node_id)
        if name is None and self.node_names is not None and node_id >= 0:
            name = self.node_names.replace(NODE_ID_PLACEHOLDER, str(node_id))
        return name

    def _node_named(self, name: str) -> int | None:
        for node_id, known in self.nodes.items():
            if known.lower() == name:
                return node_id
        if self.node_names is None:
            return None
        before, _, after = self.node_names.lower().partition(NODE_ID_PLACEHOLDER)
        match = re.fullmatch(f"{re.escape(before)}(0|[1-9][0-9]{{0,9}}){re.escape(after)}", name)
        if match is None or int(match[1]) > NODE_ID_MAX or int(match[1]) in self.nodes:
            return None
        return int(match[1])


def principal_of(
    certificate: PeerCertificate | None,
    listener: ListenerConfig,
    access: AccessTable,
    user: str | None = None,
    *,
    certificate_der: bytes | None = None,
    host: str = "0.0.0.0",
    authorizer: Authorizer | None = None,
) -> Principal:
    """Return the principal of a connection to ``listener``.

    If there is an ``authorizer``, the connection has authenticated by certificate or SASL; clients
    of other listeners cannot be distinguished. ``certificate`` is the verified result of
    ``getpeercert()``, None if the client presented none; ``certificate_der`` is the same in DER,
    for rules. ``user`` has authenticated with SASL; it is None before that. On a listener with SASL
    a certificate gives no name and no rights.
    """
    allowed = _rights_on(listener.listener)
    if listener.tls is None and listener.sasl is None:
        return Principal(
            name=ANONYMOUS,
            node_id=None,
            listener=listener.listener,
            rights=allowed,
            groups_max=access.groups_max,
            host=host,
        )
    name, node_id = ANONYMOUS, None
    if listener.sasl is not None:
        name = user or ""
    elif certificate:
        rules = access.principal_mapping_rules
        name = _principal(certificate) if rules is None else _mapped(rules, certificate_der)
        node_id = access.node_of(certificate) if Listener.VOTERS in listener.listener else None
    rights = access.rights_of(name)
    if node_id is not None:
        rights |= Rights.VOTE | Rights.DESCRIBE
    elif listener.listener == Listener.VOTERS and Rights.ADMIN not in rights:
        rights = Rights.NONE  # a client's certificate gives no right on the listener for voters
    return Principal(
        name=name,
        node_id=node_id,
        listener=listener.listener,
        rights=rights & allowed,
        commits=access.commits_of(name),
        groups_max=access.groups_of(name),
        certificate_serial=(certificate or {}).get("serialNumber"),
        not_after=(certificate or {}).get("notAfter"),
        host=host,
        authorizer=authorizer,
    )


def forwarded_principal(
    sender: Principal,
    name: str,
    access: AccessTable,
    *,
    host: str = "0.0.0.0",
    authorizer: Authorizer | None = None,
    are_clients_known: bool = False,
) -> Principal:
    """Return the principal of a request that node ``sender`` forwarded for a client at ``host``.

    ``sender`` has authenticated the client. ``are_clients_known``: the nodes authenticate their
    clients. The principal has the rights that the table gives ``name``, except a replica's. On a
    listener without TLS, where clients cannot be distinguished, it has all other rights of the
    listener, unless the nodes know their clients: a standby forwards even for users without any
    right. A client that has not authenticated to the broker is ``anonymous``, which no pattern
    matches.
    """
    if name == KAFKA_ANONYMOUS:
        name = ANONYMOUS
    is_known = are_clients_known or sender.name != ANONYMOUS
    rights = (access.rights_of(name) if is_known else sender.rights) & ~Rights.VOTE
    return replace(
        sender,
        name=name,
        node_id=None,
        rights=rights,
        commits=access.commits_of(name) if is_known else sender.commits,
        groups_max=access.groups_of(name) if is_known else sender.groups_max,
        host=host,
        authorizer=authorizer if is_known else None,
    )


def host_text(host: str) -> str:
    """Return an address in the form of Kafka's ACLs: IPv6 with all eight groups, or an IPv4 address
    if it is a mapped one (Java: ``InetAddress.getHostAddress``)."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = getattr(address, "ipv4_mapped", None)
    if isinstance(address, ipaddress.IPv4Address) or mapped is not None:
        return str(mapped or address)
    return ":".join(f"{int(group, 16):x}" for group in address.exploded.split(":"))


def certificate_names(certificate: PeerCertificate) -> tuple[str, ...]:
    """Return the names in a certificate, without wildcards: the common name, if there is only one,
    and then the DNS names."""
    names = [
        value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS" and value
    ]
    common = _common_names(certificate)
    if len(common) == 1:
        names.insert(0, common[0])
    return tuple(name for name in dict.fromkeys(names) if "*" not in name)


def _principal(certificate: PeerCertificate) -> str:
    """Return the only common name, otherwise the only DNS name; empty if ambiguous."""
    common = _common_names(certificate)
    names = common or list(certificate_names(certificate))
    return names[0] if len(names) == 1 and names[0].isprintable() else ""


def _mapped(rules: str, certificate: bytes | None) -> str:
    """Return the name that the rules give a certificate; empty if no rule matches."""
    name = "" if certificate is None else mapped_name(rules, certificate)
    return name if name.isprintable() else ""


def _common_names(certificate: PeerCertificate) -> list[str]:
    subject: Iterable[Iterable[tuple[str, str]]] = certificate.get("subject", ())
    return [value for part in subject for kind, value in part if kind == "commonName" and value]


@functools.cache
def _rights_on(listener: Listener) -> Rights:
    """Return the rights that a principal can have on a listener."""
    rights = Rights.DESCRIBE | Rights.ADMIN
    if Listener.CLIENTS in listener:
        rights |= Rights.READ | Rights.APPEND
    if Listener.VOTERS in listener:
        rights |= Rights.VOTE
    return rights


def _matches(pattern: str, name: str) -> bool:
    if not name or (name == ANONYMOUS and pattern != ANONYMOUS):
        return False
    expression = ".*".join(map(re.escape, pattern.split("*")))
    return re.fullmatch(expression, name) is not None


@functools.lru_cache(maxsize=1024)
def _ids_of(name: str, patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Return a regex for a principal's application ids; without patterns it matches nothing."""
    mark = re.escape(PRINCIPAL_PLACEHOLDER)
    found = [
        ".*".join(re.escape(part).replace(mark, re.escape(name)) for part in one.split("*"))
        for one in patterns
    ]
    return re.compile("|".join(found) if found else "(?!)", re.DOTALL)
