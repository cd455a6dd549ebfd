"""TLS contexts of a node: for who calls, and for whom it calls.

Rules of this file:

1. TLS 1.2 at least, a certificate of the listener's own CA and of nobody else's; the system's CAs
   count for nothing. Voters always show a certificate; sessions are never resumed, so that every
   connection is judged by the certificates of today.
2. A node that is called must prove the id that it is called by, before a byte is sent to it; a
   bootstrap server, whose id is not known yet, must prove to be one of the nodes. The name of the
   host is not looked at: names of nodes are told by ``[access.nodes]``.
3. Files are read when contexts are made, and by ``reload``, which keeps the old contexts if a file
   is wrong, and the table of rights that goes with them. Connections that are open stay open.
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
    """All that was made of one look at the files, and whom their names stand for."""

    access: AccessTable
    listeners: dict[ListenerConfig, ssl.SSLContext] = field(default_factory=dict)
    peers: dict[int, ssl.SSLContext] = field(default_factory=dict)


class TlsContexts:
    """The contexts of one node. Raises ``ConfigError`` for files that cannot be used."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._contexts = self._load(config.access)

    @property
    def access(self) -> AccessTable:
        """What certificates' names give now."""
        return self._contexts.access

    def for_listener(self, listener: ListenerConfig) -> ssl.SSLContext | None:
        """What a new connection to a listener is accepted with; None without TLS."""
        return self._contexts.listeners.get(listener)

    def for_peer(self, node_id: int) -> ssl.SSLContext | None:
        """What a node is called with; None without TLS. A bootstrap server has an id below zero.

        Raises ``ssl.SSLError`` for a node that was never called, if a file has become wrong since.
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

    def reload(self, access: AccessTable | None = None) -> None:
        """Read all files again, and take this table: for the connections to come.

        Without a table the present one stays. Raises ``ConfigError``: then everything stays as it
        was.
        """
        access = self.access if access is None else access
        self._contexts = self._load(access)

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


def server_context(tls: TlsConfig) -> ssl.SSLContext:
    """What calls are accepted with. Raises ``ConfigError``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _prepare(context, tls)
    context.verify_mode = ssl.CERT_REQUIRED if tls.is_certificate_required else ssl.CERT_OPTIONAL
    context.num_tickets = 0
    return context


def peer_context(tls: TlsConfig, access: AccessTable, node_id: int) -> ssl.SSLContext:
    """What a node is called with, which has to prove this id; any node's if it is below zero.

    The handshake fails with ``ssl.SSLCertVerificationError`` if it does not. Raises
    ``ConfigError``.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    _prepare(context, tls)
    assert context.verify_mode == ssl.CERT_REQUIRED, "Python's default for clients"

    class ProvenPeer(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()  # raises as long as it is not over
            reason = _not_proven(self.getpeercert(), access, node_id)
            if reason is not None:
                raise ssl.SSLCertVerificationError(1, reason)

    context.sslobject_class = ProvenPeer
    return context


def _not_proven(
    certificate: Mapping[str, Any] | None, access: AccessTable, node_id: int
) -> str | None:
    """Why a certificate does not prove a node's id, or None."""
    if not certificate:
        return "it shows no certificate"
    proven = access.node_of(certificate)
    if proven is not None and (proven == node_id or node_id < 0):
        return None
    names = ", ".join(certificate_names(certificate)) or "nobody"
    wanted = "a node" if node_id < 0 else f"node {node_id}"
    expected = access.name_of(node_id)
    advice = "see [access.nodes]" if expected is None else f"its name is {expected}"
    return f"its certificate names {names}, and that does not prove {wanted}: {advice}"


def _prepare(context: ssl.SSLContext, tls: TlsConfig) -> None:
    """What both sides have in common."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    _check_key_file(tls.key)
    try:
        # An encrypted key must fail: nobody is there to be asked for its password.
        context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    except OSError as error:  # ssl.SSLError is one
        reason = _reason(error, tls.certificate, "certificate and key")
        raise ConfigError(path=tls.certificate, key=None, reason=reason) from None
    try:
        context.load_verify_locations(cafile=tls.ca)
    except OSError as error:
        reason = _reason(error, tls.ca, "certificates of a CA")
        raise ConfigError(path=tls.ca, key=None, reason=reason) from None
    if not context.get_ca_certs():
        raise ConfigError(path=tls.ca, key=None, reason="it holds no certificate of a CA")


def _check_key_file(path: str) -> None:
    try:
        reason = change_by_others(path) or read_by_others(path)
    except OSError as error:
        words = (error.strerror or "it cannot be read").lower()
        raise ConfigError(path=path, key=None, reason=f"the key cannot be read: {words}") from None
    if reason is not None:
        raise ConfigError(path=path, key=None, reason=reason)


class _PasswordAskedError(OSError):
    """The key is encrypted."""


def _no_password() -> str:
    raise _PasswordAskedError("the key is encrypted")


def _reason(error: OSError, path: str, what: str) -> str:
    if isinstance(error, _PasswordAskedError):
        return "its key is encrypted: give it without a password, in a file of mode 0600"
    if isinstance(error, ssl.SSLError):
        word = (error.reason or "").replace("_", " ").lower()
        return f"{what} in PEM form were expected" + (f": {word}" if word else "")
    return f"it cannot be read: {(error.strerror or 'no reason given').lower()}"
