"""Argument parser of ``raftlog`` and of each of its commands, and options that commands share.

Options cannot be abbreviated: ``--rev`` must not reveal a secret by accident. Positional arguments
and options may be in any order. An unknown command or option is answered with the most similar one.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from raftlog.limits import INT64_MAX
from raftlog.printable import did_you_mean

from .output import COLORS, Console, Output

if TYPE_CHECKING:
    from raftlog.client.offset_spec import OffsetSpec
    from raftlog_state.records import Redactor

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
"""Registry of the commands of one level; ``add_parser`` adds one and returns its parser."""

REDACT_KEY_VARIABLE: Final = "RAFTLOG_REDACT_KEY"
_SYNONYMS: Final = {
    "-f": ("--follow",),
    "-o": ("--format", "--json"),
    "--at": ("--to",),
    "--bootstrap-controller": ("--bootstrap-server",),
    "--broker-list": ("--bootstrap-server",),
    "--command-config": ("--config",),
    "--end": ("--to",),
    "--end-offset": ("--to",),
    "--json": ("--format",),
    "--offset": ("--from", "--at"),
    "--output": ("--format", "--json"),
    "--since": ("--from",),
    "--start": ("--from",),
    "--start-offset": ("--from",),
    "--tail": ("--follow",),
    "--until": ("--to",),
}
"""Options of similar tools, which no spelling is near to; the first that a command has is meant."""
_COMMANDS_ELSEWHERE: Final = {
    **dict.fromkeys(("compare", "drift"), "diff"),
    **dict.fromkeys(("consume", "dump", "dump-log", "print", "read"), "cat"),
    **dict.fromkeys(("describe", "get", "list", "ls", "show"), "state"),
    **dict.fromkeys(("events", "history"), "log"),
    **dict.fromkeys(("fsck", "validate", "verify"), "check"),
    **dict.fromkeys(("produce", "publish", "put", "write"), "append"),
    "tail": "cat --follow",
    "watch": "log --follow",
}
"""Commands of similar tools, which no spelling is near to."""
_UNNECESSARY: Final = {
    **dict.fromkeys(
        ("-n", "--count", "--head", "--limit", "--max-messages"),
        ("PATH", "pipe the output to head, as `| head -n 10`"),
    ),
    **dict.fromkeys(
        ("--dir", "--directory", "--file", "--files", "--log-dir", "--path"),
        ("PATH", "the path has no option before it"),
    ),
    **dict.fromkeys(
        ("--cluster-metadata-decoder", "--offsets-decoder", "--print-data-log"),
        ("PATH", "records are decoded and printed without an option"),
    ),
    **dict.fromkeys(
        ("--entity", "--name", "--topic"), ("WHAT", "a name is an argument, such as topic/orders")
    ),
}
"""Options of similar tools that a command with this operand does not need; what to do instead."""
_SEVERAL_PATHS: Final = (
    "several paths are one argument: separate them by commas, or quote a pattern, as 'node-*', so "
    "that the shell does not expand it"
)
_KEY_BYTES_MAX: Final = 4096


class WrongCallError(Exception):
    """The command line is invalid. ``main`` prints it as argparse would, and exits with code 2."""

    def __init__(self, program: str, usage: str, reason: str) -> None:
        super().__init__(reason)
        self.program = program
        self.usage = usage
        self.reason = reason


class Parser(argparse.ArgumentParser):
    """Parser of the arguments of one command, or of a level of commands (``add_commands``)."""

    def __init__(
        self,
        *,
        prog: str,
        about: str,
        examples: str | None = None,
        usage: str | None = None,
        **options: Any,
    ) -> None:
        """``usage``: replaces the usage that argparse derives from the arguments.

        ``options``: those that ``add_parser`` of some versions of argparse adds.
        """
        super().__init__(
            prog=prog,
            usage=usage,
            description=about.strip(),
            epilog=examples and "\n  ".join(["examples:", *examples.strip().split("\n")]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            add_help=False,
            allow_abbrev=False,
            **options,
        )
        self.set_defaults(parser=self)
        self._commands: Commands | None = None
        self._given_usage = usage
        self._synopsis: str | None = None

    def add_commands(self) -> Commands:
        """Expect a command as first argument; return the registry to which commands are added."""
        self._commands = self.add_subparsers(prog=self.prog, help=argparse.SUPPRESS)
        return self._commands

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments. Raises ``WrongCallError``.

        ``run(arguments, output, console)`` of the result runs the command and returns its exit
        code; with ``--help`` anywhere it prints the help. ``parser`` is the command's parser.
        """
        if self._commands is not None:
            return self._parse_command(self._commands, argv)
        if not {"-h", "--help"}.isdisjoint(argv):
            return self._help()
        argv = _join_ages(argv)
        self._synopsis = self.synopsis()  # argparse changes the operands while it parses
        try:
            found, unknown = self.parse_known_intermixed_args(argv)
        except WrongCallError as error:
            if self._has_several_paths(argv):  # the second one was taken for another operand
                self.error(f"{error.reason.partition(';')[0]}; {_SEVERAL_PATHS}")
            raise
        if unknown:
            name = unknown[0].partition("=")[0]
            if not name.startswith("-"):
                several = f"; {_SEVERAL_PATHS}" if self._has_several_paths(argv) else ""
                hint = several or self._hint_of_name(name, argv)
                self.error(f"unexpected argument {name!r}{hint}")
            self.error(f"unknown option {name!r}; {self._hint_of_option(name)}")
        return found

    def _hint_of_option(self, name: str) -> str:
        """Return what to do instead of giving an option that the command does not have."""
        options = [text for action in self._actions for text in action.option_strings]
        for known in _SYNONYMS.get(name, ()):
            if known in options:
                return f"did you mean {known}?"
        operand, instead = _UNNECESSARY.get(name, ("", ""))
        if operand in {action.metavar for action in self._get_positional_actions()}:
            return instead
        return did_you_mean(name, options) or "`--help` lists the options"

    def _hint_of_name(self, unexpected: str, argv: Sequence[str]) -> str:
        """Return the form of a name that was given in two words, or without its option."""
        known = self._option_string_actions
        for entity, name in pairwise(argv):
            if entity in ("topic", "broker"):
                option = f"--{entity} {name}" if f"--{entity}" in known else f"{entity}/{name}"
                return f"; did you mean {option}?"
        return f"; did you mean --topic {unexpected}?" if "--topic" in known else ""

    def _has_several_paths(self, argv: Sequence[str]) -> bool:
        """Return whether several operands exist as files, as if a shell had expanded a pattern."""
        words = iter(argv)
        paths = 0
        for word in words:
            action = self._option_string_actions.get(word)
            if action is not None and action.nargs != 0:
                next(words, None)  # its value
            elif not word.startswith("-"):
                paths += os.path.exists(word)
        return paths > 1

    def _parse_command(self, commands: Commands, argv: Sequence[str]) -> argparse.Namespace:
        # argparse would pass the rest to the command's parser, but accept no options between its
        # positional arguments, and report an unknown option with the usage of the whole program.
        if not argv:
            self.error(f"a command is missing; `{self.prog} --help` lists the commands")
        name, *rest = argv
        if name.startswith("-") and name not in ("-h", "--help"):
            self.error(f"a command is missing before {name!r}; `{self.prog} --help` lists them")
        if name in ("-h", "--help") or (name == "help" and not rest):
            return self._help()
        if name == "help":  # `raftlog help cat`
            return self._parse_command(commands, [*rest, "--help"])
        command = commands.choices.get(name)
        if command is None:
            self.error(f"unknown command {name!r}; {_hint_of_command(name, commands)}")
        return command.parse(rest)

    def _help(self) -> argparse.Namespace:
        return argparse.Namespace(run=_print_help, parser=self)

    def error(self, message: str) -> NoReturn:
        """Raise ``WrongCallError`` instead of exiting the process."""
        if self._commands is not None or self._given_usage is not None:
            raise WrongCallError(self.prog, self.format_usage(), message)
        # The options are not part of the usage: their 15 lines would hide the error.
        raise WrongCallError(self.prog, f"usage: {self._synopsis or self.synopsis()}\n", message)

    # --- texts, for manual pages and completion ---------------------------------------------------

    def synopsis(self) -> str:
        """Return the call of the command, without its single options."""
        if self._given_usage is not None:
            return self._given_usage
        return " ".join([self.prog, *map(_operand, self._get_positional_actions()), "[OPTION ...]"])

    def tree(self) -> Iterator[Parser]:
        """Yield the parser, and those of its commands."""
        yield self
        if self._commands is not None:
            for command in self._commands.choices.values():
                yield from command.tree()

    def add_short_helps(self) -> None:
        """Add the first sentence of each command's text, which completion shows beside its name."""
        commands = self._commands
        if commands is not None:
            commands.help = "command"
            for name, command in commands.choices.items():
                short = first_sentence(command.description or "")
                commands._choices_actions.append(commands._ChoicesPseudoAction(name, (), short))

    def command(self, name: str) -> Parser:
        """Return the parser of a command. Raises ``WrongCallError``."""
        choices = {} if self._commands is None else self._commands.choices
        found = choices.get(name)
        if found is None:
            hint = did_you_mean(name, choices)
            self.error(f"unknown command {name!r}" + (f"; {hint}" if hint else ""))
        return found

    def arguments(self) -> Iterator[tuple[str, argparse.Action]]:
        """Yield the arguments that have a help text, each with the title of its group."""
        for group in self._action_groups:
            for action in group._group_actions:
                if action.help not in (None, argparse.SUPPRESS):
                    yield group.title or "", action

    def metavar_of(self, action: argparse.Action) -> str:
        """Return the ``metavar`` of an argument; empty for an option without a value."""
        if action.nargs == 0:
            return ""
        if not action.option_strings:
            return str(action.metavar or action.dest)
        formatter = self._get_formatter()
        return formatter._format_args(action, formatter._get_default_metavar_for_optional(action))

    def help_of(self, action: argparse.Action) -> str:
        """Return the help text of an argument."""
        return self._get_formatter()._expand_help(action)


