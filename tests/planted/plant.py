"""A bug to be planted into raftlog, and the tests that must find it.

Invariants:

1. A plant is small and changes the behaviour: a text that occurs once in its file, and its
   replacement. A plant that no longer fits is an error, and is rewritten for the current code.
2. A plant that no test finds is a gap in the tests. It names the tests that found it when it was
   planted, quick ones first: one failure is enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """Bug: in the file at ``path``, ``old`` becomes ``new``."""

    bug: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]

    def plant_into(self, text: str) -> str:
        """Return the file's ``text`` with the bug in it.

        Raises ``ValueError`` if the bug does not fit.
        """
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.bug}: its text is {count} times in {self.path}")
        return text.replace(self.old, self.new)

    def apply(self, home: Path) -> str:
        """Plant the bug in the sources below ``home``; return the previous text of the file.

        Raises ``ValueError`` if the bug does not fit.
        """
        file = home / self.path
        text = file.read_text()
        file.write_text(self.plant_into(text))
        return text
