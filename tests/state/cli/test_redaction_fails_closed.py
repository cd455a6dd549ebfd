"""No directory name and no other file of a log makes the CLI or the Spark source show a secret."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.cli import run
from tests.support.log_builder import control_batch, data_batch, leader_change
from tests.support.sweep_size import nightly_except

import raftlog
from pyspark_raftlog.options import RaftlogOptions
from pyspark_raftlog.reader import RaftlogReader
from raftlog.client import LogKind, open_path
from raftlog.errors import OptionError, RaftlogError, UnknownRecordKindError
from raftlog_state.records import ConfigRecord, encode

pytestmark = pytest.mark.slow

SECRET = "orders-hunter2"
KEY_PASSWORD = "listener.name.extra.ssl.key.password"
SECRET_VALUE = encode(
    ConfigRecord(resource_type=4, resource_name="1", name=KEY_PASSWORD, value=SECRET)
)
SEGMENT = f"{0:020d}.log"
COLUMNS = ("offset", "key", "value", "record")

NAMES = ("__cluster_metadata-0", "ticket-4711", "kafka-1", "orders-0.0a1b-delete", "bundle")
WHOLE = b"version=1\ntopic.id=AAAAAAAAAAAAAAAAAAAAAw\nvalues=%s\n"
PROPERTIES = {
    "no properties": None,
    "empty properties": b"",
    "truncated properties": WHOLE[:30],
    "properties without values": WHOLE[: WHOLE.index(b"values")],
    "random properties": b"\x93\xe2\\u12\x00\xff values",
    "other values": WHOLE % b"avro",
    "kraft values": WHOLE % b"kraft",
    "bytes values": WHOLE % b"bytes",
    "msgpack values": WHOLE % b"msgpack",
}
PARTITION_METADATA = {
    "no partition.metadata": None,
    "partition.metadata": b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAw",
    "damaged partition.metadata": b"version: 0\ntopic",
}
QUORUM_STATE = b'{"leaderId":1,"leaderEpoch":1,"votedId":-1,"votedDirectoryId":"","data_version":1}'


def _leader() -> bytes:
    return control_batch([leader_change(1, [1])], base_offset=0)


def _secrets(base_offset: int) -> bytes:
    return data_batch([SECRET_VALUE, SECRET_VALUE], base_offset=base_offset)


def _with_damage() -> bytes:
    first = bytearray(_leader())
    first[-1] ^= 1
    return bytes(first) + _secrets(1)


LOGS = {
    "a whole log": _leader() + _secrets(1),
    "a log without its leader change": _secrets(0),
    "a log whose first batch is damaged": _with_damage(),
}


@dataclass(frozen=True)
class Layout:
    """Directory as a support bundle or an accident leaves it."""

    name: str
    log: str
    properties: str
    partition_metadata: str
    has_quorum_state: bool

    def make(self, home: Path) -> Path:
        """Write the files; return the directory's path."""
        directory = home / self.name
        directory.mkdir(parents=True)
        (directory / SEGMENT).write_bytes(LOGS[self.log])
        beside = {
            "raftlog.properties": PROPERTIES[self.properties],
            "partition.metadata": PARTITION_METADATA[self.partition_metadata],
            "quorum-state": QUORUM_STATE if self.has_quorum_state else None,
        }
        for name, data in beside.items():
            if data is not None:
                (directory / name).write_bytes(data)
        return directory


BESIDE = list(itertools.product(PARTITION_METADATA, (False, True)))
LAYOUTS = [
    Layout(*facts, *BESIDE[at % len(BESIDE)])
    for at, facts in enumerate(itertools.product(NAMES, LOGS, PROPERTIES))
]
"""All names with all logs and all properties; the other files alternate."""


def _bytes_of_rows(path: Path, **options: str) -> bytes:
    """Return all bytes that the Spark source returns, from the first readable offset."""
    options.setdefault("failOnDataLoss", "false")
    shown = b""
    try:
        reader = RaftlogReader(RaftlogOptions.parse({"path": str(path), **options}), COLUMNS)
        for part in reader.partitions():
            for batch in reader.read(part):
                shown += repr(batch.to_pylist()).encode()
    except RaftlogError as error:
        shown += str(error).encode()
    return shown


def _paths(directory: Path) -> Iterator[Path]:
    """Return the directory, and the path of its segment alone, renamed to deleted."""
    yield directory
    deleted = directory / f"{SEGMENT}.deleted"
    deleted.write_bytes((directory / SEGMENT).read_bytes())
    yield deleted


@pytest.mark.parametrize("name", nightly_except(["kafka-1"], NAMES))
def test_no_layout_shows_a_secret(name: str, tmp_path: Path) -> None:
    shown_count = 0
    for number, layout in enumerate(one for one in LAYOUTS if one.name == name):
        directory = layout.make(tmp_path / str(number))
        for path in _paths(directory):
            _, out, err = run("cat", path)
            _, later_out, later_err = run("cat", path, "--from", "1")
            rows = _bytes_of_rows(path) + _bytes_of_rows(path, startingOffset="1")
            shown = out + err + later_out + later_err + rows.decode()
            assert SECRET not in shown, (layout, path)
            shown_count += KEY_PASSWORD in out + later_out
    assert shown_count >= len(LOGS) * len(PROPERTIES), "the records were shown, without the secret"


