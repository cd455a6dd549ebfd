"""SASL exchanges of a client, by the examples of the RFCs, and with servers that cheat."""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.limits import SCRAM_ITERATIONS_MAX, SCRAM_ITERATIONS_MIN
from raftlog.types import SCRAM_HASHES
from raftlog.wire import sasl

NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = NONCE + "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST = f"r={SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
SERVER_FINAL = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
"""RFC 7677, 3: user and pencil."""


def scram(username: str = "user", password: str = "pencil") -> sasl.Exchange:
    return sasl.scram_exchange("SCRAM-SHA-256", username, password, NONCE)


def answer(
    data: bytes = b"", error: int = 0, text: str | None = None, lifetime_ms: int = 0
) -> SimpleNamespace:
    lifetime = datetime.timedelta(milliseconds=lifetime_ms)
    return SimpleNamespace(
        error_code=error, error_message=text, auth_bytes=data, session_lifetime=lifetime
    )


def offer(*mechanisms: str, error: int = 0) -> SimpleNamespace:
    return SimpleNamespace(error_code=error, mechanisms=mechanisms)


def test_scram_sends_the_messages_of_rfc_7677() -> None:
    exchange = scram()
    assert next(exchange) == f"n,,n=user,r={NONCE}".encode()
    assert exchange.send(SERVER_FIRST.encode()) == (
        f"c=biws,r={SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
    )
    with pytest.raises(StopIteration):
        exchange.send(SERVER_FINAL.encode())


def test_scram_escapes_a_user_name() -> None:
    assert next(scram("a=b,c")) == f"n,,n=a=3Db=2Cc,r={NONCE}".encode()


@pytest.mark.parametrize(
    ("final", "words"),
    [
        (SERVER_FINAL.replace("6r", "7r"), "signature is wrong"),
        ("v=AAAA", "signature is wrong"),
        ("v=", "not that of SCRAM"),
        ("e=other-error", "other-error"),
        ("", "not that of SCRAM"),
        ("v=\xff", "not that of SCRAM"),
    ],
)
def test_a_server_without_the_credentials_is_refused(final: str, words: str) -> None:
    exchange = scram()
    next(exchange)
    exchange.send(SERVER_FIRST.encode())
    with pytest.raises(sasl.SaslExchangeError, match=words):
        exchange.send(final.encode("latin-1"))


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (SERVER_FIRST.replace(SERVER_NONCE, NONCE), "nonce"),
        (SERVER_FIRST.replace(SERVER_NONCE, "x" + SERVER_NONCE), "nonce"),
        (SERVER_FIRST.replace("4096", str(SCRAM_ITERATIONS_MIN - 1)), "iterations"),
        (SERVER_FIRST.replace("4096", str(SCRAM_ITERATIONS_MAX + 1)), "iterations"),
        (SERVER_FIRST.replace("4096", "9" * 5000), "iterations"),
        (SERVER_FIRST.replace("4096", "-4096"), "iterations"),
        (SERVER_FIRST.replace("W22Z", "!!!!"), "not that of SCRAM"),
        ("m=tls," + SERVER_FIRST, "extension"),
        ("", "nonce"),
    ],
)
def test_no_proof_is_sent_to_a_server_that_does_not_follow_scram(first: str, words: str) -> None:
    exchange = scram()
    next(exchange)
    with pytest.raises(sasl.SaslExchangeError, match=words):
        exchange.send(first.encode())


def _send_twice(exchange: sasl.Exchange, data: bytes) -> None:
    exchange.send(data)
    exchange.send(data)


@given(st.binary(max_size=200) | st.text(alphabet="rsimev=,0123456789AZ+/", max_size=80))
def test_any_message_of_a_server_is_answered_or_refused(message: bytes | str) -> None:
    data = message.encode() if isinstance(message, str) else message
    for exchange in (
        scram(),
        sasl.oauthbearer_exchange("t.o.k", {}),
        sasl.plain_exchange("a", "b"),
    ):
        next(exchange)
        with pytest.raises((sasl.SaslExchangeError, StopIteration)):
            _send_twice(exchange, data)


def test_plain_and_oauthbearer_send_the_messages_of_their_rfcs() -> None:
    assert next(sasl.plain_exchange("tim", "tanstaaf\u00e9")) == "\0tim\0tanstaaf\u00e9".encode()
    exchange = sasl.oauthbearer_exchange("vF9dft4qmT", {"trace": "7"})
    assert next(exchange) == b"n,,\1auth=Bearer vF9dft4qmT\1trace=7\1\1"
    assert exchange.send(b'{"status":"invalid_token"}') == b"\1"


def test_a_client_authenticates_by_two_messages_and_has_the_lifetime_of_its_session() -> None:
    client = sasl.SaslClient("SCRAM-SHA-256", scram())
    assert client.handshake().mechanism == "SCRAM-SHA-256"
    first = client.receive_handshake(offer("SCRAM-SHA-256"))
    assert first.auth_bytes == f"n,,n=user,r={NONCE}".encode()
    assert client.receive(answer(SERVER_FIRST.encode())) is not None
    assert client.receive(answer(SERVER_FINAL.encode(), lifetime_ms=2000)) is None
    assert client.session_lifetime_ms == 2000


