"""``raftlog append``: lines of stdin as records of a log of raftlog's own."""

from __future__ import annotations

import argparse
import base64
import binascii
import json
from collections.abc import Callable, Iterator
from io import BufferedIOBase
from typing import TYPE_CHECKING, Any, Final

from raftlog.limits import LOG_BATCH_BYTES_MAX, MIB
from raftlog.printable import compact_json

from .output import Console, Output
from .parser import Commands, offset
from .source import add_target, open_target, stdin

if TYPE_CHECKING:
    from raftlog.append import UserRecord

ABOUT: Final = """
Append the lines of stdin to a log created by raftlog.open, or to the log of a raftlog quorum. Each
line is the value of one record. Lines are appended as they are read, so those of a terminal or a
running program are not delayed. Each append prints one JSON object with its offsets, once it is
durable or, in a quorum, committed.

With --required-end-offset, --required-base-offset or --name, all lines are one record batch, which
is appended completely or not at all. If several writers require the same offset, exactly one
succeeds; the others fail, with the actual end of the log. --name makes the command repeatable: if
the log already contains that version, nothing is appended, and the offsets of the first append are
printed.

With --json, each line is an object as `raftlog cat` prints it: value, key and headers as text, or
valueBase64 and keyBase64, and timestamp in milliseconds. Other keys are ignored, and so are headers
that name an append.
"""

EXAMPLES: Final = """
echo "ids 100 to 199 are mine" | raftlog append decisions-0 --required-base-offset 42
raftlog append decisions-0 --create < decisions.txt
raftlog append --bootstrap-server node-1:9192,node-2:9192 < decisions.txt
raftlog cat old-0 | raftlog append new-0 --json
raftlog append decisions-0 --name nightly --version 20261126 < decisions.txt
"""

_READ_BYTES: Final = 1 * MIB
_BASE64: Final = "Base64"


def add_append(commands: Commands) -> None:
    """Add ``raftlog append``."""
    command = commands.add_parser("append", about=ABOUT, examples=EXAMPLES)
    command.set_defaults(run=run_append)
    add_target(command)
    command.add_argument(
        "--create", action="store_true", help="create the log in PATH if it does not exist"
    )
    command.add_argument(
        "--json", action="store_true", help="each line is a JSON object, as `raftlog cat` prints it"
    )
    for name, place in (("base", "first"), ("end", "last")):
        command.add_argument(
            f"--required-{name}-offset",
            metavar="OFFSET",
            type=offset,
            help=f"fail unless the {place} record gets this offset",
        )
    command.add_argument(
        "--name", metavar="ID", help="application id that the log stores with the append"
    )
    command.add_argument(
        "--version", metavar="N", type=offset, help="version of the append with --name"
    )


