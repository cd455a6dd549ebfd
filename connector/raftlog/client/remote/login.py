"""Credentials for a client's SASL authentications: passwords, and tokens for OAUTHBEARER.

Each authentication resolves the references in the options, so that a rotated password or token file
is used without a restart. A token from an endpoint is used until a fifth of its lifetime is left
(Kafka: ``sasl.login.refresh.window.factor``). Calls block, because they read files and use the
network.
"""

from __future__ import annotations

import base64
import datetime
import http.client
import json
import logging
import secrets
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any, Final

from raftlog.errors import OptionError, SaslAuthenticationError
from raftlog.limits import CREDENTIALS_BYTES_MAX
from raftlog.printable import printable
from raftlog.types import SASL_OAUTHBEARER, SASL_PLAIN, SCRAM_HASHES
from raftlog.wire import sasl

from .security import ENDPOINT, ENDPOINT_CA, ClientSecurity, SaslOptions, read_secret

_LOGGER: Final = logging.getLogger("raftlog")
_NONCE_BYTES: Final = 24
_ENDPOINT_TIMEOUT_S: Final = 10
_USED_LIFETIME: Final = 0.8
_CLIENT_ERRORS: Final = range(400, 500)
_RETRIABLE_ERRORS: Final = (408, 429)
_CHECK_TOKEN: Final = "check the source of the token, and its claims"


class TokenEndpointError(Exception):
    """A token endpoint did not answer; a retry may succeed."""


class TokenFunctionError(Exception):
    """The user's ``oauth_token`` raised ``error``, of any class. Its text may contain a secret."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"oauth_token raised {type(error).__name__}")
        self.error: Final = error


class SaslLogin:
    """Source of one client's authentications. Thread-safe."""

    def __init__(self, options: SaslOptions, *, now_s: Callable[[], float] = time.time) -> None:
        """``now_s`` returns seconds since 1970."""
        self._options = options
        self._now_s = now_s
        self._lock = threading.Lock()
        self._token: tuple[str, float] | None = None
        """Token from the endpoint, and the time until which it is used."""
        self._last_token: str | None = None

    @property
    def mechanism(self) -> str:
        return self._options.mechanism

    def begin(self) -> sasl.SaslClient:
        """Return a new authentication. This may block for some seconds.

        Raises ``OptionError``, ``SaslAuthenticationError``, ``TokenEndpointError`` and
        ``TokenFunctionError``.
        """
        options = self._options.resolved()
        mechanism = options.mechanism
        if mechanism == SASL_OAUTHBEARER:
            token = self._token_of(options)
            exchange = sasl.oauthbearer_exchange(token, dict(options.extensions))
            return sasl.SaslClient(mechanism, exchange, secrets=(token,))
        username, password = options.username or "", options.password or ""
        if mechanism == SASL_PLAIN:
            exchange = sasl.plain_exchange(username, password)
        else:
            nonce = secrets.token_urlsafe(_NONCE_BYTES)
            exchange = sasl.scram_exchange(mechanism, username, password, nonce)
        return sasl.SaslClient(mechanism, exchange, secrets=(password,))

    def discard_refused(self) -> str:
        """Discard the token that a node refused; return what to do about the credentials.

        This may block while another authentication waits for a token.
        """
        if self.mechanism != SASL_OAUTHBEARER:
            return (
                "check the user name and the password, and that the user has credentials for "
                f"{self.mechanism}"
            )
        with self._lock:
            token, self._token = self._last_token, None
        expiry_s = None if token is None else sasl.token_expiry_s(token)
        if expiry_s is not None and expiry_s <= self._now_s():
            return f"the token expired at {_utc(expiry_s)}: provide a new one"
        return _CHECK_TOKEN

    # --- tokens -----------------------------------------------------------------------------------

    def _token_of(self, options: SaslOptions) -> str:
        with self._lock:
            token = self._new_token(options)
            if not token or not token.isascii() or not token.isprintable():
                raise _token_error("it is not one line of printable ASCII")
            self._last_token = token
            return token

    def _new_token(self, options: SaslOptions) -> str:
        if options.token is not None:
            return options.token.strip()
        if options.get_token is not None:
            try:
                token = options.get_token()
            except Exception as error:
                raise TokenFunctionError(error) from error
            if not isinstance(token, str):
                raise _token_error(f"oauth_token returned {type(token).__name__}, not str")
            return token
        if options.token_endpoint is None:
            raise _token_error("no source of a token is set")
        if options.token_endpoint.lower().startswith("file:"):
            return _token_file(options.token_endpoint)
        if self._token is None or self._now_s() >= self._token[1]:
            began_s = self._now_s()
            token, lifetime_s = _request_token(options)
            expiry_s = sasl.token_expiry_s(token)
            if expiry_s is not None:
                lifetime_s = expiry_s - began_s
            self._token = token, began_s + max(lifetime_s, 0) * _USED_LIFETIME
        return self._token[0]


