"""SASL on a listener for clients: SCRAM, with credentials in a file of users, and OAUTHBEARER.

A connection authenticates with SaslHandshake and SaslAuthenticate. Before that, only these and
ApiVersions are served. The principal is the user, with the rights that ``[access]`` gives its name.
A wrong password cannot be distinguished from an unknown user, because the challenge for an unknown
user is derived from its name. No password is hashed here, since credentials contain the hashes.

``oauth`` verifies the tokens of OAUTHBEARER. A session ends with its token, as below.

If ``max_reauth_ms`` is set, a session has a lifetime. After that, the connection must authenticate
again, as the same user with the same mechanism, or it is closed at its next request (KIP-368).

Each node has its own file, like ``[access]``, and SIGHUP reloads it. If the node has a controller,
the users in its log (AlterUserScramCredentials) can authenticate too, except users that the file
also has. Any reader of that log has their verifiers, which can be attacked offline. Challenges for
them may differ in iterations and salt lengths from those for unknown users, which are like the
file's.

Source: Kafka ``SaslServerAuthenticator``, ``ScramSaslServer``.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Protocol

from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v2.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse

from raftlog.limits import MIB, SCRAM_ITERATIONS_MAX, SCRAM_ITERATIONS_MIN
from raftlog.storage.file_rights import change_by_others, read_by_others
from raftlog.types import SASL_OAUTHBEARER, SCRAM_HASHES
from raftlog.wire import ApiKey, decode, encode
from raftlog.wire.errors import WireError
from raftlog.wire.sasl import (
    INVALID_TOKEN,
    SaslExchangeError,
    ScramCredential,
    ServerExchange,
    oauthbearer_token,
    scram_credential,
    scram_server_exchange,
)

from .access import ANONYMOUS, KAFKA_ANONYMOUS
from .errors import ConfigError
from .oauth import TokenKey, TokenRefusedError, TokenVerifier, UnknownKeyError
from .request import Request

ITERATIONS: Final = 8_192
"""Iterations of new credentials, and of challenges for unknown users."""
NAME_LENGTH_MAX: Final = 255
_FILE_BYTES_MAX: Final = 16 * MIB
_SALT_BYTES: Final = 20
_UNAUTHENTICATED_APIS: Final = (
    ApiKey.API_VERSIONS,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
)
_REFUSED_TOKEN: Final = "authentication failed: the token is not accepted"
_REFUSED: Final = "authentication failed: the user name or the password is wrong"


class SaslStateError(WireError, code="RAFTLOG_SASL_STATE"):
    """A request is not served before SASL authentication or after the session's lifetime."""

    reason: str

    def message(self) -> str:
        return f"{self.reason}; authenticate by SASL first"


# --- users ----------------------------------------------------------------------------------------


class LogCredentials(Protocol):
    """Credentials in a log."""

    @property
    def is_ready(self) -> bool:
        """Whether it has loaded the committed credentials."""

    def find_credential(self, mechanism: str, user: str) -> ScramCredential | None:
        """Return the credential of a user, None if it has none of this mechanism."""


@dataclass(frozen=True, slots=True)
class Users:
    """Credentials by user and mechanism. ``challenge_key`` derives the salts for unknown users;
    ``log`` has the users that are not in the file."""

    credentials: Mapping[str, Mapping[str, ScramCredential]]
    challenge_key: bytes = field(repr=False)
    log: LogCredentials | None = field(default=None, compare=False, repr=False)

    def find(self, mechanism: str, name: str) -> ScramCredential | None:
        """Return the user's credential for this mechanism, if any. For a user in the file, the log
        is not used."""
        if name in self.credentials or self.log is None or not is_user_name(name):
            return self.credentials.get(name, {}).get(mechanism)
        return self.log.find_credential(mechanism, name)

    @property
    def are_complete(self) -> bool:
        """Return whether the log's users are loaded."""
        return self.log is None or self.log.is_ready

    def challenge_of(self, mechanism: str, name: str) -> ScramCredential:
        """Return a credential without a password, for the challenge to an unknown user."""
        text = f"{mechanism}\0{name}".encode("utf-8", "surrogatepass")
        salt = hmac.digest(self.challenge_key, text, "sha256")[:_SALT_BYTES]
        length = hashlib.new(SCRAM_HASHES[mechanism]).digest_size
        return ScramCredential(salt, ITERATIONS, secrets.token_bytes(length), bytes(length))


