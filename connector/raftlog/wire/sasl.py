"""SASL for clients, and SCRAM for servers, without I/O (KIP-43, KIP-84, KIP-152).

An exchange is a generator: it yields the bytes to send, and is sent the bytes of the response. It
ends when the server is authenticated as well. It raises ``SaslExchangeError`` before it sends a
proof to a server that does not follow the mechanism. Nonces are arguments.

As in Kafka and librdkafka, user names and passwords are UTF-8 without SASLprep: a library that
applies RFC 4013 could not authenticate as users that Kafka's tools created.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest

from raftlog.limits import SCRAM_ITERATIONS_MAX, SCRAM_ITERATIONS_MIN
from raftlog.printable import printable
from raftlog.types import SASL_OAUTHBEARER, SCRAM_HASHES

Exchange: TypeAlias = Generator[bytes, bytes, None]

UNSUPPORTED_MECHANISM: Final = 33
ILLEGAL_STATE: Final = 34
_REFUSAL_CHARACTERS_MAX: Final = 500


class SaslExchangeError(Exception):
    """The peer does not follow the mechanism, or did not prove that it has the credentials."""


class SaslRefusedError(Exception):
    """The server refused with Kafka's error code. ``mechanisms``: the ones that it offers."""

    def __init__(self, error: int, text: str, mechanisms: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.error = error
        self.mechanisms = mechanisms


class SaslClient:
    """One authentication of a connection: the requests to send, given the responses received.

    Send ``handshake`` first, then the request that each response yields, until that is None.
    """

    def __init__(
        self, mechanism: str, exchange: Exchange, *, secrets: tuple[str, ...] = ()
    ) -> None:
        """``secrets`` are removed from texts that the server sends."""
        self.mechanism: Final = mechanism
        self.session_lifetime_ms = 0
        """Time after which the server requires a new authentication (KIP-368); 0: never."""
        self._exchange = exchange
        self._secrets = tuple(filter(None, secrets))
        self._server_error: str | None = None

    def handshake(self) -> SaslHandshakeRequest:
        return SaslHandshakeRequest(mechanism=self.mechanism)

    def receive_handshake(self, response: Any) -> SaslAuthenticateRequest:
        """Return the first message of the mechanism. Raises ``SaslRefusedError``."""
        error = int(response.error_code)
        if error:
            offered = tuple(printable(name)[:64] for name in response.mechanisms)
            raise SaslRefusedError(error, "the server refused the mechanism", offered)
        return SaslAuthenticateRequest(auth_bytes=next(self._exchange))

    def receive(self, response: Any) -> SaslAuthenticateRequest | None:
        """Return the next message; None when the authentication is complete.

        Raises ``SaslRefusedError`` and ``SaslExchangeError``.
        """
        error = int(response.error_code)
        if error:
            text = response.error_message or self._server_error or "no reason given"
            raise SaslRefusedError(error, self._shown(text))
        data = bytes(response.auth_bytes)
        if self.mechanism == SASL_OAUTHBEARER and data:
            self._server_error = data.decode("utf-8", "replace")
        try:
            message = self._exchange.send(data)
        except StopIteration:
            self.session_lifetime_ms = max(int(response.session_lifetime.total_seconds() * 1000), 0)
            return None
        return SaslAuthenticateRequest(auth_bytes=message)

    def _shown(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return printable(text[:_REFUSAL_CHARACTERS_MAX])


# --- PLAIN (RFC 4616) -----------------------------------------------------------------------------


def plain_exchange(username: str, password: str) -> Exchange:
    """Exchange of PLAIN, which sends the password itself; only TLS hides it."""
    yield b"\0" + _utf8(username) + b"\0" + _utf8(password)


# --- SCRAM (RFC 5802) -----------------------------------------------------------------------------
# The client proves that it has the password, and the server proves that it has the verifier.
# Neither of them is sent. Kafka: ``ScramSaslClient``, ``ScramFormatter``.


def scram_exchange(mechanism: str, username: str, password: str, nonce: str) -> Exchange:
    """Exchange of SCRAM-SHA-256 or -512. ``nonce`` is printable ASCII without a comma."""
    algorithm = SCRAM_HASHES[mechanism]
    name = username.replace("=", "=3D").replace(",", "=2C")
    client_first = f"n={name},r={nonce}"
    challenge = yield _utf8(f"n,,{client_first}")
    server_first = _ascii(challenge)
    salt, iterations, full_nonce = _server_first(server_first, nonce)
    salted = hashlib.pbkdf2_hmac(algorithm, _utf8(password), salt, iterations)
    without_proof = f"c=biws,r={full_nonce}"  # biws is the header n,, in base64
    auth_message = _utf8(f"{client_first},{server_first},{without_proof}")
    client_key = hmac.digest(salted, b"Client Key", algorithm)
    stored_key = hashlib.new(algorithm, client_key).digest()
    signature = hmac.digest(stored_key, auth_message, algorithm)
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    final = yield _utf8(f"{without_proof},p={base64.b64encode(proof).decode('ascii')}")
    server_key = hmac.digest(salted, b"Server Key", algorithm)
    expected = hmac.digest(server_key, auth_message, algorithm)
    if not hmac.compare_digest(_verifier(_ascii(final)), expected):
        raise SaslExchangeError(
            "the server's signature is wrong: it does not have this user's credentials"
        )


def _server_first(text: str, nonce: str) -> tuple[bytes, int, str]:
    """Return the salt, iterations and nonce in the server's first message."""
    found = _attributes(text)
    full_nonce, iterations = found.get("r", ""), found.get("i", "")
    if not full_nonce.startswith(nonce) or full_nonce == nonce:
        raise SaslExchangeError("the server's nonce does not continue the client's")
    if not (iterations.isdigit() and len(iterations) <= 10):
        raise SaslExchangeError("the server sent no number of iterations")
    count = int(iterations)
    if not SCRAM_ITERATIONS_MIN <= count <= SCRAM_ITERATIONS_MAX:
        raise SaslExchangeError(
            f"the server requests {count} iterations; allowed are {SCRAM_ITERATIONS_MIN} to "
            f"{SCRAM_ITERATIONS_MAX}"
        )
    return _base64(found.get("s", "")), count, full_nonce


def _verifier(text: str) -> bytes:
    """Return the signature in the server's final message."""
    found = _attributes(text)
    if "e" in found:
        raise SaslExchangeError(f"the server reports {printable(found['e'])[:80]}")
    return _base64(found.get("v", ""))


def _attributes(text: str) -> dict[str, str]:
    parts = [part.partition("=") for part in text.split(",")]
    if "m" in (name for name, _, _ in parts):  # RFC 5802, 5.1: an unknown mandatory extension
        raise SaslExchangeError("the server requires an extension of SCRAM")
    return {name: value for name, _, value in parts}


def _base64(text: str) -> bytes:
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if not found:
        raise SaslExchangeError("the server's message is not that of SCRAM")
    return found


# --- SCRAM of a server ----------------------------------------------------------------------------
# Kafka: ``ScramSaslServer``, ``ScramMessages``.

ServerExchange: TypeAlias = Generator[bytes, bytes, None]


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What a server stores of a password (RFC 5802, section 3)."""

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


def scram_credential(
    mechanism: str, password: str, *, salt: bytes, iterations: int
) -> ScramCredential:
    """Return the credential for a password. This takes about 10 ms of CPU time."""
    algorithm = SCRAM_HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(algorithm, _utf8(password), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", algorithm)
    stored_key = hashlib.new(algorithm, client_key).digest()
    return ScramCredential(
        salt, iterations, stored_key, hmac.digest(salted, b"Server Key", algorithm)
    )


def scram_server_exchange(
    mechanism: str, find: Callable[[str], ScramCredential], nonce: str
) -> ServerExchange:
    """Exchange of a server: it is sent the client's messages, and yields the responses.

    The first value that it yields is not used. Then it yields a challenge, and then, if the client
    has proven that it has the password, the server's signature. ``find`` returns a user's
    credential, even for an unknown user, whose proof is then wrong. Raises ``SaslExchangeError``.
    """
    algorithm = SCRAM_HASHES[mechanism]
    first = _client_text((yield b""))
    header, user, client_nonce, client_first = _client_first(first)
    credential = find(user)
    full_nonce = client_nonce + nonce
    salt = base64.b64encode(credential.salt).decode("ascii")
    server_first = f"r={full_nonce},s={salt},i={credential.iterations}"
    final = _client_text((yield _utf8(server_first)))
    without_proof, _, proof_text = final.rpartition(",p=")
    channel = base64.b64encode(_utf8(header)).decode("ascii")
    if without_proof.split(",")[:2] != [f"c={channel}", f"r={full_nonce}"]:
        raise SaslExchangeError("the client's final message does not continue its first")
    auth_message = _utf8(f"{client_first},{server_first},{without_proof}")
    signature = hmac.digest(credential.stored_key, auth_message, algorithm)
    proof = _base64(proof_text)
    if len(proof) != len(signature):
        raise SaslExchangeError("the client's proof has a wrong length")
    client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
    stored_key = hashlib.new(algorithm, client_key).digest()
    if not hmac.compare_digest(stored_key, credential.stored_key):
        raise SaslExchangeError("the client's proof is wrong")
    verifier = hmac.digest(credential.server_key, auth_message, algorithm)
    yield b"v=" + base64.b64encode(verifier)


def _client_first(text: str) -> tuple[str, str, str, str]:
    """Return the header, user and nonce, and the message without its header.

    There is no channel binding: TLS and SCRAM authenticate different things here, as in Kafka. The
    user to act as, if given, must be the user itself. A delegation token (``tokenauth``) is not
    accepted as a password.
    """
    binding, _, rest = text.partition(",")
    identity, _, message = rest.partition(",")
    parts = message.split(",")
    if binding not in ("n", "y") or len(parts) < 2 or len(parts[0]) < 3 or len(parts[1]) < 3:
        raise SaslExchangeError("the client's first message is not that of SCRAM")
    name, nonce = parts[0], parts[1]
    if not name.startswith("n=") or not nonce.startswith("r="):  # refuses m= too, an extension
        raise SaslExchangeError("the client's first message is not that of SCRAM")
    if any(part.lower() == "tokenauth=true" for part in parts[2:]):
        raise SaslExchangeError("delegation tokens are not accepted")
    if identity not in ("", f"a={name[2:]}"):
        raise SaslExchangeError("the client requests to act as another user")
    return f"{binding},{identity},", _unescaped(name[2:]), nonce[2:], message


def _unescaped(name: str) -> str:
    pieces = name.split("=")
    if not all(piece.startswith(("2C", "3D")) for piece in pieces[1:]):
        raise SaslExchangeError("the user's name is not that of SCRAM")
    marks = ("," if piece.startswith("2C") else "=" for piece in pieces[1:])
    return pieces[0] + "".join(
        mark + piece[2:] for mark, piece in zip(marks, pieces[1:], strict=True)
    )


def _client_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise SaslExchangeError("the client's message is not UTF-8") from None


# --- OAUTHBEARER (RFC 7628, KIP-255, KIP-342) -----------------------------------------------------


def oauthbearer_exchange(token: str, extensions: Mapping[str, str]) -> Exchange:
    """Exchange of OAUTHBEARER. A refusal is a JSON text, which is followed by the error."""
    pairs = "".join(f"{name}={value}\1" for name, value in extensions.items())
    refusal = yield _utf8(f"n,,\1auth=Bearer {token}\1{pairs}\1")
    if refusal:
        yield b"\1"
        raise SaslExchangeError("the server refused the token without an error")


def oauthbearer_token(data: bytes) -> tuple[str, str]:
    """Return the token in a client's first message, and the user to act as, "" for its own.

    Raises ``SaslExchangeError`` (RFC 7628, 3.1; Kafka: ``OAuthBearerClientInitialResponse``).
    """
    header, *pairs, end, after = _client_text(data).split("\1") if data.count(1) > 2 else [""] * 4
    binding, _, identity = header.partition(",")
    is_header = binding in ("n", "y") and identity.endswith(",") and identity.count(",") == 1
    tokens = [one.partition("=")[2] for one in pairs if one.startswith("auth=")]
    scheme, _, token = tokens[0].partition(" ") if len(tokens) == 1 else ("", "", "")
    if not is_header or end or after or scheme.lower() != "bearer" or not token.strip():
        raise SaslExchangeError("the client's message is not that of OAUTHBEARER")
    user = identity[:-1]
    if user and not user.startswith("a="):
        raise SaslExchangeError("the client's message is not that of OAUTHBEARER")
    return token.strip(), _unescaped(user[2:])


INVALID_TOKEN: Final = b'{"status":"invalid_token"}'
"""Response to a refused token; the client acknowledges it, and then receives the error."""


def token_expiry_s(token: str) -> float | None:
    """Return the time in seconds since 1970 at which a JWT expires; None if it is unknown."""
    return seconds_of(_claims(token).get("exp"))


def seconds_of(value: Any) -> float | None:
    """Return a JSON number; None for any other value, and for a number that is not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        seconds = float(value)
    except OverflowError:
        return None
    return seconds if math.isfinite(seconds) else None


def _claims(token: str) -> dict[str, Any]:
    """Return the unverified claims of a JWT; no claims if it is another kind of token."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        found = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


# --- text -----------------------------------------------------------------------------------------


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _ascii(data: bytes) -> str:
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise SaslExchangeError("the server's message is not that of SCRAM") from None
