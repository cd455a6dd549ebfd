"""Record types that ``--type`` selects: metadata types and control types.

``PARTITION_RECORD`` (kafka-dump-log), ``PartitionRecord`` (Kafka's source) and ``partition`` are
equivalent. An API key (``3``) can select a type that the schemas of this version do not contain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from raftlog.errors import OptionError
from raftlog.records.control import ControlType
from raftlog_state.records import RECORD_TYPES, NoOpRecord

from .parser import nearest

_API_KEY_MAX = 2**15 - 1


@dataclass(frozen=True, slots=True)
class Selection:
    """Record types to print. ``api_keys`` None: all metadata types; ``control_names`` None: all
    control types."""

    api_keys: frozenset[int] | None
    control_names: frozenset[str] | None
    hidden_api_keys: frozenset[int]

    def takes(self, api_key: int) -> bool:
        """Return whether metadata records of this type are printed."""
        if api_key in self.hidden_api_keys:
            return False
        return self.api_keys is None or api_key in self.api_keys

    def takes_control(self, name: str) -> bool:
        """Return whether control records of this type (``leader_change``) are printed."""
        return self.control_names is None or name in self.control_names


def select(types: Iterable[str], *, control: bool, noop: bool) -> Selection:
    """Return the selection of the options; a named type is printed without ``control``, ``noop``.

    Raises ``OptionError`` for an unknown type, with the most similar name.
    """
    names = list(types)
    api_keys: set[int] = set()
    control_names: set[str] = set()
    metadata, controls = _metadata_names(), _control_names()
    for name in names:
        plain = _plain(name)
        if plain in metadata:
            api_keys.add(metadata[plain])
        elif plain in controls:
            control_names.add(controls[plain])
        elif plain.isascii() and plain.isdigit() and len(plain) <= 5 and int(plain) <= _API_KEY_MAX:
            api_keys.add(int(plain))
        else:
            hint = nearest(plain, [*metadata, *controls]) or "`topic`, `partition` are examples"
            raise OptionError(option="--type", reason=f"unknown record type {name!r}; {hint}")
    if not names:
        hidden = frozenset() if noop else frozenset({NoOpRecord.schema.api_key})
        return Selection(None, None if control else frozenset(), hidden)
    if control and not control_names:
        return Selection(frozenset(api_keys), None, frozenset())
    return Selection(frozenset(api_keys), frozenset(control_names), frozenset())


def _plain(name: str) -> str:
    letters = "".join(letter for letter in name.lower() if letter not in "_- ")
    return letters.removesuffix("record") or letters


def _metadata_names() -> Mapping[str, int]:
    return {_plain(kind.schema.name): kind.schema.api_key for kind in RECORD_TYPES}


def _control_names() -> Mapping[str, str]:
    return {_plain(kind.name): kind.name.lower() for kind in ControlType}
