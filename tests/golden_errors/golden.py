"""Texts of typical mistakes, in a file that is reviewed as a user reads it.

``REWRITE=1 pytest tests/golden_errors`` writes the files; review the difference. What differs from
run to run is replaced: temporary paths, the repository, ports, and milliseconds of waiting.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

from raftlog.errors import RaftlogError
from tests.support.cli import run

HERE = Path(__file__).parent
HOME = HERE.parents[1]

Mistake: TypeAlias = "tuple[str, Callable[[], str]]"
"""What the user did, and the call that returns what the user reads."""


def command(*argv: object) -> Mistake:
    """Return a command of ``raftlog`` that fails."""
    words = [str(word) for word in argv]

    def read() -> str:
        status, out, err = run(*words)
        assert status != 0, words
        assert not out, "the mistake is noticed before anything is printed"
        return f"{err.rstrip()}\n(exit {status})"

    return "$ raftlog " + " ".join(words), read


def answer(title: str, *argv: object) -> Mistake:
    """Return a command of ``raftlog`` that prints an answer, whatever its exit code."""

    def read() -> str:
        status, out, err = run(*map(str, argv))
        assert not err, err
        return f"{out.rstrip()}\n(exit {status})"

    return title, read


def call(code: str, fails: Callable[[], object]) -> Mistake:
    """Return a call in Python, shown as ``code``, that raises an error of raftlog."""

    def read() -> str:
        try:
            fails()
        except RaftlogError as error:
            return f"{type(error).__name__}: {error}"
        raise AssertionError("the mistake was accepted")

    return f">>> {code}", read


def check(name: str, mistakes: Iterable[Mistake], replace: dict[str, str]) -> None:
    """Compare the texts of all mistakes with a file, which is written with ``REWRITE``."""
    replaced = {**replace, f"{HOME}/": ""}
    found = []
    for title, read in mistakes:
        text = f"{title}\n{read()}\n"
        for old in sorted(replaced, key=len, reverse=True):
            text = text.replace(old, replaced[old])
        text = re.sub(r"(127\.0\.0\.1|localhost):\d{4,5}\b", r"\1:PORT", text)
        text = re.sub(r"cluster [\w-]{22}, expected", "cluster ID, expected", text)
        found.append(re.sub(r"\b\d+ ms\b", "N ms", text))
    path = HERE / name
    written = "\n".join(found)
    if "REWRITE" in os.environ:
        path.write_text(written)
    kept = path.read_text().splitlines()
    difference = "\n".join(difflib.unified_diff(kept, written.splitlines(), n=1))
    assert not difference, f"`make rewrite` writes {name}:\n{difference}"
