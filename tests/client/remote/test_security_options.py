"""Security options by the names of Kafka's clients and of librdkafka; no secret is shown."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from raftlog.client.remote.security import (
    ClientSecurity,
    SaslOptions,
    parse_security,
    read_properties,
    resolve_references,
)
from raftlog.errors import OptionError

LOGIN = "org.apache.kafka.common.security"
PLAIN = f"{LOGIN}.plain.PlainLoginModule"
SCRAM = f"{LOGIN}.scram.ScramLoginModule"
OAUTH = f"{LOGIN}.oauthbearer.OAuthBearerLoginModule"
USER = {"sasl.username": "alice", "sasl.password": "hunter2"}
SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}
BEARER = {"security.protocol": "sasl_ssl", "sasl.mechanism": "oauthbearer"}
ENDPOINT = {
    "sasl.oauthbearer.token.endpoint.url": "https://idp.example/token",
    "sasl.oauthbearer.client.credentials.client.id": "auditor",
    "sasl.oauthbearer.client.credentials.client.secret": "hunter2",
}


def sasl_of(options: dict[str, str]) -> SaslOptions:
    found = parse_security(options).sasl
    assert found is not None
    return found.resolved()


def test_without_options_connections_are_plain_text_and_a_ca_alone_enables_tls() -> None:
    assert parse_security({"startingoffset": "1"}) == ClientSecurity()
    tls = parse_security({"ssl.ca.location": "/ca.pem"}).tls
    assert tls is not None
    assert (tls.ca, tls.check_host) == ("/ca.pem", True)
    system = parse_security({"security.protocol": "SSL"}).tls
    assert system is not None
    assert system.ca is None


def test_kafkas_pem_stores_are_librdkafkas_files() -> None:
    stores = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
        "ssl.keystore.type": "pem",
        "ssl.keystore.location": "/client.pem",
        "ssl.key.password": "hunter2",
    }
    files = {
        "security.protocol": "SSL",
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": "/client.pem",
        "ssl.key.location": "/client.pem",
        "ssl.key.password": "hunter2",
    }
    found, expected = parse_security(stores).tls, parse_security(files).tls
    assert found is not None
    assert expected is not None
    assert (found.ca, found.certificate) == (expected.ca, expected.certificate)
    inline = parse_security({"ssl.truststore.certificates": "-----BEGIN"}).tls
    assert inline is not None
    assert inline.ca_pem == "-----BEGIN"


@pytest.mark.parametrize("mechanism", ["sasl.mechanism", "sasl.mechanisms"])
def test_credentials_are_options_or_those_of_a_login_module(mechanism: str) -> None:
    protocol = {"security.protocol": "SASL_SSL"}
    options = sasl_of({**protocol, mechanism: "PLAIN", **USER})
    assert (options.mechanism, options.username, options.password) == ("PLAIN", "alice", "hunter2")
    for module in (PLAIN, f"kafkashaded.{PLAIN}"):
        jaas = f"""{module} required username="alice" password='hunter2';"""
        assert sasl_of({**protocol, mechanism: "PLAIN", "sasl.jaas.config": jaas}) == options
    jaas = f'{SCRAM} required\n username=alice\n password="a\\"b\\\\=; c" ;\n'
    options = sasl_of(SASL | {"sasl.jaas.config": jaas})
    assert options.password == 'a"b\\=; c'


def test_a_token_is_a_value_a_file_that_of_an_endpoint_or_of_a_function() -> None:
    assert sasl_of(BEARER | {"sasl.oauthbearer.token": "t.o.k"}).token == "t.o.k"
    url = "file:///run/token"
    assert sasl_of(BEARER | {"sasl.oauthbearer.token.endpoint.url": url}).token_endpoint == url
    options = sasl_of(BEARER | ENDPOINT | {"sasl.oauthbearer.extensions": "logicalCluster=lkc-1"})
    assert (options.client_id, options.client_secret) == ("auditor", "hunter2")
    assert options.extensions == (("logicalCluster", "lkc-1"),)
    jaas = (
        f'{OAUTH} required clientId=auditor clientSecret="hunter2" extension_logicalCluster=lkc-1;'
    )
    endpoint = {"sasl.oauthbearer.token.endpoint.url": "https://idp.example/token"}
    assert sasl_of(BEARER | endpoint | {"sasl.jaas.config": jaas}) == options
    found = parse_security(BEARER, get_token=lambda: "t.o.k").sasl
    assert found is not None
    assert found.get_token is not None


@pytest.mark.parametrize(
    ("options", "option", "words"),
    [
        (USER, "security.protocol", "SASL_SSL"),
        ({"security.protocol": "TLS"}, "security.protocol", "must be one of"),
        ({"security.protocol": "PLAINTEXT", **USER}, "sasl.username", "has no effect"),
        (SASL | USER | {"ssl.ca.location": "/x"}, "ssl.ca.location", "has no effect"),
        ({"ssl.certificate.location": "/x"}, "ssl.ca.location", "only verified nodes"),
        (
            {"security.protocol": "SSL", "ssl.key.location": "/x"},
            "ssl.certificate.location",
            "with",
        ),
        ({"ssl.truststore.location": "/x.jks"}, "ssl.truststore.location", "type=PEM"),
        ({"security.protocol": "SSL", "ssl.keystore.key": "hunter2"}, "ssl.keystore.key", "files"),
        ({"ssl.ca.location": "/x", "ssl.ca.pem": "x"}, "ssl.ca.pem", "excludes"),
        ({"security.protocol": "SASL_SSL", **USER}, "sasl.mechanism", "SCRAM-SHA-512"),
        (SASL | USER | {"sasl.mechanism": "GSSAPI"}, "sasl.mechanism", "must be one of"),
        (SASL | {"sasl.username": "alice"}, "sasl.password", "is required"),
        (SASL | USER | {"sasl.mechanisms": "PLAIN"}, "sasl.mechanisms", "also set"),
        (SASL | USER | {"sasl.oauthbearer.token": "hunter2"}, "sasl.oauthbearer.token", "is for"),
        (BEARER, "sasl.oauthbearer.token.endpoint.url", "give one of"),
        (BEARER | ENDPOINT | {"sasl.oauthbearer.token": "x"}, "sasl", "give one of"),
        (
            BEARER | {"sasl.oauthbearer.token.endpoint.url": "http://hunter2@idp/"},
            "sasl.oauthbearer.token.endpoint.url",
            "https",
        ),
        (
            BEARER | {"sasl.oauthbearer.token.endpoint.url": "https://idp/"},
            "sasl.oauthbearer.client.credentials.client.id",
            "is required",
        ),
        (BEARER | ENDPOINT | {"sasl.oauthbearer.extensions": "auth=x"}, "sasl", "pairs"),
    ],
)
def test_contradictions_are_refused(options: dict[str, str], option: str, words: str) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        parse_security(options)
    assert caught.value.option.startswith(option)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("jaas", "words"),
    [
        ("", "MODULE required"),
        ("hunter2", "MODULE required"),
        ("com.sun.security.auth.module.Krb5LoginModule required;", "modules are"),
        (f'{PLAIN} required username="a" password="hunter2";', "not that of sasl.mechanism"),
        (f'{SCRAM} required username="a" password="hunter2"', "semicolon"),
        (f'{SCRAM} required username="a" password="hunter2;', "semicolon"),
        (f'{SCRAM} required username="a" password="hunter2" tokenauth="true";', "tokenauth"),
        (f'{SCRAM} required username="a" username="b" password="hunter2";', "also set"),
        (f'{SCRAM} required username="a";', "is required"),
    ],
)
def test_a_login_module_that_is_not_kafkas_is_refused(jaas: str, words: str) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        parse_security(SASL | {"sasl.jaas.config": jaas})
    assert "hunter2" not in str(caught.value)


def test_references_are_resolved_when_a_connection_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = tmp_path / "auditor.properties"
    references = {
        "sasl.username": "${env:RAFTLOG_TEST_USER}",
        "sasl.password": f"${{file:{secrets}:password}}",
    }
    found = parse_security(SASL | references).sasl
    assert found is not None
    assert found == pickle.loads(pickle.dumps(found))
    with pytest.raises(OptionError, match="RAFTLOG_TEST_USER is not set"):
        found.resolved()
    monkeypatch.setenv("RAFTLOG_TEST_USER", "alice")
    with pytest.raises(OptionError, match="cannot be read"):
        found.resolved()
    secrets.write_text("other=x\npassword=hunter2\\u00e9\u00e9\n")
    assert (found.resolved().username, found.resolved().password) == (
        "alice",
        "hunter2\u00e9\u00e9",
    )
    secrets.write_text("other=x\n")
    with pytest.raises(OptionError, match="has no property password"):
        found.resolved()
    (tmp_path / "token").write_text("t.o.k\n")
    assert resolve_references("x", f"${{directory:{tmp_path}:token}}") == "t.o.k"
    assert resolve_references("x", "${unknown:y} $ {env:}") == "${unknown:y} $ {env:}"


def test_a_login_module_may_be_or_contain_a_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAFTLOG_TEST_PASSWORD", 'a"b')
    jaas = f'{SCRAM} required username="alice" password="${{env:RAFTLOG_TEST_PASSWORD}}";'
    assert sasl_of(SASL | {"sasl.jaas.config": jaas}).password == 'a"b'
    (tmp_path / "jaas").write_text(jaas)
    whole = f"${{directory:{tmp_path}:jaas}}"
    assert sasl_of(SASL | {"sasl.jaas.config": whole}).password == 'a"b'


def test_no_secret_is_in_the_repr_of_options() -> None:
    jaas = f'{OAUTH} required clientId=a clientSecret="hunter2";'
    url = {"sasl.oauthbearer.token.endpoint.url": "https://hunter2@idp/hunter2"}
    for options in (
        SASL | USER,
        BEARER | {"sasl.oauthbearer.token": "hunter2"},
        BEARER | ENDPOINT,
        BEARER | url | {"sasl.jaas.config": jaas},
        SASL | {"sasl.jaas.config": "${file:/hunter2:x}"},
        {"ssl.ca.pem": "hunter2", "ssl.certificate.location": "/x", "ssl.key.password": "hunter2"},
    ):
        assert "hunter2" not in repr(parse_security(options))


@pytest.mark.parametrize(
    "data", [b"\xff=\xe9", b"a=\\u12", b"x" * 300_000], ids=["latin-1", "escape", "size"]
)
def test_a_file_that_is_no_properties_file_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_bytes(data)
    with pytest.raises(OptionError, match="--config"):
        read_properties("--config", str(path))
    with pytest.raises(OptionError, match="cannot be read"):
        read_properties("--config", str(tmp_path))
