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
Manage the file of keys with which clients encrypt values, see docs/encryption.md. The file has mode
0600 and is replaced atomically; running clients reread it when it changes. No command prints a key.
Back up the file itself: values whose key is lost can never be read again.

commands:
  create  create a key; in a new file, it becomes the current key
  rotate  create a key and use it to encrypt new values
  list    print the ids of the keys, and which ones are current or deleted
  delete  delete a key permanently: its values can never be read again

examples:
  raftlog keys create keys.properties 2026-11
  raftlog keys rotate keys.properties 2026-12
  raftlog keys create keys.properties subject/alice
  raftlog keys delete keys.properties subject/alice
"""
CREATE_ABOUT: Final = """
Create a key, for instance for a data subject. Deleting this key later makes the subject's values
unreadable. In a new file it becomes the current key, which encrypts the values of clients that do
not select a key.
"""
ROTATE_ABOUT: Final = """
Create a key and make it the current one. Running clients may use the previous key for up to five
minutes. It stays in the file, because the values encrypted with it still need it.
"""
LIST_ABOUT: Final = """
Print the ids of the keys, one per line, with the state of each: current, usable (but not current),
or deleted.
"""
DELETE_ABOUT: Final = """
Delete a key permanently. Values that were encrypted with it can never be read again, in the log and
in all copies of it; the records, their offsets and the id of the key remain. Copies of the file
still contain the key: delete it there, too. Running clients may use a key in their memory for up to
five minutes. Type the id again to confirm, or pass it with --confirm. A deleted key stays deleted.
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
                "--confirm", metavar="ID", help="the id again, instead of typing it on a terminal"
            )
    _add(keys, "list", LIST_ABOUT).set_defaults(run=run_list)


def _add(keys: Commands, name: str, about: str) -> Parser:
    command = keys.add_parser(name, about=about)
    command.add_argument("file", metavar="FILE", help="file with the keys")
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
