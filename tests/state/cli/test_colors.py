"""Colors and the bar of a terminal: when they are printed, and that no text is taken for them."""

from __future__ import annotations

import io
import os
import re
import termios
from pathlib import Path

import pytest
from rich.cells import cell_len
from tests.support.cli import run

from raftlog_state.cli.main import main
from raftlog_state.cli.output import Console, Output
from raftlog_state.cli.text_table import Cell, write_table

NODE = Path("tests/data/kraft-logs/three-nodes-4.3.1/node-100")
DIFF = ("diff", str(NODE), "--from", "1231", "--to", "1232")
PLAIN = ["OP       NAME      WHAT CHANGED", "changed  broker/3  fenced false -> true"]
COLORED = [
    "\x1b[1mOP       \x1b[0m\x1b[1mNAME      \x1b[0m\x1b[1mWHAT CHANGED\x1b[0m",
    "\x1b[33mchanged  \x1b[0mbroker/3  fenced false -> true",
]
HOSTILE = "[red]x[/red] \x1b[31m\x9b1m\x07\u202e [link=http://e] :warning: \\[bold]"


@pytest.fixture(autouse=True)
def _terminal_with_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def on_pseudo_terminal(*argv: str) -> list[str]:
    """Run a command whose stdout is a terminal of the kernel; return its lines."""
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (50, 200))
    with open(master, "rb") as reader, open(slave, "wb") as stdout:
        main(argv, stdout, io.StringIO())
        stdout.flush()
        return reader.read1(65_536).decode().replace("\r\n", "\n").splitlines()


def test_a_table_on_a_terminal_has_colors() -> None:
    assert on_pseudo_terminal(*DIFF) == COLORED


@pytest.mark.parametrize(
    ("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb"), ("TERM", "unknown"), ("TERM", "")]
)
def test_a_terminal_without_colors_gets_no_control_sequence(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert on_pseudo_terminal(*DIFF) == PLAIN


def test_an_empty_variable_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "")
    monkeypatch.setenv("FORCE_COLOR", "")
    assert on_pseudo_terminal(*DIFF) == COLORED
    assert run(*DIFF, "--format", "table")[1].splitlines() == PLAIN


def test_a_pipe_has_colors_only_if_they_are_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    def piped(*options: str) -> list[str]:
        return run(*DIFF, "--format", "table", *options)[1].splitlines()

    assert piped() == PLAIN
    assert piped("--color", "always") == COLORED
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert piped() == COLORED
    assert piped("--color", "never") == PLAIN
    monkeypatch.setenv("NO_COLOR", "1")
    assert piped() == PLAIN
    assert piped("--color", "always") == COLORED


def test_json_has_no_colors() -> None:
    for command in (DIFF, ("log", str(NODE), "broker/3", "--json"), ("check", str(NODE), "--json")):
        out = run(*command, "--color", "always")[1] if command[0] != "diff" else run(*DIFF)[1]
        assert out
        assert "\x1b" not in out


@pytest.mark.parametrize("options", [(), ("--color", "always")])
def test_no_cell_controls_the_terminal_or_is_markup(options: tuple[str, ...]) -> None:
    stream = io.BytesIO()
    output = Output(stream)
    output.color = options[-1] if options else "auto"
    rows: list[tuple[Cell, ...]] = [((HOSTILE, "red"), HOSTILE), ("short", "x")]
    write_table(("A", "B"), lambda: rows, output)
    output.flush()
    printed = stream.getvalue().decode()
    plain = re.sub(r"\x1b\[[0-9;]*m", "", printed)
    assert ("\x1b[31m" in printed) == bool(options), "the style of the cell, not its text"
    assert all(line.isprintable() for line in plain.splitlines())
    shown = r"[red]x[/red] \u001b[31m\u009b1m\u0007\u202e [link=http://e] :warning: \[bold]"
    assert plain.splitlines() == [
        "A" + " " * (len(shown) + 1) + "B",
        f"{shown}  {shown}",
        "short" + " " * (len(shown) - 3) + "x",
    ]


def test_lines_with_colors_are_held_as_others_are() -> None:
    """A bar on the same terminal is erased before the first one is written."""
    stream = io.BytesIO()
    output = Output(stream)
    output.color = "always"
    output.line("\x1bfirst")
    output.styled(("second", "red"))
    output.line("third")
    assert not output.is_empty
    assert stream.getvalue() == b""
    output.flush()
    assert stream.getvalue() == b"\\u001bfirst\n\x1b[31msecond\x1b[0m\nthird\n"
    while len(stream.getvalue()) < 1_000_000:
        output.styled(("x" * 10_000, "red"))
    assert stream.getvalue().endswith(b"x\x1b[0m\n")


def test_columns_are_aligned_after_characters_of_two_cells_and_of_none() -> None:
    stream = io.BytesIO()
    output = Output(stream)
    rows = [("日本語", "1"), ("e\u0301", "2"), ("plain", "3")]
    write_table(("NAME", "N"), lambda: rows, output)
    output.flush()
    lines = stream.getvalue().decode().splitlines()
    assert {cell_len(line[:-1]) for line in lines} == {8}


def test_verdicts_have_the_color_of_what_is_to_be_done() -> None:
    assert "\x1b[32mvalid\x1b[0m: " in run("check", NODE, "--color", "always")[1]
    assert "\x1b[32mvalid" not in run("check", NODE)[1]
    first = run("log", NODE, "broker/3", "--color", "always")[1].splitlines()[0]
    assert "\x1b[1mbroker/3\x1b[0m" in first


def test_the_bar_is_colored_on_a_terminal_and_absent_on_a_dumb_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("raftlog_state.cli.output._now_ms", lambda: now[0])

    def bar(percent: int = 50) -> str:
        now[0] = 0.0
        terminal = Terminal()
        console = Console(terminal)
        now[0] = 1000
        console.progress(percent, 100)
        return terminal.getvalue()

    done, rest = "\x1b\\[32m━{%d}\x1b\\[0m", "(\x1b\\[90m[╺━]+\x1b\\[0m)+"
    assert re.fullmatch(f"\r{done % 15}{rest}  50%", bar())
    assert re.fullmatch(f"\r{done % 30} 100%", bar(100))
    monkeypatch.setenv("TERM", "dumb")
    assert bar() == ""


class Terminal(io.StringIO):
    """stderr that is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True
