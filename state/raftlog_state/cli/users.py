"""``raftlog users``: the users of a node that authenticate by SASL/SCRAM."""

from __future__ import annotations

import argparse
import getpass
import os
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from .output import Console, Output
from .parser import Commands, Parser
from .source import stdin

if TYPE_CHECKING:
    from raftlog.node.sasl import Users

USAGE: Final = "raftlog users COMMAND FILE [OPTION ...]"
ABOUT: Final = """
Manage the users that authenticate with SASL: a node with [listeners.clients.sasl] in its node.toml
authenticates clients with SCRAM-SHA-256 and SCRAM-SHA-512, using the credentials in FILE. Use the
same file on all nodes. SIGHUP makes a node reread it, and closes the connections of removed users
and of old passwords. The file contains no passwords, but hashes from which weak passwords can be
guessed, so keep it as secret as a key.

commands:
  set     create a user, or change its password; creates the file
  remove  remove a user
  list    print the names of the users

examples:
  raftlog users set users.json jobs-etl
  raftlog users set users.json jobs-etl --password-file password.txt
"""
SET_ABOUT: Final = """
Create a user, or change its password. The password is read from the terminal or from the first line
of --password-file (`-`: standard input), never from an argument, which other users could see.
"""
REMOVE_ABOUT: Final = "Remove a user. Its connections are closed when the nodes reread the file."
LIST_ABOUT: Final = "Print the names of the users, one per line."


def add_users(commands: Commands) -> None:
    """Add ``raftlog users`` with its commands."""
    users = commands.add_parser("users", usage=USAGE, about=ABOUT).add_commands()
    command = _add(users, "set", SET_ABOUT)
    command.set_defaults(run=run_set)
    command.add_argument("name", metavar="NAME", help="name of the user, as in [access]")
    command.add_argument("--password-file", metavar="FILE", help="file with the password, or `-`")
    command = _add(users, "remove", REMOVE_ABOUT)
    command.set_defaults(run=run_remove)
    command.add_argument("name", metavar="NAME", help="name of the user")
    _add(users, "list", LIST_ABOUT).set_defaults(run=run_list)


def _add(users: Commands, name: str, about: str) -> Parser:
    command = users.add_parser(name, about=about)
    command.add_argument("file", metavar="FILE", help="file of users, as in node.toml")
    return command


def run_set(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Set the password of a user; return the exit code."""
    from raftlog.node.sasl import read_users, with_password

    name, path = arguments.name, arguments.file
    if os.path.lexists(path):
        read_users(path)  # an error precedes the question for a password
    try:
        password = _password(arguments.password_file)
        _change(arguments, lambda users: with_password(users, name, password))
    except ValueError as error:
        arguments.parser.error(str(error))
    return 0


def run_remove(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Remove a user; return the exit code."""
    from raftlog.node.sasl import Users, read_users

    name = arguments.name

    def without(users: Users) -> Users:
        if name not in users.credentials:
            raise ValueError(f"there is no user {name!r}: see `raftlog users list`")
        left = {other: one for other, one in users.credentials.items() if other != name}
        return Users(left, users.challenge_key)

    read_users(arguments.file)  # it must exist
    try:
        _change(arguments, without)
    except ValueError as error:
        arguments.parser.error(str(error))
    return 0


def run_list(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print the users; return the exit code."""
    from raftlog.node.sasl import read_users

    for name in sorted(read_users(arguments.file).credentials):
        output.line(name)
    return 0


def _password(path: str | None) -> str:
    """Return the password. Raises ``ValueError``."""
    if path is None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", getpass.GetPassWarning)
                password = getpass.getpass("password: ")
                again = getpass.getpass("again: ")
        except (getpass.GetPassWarning, EOFError):
            raise ValueError("there is no terminal for a password: use --password-file") from None
        if again != password:
            raise ValueError("the passwords differ")
        return password
    try:
        if path == "-":
            return stdin().readline().rstrip("\r\n")
        with open(path, encoding="utf-8") as file:
            return file.readline().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise ValueError(f"--password-file {path} cannot be read: {reason.lower()}") from None


def _change(arguments: argparse.Namespace, change: Callable[[Users], Users]) -> None:
    from raftlog.node.sasl import change_users

    try:
        change_users(arguments.file, change)
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        arguments.parser.error(f"{arguments.file} cannot be written: {reason}")
