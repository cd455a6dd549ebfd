"""The product's client in simulated clusters: its appends keep their promises under faults."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.clients import Client, check_order
from tests.simulation.cluster import Cluster
from tests.simulation.faults import Plan, draw_plan
from tests.simulation.invariants import InvariantViolationError
from tests.simulation.running import run_seed
from tests.simulation.users import Kind, Operation, Outcome
from tests.simulation.world import World

SEED = 1


def plan_of(seed: int) -> Plan:
    """Return the plan of a seed, on three voters with two handles that several users share."""
    plan = draw_plan(seed)
    faults = tuple(one for one in plan.faults if one.node <= 3)
    return replace(
        plan,
        node_count=3,
        observer_count=0,
        faults=faults,
        loss=0.02,
        pause_us=200_000,
        user_count=1,
        client_user_counts=(3, 2),
    )


def test_appends_of_the_products_client_keep_their_promises_under_faults() -> None:
    result = run_seed(SEED, plan=plan_of(SEED))
    assert result.failure is None
    assert result.counts["result of a client: done"] > 10
    assert result.counts["request PRODUCE"] > result.counts["result of a client: done"] / 5


def test_throttled_appends_keep_their_promises_under_faults() -> None:
    plan = replace(plan_of(SEED), client_byte_rate=70.0)
    result = run_seed(SEED, plan=plan)
    assert result.failure is None
    assert result.counts["throttled"] > 5
    assert result.counts["result of a client: done"] > 5


def appended(base_offset: int) -> Operation:
    operation = Operation(Kind.PLAIN, (b"value",), 0, None, Outcome.DONE)
    operation.base_offset, operation.end_offset = base_offset, base_offset + 1
    return operation


def test_two_appends_of_a_client_that_changed_places_are_found() -> None:
    client = Client(Cluster(World(1)), 0)
    lost = replace(appended(0), outcome=Outcome.UNKNOWN)
    client.plain.extend([appended(4), lost, appended(5)])
    check_order(client)
    client.plain.append(appended(2))
    with pytest.raises(InvariantViolationError, match="order of a client"):
        check_order(client)
