"""Active controllers on simulated clusters, with every kind of fault."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from .faults import draw_plan
from .running import run_seed

FIRST = 16_000


def run_controllers(seed: int) -> Counter[str]:
    plan = replace(
        draw_plan(seed, rounds=4),  # the later ones have remote storage, which no kraft log has
        has_controllers=True,
        has_counters=False,
        user_count=0,
        client_user_counts=(),  # controllers own the log
    )
    result = run_seed(seed, plan=plan)
    assert result.failure is None, f"seed {seed}: {result.failure}"
    return Counter(result.counts)


@pytest.mark.parametrize(
    "seed",
    [FIRST, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (FIRST + 1, FIRST + 2))],
)
def test_the_state_of_a_new_leader_is_that_of_a_replay(seed: int) -> None:
    run_controllers(seed)


@pytest.mark.parametrize(
    "seed_count",
    [pytest.param(5, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.nightly)],
)
def test_histories_with_failovers_lose_and_repeat_nothing(seed_count: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(FIRST + 10, FIRST + 10 + seed_count):
        counts += run_controllers(seed)
    assert counts["controller claimed"] > 2 * seed_count
    assert counts["change committed"] > 25 * seed_count
    assert counts["change committed after a failover"]
    assert counts["change ApiException"]
    assert counts["change ended between its steps"]
    assert counts["snapshot"]
