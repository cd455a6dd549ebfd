"""Kafka's classes read what a log with remote storage has in its store, and its local directory."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from tests.kafka.test_kafka_reads_logs import DUMP, read_by_kafka
from tests.support.kafka import kafka_jars, run_java

import raftlog
from raftlog.log.writing.properties import LogConfig

pytestmark = pytest.mark.kafka

NAME = re.compile(r"(\d{20})-[\w-]{22}(\.log|\.index|\.timeindex)")
DECODER = "--remote-log-metadata-decoder"


def test_kafka_prints_the_objects_and_opens_the_local_directory(tmp_path: Path) -> None:
    jars, path, remote = kafka_jars(), tmp_path / "orders-0", tmp_path / "remote"
    config = LogConfig(
        segment_bytes=3_000,
        index_interval_bytes=300,
        remote_storage_enable=True,
        remote_storage_uri=str(remote),
        local_retention_bytes=4_000,
        retention_bytes=12_000,
    )
    with raftlog.open(path, config=config) as log:
        for at in range(100):
            log.append([b"%0100d" % at])
        log.clean()
        for at in range(100, 150):
            log.append([b"%0100d" % at])
        for _ in range(2):
            log.clean()
        start, end = log.log_start_offset, log.end_offset
    copies = tmp_path / "copies"
    copies.mkdir()
    for one in remote.glob("orders-0-*/*"):
        match = NAME.fullmatch(one.name)
        if match is not None:
            shutil.copy(one, copies / (match[1] + match[2]))
    segments = sorted(copies.glob("*.log"))
    assert int(segments[0].stem) == start > 0
    names = ",".join(map(str, sorted(copies.iterdir())))
    text = run_java(jars, DUMP, "--deep-iteration", "--files", names)
    assert "isvalid: false" not in text
    assert "ismatches in" not in text
    offsets = [int(found) for found in re.findall(r"^\| offset: (\d+)", text, re.MULTILINE)]
    local_start = min(int(one.stem) for one in path.glob("*.log"))
    assert offsets[0] == start
    assert offsets == list(range(start, offsets[-1] + 1))
    assert offsets[-1] + 1 >= local_start
    manifest = sorted(remote.glob("manifest/*/*.log"))
    printed = run_java(jars, DUMP, DECODER, "--files", ",".join(map(str, manifest)))
    states = re.findall(r"state[:=] ?(\w+)", printed)
    assert {"COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED"} <= set(states)
    assert {"DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED"} <= set(states)
    assert states.count("COPY_SEGMENT_STARTED") == states.count("COPY_SEGMENT_FINISHED")
    lines = read_by_kafka(jars, path, "unclean")
    assert {f"start {local_start}", f"end {end}"} <= set(lines)
    assert sum(line.startswith("record ") for line in lines) == end - local_start