def no_users() -> Users:
    """Return the users of a new file."""
    return Users({}, secrets.token_bytes(32))


def with_password(users: Users, name: str, password: str) -> Users:
    """Return the users with a new password, for all mechanisms. Raises ``ValueError``."""
    if not is_user_name(name):
        raise ValueError(
            f"a user's name has 1 to {NAME_LENGTH_MAX} printable characters, and is not "
            f"{ANONYMOUS!r}"
        )
    if not password:
        raise ValueError("the password is empty")
    found = {
        mechanism: scram_credential(
            mechanism, password, salt=secrets.token_bytes(_SALT_BYTES), iterations=ITERATIONS
        )
        for mechanism in SCRAM_HASHES
    }
    return Users({**users.credentials, name: found}, users.challenge_key)


def is_user_name(name: str) -> bool:
    """Return whether a user may have this name."""
    is_reserved = name.lower() in (ANONYMOUS, KAFKA_ANONYMOUS.lower())
    return 0 < len(name) <= NAME_LENGTH_MAX and name.isprintable() and not is_reserved


def read_users(path: str) -> Users:
    """Read a file of users. Raises ``ConfigError`` if it is invalid or others may access it."""
    try:
        reason = change_by_others(path) or read_by_others(path)
        if reason is not None:
            raise ConfigError(path=path, key=None, reason=reason)
        with open(path, "rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        reason = f"cannot be read: {(error.strerror or 'unknown error').lower()}"
        raise ConfigError(path=path, key=None, reason=reason) from None
    try:
        if len(data) > _FILE_BYTES_MAX:
            raise ValueError("too large")
        return _parse_users(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        reason = "not a file of users: create it by `raftlog users`"
        raise ConfigError(path=path, key=None, reason=reason) from None


def change_users(path: str, change: Callable[[Users], Users]) -> None:
    """Replace the users in a file, created if absent, with what ``change`` returns for them.

    Raises ``OSError``, ``ConfigError`` (also while another process changes a file in this
    directory), and the errors of ``change``.
    """
    path = os.path.realpath(path)  # a link to the file stays one
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released if the process dies
        except BlockingIOError:
            reason = "another `raftlog users` changes it: repeat this command once it has ended"
            raise ConfigError(path=path, key=None, reason=reason) from None
        write_users(change(read_users(path) if os.path.lexists(path) else no_users()), path)
        os.fsync(directory)  # a removed user must not return after a power loss
    finally:
        os.close(directory)


def write_users(users: Users, path: str) -> None:
    """Replace a file of users atomically, with mode 0600 and its owner. Raises ``OSError``.

    No other process may write it at the same time (see ``change_users``).
    """
    credentials = {
        name: {mechanism: _to_json(one) for mechanism, one in sorted(found.items())}
        for name, found in sorted(users.credentials.items())
    }
    values = {"challenge_key": _text(users.challenge_key), "users": credentials}
    part = f"{path}.part"
    with contextlib.suppress(FileNotFoundError):  # left by a process that was killed
        os.unlink(part)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            with contextlib.suppress(FileNotFoundError):
                before = os.stat(path)  # root may change the file that the node's user reads
                os.fchown(descriptor, before.st_uid, before.st_gid)
            json.dump(values, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.rename(part, path)
    except BaseException:
        os.unlink(part)
        raise


def _parse_users(values: Any) -> Users:
    found = {
        name: {mechanism: _from_json(mechanism, one) for mechanism, one in credentials.items()}
        for name, credentials in values["users"].items()
    }
    if not all(map(is_user_name, found)):
        raise ValueError("a name is invalid")
    key = base64.b64decode(values["challenge_key"], validate=True)
    if len(key) < hashlib.sha256().digest_size:
        raise ValueError("the key is too short")
    return Users(found, key)


def _from_json(mechanism: str, values: Any) -> ScramCredential:
    salt, stored_key, server_key = (
        base64.b64decode(values[name], validate=True)
        for name in ("salt", "stored_key", "server_key")
    )
    length = hashlib.new(SCRAM_HASHES[mechanism]).digest_size
    iterations = values["iterations"]
    if (
        not salt
        or len(stored_key) != length
        or len(server_key) != length
        or not isinstance(iterations, int)
        or not SCRAM_ITERATIONS_MIN <= iterations <= SCRAM_ITERATIONS_MAX
    ):
        raise ValueError("a credential is invalid")
    return ScramCredential(salt, iterations, stored_key, server_key)


def _to_json(credential: ScramCredential) -> dict[str, object]:
    return {
        "iterations": credential.iterations,
        "salt": _text(credential.salt),
        "stored_key": _text(credential.stored_key),
        "server_key": _text(credential.server_key),
    }


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


# --- connection -----------------------------------------------------------------------------------


class SaslAuthenticator:
    """SASL of one connection. Methods take the current time in seconds.

    ``users`` returns the current users. ``max_reauth_s``: lifetime of a session; 0: unlimited.
    ``tokens`` are accepted in addition to passwords (``has_passwords``), or instead of them.
    """

    def __init__(
        self,
        users: Callable[[], Users],
        max_reauth_s: float,
        tokens: TokenVerifier | None = None,
        *,
        has_passwords: bool = True,
    ) -> None:
        self._users = users
        self._max_reauth_s = max_reauth_s
        self._tokens = tokens
        self._mechanisms: Final = (
            *(SCRAM_HASHES if has_passwords else ()),
            *(() if tokens is None else (SASL_OAUTHBEARER,)),
        )
        self._token_refusal: str | None = None
        """Why a token was refused, until the client has acknowledged that."""
        self._mechanism: str | None = None
        """Mechanism of a handshake that is not followed by an exchange yet."""
        self._exchange: ServerExchange | None = None
        self._session: tuple[str, str, ScramCredential | TokenKey] | None = None
        """Mechanism, user, and credential or token key of the authenticated session."""
        self._challenged: tuple[str, str, ScramCredential] | None = None
        self._expires_s: float | None = None

    @property
    def user(self) -> str | None:
        """Authenticated user. None before authentication, and after the user was removed or its
        password changed."""
        if self._session is None:
            return None
        mechanism, name, credential = self._session
        if isinstance(credential, TokenKey):
            return name if self._tokens is not None and self._tokens.has_key(credential) else None
        return name if self._users().find(mechanism, name) == credential else None

    @property
    def unacknowledged_refusal(self) -> str | None:
        """Why a token was refused, if the client has not acknowledged that."""
        return self._token_refusal

    @property
    def is_authenticated(self) -> bool:
        """Return whether the connection has authenticated."""
        return self._session is not None

    def check(self, key: ApiKey, now_s: float) -> None:
        """Raise ``SaslStateError`` if a request may not be served now."""
        if key in _UNAUTHENTICATED_APIS:
            return
        if self._session is None:
            raise SaslStateError(reason=f"{key.name} is not served before authentication")
        if self._expires_s is not None and now_s > self._expires_s:
            raise SaslStateError(reason=f"the session of user {self._session[1]} has expired")

    def handle(self, request: Request[Any], now_s: float) -> tuple[bytes, str | None]:
        """Return the response to a SASL request and why it failed, for the log; None if it did not.

        Raises ``MalformedMessageError``, and ``SaslStateError`` if the user may be in the log and
        the log's users are not loaded yet.
        """
        is_handshake = request.header.api_key == ApiKey.SASL_HANDSHAKE
        kind: type[Any] = SaslHandshakeRequest if is_handshake else SaslAuthenticateRequest
        body = decode(kind, request.version, request.frame, start=request.body_start)
        if is_handshake:
            response, reason = self._handshake(body.mechanism)
        else:
            response, reason = self._authenticate(bytes(body.auth_bytes), now_s)
            if reason is not None and self._challenged is not None:
                reason = f"{reason} (user {repr(self._challenged[1])[:NAME_LENGTH_MAX]})"
        return encode(response, request.version), reason

    def _handshake(self, mechanism: str) -> tuple[object, str | None]:
        error, reason = ErrorCode.none, None
        if self._mechanism is not None or self._exchange is not None:
            error, reason = ErrorCode.illegal_sasl_state, "a handshake within another"
        elif mechanism not in self._mechanisms:
            error, reason = ErrorCode.unsupported_sasl_mechanism, "the mechanism is not offered"
        elif self._session is not None and mechanism != self._session[0]:
            error, reason = ErrorCode.illegal_sasl_state, "another mechanism than before"
        else:
            self._mechanism = mechanism
        return SaslHandshakeResponse(error_code=error, mechanisms=self._mechanisms), reason

    def _authenticate(self, data: bytes, now_s: float) -> tuple[object, str | None]:
        mechanism = self._mechanism
        if mechanism is None:
            return _refusal(ErrorCode.illegal_sasl_state, "no handshake precedes this message")
        if mechanism == SASL_OAUTHBEARER:
            return self._authenticate_by_token(data, now_s)
        is_first = self._exchange is None
        try:
            if self._exchange is None:
                self._exchange = scram_server_exchange(
                    mechanism, lambda name: self._credential(mechanism, name), _nonce()
                )
                next(self._exchange)
            answer = self._exchange.send(data)
        except (SaslExchangeError, StopIteration):
            if not self._users().are_complete:  # a client does not repeat a refused authentication
                raise SaslStateError(reason="the users in the log are not loaded yet") from None
            return _refusal(ErrorCode.sasl_authentication_failed, _REFUSED)
        if is_first:
            return SaslAuthenticateResponse(
                error_code=ErrorCode.none, error_message=None, auth_bytes=answer
            ), None
        return self._complete(answer, now_s)

    def _complete(self, answer: bytes, now_s: float) -> tuple[object, str | None]:
        assert self._challenged is not None, "the exchange has asked for the credential"
        mechanism, name, challenged = self._challenged
        if self._users().find(mechanism, name) != challenged:  # changed since the challenge
            return _refusal(ErrorCode.sasl_authentication_failed, _REFUSED)
        return self._begin_session(self._challenged, answer, self._max_reauth_s, now_s)

    def _begin_session(
        self,
        session: tuple[str, str, ScramCredential | TokenKey],
        answer: bytes,
        lifetime_s: float,
        now_s: float,
    ) -> tuple[object, str | None]:
        """``lifetime_s``: 0 for an unlimited session."""
        if self._session is not None and self._session[1] != session[1]:
            reason = "the user is not that of the connection"
            return _refusal(ErrorCode.sasl_authentication_failed, reason)
        self._session, self._challenged = session, None
        self._mechanism = self._exchange = None
        self._expires_s = now_s + lifetime_s if lifetime_s else None
        lifetime: Any = timedelta(seconds=lifetime_s)
        return SaslAuthenticateResponse(
            error_code=ErrorCode.none,
            error_message=None,
            auth_bytes=answer,
            session_lifetime=lifetime,
        ), None

    def _authenticate_by_token(self, data: bytes, now_s: float) -> tuple[object, str | None]:
        """Begin a session with a token; the session ends with it (KIP-368). The response to a
        refused token is a text, and the error follows the client's acknowledgement (RFC 7628,
        section 3.2.3)."""
        assert self._tokens is not None, "the mechanism is offered"
        if self._token_refusal is not None:
            response, _ = _refusal(ErrorCode.sasl_authentication_failed, _REFUSED_TOKEN)
            reason, self._token_refusal = self._token_refusal, None
            return response, reason
        try:
            token, user = oauthbearer_token(data)
        except SaslExchangeError as error:
            return _refusal(ErrorCode.sasl_authentication_failed, str(error))
        try:
            found, left_s = self._tokens.verify(token)
            if not is_user_name(found.name) or user not in ("", found.name):
                raise TokenRefusedError("its name is no user's, or not the one to act as")
        except TokenRefusedError as error:
            if isinstance(error, UnknownKeyError) and self._tokens.may_get_keys:
                # a client does not repeat a refused authentication
                raise SaslStateError(reason="the keys of tokens are being read") from None
            self._token_refusal = f"the token is refused: {error}"
            response = SaslAuthenticateResponse(
                error_code=ErrorCode.none, error_message=None, auth_bytes=INVALID_TOKEN
            )
            return response, None
        session = SASL_OAUTHBEARER, found.name, found.key
        return self._begin_session(session, b"", min(left_s, self._max_reauth_s or left_s), now_s)

    def _credential(self, mechanism: str, name: str) -> ScramCredential:
        users = self._users()
        unknown = users.challenge_of(mechanism, name)  # of every user, for equal work
        found = users.find(mechanism, name) or unknown
        self._challenged = mechanism, name, found
        return found


def _refusal(error: ErrorCode, text: str) -> tuple[object, str]:
    response = SaslAuthenticateResponse(error_code=error, error_message=text, auth_bytes=b"")
    return response, text


def _nonce() -> str:
    return secrets.token_urlsafe(24)
