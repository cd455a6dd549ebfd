"""What a node says while it runs: one JSON object a line.

Rules of this file:

1. A line has ``time`` (UTC), ``level``, ``node``, ``event`` and the facts of the event; values of
   records, keys and certificates' contents are never facts.
2. What is said over and over, as of a peer that is not there, is said once in a while, with how
   often it was not said.
3. What peers and files are called is escaped where it is not printable: a terminal shows the lines.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, TextIO

from raftlog.printable import printable

_REPEAT_S: Final = 10.0
_REMEMBERED_MAX: Final = 1_000


class LogLines:
    """A node's lines on a stream."""

    def __init__(self, stream: TextIO, node_id: int) -> None:
        self._stream = stream
        self._node_id = node_id
        self._said: dict[tuple[str, str], tuple[float, int]] = {}

    def log(self, event: str, *, level: str = "info", **facts: object) -> None:
        """Write one line, if it can be written: a full disk ends no node."""
        moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"time": moment, "level": level, "node": self._node_id, "event": event, **facts}
        with contextlib.suppress(OSError):
            text = json.dumps(line, default=str, ensure_ascii=False)
            self._stream.write(printable(text) + "\n")
            self._stream.flush()

    def log_throttled(self, event: str, about: str, reason: str) -> None:
        """Write what may be said in bursts: of each event ``about`` somebody once in 10 seconds."""
        now_s = time.monotonic()
        key = event, about
        last_s, suppressed = self._said.get(key, (now_s - _REPEAT_S, 0))
        if now_s - last_s < _REPEAT_S:
            self._said[key] = last_s, suppressed + 1
            return
        if len(self._said) >= _REMEMBERED_MAX:
            self._said.clear()
        self._said[key] = now_s, 0
        facts = {"suppressed": suppressed} if suppressed else {}
        self.log(event, level="warning", about=about, reason=reason, **facts)


class _AsyncioHandler(logging.Handler):
    """Writes what asyncio logs, of exceptions of tasks and callbacks too, as lines of the node."""

    def __init__(self, lines: LogLines) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        error = None if record.exc_info is None else record.exc_info[1]
        text = "" if error is None else "\n" + "".join(traceback.format_exception(error))
        self._lines.log_throttled("asyncio", message.partition("\n")[0], message + text)


@contextlib.contextmanager
def asyncio_lines(lines: LogLines) -> Iterator[None]:
    """Have the warnings and errors of asyncio in the node's lines, and not on stderr.

    asyncio logs exceptions that no code handles, and writes to a broken connection. Its logger is
    the process's: only a process that is a node may use this.
    """
    logger, handler = logging.getLogger("asyncio"), _AsyncioHandler(lines)
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
