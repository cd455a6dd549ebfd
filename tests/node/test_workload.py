"""``raftlog node workload``: it counts, and detects violations of the quorum's guarantees."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import raftlog
from raftlog_state.cli.counter_workload import Tally, verify
from tests.support.cli import run
from tests.support.quorum_processes import COMMAND, PATIENCE_S, QuorumProcesses

pytestmark = pytest.mark.slow


@pytest.fixture
def quorum(tmp_path: Path) -> Iterator[QuorumProcesses]:
    with QuorumProcesses(tmp_path) as processes:
        yield processes


def test_it_counts_while_a_node_is_killed_and_finds_nothing_lost(quorum: QuorumProcesses) -> None:
    words = ("node", "workload", "--bootstrap-server", quorum.bootstrap, "--seconds", "8")
    process = subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        lines = iter(process.stdout)
        next(line for line in lines if not line.startswith("0 increments/s"))
        quorum.node(1).kill()
        text = "".join(lines)
    assert process.wait(PATIENCE_S) == 0, text
    assert ": 0 acknowledged increments lost, 0 out of order or duplicated" in text


def test_it_reports_lost_duplicated_and_foreign_records(tmp_path: Path) -> None:
    """The check is the same for any log: here one with the records of a broken quorum."""
    with raftlog.open(tmp_path / "counter-0") as log:
        first = log.append([b"increment 1", b"a word of somebody", b"increment 2"]).base_offset
        tally = Tally()
        for offset, number in ((first, 1), (first + 2, 2)):
            tally.record_acknowledged(offset, number, 0.0)
        assert verify(log, tally).is_correct
        tally.record_acknowledged(first + 3, 3, 0.0)
        verdict = verify(log, tally)
        assert (verdict.value, verdict.lost, verdict.out_of_order) == (2, (first + 3,), ())
        log.append(b"increment 2")
        verdict = verify(log, tally)
        assert (verdict.lost, verdict.out_of_order) == ((first + 3,), (first + 3,))


def test_an_unreachable_quorum_and_wrong_options_are_reported_in_one_sentence() -> None:
    workload = ("node", "workload")
    for more, words in (
        ((), "--bootstrap-server"),
        (("--bootstrap-server", "x"), "x"),
        (("--bootstrap-server", "127.0.0.1:1", "--seconds", "0"), "from 1 to"),
        (("--bootstrap-server", "127.0.0.1:1", "--writers", "many"), "from 1 to 256"),
        (("--bootstrap-server", "127.0.0.1:1", "--tls-key", "k"), "tls_ca"),
    ):
        status, out, err = run(*workload, *more)
        assert (status, out) == (2, "")
        assert words in err
