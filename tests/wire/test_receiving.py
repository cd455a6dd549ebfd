"""What a connection receives: in memory of its size, and with connections of other threads."""

from __future__ import annotations

import asyncio
import socket
import threading
import tracemalloc

from raftlog.limits import KIB
from raftlog.receiving import RECEIVE_BYTES_MAX, ReceivingProtocol


class Received(ReceivingProtocol):
    """Connection that keeps what it has received."""

    def __init__(self, byte_count: int) -> None:
        self.parts: list[bytes] = []
        self.is_done = asyncio.get_running_loop().create_future()
        self._byte_count = byte_count

    def data_received(self, data: bytes) -> None:
        self.parts.append(data)
        if sum(map(len, self.parts)) >= self._byte_count:
            self.is_done.set_result(None)


async def receive(byte_count: int, sent: socket.socket, here: socket.socket) -> list[bytes]:
    """Receive what another thread sends."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_connection(lambda: Received(byte_count), sock=here)
    sender = threading.Thread(target=sent.sendall, args=(bytes(byte_count),))
    sender.start()
    await protocol.is_done
    sender.join()
    transport.close()
    return protocol.parts


def test_a_small_request_is_read_without_an_object_of_the_size_of_the_largest() -> None:
    async def run() -> int:
        sent, here = socket.socketpair()
        with sent:
            loop = asyncio.get_running_loop()
            transport, protocol = await loop.create_connection(lambda: Received(200), sock=here)
            tracemalloc.start()
            try:
                sent.sendall(bytes(200))
                await protocol.is_done
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            transport.close()
            return peak

    assert asyncio.run(run()) < 16 * KIB


def test_many_bytes_are_received_in_parts_of_the_size_of_the_buffer() -> None:
    async def run() -> list[bytes]:
        sent, here = socket.socketpair()
        with sent:
            return await receive(5 * RECEIVE_BYTES_MAX + 1, sent, here)

    parts = asyncio.run(run())
    assert sum(map(len, parts)) == 5 * RECEIVE_BYTES_MAX + 1
    assert max(map(len, parts)) <= RECEIVE_BYTES_MAX


def test_connections_of_two_threads_have_two_buffers() -> None:
    found: list[memoryview] = []

    async def look() -> None:
        found.append(Received(0).get_buffer(-1))

    for _ in range(2):
        thread = threading.Thread(target=lambda: asyncio.run(look()))
        thread.start()
        thread.join()
    found[0][:1] = b"\x01"
    assert bytes(found[1][:1]) == b"\x00"
