"""Output of the command line: buffered lines to stdout, messages and a progress bar to stderr.

stdout is written in blocks of complete lines; only a line that is too long to buffer is written in
parts. Characters that are not printable, or not Unicode, are written as backslash escapes, which
JSON parses: a path, host or record must not send control sequences to the terminal. Errors of
stderr are ignored.

Colors and the bar are those of rich, which is imported when the first one is printed. No text is
parsed as its markup.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import time
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import BinaryIO, Final, TextIO, TypeAlias

from raftlog.printable import printable

_BLOCK_CHARACTERS: Final = 256 * 1024
_BAR_WIDTH: Final = 30
_BAR_DONE: Final = "green"
_BAR_REST: Final = "bright_black"
_BAR_FIRST_MS: Final = 500
_BAR_EVERY_MS: Final = 100
_TERMINALS_WITHOUT_CONTROL: Final = ("dumb", "unknown")
"""Values of ``TERM``, as of rich."""
COLORS: Final = ("auto", "always", "never")

Line: TypeAlias = str | Iterator[str]
"""A line without its newline; if it is too long to buffer, an iterator over its parts."""

Part: TypeAlias = tuple[str, str]
"""Text and its style, in the words of rich: ``bold red``; empty for none."""


class OutputFailedError(Exception):
    """Writing to stdout failed, on a full disk for instance. Handled by ``main``."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Output:
    """Buffered writer of lines to stdout."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._encoded: list[bytes] = []
        self._lines: list[str] = []
        """Lines after those of ``_encoded``."""
        self._character_count = 0
        self._has_written = False
        self.color = "auto"
        """One of ``COLORS``, set before the first line: the value of ``--color``."""

    @property
    def is_empty(self) -> bool:
        """Whether no line was written."""
        return not (self._has_written or self._encoded or self._lines)

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

    def styled(self, *parts: Part) -> None:
        """Write one line of texts with their styles, without them if there are no colors."""
        if not self.has_colors:
            self.line("".join(text for text, _ in parts))
            return
        line = "".join(_styled(printable(text), style) for text, style in parts)
        self._encode()
        self._encoded.append(f"{line}\n".encode())
        self._character_count += len(line)
        if self._character_count >= _BLOCK_CHARACTERS:
            self._drain()

    @cached_property
    def has_colors(self) -> bool:
        """Whether tables and verdicts have colors.

        ``--color`` decides, then ``NO_COLOR``, then ``FORCE_COLOR``, if they are not empty
        (no-color.org, force-color.org), then whether stdout is a terminal that has colors.
        """
        if self.color != "auto":
            return self.color == "always"
        if os.environ.get("NO_COLOR"):
            return False
        if os.environ.get("FORCE_COLOR"):
            return True
        return self.is_terminal() and has_control_sequences() and bool(os.environ.get("TERM"))

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

    def _encode(self) -> None:
        if not self._lines:
            return
        lines = self._lines
        if not "".join(lines).isprintable():
            lines = [printable(line) for line in lines]
        self._encoded.append("\n".join([*lines, ""]).encode("utf-8"))
        self._lines.clear()

    def _drain(self) -> None:
        self._encode()
        if not self._encoded:
            return
        block = b"".join(self._encoded)
        self._encoded.clear()
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
        self._bar = stream.isatty() and has_control_sequences()
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
        with contextlib.suppress(OSError):
            self._stream.write(f"\r{_bar(share, self._stream)} {share:4.0%}")
            self._stream.flush()
        self._bar_shown = True

    def clear(self) -> None:
        """Erase the progress bar."""
        if self._bar_shown:
            self._bar_shown = False
            with contextlib.suppress(OSError):
                self._stream.write("\r\x1b[K")
                self._stream.flush()


def has_control_sequences() -> bool:
    """Return whether the terminal of the process executes control sequences."""
    return os.environ.get("TERM", "").lower() not in _TERMINALS_WITHOUT_CONTROL


def _styled(text: str, style: str) -> str:
    """Return a text with the control sequences of its style."""
    if not (style and text):
        return text
    from rich.color import ColorSystem
    from rich.style import Style

    return Style.parse(style).render(text, color_system=ColorSystem.STANDARD)


def _bar(share: float, stream: TextIO) -> str:
    """Return a progress bar in the characters and colors that a terminal has."""
    from rich.console import Console as Terminal
    from rich.progress_bar import ProgressBar

    terminal = Terminal(
        file=stream,
        width=_BAR_WIDTH,
        color_system=None if os.environ.get("NO_COLOR") else "standard",
        force_terminal=True,
        legacy_windows=False,
    )
    with terminal.capture() as bar:
        terminal.print(
            ProgressBar(
                total=1.0,
                completed=share,
                width=_BAR_WIDTH,
                style=_BAR_REST,
                complete_style=_BAR_DONE,
                finished_style=_BAR_DONE,
            ),
            end="",
        )
    return bar.get().rstrip("\n").ljust(_BAR_WIDTH)


def _now_ms() -> float:
    return time.monotonic() * 1000
