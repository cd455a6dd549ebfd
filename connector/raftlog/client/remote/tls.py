"""TLS of a client: the CA that it trusts and its own certificate, as PEM files.

Without a CA connections are plain text. With one a node's certificate is verified, and its host
name unless that is disabled. Options hold paths, since they are sent to other processes; the
password of the key is not in their ``repr``.
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
    (with its chain) and key, if the nodes require one.

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
            reason = "it is required with a client certificate: only verified nodes get that"
            raise OptionError(option="tls_ca", reason=reason)
        if self.certificate is None and (self.key or self.key_password):
            raise OptionError(option="tls_certificate", reason="it is required with tls_key")


NO_TLS = TlsOptions()


def tls_from_files(
    ca: str | os.PathLike[str] | None,
    certificate: str | os.PathLike[str] | None,
    key: str | os.PathLike[str] | None,
    key_password: str | None,
    check_host: bool,
) -> TlsOptions:
    """Return the TLS options in the arguments of a call. Raises ``OptionError``."""
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
    """Return the TLS context of connections; None for plain text.

    Raises ``OptionError`` for a file that cannot be read or is invalid.
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
            password = options.key_password or ""  # never prompt at the terminal
            context.load_cert_chain(options.certificate, options.key, password)
        except (OSError, ssl.SSLError) as error:
            option = "tls_certificate, tls_key"
            raise OptionError(option=option, reason=_reason(error)) from None
    return context


def _check_rights(path: str) -> None:
    """Refuse a key that other users may change, and warn of one that they may read.

    Keys that Spark copies to its executors are readable by others, so that is not refused.
    """
    try:
        change, reading = change_by_others(path), read_by_others(path)
    except OSError as error:
        raise OptionError(option="tls_certificate, tls_key", reason=_reason(error)) from None
    if change is not None:
        raise OptionError(option="tls_key", reason=change)
    if reading is not None:
        _LOGGER.warning("%s", reading)


def _reason(error: OSError) -> str:
    text = error.strerror or type(error).__name__
    return f"the file cannot be used: {text}"
