"""A commit whose records were deleted by retention: the log still returns its name and offsets."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.quorum_processes import QuorumProcesses, eventually

import raftlog
from raftlog.log.reading.transactions import CommitName

pytestmark = pytest.mark.slow


def test_the_last_commit_is_returned_after_its_records_are_deleted(tmp_path: Path) -> None:
    nodes = QuorumProcesses(
        tmp_path,
        1,
        node_keys="retention_check_interval_ms = 50\n",
        extra="[log]\nsegment_bytes = 2000\nretention_bytes = 2000\n",
    )
    with nodes, raftlog.connect(nodes.nodes[0].address) as log:
        done = log.append([b"a", b"b"], commit=("app", "query", 7))
        for _ in range(10):
            log.append(bytes(1_000))
        eventually(lambda: log.log_start_offset > done.last_offset, "retention passed the commit")
        last = log.last_commit("app")
        assert last is not None
        assert last.name == CommitName("app", "query", 7)
        assert (last.base_offset, last.last_offset) == (done.base_offset, done.last_offset)
        assert last.timestamp_ms == -1
        again = log.append([b"a", b"b"], commit=("app", "query", 7))
        assert (again.base_offset, again.was_duplicate) == (done.base_offset, True)
        assert log.append([], commit=("app", "query", 7)).was_duplicate
