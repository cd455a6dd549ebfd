"""Tokens of OAUTHBEARER: from a token endpoint over HTTPS, a file, a function."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.certificates import Authority

from raftlog.client.remote.login import SaslLogin, TokenEndpointError
from raftlog.client.remote.security import SaslOptions, parse_security
from raftlog.errors import OptionError, SaslAuthenticationError
from raftlog.limits import CREDENTIALS_BYTES_MAX

EXPIRED_S = 1_700_000_000


def jwt(name: str, expiry_s: int) -> str:
    claims = json.dumps({"sub": name, "exp": expiry_s}).encode()
    return f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.c2ln"


class Endpoint:
    """Token endpoint on loopback; ``answer`` is status, headers and body of its responses."""

    def __init__(self, authority: Authority) -> None:
        self.requests: list[tuple[dict[str, str], str]] = []
        self.answer: tuple[int, dict[str, str], bytes] = (200, {}, b"")
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                endpoint.requests.append((dict(self.headers), body.decode()))
                status, headers, answer = endpoint.answer
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST  # noqa: N815

            def log_message(self, *_args: Any) -> None:
                """Log nothing."""

        pair = authority.sign("idp")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self.server.server_port}/token"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def issue(self, token: object, **more: object) -> None:
        self.answer = (200, {}, json.dumps({"access_token": token, **more}).encode())


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "keys")


@pytest.fixture
def endpoint(authority: Authority) -> Iterator[Endpoint]:
    found = Endpoint(authority)
    yield found
    found.server.shutdown()
    found.server.server_close()
    found.thread.join()


def options(**changes: str) -> SaslOptions:
    given = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    names = {"url": "token.endpoint.url", "id": "client.id", "secret": "client.secret"}
    given |= {
        f"sasl.oauthbearer.{names.get(name, name)}": value
        for name, value in changes.items()
        if name != "ca"
    }
    if "ca" in changes:
        given["https.ca.location"] = changes["ca"]
    found = parse_security(given).sasl
    assert found is not None
    return found


def of_endpoint(endpoint: Endpoint, authority: Authority, **more: str) -> SaslOptions:
    return options(url=endpoint.url, id="auditor", secret="hunter2:x", ca=authority.path, **more)


def token_of(login: SaslLogin) -> str:
    """Return the token that an authentication would send."""
    client = login.begin()
    message = client.receive_handshake(SimpleNamespace(error_code=0, mechanisms=()))
    text: str = message.auth_bytes.decode()
    return text.split("auth=Bearer ")[1].split("\1")[0]


def test_an_endpoint_is_asked_by_the_client_credentials_flow_until_its_token_is_old(
    endpoint: Endpoint, authority: Authority
) -> None:
    now_s = [1000.0]
    login = SaslLogin(of_endpoint(endpoint, authority, scope="kafka read"), now_s=lambda: now_s[0])
    endpoint.issue("one", expires_in=100)
    assert token_of(login) == "one"
    endpoint.issue(jwt("two", 1300))
    now_s[0] = 1079.0
    assert token_of(login) == "one"
    now_s[0] = 1080.0
    assert token_of(login) == jwt("two", 1300)
    endpoint.issue("three")
    now_s[0] = 1255.0
    assert token_of(login) == jwt("two", 1300)
    now_s[0] = 1256.0
    assert [token_of(login), token_of(login)] == ["three", "three"]  # each without a lifetime
    assert len(endpoint.requests) == 4
    headers, body = endpoint.requests[0]
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == b"auditor:hunter2:x"
    assert body == "grant_type=client_credentials&scope=kafka+read"


@pytest.mark.parametrize("lifetime", [10**400, float("nan"), float("inf"), -1, True])
def test_a_token_with_an_unusable_lifetime_is_used_once(
    endpoint: Endpoint, authority: Authority, lifetime: float
) -> None:
    login = SaslLogin(of_endpoint(endpoint, authority))
    endpoint.issue("one", expires_in=lifetime)
    assert token_of(login) == "one"
    endpoint.issue("two", expires_in=lifetime)
    assert token_of(login) == "two"


def test_a_refused_token_is_not_used_again_and_an_expired_one_is_named(
    endpoint: Endpoint, authority: Authority
) -> None:
    login = SaslLogin(of_endpoint(endpoint, authority), now_s=lambda: EXPIRED_S + 1.0)
    endpoint.issue(jwt("one", EXPIRED_S))
    token_of(login)
    assert "the token expired at 2023-11-14T22:13:20+00:00" in login.discard_refused()
    endpoint.issue(jwt("two", EXPIRED_S + 1000))
    token_of(login)
    assert "check the source of the token" in login.discard_refused()
    endpoint.issue("three")
    assert token_of(login) == "three"


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        ((401, {}, b'{"error":"hunter2"}'), SaslAuthenticationError, "HTTP 401"),
        ((503, {}, b""), TokenEndpointError, "HTTP 503"),
        ((429, {}, b""), TokenEndpointError, "HTTP 429"),
        ((302, {"Location": "https://127.0.0.1:1/"}, b""), TokenEndpointError, "HTTP 302"),
        ((200, {}, b"not json"), SaslAuthenticationError, "no access_token"),
        ((200, {}, b'{"access_token":7}'), SaslAuthenticationError, "no access_token"),
        ((200, {}, b'{"access_token":"a\\nb"}'), SaslAuthenticationError, "printable"),
        ((200, {}, b'{"access_token":""}'), SaslAuthenticationError, "printable"),
        (
            (200, {}, b'{"access_token":"' + b"x" * CREDENTIALS_BYTES_MAX + b'"}'),
            SaslAuthenticationError,
            "no access_token",
        ),
    ],
)
def test_an_endpoint_without_a_token_is_reported_without_a_secret(
    endpoint: Endpoint, authority: Authority, answer: Any, kind: type[Exception], words: str
) -> None:
    endpoint.answer = answer
    with pytest.raises(kind, match=words) as caught:
        SaslLogin(of_endpoint(endpoint, authority)).begin()
    assert "hunter2" not in str(caught.value)
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("url", ["https://[::1/hunter2", "https://hunter2]/", "https://\u2100/x"])
def test_an_endpoint_that_is_no_url_is_an_error_of_the_option(url: str) -> None:
    given = options(url=url, id="me", secret="hunter2")
    with pytest.raises(OptionError, match="no valid URL") as caught:
        SaslLogin(given).begin()
    assert "hunter2" not in str(caught.value)


def test_the_secret_is_not_sent_to_an_endpoint_with_another_certificate(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other", "another CA")
    with pytest.raises(SaslAuthenticationError, match=r"check https\.ca\.location"):
        SaslLogin(of_endpoint(endpoint, other)).begin()
    assert not endpoint.requests
    given = options(url=endpoint.url, id="a", secret="b", ca=str(tmp_path / "missing"))
    with pytest.raises(OptionError, match="cannot be used"):
        SaslLogin(given).begin()


def test_an_endpoint_that_does_not_answer_may_be_asked_again(authority: Authority) -> None:
    given = options(url="https://user:hunter2@127.0.0.1:1/x?key=hunter2", id="a", secret="b")
    with pytest.raises(TokenEndpointError, match=r"https://127\.0\.0\.1:1/x") as caught:
        SaslLogin(given).begin()
    assert "hunter2" not in str(caught.value)


def test_a_token_file_is_read_again_for_each_authentication(tmp_path: Path) -> None:
    path = tmp_path / "a token"
    login = SaslLogin(options(url=f"file://{tmp_path}/a%20token"))
    with pytest.raises(SaslAuthenticationError, match="cannot be read"):
        login.begin()
    for token in ("one", "two"):
        path.write_text(f"{token}\n")
        assert token_of(login) == token


def test_a_function_is_called_for_each_authentication() -> None:
    tokens: list[Any] = ["one", "two", b"three"]
    given = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    found = parse_security(given, get_token=lambda: tokens.pop(0)).sasl
    assert found is not None
    login = SaslLogin(found)
    assert [token_of(login), token_of(login)] == ["one", "two"]
    with pytest.raises(SaslAuthenticationError, match="returned bytes"):
        login.begin()
