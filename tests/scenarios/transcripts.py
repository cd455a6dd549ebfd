"""Transcripts: blocks of prose, commands, ``----`` and output, up to an empty line.

1. One handler runs all blocks of a file in order. Lines that begin with ``#`` are prose.
2. A block of commands must have an expectation; that of no output is ``nothing``.
3. ``rewritten`` keeps prose and commands, and replaces the output.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .commands import Handler

HOME: Final = Path(__file__).parent
LINE: Final = "----"
NOTHING: Final = "nothing"


@dataclass(frozen=True, slots=True)
class Block:
    """Block: ``script`` has prose and commands, ``expected`` the output after the line."""

    first_line: int
    script: tuple[str, ...]
    expected: tuple[str, ...]

    @property
    def is_prose(self) -> bool:
        """Whether the block has no command."""
        return all(line.startswith("#") for line in self.script if line)


def transcripts() -> list[Path]:
    return sorted(HOME.rglob("*.txt"))


def parse(text: str) -> list[Block]:
    """Return the blocks of a file. Prose after the last one is a block without commands."""
    blocks: list[Block] = []
    script: list[str] = []
    expected: list[str] | None = None
    first_line = 1
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if expected is None and line == LINE:
            expected = []
        elif expected is None:
            script.append(line)
        elif line:
            expected.append(line)
        else:
            blocks.append(Block(first_line, tuple(script), tuple(expected)))
            script, expected, first_line = [], None, number + 1
    left = [line for line in script if line]
    assert all(line.startswith("#") for line in left), f"commands without {LINE}: {left}"
    if left:
        blocks.append(Block(first_line, tuple(left), ()))
    return blocks


def run(blocks: list[Block]) -> list[tuple[str, ...]]:
    """Return the output of each block."""
    handler = Handler()
    found: list[tuple[str, ...]] = []
    for block in blocks:
        for at, line in enumerate(block.script):
            if line and not line.startswith("#"):
                try:
                    handler.run(line)
                except Exception as error:
                    error.add_note(f"line {block.first_line + at}: {line}")
                    error.add_note("\n".join(handler.lines))
                    raise
        found.append(tuple(handler.take_lines()))
    return [lines or (NOTHING,) for lines in found]


def compare(blocks: list[Block], found: list[tuple[str, ...]]) -> None:
    """Check the output of each block; an empty expectation fails."""
    for block, lines in zip(blocks, found, strict=True):
        if block.is_prose and not block.expected:
            continue
        assert block.expected, f"nothing is expected of the block at line {block.first_line}"
        assert lines == block.expected, f"the block at line {block.first_line}"


def rewritten(text: str) -> str:
    """Return the file with the present output."""
    blocks = parse(text)
    parts = []
    for block, lines in zip(blocks, run(blocks), strict=True):
        script = block.script if block.is_prose else (*block.script, LINE, *lines)
        parts.append("\n".join(script) + "\n")
    return "\n".join(parts)
