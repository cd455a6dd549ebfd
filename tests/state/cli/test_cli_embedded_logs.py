"""``raftlog configure`` and ``raftlog repair`` of embedded logs; Kafka's are not changed."""

from __future__ import annotations

import base64
import re
import shutil
from pathlib import Path

import pytest
from tests.support.cli import rows, run
from tests.support.sweep_size import nightly_except

import raftlog
from pyspark_raftlog.options import RaftlogOptions
from pyspark_raftlog.reader import RaftlogReader
from raftlog.errors import CorruptFileError, LogReadOnlyError, RecordBatchTooLargeError


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Cleanly closed log of five records."""
    path = tmp_path / "decisions-0"
    with raftlog.open(path) as opened:
        for number in range(5):
            opened.append(b"record %d" % number)
    return path


@pytest.fixture
def kafka_s(data: Path, tmp_path: Path) -> Path:
    """Partition that Kafka wrote."""
    source = data / "kraft-logs" / "three-nodes-4.3.1" / "node-1" / "orders-0-0"
    return shutil.copytree(source, tmp_path / "orders-0-0")


def damaged(log: Path) -> Path:
    """Return the log after a power loss that also flipped a bit of an acknowledged record."""
    (log / ".kafka_cleanshutdown").unlink()
    segment = log / f"{0:020d}.log"
    data = bytearray(segment.read_bytes())
    data[data.index(b"record 3")] ^= 1
    segment.write_bytes(data)
    return log


def test_settings_are_shown_with_kafkas_names(log: Path) -> None:
    status, out, err = run("configure", log)
    assert (status, err) == (0, "")
    settings = dict(line.split("=") for line in out.splitlines())
    assert settings["values"] == "bytes"
    assert settings["max.message.bytes"] == str(8 * 1024 * 1024)
    assert settings["retention.ms"] == "-1"


@pytest.mark.parametrize("command", ["configure", "repair", "check"])
def test_a_path_may_be_a_file_uri(log: Path, command: str) -> None:
    assert run(command, f"file://{log}")[0] == run(command, log)[0] == 0


def test_a_change_applies_to_open_writers(log: Path) -> None:
    with raftlog.open(log) as opened:
        opened.append(bytes(2000), atomic=True)
        status, out, _ = run("configure", log, "max.message.bytes=1024", "retention.ms=1000")
        assert status == 0
        assert "max.message.bytes=1024" in out.splitlines()
        assert "retention.ms=1000" in out.splitlines()
        with pytest.raises(RecordBatchTooLargeError):
            opened.append(bytes(2000), atomic=True)
        assert run("configure", log, "max.message.bytes=16777216")[0] == 0
        opened.append(bytes(9 * 1024 * 1024))
    assert run("check", log)[0] == 0


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("max.message.bytes=1", "option max.message.bytes: it must be from 1024 to"),
        ("max.message.bytes=many", "not a number"),
        ("retention=1", "no such setting"),
        ("commit.retention.ms=5", "no such setting"),
        ("values=kraft", "fixed when the log is created"),
        ("topic.id=AAAAAAAAAAAAAAAAAAAAAw", "fixed when the log is created"),
        ("compression.type=rar", "compression.type"),
    ],
)
def test_an_invalid_setting_changes_nothing(log: Path, setting: str, hint: str) -> None:
    before = (log / "raftlog.properties").read_bytes()
    status, out, err = run("configure", log, "linger.ms=7", setting)
    assert (status, out) == (2, "")
    assert hint in err
    assert (log / "raftlog.properties").read_bytes() == before


@pytest.mark.parametrize("command", [("configure",), ("configure", "linger.ms=1"), ("repair",)])
def test_kafkas_logs_are_not_changed(kafka_s: Path, command: tuple[str, ...]) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in kafka_s.iterdir()}
    status, _, err = run(command[0], kafka_s, *command[1:])
    assert status == 2
    assert "raftlog did not create it" in err
    assert run("repair", kafka_s, "--cut-at", "1")[0] == 1
    assert {path.name: path.stat().st_mtime_ns for path in kafka_s.iterdir()} == before


@pytest.mark.parametrize("command", ["configure", "repair"])
def test_a_missing_path_is_wrong_usage(tmp_path: Path, command: str) -> None:
    status, _, err = run(command, tmp_path / "missing")
    assert status == 2
    assert "does not exist" in err


def test_an_undamaged_log_needs_no_repair(log: Path) -> None:
    assert run("repair", log) == (0, "writable: offsets from 0 to 6 (exclusive)\n", "")


def test_a_torn_tail_is_backed_up_and_truncated(log: Path) -> None:
    (log / ".kafka_cleanshutdown").unlink()
    with (log / f"{0:020d}.log").open("ab") as segment:
        segment.write(b"half a batch, say")
    status, out, _ = run("repair", log)
    assert status == 0
    assert "(17 removed)" in out
    assert "at offset 6, saved as" in out
    assert out.splitlines()[-1] == "writable: offsets from 0 to 6 (exclusive)"
    saved = list(log.glob("*.cut-*"))
    assert [path.read_bytes() for path in saved] == [b"half a batch, say"]
    assert run("repair", log)[1].count("\n") == 1, "the log is undamaged now"


def test_acknowledged_records_are_truncated_only_on_request(log: Path) -> None:
    damaged(log)
    status, out, _ = run("repair", log)
    assert status == 1
    assert "read-only: offsets from 0 to 4 (exclusive)" in out
    assert "raftlog repair --cut-at 4" in out
    with raftlog.open(log) as opened, pytest.raises(LogReadOnlyError):
        opened.append(b"x")
    status, out, _ = run("repair", log, "--cut-at", "4")
    assert status == 0
    assert "offsets 4 to 5 are lost" in out
    assert out.splitlines()[-1] == "writable: offsets from 0 to 4 (exclusive)"
    with raftlog.open(log) as opened:
        assert opened.append(b"again").base_offset == 4
        assert [record.value for record in opened.read(3)] == [b"record 2", b"again"]


def test_an_offset_after_the_damage_or_before_the_log_is_refused(log: Path) -> None:
    damaged(log)
    status, _, err = run("repair", log, "--cut-at", "5")
    assert status == 2
    assert "valid only up to offset 4" in err


def test_manually_edited_settings_are_refused_until_they_are_confirmed(
    log: Path,
) -> None:
    properties = log / "raftlog.properties"
    edited = properties.read_text().replace("linger.ms=0", "linger.ms=7")
    properties.write_text(edited)
    with pytest.raises(CorruptFileError, match="raftlog configure"):
        raftlog.open(log)
    assert run("configure", log)[0] == 1
    assert run("check", log)[1].startswith(f"damage: {properties}: its checksum")
    status, out, _ = run("configure", log, "segment.ms=5000")
    assert status == 0
    assert {"linger.ms=7", "segment.ms=5000"} <= set(out.splitlines())
    with raftlog.open(log) as opened:
        assert opened.append(b"goes on").base_offset == 6
    assert run("check", log)[0] == 0


def test_settings_of_another_log_or_of_none_are_refused(log: Path) -> None:
    properties = log / "raftlog.properties"
    for other in (re.sub("topic.id=.*", "topic.id=other", properties.read_text()), "no settings"):
        properties.write_text(other)
        assert run("configure", log, "segment.ms=5000")[0] == 1
        assert properties.read_text() == other


def test_a_check_knows_the_published_end_of_an_embedded_log(tmp_path: Path) -> None:
    log = tmp_path / "decisions-0"
    with raftlog.open(log, config=raftlog.LogConfig(segment_bytes=500)) as opened:
        for number in range(20):
            opened.append(b"%02d" % number * 20)
    segments = sorted(log.glob("*.log"))
    middle = segments[2].rename(tmp_path / segments[2].name)
    status, out, _ = run("check", log)
    assert status == 1
    assert "are missing" in out
    middle.rename(segments[2])
    assert run("check", log)[0] == 0
    segments[-1].unlink()
    status, out, _ = run("check", log)
    assert status == 1
    assert "were synced and are lost" in out


@pytest.mark.parametrize("name", ["checksums", "partition.metadata", "leader-epoch-checkpoint"])
def test_a_check_verifies_the_checksums_of_small_files(log: Path, name: str) -> None:
    path = log / name
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)
    status, out, _ = run("check", log)
    assert status == 1
    assert out.count(f"damage: {path}") == 1


# --- snapshots with values in a format of the application -----------------------------------------


@pytest.fixture(params=["msgpack", "bytes"])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Snapshot of an embedded log without metadata."""
    path = tmp_path / "decisions-0"
    with raftlog.open(path, values=request.param) as log:
        log.append([[1, 0, "one"], [1, 0, "two"]] if request.param == "msgpack" else [b"one"])
        log.snapshot([[2, 0, "state"]] if request.param == "msgpack" else [])
        log.append([[1, 0, "three"]] if request.param == "msgpack" else [b"three"])
    (found,) = path.glob("*.checkpoint")
    found.chmod(0o600)
    return found


