"""Nothing that was committed is lost in any history of a small quorum.

``RAFTLOG_MODEL_EPOCHS=3 RAFTLOG_MODEL_RESTARTS=1`` looks at longer histories: each makes ten times
as many, and a state costs some milliseconds.
"""

from __future__ import annotations

import os

import pytest

from tests.model.small_model import Bounds, after_actions, beginning, explore

EPOCHS = int(os.environ.get("RAFTLOG_MODEL_EPOCHS", "2"))
RESTARTS = int(os.environ.get("RAFTLOG_MODEL_RESTARTS", "0"))


def test_in_every_history_of_one_election_what_is_committed_stays() -> None:
    bounds = Bounds(epoch_max=1, value_count_max=1, restart_count_max=0)
    assert explore(beginning(), bounds) > 50


@pytest.mark.slow
def test_in_every_history_of_few_elections_what_is_committed_stays() -> None:
    bounds = Bounds(epoch_max=EPOCHS, value_count_max=1, restart_count_max=RESTARTS)
    assert explore(beginning(), bounds) > 1_000


FIGURE_8 = ("elect 0 by 1", "append 0", "restart 0", "elect 1 by 2", "append 1", "restart 1")
"""Two leaders, each with a record that nobody else has."""


def test_after_two_leaders_that_replicated_nothing_what_is_committed_stays() -> None:
    """Raft's figure 8: a majority may hold a record of an older epoch and lose it all the same."""
    assert explore(after_actions(*FIGURE_8), Bounds(), state_count_max=600) == 600


@pytest.mark.slow
def test_in_all_that_may_follow_two_such_leaders_what_is_committed_stays() -> None:
    assert explore(after_actions(*FIGURE_8), Bounds()) > 1_000
