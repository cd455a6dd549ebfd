"""Configuration of a node in TOML: its meaning, and every error in it."""

from __future__ import annotations

import json
import os
import random
import re
from dataclasses import asdict, fields
from pathlib import Path

import pytest

import raftlog.node.config as config_module
from raftlog.log.reading.transactions import ValueKind
from raftlog.log.writing.properties import LogConfig
from raftlog.node.access import AccessTable
from raftlog.node.config import (
    QUORUM_DEFAULT,
    LimitsConfig,
    NodeConfig,
    SnapshotsConfig,
    parse_config,
    read_config,
    reload_access,
    voter_of,
)
from raftlog.node.errors import ConfigError
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.voters import Endpoint
from raftlog.types import ReplicaKey
from raftlog.wire import Listener

PATH = "/etc/raftlog/node.toml"
NODE = '[node]\nid = 1\ndirectory = "data"\n'
BOTH = '[listeners.both]\naddress = "127.0.0.1:9192"\n'
CLIENTS = '[listeners.clients]\naddress = "127.0.0.1:9192"\n'
VOTERS = '[listeners.voters]\naddress = "127.0.0.1:9193"\n'
TLS = 'tls = { certificate = "n.pem", key = "n.key", ca = "ca.pem" }\n'
SMALLEST = NODE + BOTH
METRICS = "[metrics]\naddress = '127.0.0.1:9194'\n"


def documented() -> str:
    """Return the file that the docstring documents."""
    assert config_module.__doc__ is not None
    found = re.search(r"```toml\n(.*?)```", config_module.__doc__, re.DOTALL)
    assert found is not None
    return found[1]


def with_static_voters(*voters: str) -> str:
    return f"{NODE}static_voters = {list(voters)}\n{BOTH}"


def test_the_smallest_file_has_three_lines() -> None:
    config = parse_config(SMALLEST, PATH)
    assert config.node_id == 1
    assert config.directory == "/etc/raftlog/data"
    assert config.topic == "raftlog"
    assert config.static_voters is None
    assert (config.quorum, config.log, config.limits) == (
        QUORUM_DEFAULT,
        LogConfig(),
        LimitsConfig(),
    )
    assert config.clients is not None
    assert config.clients is config.voters
    assert config.clients.listener == Listener.CLIENTS | Listener.VOTERS
    assert config.listeners == (config.clients,)


def test_the_documented_file_is_accepted() -> None:
    config = parse_config(documented(), PATH)
    assert config.topic == "decisions"
    assert config.bootstrap_servers[0] == Endpoint("CONTROLLER", "10.0.0.1", 9193)
    assert config.clients is not None
    assert config.voters is not None
    assert config.clients.tls is not None
    assert config.clients.tls.key == "/etc/raftlog/clients/log-1.key"
    assert (config.clients.advertised_host, config.voters.advertised_host) == (
        "log-1.example",
        "10.0.0.1",
    )
    assert config.access.append == ("jobs-*",)
    assert config.access.nodes == {1: "log-1.example", 2: "log-2.example", 3: "log-3.example"}
    assert config.access.commits == {"jobs-*": ("{name}", "{name}:*"), "jobs-etl": ("nightly-*",)}
    assert config.access.commit_names_max == AccessTable().commit_names_max
    assert config.metrics is not None
    # The documented defaults are the defaults.
    assert (config.quorum, config.log, config.limits) == (
        QUORUM_DEFAULT,
        LogConfig(),
        LimitsConfig(),
    )


def test_voters_register_both_listeners() -> None:
    config = parse_config(NODE + CLIENTS + 'advertised = "log-1:19192"\n' + VOTERS, PATH)
    voter = voter_of(config, "AbCdEfGhIjKlMnOpQrStUg")
    assert voter.key == ReplicaKey(1, "AbCdEfGhIjKlMnOpQrStUg")
    assert voter.endpoints == (
        Endpoint("CONTROLLER", "127.0.0.1", 9193),
        Endpoint("CLIENTS", "log-1", 19192),
    )


def test_static_voters_are_written_as_in_kafka() -> None:
    config = parse_config(with_static_voters("2@[::1]:9193", "1@127.0.0.1:9192"), PATH)
    assert config.static_voters is not None
    assert config.static_voters.node_ids == (1, 2)
    found = config.static_voters.find(2)
    assert found is not None
    assert found.endpoints == (Endpoint("CONTROLLER", "::1", 9193),)


