"""Location of a log by options: a path or nodes, never both, and no secret is shown."""

from __future__ import annotations

import os
import pickle

import pytest

from pyspark_raftlog.options import RaftlogOptions, WriteOptions
from pyspark_raftlog.source import RaftlogDataSource
from raftlog.client.location import LogLocation, parse_location
from raftlog.errors import OptionError

TLS = {
    "ssl.ca.location": "ca.pem",
    "ssl.certificate.location": "/keys/me.pem",
    "ssl.key.location": "/keys/me.key",
    "ssl.key.password": "hunter2",
    "ssl.endpoint.identification.algorithm": "none",
}


def test_a_path_is_a_local_location() -> None:
    assert parse_location({"path": "/logs", "startingOffset": "1"}) == LogLocation("/logs")


@pytest.mark.parametrize("prefix", ["", "kafka.", "KAFKA."])
def test_nodes_are_named_as_in_kafkas_clients(prefix: str) -> None:
    given = {f"{prefix}{name}": value for name, value in TLS.items()}
    place = parse_location({f"{prefix}Bootstrap.Servers": "a:1,b:2", **given})
    assert place.path == "a:1,b:2"
    assert place.nodes is not None
    tls = place.nodes.tls
    assert tls is not None
    assert (tls.ca, tls.certificate) == (os.path.abspath("ca.pem"), "/keys/me.pem")
    assert (tls.key, tls.key_password, tls.check_host) == ("/keys/me.key", "hunter2", False)
    assert "hunter2" not in repr(place)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "path: is missing"),
        ({"path": " "}, "path: is missing"),
        ({"path": "/logs", "bootstrap.servers": "a:1"}, "give one of them"),
        ({"ssl.ca.location": "ca.pem", "path": "/logs"}, "is required with security"),
        ({"bootstrap.servers": "a"}, "is not host:port"),
        ({"bootstrap.servers": "a:1", "ssl.key.location": "k"}, r"ssl\.ca\.location"),
        ({"bootstrap.servers": "a:1", "ssl.endpoint.identification.algorithm": "x"}, "https"),
    ],
)
def test_contradicting_options_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        parse_location(options)
    for parse in (RaftlogOptions.parse, WriteOptions.parse):
        with pytest.raises(OptionError, match=words):
            parse(options)


def test_the_source_keeps_the_nodes_and_shows_no_secret() -> None:
    given = {"bootstrap.servers": "a:1", **TLS}
    source = RaftlogDataSource({**given, "startingOffset": "7"})
    assert "hunter2" not in repr(source)
    copy = pickle.loads(pickle.dumps(source))
    assert copy._options == source._options
    assert copy._options.path == "a:1"
    sink = RaftlogDataSource({**given, "requiredBaseOffset": "7"})
    assert "hunter2" not in repr(sink)
    assert "a:1" in repr(sink)
    options = WriteOptions.parse(given)
    assert (options.path, options.nodes) == ("a:1", copy._options.nodes)
