"""``raftlog completion`` and ``raftlog man``: completion of a shell and manual pages.

Both are generated from the parsers of the commands, so that they have the texts of ``--help``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from raftlog import __version__

from .output import Console, Output
from .parser import Commands, Parser, first_sentence

SHELLS: Final = ("bash", "zsh", "fish")
_FILES: Final = frozenset({"PATH", "OTHER", "FILE", "DIR", "TO", "SURVIVOR", "TABLES", "CHANGES"})
"""``metavar`` of arguments that are files or directories."""


# --- raftlog completion ---------------------------------------------------------------------------

COMPLETION_ABOUT = """
Print a shell script that completes commands, options, their values and file names. Requires
pip install "raftlog[completion]".
"""

COMPLETION_EXAMPLES = """
raftlog completion bash > ~/.local/share/bash-completion/completions/raftlog
raftlog completion zsh > ~/.zsh/completions/_raftlog     # a directory in fpath
raftlog completion fish > ~/.config/fish/completions/raftlog.fish
"""


def add_completion(commands: Commands) -> None:
    """Add ``raftlog completion``."""
    command = commands.add_parser(
        "completion", about=COMPLETION_ABOUT, examples=COMPLETION_EXAMPLES
    )
    command.set_defaults(run=run_completion)
    command.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def run_completion(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print the script; return the exit code."""
    from raftlog.errors import OptionError

    try:
        import shtab
    except ImportError:
        reason = 'the script needs the package shtab: pip install "raftlog[completion]"'
        raise OptionError(option="SHELL", reason=reason) from None
    root: Parser = arguments.root
    for parser in root.tree():
        parser.add_short_helps()
        for _, action in parser.arguments():
            if action.metavar in _FILES:
                vars(action)["complete"] = shtab.FILE  # an attribute that shtab reads
    output.text(shtab.complete(root, shell=arguments.shell))
    return 0


# --- raftlog man ----------------------------------------------------------------------------------

MAN_ABOUT = """
Print the manual page of raftlog or of one of its commands, in the format of man.
"""

MAN_EXAMPLES = """
raftlog man state | man -l -
raftlog man node format > raftlog-node-format.1
"""


def add_man(commands: Commands) -> None:
    """Add ``raftlog man``."""
    command = commands.add_parser("man", about=MAN_ABOUT, examples=MAN_EXAMPLES)
    command.set_defaults(run=run_man)
    command.add_argument("command", metavar="COMMAND", nargs="*", help="command to describe")


def run_man(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print the page; return the exit code."""
    found: Parser = arguments.root
    for name in arguments.command:
        found = found.command(name)
    output.lines(manual_page(found))
    return 0


def manual_page(parser: Parser) -> Iterator[str]:
    """Yield the lines of a command's manual page, in roff with the macros of man(7)."""
    name = parser.prog.replace(" ", "-")
    about = parser.description or ""
    yield f'.TH "{name.upper()}" "1" "" "raftlog {__version__}" "raftlog"'
    yield ".SH NAME"
    yield _escaped(f"{name} - {first_sentence(about)}")
    yield ".SH SYNOPSIS"
    operands = parser.synopsis().removeprefix(parser.prog).strip()
    yield f"\\fB{_escaped(parser.prog)}\\fR {_escaped(operands)}"
    yield ".SH DESCRIPTION"
    yield from _paragraphs(about)
    last = None
    for title, action in parser.arguments():
        if title != last:
            yield f'.SH "{_escaped(title.upper())}"'
            last = title
        yield from _option(parser, action)
    if parser.epilog:
        yield ".SH EXAMPLES"
        yield from _paragraphs("\n".join(parser.epilog.split("\n")[1:]))


def _option(parser: Parser, action: argparse.Action) -> Iterator[str]:
    """Yield an option or a positional argument, and its help."""
    value = parser.metavar_of(action)
    argument = f" \\fI{_escaped(value)}\\fR" if value else ""
    names = ", ".join(f"\\fB{_escaped(name)}\\fR{argument}" for name in action.option_strings)
    yield ".TP"
    yield names or argument.strip()
    yield _escaped(parser.help_of(action))


def _paragraphs(text: str) -> Iterator[str]:
    """Yield a text: paragraphs are filled, indented lines are kept as they are."""
    is_verbatim = False
    for line in text.strip("\n").split("\n"):
        is_indented = line.startswith("  ")
        if is_indented != is_verbatim:
            yield from (".RS 2", ".nf") if is_indented else (".fi", ".RE")
            is_verbatim = is_indented
        if not line.strip():
            yield ".PP"
        else:
            yield _escaped(line[2:] if is_indented else line)
    if is_verbatim:
        yield from (".fi", ".RE")


def _escaped(text: str) -> str:
    """Return a text without control characters of roff."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text[:1] in (".", "'") else text
