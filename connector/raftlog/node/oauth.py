"""SASL/OAUTHBEARER tokens: JSON Web Tokens, signed with a key in a JSON Web Key Set.

1. A token is accepted if it is signed with the key that its ``kid`` names, its algorithm is the
   key's (RS256 or ES256, never only what the token states), ``iss`` and ``aud`` are as configured,
   it has not expired (``exp``), and it is already valid (``nbf``, ``iat``, up to ``clock_skew_s``
   earlier). A time that is not a finite number refuses the token.
2. The principal is the claim ``principal_claim``, with the rights of its name in ``[access]``.
3. Keys are in a file or at an https URL. They are read again every ``refresh_ms``, on SIGHUP, and
   for a token with an unknown ``kid``, but at most once in ``MISSING_KEY_PAUSE_S``. So an added key
   is used without a restart. When a key is removed from the set, the sessions of its tokens end.
   While the keys cannot be read, the old ones stay in use.
4. The sizes of a token, of the set, and of the keys in it are checked before anything is computed
   with them.

Source: RFC 7515, 7517, 7518, 7519; Kafka ``BrokerJwtValidator``, ``RefreshingHttpsJwks``; KIP-768.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import http.client
import json
import math
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from raftlog.client.remote.login import open_endpoint
from raftlog.errors import OptionError
from raftlog.limits import CREDENTIALS_BYTES_MAX, KIB
from raftlog.storage.file_rights import change_by_others

from .config_table import ConfigTable
from .errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

TOKEN_BYTES_MAX: Final = 16 * KIB
KEYS_MAX: Final = 100
RSA_BITS_MIN: Final = 2_048
RSA_BITS_MAX: Final = 8_192
RSA_EXPONENT_BITS_MAX: Final = 32
MISSING_KEY_PAUSE_S: Final = 10.0
_P256_BYTES: Final = 32
_EXTRA: Final = "OAUTHBEARER needs the package cryptography: pip install 'raftlog[oauth]'"

HTTPS: Final = "https://"
_REFRESH_MS_MAX: Final = 24 * 60 * 60 * 1000

PublicKey: TypeAlias = "RSAPublicKey | EllipticCurvePublicKey"


@dataclass(frozen=True, slots=True, kw_only=True)
class OauthConfig:
    """OAUTHBEARER of a listener for clients.

    ``keys``: https URL or path of a JSON Web Key Set; ``ca``: file with the URL's CA, None for the
    system's CAs. A token must have ``issuer`` and ``audience``. ``principal_claim`` is the claim
    with the principal's name. ``refresh_ms`` and ``clock_skew_s`` are Kafka's
    ``sasl.oauthbearer.jwks.endpoint.refresh.ms`` and ``sasl.oauthbearer.clock.skew.seconds``; the
    skew does not prolong a token.
    """

    keys: str
    issuer: str
    audience: str
    ca: str | None = None
    principal_claim: str = "sub"
    refresh_ms: int = 3_600_000
    clock_skew_s: int = 30

    @property
    def is_url(self) -> bool:
        """Return whether the keys are read from a URL."""
        return self.keys.startswith(HTTPS)


def parse_oauth(table: ConfigTable) -> OauthConfig:
    """Return the table ``oauth`` of a listener's SASL. Raises ``ConfigError``."""
    usual = OauthConfig(keys="", issuer="", audience="")
    keys = table.text("keys")
    if "://" not in keys:
        keys = table.file("keys")
    elif not keys.startswith(HTTPS) or "@" in keys or "#" in keys or not keys.isprintable():
        raise table.wrong("keys", "expected a file, or an https URL without a user and a fragment")
    found = OauthConfig(
        keys=keys,
        issuer=table.text("issuer"),
        audience=table.text("audience"),
        ca=table.file("ca") if table.has("ca") else None,
        principal_claim=(
            table.text("principal_claim") if table.has("principal_claim") else usual.principal_claim
        ),
        refresh_ms=table.number(
            "refresh_ms", at_least=1_000, at_most=_REFRESH_MS_MAX, default=usual.refresh_ms
        ),
        clock_skew_s=table.number(
            "clock_skew_s", at_least=0, at_most=600, default=usual.clock_skew_s
        ),
    )
    table.finish()
    return found


