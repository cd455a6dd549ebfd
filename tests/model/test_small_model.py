"""No committed record is lost in any history of a small quorum.

``explore`` is exhaustive within its bounds, because the key of a state is complete (``state_key``).
A state takes two or three milliseconds, and a second epoch or a restart multiplies the states. So
one election with two records is explored exhaustively; two elections are explored breadth-first up
to a number of states, which ``RAFTLOG_MODEL_STATES=100000`` raises.
"""

from __future__ import annotations

import os
from dataclasses import fields

import pytest

from raftlog.quorum import roles
from raftlog.quorum.roles import Candidate, Follower, Leader, Votes
from tests.model.small_model import (
    Bounds,
    ModelState,
    after_actions,
    beginning,
    explore,
    next_states,
)
from tests.model.state_key import KIND_OF, SPECIAL

STATES = int(os.environ.get("RAFTLOG_MODEL_STATES", "400"))
STATES_NIGHTLY = 25 * STATES
state_counts = pytest.mark.parametrize(
    "state_count", [STATES, pytest.param(STATES_NIGHTLY, marks=pytest.mark.nightly)]
)


def test_committed_records_survive_every_history_of_one_election() -> None:
    bounds = Bounds(epoch_max=1, value_count_max=1, restart_count_max=0)
    assert explore(beginning(), bounds) > 290


@pytest.mark.nightly
def test_committed_records_survive_every_history_of_one_election_and_two_records() -> None:
    """``make test`` has every history with one record."""
    bounds = Bounds(epoch_max=1, value_count_max=2, restart_count_max=0)
    assert explore(beginning(), bounds) > 1_000


@pytest.mark.slow
@state_counts
@pytest.mark.parametrize("restarts", [pytest.param(0, marks=pytest.mark.nightly), 1])
def test_committed_records_survive_the_shortest_histories_of_two_elections(
    restarts: int, state_count: int
) -> None:
    bounds = Bounds(epoch_max=2, value_count_max=1, restart_count_max=restarts)
    assert explore(beginning(), bounds, state_count_max=state_count) == state_count


FIGURE_8 = ("elect 0 by 1", "append 0", "restart 0", "elect 1 by 2", "append 1", "restart 1")
"""Two leaders, each with a record that no other replica has."""


def test_committed_records_survive_after_two_leaders_that_replicated_nothing() -> None:
    """A record of an older epoch can be lost although a majority has it (Raft, figure 8)."""
    assert explore(after_actions(*FIGURE_8), Bounds(), state_count_max=200) == 200


@pytest.mark.slow
@state_counts
def test_committed_records_survive_in_longer_histories_after_two_such_leaders(
    state_count: int,
) -> None:
    assert explore(after_actions(*FIGURE_8), Bounds(), state_count_max=state_count) == state_count


# --- the key --------------------------------------------------------------------------------------


def test_every_field_of_every_role_is_declared_in_the_key() -> None:
    """Every field is declared; an undeclared one also raises when a key is built."""
    kinds = (roles.Unattached, roles.Prospective, Candidate, Follower, Leader, roles.Resigned)
    named = {one.name for kind in kinds for one in fields(kind)}
    assert named <= set(KIND_OF) | set(SPECIAL)


def changed(state: ModelState, node_id: int) -> ModelState:
    return state.changed("changed", node_id)


def test_states_that_differ_in_fetched_offsets_have_different_keys() -> None:
    state = after_actions("elect 0 by 1", "exchange 0 with 1", "exchange 1 with 0")
    other = changed(state, 1)
    role = other.nodes[1].core.role
    assert isinstance(role, Follower)
    role.has_fetched_from_leader = not role.has_fetched_from_leader
    assert other.key() != state.key() == changed(state, 1).key()


def test_states_that_differ_in_votes_have_different_keys() -> None:
    state = after_actions("elect 0 by 1")
    one, other = changed(state, 2), changed(state, 2)
    for found, votes in ((one, Votes({2})), (other, Votes({2}, {1}))):
        core = found.nodes[2].core
        core._state.role = Candidate(epoch=1, election_deadline_ms=10, votes=votes)
    assert one.key() != other.key()


def test_states_that_differ_in_requests_in_flight_have_different_keys() -> None:
    state = after_actions("elect 0 by 1")
    other = changed(state, 0)
    target = next(iter(other.nodes[0].sent))
    del other.nodes[0].sent[target]
    assert other.key() != state.key()


def test_states_that_differ_in_names_only_have_equal_keys() -> None:
    one = after_actions("elect 0 by 1", "append 0", "exchange 0 with 1")
    other = after_actions("elect 2 by 0", "append 2", "exchange 2 with 0")
    third = after_actions("elect 2 by 0", "append 2", "exchange 2 with 1")
    assert one.key() == other.key() != third.key()


def test_states_with_equal_keys_have_successors_with_equal_keys() -> None:
    """Fields that a key omits do not affect the successors."""
    bounds = Bounds(epoch_max=2, value_count_max=1, restart_count_max=1)
    one = after_actions("elect 0 by 1", "append 0", "exchange 0 with 1")
    other = after_actions("elect 1 by 2", "append 1", "exchange 1 with 2")
    keys = [{after.key() for after in next_states(state, bounds)} for state in (one, other)]
    assert keys[0] == keys[1]
    assert len(keys[0]) > 5
