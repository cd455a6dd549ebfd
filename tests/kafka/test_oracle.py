"""Kafka's own tools judge what we write: batches under every codec, and a whole checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.kafka import dump_log, kafka_jars, run_java

from raftlog.records import Compression, RecordBatch, encode_batch, iter_batches
from raftlog.types import SnapshotId

pytestmark = pytest.mark.kafka

SEGMENT = "00000000000000000000.log"


@pytest.fixture(scope="module")
def jars() -> Path:
    return kafka_jars()


def payloads(lines: list[str]) -> list[str]:
    return [line.partition(" payload: ")[2] for line in lines if " payload: " in line]


@pytest.mark.parametrize("codec", list(Compression), ids=lambda codec: codec.name.lower())
def test_dump_log_reads_every_record_of_a_segment_that_we_wrote(
    codec: Compression, data: Path, jars: Path, tmp_path: Path
) -> None:
    source = data / "kraft-logs/every-record-4.3.1/none/__cluster_metadata-0" / SEGMENT
    written = bytearray()
    for batch in iter_batches(source.read_bytes()):
        assert isinstance(batch, RecordBatch)
        new = batch.to_new().with_compression(codec)
        written += encode_batch(new, base_offset=batch.base_offset, leader_epoch=batch.leader_epoch)
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir()
    (directory / SEGMENT).write_bytes(written)
    told = dump_log(jars, directory / SEGMENT)
    assert payloads(told) == payloads(dump_log(jars, source))
    headers = [line for line in told if line.startswith("baseOffset")]
    assert all(f"compresscodec: {codec.name.lower()}" in line for line in headers)
    assert all(line.endswith("isvalid: true") for line in headers)


def test_kafka_s_metadata_shell_opens_a_checkpoint_that_we_wrote(
    data: Path, jars: Path, tmp_path: Path
) -> None:
    from raftlog_state.load import load_image

    from raftlog.client import open_path
    from raftlog_state.checkpoint import checkpoint_bytes

    node = data / "kraft-logs/trimmed-3.9.2/node-1"
    image = load_image(open_path(str(node)))
    name = SnapshotId(epoch=image.leader_epoch, end_offset=image.offset + 1)
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir()
    checkpoint = directory / f"{name}.checkpoint"
    checkpoint.write_bytes(checkpoint_bytes(image))
    shell = "org.apache.kafka.shell.MetadataShell"
    listed = run_java(jars, shell, "--snapshot", str(checkpoint), "ls", "/image/topics/byName")
    topics = {row.name for row in image.rows("topic")}
    assert topics
    assert topics <= set(listed.split())
