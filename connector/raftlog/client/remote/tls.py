"""How a client proves itself and whom it believes: TLS by files in PEM form.

Rules of this file:

1. Without a CA's file the connection is plain text. With one the node's name is checked, too,
   unless it is said that it shall not be.
2. Only paths are kept, for they travel to other processes; a key's password is in no ``repr``.
"""

from __future__ import annotations

import logging
import os
import ssl
from dataclasses import dataclass, field
from typing import Final

from raftlog.errors import OptionError
from raftlog.storage.file_rights import change_by_others, read_by_others

_LOGGER: Final = logging.getLogger("raftlog")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """Paths of PEM files: the CA that signed the nodes' certificates; this client's certificate
    (with its chain) and key, if the nodes ask for one.

    ``check_host``: whether a node's certificate must name the host that is connected to (Kafka:
    ``ssl.endpoint.identification.algorithm``).
    """

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    check_host: bool = True

    def __post_init__(self) -> None:
        if self.ca is None and any((self.certificate, self.key, self.key_password)):
            reason = "it is missing: a certificate is shown only to nodes that a CA vouches for"
            raise OptionError(option="tls_ca", reason=reason)
        if self.certificate is None and (self.key or self.key_password):
            raise OptionError(option="tls_certificate", reason="it is missing beside the key")


NO_TLS = TlsOptions()


def tls_from_files(
    ca: str | os.PathLike[str] | None,
    certificate: str | os.PathLike[str] | None,
    key: str | os.PathLike[str] | None,
    key_password: str | None,
    check_host: bool,
) -> TlsOptions:
    """The options of whoever connects by a call. Raises ``OptionError``."""
    return TlsOptions(
        ca=_path(ca),
        certificate=_path(certificate),
        key=_path(key),
        key_password=key_password,
        check_host=check_host,
    )


def _path(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)


def tls_context(options: TlsOptions) -> ssl.SSLContext | None:
    """What connections are made with; None for plain text.

    Raises ``OptionError`` for a file that cannot be read or is not what it should be.
    """
    if options.ca is None:
        return None
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=options.ca)
    except (OSError, ssl.SSLError) as error:
        raise OptionError(option="tls_ca", reason=_reason(error)) from None
    context.check_hostname = options.check_host
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if options.certificate is not None:
        _check_rights(options.key or options.certificate)
        try:
            password = options.key_password or ""  # never ask at the terminal
            context.load_cert_chain(options.certificate, options.key, password)
        except (OSError, ssl.SSLError) as error:
            option = "tls_certificate, tls_key"
            raise OptionError(option=option, reason=_reason(error)) from None
    return context


def _check_rights(path: str) -> None:
    """Refuse a key that other users may change, and warn of one that they may read: what Spark
    copies to its executors they may."""
    try:
        change, reading = change_by_others(path), read_by_others(path)
    except OSError as error:
        raise OptionError(option="tls_certificate, tls_key", reason=_reason(error)) from None
    if change is not None:
        raise OptionError(option="tls_key", reason=change)
    if reading is not None:
        _LOGGER.warning("%s", reading)


def _reason(error: OSError) -> str:
    words = error.strerror or type(error).__name__
    return f"the file cannot be used: {words}"