@pytest.mark.parametrize("log", LOGS)
def test_the_same_logs_show_secrets_on_request(log: str, tmp_path: Path) -> None:
    layout = Layout("ticket-4711", log, "no properties", "no partition.metadata", False)
    directory = layout.make(tmp_path)
    start = "1" if "damaged" in log else "0"
    assert SECRET in run("cat", directory, "--from", start, "--reveal")[1]
    assert SECRET in run("cat", directory, "--from", start, "--as", "partition")[1]
    if "damaged" not in log:  # Spark plans from the first batch on
        assert SECRET.encode() in _bytes_of_rows(directory, redact="false")
        assert SECRET.encode() in _bytes_of_rows(directory, values="bytes")


@pytest.mark.parametrize("name", nightly_except(["kafka-1"], NAMES))
def test_a_single_snapshot_is_metadata_under_any_path(name: str, tmp_path: Path) -> None:
    source = own_kraft_log(tmp_path / "decisions-0")
    checkpoint = next(source.glob("*.checkpoint"))
    for properties, data in PROPERTIES.items():
        directory = tmp_path / f"{properties}" / name
        directory.mkdir(parents=True)
        copy = directory / checkpoint.name
        copy.write_bytes(checkpoint.read_bytes())
        if data is not None:
            (directory / "raftlog.properties").write_bytes(data)
        for path in (copy, directory):
            shown = "".join(run("cat", path)[1:]) + _bytes_of_rows(path).decode()
            assert SECRET not in shown, properties
    assert SECRET in run("cat", checkpoint, "--reveal")[1]


def own_kraft_log(path: Path) -> Path:
    """Write an embedded kraft log with one secret, and a snapshot of it."""
    with raftlog.open(path, values="kraft") as log:
        log.append([SECRET_VALUE])
        log.snapshot([SECRET_VALUE])
    return path


@pytest.mark.parametrize("properties", [name for name in PROPERTIES if name != "no properties"])
def test_an_embedded_kraft_log_keeps_its_secrets_without_its_properties(
    properties: str, tmp_path: Path
) -> None:
    path = own_kraft_log(tmp_path / "decisions-0")
    (path / "raftlog.properties").write_bytes(PROPERTIES[properties] or b"")
    assert SECRET not in "".join(run("cat", path)[1:]) + _bytes_of_rows(path).decode()
    (path / "raftlog.properties").unlink()
    assert SECRET not in "".join(run("cat", path)[1:]) + _bytes_of_rows(path).decode()


# --- logs without metadata stay readable ----------------------------------------------------------


def test_an_ordinary_partition_is_read_as_one(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    directory.mkdir()
    (directory / SEGMENT).write_bytes(data_batch([b"order 1", b"\x01\x0f\x00ab"], base_offset=0))
    assert open_path(str(directory)).kind is LogKind.METADATA, "half of the records are framed"
    (directory / SEGMENT).write_bytes(data_batch([b"order 1", b"order 2"], base_offset=0))
    assert open_path(str(directory)).kind is LogKind.PARTITION
    assert '"value":"order 1"' in run("cat", directory)[1]


@pytest.mark.parametrize(
    ("beside", "reason"),
    [
        ({"raftlog.properties": b""}, "raftlog.properties is damaged or has no 'values'"),
        ({"quorum-state": QUORUM_STATE}, "it has the files of a quorum"),
    ],
)
def test_a_log_of_other_records_is_refused_without_a_declaration(
    beside: dict[str, bytes], reason: str, tmp_path: Path
) -> None:
    (tmp_path / SEGMENT).write_bytes(_leader() + data_batch([b"order 1"], base_offset=1))
    for name, data in beside.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(UnknownRecordKindError, match=reason):
        open_path(str(tmp_path))
    status, out, err = run("cat", tmp_path)
    assert (status, out) == (1, "")
    assert "--as partition" in err
    assert '"value":"order 1"' in run("cat", tmp_path, "--as", "partition")[1]
    assert b"order 1" in _bytes_of_rows(tmp_path, values="bytes")
    assert "cannot be replayed" not in run("check", tmp_path)[1]


def test_cluster_metadata_cannot_be_declared_as_other_values(tmp_path: Path) -> None:
    facts = ("a whole log", "bytes values", "no partition.metadata", False)
    layout = Layout("__cluster_metadata-0", *facts)
    directory = layout.make(tmp_path)
    with pytest.raises(OptionError, match="only read as metadata"):
        open_path(str(directory), kind=LogKind.PARTITION)
    status, out, _ = run("cat", directory, "--as", "partition")
    assert (status, out) == (2, "")
    assert SECRET.encode() not in _bytes_of_rows(directory, values="bytes")


def test_no_property_overrides_the_topic_of_cluster_metadata(tmp_path: Path) -> None:
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir()
    (directory / SEGMENT).write_bytes(_leader() + data_batch([b"a later frame"], base_offset=1))
    (directory / "raftlog.properties").write_bytes(PROPERTIES["bytes values"] or b"")
    assert open_path(str(directory)).kind is LogKind.METADATA
    assert "a later frame" not in "".join(run("cat", directory)[1:])


def test_logs_of_nodes_cannot_be_declared() -> None:
    with pytest.raises(OptionError, match="nodes report the kind"):
        RaftlogOptions.parse({"bootstrap.servers": "127.0.0.1:9092", "values": "bytes"})
    status, _, err = run("cat", "--bootstrap-server", "127.0.0.1:9092", "--as", "partition")
    assert status == 2
    assert "--as requires PATH" in err
