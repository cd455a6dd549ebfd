"""A node among others that say whatever they like: it keeps the rules for itself.

The others' messages have the right form and any content. What is lost by believing them is theirs
to answer for; a node never breaks its own word, and never falls over.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.quorum.messages import ErrorCode
from tests.quorum.step_checks import watching
from tests.scenarios.commands import Handler
from tests.simulation.invariants import Witness


class NobodyLooks(Witness):
    """Where others lie, what is committed may change: only steps are looked at."""

    def saw_leader(self, *_: object) -> None: ...

    def saw_high_watermark(self, *_: object) -> None: ...


others = st.sampled_from((2, 3))
epochs = st.integers(0, 5)
offsets = st.integers(-1, 8)
maybe_offsets = st.none() | offsets
places = st.builds("{}@{}".format, offsets, st.integers(-1, 5))


@st.composite
def requests(draw: st.DrawFn) -> str:
    who, epoch = draw(others), draw(epochs)
    kind = draw(st.sampled_from(["vote", "pre-vote", "begin", "end", "fetch", "fetch-snapshot"]))
    words = f"{kind} 1 from={who} epoch={epoch}"
    if kind in ("vote", "pre-vote"):
        return f"{words} last_offset={draw(offsets)} last_epoch={draw(epochs)}"
    if kind == "end":
        return words + draw(st.sampled_from(("", " preferred=1,2", " preferred=3,1")))
    if kind == "fetch":
        known = draw(maybe_offsets)
        told = "" if known is None else f" high_watermark={known}"
        wait = draw(st.sampled_from((0, 500)))
        return f"{words} offset={draw(offsets)} last_epoch={draw(epochs)} max_wait={wait}{told}"
    if kind == "fetch-snapshot":
        return f"{words} id={draw(places)} position={draw(offsets)}"
    return words


@st.composite
def answers(draw: st.DrawFn) -> str:
    who, epoch = draw(others), draw(epochs)
    leader = draw(st.sampled_from(("", " leader=1", " leader=2", " leader=3")))
    error = draw(st.sampled_from([ErrorCode.NONE] * 12 + list(ErrorCode))).name
    words = f"answer 1 -> {who} {{}} epoch={epoch}{leader} error={error}"
    kind = draw(st.sampled_from(["Vote", "PreVote", "Begin", "End", "Fetch", "FetchSnapshot"]))
    words = words.format(kind)
    if kind in ("Vote", "PreVote"):
        return words + draw(st.sampled_from((" granted=yes", " granted=no")))
    if kind == "FetchSnapshot":
        position = draw(st.sampled_from((0, 50, 100)))
        return f"{words} byte_count=100 position={position} data={draw(st.sampled_from((0, 50)))}"
    if kind != "Fetch":
        return words
    known = draw(maybe_offsets)
    words += "" if known is None else f" high_watermark={known}"
    what = draw(st.sampled_from(("nothing", "batches", "batches", "diverging", "snapshot")))
    if what == "batches":
        first, count = draw(st.integers(0, 8)), draw(st.integers(1, 3))
        named = [f"{first + at}/{draw(epochs)}/v" for at in range(count)]
        return f"{words} batches={','.join(named)}"
    return words if what == "nothing" else f"{words} {what}={draw(places)}"


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
            "start 1",
            "snapshot 1",
            "resign 1",
        )
    ),
)
scripts = st.lists(st.one_of(requests(), answers(), answers(), own), min_size=5, max_size=60)


@settings(max_examples=40)
@given(scripts)
def test_a_node_keeps_its_word_among_liars(script: list[str]) -> None:
    check_script(script)


@pytest.mark.slow
@settings(max_examples=700)
@given(scripts)
def test_it_does_in_many_scripts(script: list[str]) -> None:
    check_script(script)


def check_script(script: list[str]) -> None:
    with watching():
        handler = Handler(witness=NobodyLooks())
        for command in ("cluster voters=1,2,3", "crash 2", "crash 3", *script):
            if command.startswith(("cluster", "crash")) or handler.can_run(command):
                handler.run(command)
