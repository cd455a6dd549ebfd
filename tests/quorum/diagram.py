"""Diagram of a replica's roles and transitions, generated from ``TRANSITIONS``.

``python -m tests.quorum.diagram`` (``make diagram``) writes it into ARCHITECTURE.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from raftlog.quorum.roles import (
    TRANSITIONS,
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    RoleType,
    Trigger,
    Unattached,
)

PAGE: Final = Path(__file__).parents[2] / "ARCHITECTURE.md"
BEGIN: Final = "<!-- roles: written by `make diagram` -->"
END: Final = "<!-- roles end -->"
ROLES: Final[tuple[RoleType, ...]] = (
    Unattached,
    Prospective,
    Candidate,
    Leader,
    Resigned,
    Follower,
)
"""In the order of the diagram."""
ANY: Final = "any role"
WIDTH: Final = 13


def diagram() -> str:
    """Return one transition per line: from, to, causes. Those of every role are listed once."""
    everywhere = [
        (trigger, target)
        for trigger in Trigger
        for target in ROLES
        if all(trigger in TRANSITIONS.get((source, target), ()) for source in ROLES)
    ]
    lines = []
    for source in ROLES:
        name = _name(source)
        for target in ROLES:
            found = [
                trigger.value
                for trigger in TRANSITIONS.get((source, target), ())
                if (trigger, target) not in everywhere
            ]
            if found:
                lines.append(f"{name:{WIDTH}}--> {_name(target):{WIDTH}}{'; '.join(found)}")
                name = ""
    for trigger, target in everywhere:
        lines.append(f"{ANY:{WIDTH}}--> {_name(target):{WIDTH}}{trigger.value}")
    return "\n".join(lines)


def section() -> str:
    """Return the diagram between its markers, including these."""
    return f"{BEGIN}\n```text\n{diagram()}\n```\n{END}"


def written(page: str) -> str:
    """Return the page with the diagram replaced."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"{BEGIN} and {END} are not in the page"
    return before + section() + after


def _name(role: RoleType) -> str:
    return role.__name__.lower()


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
