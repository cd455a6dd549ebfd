"""One bug that somebody could have written into raftlog, and the tests that must find it.

Rules of this file:

1. A plant is small and changes what the code does: a text that stands once in its file, and what
   to put there. One that no longer fits is an error, and is made anew for the code as it is.
2. A plant that no test finds is a hole in the tests. Named are the tests that found it when it was
   planted, quick ones first: one failure is enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """One bug: in the file at ``path``, ``old`` becomes ``new``."""

    bug: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, home: Path) -> str:
        """Plant it in the sources below ``home``; what the file held before.

        Raises ``ValueError`` if it does not fit.
        """
        file = home / self.path
        text = file.read_text()
        if text.count(self.old) != 1:
            count = text.count(self.old)
            raise ValueError(f"{self.bug}: its text stands {count} times in {self.path}")
        file.write_text(text.replace(self.old, self.new))
        return text
