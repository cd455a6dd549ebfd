"""A node's lines where nobody can take them."""

from __future__ import annotations

import errno
import io

from raftlog.node.log_lines import LogLines


class FullStream(io.StringIO):
    """A stream on a disk that is full."""

    is_full = True

    def flush(self) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().flush()


def test_a_line_that_finds_no_room_ends_nothing() -> None:
    stream = FullStream()
    lines = LogLines(stream, 1)
    lines.say("role", new="leader")
    stream.is_full = False
    lines.say("leader", leader=1)
    assert '"event": "leader"' in stream.getvalue()
