"""TLS contexts of a node, for its listeners and for its connections to other nodes.

TLS 1.2 or later. Certificates must be issued by the CA of the listener; the CAs of the system are
not trusted. Clients of a listener for voters always need a certificate. Sessions are not resumed,
so that every connection is verified with the current certificates.

A node that this node connects to must prove its node id in the handshake, before any byte is sent;
a bootstrap server, whose id is unknown, must prove to be one of the nodes. The host name is not
verified: ``[access.nodes]`` has the names of the nodes.

Files are read when contexts are created, and by ``reload``, which on an error keeps the old
contexts together with their access table. Open connections stay open unless a CA was removed: one
of the CAs that verified them, since which of them did is not known (``trusts``).
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raftlog.errors import ConfigError
from raftlog.storage.file_rights import change_by_others, read_by_others

from .access import AccessTable, certificate_names
from .config import ListenerConfig, NodeConfig, TlsConfig


@dataclass(slots=True)
class _Contexts:
    """Contexts created from one reading of the files, and the access table they use."""

    access: AccessTable
    listeners: dict[ListenerConfig, ssl.SSLContext] = field(default_factory=dict)
    peers: dict[int, ssl.SSLContext] = field(default_factory=dict)


class TlsContexts:
    """TLS contexts of one node. Raises ``ConfigError`` for unusable files."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._contexts = self._load(config.access)

    @property
    def access(self) -> AccessTable:
        """Return the current access table."""
        return self._contexts.access

    def for_listener(self, listener: ListenerConfig) -> ssl.SSLContext | None:
        """Return the context for new connections to a listener, None without TLS."""
        return self._contexts.listeners.get(listener)

    def for_peer(self, node_id: int) -> ssl.SSLContext | None:
        """Return the context for connections to a node, None without TLS.

        A bootstrap server has an id below zero. Raises ``ssl.SSLError`` if a file has become
        unusable before the first connection to this node.
        """
        voters = self._config.voters
        if voters is None or voters.tls is None:
            return None
        key = max(node_id, -1)
        found = self._contexts.peers.get(key)
        if found is None:
            try:
                found = peer_context(voters.tls, self.access, node_id)
            except ConfigError as error:
                raise ssl.SSLError(1, error.message()) from None
            self._contexts.peers[key] = found
        return found

    def trusts(self, listener: ListenerConfig, verified: ssl.SSLContext) -> bool:
        """Return whether all CAs that verified a connection's certificate are still in use."""
        return _has_cas_of(self.for_listener(listener), verified)

    def reload(self, access: AccessTable | None = None) -> bool:
        """Read all files again and use ``access`` (default: the current table) for new connections.

        Return whether a CA of the nodes was removed. Raises ``ConfigError``; then nothing has
        changed.
        """
        access = self.access if access is None else access
        before = self.for_peer(-1)
        self._contexts = self._load(access)
        return before is not None and not _has_cas_of(self.for_peer(-1), before)

    def _load(self, access: AccessTable) -> _Contexts:
        contexts = _Contexts(access)
        for listener in self._config.listeners:
            if listener.tls is not None:
                contexts.listeners[listener] = server_context(listener.tls)
        voters = self._config.voters
        if voters is not None and voters.tls is not None:
            for node_id in (-1, *access.nodes):
                contexts.peers[node_id] = peer_context(voters.tls, access, node_id)
        return contexts


def _has_cas_of(context: ssl.SSLContext | None, other: ssl.SSLContext) -> bool:
    if context is None or context is other:
        return context is other
    return set(other.get_ca_certs(binary_form=True)) <= set(context.get_ca_certs(binary_form=True))


def server_context(tls: TlsConfig) -> ssl.SSLContext:
    """Return the context of a listener. Raises ``ConfigError``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _prepare(context, tls)
    context.verify_mode = ssl.CERT_REQUIRED if tls.is_certificate_required else ssl.CERT_OPTIONAL
    context.num_tickets = 0
    return context


def peer_context(tls: TlsConfig, access: AccessTable, node_id: int) -> ssl.SSLContext:
    """Return the context for connections to a node, which has to prove its id.

    Below zero, ``node_id`` means any node. The handshake raises
    ``ssl.SSLCertVerificationError`` if the peer does not prove it. Raises ``ConfigError``.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    _prepare(context, tls)
    assert context.verify_mode == ssl.CERT_REQUIRED, "Python's default for clients"

    class ProvenPeer(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()  # raises until the handshake is complete
            reason = _not_proven(self.getpeercert(), access, node_id)
            if reason is not None:
                raise ssl.SSLCertVerificationError(1, reason)

    context.sslobject_class = ProvenPeer
    return context


def _not_proven(
    certificate: Mapping[str, Any] | None, access: AccessTable, node_id: int
) -> str | None:
    """Return why a certificate does not prove a node id, None if it does."""
    if not certificate:
        return "the peer presented no certificate"
    proven = access.node_of(certificate)
    if proven is not None and (proven == node_id or node_id < 0):
        return None
    names = ", ".join(certificate_names(certificate)) or "no host"
    wanted = "a node" if node_id < 0 else f"node {node_id}"
    expected = access.name_of(node_id)
    advice = "see [access.nodes]" if expected is None else f"expected {expected}"
    return f"the peer's certificate names {names}, which does not identify {wanted}: {advice}"


def _prepare(context: ssl.SSLContext, tls: TlsConfig) -> None:
    """Set what contexts for servers and clients have in common."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    check_key_file(tls.key)
    try:
        # An encrypted key must fail: OpenSSL would prompt for the password on the terminal.
        context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    except OSError as error:  # ssl.SSLError is one
        reason = _reason(error, "certificate and key")
        raise ConfigError(path=tls.certificate, key=None, reason=reason) from None
    try:
        context.load_verify_locations(cafile=tls.ca)
    except OSError as error:
        reason = _reason(error, "CA certificates")
        raise ConfigError(path=tls.ca, key=None, reason=reason) from None
    if not context.get_ca_certs():
        raise ConfigError(path=tls.ca, key=None, reason="the file contains no CA certificate")


def check_key_file(path: str) -> None:
    """Raise ``ConfigError`` unless only the owner may read and change a key."""
    try:
        reason = change_by_others(path) or read_by_others(path)
    except OSError as error:
        words = (error.strerror or "unknown error").lower()
        raise ConfigError(path=path, key=None, reason=f"cannot read the key: {words}") from None
    if reason is not None:
        raise ConfigError(path=path, key=None, reason=reason)


class _EncryptedKeyError(OSError):
    """The private key is encrypted."""


def _no_password() -> str:
    raise _EncryptedKeyError("the key is encrypted")


def _reason(error: OSError, what: str) -> str:
    if isinstance(error, _EncryptedKeyError):
        return "the key is encrypted: store it without a password, in a file of mode 0600"
    if isinstance(error, ssl.SSLError):
        word = (error.reason or "").replace("_", " ").lower()
        return f"expected {what} in PEM format" + (f": {word}" if word else "")
    return f"cannot be read: {(error.strerror or 'unknown error').lower()}"
