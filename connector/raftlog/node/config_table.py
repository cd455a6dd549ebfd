"""A table of a TOML file: each key asked for once by its type, and none left over.

Rules of this file:

1. Every method raises ``ConfigError`` with the dotted path of the key.
2. ``finish`` refuses the keys that nobody asked for.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from raftlog.errors import ConfigError

T = TypeVar("T")


class ConfigTable:
    """One table, ``name`` being its own dotted path (empty for the file itself)."""

    def __init__(self, path: str, name: str, values: Mapping[str, Any]) -> None:
        self._path = path
        self._name = name
        self._values = values
        self._asked: set[str] = set()

    def wrong(self, key: str, reason: str) -> ConfigError:
        """The error that says what is wrong with a key."""
        return ConfigError(path=self._path, key=self._full(key), reason=reason)

    def has(self, key: str) -> bool:
        """Whether the key is there. It counts as asked for."""
        self._asked.add(key)
        return key in self._values

    def is_text(self, key: str) -> bool:
        """Whether the key is there and holds text."""
        return isinstance(self._values.get(key), str)

    def names(self) -> tuple[str, ...]:
        """All keys."""
        return tuple(self._values)

    def finish(self, also_known: Iterable[str] = ()) -> None:
        """Refuse what nobody asked for."""
        known = sorted(self._asked.union(also_known))
        for key in self._values:
            if key not in self._asked:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]}?" if near else "known are " + ", ".join(known)
                raise self.wrong(key, f"no such key; {hint}")

    # --- values -----------------------------------------------------------------------------------

    def table(self, key: str) -> ConfigTable | None:
        """A table in this one, None if it is not there."""
        if not self.has(key):
            return None
        values = self._values[key]
        if not isinstance(values, dict):
            raise self.wrong(key, f"a table was expected: [{self._full(key)}]")
        return ConfigTable(self._path, self._full(key), values)

    def required_table(self, key: str) -> ConfigTable:
        """The same, where it must be there."""
        found = self.table(key)
        if found is None:
            raise self.wrong(key, f"it is missing: [{self._full(key)}]")
        return found

    def text(self, key: str) -> str:
        """Text, not empty."""
        value = self._value(key)
        if not isinstance(value, str) or not value or "\0" in value:
            raise self.wrong(key, "text in quotes was expected")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts."""
        value = self._value(key)
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.wrong(key, 'a list of texts was expected: ["...", "..."]')
        return tuple(value)

    def number(self, key: str, *, at_least: int, at_most: int) -> int:
        """A whole number; both bounds are allowed."""
        value = self._value(key)
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not at_least <= value <= at_most
        ):
            raise self.wrong(key, f"a whole number from {at_least} to {at_most} was expected")
        return value

    def flag(self, key: str) -> bool:
        """True or false; false if it is not there."""
        if not self.has(key):
            return False
        value = self._value(key)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false was expected")
        return value

    def choice(self, key: str, words: Iterable[str]) -> str:
        """One of some words."""
        value, allowed = self._value(key), list(words)
        if value not in allowed:
            quoted = ", ".join(f'"{word}"' for word in allowed)
            raise self.wrong(key, f"one of {quoted} was expected")
        assert isinstance(value, str)
        return value

    def parsed(self, key: str, parse: Callable[[str], T]) -> T:
        """Text in a form; what ``parse`` says in its ``ValueError`` is the reason."""
        text = self.text(key)
        try:
            return parse(text)
        except ValueError as error:
            raise self.wrong(key, f"{text!r}: {error}") from None

    def file(self, key: str) -> str:
        """A path, made absolute: it may be relative to the file that names it."""
        directory = os.path.dirname(os.path.abspath(self._path))
        return os.path.normpath(os.path.join(directory, os.path.expanduser(self.text(key))))

    def _value(self, key: str) -> Any:
        if not self.has(key):
            raise self.wrong(key, "it is missing")
        return self._values[key]

    def _full(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key