def test_settings_have_the_names_of_their_fields() -> None:
    text = SMALLEST + (
        '[log]\nvalues = "kraft"\ncompression = "zstd"\nretention_ms = -1\nlinger_ms = 5\n'
        "[quorum]\nfetch_timeout_ms = 700\n[limits]\nidle_ms = 9\n"
    )
    config = parse_config(text, PATH)
    assert config.log.values == ValueKind.KRAFT
    assert (config.log.retention_ms, config.log.linger_ms) == (None, 5)
    assert (config.quorum.fetch_timeout_ms, config.limits.idle_ms) == (700, 9)


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("", "node", "missing"),
        ("[node]\n" + BOTH, "node.id", "missing"),
        ("node = 3\n", "node", "expected a table"),
        ("[node]\nid = 1\n" + BOTH, "node.directory", "missing"),
        ('[node]\nid = "1"\ndirectory = "d"\n' + BOTH, "node.id", "an integer"),
        ('[node]\nid = true\ndirectory = "d"\n' + BOTH, "node.id", "an integer"),
        ('[node]\nid = -1\ndirectory = "d"\n' + BOTH, "node.id", "from 0 to 2147483647"),
        ('[node]\nid = 1\ndirectory = ""\n' + BOTH, "node.directory", "a string that is not empty"),
        (NODE + "topic = 'a/b'\n" + BOTH, "node.topic", "1 to 249 characters"),
        (NODE + "topic = '..'\n" + BOTH, "node.topic", "1 to 249 characters"),
        (NODE + 'rack = "a\\tb"\n' + BOTH, "node.rack", "1 to 249 printable ASCII"),
        (NODE + f"rack = '{'a' * 250}'\n" + BOTH, "node.rack", "1 to 249 printable ASCII"),
        (NODE + "topics = 'a'\n" + BOTH, "node.topics", "did you mean topic?"),
        (
            NODE + "bootstrap_servers = 'a:1'\n" + BOTH,
            "node.bootstrap_servers",
            "an array of strings",
        ),
        (
            NODE + "bootstrap_servers = ['a']\n" + BOTH,
            "node.bootstrap_servers",
            "'a': expected HOST:PORT",
        ),
        (NODE + "allow_plaintext_beyond_loopback = 1\n" + BOTH, "loopback", "true or false"),
        (NODE, "listeners", "[listeners.clients] and [listeners.voters]"),
        (NODE + "[listeners]\n", "listeners", "[listeners.clients] and [listeners.voters]"),
        (NODE + BOTH + CLIENTS, "listeners.both", "serves clients and voters"),
        (NODE + "[listeners.client]\n", "listeners.client", "did you mean clients?"),
        (NODE + "[listeners.both]\n", "listeners.both.address", "missing"),
        (NODE + BOTH.replace(":9192", ""), "both.address", "HOST:PORT"),
        (NODE + BOTH.replace("9192", "0"), "both.address", "from 1 to 65535"),
        (NODE + BOTH.replace("9192", "65536"), "both.address", "from 1 to 65535"),
        (NODE + BOTH.replace("9192", "٣"), "both.address", "from 1 to 65535"),
        (NODE + BOTH.replace("127.0.0.1", "::1"), "both.address", "in brackets"),
        (NODE + BOTH.replace("127.0.0.1", "[::g]"), "both.address", "not an IPv6 address"),
        (NODE + BOTH.replace("127.0.0.1", "a b"), "both.address", "host name is invalid"),
        (NODE + BOTH + "advertised = '0.0.0.0:1'\n", "both.advertised", "wildcard address"),
        (NODE + BOTH + "port = 1\n", "listeners.both.port", "unknown key"),
        (NODE + BOTH + "tls = true\n", "listeners.both.tls", "expected a table"),
        (NODE + BOTH + "tls = { key = 'k' }\n", "listeners.both.tls.certificate", "missing"),
        (
            NODE + BOTH + TLS.replace(" }", ", client_certificates = 'optional' }"),
            "listeners.both.tls.client_certificates",
            "always requires client certificates",
        ),
        (
            NODE + CLIENTS + TLS.replace(" }", ", client_certificates = 'none' }"),
            "listeners.clients.tls.client_certificates",
            'one of "required", "optional"',
        ),
        (NODE + CLIENTS + VOTERS.replace("9193", "9192"), "listeners", "is used twice"),
        (SMALLEST + "[metrics]\naddress = '127.0.0.1:9192'\n", "listeners", "is used twice"),
        (SMALLEST + "[metrics]\n", "metrics.address", "missing"),
        (SMALLEST + METRICS + "buckets_s = []\n", "metrics.buckets_s", "1 to 100 numbers"),
        (SMALLEST + METRICS + "buckets_s = [0.1, 0]\n", "metrics.buckets_s", "above 0"),
        (SMALLEST + METRICS + "buckets_s = [0.5, 0.1]\n", "metrics.buckets_s", "0.1 is not above"),
        (SMALLEST + "[controller]\nenabled = true\n", "log.values", 'values = "kraft"'),
        (SMALLEST + "[controller]\nenabled = 1\n", "controller.enabled", "true or false"),
        (
            SMALLEST + "[controller]\nenabled = true\nmax_idle_interval_ms = -1\n",
            "controller.max_idle_interval_ms",
            "from 0",
        ),
        (SMALLEST + "[snapshots]\nbytes_max = 0\n", "snapshots.bytes_max", "from 1"),
        (
            NODE + "topic = 'a'\n" + BOTH + "[controller]\nenabled = true\n",
            "node.topic",
            "is __cluster_metadata",
        ),
        (SMALLEST + "[quorum]\nfetch_timeout_ms = 0\n", "quorum.fetch_timeout_ms", "from 1"),
        (SMALLEST + "[quorum]\nfetch_timeout = 9\n", "quorum.fetch_timeout", "did you mean"),
        (SMALLEST + "[limits]\nidle_ms = 1.5\n", "limits.idle_ms", "an integer"),
        (SMALLEST + "[limits]\nframe_bytes_max = 100000\n", "frame_bytes_max", "batch_bytes_max"),
        (
            SMALLEST + "[limits]\nstranger_frame_bytes_max = 200000000\n",
            "limits.stranger_frame_bytes_max",
            "larger than limits.frame_bytes_max",
        ),
        (SMALLEST + "[log]\nbatch_bytes_max = 5\n", "log.batch_bytes_max", "from 1024"),
        (SMALLEST + "[log]\nsegment_bytes = -1\n", "log.segment_bytes", "from 61"),
        (SMALLEST + "[log]\nvalues = 'json'\n", "log.values", 'one of "bytes", "msgpack", "kraft"'),
        (SMALLEST + "[log]\ncompression = 4\n", "log.compression", "one of"),
        (
            SMALLEST + "[log]\nvalues = 'kraft'\ncleanup_policy = 'compact'\n",
            "log.cleanup_policy",
            "a kraft log has no keys",
        ),
        (SMALLEST + "[log]\nmin_cleanable_dirty_ratio = 2.0\n", "dirty_ratio", "from 0"),
        pytest.param(
            SMALLEST + f"[log]\nmin_cleanable_dirty_ratio = {10**400}\n",
            "dirty_ratio",
            "expected a number above 0",
            id="a ratio that no float can have",
        ),
        (SMALLEST + "[log]\nretention = 4\n", "log.retention", "did you mean retention"),
        (SMALLEST + "[other]\n", "other", "unknown key"),
        (SMALLEST + "[access]\nread = ['a']\n", "access", "names in client certificates"),
        (SMALLEST + "[access.nodes]\n1 = 'a'\n", "access", "names in client certificates"),
        (NODE + BOTH + TLS, "access.nodes.1", "missing"),
        (NODE + BOTH + TLS + "[access]\nread = 'a'\n", "access.read", "an array of strings"),
        (NODE + BOTH + TLS + "[access]\nread = ['']\n", "access.read", "a name is empty"),
        (
            NODE + BOTH + TLS + "[access.commits]\na = 'a'\n",
            "access.commits.a",
            "an array of strings",
        ),
        (NODE + BOTH + TLS + "[access.commits]\na = ['']\n", "access.commits.a", "is empty"),
        (NODE + BOTH + TLS + "[access.commits]\n'' = ['a']\n", "access.commits.", "is empty"),
        (NODE + BOTH + TLS + "[access]\ncommits = 3\n", "access.commits", "expected a table"),
        (NODE + BOTH + TLS + "[access]\ncommit_names_max = 0\n", "commit_names_max", "from 1 to"),
        (SMALLEST + "[access.commits]\na = ['a']\n", "access", "names in client certificates"),
        (NODE + BOTH + TLS + "[access]\nreads = ['a']\n", "access.reads", "did you mean read?"),
        (NODE + BOTH + TLS + "[access.nodes]\na = 'a'\n", "access.nodes.a", "NODE_ID ="),
        (NODE + BOTH + TLS + "[access.nodes]\n1 = 'a*'\n", "access.nodes.1", "without '*'"),
        (NODE + BOTH + TLS + "[access.nodes]\n1 = 'a'\n2 = 'A'\n", "nodes.2", "neither"),
        (NODE + BOTH + TLS + "[access]\nnodes = 'log.example'\n", "access.nodes", "one pattern"),
        (NODE + BOTH + TLS + "[access]\nnodes = '*{id}'\n", "access.nodes", "one pattern"),
        (NODE + BOTH + TLS + "[access]\nnodes = 3\n", "access.nodes", "expected a table"),
        (with_static_voters(), "node.static_voters", "the list is empty"),
        (with_static_voters("127.0.0.1:9192"), "node.static_voters", "is not ID@HOST:PORT"),
        (with_static_voters("1@127.0.0.1"), "node.static_voters", "HOST:PORT"),
        (with_static_voters("1@a:1", "1@b:1"), "node.static_voters", "duplicate node id 1"),
        (with_static_voters("1@a:1", "2@a:1"), "node.static_voters", "the same address"),
        (with_static_voters("1@a:1"), "node.static_voters", "advertises 127.0.0.1:9192"),
        (
            NODE + "static_voters = ['1@127.0.0.1:9193']\n" + CLIENTS,
            "listeners.voters",
            "node.static_voters contains this node",
        ),
    ],
)
def test_an_error_names_its_key_and_the_expected_value(text: str, key: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, PATH)
    assert caught.value.path == PATH
    assert (caught.value.key or "").endswith(key)
    assert words in caught.value.reason
    assert PATH in str(caught.value)


