"""Interface of the state that records are replayed into."""

from __future__ import annotations

from typing import Protocol, TypeVar

from raftlog_state.image import Entity, Group, Key, Row

R = TypeVar("R", bound=Row)


class Rows(Protocol):
    """Rows by entity and key, to read."""

    def find(self, kind: type[R], *key: int | str) -> R | None:
        """Return the current row by its type, or None."""
        ...

    def group(self, group: Group) -> tuple[Key, ...]:
        """Return the current keys of a group's rows (see ``image.group_of``)."""
        ...

    def keys(self, entity: Entity) -> list[Key]:
        """Return all current keys of an entity, in time linear in their number."""
        ...


class ReplayState(Rows, Protocol):
    """Rows by entity and key.

    ``MetadataDelta`` writes over an image, and records each change. ``ControllerState`` is the one
    state of a controller, and reverts to earlier offsets.
    """

    def put(self, row: Row) -> None:
        """Create or replace a row."""
        ...

    def replace(self, before: R, after: R) -> None:
        """Replace the current row ``before`` by another with the same key."""
        ...

    def delete(self, entity: Entity, key: Key) -> bool:
        """Delete a row; return False if there was none."""
        ...
