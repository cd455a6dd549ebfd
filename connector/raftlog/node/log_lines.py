"""Log of a node: one JSON object per line.

A line has ``time`` (UTC), ``level``, ``node``, ``event`` and the event's fields, but never values
of records, keys, or contents of certificates. Lines for repeated events, such as an unreachable
peer, are throttled, and the next line has the number of suppressed ones. Unprintable characters,
for example in peers' names, are escaped, because terminals show the lines.
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
    """Log of a node on a stream."""

    def __init__(self, stream: TextIO, node_id: int) -> None:
        self._stream = stream
        self._node_id = node_id
        self._throttled: dict[tuple[str, str], tuple[float, int]] = {}

    def log(self, event: str, *, level: str = "info", **facts: object) -> None:
        """Write one line. An ``OSError`` is ignored: a full disk does not end the node."""
        moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"time": moment, "level": level, "node": self._node_id, "event": event, **facts}
        with contextlib.suppress(OSError):
            text = json.dumps(line, default=str, ensure_ascii=False)
            self._stream.write(printable(text) + "\n")
            self._stream.flush()

    def log_throttled(self, event: str, about: str, reason: str) -> None:
        """Write a line, at most one in 10 seconds for each pair of ``event`` and ``about``."""
        now_s = time.monotonic()
        key = event, about
        last_s, suppressed = self._throttled.get(key, (now_s - _REPEAT_S, 0))
        if now_s - last_s < _REPEAT_S:
            self._throttled[key] = last_s, suppressed + 1
            return
        if len(self._throttled) >= _REMEMBERED_MAX:
            self._throttled.clear()
        self._throttled[key] = now_s, 0
        facts = {"suppressed": suppressed} if suppressed else {}
        self.log(event, level="warning", about=about, reason=reason, **facts)


class _AsyncioHandler(logging.Handler):
    """Handler that writes asyncio's log records, including unhandled exceptions, as log lines."""

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
    """Write asyncio's warnings and errors to the node's log instead of stderr.

    asyncio logs unhandled exceptions, and writes to a broken connection. Its logger is global, so
    use this only in a node's process.
    """
    logger, handler = logging.getLogger("asyncio"), _AsyncioHandler(lines)
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
