"""Corpora of fuzzing: inputs of a decoder in the repository, which grow by those that reach more.

An input is a sequence of messages. ``fuzz`` mutates the inputs of a corpus and adds what makes a
step from one line of the decoder to another that no other input does. With ``REWRITE=1`` the corpus
is written with them; the same seed and corpus give the same inputs.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, Final, TypeAlias

from .hostile_bytes import mutations

Input: TypeAlias = tuple[bytes, ...]
Step: TypeAlias = tuple[CodeType, int, int]
DATA: Final = Path(__file__).parents[1] / "data" / "corpora"
SEED: Final = int(os.environ.get("RAFTLOG_FUZZ_SEED", "1"))
COUNT: Final = int(os.environ.get("RAFTLOG_FUZZ_INPUTS", "3000"))
"""Seed and number of the mutations of a nightly run."""


def corpus_of(name: str) -> list[Input]:
    """Return the inputs of a corpus."""
    lines = (DATA / f"{name}.jsonl").read_text().splitlines()
    return [tuple(one.encode("latin-1") for one in json.loads(line)) for line in lines]


def steps_of(run: Callable[[Input], object], given: Input, files: frozenset[str]) -> set[Step]:
    """Run one input; return the steps between lines of these files."""
    found: set[Step] = set()

    def called(frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        code, before = frame.f_code, 0

        def stepped(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal before
            if event == "line":
                found.add((code, before, frame.f_lineno))
                before = frame.f_lineno
            return stepped

        return stepped

    traced_before = sys.gettrace()
    sys.settrace(called)
    try:
        run(given)
    finally:
        sys.settrace(traced_before)
    return found


def fuzz(
    name: str,
    run: Callable[[Input], object],
    modules: Iterable[ModuleType],
    *,
    seed: int,
    count: int,
) -> None:
    """Run the corpus, then ``count`` mutations of it. Raises the errors of ``run``, with a note
    that has the input; a line with it in the corpus repeats it."""
    files = frozenset(str(one.__file__) for one in modules)
    inputs, seen = corpus_of(name), set[Step]()
    added: list[Input] = []
    rng = random.Random(seed)

    def steps(given: Input) -> set[Step]:
        try:
            return steps_of(run, given, files)
        except BaseException as error:
            error.add_note(f"input of the corpus {name}: {_line(given)}")
            raise

    for one in inputs:
        seen |= steps(one)
    for _ in range(count):
        changed = list(rng.choice(inputs))
        at = rng.randrange(len(changed))
        changed[at] = next(mutations(changed[at], rng))
        found = steps(tuple(changed))
        if not found <= seen:
            seen |= found
            inputs.append(tuple(changed))
            added.append(tuple(changed))
    if added and os.environ.get("REWRITE"):
        text = "".join(f"{_line(one)}\n" for one in inputs)
        (DATA / f"{name}.jsonl").write_text(text)


def _line(given: Input) -> str:
    return json.dumps([one.decode("latin-1") for one in given])
