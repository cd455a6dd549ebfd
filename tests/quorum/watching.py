"""Seeing every change of a replica's role, those too that last no longer than one step."""

from __future__ import annotations

from collections.abc import Callable

from raftlog.quorum.core import QuorumCore
from raftlog.quorum.roles import Role
from raftlog.quorum.state import ReplicaState
from raftlog.types import ReplicaKey


def watch_roles(core: QuorumCore, seen: Callable[[Role, Role], None]) -> None:
    """Call ``seen`` with the old role and the new one whenever it changes."""
    watch_state(core._state, seen)


def watch_state(state: ReplicaState, seen: Callable[[Role, Role], None]) -> None:
    change = state._change

    def watched(role: Role, voted: ReplicaKey | None = None) -> None:
        old = state.role
        change(role, voted)
        seen(old, role)

    state._change = watched  # type: ignore[method-assign]