VALID = {
    "remote_storage_enable": "true",
    "local_retention_ms": "-2",
    "local_retention_bytes": "-2",
}


@pytest.mark.parametrize("kind", [QuorumConfig, LimitsConfig, LogConfig])
def test_every_setting_refuses_values_of_other_types(kind: type) -> None:
    table = {QuorumConfig: "quorum", LimitsConfig: "limits", LogConfig: "log"}[kind]
    for one in fields(kind):
        for wrong in ("'text'", "1.5", "true", "[]", "{}", "-2"):
            if wrong == VALID.get(one.name):
                continue
            text = f"{SMALLEST}[{table}]\n{one.name} = {wrong}\n"
            with pytest.raises(ConfigError) as caught:
                parse_config(text, PATH)
            assert caught.value.key == f"{table}.{one.name}"


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "[::]", "log-1.example", "128.0.0.1"])
def test_listeners_without_tls_are_refused_beyond_loopback(host: str) -> None:
    advertised = 'advertised = "log-1:9192"\n'
    text = NODE + BOTH.replace("127.0.0.1", host) + advertised
    with pytest.raises(
        ConfigError, match=r"is not a loopback address, so TLS is required: add \[list"
    ):
        parse_config(text, PATH)
    with_tls = text + TLS + "[access.nodes]\n1 = 'log-1'\n"
    assert parse_config(with_tls, PATH).clients is not None
    override = NODE + "allow_plaintext_beyond_loopback = true\n"
    assert parse_config(text.replace(NODE, override), PATH).clients is not None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "[::1]", "localhost", "LOCALHOST"])
