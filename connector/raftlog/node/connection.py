"""One connection that somebody opened: frames in, answers out in the order of the questions.

Rules of this file:

1. A frame's length is judged before it is kept. What makes no sense closes the connection: what
   follows it cannot be trusted.
2. Questions are begun in the order in which they came, several may wait for their answers at once,
   and answers leave in the order of the questions (Kafka's promise to clients).
3. Memory is bounded: beyond so many questions under way, or so many bytes of answers that the peer
   does not take, nothing more is read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from raftlog.errors import WireError
from raftlog.wire import (
    ApiKey,
    FrameSplitter,
    RequestHeader,
    UnknownApiVersions,
    encode_response_header,
    encode_versions_refusal,
    frame,
    receive_request,
)

from .access import Caller
from .request_budget import RequestBudget

ANSWER_BYTES_WAITING_MAX: Final = 16 * 1024 * 1024
"""How much of what was answered may wait for a slow reader before nothing more is asked of us."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with its place in the frame. ``answer`` is given the body of its answer, or None
    for none at all (Produce with acks 0)."""

    header: RequestHeader
    frame: bytes
    body_start: int
    caller: Caller
    answer: Callable[[bytes | None], None]


@dataclass(slots=True, eq=False)
class _Turn:
    """A question's turn to be answered."""

    byte_count: int
    data: bytes | None = None
    is_answered: bool = False


class Connection(asyncio.Protocol):
    """One peer, from the moment that its identity is known."""

    def __init__(
        self,
        *,
        where: str,
        introduce: Callable[[asyncio.Transport], Caller | None],
        handle: Callable[[Connection, Asked], None],
        closed: Callable[[Connection], None],
        hear: Callable[[str, str, str], None],
        frame_bytes_max: Callable[[Caller], int],
        in_flight_max: int,
        budget: RequestBudget,
    ) -> None:
        """``introduce`` says who it is; None: nobody that may stay. ``handle`` is given every
        question, ``closed`` is told once; ``hear`` takes what a peer did wrong."""
        self.where: Final = where
        self.caller: Caller | None = None
        self.requests_under_way: Final[set[int]] = set()
        """Numbers of what the replica was asked and has not answered, to be dropped."""
        self.tasks: Final[set[asyncio.Task[None]]] = set()
        self.last_asked_s = asyncio.get_running_loop().time()
        self._introduce = introduce
        self._handle = handle
        self._closed = closed
        self._hear = hear
        self._frame_bytes_max = frame_bytes_max
        self._in_flight_max = in_flight_max
        self._budget = budget
        self._splitter: FrameSplitter | None = None
        self._transport: asyncio.Transport | None = None
        self._turns: deque[_Turn] = deque()
        self._frames: deque[bytes] = deque()
        self._is_reading = True
        self._is_writable = True
        self._is_finishing = False

    # --- asyncio's --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        caller = self._introduce(transport)
        if caller is None:
            transport.abort()
            return
        self.caller = caller
        self._splitter = FrameSplitter(self._frame_bytes_max(caller), self.where)
        transport.set_write_buffer_limits(high=ANSWER_BYTES_WAITING_MAX)

    def data_received(self, data: bytes) -> None:
        if self._splitter is None or self._is_finishing:
            return
        try:
            self._frames.extend(self._splitter.feed(data))
        except WireError as error:
            self._end("refused", error.sentence())
            return
        self._take_frames()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._frames.clear()
        self._budget.forget(self._take_frames_later)
        for task in self.tasks:
            task.cancel()
        turns, self._turns = self._turns, deque()
        self._budget.give(sum(turn.byte_count for turn in turns))
        self._closed(self)

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._take_frames()

    # --- questions --------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def in_flight_count(self) -> int:
        return len(self._turns)

    @property
    def answer_bytes_waiting(self) -> int:
        """How much the peer has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def finish(self) -> None:
        """Take no more questions, and close when those that are under way are answered."""
        self._is_finishing = True
        self._frames.clear()
        self._close_if_finished()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _take_frames(self) -> None:
        while self._frames and self._may_take():
            self._take(self._frames.popleft())
        if self._frames and not self._budget.has_room:
            self._budget.wait(self._take_frames_later)
        self._pause_or_resume()

    def _take_frames_later(self) -> None:
        """Never at once: answers go out in the middle of a step, and a question begins one."""
        asyncio.get_running_loop().call_soon(self._take_frames)

    def _may_take(self) -> bool:
        return (
            len(self._turns) < self._in_flight_max
            and self._budget.has_room
            and self._is_writable
            and self.is_open
        )

    def _pause_or_resume(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        may_read = not self._frames and self._may_take()
        if may_read and not self._is_reading:
            self._transport.resume_reading()
        elif self._is_reading and not may_read:
            self._transport.pause_reading()
        self._is_reading = may_read

    def _take(self, data: bytes) -> None:
        caller = self.caller
        assert caller is not None
        self.last_asked_s = asyncio.get_running_loop().time()
        turn = _Turn(len(data))
        try:
            received = receive_request(data, caller.listener)
        except WireError as error:
            self._end("refused", error.sentence())
            return
        self._turns.append(turn)
        self._budget.take(turn.byte_count)
        if isinstance(received, UnknownApiVersions):
            head = encode_response_header(received.correlation_id, ApiKey.API_VERSIONS, 0)
            self._answered(turn, head, encode_versions_refusal())
            return
        header = received.header
        head = encode_response_header(header.correlation_id, header.api_key, header.api_version)
        asked = Asked(
            header,
            data,
            received.body_start,
            caller,
            lambda body: self._answered(turn, head, body),
        )
        try:
            self._handle(self, asked)
        except WireError as error:
            self._end("refused", error.sentence())

    # --- answers ----------------------------------------------------------------------------------

    def _answered(self, turn: _Turn, head: bytes, body: bytes | None) -> None:
        turn.data = None if body is None else frame(head, body)
        turn.is_answered = True
        self._flush()

    def _flush(self) -> None:
        ready: list[bytes] = []
        byte_count = 0
        while self._turns and self._turns[0].is_answered:
            turn = self._turns.popleft()
            byte_count += turn.byte_count
            if turn.data is not None:
                ready.append(turn.data)
        if not byte_count:
            return  # an older question is not answered yet
        if ready and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(ready) if len(ready) > 1 else ready[0])
        self._budget.give(byte_count)
        self._close_if_finished()
        if self._frames or not self._is_reading:
            self._take_frames_later()

    def refuse(self, reason: str) -> None:
        """Close because of what the peer sent."""
        self._end("refused", reason)

    def _end(self, what: str, reason: str) -> None:
        self._hear(what, self.where, reason)
        self._frames.clear()
        if self._transport is not None:
            self._transport.close()

    def _close_if_finished(self) -> None:
        if self._is_finishing and not self._turns and self._transport is not None:
            self._transport.close()
