"""Transcripts of quorums: prose, commands and their output.

``make rewrite`` replaces the output; commit a difference only if you can explain it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.scenarios.commands import Handler, command_names
from tests.scenarios.transcripts import HOME, compare, parse, run, transcripts


@pytest.mark.parametrize("path", transcripts(), ids=lambda path: str(path.relative_to(HOME))[:-4])
def test_a_transcript_has_the_recorded_output(path: Path) -> None:
    blocks = parse(path.read_text())
    assert blocks[0].script[0].startswith("#"), "a scenario begins with prose"
    compare(blocks, run(blocks))


def test_commands_without_an_expectation_fail() -> None:
    path = next(path for path in transcripts() if "\n----\n" in path.read_text())
    blocks = parse(path.read_text())
    at = next(at for at, block in enumerate(blocks) if not block.is_prose)
    found = run(blocks)
    compare(blocks, found)
    blocks[at] = replace(blocks[at], expected=())
    with pytest.raises(AssertionError, match="nothing is expected of the block at line"):
        compare(blocks, found)


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
