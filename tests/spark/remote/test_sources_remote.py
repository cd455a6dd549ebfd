"""Files and nodes in one stream, without Spark: a node that does not answer delays no other log."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.support.quorum_processes import RARE_ELECTIONS, QuorumProcesses, eventually
from tests.support.small_logs import LogWriter

import raftlog
from pyspark_raftlog import sources_reader
from pyspark_raftlog.options import RaftlogOptions
from pyspark_raftlog.sources_reader import RaftlogSourcesStreamReader

COLUMNS = ("clusterId", "offset", "value")


@pytest.fixture
def quorum(tmp_path: Path) -> Iterator[QuorumProcesses]:
    with QuorumProcesses(tmp_path / "quorum", 1, extra=RARE_ELECTIONS) as nodes:
        yield nodes


def values(
    reader: RaftlogSourcesStreamReader, start: dict[str, Any], end: dict[str, Any]
) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for partition in reader.partitions(start, end):
        for batch in reader.read(pickle.loads(pickle.dumps(partition))):
            for cluster_id, value in zip(
                *(batch.column(at).to_pylist() for at in (0, 2)), strict=True
            ):
                found.setdefault(cluster_id, []).append(value)
    return found


def test_a_node_that_does_not_answer_delays_no_other_log(
    quorum: QuorumProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = LogWriter(tmp_path / "files" / "orders-0", cluster_id="files")
    files.append(b"0")
    (node,) = quorum.nodes
    with raftlog.connect(quorum.bootstrap) as log:
        log.append(b"remote 0")
        sources = [{"path": str(files.directory)}, {"bootstrap.servers": quorum.bootstrap}]
        options = {"startingOffset": "earliest", "tailHoldback": "0", "pollWaitMs": "0"}
        parsed = RaftlogOptions.parse({"sources": json.dumps(sources)} | options)
        reader = RaftlogSourcesStreamReader(parsed, COLUMNS)
        start = reader.initialOffset()
        first = reader.latestOffset(start)
        assert values(reader, start, first) == {"files": [b"0"], quorum.cluster_id: [b"remote 0"]}

        node.pause()
        monkeypatch.setattr(sources_reader, "REMOTE_WAIT_S", 0.0)
        files.append(b"1")
        second = reader.latestOffset(first)
        assert values(reader, first, second) == {"files": [b"1"]}
        node.resume()
        log.append(b"remote 1")
        files.append(b"2")
        ends = [second]

        def read_on() -> bool | None:
            ends.append(reader.latestOffset(ends[-1]))
            return ends[-1]["logs"][quorum.cluster_id]["offset"] == log.end_offset or None

        eventually(read_on, "the node's log is read, by results that are late")
    found: list[bytes] = []
    for begin, end in pairwise(ends):
        found += values(reader, begin, end).get(quorum.cluster_id, [])
    assert found == [b"remote 1"]
