"""Who asks, and what that gives the right to.

Rules of this file:

1. Rights come from what was proven on the connection, never from what a message says.
2. With TLS everything is denied that the table does not give. Without it nobody can be told from
   another, and everybody has every right of the listener: that is why such a listener is on
   loopback only.
3. A listener bounds what its callers may do: nobody is a replica on the one for clients, and
   nobody reads or appends on the one for voters.
4. A certificate that names several nodes proves none of them (CVE-2018-1288: who fetches under a
   replica's id moves the high watermark).
5. An application id of named commits belongs to the principals whose patterns match it. That is
   configuration, as Kafka's ACLs of transactional ids are: the log holds no owners, so nothing has
   to be replicated, kept in snapshots or migrated to tell whose an application id is.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from raftlog.limits import COMMITS_PER_PRINCIPAL_MAX
from raftlog.wire import Listener

from .addresses import NODE_ID_MAX

if TYPE_CHECKING:
    from .config import ListenerConfig

ANONYMOUS: Final = "anonymous"
"""Who has shown no certificate, in Kafka's word for it (Kafka: ``User:ANONYMOUS``)."""

NODE_ID_PLACEHOLDER: Final = "{id}"
PRINCIPAL_PLACEHOLDER: Final = "{name}"
"""In a pattern of application ids: the name of the principal."""

OWN_COMMITS: Final[Mapping[str, tuple[str, ...]]] = dict.fromkeys(
    ("*", ANONYMOUS), (PRINCIPAL_PLACEHOLDER, f"{PRINCIPAL_PLACEHOLDER}:*")
)
"""The application ids of each principal where a node's file gives none: ``a`` and ``a:*`` of a."""

PeerCertificate: TypeAlias = Mapping[str, Any]
"""What ``SSLSocket.getpeercert()`` gives: of a certificate that was verified."""


class Rights(enum.Flag):
    """What a caller may do. Without any a request is refused."""

    NONE = 0
    DESCRIBE = enum.auto()
    READ = enum.auto()
    APPEND = enum.auto()
    ADMIN = enum.auto()
    """Change voters, and who is told about others."""
    VOTE = enum.auto()
    """Be a replica: fetch under a node's id, ask for votes, lead."""


@dataclass(frozen=True, slots=True)
class CommitAccess:
    """Application ids of named commits that belong to a principal.

    ``patterns`` of them, where ``*`` stands for anything and ``{name}`` for the principal's
    ``name``. ``names_max``: how many the log may remember of it before another one is refused.
    """

    name: str
    patterns: tuple[str, ...]
    names_max: int = COMMITS_PER_PRINCIPAL_MAX

    def owns(self, application_id: str) -> bool:
        """Return whether an application id is one of the principal's."""
        return _ids_of(self.name, self.patterns).fullmatch(application_id) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who asks on a connection.

    ``name`` is the certificate's, or ``anonymous``; ``node_id`` is that of the node whose
    certificate it is, None if none is proven. ``commits``: the application ids that it may commit
    under; None: all.
    """

    name: str
    node_id: int | None
    listener: Listener
    rights: Rights
    commits: CommitAccess | None = None

    def may_commit(self, application_id: str) -> bool:
        """Return whether it may append commits of an application, and take its name over."""
        is_owner = self.commits is None or self.commits.owns(application_id)
        return is_owner and Rights.APPEND in self.rights

    def may_read_commit(self, application_id: str) -> bool:
        """Return whether it may ask for the last commit of an application."""
        return bool(self.rights & (Rights.READ | Rights.ADMIN)) or self.may_commit(application_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessTable:
    """What certificates' names give.

    Each of ``describe`` to ``admin`` holds patterns of names, where ``*`` stands for anything;
    ``anonymous`` is meant by its own name alone, never by a pattern. READ, APPEND and ADMIN bring
    DESCRIBE, as in Kafka. ``nodes``: the one name in a certificate that proves a node's id; for
    nodes that are not there, ``node_names``, in which ``{id}`` stands for it: then every
    certificate whose name fits the pattern has the rights of a voter, also of an id that is no
    node's. It may not depose a leader in office, nor use up epochs, but it may disturb elections.

    ``commits``: by patterns of names, patterns of the application ids that these may commit under;
    None: any, if ``append`` is one name and no pattern; otherwise those of ``OWN_COMMITS``, so that
    of several principals none takes another's. ``commit_names_max``: see ``CommitAccess``. ADMIN
    may use any application id.
    """

    describe: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    append: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()
    nodes: Mapping[int, str] = field(default_factory=dict)
    node_names: str | None = None
    commits: Mapping[str, tuple[str, ...]] | None = None
    commit_names_max: int = COMMITS_PER_PRINCIPAL_MAX

    def rights_of(self, name: str) -> Rights:
        """What a name is given, whatever the listener. Nothing for an empty one."""
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

    def node_of(self, certificate: PeerCertificate) -> int | None:
        """The one node whose name a certificate bears; None if it bears none, or several."""
        proven = {self._node_named(name.lower()) for name in certificate_names(certificate)}
        proven.discard(None)
        return proven.pop() if len(proven) == 1 else None

    def name_of(self, node_id: int) -> str | None:
        """The name by which a node proves its id; None if it cannot."""
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
) -> Principal:
    """Who is at the other end of a connection to ``listener``.

    ``certificate`` is the verified one of ``getpeercert()``; None if none was shown.
    """
    allowed = _rights_on(listener.listener)
    if listener.tls is None:
        return Principal(
            name=ANONYMOUS,
            node_id=None,
            listener=listener.listener,
            rights=allowed,
        )
    name, node_id = ANONYMOUS, None
    if certificate:
        name = _principal(certificate)
        node_id = access.node_of(certificate) if Listener.VOTERS in listener.listener else None
    rights = access.rights_of(name)
    if node_id is not None:
        rights |= Rights.VOTE | Rights.DESCRIBE
    elif listener.listener == Listener.VOTERS and Rights.ADMIN not in rights:
        rights = Rights.NONE  # a client's certificate opens nothing there
    return Principal(
        name=name,
        node_id=node_id,
        listener=listener.listener,
        rights=rights & allowed,
        commits=access.commits_of(name),
    )


def certificate_names(certificate: PeerCertificate) -> tuple[str, ...]:
    """What a certificate names its owner: the common name if there is one only, and the names for
    DNS, without wildcards."""
    names = [
        value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS" and value
    ]
    common = _common_names(certificate)
    if len(common) == 1:
        names.insert(0, common[0])
    return tuple(name for name in dict.fromkeys(names) if "*" not in name)


def _principal(certificate: PeerCertificate) -> str:
    """The common name; without one the only name for DNS; empty if it is not clear."""
    common = _common_names(certificate)
    names = common or list(certificate_names(certificate))
    return names[0] if len(names) == 1 and _is_printable(names[0]) else ""


def _common_names(certificate: PeerCertificate) -> list[str]:
    subject: Iterable[Iterable[tuple[str, str]]] = certificate.get("subject", ())
    return [value for part in subject for kind, value in part if kind == "commonName" and value]


def _rights_on(listener: Listener) -> Rights:
    """All that anybody may do on a listener."""
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
    """Return what matches the application ids of a principal; nothing without a pattern."""
    mark = re.escape(PRINCIPAL_PLACEHOLDER)
    found = [
        ".*".join(re.escape(part).replace(mark, re.escape(name)) for part in one.split("*"))
        for one in patterns
    ]
    return re.compile("|".join(found) if found else "(?!)", re.DOTALL)


def _is_printable(name: str) -> bool:
    return name.isprintable()
