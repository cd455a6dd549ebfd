"""Settings of a running node that a reload changes: all of them, or none.

These are the certificates, the revocation lists, the users, and ``[access]`` and the quotas in the
configuration file. They are read when the node starts and by ``reload``, which reads everything
before it replaces anything, so that all old settings stay in use after an error.

Open connections stay open unless a CA was removed or a certificate was revoked since they were
verified. In that case the listener's connections are closed, because it is not known which CAs and
certificates are in their chains (``trusts``). Their peers connect again, and the handshake decides.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from .access import AccessTable
from .certificates import CertificateExpiry, read_expiries
from .client_quotas import ClientQuota, QuotaTable
from .config import ListenerConfig, NodeConfig
from .errors import ConfigError
from .sasl import Users, read_users
from .tls import peer_context, revoked_certificates, server_context


@dataclass(slots=True)
class _Loaded:
    """Settings from one reading of all files, and the TLS contexts that were created from them.

    ``users``: users of the listener with SASL; no users without one.
    """

    access: AccessTable
    quotas: QuotaTable
    users: Users = field(default_factory=lambda: Users({}, b""))
    listeners: dict[ListenerConfig, ssl.SSLContext] = field(default_factory=dict)
    peers: dict[int, ssl.SSLContext] = field(default_factory=dict)
    expiries: tuple[CertificateExpiry, ...] = ()


class ReloadableSettings:
    """Settings of one node that are in use. Raises ``ConfigError`` for unusable files."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._revoked: WeakKeyDictionary[ssl.SSLContext, frozenset[bytes]] = WeakKeyDictionary()
        """Revoked certificates by context, including contexts of open connections."""
        self._loaded = self._load(config.access, config.quotas)

    @property
    def access(self) -> AccessTable:
        """Return the current access table."""
        return self._loaded.access

    @property
    def quotas(self) -> QuotaTable:
        """Return the current quotas in the configuration file."""
        return self._loaded.quotas

    def users(self) -> Users:
        """Return the current users of the listener with SASL; no users without one."""
        return self._loaded.users

    def expiries(self) -> tuple[CertificateExpiry, ...]:
        """Return the expiry of each certificate in the files."""
        return self._loaded.expiries

    def for_listener(self, listener: ListenerConfig) -> ssl.SSLContext | None:
        """Return the context for new connections to a listener; None without TLS."""
        return self._loaded.listeners.get(listener)

    def for_peer(self, node_id: int) -> ssl.SSLContext | None:
        """Return the context for connections to a node; None without TLS.

        A bootstrap server has a negative id. Raises ``ssl.SSLError`` if a file has become unusable
        before the first connection to this node.
        """
        voters = self._config.voters
        if voters is None or voters.tls is None:
            return None
        key = max(node_id, -1)
        found = self._loaded.peers.get(key)
        if found is None:
            try:
                found = peer_context(voters.tls, self.access, node_id)
            except ConfigError as error:
                raise ssl.SSLError(1, error.message()) from None
            self._loaded.peers[key] = found
        return found

    def trusts(self, listener: ListenerConfig, verified: ssl.SSLContext) -> bool:
        """Return whether a connection's certificate is still trusted: all CAs of its context are
        still in use, and no certificate has been revoked since."""
        return self._accepts(self.for_listener(listener), verified)

    def _accepts(self, context: ssl.SSLContext | None, verified: ssl.SSLContext) -> bool:
        """Return whether a context accepts every certificate that another one verified."""
        if context is None or context is verified:
            return context is verified
        cas, more = (one.get_ca_certs(binary_form=True) for one in (verified, context))
        return set(cas) <= set(more) and self._revoked[context] <= self._revoked[verified]

    def reload(
        self, access: AccessTable | None = None, quotas: Sequence[ClientQuota] | None = None
    ) -> bool:
        """Read all files again and use them, ``access`` and ``quotas`` (default: the current ones).

        Return whether a CA of the nodes was removed or one of their certificates was revoked. If it
        raises ``ConfigError``, nothing has changed.
        """
        before = self.for_peer(-1)
        self._loaded = self._load(
            self.access if access is None else access,
            self.quotas.quotas if quotas is None else quotas,
        )
        return before is not None and not self._accepts(self.for_peer(-1), before)

    def _load(self, access: AccessTable, quotas: Sequence[ClientQuota]) -> _Loaded:
        loaded = _Loaded(access, QuotaTable(quotas))
        for listener in self._config.listeners:
            if listener.sasl is not None and listener.sasl.users is not None:
                loaded.users = read_users(listener.sasl.users)
            if listener.tls is not None:
                # Read before OpenSSL reads the file. If the file is replaced in between, the next
                # reload closes connections needlessly instead of keeping a revoked one.
                revoked = revoked_certificates(listener.tls)
                context = loaded.listeners[listener] = server_context(listener.tls)
                self._revoked[context] = revoked
        voters = self._config.voters
        if voters is not None and voters.tls is not None:
            revoked = revoked_certificates(voters.tls)
            for node_id in (-1, *access.nodes):
                loaded.peers[node_id] = peer_context(voters.tls, access, node_id)
            self._revoked[loaded.peers[-1]] = revoked
        loaded.expiries = read_expiries(self._config)
        return loaded
