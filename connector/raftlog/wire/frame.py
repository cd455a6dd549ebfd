"""Frames of Kafka's protocol: a length of four bytes, then as many bytes.

Invariants:

1. A length is checked as soon as its four bytes are received, before later bytes are buffered. The
   caller may change the limit during the connection (after authentication).
2. At most the limit and four bytes are buffered.
3. An error is final: the position in the stream is lost, and each further call raises it again.
"""

from __future__ import annotations

from typing import Final

from raftlog.errors import FrameLengthError

LENGTH_BYTES: Final = 4
_LENGTH_MAX: Final = 2**31 - 1
_TLS_CONTENT: Final = (0x15, 0x16)  # alert, handshake
_HTTP_STARTS: Final = (b"GET ", b"POST", b"PUT ", b"HEAD", b"HTTP", b"OPTI", b"CONN", b"PRI ")


class FrameDecoder:
    """Splits a stream of bytes into frames.

    ``byte_count_max`` limits one frame, without its length; ``where`` names the peer in errors.
    """

    def __init__(self, byte_count_max: int, where: str) -> None:
        self.byte_count_max = byte_count_max
        self._where = where
        self._buffer = bytearray()
        self._expected_byte_count = 0
        self._is_first = True
        self._error: FrameLengthError | None = None

    @property
    def buffered_byte_count(self) -> int:
        """Number of buffered bytes of an incomplete frame."""
        return len(self._buffer)

    @property
    def expected_byte_count(self) -> int:
        """Size of the incomplete frame, including its length; 0 if there is no such frame."""
        return self._expected_byte_count

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Return the frames that these bytes complete, in order, without their lengths.

        Raises ``FrameLengthError`` for a length that is negative or above the limit, even after
        complete frames in ``data``: those are lost with the connection.
        """
        if self._error is not None:
            raise self._error
        frames: list[bytes] = []
        position = 0
        with memoryview(data) as fed:
            while position < len(fed):
                position = self._take(fed, position, frames)
        return frames

    def _take(self, fed: memoryview, position: int, frames: list[bytes]) -> int:
        """Take the bytes that the current frame lacks; return the position after them."""
        buffered = len(self._buffer)
        first = bytes(self._buffer[:LENGTH_BYTES])
        first += bytes(fed[position : position + LENGTH_BYTES - len(first)])
        wanted = self._frame_byte_count(first)
        taken = fed[position : position + wanted - buffered]
        if len(first) == LENGTH_BYTES and buffered + len(taken) == wanted:
            frames.append(self._complete(taken))
            self._is_first = False
            self._expected_byte_count = 0
        else:
            self._buffer += taken
            self._expected_byte_count = wanted
        return position + len(taken)

    def _complete(self, taken: memoryview) -> bytes:
        """Return the frame that these bytes complete; a frame in one piece is copied once."""
        if not self._buffer:
            return bytes(taken[LENGTH_BYTES:])
        self._buffer += taken
        with memoryview(self._buffer) as whole:
            data = bytes(whole[LENGTH_BYTES:])
        self._buffer = bytearray()
        return data

    def _frame_byte_count(self, first: bytes) -> int:
        """Return the size of the frame including its length; 4 until the length is complete."""
        if len(first) < LENGTH_BYTES:
            return LENGTH_BYTES
        byte_count = int.from_bytes(first, "big", signed=True)
        if not 0 <= byte_count <= self.byte_count_max:
            self._error = FrameLengthError(
                where=self._where,
                byte_count=byte_count,
                byte_count_max=self.byte_count_max,
                hint=_hint(first) if self._is_first else None,
            )
            self._buffer = bytearray()
            raise self._error
        return LENGTH_BYTES + byte_count


def frame(*parts: bytes) -> bytes:
    """Return a frame of these parts."""
    byte_count = sum(len(part) for part in parts)
    assert byte_count <= _LENGTH_MAX, "messages are limited to far less"
    return b"".join((byte_count.to_bytes(LENGTH_BYTES, "big"), *parts))


def _hint(first: bytes) -> str | None:
    """Return a remedy if the first four bytes of a stream are of another protocol (KIP-498)."""
    if first[0] in _TLS_CONTENT and first[1] == 3:
        return "the bytes look like TLS: enable TLS on both sides or on neither"
    if first in _HTTP_STARTS:
        return "the bytes look like HTTP: this port serves Kafka's protocol, check the port"
    return None
