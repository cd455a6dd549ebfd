"""Apache Kafka's controllers with SASL and TLS: each mechanism, wrong credentials, sessions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kafka.secured_kafka import (
    PASSWORD,
    PLAIN,
    SCRAM,
    SCRAM_PASSWORD,
    SecuredKafka,
    secured_kafka,
    unsecured_token,
)
from tests.support.cli import rows, run
from tests.support.quorum_processes import eventually

import raftlog
from raftlog.client import Isolation
from raftlog.errors import (
    AccessDeniedError,
    RaftlogError,
    SaslAuthenticationError,
    SecurityProtocolError,
    UnsupportedSaslMechanismError,
)

pytestmark = pytest.mark.kafka

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
SASL_LISTENERS = ("SASLPLAIN", "SASLTLS")
WRONG = "wrong-4711"


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with secured_kafka(tmp_path_factory.mktemp("kafka")) as kafka:
        yield kafka


def end_offset(kafka: SecuredKafka, listener: str, config: dict[str, str]) -> int:
    log = raftlog.follow(kafka.addresses[listener], config=config, timeout_ms=20_000)
    end = log.read_end(isolation=Isolation.READ_UNCOMMITTED).offset
    assert len(list(log.batches(log.log_start_offset, end))) > 0
    return end


def error_of(kafka: SecuredKafka, listener: str, config: dict[str, str]) -> RaftlogError:
    with pytest.raises(RaftlogError) as caught:
        raftlog.follow(kafka.addresses[listener], config=config, timeout_ms=20_000)
    assert kafka.addresses[listener] in str(caught.value)
    return caught.value


@pytest.mark.parametrize("listener", SASL_LISTENERS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_client_authenticates_and_reads(
    kafka: SecuredKafka, listener: str, mechanism: str
) -> None:
    assert end_offset(kafka, listener, kafka.options(listener, mechanism)) > 0


def test_a_client_with_a_certificate_reads(kafka: SecuredKafka) -> None:
    assert end_offset(kafka, "MUTUAL", kafka.options("MUTUAL")) > 0
    without = {"security.protocol": "SSL", "ssl.ca.location": kafka.authority.path}
    assert type(error_of(kafka, "MUTUAL", without)) is AccessDeniedError


def test_a_login_module_of_kafkas_clients_is_accepted(kafka: SecuredKafka) -> None:
    config = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    escaped = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    jaas = {"sasl.jaas.config": f'{PLAIN} required username="alice" password="{escaped}";'}
    assert end_offset(kafka, "SASLPLAIN", config | jaas) > 0
    config = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "SCRAM-SHA-512"}
    jaas = {"sasl.jaas.config": f"{SCRAM} required username=alice password={SCRAM_PASSWORD};"}
    assert end_offset(kafka, "SASLPLAIN", config | jaas) > 0


@pytest.mark.parametrize("listener", SASL_LISTENERS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_wrong_credentials_are_an_error_with_a_remedy(
    kafka: SecuredKafka, listener: str, mechanism: str
) -> None:
    config = kafka.options(listener, mechanism)
    if mechanism == "OAUTHBEARER":
        config["sasl.oauthbearer.token"] = unsecured_token("alice", lifetime_s=-3600)
        words = "the token expired at"
    else:
        config["sasl.password"] = WRONG
        words = "check the user name and the password"
    error = error_of(kafka, listener, config)
    assert type(error) is SaslAuthenticationError
    assert words in str(error)
    assert error.kafka_code == 58
    assert WRONG not in str(error)
    assert config.get("sasl.oauthbearer.token", WRONG) not in str(error)


def test_an_unknown_user_is_refused(kafka: SecuredKafka) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        config = kafka.options("SASLPLAIN", mechanism) | {"sasl.username": "bob"}
        assert type(error_of(kafka, "SASLPLAIN", config)) is SaslAuthenticationError


def test_a_mechanism_that_is_not_offered_is_an_error_with_those_that_are(
    kafka: SecuredKafka,
) -> None:
    config = kafka.options("SHORT", "PLAIN")
    error = error_of(kafka, "SHORT", config)
    assert type(error) is UnsupportedSaslMechanismError
    assert "it offers SCRAM-SHA-256, OAUTHBEARER" in str(error) or (
        "it offers OAUTHBEARER, SCRAM-SHA-256" in str(error)
    )


@pytest.mark.parametrize(
    ("listener", "protocol", "words"),
    [
        ("SASLPLAIN", "PLAINTEXT", "requires SASL; it offers"),
        ("SASLTLS", "SSL", "requires SASL; it offers"),
        ("SASLTLS", "PLAINTEXT", "requires TLS"),
        ("MUTUAL", "PLAINTEXT", "requires TLS"),
        ("SASLPLAIN", "SSL", "has no TLS"),
        ("CONTROLLER", "SSL", "has no TLS"),
        ("CONTROLLER", "SASL_PLAINTEXT", "has no SASL"),
    ],
)
def test_another_security_protocol_is_an_error_that_names_the_right_one(
    kafka: SecuredKafka, listener: str, protocol: str, words: str
) -> None:
    config = {"security.protocol": protocol}
    if protocol == "SSL":
        config["ssl.ca.location"] = kafka.authority.path
    if protocol.startswith("SASL"):
        config |= {"sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": WRONG}
    addresses = kafka.addresses | {"CONTROLLER": kafka.node.controller}
    with pytest.raises(SecurityProtocolError, match=words) as caught:
        raftlog.follow(addresses[listener], config=config, timeout_ms=20_000)
    assert "security.protocol" in str(caught.value)


def test_a_session_is_renewed_on_its_connection_before_it_ends(kafka: SecuredKafka) -> None:
    tokens: list[str] = []

    def new_token() -> str:
        tokens.append(unsecured_token("alice"))
        return tokens[-1]

    config = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    log = raftlog.follow(kafka.addresses["SHORT"], config=config, oauth_token=new_token)
    connections = log._quorum.metadata._connections
    before = connections.opened()
    while len(tokens) < 4:
        log.refresh()
        assert log.log_end_offset > 0
    assert connections.opened() == before
    assert all(one.is_open for one in before)


def test_the_command_line_reads_a_file_of_kafkas_clients(
    kafka: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAFTLOG_TEST_PASSWORD", SCRAM_PASSWORD)
    file = tmp_path / "client.properties"
    lines = [
        "security.protocol=SASL_SSL",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={kafka.authority.path}",
        "sasl.mechanism=SCRAM-SHA-256",
        f'sasl.jaas.config={SCRAM} required username="alice" \\',
        '    password="${env:RAFTLOG_TEST_PASSWORD}";',
        "client.id=support",
    ]
    file.write_text("\n".join(lines))
    at = ("--bootstrap-server", kafka.addresses["SASLTLS"])
    assert len(rows("state", *at, "--config", file, "scram")) == 2
    sides = ("--other-bootstrap-server", kafka.addresses["SASLTLS"], "--other-config", file)
    status, out, err = run("diff", kafka.node.log_dir, *sides)
    assert (status, out) == (0, ""), err
    monkeypatch.setenv("RAFTLOG_TEST_PASSWORD", WRONG)
    status, out, err = run("cat", *at, "--config", file)
    assert (status, out) == (1, "")
    assert "RAFTLOG_SASL_AUTHENTICATION" in err
    assert WRONG not in err
    status, out, err = run("cat", *at, "--tls-ca", kafka.authority.path)
    assert "RAFTLOG_SECURITY_PROTOCOL" in err


@pytest.mark.spark
def test_spark_reads_and_shows_no_secret_anywhere(kafka: SecuredKafka, tmp_path: Path) -> None:
    """Plan, UI, event log, progress, checkpoint, error and process list are searched."""
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "auditor.properties").write_text(f"password={SCRAM_PASSWORD}\n")
    right = {
        f"kafka.{name}": value for name, value in kafka.options("SASLTLS", "SCRAM-SHA-512").items()
    } | {"kafka.bootstrap.servers": kafka.addresses["SASLTLS"]}
    reference = f"${{file:{secrets}/auditor.properties:password}}"
    jaas = f'{SCRAM} required username="alice" password="{reference}";'
    for name, options in {
        "clear": right,
        "reference": right | {"kafka.sasl.password": reference},
        "jaas": {k: v for k, v in right.items() if "username" not in k and "password" not in k}
        | {"kafka.sasl.jaas.config": jaas},
    }.items():
        home = tmp_path / name
        home.mkdir()
        given = {"right": options, "wrong": right | {"kafka.sasl.password": WRONG}}
        command = [sys.executable, "-m", "tests.kafka.secrets_driver", str(home)]
        done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        batch, streamed = json.loads(done.stdout.splitlines()[-1])
        assert streamed >= batch > 0
        (home / "output").write_text(done.stdout + done.stderr)
        files = [path for path in home.rglob("*") if path.is_file()]
        names = {path.relative_to(home).parts[0] for path in files}
        assert names >= {"events", "checkpoint", "plans", "progress", "error", "page-0"}
        assert "RAFTLOG_SASL_AUTHENTICATION" in (home / "error").read_text()
        for secret in (SCRAM_PASSWORD, WRONG):
            found = [str(path) for path in files if secret.encode() in path.read_bytes()]
            assert found == [], f"{name}: {found}"


@pytest.mark.spark
def test_a_stream_continues_over_the_ends_of_its_sessions(
    kafka: SecuredKafka, tmp_path: Path
) -> None:
    """Each action of Kafka's client takes longer than a session."""
    from tests.support.spark_session import shared_session

    seen: list[int] = []
    query = (
        shared_session()
        .readStream.format("raftlog")
        .options(**kafka.options("SHORT", "SCRAM-SHA-256"))
        .option("bootstrap.servers", kafka.addresses["SHORT"])
        .option("startingOffset", "earliest")
        .load()
        .writeStream.foreachBatch(
            lambda frame, _: seen.extend(row.offset for row in frame.select("offset").collect())
        )
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        for action in ("create", "change"):
            kafka.node.admin(action)
        end = kafka.node.admin("describe")["high_watermark"]
        eventually(
            lambda: not query.isActive or max(seen, default=0) >= end - 1,
            "the stream has all records",
            patience_s=600,
        )
        assert query.exception() is None
    finally:
        query.stop()
    assert len(seen) == len(set(seen)) > 0
