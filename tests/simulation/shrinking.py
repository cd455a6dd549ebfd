"""Reduce a plan to the faults that violate an invariant.

Invariants:

1. Greedy: faults that can be omitted stay omitted. First whole kinds and rates, then halves of the
   faults, then single ones, until no more can be omitted.
2. A smaller plan counts if it violates the same invariant, at any moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from .faults import Plan, PlannedFault


def shrunk(plan: Plan, fails: Callable[[Plan], bool], *, runs_max: int = 300) -> Plan:
    """Return the smallest plan found that ``fails`` as ``plan`` does; a limited number is tried."""
    runs = 0
    while True:
        for smaller in _smaller(plan):
            runs += 1
            if runs > runs_max:
                return plan
            if fails(smaller):
                plan = smaller
                break
        else:
            return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Yield smaller plans, those first that omit most."""
    faults = plan.faults
    size = len(faults) // 2
    while size > 1:
        for at in range(0, len(faults), size):
            yield replace(plan, faults=faults[:at] + faults[at + size :])
        size //= 2
    for kind in {one.fault: None for one in faults}:
        yield replace(plan, faults=tuple(one for one in faults if one.fault is not kind))
    for name, calm in _CALM.items():
        if getattr(plan, name) != calm:
            yield _without_missing_nodes(replace(plan, **{name: calm}))
    for at in range(len(faults)):
        yield replace(plan, faults=faults[:at] + faults[at + 1 :])


def _without_missing_nodes(plan: Plan) -> Plan:
    """Return the plan without the faults of nodes that it does not have."""
    count = plan.node_count + plan.observer_count
    return replace(plan, faults=tuple(one for one in plan.faults if one.node <= count))


_CALM: dict[str, Any] = {
    "loss": 0.0,
    "duplicates": 0.0,
    "slow": 0.0,
    "stall_rate": 0.0,
    "retention_bytes": None,
    "has_counters": False,
    "has_old_versions": False,
    "client_user_counts": (),
    "client_byte_rate": None,
    "user_count": 1,
    "observer_count": 0,
    "is_dynamic": False,
}


def describe_plan(plan: Plan) -> list[str]:
    """Return a plan as text: the rates and kinds that are not at their calmest, then the faults."""
    lines = [f"{plan.node_count} voters, {plan.user_count} users"]
    for name, calm in _CALM.items():
        value = getattr(plan, name)
        if value != calm and name != "user_count":
            lines.append(f"{name} = {value}")
    return lines + [_fault_words(one) for one in plan.faults]


def _fault_words(one: PlannedFault) -> str:
    if one.hook is None:
        when = f"at {one.at / 1000:.3f} ms on node {one.node}"
    else:
        when = f"at moment {one.at} of '{one.hook.value}', where that is"
    words = f"{one.fault.value} {when}, for {one.lasts_us / 1000:.0f} ms"
    return f"{words} ({one.survival.name.lower()}, other {one.other}, room {one.room_bytes})"
