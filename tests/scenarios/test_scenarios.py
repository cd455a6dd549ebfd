"""Transcripts of quorums: each is prose, commands and everything that they made observable.

``make rewrite`` writes down what happens now; keep a difference only if you can explain it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.commands import Handler, command_names
from tests.scenarios.transcripts import HOME, parse, run, transcripts


@pytest.mark.parametrize("path", transcripts(), ids=lambda path: str(path.relative_to(HOME))[:-4])
def test_a_transcript_happens_as_it_is_written(path: Path) -> None:
    blocks = parse(path.read_text())
    assert blocks[0].script[0].startswith("#"), "a scenario begins with what it is about"
    found_blocks = run(blocks)
    for block, found in zip(blocks, found_blocks, strict=True):
        if block.expected:
            assert found == block.expected, f"the block at line {block.first_line}"


def test_every_command_is_in_the_table() -> None:
    table = Handler.__doc__ or ""
    rows = [line[4:22] for line in table.splitlines() if line.startswith("    ")]
    named = {name.strip(" ,") for row in rows for name in row.split(",")} - {""}
    assert set(command_names()) <= named


def test_every_command_is_used_by_a_transcript() -> None:
    used = {
        line.split()[0]
        for path in transcripts()
        for block in parse(path.read_text())
        for line in block.script
        if line and not line.startswith("#")
    }
    assert set(command_names()) == used
