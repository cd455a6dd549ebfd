"""TLS contexts of clients, built from the files in their options."""

from __future__ import annotations

import logging
import ssl
from typing import Final

from raftlog.client.watching import FileStatus, file_status
from raftlog.errors import OptionError
from raftlog.storage.file_rights import change_by_others, read_by_others

from .security import CRL, KEY_PASSWORD, TlsOptions, resolve_references

_LOGGER: Final = logging.getLogger("raftlog")
_KEY_OPTIONS: Final = "ssl.certificate.location, ssl.key.location"


class SslFactory:
    """TLS context for a client's new connections, rebuilt after one of its files changes.

    A process may run longer than its certificate and its revocation lists are valid. If a file is
    unusable, the previous context stays in use. Kafka: ``SslFactory``.
    """

    def __init__(self, options: TlsOptions) -> None:
        """Raises ``OptionError``."""
        self._options: Final = options
        self._versions = self._read_versions()
        self._context = tls_context(options)
        self._refused: list[FileStatus | None] = []
        """Versions of the unusable files that were last logged."""

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection."""
        versions = self._read_versions()
        if versions != self._versions:
            try:
                self._context = tls_context(self._options)
                # read before the files, so that a file that is replaced in between is read again
                self._versions = versions
            except OptionError as error:
                # tried for each connection: a file that becomes readable has the same version
                if versions != self._refused:
                    self._refused = versions
                    _LOGGER.warning("the TLS files were not read again: %s", error)
        return self._context

    def _read_versions(self) -> list[FileStatus | None]:
        """Return a value per file that changes with its content; None if the file is missing."""
        options = self._options
        paths = (options.ca, options.crl, options.certificate, options.key)
        return [_version(path) for path in paths if path is not None]


def _version(path: str) -> FileStatus | None:
    try:
        return file_status(path)
    except OSError:
        return None


def context_of(tls: SslFactory | None) -> ssl.SSLContext | None:
    """Return the TLS context for a new connection; None without TLS."""
    return None if tls is None else tls.context()


def tls_context(options: TlsOptions) -> ssl.SSLContext:
    """Return the TLS context of connections.

    Raises ``OptionError`` for a file that cannot be read or is invalid.
    """
    try:
        context = ssl.create_default_context(
            ssl.Purpose.SERVER_AUTH, cafile=options.ca, cadata=options.ca_pem
        )
    except (OSError, ValueError) as error:
        option = "ssl.ca.location" if options.ca_pem is None else "ssl.ca.pem"
        raise OptionError(option=option, reason=_reason(error, options.ca)) from None
    if options.crl is not None:
        try:
            reason = load_revocation_lists(context, options.crl)
        except (OSError, ValueError) as error:
            reason = _reason(error, options.crl)
        if reason is not None:
            raise OptionError(option=CRL, reason=reason)
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    context.check_hostname = options.check_host
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if options.certificate is not None:
        _check_rights(options.key or options.certificate)
        # never None: OpenSSL would prompt at the terminal
        password = resolve_references(KEY_PASSWORD, options.key_password or "")
        try:
            context.load_cert_chain(options.certificate, options.key, password)
        except (OSError, ValueError) as error:
            files = " with ".join(filter(None, (options.certificate, options.key)))
            raise OptionError(option=_KEY_OPTIONS, reason=_reason(error, files)) from None
    return context


def load_revocation_lists(context: ssl.SSLContext, path: str) -> str | None:
    """Load the revocation lists in a PEM file, after the CAs; return why it is refused, or None.

    Lists are signed, so files of lists are fetched without TLS. But OpenSSL would trust a
    certificate in such a file as a CA. Certificates of CAs that the context already has are
    ignored. Raises ``OSError``.
    """
    ca_count = context.cert_store_stats()["x509"]
    context.load_verify_locations(cafile=path)
    stats = context.cert_store_stats()
    if not stats["crl"]:
        return "the file contains no certificate revocation list"
    if stats["x509"] > ca_count:
        return "the file contains a certificate, which would become a CA: remove it from the file"
    return None


def _check_rights(path: str) -> None:
    """Refuse a key that other users may change, and warn of one that they may read.

    Others can read the keys that Spark copies to its executors, so readable keys are not refused.
    """
    try:
        change, reading = change_by_others(path), read_by_others(path)
    except OSError as error:
        raise OptionError(option=_KEY_OPTIONS, reason=_reason(error, path)) from None
    if change is not None:
        raise OptionError(option="ssl.key.location", reason=change)
    if reading is not None:
        _LOGGER.warning("%s", reading)


def _reason(error: Exception, path: str | None) -> str:
    """Return why a file, or a text if ``path`` is None, cannot be used."""
    text = getattr(error, "strerror", None) or type(error).__name__
    return f"{path or 'it'} cannot be used: {text}"
