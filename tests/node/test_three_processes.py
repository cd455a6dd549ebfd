"""Three nodes as real processes, with users who append all the time: killed, stopped, restarted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.quorum_load import Load, check_nothing_is_lost
from tests.support.quorum_processes import NodeProcess, QuorumProcesses, eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def quorum(tmp_path: Path) -> Iterator[QuorumProcesses]:
    with QuorumProcesses(tmp_path) as processes:
        yield processes


def leader_of(quorum: QuorumProcesses) -> NodeProcess | None:
    """The running node that said last that it leads, in the newest epoch that anybody led."""
    elected = [
        (line["epoch"], line["node"])
        for node in quorum.nodes
        for line in node.lines()
        if line["event"] == "role" and line["new"] == "leader"
    ]
    if not elected:
        return None
    leader = quorum.node(max(elected)[1])
    return leader if leader.is_running else None


def epoch_of(quorum: QuorumProcesses) -> int:
    return max(line["epoch"] for node in quorum.nodes for line in node.lines() if "epoch" in line)


def _follows(node: NodeProcess) -> bool:
    """Whether it follows now, as far as it said."""
    roles = [line["new"] for line in node.lines() if line["event"] == "role"]
    return roles[-1:] == ["follower"]


def grows(load: Load, by: int = 20) -> None:
    """Wait until so much more is acknowledged."""
    before = load.count
    eventually(lambda: load.count >= before + by or load.book.failures, "appends are acknowledged")
    assert not load.book.failures, load.book.failures


def test_a_killed_leader_is_replaced_and_nothing_acknowledged_is_lost(
    quorum: QuorumProcesses, capsys: pytest.CaptureFixture[str]
) -> None:
    silences = []
    with Load(quorum.bootstrap) as load:
        for _ in range(3):
            grows(load)
            leader = eventually(lambda: leader_of(quorum), "a leader")
            killed_s = time.monotonic()
            leader.kill()
            grows(load)
            silences.append(load.book.longest_silence_s(killed_s))
            leader.start()
    check_nothing_is_lost(quorum.bootstrap, load.book)
    with capsys.disabled():
        words = ", ".join(f"{silence:.2f} s" for silence in silences)
        print(f"\n  without a leader after SIGKILL: {words}; {load.count} appends")  # noqa: T201


def test_a_leader_that_stands_still_is_replaced_and_follows_when_it_wakes(
    quorum: QuorumProcesses,
) -> None:
    with Load(quorum.bootstrap) as load:
        grows(load)
        old = eventually(lambda: leader_of(quorum), "a leader")
        epoch = epoch_of(quorum)
        old.pause()
        grows(load)
        assert epoch_of(quorum) > epoch
        old.wake()
        eventually(lambda: _follows(old), "the old leader follows")
        grows(load)
    check_nothing_is_lost(quorum.bootstrap, load.book)


def test_a_rolling_restart_under_load_loses_nothing_and_hands_over(
    quorum: QuorumProcesses, capsys: pytest.CaptureFixture[str]
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
    assert silences, "one of them led"
    with capsys.disabled():
        words = ", ".join(f"{1000 * silence:.0f} ms" for silence in silences)
        print(f"\n  without a leader while it handed over: {words}")  # noqa: T201


def test_copies_are_the_same_bytes_in_the_end(quorum: QuorumProcesses) -> None:
    with Load(quorum.bootstrap) as load:
        grows(load)
        killed = eventually(lambda: leader_of(quorum), "a leader")
        killed.kill()
        grows(load)
        killed.start()  # what only it had is cut away when it follows
        eventually(lambda: _follows(killed), "the killed node follows")
        grows(load)
    check_nothing_is_lost(quorum.bootstrap, load.book)
    for node in quorum.nodes:
        node.stop()
    logs = [
        b"".join(path.read_bytes() for path in sorted((node.directory).glob("raftlog-0/*.log")))
        for node in quorum.nodes
    ]
    shortest = min(map(len, logs))
    assert shortest > 0
    assert len({log[:shortest] for log in logs}) == 1
