"""The limit of an expanded batch is an option of every command and of every reader."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tests.support.batch_encoding import NewRecordBatch, encode_batch
from tests.support.cli import run
from tests.support.log_builder import checkpoint_bytes, control_batch
from tests.support.scripted_controller import Controller
from tests.support.small_logs import NO_OP, TIME_MS, LogWriter

import raftlog
from raftlog.client import open_path
from raftlog.errors import (
    DecompressionLimitError,
    OptionError,
    SnapshotDecompressionLimitError,
)
from raftlog.limits import (
    DECOMPRESSED_BYTES_MAX,
    DECOMPRESSED_BYTES_OPTION_MAX,
    MIB,
    RAW_BATCH_BYTES_MAX,
)
from raftlog.records import Compression, NewRecord
from raftlog.records.batch_columns import Column
from raftlog.records.control import SnapshotFooter

pytestmark = pytest.mark.slow

LIMIT = "--max-decompressed-bytes"
CODECS = [one for one in Compression if one]
ABOVE = (LIMIT, "1000000")


def compressed(*values: bytes, codec: Compression = Compression.ZSTD) -> NewRecordBatch:
    return NewRecordBatch(
        records=tuple(NewRecord(None, value) for value in values),
        base_timestamp_ms=TIME_MS,
        compression=codec,
    )


def partition(directory: Path, large: NewRecordBatch) -> Path:
    """Write a partition of three small records, one large batch, and one small record."""
    log = LogWriter(directory / "orders-0")
    log.append(b"a", b"b", b"c")
    log.append(batch=large)
    log.append(b"z")
    return log.directory


def metadata(directory: Path) -> Path:
    """Write a metadata log whose second batch is compressed, and expands to more than 1 MB."""
    log = LogWriter(directory / "__cluster_metadata-0")
    log.append(NO_OP)
    log.append(batch=compressed(*[NO_OP] * 120_000))
    log.append(NO_OP)
    return log.directory


def test_every_writable_batch_is_readable_by_default() -> None:
    assert RAW_BATCH_BYTES_MAX < DECOMPRESSED_BYTES_MAX <= 128 * MIB


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_expands_above_the_limit_is_not_called_damaged(
    tmp_path: Path, codec: Compression
) -> None:
    log = partition(tmp_path, compressed(bytes(3 * MIB), codec=codec))
    status, out, err = run("cat", log, LIMIT, str(MIB))
    assert (status, len(out.splitlines())) == (1, 3)
    assert "[RAFTLOG_DECOMPRESSION_LIMIT]" in err
    assert "offset 3 exceeds the decompression limit" in err
    assert f"expands to more than {MIB} bytes" in err
    assert LIMIT in err
    assert "maxDecompressedBytes" in err
    assert "damaged" not in err
    status, out, err = run("cat", log, LIMIT, str(4 * MIB))
    assert (status, len(out.splitlines())) == (0, 5)


def test_a_batch_above_the_default_is_read_with_a_higher_limit(tmp_path: Path) -> None:
    large = compressed(bytes(DECOMPRESSED_BYTES_MAX))
    log = str(partition(tmp_path, large))
    with pytest.raises(DecompressionLimitError):
        list(open_path(log).scan(0, 5, columns=Column.OFFSET))
    raised = open_path(log, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX + MIB)
    assert sum(len(scan.records) for scan in raised.scan(0, 5, columns=Column.OFFSET)) == 5


@pytest.mark.parametrize(
    "words",
    [
        ("cat",),
        ("check",),
        ("state", "topics"),
        ("diff", "--from", "1"),
        ("snapshot", "--reveal"),
    ],
    ids=lambda words: str(words[0]),
)
def test_every_command_that_decodes_records_has_the_limit(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    command, *rest = words
    arguments: list[str | Path] = [metadata(tmp_path), *rest]
    if command == "snapshot":
        arguments.insert(1, tmp_path)
    status, out, err = run(command, *arguments, *ABOVE)
    assert status == (2 if command == "diff" else 1)
    assert "expands to more than 1000000 bytes" in out + err
    assert LIMIT in out + err
    status, out, err = run(command, *arguments)
    assert status == 0, out + err


@pytest.mark.parametrize("value", ["0", "-1", "1k", "", str(DECOMPRESSED_BYTES_OPTION_MAX + 1)])
def test_an_invalid_limit_is_refused(tmp_path: Path, value: str) -> None:
    status, _, err = run("cat", tmp_path, f"{LIMIT}={value}")
    assert status == 2
    assert LIMIT in err


def test_a_limit_above_the_maximum_is_refused_by_readers(tmp_path: Path) -> None:
    beyond = DECOMPRESSED_BYTES_OPTION_MAX + 1
    with pytest.raises(OptionError, match="decompressed_bytes_max"):
        open_path(str(tmp_path), decompressed_bytes_max=beyond)
    with pytest.raises(OptionError, match="decompressed_bytes_max"):
        raftlog.follow("localhost:1", decompressed_bytes_max=beyond)


def test_a_snapshot_above_the_limit_is_not_called_damaged(tmp_path: Path) -> None:
    data = checkpoint_bytes(records=0, footer=False)
    data += encode_batch(compressed(*[NO_OP] * 120_000), base_offset=1, leader_epoch=1)
    data += control_batch([SnapshotFooter()], base_offset=120_001)
    path = tmp_path / "00000000000000120000-0000000001.checkpoint"
    path.write_bytes(data)
    as_metadata = ("--as", "metadata")
    status, _, err = run("cat", path, *as_metadata, *ABOVE)
    assert status == 1
    assert "[RAFTLOG_SNAPSHOT_DECOMPRESSION_LIMIT]" in err
    assert "exceeds the decompression limit" in err
    assert LIMIT in err
    assert "corrupt" not in err
    assert run("cat", path, *as_metadata)[0] == 0
    snapshot_id = open_path(str(path)).snapshots[0]
    limited = open_path(str(path), decompressed_bytes_max=MIB // 2).read_snapshot(snapshot_id)
    with pytest.raises(SnapshotDecompressionLimitError) as caught:
        list(limited.scan())
    assert caught.value.byte_count_max == MIB // 2


def test_a_running_clusters_records_have_the_same_limit() -> None:
    data = encode_batch(compressed(*[NO_OP] * 120_000), base_offset=0, leader_epoch=1)
    with Controller(data, high_watermark=120_000).node as peer:
        log = raftlog.follow(peer.address, timeout_ms=300, decompressed_bytes_max=MIB // 2)
        with pytest.raises(DecompressionLimitError):
            list(log.scan(0, 120_000))
        log = raftlog.follow(peer.address, timeout_ms=300)
        assert sum(len(scan.records) for scan in log.scan(0, 120_000)) == 120_000


@pytest.mark.parametrize("codec", CODECS)
def test_a_check_continues_after_a_batch_above_the_limit(
    tmp_path: Path, codec: Compression
) -> None:
    log = LogWriter(tmp_path / "orders-0")
    log.append(b"a", b"b", b"c")
    forged = encode_batch(compressed(b"f", codec=Compression.NONE), base_offset=4, leader_epoch=1)
    noise = random.Random(7)  # incompressible, so the nested batch is unchanged
    inside = noise.randbytes(MIB) + forged + noise.randbytes(MIB)
    log.append(batch=compressed(inside, codec=codec))
    log.append(b"z")
    log.end_offset = 9  # as after compaction
    log.append(batch=compressed(bytes(3 * MIB), codec=codec))
    status, out, _ = run("check", log.directory, "--json", LIMIT, str(MIB))
    *findings, summary = [json.loads(line) for line in out.splitlines()]
    assert status == 1
    assert [(one["kind"], one["offset"]) for one in findings] == [("batch", 3), ("batch", 9)]
    for one in findings:
        assert one["reason"].startswith("not read: its ")
        assert LIMIT in one["reason"]
    assert summary["summary"]["end_offset"] == 10
    status, out, _ = run("check", log.directory, LIMIT, str(8 * MIB))
    assert status == 0, out