def test_a_refusal_has_the_mechanisms_or_the_reason_and_no_secret() -> None:
    client = sasl.SaslClient("PLAIN", sasl.plain_exchange("a", "hunter2"), secrets=("hunter2",))
    with pytest.raises(sasl.SaslRefusedError) as refused:
        client.receive_handshake(offer("GSSAPI", "X\x1b[2J", error=33))
    assert refused.value.mechanisms == ("GSSAPI", "X\\u001b[2J")
    client = sasl.SaslClient("PLAIN", sasl.plain_exchange("a", "hunter2"), secrets=("hunter2",))
    client.receive_handshake(offer("PLAIN"))
    with pytest.raises(sasl.SaslRefusedError, match=r"^no \*\*\*\\u001b$"):
        client.receive(answer(error=58, text="no hunter2\x1b"))
    client = sasl.SaslClient("OAUTHBEARER", sasl.oauthbearer_exchange("t.o.k", {}))
    client.receive_handshake(offer("OAUTHBEARER"))
    assert client.receive(answer(b'{"status":"invalid_token"}')) is not None
    with pytest.raises(sasl.SaslRefusedError, match="invalid_token"):
        client.receive(answer(error=58))


def token(claims: Any) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{body}.c2ln"


@pytest.mark.parametrize(
    ("text", "expiry"),
    [
        (token({"exp": 1700000000}), 1700000000.0),
        (token({"exp": True}), None),
        (token({"exp": "soon"}), None),
        (token({"exp": 10**400}), None),
        (token({"exp": float("nan")}), None),
        (token({"exp": float("inf")}), None),
        (token([1]), None),
        (token({}), None),
        ("opaque", None),
        ("a.!!!.b", None),
        ("a.\u00e9.b", None),
    ],
)
def test_the_expiry_of_a_token_is_known_if_it_is_a_jwt(text: str, expiry: float | None) -> None:
    assert sasl.token_expiry_s(text) == expiry


# --- server ---------------------------------------------------------------------------------------

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")


def credential(mechanism: str = "SCRAM-SHA-256", password: str = "pencil") -> sasl.ScramCredential:
    return sasl.scram_credential(mechanism, password, salt=SALT, iterations=4096)


def server(found: sasl.ScramCredential | None = None) -> sasl.ServerExchange:
    """Return a server that expects the first message; its only user is ``user``."""

    def find(name: str) -> sasl.ScramCredential:
        return found or credential(password="pencil" if name == "user" else "unknown")

    exchange = sasl.scram_server_exchange("SCRAM-SHA-256", find, SERVER_NONCE[len(NONCE) :])
    next(exchange)
    return exchange


def test_a_server_sends_the_messages_of_rfc_7677() -> None:
    exchange = server()
    assert exchange.send(f"n,,n=user,r={NONCE}".encode()).decode() == SERVER_FIRST
    final = f"c=biws,r={SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert exchange.send(final.encode()).decode() == SERVER_FINAL


@pytest.mark.parametrize("mechanism", SCRAM_HASHES)
@given(name=st.text(min_size=1, max_size=20), password=st.text(max_size=20), is_right=st.booleans())
@settings(max_examples=20, deadline=None)
def test_a_client_is_accepted_with_the_password_only(
    mechanism: str, name: str, password: str, is_right: bool
) -> None:
    names: list[str] = []

    def find(found: str) -> sasl.ScramCredential:
        names.append(found)
        return credential(mechanism, password if is_right else password + "x")

    client = sasl.scram_exchange(mechanism, name, password, NONCE)
    exchange = sasl.scram_server_exchange(mechanism, find, "server")
    next(exchange)
    proof = client.send(exchange.send(next(client)))
    assert names == [name]
    if is_right:
        with pytest.raises(StopIteration):
            client.send(exchange.send(proof))
    else:
        with pytest.raises(sasl.SaslExchangeError):
            exchange.send(proof)


@pytest.mark.parametrize(
    "first",
    [
        f"p=tls-unique,,n=user,r={NONCE}",
        f"n,a=admin,n=user,r={NONCE}",
        f"n,,m=x,n=user,r={NONCE}",
        f"n,,n=user,r={NONCE},tokenauth=true",
        f"n,,n=us=er,r={NONCE}",
        "n,,n=user,r=",
        f"n,,n=,r={NONCE}",
        "",
    ],
)
def test_a_first_message_of_another_kind_is_refused(first: str) -> None:
    with pytest.raises(sasl.SaslExchangeError):
        server().send(first.encode())


@pytest.mark.parametrize(
    "final",
    [
        f"c=biws,r={SERVER_NONCE},p=AAAAZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        f"c=eSws,r={SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        f"c=biws,r={NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        f"c=biws,r={SERVER_NONCE},p=",
        f"c=biws,r={SERVER_NONCE},p=AAAA",
        f"c=biws,r={SERVER_NONCE}",
        "",
    ],
)
def test_a_final_message_without_the_proof_is_refused(final: str) -> None:
    exchange = server()
    exchange.send(f"n,,n=user,r={NONCE}".encode())
    with pytest.raises(sasl.SaslExchangeError):
        exchange.send(final.encode())


@given(st.binary(max_size=200) | st.text(alphabet="nyac=,rp0123AZ+/", max_size=80))
def test_any_message_of_a_client_is_answered_or_refused(message: bytes | str) -> None:
    data = message.encode() if isinstance(message, str) else message
    exchange = server(credential("SCRAM-SHA-256"))
    with contextlib.suppress(sasl.SaslExchangeError):
        exchange.send(data)
        with pytest.raises(sasl.SaslExchangeError):
            exchange.send(data)