def run_append(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Append what is read from stdin; return the exit code."""
    name, version = arguments.name, arguments.version
    if (name is None) != (version is None):
        arguments.parser.error("--name and --version are used together")
    one_batch: dict[str, Any] = {
        "required_base_offset": arguments.required_base_offset,
        "required_end_offset": arguments.required_end_offset,
        "commit": None if name is None else (name, name, version),
    }
    is_one_batch = any(value is not None for value in one_batch.values())
    bounds = {} if arguments.timeout_ms is None else {"timeout_ms": arguments.timeout_ms}
    parse = _parse_json if arguments.json else _parse_text
    if arguments.create and arguments.bootstrap_server is not None:
        arguments.parser.error("--create requires PATH")
    with open_target(arguments, create=arguments.create) as log:
        stream = stdin().buffer
        assert isinstance(stream, BufferedIOBase)
        pieces = _whole(stream) if is_one_batch else _pieces(stream)
        for records in _records(pieces, parse):
            done = log.append(records, **one_batch, **bounds)
            found: dict[str, object] = {
                "base_offset": done.base_offset,
                "end_offset": done.end_offset,
                "leader_epoch": done.epoch,
                "records": done.end_offset - done.base_offset,
            }
            if done.was_duplicate:
                found["was_duplicate"] = True
            output.line(compact_json(found))
            output.flush()
    return 0


# --- lines ----------------------------------------------------------------------------------------


def _pieces(stream: BufferedIOBase) -> Iterator[list[bytes]]:
    """Yield the lines of a stream, grouped by read.

    Raises ``OptionError`` for a line that does not fit into a batch.
    """
    rest = bytearray()
    while data := stream.read1(_READ_BYTES):
        rest += data
        end = rest.rfind(b"\n", len(rest) - len(data))
        if end < 0:
            _check_size(len(rest), "a line")
            continue
        lines = bytes(rest[:end]).split(b"\n")
        del rest[: end + 1]
        yield lines
    if rest:
        yield [bytes(rest)]


def _whole(stream: BufferedIOBase) -> Iterator[list[bytes]]:
    """Yield all lines of a stream together. Raises ``OptionError`` if no batch can hold them."""
    found: list[bytes] = []
    byte_count = 0
    for lines in _pieces(stream):
        found += lines
        byte_count += sum(map(len, lines))
        _check_size(byte_count, "one batch")
    yield found


def _check_size(byte_count: int, what: str) -> None:
    from raftlog.errors import OptionError

    if byte_count > LOG_BATCH_BYTES_MAX:
        reason = f"{what} has more than {LOG_BATCH_BYTES_MAX} bytes, the most that a batch may have"
        raise OptionError(option="stdin", reason=reason)


def _records(
    pieces: Iterator[list[bytes]], parse: Callable[[bytes], UserRecord]
) -> Iterator[list[UserRecord]]:
    """Yield the records of each piece.

    Raises ``OptionError`` for an invalid line, with the first line that is not appended.
    """
    from raftlog.errors import OptionError

    number = 0
    for lines in pieces:
        records = []
        for at, line in enumerate(lines, start=number + 1):
            try:
                records.append(parse(line))
            except ValueError as error:
                reason = f"line {at}: {error}; lines from {number + 1} on were not appended"
                raise OptionError(option="stdin", reason=reason) from None
        yield records
        number += len(lines)


def _parse_text(line: bytes) -> UserRecord:
    return line


def _parse_json(line: bytes) -> UserRecord:
    """Return the record in a line that ``raftlog cat`` printed. Raises ``ValueError``."""
    from raftlog.records import Header, NewRecord

    try:
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"it is not JSON: {error.msg.lower()}, at column {error.colno}"
            ) from None
        if not isinstance(row, dict):
            raise ValueError("expected a JSON object")
        if "data" in row:
            raise ValueError("it is a record of metadata or a control record, not of a bytes log")
        timestamp_ms = row.get("timestamp")
        if timestamp_ms is not None and type(timestamp_ms) is not int:
            raise ValueError("timestamp: expected milliseconds")
        return NewRecord(
            value=_field(row, "value"),
            key=_field(row, "key"),
            headers=tuple(Header(*pair) for pair in _headers(row.get("headers", []))),
            timestamp_ms=timestamp_ms,
        )
    except RecursionError as error:
        raise ValueError(str(error)) from None


def _field(row: dict[str, Any], name: str) -> bytes | None:
    """Return a field that is text, base64 or null. Raises ``ValueError``."""
    if name in row and name + _BASE64 in row:
        raise ValueError(f"{name} and {name}{_BASE64} are mutually exclusive")
    if name + _BASE64 in row:
        text = row[name + _BASE64]
        try:
            return base64.b64decode(text, validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise ValueError(f"{name}{_BASE64}: expected base64") from None
    value = row.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"{name}: expected text or null")
    return value.encode("utf-8")


def _headers(rows: object) -> list[tuple[str, bytes | None]]:
    """Return the headers, without raftlog's own. Raises ``ValueError``."""
    from raftlog.append import HEADER_PREFIX

    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("headers: expected an array of objects")
    found = []
    for row in rows:
        if not isinstance(row.get("key"), str):
            raise ValueError("headers: key: expected text")
        found.append((row["key"], _field(row, "value")))
    return [pair for pair in found if not pair[0].startswith(HEADER_PREFIX)]
