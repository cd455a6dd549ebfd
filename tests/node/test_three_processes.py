"""Three nodes as real processes under a constant load of appends: killed, paused, restarted."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.quorum_checks import epoch_of, follows, grows, leader_of
from tests.support.quorum_load import Load, check_nothing_is_lost
from tests.support.quorum_processes import QuorumProcesses, eventually
from tests.support.report_lines import REPORT_LINE


@pytest.fixture
def quorum(tmp_path: Path) -> Iterator[QuorumProcesses]:
    with QuorumProcesses(tmp_path) as processes:
        yield processes


@pytest.mark.slow
def test_no_process_is_left_of_a_quorum_that_does_not_start(tmp_path: Path) -> None:
    quorum = QuorumProcesses(tmp_path)
    first, second, _ = quorum.nodes
    has_started = f"grep -q started {shlex.quote(str(first.lines_path))}"  # soon after it listens
    second.command = ("sh", "-c", f"until {has_started}; do :; done; exit 1")
    with pytest.raises(AssertionError, match="node 2 ended") as failed, quorum:
        pass
    assert not any(node.is_running for node in quorum.nodes)
    assert '"event": "started"' in failed.value.__notes__[0], "the lines of node 1"


@pytest.mark.parametrize(
    "kills", [pytest.param(1, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.nightly)]
)
def test_killed_leaders_are_replaced_and_no_acknowledged_record_is_lost(
    quorum: QuorumProcesses, kills: int, record_property: Callable[[str, object], None]
) -> None:
    """In the end the replicas are equal byte for byte."""
    silences = []
    with Load(quorum.bootstrap) as load:
        for _ in range(kills):
            grows(load)
            leader = eventually(lambda: leader_of(quorum), "a leader")
            killed_s = time.monotonic()
            leader.kill()
            grows(load)
            silences.append(load.book.longest_silence_s(killed_s))
            leader.start()  # its unreplicated records are truncated when it follows
        eventually(lambda: follows(leader), "the killed node follows")
        grows(load)
    check_nothing_is_lost(quorum.bootstrap, load.book)
    words = ", ".join(f"{silence:.2f} s" for silence in silences)
    record_property(
        REPORT_LINE, f"without a leader after SIGKILL: {words}; {load.count} appends, none lost"
    )
    for node in quorum.nodes:
        node.stop()
    logs = [
        b"".join(path.read_bytes() for path in sorted(node.directory.glob("raftlog-0/*.log")))
        for node in quorum.nodes
    ]
    shortest = min(map(len, logs))
    assert shortest > 0
    assert len({log[:shortest] for log in logs}) == 1


@pytest.mark.nightly
def test_a_paused_leader_is_replaced_and_follows_when_it_resumes(
    quorum: QuorumProcesses,
) -> None:
    """``make test`` pauses a leader in ``tests/client/remote/test_three_nodes.py``."""
    with Load(quorum.bootstrap) as load:
        grows(load)
        old = eventually(lambda: leader_of(quorum), "a leader")
        epoch = epoch_of(quorum)
        old.pause()
        grows(load)
        assert epoch_of(quorum) > epoch
        old.resume()
        eventually(lambda: follows(old), "the old leader follows")
        grows(load)
    check_nothing_is_lost(quorum.bootstrap, load.book)


@pytest.mark.slow
def test_a_rolling_restart_under_load_loses_nothing_and_transfers_leadership(
    quorum: QuorumProcesses, record_property: Callable[[str, object], None]
) -> None:
    silences = []
    with Load(quorum.bootstrap) as load:
        for node in list(quorum.nodes):
            grows(load)
            was_leader = leader_of(quorum) is node
            stopped_s = time.monotonic()
            assert node.stop() == 0
            grows(load)
            if was_leader:
                silences.append(load.book.longest_silence_s(stopped_s))
            node.start()
    check_nothing_is_lost(quorum.bootstrap, load.book)
    assert silences, "one of them was the leader"
    words = ", ".join(f"{1000 * silence:.0f} ms" for silence in silences)
    record_property(REPORT_LINE, f"without a leader while it handed over: {words}")
