"""A node among byzantine nodes keeps the invariants of its own steps, and never fails.

The messages of the others are well-formed with arbitrary values. Committed records may be lost;
only the steps of the correct node are checked.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.log.writing.quorum_log import QuorumLog
from raftlog.quorum.messages import ErrorCode
from tests.scenarios.commands import Handler
from tests.simulation.invariants import Witness


class NullWitness(Witness):
    """Witness that ignores changes of committed records: only steps are checked."""

    def saw_leader(self, node_id: int, life: int, epoch: int, log: QuorumLog) -> None:
        pass

    def saw_high_watermark(self, node_id: int, life: int, offset: int, log: QuorumLog) -> None:
        pass


others = st.sampled_from((2, 3))
epochs = st.sampled_from(("E+0", "E+0", "E+0", "E+0", "E+1", "E+1", "E-1", "E+3"))
"""``E`` is the node's epoch when it receives the message, ``L`` the end of its log."""
offsets = st.sampled_from(("L+0", "L+0", "L+0", "L-1", "L-2", "L+1", "L+5", "L-9"))
places = st.builds("{}@{}".format, offsets, epochs)


REQUESTS = ("vote", "pre-vote", "begin", "end", "fetch", "fetch", "fetch-snapshot")


@st.composite
def requests(draw: st.DrawFn) -> str:
    sender, epoch = draw(others), draw(epochs)
    kind = draw(st.sampled_from(REQUESTS))
    words = f"{kind} 1 from={sender} epoch={epoch}"
    if kind in ("vote", "pre-vote"):
        return f"{words} last_offset={draw(offsets)} last_epoch={draw(epochs)}"
    if kind == "end":
        return words + draw(st.sampled_from(("", " preferred=1,2", " preferred=3,1")))
    if kind == "fetch":
        mark = draw(st.sampled_from(("", " high_watermark=L-1", " high_watermark=L+0")))
        wait = draw(st.sampled_from((0, 500)))
        return f"{words} offset={draw(offsets)} last_epoch={draw(epochs)} max_wait={wait}{mark}"
    if kind == "fetch-snapshot":
        return f"{words} id={draw(places)} position={draw(st.sampled_from((-1, 0, 50)))}"
    return words


@st.composite
def answers(draw: st.DrawFn) -> str:
    """Draw a response to the last request: ``*`` is its kind.

    The words after ``|`` are per kind; ``check_script`` chooses those of the request.
    """
    sender, epoch = draw(others), draw(epochs)
    leader = draw(st.sampled_from(("", "", " leader=1", " leader=2", " leader=3")))
    error = draw(st.sampled_from([ErrorCode.NONE] * 24 + list(ErrorCode))).name
    granted = draw(st.sampled_from(("yes", "yes", "no")))
    position = draw(st.sampled_from((0, 50)))
    what = draw(st.sampled_from(("", "batches", "batches", "diverging", "snapshot")))
    if what == "batches":
        count = draw(st.integers(1, 3))
        what = " batches=" + ",".join(f"L+{at}/{draw(epochs)}/v" for at in range(count))
    elif what:
        what = f" {what}={draw(places)}"
    return (
        f"answer 1 -> {sender} * epoch={epoch}{leader} error={error}"
        f"|Vote granted={granted}|PreVote granted={granted}"
        f"|FetchSnapshot byte_count=100 position={position} data=50"
        f"|Fetch high_watermark={draw(offsets)}{what}"
    )


own = st.one_of(
    st.builds("tick 1 ms={}".format, st.sampled_from((20, 500, 1000, 2000))),
    st.sampled_from(
        (
            "timeout 1",
            "timeout 1",
            'append 1 "x"',
            'append 1 "x" required_base_offset=2',
            "hold-sync 1",
            "sync 1",
            "free-sync 1",
            "crash 1",
            "crash 1 power",
            "snapshot 1",
            "resign 1",
        )
    ),
)
scripts = st.lists(
    st.one_of(requests(), answers(), answers(), answers(), own), min_size=5, max_size=60
)


@settings(max_examples=25)
@given(scripts)
def test_a_node_keeps_its_invariants_among_byzantine_nodes(script: list[str]) -> None:
    check_script(script)


@pytest.mark.nightly
@settings(max_examples=300)
@given(scripts)
def test_a_node_keeps_its_invariants_in_many_scripts(script: list[str]) -> None:
    check_script(script)


def check_script(script: list[str]) -> None:
    handler = Handler(witness=NullWitness())
    for command in ("cluster voters=1,2,3", "crash 2", "crash 3"):
        handler.run(command)
    for command in script:
        if not handler.node(1).is_alive:
            handler.run("start 1")
        filled = fill_in(handler, command)
        if handler.can_run(filled):
            handler.run(filled)


def fill_in(handler: Handler, command: str) -> str:
    """Return the command with numbers for ``E`` and ``L``, and the kind of the last request."""
    node = handler.node(1)
    command, *by_kind = command.split("|")
    if by_kind:
        sender = int(command.split()[3])
        kind = handler.asked(1, sender) or "nothing"
        more = {words.split()[0]: words.partition(" ")[2] for words in by_kind}
        command = f"{command.replace('*', kind)} {more.get(kind, '')}"
    core, end_offset = node.replica.core, node.replica.log.end_offset
    command = re.sub(r"E([+-]\d)", lambda found: str(core.epoch + int(found[1])), command)
    return re.sub(r"L([+-]\d)", lambda found: str(end_offset + int(found[1])), command)
