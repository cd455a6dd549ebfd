"""Tokens of OAUTHBEARER: which are accepted, keys that are replaced, and sessions that end."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v2.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse

import raftlog
from raftlog.errors import RaftlogError
from raftlog.limits import CREDENTIALS_BYTES_MAX
from raftlog.node import oauth
from raftlog.node.config import parse_config
from raftlog.node.errors import ConfigError
from raftlog.node.log_lines import LogLines
from raftlog.node.oauth import (
    KEYS_MAX,
    TOKEN_BYTES_MAX,
    KeysError,
    OauthConfig,
    TokenRefusedError,
    TokenVerifier,
    UnknownKeyError,
    parse_keys,
    verify_token,
)
from raftlog.node.process import _reload
from raftlog.wire import ApiKey, decode, encode
from raftlog.wire.sasl import INVALID_TOKEN, SaslExchangeError, oauthbearer_token
from tests.support.certificates import Authority
from tests.support.quorum_processes import free_ports
from tests.support.served_node import RawConnection, ServedNode, served_node

ISSUER, AUDIENCE, NAME = "https://idp.example", "raftlog", "jobs-7"
NOW_S: Final = 1_700_000_000
CONFIG: Final = OauthConfig(keys="", issuer=ISSUER, audience=AUDIENCE)
RSA_KEY: Final = rsa.generate_private_key(65_537, 2_048)
EC_KEY: Final = ec.generate_private_key(ec.SECP256R1())


def text_of(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value: int) -> str:
    return text_of(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def rsa_jwk(key_id: str = "r", key: rsa.RSAPrivateKey = RSA_KEY) -> dict[str, Any]:
    numbers = key.public_key().public_numbers()
    return {"kty": "RSA", "kid": key_id, "n": number(numbers.n), "e": number(numbers.e)}


def ec_jwk(key_id: str = "e") -> dict[str, Any]:
    numbers = EC_KEY.public_key().public_numbers()
    x, y = (text_of(one.to_bytes(32, "big")) for one in (numbers.x, numbers.y))
    return {"kty": "EC", "crv": "P-256", "kid": key_id, "x": x, "y": y}


def key_set(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": list(keys)}).encode()


KEYS: Final = parse_keys(key_set(rsa_jwk(), ec_jwk()))


def claims(**changes: Any) -> dict[str, Any]:
    usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": NAME, "exp": NOW_S + 600, "iat": NOW_S}
    return {name: value for name, value in (usual | changes).items() if value is not None}


def signed(
    content: dict[str, Any] | bytes, header: dict[str, Any] | None = None, key: Any = RSA_KEY
) -> str:
    header = header or {"alg": "RS256" if key is not EC_KEY else "ES256"}
    header = {"kid": "e" if key is EC_KEY else "r"} | header
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    data = f"{text_of(json.dumps(header).encode())}.{text_of(body)}"
    if key is EC_KEY:
        r, s = decode_dss_signature(EC_KEY.sign(data.encode(), ec.ECDSA(SHA256())))
        signature = r.to_bytes(32, "big") + s.to_bytes(32, "big")
    else:
        signature = key.sign(data.encode(), padding.PKCS1v15(), SHA256())
    return f"{data}.{text_of(signature)}"


def test_a_node_without_the_package_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ConfigError, match=r"pip install 'raftlog\[oauth\]'"):
        TokenVerifier(CONFIG, list, lambda *_: None, wall_s=lambda: NOW_S)


# --- tokens ---------------------------------------------------------------------------------------


def test_the_signatures_of_rfc_7515_are_accepted_and_changed_ones_are_not() -> None:
    es256 = (
        "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxl"
        "LmNvbS9pc19yb290Ijp0cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISl"
        "SApmWQxfKTUJqPP3-Kg6NU1Q"
    )  # appendix A.3
    x, y = (
        "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
        "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
    )
    jwk = {"kty": "EC", "crv": "P-256", "kid": "a", "x": x, "y": y}
    key = parse_keys(key_set(jwk))["a"]
    data, _, signature = es256.rpartition(".")
    raw = base64.urlsafe_b64decode(signature + "==")
    assert oauth._is_signed(key, raw, data.encode())
    assert not oauth._is_signed(key, raw, data.encode() + b"x")
    assert not oauth._is_signed(key, raw[:-1], data.encode())
    assert not oauth._is_signed(key, bytes(64), data.encode())


@pytest.mark.parametrize("key", [RSA_KEY, EC_KEY], ids=["RS256", "ES256"])
def test_a_token_gives_its_name_until_it_expires(key: Any) -> None:
    found = verify_token(signed(claims(), key=key), KEYS, CONFIG, NOW_S)
    assert (found.name, found.expires_s) == (NAME, NOW_S + 600)
    several = signed(claims(aud=["other", AUDIENCE], email="a@b"), key=key)
    by_mail = replace(CONFIG, principal_claim="email")
    assert verify_token(several, KEYS, by_mail, NOW_S + 599).name == "a@b"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": NOW_S}, "expired"),
        ({"exp": None}, "no exp"),
        ({"exp": "9999999999"}, "no time"),
        ({"exp": True}, "no time"),
        ({"exp": 1e400}, "no time"),
        ({"exp": 10**400}, "no time"),
        ({"exp": NOW_S - 10}, "expired"),
        ({"nbf": NOW_S + 31}, "not valid yet"),
        ({"iat": NOW_S + 31}, "not valid yet"),
        ({"iss": "https://other.example"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"aud": "raftlog2"}, "audience"),
        ({"aud": None}, "audience"),
        ({"aud": {"raftlog": 1}}, "audience"),
        ({"sub": None}, "claim 'sub'"),
        ({"sub": 7}, "claim 'sub'"),
    ],
)
def test_a_token_with_other_claims_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(TokenRefusedError, match=reason):
        verify_token(signed(claims(**changes)), KEYS, CONFIG, NOW_S)


def _forged(**header: Any) -> str:
    return signed(claims(), header)


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        ("", "no signed"),
        ("a.b", "no signed"),
        ("a.b.c.d", "no signed"),
        ("é.b.c", "not ASCII"),
        ("x" * (TOKEN_BYTES_MAX + 1), "longer"),
        (signed(claims()) + "=", "no signed"),
        (signed(claims()).rpartition(".")[0] + ".", "no signed"),
        (_forged(alg="none"), "algorithm"),
        (_forged(alg="HS256"), "algorithm"),
        (_forged(alg="ES256"), "algorithm"),
        (_forged(alg="RS256", kid=7), "no kid"),
        (_forged(alg="RS256", crit=["exp"]), "extension"),
        (signed(claims(), key=rsa.generate_private_key(65_537, 2_048)), "signature"),
        (signed(claims(), {"alg": "ES256", "kid": "e"}), "signature"),
        (signed(b"[1]"), "claims"),
        (signed(b"{" * 9_000), "claims"),
        (signed(b'{"sub":"a","sub":"b"}'), "claims"),
    ],
    ids=map(str, count()),
)
def test_a_forged_or_malformed_token_is_refused(token: str, reason: str) -> None:
    with pytest.raises(TokenRefusedError, match=reason):
        verify_token(token, KEYS, CONFIG, NOW_S)
    with pytest.raises(UnknownKeyError):
        verify_token(_forged(alg="RS256", kid="other"), KEYS, CONFIG, NOW_S)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no JSON Web Key Set"),
        (b"[]", "no JSON Web Key Set"),
        (b'{"keys":{}}', "no array"),
        (b'{"keys":[1]}', "no object"),
        (key_set(), "no key"),
        (key_set({**rsa_jwk(), "use": "enc"}), "no key"),
        (key_set({**rsa_jwk(), "alg": "RS512"}), "no key"),
        (key_set({**ec_jwk(), "crv": "P-384"}), "no key"),
        (key_set({"kty": "oct", "kid": "a", "k": "AAAA"}), "no key"),
        (key_set(rsa_jwk(), rsa_jwk()), "two keys"),
        (key_set({**rsa_jwk(), "n": number(2**1_024 + 1)}), "2048 to"),
        (key_set({**rsa_jwk(), "n": number(2**9_000)}), "too large"),
        (key_set({**rsa_jwk(), "e": number(2**40 + 1)}), "exponent"),
        (key_set({**rsa_jwk(), "e": "!"}), "missing, invalid"),
        (key_set({**ec_jwk(), "x": text_of(bytes(31) + b"\1")}), "invalid"),
        (key_set(*({**ec_jwk(), "kid": f"{at}"} for at in range(KEYS_MAX + 1))), "at most"),
        (b" " * (CREDENTIALS_BYTES_MAX + 1), "larger"),
    ],
    ids=map(str, count()),
)
def test_an_invalid_key_set_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(KeysError, match=reason):
        parse_keys(data)


def test_the_first_message_has_the_token_and_the_user_to_act_as() -> None:
    assert oauthbearer_token(b"n,,\1auth=Bearer t.o.k\1\1") == ("t.o.k", "")
    assert oauthbearer_token(b"n,a=a=2Cb,\1auth=bearer t\1key=value\1\1") == ("t", "a,b")
    for data in (
        b"", b"\1\1\1", b"n,,auth=Bearer t\1\1", b"n,,\1auth=Bearer t\1", b"p,,\1auth=Bearer t\1\1",
        b"n,,\1auth=Basic t\1\1", b"n,,\1auth=Bearer \1\1", b"n,x,\1auth=Bearer t\1\1",
        b"n,,\1auth=Bearer t\1auth=Bearer u\1\1", b"n,,\1auth=Bearer t\1\1x", b"\xff\1\1\1",
    ):  # fmt: skip
        with pytest.raises(SaslExchangeError):
            oauthbearer_token(data)


# --- at a node ------------------------------------------------------------------------------------


class TokenPort:
    """Node whose clients have tokens, with a clock that the test sets."""

    def __init__(self, home: Path, keys: str | None = None, extra: str = "") -> None:
        self.home = home
        self.file = home / "jwks.json"
        self.audit = home / "audit.log"
        self._keys = keys or str(self.file)
        self._extra = extra
        self.wall_s = float(NOW_S)

    def write(self, *keys: dict[str, Any]) -> None:
        self.file.write_bytes(key_set(*keys))

    def run(self, check: Callable[[ServedNode], Awaitable[None]]) -> None:
        clients, voters = free_ports(2)
        listeners = (
            f'[listeners.clients]\naddress = "127.0.0.1:{clients}"\n'
            f'[listeners.clients.sasl.oauth]\nkeys = "{self._keys}"\nissuer = "{ISSUER}"\n'
            f'audience = "{AUDIENCE}"\n{self._extra}'
            f'[listeners.voters]\naddress = "127.0.0.1:{voters}"\n'
        )
        access = '[access]\nread = ["jobs-*"]\nappend = ["jobs-*"]\n'
        extra = f'{access}[audit]\nfile = "{self.audit}"\n'

        async def with_node() -> None:
            async with served_node(self.home, extra, listeners=listeners) as node:
                assert node.node.tokens is not None
                node.node.server.wall_s = lambda: self.wall_s
                await check(node)

        asyncio.run(with_node())

    def refusals(self) -> list[str]:
        lines = [json.loads(line) for line in self.audit.read_text().splitlines()]
        return [line["reason"] for line in lines if line["event"] == "refused"]


async def _ask(connection: RawConnection, key: ApiKey, message: Any, kind: type[Any]) -> Any:
    version = 1 if key is ApiKey.SASL_HANDSHAKE else 2
    connection.ask(key, version, encode(message, version))
    data = await connection.next_frame()
    if data is None:
        return None
    return decode(kind, version, data[4 if version == 1 else 5 :])


async def present(connection: RawConnection, token: str, *, acknowledges: bool = True) -> Any:
    """Authenticate with a token; return the response, None if the connection was closed. A refusal
    is acknowledged, and the response to that returned."""
    shake = SaslHandshakeRequest(mechanism="OAUTHBEARER")
    response = await _ask(connection, ApiKey.SASL_HANDSHAKE, shake, SaslHandshakeResponse)
    assert (response.error_code, response.mechanisms) == (0, ("OAUTHBEARER",))
    first = SaslAuthenticateRequest(auth_bytes=f"n,,\1auth=Bearer {token}\1\1".encode())
    found = await _ask(connection, ApiKey.SASL_AUTHENTICATE, first, SaslAuthenticateResponse)
    if found is None or not found.auth_bytes or not acknowledges:
        return found
    assert json.loads(found.auth_bytes) == {"status": "invalid_token"}
    second = SaslAuthenticateRequest(auth_bytes=b"\1")
    return await _ask(connection, ApiKey.SASL_AUTHENTICATE, second, SaslAuthenticateResponse)


async def until_read(node: ServedNode) -> None:
    assert node.node.tokens is not None
    while node.node.tokens._reading is not None:
        await asyncio.sleep(0.005)


def test_clients_append_with_their_tokens_and_the_rights_of_their_names(tmp_path: Path) -> None:
    from confluent_kafka import Producer

    port = TokenPort(tmp_path)
    port.write(rsa_jwk(), ec_jwk())
    token, other = signed(claims(), key=EC_KEY), signed(claims(sub="unknown"))

    def append(bootstrap: str, value: str) -> None:
        options = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token": value,
        }
        with raftlog.connect(bootstrap, config=options) as log:
            log.append(b"raftlog")

    def produce(bootstrap: str) -> None:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "oauth_cb": lambda _: (token, 4e9),
                "log_level": 0,
            }
        )
        producer.produce("raftlog", b"librdkafka")
        assert producer.flush(20) == 0

    async def check(node: ServedNode) -> None:
        bootstrap = f"127.0.0.1:{node.port}"
        await asyncio.to_thread(append, bootstrap, token)
        await asyncio.to_thread(produce, bootstrap)
        for refused in (other, signed(claims(exp=NOW_S - 60))):
            with pytest.raises(RaftlogError):
                await asyncio.to_thread(append, bootstrap, refused)

    port.run(check)
    assert any("it has expired" in reason for reason in port.refusals())
    text = port.audit.read_text()
    assert token not in text
    assert token.rpartition(".")[2] not in text


def test_a_refused_token_is_in_the_audit_log_although_its_client_does_not_acknowledge_that(
    tmp_path: Path,
) -> None:
    port = TokenPort(tmp_path)
    port.write(rsa_jwk())

    async def check(node: ServedNode) -> None:
        async with await node.connect() as connection:
            response = await present(connection, signed(claims(exp=NOW_S - 60)), acknowledges=False)
            assert response.auth_bytes == INVALID_TOKEN
            assert not node.node.server.metrics.closed_connections
        while node.node.server.connections:
            await asyncio.sleep(0.005)
        assert node.node.server.metrics.closed_connections == {"sasl": 1}
        async with await node.connect() as connection:
            assert (await present(connection, signed(claims(exp=NOW_S - 60)))).error_code == 58

    port.run(check)
    refused = [one for one in port.refusals() if "the token is refused: it has expired" in one]
    assert len(refused) == len(port.refusals()) == 2


def test_a_session_ends_with_its_token_and_continues_with_a_new_one(tmp_path: Path) -> None:
    port = TokenPort(tmp_path)
    port.write(rsa_jwk())

    async def check(node: ServedNode) -> None:
        async with await node.connect() as connection, await node.connect() as other:
            response = await present(connection, signed(claims(exp=NOW_S + 100)))
            assert response.error_code == 0
            assert response.session_lifetime.total_seconds() == 100
            assert (await present(connection, signed(claims(exp=NOW_S + 200)))).error_code == 0
            (sasl,) = (
                one.sasl for one in node.node.server.connections if one.sasl and one.sasl.user
            )
            assert sasl._expires_s is not None
            sasl._expires_s -= 200
            connection.ask(ApiKey.METADATA, 12, bytes(8))
            assert await connection.next_frame() is None, "the session has expired"
            assert (await present(other, signed(claims(exp=NOW_S - 10)))).error_code == 58
            assert await other.next_frame() is None, "the skew of clocks prolongs no token"
        async with await node.connect() as connection:
            assert (await present(connection, signed(claims()))).error_code == 0
            assert (await present(connection, signed(claims(sub="jobs-8")))).error_code == 58

    port.run(check)


def test_a_key_that_is_added_is_read_and_one_that_is_removed_ends_its_sessions(
    tmp_path: Path,
) -> None:
    port = TokenPort(tmp_path)
    port.write(rsa_jwk())
    rotated = rsa.generate_private_key(65_537, 2_048)
    new = signed(claims(), {"alg": "RS256", "kid": "new"}, rotated)

    async def check(node: ServedNode) -> None:
        tokens = node.node.tokens
        assert tokens is not None
        await until_read(node)
        async with await node.connect() as old, await node.connect() as first:
            assert (await present(old, signed(claims()))).error_code == 0
            assert (await present(first, new)).error_code == 58, "read just now: not again"
            port.write(rsa_jwk(), rsa_jwk("new", rotated))
            tokens._read_s -= oauth.MISSING_KEY_PAUSE_S
            async with await node.connect() as second:
                assert await present(second, new) is None, "closed, so that the client repeats it"
            await until_read(node)
            async with await node.connect() as third:
                assert (await present(third, new)).error_code == 0
            port.write(rsa_jwk("new", rotated))
            config = replace(node.config, path=None)
            _reload(config, node.node._settings, node.node, LogLines(io.StringIO(), 1))
            assert await old.next_frame() is None
            port.file.write_text("{}")
            node.node.use_token_keys(None)
            await until_read(node)
            async with await node.connect() as fourth:
                assert (await present(fourth, new)).error_code == 0, "the old keys stay"
        assert "the old keys stay in use" in node.all_lines

    port.run(check)


class KeyServer:
    """HTTPS server of a key set."""

    def __init__(self, authority: Authority) -> None:
        self.body = key_set(rsa_jwk())
        self.count = 0
        pair = authority.sign("localhost", dns=("localhost",))
        import ssl

        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(pair.certificate, pair.key)
        here = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                here.count += 1
                self.send_response(200 if here.body else 503)
                self.end_headers()
                self.wfile.write(here.body)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://localhost:{self._server.server_address[1]}/jwks"

    @contextmanager
    def serving(self) -> Iterator[None]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


def test_keys_are_read_from_an_https_url_again_and_again(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    server = KeyServer(authority)
    port = TokenPort(tmp_path, server.url, f'ca = "{authority.path}"\n')
    token = signed(claims())

    async def check(node: ServedNode) -> None:
        await until_read(node)
        async with await node.connect() as connection:
            assert (await present(connection, token)).error_code == 0
            server.body = b""
            node.node.use_token_keys(None)
            await until_read(node)
            assert server.count == 2
            connection.ask_versions(3)
            assert (await connection.answer(ApiKey.API_VERSIONS, 3))[0] == 3
            server.body = key_set(ec_jwk())
            node.node.use_token_keys(None)
            await until_read(node)
            assert await connection.next_frame() is None

    with server.serving():
        port.run(check)


def test_without_keys_a_connection_is_closed_so_that_its_client_tries_again(
    tmp_path: Path,
) -> None:
    (closed,) = free_ports(1)
    port = TokenPort(tmp_path, f"https://127.0.0.1:{closed}/jwks")

    async def check(node: ServedNode) -> None:
        await until_read(node)
        async with await node.connect() as connection:
            assert await present(connection, signed(claims())) is None
        assert "no token is accepted" in node.all_lines

    port.run(check)


CLIENTS: Final = '[node]\nid = 1\ndirectory = "d"\n[listeners.clients]\naddress = "{}:1"\n'


@pytest.mark.parametrize(
    ("host", "values", "reason"),
    [
        ("127.0.0.1", 'issuer = "i"\naudience = "a"\n', "keys: missing"),
        ("127.0.0.1", 'keys = "k"\naudience = "a"\n', "issuer: missing"),
        ("127.0.0.1", 'keys = "k"\nissuer = "i"\n', "audience: missing"),
        ("127.0.0.1", 'keys = "http://h/k"\nissuer = "i"\naudience = "a"\n', "an https URL"),
        ("127.0.0.1", 'keys = "https://u:p@h/k"\nissuer = "i"\naudience = "a"\n', "an https URL"),
        ("127.0.0.1", 'keys = "k"\nissuer = "i"\naudience = "a"\nx = 1\n', "unknown key"),
        ("10.0.0.1", 'keys = "k"\nissuer = "i"\naudience = "a"\n', "TLS"),
    ],
)
def test_a_wrong_configuration_is_reported(host: str, values: str, reason: str) -> None:
    text = CLIENTS.format(host) + "[listeners.clients.sasl.oauth]\n" + values
    with pytest.raises(ConfigError, match=reason):
        parse_config(text, "node.toml")
    allowed = text.replace("[listeners", "allow_plaintext_beyond_loopback = true\n[listeners", 1)
    with pytest.raises(ConfigError, match=reason):
        parse_config(allowed, "node.toml")


def test_a_file_without_valid_keys_is_reported_before_the_node_serves(tmp_path: Path) -> None:
    port = TokenPort(tmp_path)

    async def check(_: ServedNode) -> None:
        raise AssertionError("it serves")

    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        port.run(check)
