"""``raftlog keys``: the file of the keys that encrypt the values of a log."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from .output import Console, Output
from .parser import Commands, Parser
from .source import stdin

if TYPE_CHECKING:
    from raftlog.client.key_file import KeyFile

USAGE: Final = "raftlog keys COMMAND FILE [OPTION ...]"
ABOUT: Final = """
Clients encrypt values with the keys of a file, see docs/encryption.md. The file has mode 0600 and
is replaced atomically; running clients read a changed file again. No command prints a key: back up
the file itself, since values whose key is lost can never be read again.

commands:
  create  create a key; creates the file, with this key as the current one
  rotate  create a key that encrypts new values from now on
  list    print the ids of the keys, and which one is the current or a deleted one
  delete  delete a key for good: its values can never be read again

examples:
  raftlog keys create keys.properties 2026-11
  raftlog keys rotate keys.properties 2026-12
  raftlog keys create keys.properties subject/alice
  raftlog keys delete keys.properties subject/alice
"""
CREATE_ABOUT: Final = """
Create a key, such as that of a subject whose values can be deleted with it. In a new file it is the
current key, which encrypts the values of clients that do not choose a key.
"""
ROTATE_ABOUT: Final = """
Create a key and make it the current one. Running clients encrypt with the previous one for five
minutes at most; it stays in the file, for the values that it has encrypted.
"""
LIST_ABOUT: Final = """
Print the ids of the keys, one a line, and the state of each: current, usable (not the
current one) or deleted.
"""
DELETE_ABOUT: Final = """
Delete a key for good. Values that it has encrypted can never be read again, in the log and in all
of its copies; records, offsets and the id of the key stay. Copies of the file still have the key:
delete it there, too. Running clients use the keys that they have in memory for five minutes at
most. Type the id again as a confirmation, or give it with --confirm. A key that was deleted before
stays deleted.
"""


def add_keys(commands: Commands) -> None:
    """Add ``raftlog keys`` with its commands."""
    keys = commands.add_parser("keys", usage=USAGE, about=ABOUT).add_commands()
    for name, about, run in (
        ("create", CREATE_ABOUT, run_create),
        ("rotate", ROTATE_ABOUT, run_rotate),
        ("delete", DELETE_ABOUT, run_delete),
    ):
        command = _add(keys, name, about)
        command.set_defaults(run=run)
        command.add_argument("key_id", metavar="ID", help="id of the key, such as 2026-11")
        if run is run_delete:
            command.add_argument(
                "--confirm", metavar="ID", help="the id again, instead of a question on a terminal"
            )
    _add(keys, "list", LIST_ABOUT).set_defaults(run=run_list)


def _add(keys: Commands, name: str, about: str) -> Parser:
    command = keys.add_parser(name, about=about)
    command.add_argument("file", metavar="FILE", help="file of the keys")
    return command


def run_create(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Create a key; return the exit code."""
    _keys(arguments).create(arguments.key_id, exist_ok=False)
    return 0


def run_rotate(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Create a key that is the current one; return the exit code."""
    keys = _keys(arguments)
    keys.key_ids()  # the file must exist
    keys.create(arguments.key_id, is_current=True, exist_ok=False)
    return 0


def run_list(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print the ids of the keys; return the exit code."""
    keys = _keys(arguments)
    current = keys.current_key_id()
    for key_id, is_deleted in keys.key_ids().items():
        state = "deleted" if is_deleted else "current" if key_id == current else "usable"
        output.line(f"{key_id}  {state}")
    return 0


def run_delete(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Delete a key that the user has confirmed; return the exit code."""
    keys, key_id = _keys(arguments), arguments.key_id
    keys.check_deletable(key_id)  # an error precedes the question
    if keys.key_ids()[key_id]:
        output.line(f"key {key_id} was deleted before; nothing was changed")
        return 0
    confirmed = arguments.confirm
    if confirmed is None:
        if not stdin().isatty():
            arguments.parser.error(
                "there is no terminal to confirm the deletion: repeat the id with --confirm"
            )
        console.write(
            f"values encrypted with {key_id} can never be read again; type the id to delete it: "
        )
        confirmed = stdin().readline().strip()
    if confirmed != key_id:
        arguments.parser.error("the id and its confirmation differ: no key was deleted")
    keys.delete(key_id)
    return 0


def _keys(arguments: argparse.Namespace) -> KeyFile:
    from raftlog import KeyFile

    return KeyFile(arguments.file)