class TokenRefusedError(Exception):
    """A token is not accepted. The reason is for the log, and contains no part of the token."""


class UnknownKeyError(TokenRefusedError):
    """A token's key is not known (yet)."""


class KeysError(Exception):
    """A key set cannot be read; the text is the reason."""


@dataclass(frozen=True, slots=True)
class TokenKey:
    """Key of a set, with the only algorithm that it verifies."""

    key_id: str
    algorithm: str
    numbers: tuple[int, int]
    """Modulus and exponent, or the coordinates of the point."""


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    """Principal of a valid token, the end of its validity (seconds since 1970), and its key."""

    name: str
    expires_s: float
    key: TokenKey


# --- keys -----------------------------------------------------------------------------------------


def parse_keys(data: bytes) -> dict[str, TokenKey]:
    """Return the keys of a set by id, without keys for other uses and of other types.

    Raises ``KeysError``.
    """
    if len(data) > CREDENTIALS_BYTES_MAX:
        raise KeysError(f"it is larger than {CREDENTIALS_BYTES_MAX} bytes")
    try:
        entries = json.loads(data)["keys"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise KeysError("it is no JSON Web Key Set") from None
    if not isinstance(entries, list) or len(entries) > KEYS_MAX:
        raise KeysError(f"`keys` is no array of at most {KEYS_MAX} keys")
    found: dict[str, TokenKey] = {}
    for entry in entries:
        if not isinstance(entry, dict):
            raise KeysError("a key is no object")
        key = _parse_key(entry)
        if key is None:
            continue
        if key.key_id in found:
            raise KeysError(f"two keys have the id {key.key_id[:64]!r}")
        found[key.key_id] = key
    if not found:
        raise KeysError("it has no key with a `kid` for RS256 or ES256")
    return found


def _parse_key(entry: Mapping[str, Any]) -> TokenKey | None:
    key_id, kind = entry.get("kid"), entry.get("kty")
    if not isinstance(key_id, str) or not key_id or entry.get("use", "sig") != "sig":
        return None
    if kind == "RSA" and entry.get("alg", "RS256") == "RS256":
        key = TokenKey(key_id, "RS256", (_number(entry.get("n")), _number(entry.get("e"))))
        if not RSA_BITS_MIN <= key.numbers[0].bit_length() <= RSA_BITS_MAX:
            raise KeysError(f"an RSA key has not {RSA_BITS_MIN} to {RSA_BITS_MAX} bits")
        if key.numbers[1].bit_length() > RSA_EXPONENT_BITS_MAX:
            raise KeysError("the exponent of an RSA key is too large")
    elif kind == "EC" and entry.get("crv") == "P-256" and entry.get("alg", "ES256") == "ES256":
        key = TokenKey(key_id, "ES256", (_number(entry.get("x")), _number(entry.get("y"))))
    else:
        return None
    try:
        _public_key(key)
    except ValueError:
        raise KeysError(f"the key {key_id[:64]!r} is invalid") from None
    return key


def _number(text: object) -> int:
    data = _decoded(text) if isinstance(text, str) else None
    if not data or len(data) > RSA_BITS_MAX // 8:
        raise KeysError("a number of a key is missing, invalid or too large")
    return int.from_bytes(data, "big")


def _decoded(text: str) -> bytes | None:
    """Return the bytes of base64url without padding; None if it is invalid."""
    try:
        raw = text.encode("ascii")
        found = base64.b64decode(raw + b"=" * (-len(raw) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    is_canonical = base64.urlsafe_b64encode(found).rstrip(b"=") == raw
    return found if is_canonical else None


def _public_key(key: TokenKey) -> PublicKey:
    """Return the key for a verification. Raises ``ValueError``."""
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    if key.algorithm == "RS256":
        modulus, exponent = key.numbers
        return rsa.RSAPublicNumbers(exponent, modulus).public_key()
    return ec.EllipticCurvePublicNumbers(*key.numbers, ec.SECP256R1()).public_key()


def _is_signed(key: TokenKey, signature: bytes, data: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256

    public_key = _public_key(key)
    try:
        if isinstance(public_key, rsa.RSAPublicKey):
            public_key.verify(signature, data, padding.PKCS1v15(), SHA256())
        elif len(signature) != 2 * _P256_BYTES:
            return False
        else:
            r, s = (
                int.from_bytes(part, "big")
                for part in (signature[:_P256_BYTES], signature[_P256_BYTES:])
            )
            public_key.verify(encode_dss_signature(r, s), data, ec.ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True


# --- tokens ---------------------------------------------------------------------------------------


def verify_token(
    token: str, keys: Mapping[str, TokenKey], config: OauthConfig, wall_s: float
) -> VerifiedToken:
    """Return the principal of a token. ``wall_s``: seconds since 1970.

    Raises ``TokenRefusedError``, and ``UnknownKeyError`` for a key that is not in the set.
    """
    if len(token) > TOKEN_BYTES_MAX or not token.isascii():
        raise TokenRefusedError(f"it is longer than {TOKEN_BYTES_MAX} bytes, or not ASCII")
    head, _, rest = token.partition(".")
    payload, _, signature_text = rest.partition(".")
    signature = _decoded(signature_text)
    header = _object(head)
    if header is None or not signature:
        raise TokenRefusedError("it is no signed JSON Web Token")
    key_id = header.get("kid")
    if not isinstance(key_id, str):
        raise TokenRefusedError("its header has no kid")
    if "crit" in header:
        raise TokenRefusedError("its header requires an extension")
    key = keys.get(key_id)
    if key is None:
        raise UnknownKeyError("its key is not in the key set")
    if header.get("alg") != key.algorithm:
        raise TokenRefusedError(f"its algorithm is not that of its key, {key.algorithm}")
    if not _is_signed(key, signature, f"{head}.{payload}".encode("ascii")):
        raise TokenRefusedError("its signature is wrong")
    claims = _object(payload)
    if claims is None:
        raise TokenRefusedError("its claims are no JSON object")
    expires_s = _check_claims(claims, config, wall_s)
    name = claims.get(config.principal_claim)
    if not isinstance(name, str):
        raise TokenRefusedError(f"it has no claim {config.principal_claim!r} with a name")
    return VerifiedToken(name, expires_s, key)


def _object(text: str) -> dict[str, Any] | None:
    """Return a JSON object in base64url; None if it is another value or has duplicate keys."""
    data = _decoded(text)
    try:
        found = None if data is None else json.loads(data, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _check_claims(claims: Mapping[str, Any], config: OauthConfig, wall_s: float) -> float:
    """Return the end of a token's validity. Raises ``TokenRefusedError``."""
    skew_s = config.clock_skew_s
    if claims.get("iss") != config.issuer:
        raise TokenRefusedError("its issuer is another one")
    audience = claims.get("aud")
    if config.audience not in (audience if isinstance(audience, list) else [audience]):
        raise TokenRefusedError("it is for another audience")
    expires_s = _time(claims, "exp")
    if expires_s is None:
        raise TokenRefusedError("it has no exp")
    if wall_s >= expires_s:  # without the skew: a session ends with its token
        raise TokenRefusedError("it has expired")
    for name in ("nbf", "iat"):
        at_s = _time(claims, name)
        if at_s is not None and at_s > wall_s + skew_s:
            raise TokenRefusedError(f"it is not valid yet ({name})")
    return expires_s


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    """Return a time; None if it is absent. Raises ``TokenRefusedError`` if it is not a number."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 2**53:
        raise TokenRefusedError(f"its {name} is no time")
    if not math.isfinite(value):
        raise TokenRefusedError(f"its {name} is no time")
    return float(value)


# --- the keys of a node ---------------------------------------------------------------------------


class TokenVerifier:
    """Verifier of one node's tokens, with its keys, on the node's event loop.

    ``changed`` is called after keys were replaced, ``log_line`` with a level and a text. Raises
    ``ConfigError`` if the package is missing or a file has no valid keys.
    """

    def __init__(
        self,
        config: OauthConfig,
        changed: Callable[[], object],
        log_line: Callable[[str, str], None],
        *,
        wall_s: Callable[[], float],
    ) -> None:
        self._config: Final = config
        self._changed: Final = changed
        self._log_line: Final = log_line
        self._wall_s: Final = wall_s
        self._executor: Final = ThreadPoolExecutor(1, thread_name_prefix="raftlog-keys")
        self._keys: Mapping[str, TokenKey] | None = None
        """None until they are read."""
        self._reading: asyncio.Future[dict[str, TokenKey]] | None = None
        self._read_s = -math.inf
        """Time of the last attempt to read them."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        if find_spec("cryptography") is None:
            raise ConfigError(path=config.keys, key=None, reason=_EXTRA)
        self._keys = self.read_file()

    @property
    def may_get_keys(self) -> bool:
        """Return whether an unknown key may soon become known."""
        return self._keys is None or self._reading is not None

    def has_key(self, key: TokenKey) -> bool:
        """Return whether tokens of a key are accepted."""
        return self._keys is not None and self._keys.get(key.key_id) == key

    def verify(self, token: str) -> tuple[VerifiedToken, float]:
        """Return the principal of a token, and for how many seconds it is valid.

        Raises ``TokenRefusedError``; after ``UnknownKeyError`` the keys may be read again.
        """
        wall_s = self._wall_s()
        try:
            found = verify_token(token, self._keys or {}, self._config, wall_s)
        except UnknownKeyError:
            now_s = asyncio.get_running_loop().time()
            if now_s - self._read_s >= MISSING_KEY_PAUSE_S:
                self.refresh()
            raise
        return found, found.expires_s - wall_s

    def read_file(self) -> Mapping[str, TokenKey] | None:
        """Return the keys that are now in their file; None for a URL. Raises ``ConfigError``."""
        if self._config.is_url:
            return None
        try:
            return self._read()
        except KeysError as error:
            raise ConfigError(path=self._config.keys, key=None, reason=str(error)) from None

    def use(self, keys: Mapping[str, TokenKey]) -> None:
        """Use other keys from now on."""
        before, self._keys = self._keys, keys
        if before != keys:
            self._log_line("info", f"keys of tokens: {', '.join(sorted(keys))[:500]}")
            self._changed()

    def refresh(self) -> None:
        """Read the keys again, in another thread, unless it is already reading them."""
        if self._reading is not None or self._is_closed:
            return
        loop = asyncio.get_running_loop()
        self._read_s = loop.time()
        self._reading = loop.run_in_executor(self._executor, self._read)
        self._reading.add_done_callback(self._has_read)

    def close(self) -> None:
        """Stop reading keys."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _has_read(self, reading: asyncio.Future[dict[str, TokenKey]]) -> None:
        self._reading = None
        if reading.cancelled() or self._is_closed:
            return
        error = reading.exception()
        pause_s = self._config.refresh_ms / 1000
        if error is None:
            self.use(reading.result())
        elif isinstance(error, KeysError):
            kept = "no token is accepted" if self._keys is None else "the old keys stay in use"
            self._log_line("error", f"the keys of tokens are not read, {kept}: {error}")
            pause_s = min(pause_s, MISSING_KEY_PAUSE_S)
        else:
            raise error
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(pause_s, self.refresh)

    def _read(self) -> dict[str, TokenKey]:
        """Read and parse the keys, in any thread. Raises ``KeysError``."""
        try:
            if self._config.is_url:
                data = open_endpoint(urllib.request.Request(self._config.keys), self._config.ca)
            else:
                reason = change_by_others(self._config.keys)
                if reason is not None:
                    raise KeysError(reason)
                with open(self._config.keys, "rb") as file:
                    data = file.read(CREDENTIALS_BYTES_MAX + 1)
        except OptionError as error:
            raise KeysError(error.reason) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            cause = getattr(error, "reason", None) or error
            text = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
            raise KeysError(f"{self._config.keys} cannot be read: {text}") from None
        return parse_keys(data)