def test_loopback_needs_no_tls(host: str) -> None:
    assert parse_config(NODE + BOTH.replace("127.0.0.1", host), PATH).clients is not None


def test_metrics_have_no_tls_and_are_on_loopback_unless_allowed() -> None:
    text = SMALLEST + "[metrics]\naddress = '0.0.0.0:9194'\n"
    metrics = parse_config(text + "allow_plaintext_beyond_loopback = true\n", PATH).metrics
    assert metrics is not None
    assert metrics.host == "0.0.0.0"
    with pytest.raises(ConfigError, match=r"metrics\.address: 0\.0\.0\.0 is not a loopback"):
        parse_config(text, PATH)


def test_buckets_of_durations_are_configured() -> None:
    metrics = parse_config(SMALLEST + METRICS + "buckets_s = [0.01, 1]\n", PATH).metrics
    assert metrics is not None
    assert metrics.buckets_s == (0.01, 1.0)


def test_plaintext_for_clients_beside_tls_for_voters_is_refused_beyond_loopback() -> None:
    voters = VOTERS + TLS + "[access.nodes]\n1 = 'log-1'\n"
    assert parse_config(NODE + CLIENTS + voters, PATH).clients is not None
    with pytest.raises(ConfigError, match=r"\[listeners\.clients\.tls\]"):
        parse_config(NODE + CLIENTS.replace("127.0.0.1", "10.0.0.1") + voters, PATH)


