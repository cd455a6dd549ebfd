"""Whole frames out of a stream of bytes, and frames of our own: a length of four bytes, then that
many.

Rules of this file:

1. A length is judged as soon as its four bytes are there, before a byte behind them is kept. The
   caller says what is allowed, and may say another limit later (when a peer has shown who it is).
2. What is kept is never more than the limit and the four bytes.
3. After an error the rest of the stream means nothing: the same error is raised again.
"""

from __future__ import annotations

from typing import Final

from raftlog.errors import FrameLengthError

LENGTH_BYTES: Final = 4
_LENGTH_MAX: Final = 2**31 - 1
_TLS_CONTENT: Final = (0x15, 0x16)  # alert, handshake
_HTTP_STARTS: Final = (b"GET ", b"POST", b"PUT ", b"HEAD", b"HTTP", b"OPTI", b"CONN", b"PRI ")


class FrameDecoder:
    """Takes bytes as they arrive and gives the frames that are whole, without their lengths.

    ``byte_count_max`` bounds one frame; ``where`` names the peer in errors.
    """

    def __init__(self, byte_count_max: int, where: str) -> None:
        self.byte_count_max = byte_count_max
        self._where = where
        self._kept = bytearray()
        self._awaited_byte_count = 0
        self._is_first = True
        self._error: FrameLengthError | None = None

    @property
    def buffered_byte_count(self) -> int:
        """How many bytes wait for the rest of their frame."""
        return len(self._kept)

    @property
    def expected_byte_count(self) -> int:
        """How long the frame is, with its length, of which only a part is there; 0 without one."""
        return self._awaited_byte_count

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """The frames that these bytes complete, in order.

        Raises ``FrameLengthError`` for a length that is negative or beyond the limit, also if it
        stands behind whole frames: those are lost with the connection.
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
        """Keep what the frame that is under way lacks, or what there is of it."""
        kept = len(self._kept)
        first = bytes(self._kept[:LENGTH_BYTES])
        first += bytes(fed[position : position + LENGTH_BYTES - len(first)])
        wanted = self._whole_byte_count(first)
        taken = fed[position : position + wanted - kept]
        if len(first) == LENGTH_BYTES and kept + len(taken) == wanted:
            frames.append(self._whole(taken))
            self._is_first = False
            self._awaited_byte_count = 0
        else:
            self._kept += taken
            self._awaited_byte_count = wanted
        return position + len(taken)

    def _whole(self, taken: memoryview) -> bytes:
        """The frame that these bytes complete; one that came in one piece is copied once."""
        if not self._kept:
            return bytes(taken[LENGTH_BYTES:])
        self._kept += taken
        with memoryview(self._kept) as whole:
            data = bytes(whole[LENGTH_BYTES:])
        self._kept = bytearray()
        return data

    def _whole_byte_count(self, first: bytes) -> int:
        """Of a frame that begins so, with its length: of the length alone until that is known."""
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
            self._kept = bytearray()
            raise self._error
        return LENGTH_BYTES + byte_count


def frame(*parts: bytes) -> bytes:
    """One frame: the length of all parts, then the parts."""
    byte_count = sum(len(part) for part in parts)
    assert byte_count <= _LENGTH_MAX, "limits of what is sent lie far below"
    return b"".join((byte_count.to_bytes(LENGTH_BYTES, "big"), *parts))


def _hint(first: bytes) -> str | None:
    """What else than a length the first four bytes of a stream look like (KIP-498)."""
    if first[0] in _TLS_CONTENT and first[1] == 3:
        return "they look like TLS: this side speaks plain text, let both agree"
    if first in _HTTP_STARTS:
        return "they look like HTTP: this is a port of Kafka's protocol, use another one"
    return None