def _token_file(url: str) -> str:
    path = urllib.parse.unquote(urllib.parse.urlsplit(url).path)
    try:
        return read_secret(ENDPOINT, path).strip()
    except OptionError as error:  # the file may be missing while it is being replaced
        raise _token_error(error.reason) from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Handler that follows no redirects: they would send the client's secret to another host."""

    def redirect_request(self, *_args: Any) -> None:
        return None


def open_endpoint(request: urllib.request.Request, ca: str | None) -> bytes:
    """Return the body of a response, up to one byte more than ``CREDENTIALS_BYTES_MAX``.

    This may block for some seconds. No redirect is followed. ``ca``: CA file for an https URL.
    Raises ``OptionError`` for ``ca``, and the errors of ``urllib``.
    """
    opener = urllib.request.build_opener(
        urllib.request.HTTPSHandler(context=_endpoint_context(ca)), _NoRedirects
    )
    with opener.open(request, timeout=_ENDPOINT_TIMEOUT_S) as response:
        data: bytes = response.read(CREDENTIALS_BYTES_MAX + 1)
    return data


def _request_token(options: SaslOptions) -> tuple[str, float]:
    """Return a token from the endpoint and its lifetime in seconds (RFC 6749, section 4.4).

    As in Kafka, the client's id and secret are sent in the Authorization header.
    """
    url = options.token_endpoint or ""
    shown = _shown(url)
    fields = {"grant_type": "client_credentials"} | (
        {"scope": options.scope} if options.scope else {}
    )
    pair = f"{options.client_id}:{options.client_secret}".encode()
    request = urllib.request.Request(
        url,
        data=urllib.parse.urlencode(fields).encode("ascii"),
        headers={
            "Authorization": f"Basic {base64.b64encode(pair).decode('ascii')}",
            "Accept": "application/json",
        },
        method="POST",
    )
    try:
        data = open_endpoint(request, options.endpoint_ca)
    except urllib.error.HTTPError as error:
        with error:
            if error.code in _CLIENT_ERRORS and error.code not in _RETRIABLE_ERRORS:
                raise _token_error(f"{shown} refused the client with HTTP {error.code}") from None
            raise TokenEndpointError(f"{shown} answered with HTTP {error.code}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None)
        if isinstance(reason, ssl.SSLCertVerificationError):
            text = f"{shown}: {reason.verify_message}"
            raise _token_error(text, f"check {ENDPOINT_CA}, the CA of the endpoint") from None
        raise TokenEndpointError(f"{shown}: {type(reason or error).__name__}") from None
    return _parse_token(data, shown)


def _parse_token(data: bytes, shown: str) -> tuple[str, float]:
    try:
        found = json.loads(data) if len(data) <= CREDENTIALS_BYTES_MAX else None
    except (ValueError, RecursionError):
        found = None
    token = found.get("access_token") if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(token, str):
        raise _token_error(f"{shown} returned no access_token")
    return token, sasl.seconds_of(found.get("expires_in")) or 0.0


def _endpoint_context(ca: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        reason = f"{ca} cannot be used: {error.strerror or type(error).__name__}"
        raise OptionError(option=ENDPOINT_CA, reason=reason) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _shown(url: str) -> str:
    """Return a URL without its user, query and fragment, which may be secrets.

    Raises ``OptionError`` if it is not a URL, which may be a reference's value.
    """
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        raise OptionError(option=ENDPOINT, reason="it is no valid URL") from None
    host = parts.netloc.rpartition("@")[2]
    return printable(f"{parts.scheme}://{host}{parts.path}")


def _token_error(reason: str, remedy: str = _CHECK_TOKEN) -> SaslAuthenticationError:
    return SaslAuthenticationError(
        path=SASL_OAUTHBEARER, reason=f"no token: {reason}", remedy=remedy
    )


def _utc(seconds: float) -> str:
    try:
        moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    except (OverflowError, OSError, ValueError):
        return f"{seconds:.0f} s since 1970"
    return moment.isoformat(timespec="seconds")


def warn_of_plain_secrets(security: ClientSecurity) -> None:
    """Log a warning if a password or a token would be readable on the network."""
    if security.sasl is None or security.tls is not None:
        return
    if security.sasl.mechanism in SCRAM_HASHES:
        return
    _LOGGER.warning(
        "%s sends its secret over the network in clear text: use security.protocol=SASL_SSL",
        security.sasl.mechanism,
    )
