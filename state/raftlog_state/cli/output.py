"""Output of the command line: buffered lines to stdout, messages and a progress bar to stderr.

stdout is written in blocks of complete lines; only a line that is too long to buffer is written in
parts. Characters that are not printable, or not Unicode, are written as backslash escapes, which
JSON parses: a path, host or record must not send control sequences to the terminal. Errors of
stderr are ignored.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import BinaryIO, Final, TextIO, TypeAlias

from raftlog.printable import printable

_BLOCK_CHARACTERS: Final = 256 * 1024
_BAR_WIDTH: Final = 30
_BAR_FIRST_MS: Final = 500
_BAR_EVERY_MS: Final = 100

Line: TypeAlias = str | Iterator[str]
"""A line without its newline; if it is too long to buffer, an iterator over its parts."""

Rows: TypeAlias = Callable[[], Iterable[Sequence[str]]]
"""Cells of the rows of a table. Called twice, for widths and lines, so no row is kept in memory."""
_GAP: Final = "  "


def table_lines(head: Sequence[str], rows: Rows) -> Iterator[str]:
    """Yield the lines of a table with aligned columns."""
    return lines_of_widths(head, rows, column_widths(head, rows))


def column_widths(head: Sequence[str], rows: Rows) -> list[int]:
    """Return the width of each column."""
    widths = [len(name) for name in head]
    for row in rows():
        widths = [max(width, len(cell)) for width, cell in zip(widths, row, strict=True)]
    return widths


def lines_of_widths(head: Sequence[str], rows: Rows, widths: Sequence[int]) -> Iterator[str]:
    """Yield the lines of a table."""
    for row in chain((head,), rows()):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield _GAP.join(cells).rstrip()


def table_width(widths: Collection[int]) -> int:
    """Return the width of a table with columns of these widths."""
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def columns_that_fit(
    widths: Mapping[str, int], first_to_leave: Iterable[str], whole: int
) -> dict[str, int]:
    """Return the widths of the columns of a table that is at most ``whole`` wide, by name, without
    those that are left out: of ``first_to_leave`` as many as necessary, in this order."""
    found = dict(widths)
    for name in first_to_leave:
        if table_width(found.values()) <= whole:
            break
        del found[name]
    return found


class OutputFailedError(Exception):
    """Writing to stdout failed, on a full disk for instance. Handled by ``main``."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Output:
    """Buffered writer of lines to stdout."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lines: list[str] = []
        self._character_count = 0
        self._has_written = False

    @property
    def is_empty(self) -> bool:
        """Whether no line was written."""
        return not (self._has_written or self._lines)

    def line(self, text: str) -> None:
        """Write one line; ``text`` has no newline."""
        self._lines.append(text)
        self._character_count += len(text)
        if self._character_count >= _BLOCK_CHARACTERS:
            self._drain()

    def lines(self, texts: Iterable[Line]) -> None:
        """Write many lines."""
        held = self._lines
        character_count = self._character_count
        for text in texts:
            if not isinstance(text, str):
                self._drain()
                character_count = 0
                self._write_parts(text)
                continue
            held.append(text)
            character_count += len(text)
            if character_count >= _BLOCK_CHARACTERS:
                self._drain()
                character_count = 0
        self._character_count = character_count

    def block(self, lines: memoryview) -> None:
        """Write whole lines of printable characters in UTF-8, their newlines included."""
        if len(lines):
            self._drain()
            self._write(lines)

    def text(self, text: str) -> None:
        """Write a text of several lines."""
        for line in text.splitlines():
            self.line(line)

    def flush(self) -> None:
        """Write everything buffered. Raises ``BrokenPipeError``, ``OutputFailedError``."""
        self._drain()
        try:
            self._stream.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputFailedError((error.strerror or str(error)).lower()) from None

    def check_reader(self) -> None:
        """Raise ``BrokenPipeError`` if the reader of stdout has closed the pipe."""
        number = self.fileno()
        if number is None:
            return
        poll = select.poll()
        poll.register(number, 0)
        if any(event & select.POLLERR for _, event in poll.poll(0)):
            raise BrokenPipeError

    def fileno(self) -> int | None:
        """Return the file descriptor, None if the stream is in memory."""
        try:
            return self._stream.fileno()
        except (io.UnsupportedOperation, ValueError):
            return None

    def is_terminal(self) -> bool:
        """Return whether stdout is a terminal."""
        return self._stream.isatty()

    def width(self) -> int | None:
        """Return the width of the terminal (``COLUMNS``, where it is set); None without one."""
        number = self.fileno()
        if not self.is_terminal():
            return None
        text = os.environ.get("COLUMNS", "")
        if text.isascii() and text.isdigit() and int(text):
            return int(text)
        if number is None:
            return None
        try:
            return os.get_terminal_size(number).columns or None
        except OSError:
            return None

    def _drain(self) -> None:
        if not self._lines:
            return
        lines = self._lines
        if not "".join(lines).isprintable():
            lines = [printable(line) for line in lines]
        block = "\n".join([*lines, ""]).encode("utf-8")
        self._lines.clear()
        self._character_count = 0
        self._write(block)

    def _write_parts(self, parts: Iterator[str]) -> None:
        for part in parts:
            self._write(printable(part).encode())
        self._write(b"\n")

    def _write(self, block: bytes | memoryview) -> None:
        self._has_written = True
        try:
            self._stream.write(block)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputFailedError((error.strerror or str(error)).lower()) from None


class Console:
    """stderr: messages, and a progress bar if it is a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar = stream.isatty()
        self._bar_shown = False
        self._is_quiet = False
        self._next_bar_ms = _now_ms() + _BAR_FIRST_MS

    def be_quiet(self) -> None:
        """Write no messages but warnings and errors, and no progress bar."""
        self._is_quiet = True
        self._bar = False

    def log(self, sentence: str) -> None:
        """Write a message as one line, unless it is quiet."""
        if not self._is_quiet:
            self.warn(sentence)

    def warn(self, sentence: str) -> None:
        """Write a warning or an error as one line."""
        one_line = " ".join(sentence.splitlines())
        self.write(f"raftlog: {one_line}\n")

    def write(self, text: str) -> None:
        """Write lines; clear the progress bar first."""
        self.clear()
        text = "\n".join(printable(line) for line in text.split("\n"))
        try:
            self._stream.write(text)
            self._stream.flush()
        except UnicodeEncodeError:
            self.write(text.encode("ascii", "backslashreplace").decode("ascii"))
        except OSError:
            pass

    def disable_progress_bar(self) -> None:
        """Show no progress bar, because stdout is the same terminal."""
        self._bar = False

    def progress(self, done: int, whole: int) -> None:
        """Draw the bar at ``done`` of ``whole``: after 500 ms, and at most every 100 ms."""
        if not self._bar or whole <= 0 or _now_ms() < self._next_bar_ms:
            return
        self._next_bar_ms = _now_ms() + _BAR_EVERY_MS
        share = min(max(done / whole, 0.0), 1.0)
        full = int(share * _BAR_WIDTH)
        bar = "#" * full + "." * (_BAR_WIDTH - full)
        with contextlib.suppress(OSError):
            self._stream.write(f"\r[{bar}] {share:4.0%}")
            self._stream.flush()
        self._bar_shown = True

    def clear(self) -> None:
        """Erase the progress bar."""
        if self._bar_shown:
            self._bar_shown = False
            with contextlib.suppress(OSError):
                self._stream.write("\r\x1b[K")
                self._stream.flush()


def _now_ms() -> float:
    return time.monotonic() * 1000
