"""Typed access to the tables of a TOML file.

Every method raises ``ConfigError`` with the dotted path of the key. ``finish`` rejects keys that no
method has read.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any, Final, TypeVar

from raftlog.printable import did_you_mean

from .errors import ConfigError

T = TypeVar("T")
_ASCENDING_MAX: Final = 100


def _is_above_0(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value <= sys.float_info.max


class ConfigTable:
    """Table of a TOML file. ``name``: its dotted path, empty for the root table."""

    def __init__(self, path: str, name: str, values: Mapping[str, Any]) -> None:
        self._path = path
        self._name = name
        self._values = values
        self._read_keys: set[str] = set()

    def wrong(self, key: str, reason: str) -> ConfigError:
        """Return an error about a key, for the caller to raise."""
        return ConfigError(path=self._path, key=self._full(key), reason=reason)

    def has(self, key: str) -> bool:
        """Return whether the table has a key, and mark it as known."""
        self._read_keys.add(key)
        return key in self._values

    def is_text(self, key: str) -> bool:
        """Return whether the value of a key is a string."""
        return isinstance(self._values.get(key), str)

    def names(self) -> tuple[str, ...]:
        """Return all keys."""
        return tuple(self._values)

    def finish(self, also_known: Iterable[str] = ()) -> None:
        """Raise for the first key that was not read. ``also_known``: more keys for the hint."""
        known = sorted(self._read_keys.union(also_known))
        for key in self._values:
            if key not in self._read_keys:
                hint = did_you_mean(key, known) or "known keys: " + ", ".join(known)
                raise self.wrong(key, f"unknown key; {hint}")

    # --- values -----------------------------------------------------------------------------------

    def table(self, key: str) -> ConfigTable | None:
        """Return a subtable; None if it is missing."""
        if not self.has(key):
            return None
        values = self._values[key]
        if not isinstance(values, dict):
            raise self.wrong(key, f"expected a table: [{self._full(key)}]")
        return ConfigTable(self._path, self._full(key), values)

    def tables(self, key: str) -> list[ConfigTable]:
        """Return an array of tables; empty if it is missing."""
        values = self._values[key] if self.has(key) else []
        if not isinstance(values, list) or not all(isinstance(one, dict) for one in values):
            raise self.wrong(key, f"expected an array of tables: [[{self._full(key)}]]")
        name = self._full(key)
        return [ConfigTable(self._path, f"{name}[{at}]", one) for at, one in enumerate(values)]

    def required_table(self, key: str) -> ConfigTable:
        """Return a required subtable."""
        found = self.table(key)
        if found is None:
            raise self.wrong(key, f"missing: the table [{self._full(key)}] is required")
        return found

    def text(self, key: str) -> str:
        """Return a string that is not empty."""
        value = self._value(key)
        if not isinstance(value, str) or not value or "\0" in value:
            raise self.wrong(key, "expected a string that is not empty")
        return value

    def matching(self, key: str, pattern: re.Pattern[str], form: str) -> str | None:
        """Return a string that matches a pattern, which ``form`` describes in an error; None if the
        key is missing."""
        if not self.has(key):
            return None
        text = self.text(key)
        if pattern.fullmatch(text) is None:
            raise self.wrong(key, form)
        return text

    def texts(self, key: str) -> tuple[str, ...]:
        """Return an array of strings."""
        value = self._value(key)
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.wrong(key, 'expected an array of strings: ["...", "..."]')
        return tuple(value)

    def number(self, key: str, *, at_least: int, at_most: int, default: int | None = None) -> int:
        """Return an integer within bounds, both inclusive, or ``default`` if the key is missing."""
        if default is not None and not self.has(key):
            return default
        value = self._value(key)
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not at_least <= value <= at_most
        ):
            raise self.wrong(key, f"expected an integer from {at_least} to {at_most}")
        return value

    def decimal(self, key: str) -> float:
        """Return a number above 0, with or without decimals."""
        value = self._value(key)
        if not _is_above_0(value):
            raise self.wrong(key, "expected a number above 0")
        return float(value)

    def ascending(self, key: str, *, default: tuple[float, ...]) -> tuple[float, ...]:
        """Return an array of ascending numbers above 0, or ``default`` if the key is missing."""
        if not self.has(key):
            return default
        value = self._value(key)
        is_valid = isinstance(value, list) and 0 < len(value) <= _ASCENDING_MAX
        if not is_valid or not all(_is_above_0(one) for one in value):
            raise self.wrong(key, f"expected an array of 1 to {_ASCENDING_MAX} numbers above 0")
        found = tuple(map(float, value))
        for lower, upper in pairwise(found):
            if upper <= lower:
                raise self.wrong(key, f"{upper:g} is not above {lower:g} before it")
        return found

    def flag(self, key: str) -> bool:
        """Return a boolean; False if the key is missing."""
        if not self.has(key):
            return False
        value = self._value(key)
        if not isinstance(value, bool):
            raise self.wrong(key, "expected true or false")
        return value

    def choice(self, key: str, words: Iterable[str]) -> str:
        """Return a string that is one of ``words``."""
        value, allowed = self._value(key), list(words)
        if value not in allowed:
            quoted = ", ".join(f'"{word}"' for word in allowed)
            raise self.wrong(key, f"expected one of {quoted}")
        assert isinstance(value, str)
        return value

    def parsed(self, key: str, parse: Callable[[str], T]) -> T:
        """Return a string parsed by ``parse``, whose ``ValueError`` becomes the reason."""
        text = self.text(key)
        try:
            return parse(text)
        except ValueError as error:
            raise self.wrong(key, f"{text!r}: {error}") from None

    def file(self, key: str) -> str:
        """Return an absolute path; a relative one is relative to the configuration file."""
        directory = os.path.dirname(os.path.abspath(self._path))
        return os.path.normpath(os.path.join(directory, os.path.expanduser(self.text(key))))

    def _value(self, key: str) -> Any:
        if not self.has(key):
            raise self.wrong(key, "missing: this key is required")
        return self._values[key]

    def _full(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key
