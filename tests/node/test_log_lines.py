"""Log lines of a node when its output cannot be written."""

from __future__ import annotations

import asyncio
import errno
import gc
import io
import json
import logging

import pytest

from raftlog.node.log_lines import LogLines, asyncio_lines


class FullStream(io.StringIO):
    """Stream on a full disk."""

    is_full = True

    def flush(self) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().flush()


def test_a_line_that_cannot_be_written_stops_nothing() -> None:
    stream = FullStream()
    lines = LogLines(stream, 1)
    lines.log("role", new="leader")
    stream.is_full = False
    lines.log("leader", leader=1)
    assert '"event": "leader"' in stream.getvalue()


def test_asyncios_log_lines_have_the_same_form(capfd: pytest.CaptureFixture[str]) -> None:
    async def fail() -> None:
        raise ValueError("nobody looks at this")

    async def run() -> None:
        task = asyncio.get_running_loop().create_task(fail())
        await asyncio.wait([task])
        del task
        gc.collect()
        asyncio.get_running_loop().call_soon(lambda: [][1])
        await asyncio.sleep(0)

    stream = io.StringIO()
    with asyncio_lines(LogLines(stream, 1)):
        asyncio.run(run())
        logging.getLogger("asyncio").warning("socket.send() raised exception.")
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in found] == ["asyncio"] * 3
    about = " ".join(line["about"] for line in found)
    assert "never retrieved" in about
    assert "socket.send()" in about
    reasons = "".join(line["reason"] for line in found)
    assert "ValueError: nobody looks at this" in reasons
    assert "IndexError" in reasons
    assert capfd.readouterr().err == ""
    assert not logging.getLogger("asyncio").handlers


def test_a_librarys_logger_is_not_changed() -> None:
    logger = logging.getLogger("asyncio")
    before = logger.propagate
    with asyncio_lines(LogLines(io.StringIO(), 1)):
        assert not logger.propagate
    assert logger.propagate is before
