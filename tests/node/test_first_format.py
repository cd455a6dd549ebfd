"""An initial voter is not formatted with its old directory id once its quorum has records."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import raftlog
from tests.support.cli import run
from tests.support.quorum_processes import NodeProcess, QuorumProcesses, eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def quorum(tmp_path: Path) -> Iterator[QuorumProcesses]:
    with QuorumProcesses(tmp_path) as quorum:
        yield quorum


def format_again(quorum: QuorumProcesses, node: NodeProcess, *more: str) -> tuple[int, str]:
    """Format the voter as at first, in an empty directory."""
    if node.is_running:
        node.kill()
    shutil.rmtree(node.directory)
    voters = ",".join(f"{one.voter}" for one in quorum.nodes)
    call = ("node", "format", "-c", node.config, "-t", quorum.cluster_id)
    status, _, err = run(*call, "--initial-voters", voters, *more)
    assert (node.directory / "meta.properties").exists() == (status == 0)
    return status, err


def test_a_voter_that_lost_its_directory_is_not_formatted_once_there_are_records(
    quorum: QuorumProcesses,
) -> None:
    first, second, third = quorum.nodes
    with raftlog.connect(quorum.bootstrap) as log:
        eventually(lambda: log.end_offset, "a leader has committed")
        what = "a leader, but no records: a late first start"
        eventually(lambda: format_again(quorum, third)[0] == 0, what)
        log.append([b"acknowledged"])
    status, err = format_again(quorum, third)
    assert (status, err.count("\n")) == (1, 1), err
    assert "[RAFTLOG_QUORUM_HAS_RECORDS] node 3 may have lost its directory: voter " in err
    assert "leads a quorum that has records from offset " in err
    assert "--no-initial-voters" in err
    first.kill()
    second.kill()
    second.start()
    status, err = format_again(quorum, third)
    assert status == 1, "one voter, which has records and no leader, or follows one that is stopped"
    assert f"voter {second.node_id} at {second.address} " in err
    second.kill()
    assert format_again(quorum, third) == (0, ""), "no voter can be asked"


def test_the_voters_of_a_new_quorum_are_formatted_while_others_run(tmp_path: Path) -> None:
    with QuorumProcesses(tmp_path) as quorum:
        for node in quorum.nodes:
            node.kill()
        first, second, third = quorum.nodes
        assert format_again(quorum, first) == (0, "")
        first.start()
        assert format_again(quorum, second) == (0, ""), "the first one has no leader"
        second.start()
        with raftlog.connect(quorum.bootstrap) as log:
            eventually(lambda: log.end_offset, "two of three have a leader")
            eventually(lambda: format_again(quorum, third)[0] == 0, "there are no records")


def test_what_the_operator_confirms_is_not_asked(quorum: QuorumProcesses) -> None:
    with raftlog.connect(quorum.bootstrap) as log:
        log.append([b"acknowledged"])
    third = quorum.nodes[2]
    assert format_again(quorum, third)[0] == 1
    assert format_again(quorum, third, "--never-formatted") == (0, "")


def test_a_voter_of_another_cluster_cannot_be_asked(quorum: QuorumProcesses) -> None:
    third = quorum.nodes[2]
    third.kill()
    shutil.rmtree(third.directory)
    voters = ",".join(one.voter for one in quorum.nodes)
    call = ("node", "format", "-c", third.config, "-t", "UBxqW7I0Tziuuu-k2lOaxw")
    status, _, err = run(*call, "--initial-voters", voters)
    assert status == 1
    assert "cannot be asked: VOTE request failed: error code 104" in err
