"""Whatever operation the power is cut behind: what was promised is there, and nothing is half.

``RAFTLOG_CRASH_STATES`` is the number of states, where it is set.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice

import pytest
from tests.support.crash_checks import check
from tests.support.log_builder import ABORT, END, NO_OP, begin
from tests.support.witness import Witness

from raftlog.log.writing.batch_facts import CommitName, ValueKind
from raftlog.log.writing.properties import LogConfig
from raftlog.storage.crash_points import CrashState
from raftlog.storage.survival import Survival

DEEP_EVERY = 8


def embedded_log() -> Witness:
    """A single copy: plain appends, rolls, named commits, producers, retention, restarts."""
    log = Witness(LogConfig(segment_bytes=700, index_interval_bytes=150))
    log.append(b"one")
    log.append(b"two", b"three", commit=CommitName("app", "query", 1))
    for at in range(4):
        log.append(b"x" * 120, flush=at % 2 == 1)
    log.append(b"by a producer", producer=(7, 0, 0))
    log.append(b"not synced on its own", flush=False)
    log.append(b"c", commit=CommitName("app", "query", 2))
    log.reopen()
    log.append(b"after a clean stop", producer=(7, 0, 1))
    snapshot_id = log.snapshot()
    for _ in range(4):
        log.append(b"y" * 150, flush=False)
    log.flush()
    log.delete_before(snapshot_id)
    log.append(b"lost with its process", flush=False)
    log.reopen(in_order=False)
    log.claim()
    log.append(b"of epoch 2", commit=CommitName("other", "q", 5))
    log.append(b"z" * 600)
    log.append(b"w" * 600, commit=CommitName("app", "query", 3))
    log.delete_before(log.snapshot())
    log.append(b"the last")
    log.reopen()
    return log


def replica() -> Witness:
    """A replica of a metadata log: transactions, truncation by divergence, epochs, snapshots."""
    config = LogConfig(values=ValueKind.KRAFT, segment_bytes=600, index_interval_bytes=150)
    log = Witness(config, is_single=False)
    log.append(*[NO_OP] * 5)
    log.append(begin("open"), NO_OP)
    log.append(NO_OP, END)
    for _ in range(4):
        log.append(*[NO_OP] * 8, flush=False)
    log.flush()
    log.truncate(log.log.end_offset - 13)
    log.claim()
    log.append(begin("left open"), *[NO_OP] * 12)
    log.claim()
    log.append(NO_OP)
    snapshot_id = log.snapshot(NO_OP, NO_OP)
    for _ in range(5):
        log.append(*[NO_OP] * 10)
    log.delete_before(snapshot_id)
    log.append(begin("aborted"), ABORT)
    end = log.log.end_offset
    for _ in range(12):  # a truncation over several segments
        log.append(*[NO_OP] * 9)
    log.truncate(end + 10)
    log.reopen(in_order=False)
    log.append(*[NO_OP] * 3)
    log.delete_before(log.snapshot(NO_OP))
    log.reopen()
    log.append(NO_OP)
    return log


WORKLOADS = {"embedded": embedded_log, "replica": replica}


def states(witness: Witness, count: int) -> Iterator[CrashState]:
    """That many states, spread over all cuts, all survivals and as many seeds as it takes."""
    cuts = range(len(witness.recording.operations) + 1)
    every = (None, *Survival)
    seed = given = 0
    while given < count:
        wanted = count - given
        step = max(1, len(cuts) * 5 // wanted)
        found = witness.recording.states(every, cuts=cuts[seed % step :: step], seeds=[seed])
        for state in islice(found, wanted):
            given += 1
            yield state
        seed += 1


def run(name: str, count: int) -> int:
    witness = WORKLOADS[name]()
    done = 0
    for done, state in enumerate(states(witness, count), start=1):
        check(witness, state, deeply=done % DEEP_EVERY == 0)
    return done


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_few_crash_points(name: str) -> None:
    assert run(name, 100) == 100


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_many_crash_points(name: str) -> None:
    count = int(os.environ.get("RAFTLOG_CRASH_STATES", "2200")) // len(WORKLOADS)
    assert run(name, count) == count