def test_a_complete_snapshot_of_any_values_is_undamaged(checkpoint: Path) -> None:
    for path in (checkpoint, checkpoint.parent):
        status, out, err = run("check", path)
        assert (status, err) == (0, ""), out
        assert "1 snapshot" in out
    is_msgpack = "values=msgpack" in (checkpoint.parent / "raftlog.properties").read_text()
    shown = [base64.b64decode(row["valueBase64"]) for row in rows("cat", checkpoint)]
    assert shown == ([b"\x93\x02\x00\xa5state"] if is_msgpack else [])
    reader = RaftlogReader(RaftlogOptions.parse({"path": str(checkpoint)}), ("value",))
    read = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert [row["value"] for batch in read for row in batch.to_pylist()] == shown


@pytest.mark.slow
@pytest.mark.parametrize("every", nightly_except([7], [7, 1]))
def test_every_flipped_byte_of_a_snapshot_is_damage(checkpoint: Path, every: int) -> None:
    whole = checkpoint.read_bytes()
    for position in range(0, len(whole), every):
        data = bytearray(whole)
        data[position] ^= 0x10
        checkpoint.write_bytes(data)
        for path in (checkpoint, checkpoint.parent):
            status, out, _ = run("check", path, "--json")
            assert status == 1, position
            assert '"kind":"checkpoint"' in out, position
