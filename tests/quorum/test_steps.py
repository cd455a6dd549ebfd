"""Every transition of ``TRANSITIONS`` occurs and no other; random scripts elect a leader."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.quorum.roles import TRANSITIONS, Follower, Leader
from tests.quorum.checked_core import ObservedSteps, recording
from tests.quorum.diagram import ROLES
from tests.quorum.test_votes import candidate, follower, leader, prospective, resigned, unattached
from tests.scenarios.commands import Handler
from tests.scenarios.transcripts import parse, run, transcripts
from tests.simulation.running import run_seed

SEEDS = (5,)


@pytest.fixture(scope="module")
def seen() -> ObservedSteps:
    """Record the transitions of the election transcripts and of simulated clusters."""
    with recording() as found:
        for path in transcripts():
            if path.parent.name == "elections":
                run(parse(path.read_text()))
        for seed in SEEDS:
            verdict = run_seed(seed)
            assert verdict.failure is None, f"make sim SEED={seed}: {verdict.failure}"
    return found


@pytest.mark.slow
def test_the_runs_cover_every_effect_that_must_be_durable_first(
    seen: ObservedSteps,
) -> None:
    assert seen.step_count > 1_000
    assert seen.vote_count > 20
    assert seen.fetch_count > 100


@pytest.mark.slow
def test_transitions_equal_those_that_occur(seen: ObservedSteps) -> None:
    assert seen.changes <= set(TRANSITIONS)
    assert set(TRANSITIONS) - seen.changes == set(), "no scenario and no seed reaches these"


def test_an_undeclared_transition_is_refused() -> None:
    makers = {
        type(role): role
        for role in (
            unattached(),
            prospective(),
            candidate(),
            follower(has_fetched_from_leader=False),
            leader(),
            resigned(),
        )
    }
    assert set(makers) == set(ROLES)
    handler = Handler()
    handler.run("cluster voters=1,2,3")
    state = handler.node(1).replica.core._state
    for source, target in itertools.product(ROLES, repeat=2):
        if source is target or (source, target) in TRANSITIONS:
            continue
        state.role = makers[source]
        with pytest.raises(AssertionError, match="does not become"):
            state._transition_to(makers[target])


# --- random scripts -------------------------------------------------------------------------------

nodes = st.integers(1, 3)
pairs = st.permutations([1, 2, 3]).map(lambda found: found[:2])
commands = st.one_of(
    st.builds("tick {} ms={}".format, nodes, st.sampled_from((1, 20, 500, 1000, 2000))),
    nodes.map("timeout {}".format),
    st.just("deliver once"),
    st.just("deliver"),
    pairs.map(lambda pair: f"deliver {pair[0]} -> {pair[1]}"),
    pairs.map(lambda pair: f"deliver {pair[0]} <- {pair[1]}"),
    pairs.map(lambda pair: f"drop {pair[0]} -> {pair[1]}"),
    pairs.map(lambda pair: f"drop {pair[0]} <- {pair[1]}"),
    pairs.map(lambda pair: f"duplicate {pair[0]} -> {pair[1]}"),
    pairs.map(lambda pair: f"duplicate {pair[0]} <- {pair[1]}"),
    pairs.map(lambda pair: f"delay {pair[0]} <- {pair[1]}"),
    pairs.map(lambda pair: f"cut {pair[0]} {pair[1]}"),
    st.just("release"),
    st.just("heal"),
    nodes.map('append {} "x"'.format),
    nodes.map("hold-sync {}".format),
    nodes.map("sync {}".format),
    nodes.map("free-sync {}".format),
    nodes.map("crash {}".format),
    nodes.map("crash {} power".format),
    nodes.map("start {}".format),
    nodes.map("snapshot {}".format),
    nodes.map("resign {}".format),
    st.builds("jitter {} ms={}".format, nodes, st.sampled_from((0, 300, 999))),
)


scripts = st.lists(commands, min_size=5, max_size=60)


@settings(max_examples=12)
@given(scripts)
def test_no_random_script_violates_an_invariant(script: list[str]) -> None:
    check_script(script)


@pytest.mark.nightly
@settings(max_examples=250)
@given(scripts)
def test_none_of_many_random_scripts_violates_an_invariant(script: list[str]) -> None:
    check_script(script)


def check_script(script: list[str]) -> None:
    """Run a random script of transcript commands, which can be kept as a transcript.

    The cluster has a leader at first and must have one at the end.
    """
    handler = Handler()
    for command in ("quiet", "cluster voters=1,2,3", "elect 1", 'append 1 "first"', "deliver"):
        handler.run(command)
    for command in script:
        if handler.can_run(command):
            handler.run(command)
    for node_id in (1, 2, 3):
        if not handler.node(node_id).is_alive:
            handler.run(f"start {node_id}")
        handler.run(f"free-sync {node_id}")
        handler.run(f"jitter {node_id} ms={300 * node_id - 300}")
    handler.run("heal")
    for _ in range(60):
        handler.run("tick ms=100")
        handler.run("deliver")
    roles = [type(handler.node(node_id).role) for node_id in (1, 2, 3)]
    assert sorted(role.__name__ for role in roles) == ["Follower", "Follower", "Leader"]
    assert {Follower, Leader} == set(roles)
    handler.run("aloud")
    handler.run("equal")
    assert handler.take_lines() == ["the logs of 1 2 3 are equal"]