def test_one_pattern_names_all_nodes() -> None:
    config = parse_config(NODE + BOTH + TLS + "[access]\nnodes = 'log-{id}.example'\n", PATH)
    assert config.access.name_of(1) == "log-1.example"
    assert config.access.name_of(41) == "log-41.example"


def test_paths_in_a_file_are_relative_to_its_directory(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text(SMALLEST)
    config = read_config(path)
    assert isinstance(config, NodeConfig)
    assert config.directory == str(tmp_path / "data")


def test_a_file_that_others_can_write_is_refused(tmp_path: Path) -> None:
    """It grants rights to certificates."""
    directory = tmp_path / "etc"
    directory.mkdir(mode=0o755)
    path = directory / "node.toml"
    path.write_text(SMALLEST)
    path.chmod(0o644)
    assert read_config(path).node_id == 1, "others may read it"
    path.chmod(0o646)
    with pytest.raises(ConfigError, match=r"other users may change .*chmod go-w"):
        read_config(path)
    path.chmod(0o644)
    directory.chmod(0o757)
    with pytest.raises(ConfigError, match=r"other users may replace it.*/etc "):
        read_config(path)


WITH_TLS = NODE + BOTH + TLS + "[access.nodes]\n1 = 'log-1'\n"


def test_reloading_a_file_changes_only_the_access(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text(WITH_TLS)
    config = read_config(path)
    path.write_text(WITH_TLS + "2 = 'log-2'\n[limits]\nidle_ms = 5\n")
    assert dict(reload_access(config)[0].nodes) == {1: "log-1", 2: "log-2"}
    path.write_text(SMALLEST)
    with pytest.raises(ConfigError, match=r"access\.nodes\.1"):
        reload_access(config)  # valid in that file, but this node listens with TLS
    path.write_text(WITH_TLS + "[limits]\nidle_ms = 'long'\n")
    with pytest.raises(ConfigError, match=r"limits\.idle_ms"):
        reload_access(config)
    path.unlink()
    with pytest.raises(ConfigError, match="no such file"):
        reload_access(config)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"[node\n", "not valid TOML"),
        (b"\xff\xfe", "not UTF-8"),
        (b"#" * (1024 * 1024 + 1), "larger than"),
        (b"a = " + b"[" * 20_000, "not valid TOML"),
    ],
)
def test_a_file_that_is_no_toml_is_reported(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "node.toml"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=words):
        read_config(path)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path, os.path.join(tmp_path, "a\0b")):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_config(path)


def test_any_file_is_accepted_or_raises_one_type_of_error() -> None:
    rng = random.Random(20)
    words = [
        "[",
        "]",
        "{}",
        "=",
        '"',
        "'''",
        "\n",
        "-1",
        "1e9",
        "2026-11-21",
        "true",
        "[[a]]",
        "\0",
    ]
    texts = [documented(), SMALLEST, with_static_voters("1@127.0.0.1:9192")]
    read = 0
    for _ in range(400):
        lines = rng.choice(texts).splitlines(keepends=True)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(lines))
            line = lines[at]
            cut = rng.randrange(len(line) + 1)
            lines[at] = rng.choice(
                (line[:cut] + rng.choice(words) + line[cut:], line[:cut], rng.choice(lines), "")
            )
        try:
            parse_config("".join(lines), PATH)
            read += 1
        except ConfigError:
            continue
    assert read


