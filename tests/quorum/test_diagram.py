"""The diagram of roles in ARCHITECTURE.md is up to date."""

from __future__ import annotations

from raftlog.quorum.roles import TRANSITIONS, Trigger
from tests.quorum.diagram import PAGE, ROLES, diagram, section, written


def test_the_diagram_of_roles_is_up_to_date() -> None:
    page = PAGE.read_text()
    assert section() in page, "run `make diagram`"
    assert written(page) == page


def test_every_transition_and_cause_is_in_the_diagram() -> None:
    assert set(ROLES) == {role for change in TRANSITIONS for role in change}
    for trigger in {trigger for triggers in TRANSITIONS.values() for trigger in triggers}:
        assert trigger.value in diagram()
    assert set(Trigger) == {trigger for triggers in TRANSITIONS.values() for trigger in triggers}
