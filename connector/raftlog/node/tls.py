"""TLS contexts of a node, for its listeners and its connections to nodes.

TLS 1.3 is used, or 1.2 if the configuration allows it. Certificates must be issued by the
listener's CA; the system's CAs are not trusted. Clients of a listener for voters always need a
certificate. Sessions are not resumed, so that every connection is verified with the current
certificates.

A node that this node connects to must prove its node id in the handshake, before any byte is sent.
A bootstrap server, whose id is unknown, must prove that it is one of the nodes. The host name is
not verified; instead, ``[access.nodes]`` lists the nodes' names.

With ``crl``, the lists of all CAs in a chain are required and must not have expired (OpenSSL:
X509_V_FLAG_CRL_CHECK_ALL).
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final

from raftlog.client.remote.tls import load_revocation_lists
from raftlog.storage.file_rights import change_by_others, read_by_others

from .access import AccessTable, certificate_names
from .config import TlsConfig
from .der import TIMES, der_elements, revocation_lists
from .errors import ConfigError


def server_context(tls: TlsConfig) -> ssl.SSLContext:
    """Return the context of a listener. Raises ``ConfigError``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _prepare(context, tls)
    context.verify_mode = ssl.CERT_REQUIRED if tls.is_certificate_required else ssl.CERT_OPTIONAL
    context.num_tickets = 0
    return context


def peer_context(tls: TlsConfig, access: AccessTable, node_id: int) -> ssl.SSLContext:
    """Return the context for connections to a node, which must prove its id.

    A negative ``node_id`` means any node. The handshake raises ``ssl.SSLCertVerificationError`` if
    the peer does not prove it. Raises ``ConfigError``.
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
    """Return why a certificate does not prove a node id; None if it does."""
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
    versions = ssl.TLSVersion
    context.minimum_version = versions.TLSv1_2 if tls.allows_tls_1_2 else versions.TLSv1_3
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    check_key_file(tls.key)
    try:
        # An encrypted key must fail, because OpenSSL would prompt for the password on the terminal.
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
    if tls.crl is not None:
        _load_revocation_lists(context, tls.crl)


# --- certificate revocation lists -----------------------------------------------------------------

_SEQUENCE: Final = 0x30


def _load_revocation_lists(context: ssl.SSLContext, path: str) -> None:
    try:
        reason = load_revocation_lists(context, path)
    except OSError as error:
        reason = _reason(error, "certificate revocation lists")
    if reason is not None:
        raise ConfigError(path=path, key=None, reason=reason)
    context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_CHAIN


def revoked_certificates(tls: TlsConfig) -> frozenset[bytes]:
    """Return the issuers and serial numbers, in DER, of the revoked certificates in a file that
    OpenSSL has accepted; empty without a file. Raises ``ConfigError``."""
    if tls.crl is None:
        return frozenset()
    try:
        with open(tls.crl, "rb") as file:
            lists = revocation_lists(file.read())
        return frozenset(one for elements in lists for one in _revoked(elements))
    except (OSError, ValueError, IndexError):
        reason = "a certificate revocation list cannot be read"
        raise ConfigError(path=tls.crl, key=None, reason=reason) from None


def _revoked(elements: list[tuple[int, bytes]]) -> list[bytes]:
    """Return the certificates of a list, by issuer and serial number."""
    issuer = elements[0][1]
    rest = [one for one in elements[1:] if one[0] not in TIMES]
    entries = der_elements(rest[0][1]) if rest and rest[0][0] == _SEQUENCE else []
    return [issuer + der_elements(entry)[0][1] for _, entry in entries]


# --- files ----------------------------------------------------------------------------------------


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