def test_snapshots_have_thresholds_without_a_controller_too() -> None:
    table = "[snapshots]\nbytes_max = 5\ninterval_ms = 0\nskip_rejected = true\n"
    config = parse_config(SMALLEST + table, "node.toml")
    assert config.controller is None
    assert config.snapshots == SnapshotsConfig(bytes_max=5, interval_ms=0, skip_rejected=True)
    assert parse_config(SMALLEST, "node.toml").snapshots == SnapshotsConfig(
        bytes_max=20 * 1024 * 1024, interval_ms=3_600_000
    )


QUOTA = "[[quotas]]\n"


def test_quotas_are_for_users_client_ids_or_both(tmp_path: Path) -> None:
    text = (
        SMALLEST
        + QUOTA
        + "user = 'jobs'\nproducer_byte_rate = 1024\nrequest_percentage = 2.5\n"
        + QUOTA
        + "user = '*'\nclient_id = '*'\nconsumer_byte_rate = 7\n"
        + QUOTA
        + "user = 'anonymous'\nconsumer_byte_rate = 8\n"
    )
    quotas = parse_config(text, PATH).quotas
    assert quotas == (
        ((("user", "jobs"),), "producer_byte_rate", 1024.0),
        ((("user", "jobs"),), "request_percentage", 2.5),
        ((("client-id", None), ("user", None)), "consumer_byte_rate", 7.0),
        ((("user", "ANONYMOUS"),), "consumer_byte_rate", 8.0),
    )
    path = tmp_path / "node.toml"
    path.write_text(SMALLEST)
    config = read_config(path)
    assert config.quotas == ()
    path.write_text(text)
    assert reload_access(config)[1] == quotas
    json.dumps(asdict(parse_config(text, PATH)).get("quotas"))  # as the audit log has them


@pytest.mark.parametrize(
    ("quotas", "key", "words"),
    [
        ("quotas = 1\n", "quotas", r"an array of tables: \[\[quotas\]\]"),
        (QUOTA + "producer_byte_rate = 1\n", "quotas[0].user", "a user, a client_id, or both"),
        (QUOTA + "user = 'a'\n", "quotas[0].producer_byte_rate", "missing: set producer_byte_rate"),
        (QUOTA + "user = ''\nproducer_byte_rate = 1\n", "quotas[0].user", "not empty"),
        (QUOTA + "user = 'a'\nproducer_byte_rate = 0\n", "quotas[0].producer_byte_rate", "above 0"),
        (
            QUOTA + "user = 'a'\nconsumer_byte_rate = inf\n",
            "quotas[0].consumer_byte_rate",
            "above 0",
        ),
        (
            QUOTA + "user = 'a'\nrequest_percentage = nan\n",
            "quotas[0].request_percentage",
            "above 0",
        ),
        (
            QUOTA + "user = 'a'\nrequest_percentage = true\n",
            "quotas[0].request_percentage",
            "above",
        ),
        (
            QUOTA + "user = 'a'\nbyte_rate = 1\nproducer_byte_rate = 1\n",
            "quotas[0].byte_rate",
            "unkn",
        ),
        (
            2 * (QUOTA + "client_id = '*'\nproducer_byte_rate = 1\n"),
            "quotas[1].producer_byte_rate",
            "another",
        ),
        (
            QUOTA + "user = 'a'\nproducer_byte_rate = 1\n[controller]\nenabled = true\n"
            "[log]\nvalues = 'kraft'\n",
            "quotas",
            "set them by kafka-configs",
        ),
    ],
)
def test_a_wrong_quota_is_reported_by_its_key(quotas: str, key: str, words: str) -> None:
    is_top = quotas.startswith("quotas")
    text = quotas + SMALLEST if is_top else SMALLEST + quotas
    with pytest.raises(ConfigError, match=words) as caught:
        parse_config(text, PATH)
    assert caught.value.key == key