def first_sentence(text: str) -> str:
    """Return the first sentence of a text as one line, without its full stop."""
    found = re.match(r"(.+?)[.:;](?=\s|$)", text.strip(), re.DOTALL)
    return " ".join((found.group(1) if found else text).split())


def _operand(action: argparse.Action) -> str:
    """Return a positional argument as in the usage of a command."""
    name = action.metavar or action.dest
    return {"?": f"[{name}]", "*": f"[{name} ...]"}.get(str(action.nargs), str(name))


def _hint_of_command(name: str, commands: Commands) -> str:
    """Return what to do instead of giving a command that there is not."""
    meant = _COMMANDS_ELSEWHERE.get(name, "")
    if meant.partition(" ")[0] in commands.choices:
        return f"did you mean {meant}?"
    hint = did_you_mean(name, commands.choices)
    return hint or "the commands are " + ", ".join(commands.choices)


def _print_help(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    output.text(arguments.parser.format_help())
    return 0


def _join_ages(argv: Sequence[str]) -> list[str]:
    """Join ages to the options before them: argparse takes ``-15m`` for an option."""
    joined: list[str] = []
    for word in argv:
        is_value = joined and joined[-1].startswith("--") and "=" not in joined[-1]
        if is_value and word[:1] == "-" and word[1:2].isdigit():
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


OFFSET_FORMS: Final = """
OFFSET is one of the following:

  1200                       an offset
  2026-11-21T03:12:00Z       a time, in UTC if it has no zone: 2026-11-21 03:12
  timestamp:1795248204043    a time in milliseconds since 1970
  -15m, -2h, -1d             a time before now
  epoch:5                    the start offset of a leader epoch
  snapshot                   the end offset of the newest snapshot
  start, end                 the log start offset, the end of the log

A time selects the first record whose timestamp is not earlier. Because clocks differ, records after
it may have earlier timestamps, but no record before it has a later one. The offset that was found
is printed to stderr, unless OFFSET is a number.
"""
"""Paragraph of the help text of a command with offsets."""


def offset_spec(text: str) -> OffsetSpec:
    """Parse an offset, or what specifies one."""
    from raftlog.client.offset_spec import FORMS, parse_offset_spec
    from raftlog.errors import OptionError

    try:
        return parse_offset_spec("OFFSET", text)
    except OptionError as error:
        hint = error.reason.removeprefix(f"must be {FORMS}").removeprefix("; ")
        hint = f": {hint}" if hint else ""
        reason = f"{text!r} is not an offset{hint}; allowed are {FORMS}"
        raise argparse.ArgumentTypeError(reason) from None


def offset(text: str) -> int:
    """Parse an offset, an integer in [0, 2**63 - 1]."""
    # Not int() alone: it accepts signs, spaces, underscores and digits of other scripts.
    if not (text.isascii() and text.isdigit()) or int(text[:20]) > INT64_MAX or len(text) > 20:
        raise argparse.ArgumentTypeError(f"{text!r} is not an offset (0, 1, 2, ...)")
    return int(text)


def add_color(command: Parser) -> None:
    """Add the option of the commands that print tables and verdicts, see ``Output.has_colors``."""
    command.add_argument(
        "--color",
        choices=COLORS,
        default=COLORS[0],
        help="when to color tables and verdicts. auto, the default: on a terminal, unless NO_COLOR "
        "is set or TERM is dumb. FORCE_COLOR is equivalent to always",
    )


def add_redaction(command: Parser, *, verb: str = "print", full: bool = False) -> None:
    """Add the options of every command that prints or stores values.

    ``full``: also those of records of clients.
    """
    command.add_argument("--reveal", action="store_true", help=f"{verb} secrets in clear text")
    if full:
        command.add_argument(
            "--redact",
            choices=("secrets", "full"),
            default="secrets",
            help="what to hide. secrets (default): the secrets in metadata records; other records "
            "contain none. full: also the data that clients send in the records of groups: hosts, "
            "metadata of offset commits, and user data of subscriptions and assignments",
        )
    command.add_argument(
        "--redact-key-file",
        metavar="FILE",
        help=f"{verb} a keyed hash in place of each secret, so that changes are visible. FILE "
        "contains the key; without FILE it is read from the environment variable "
        f"{REDACT_KEY_VARIABLE}, if set",
    )


def redactor(arguments: argparse.Namespace) -> Redactor:
    """Return the redactor that ``add_redaction``'s options configure. Raises ``OptionError``."""
    from raftlog_state.records import Redactor

    is_full = getattr(arguments, "redact", "secrets") == "full"
    if is_full and arguments.reveal:
        arguments.parser.error("--redact full and --reveal are mutually exclusive")
    key = _redact_key(arguments.redact_key_file)
    return Redactor(key=key, reveal=arguments.reveal, full=is_full)


def _redact_key(file_name: str | None) -> bytes | None:
    """Return the key for keyed hashes, None if no key is configured."""
    from raftlog.errors import OptionError

    if file_name is None:
        text = os.environ.get(REDACT_KEY_VARIABLE)
        return os.fsencode(text) if text else None
    try:
        with open(file_name, "rb") as file:
            key = file.read(_KEY_BYTES_MAX + 2).removesuffix(b"\n").removesuffix(b"\r")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a path"
        raise OptionError(option="--redact-key-file", reason=reason.lower()) from None
    if len(key) > _KEY_BYTES_MAX:
        reason = f"the key file is larger than {_KEY_BYTES_MAX} bytes"
        raise OptionError(option="--redact-key-file", reason=reason)
    return key
