"""Three real nodes, two with damaged logs: what the operator sees, and the repair."""

from __future__ import annotations

from pathlib import Path

import pytest

import raftlog
from tests.support.cli import run
from tests.support.quorum_checks import leader_of
from tests.support.quorum_processes import QuorumProcesses, eventually

pytestmark = pytest.mark.slow


def flip_a_bit(directory: Path) -> None:
    """Damage the last record of a cleanly closed log."""
    (segment,) = (directory / "raftlog-0").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[-2] ^= 1
    segment.write_bytes(data)
    (directory / "raftlog-0" / ".kafka_cleanshutdown").unlink()


def test_a_quorum_without_a_majority_logs_why_until_an_operator_repairs_it(tmp_path: Path) -> None:
    with QuorumProcesses(tmp_path) as quorum:
        with raftlog.connect(quorum.bootstrap) as log:
            log.append([b"kept"])
        for node in quorum.nodes:
            node.stop()
        damaged = quorum.nodes[:2]
        for node in damaged:
            flip_a_bit(node.directory)
        for node in quorum.nodes:
            node.start()

        def problem() -> str | None:
            nodes = ("--bootstrap-server", quorum.bootstrap, "--timeout-ms", "5000")
            status, out, err = run("quorum", *nodes)
            assert status == 1, out
            return err if "No leader can be elected" in err else None

        text = eventually(problem, "`raftlog quorum` shows why there is no leader")
        assert text is not None
        assert "2 votes of 3 are needed" in text
        for node in damaged:
            (line,) = [one for one in node.lines() if one["event"] == "withdrawn"]
            assert "the log was damaged and truncated at offset" in line["reason"]
            assert run("check", str(node.directory / "raftlog-0"))[0] == 1

        node = damaged[0]
        node.stop()
        recover = ("node", "recover", "--config", str(node.config))
        assert run(*recover)[0] == 1
        assert run(*recover, "--allow-data-loss")[0] == 0
        node.start()
        eventually(lambda: leader_of(quorum), "a leader")
        with raftlog.connect(quorum.bootstrap) as log:
            log.append([b"goes on"])
            assert b"kept" in [record.value for record in log.read(0)]
