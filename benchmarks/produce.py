"""CPU time of a Produce request at a leader, whole and by stage.

    python -m benchmarks.produce [--requests N] [--rounds N] [--directory PATH] [--json]

Whole: a node that leads a quorum of one, in this process, receives prebuilt frames of 64
connections with one request in flight each (conditional: of one connection with 64), from a thread
of its own. The figure is the CPU time of the thread of the node's event loop; the sync of a group
runs in another thread. One record of 100 bytes a request; ``plain`` without a producer id,
``idempotent`` with one, ``conditional`` with a required base offset.

By stage: the functions that a request passes through are called with the same frames, without a
socket or an event loop. What the stages leave of the whole is asyncio, the socket and the quorum.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, cast

from benchmarks.run import Row, print_row, row
from tests.node.apis.cluster import caller, session
from tests.support.served_node import served_node

from raftlog.append import AppendBatch, Done, InOrderGate
from raftlog.client.remote.messages import TopicIdentity, produce_request
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.quorum_log import QuorumLog
from raftlog.node.apis import produce
from raftlog.node.apis.metadata_cache import MetadataCache
from raftlog.node.apis.produced_batch import append_request, read_header
from raftlog.node.request import Request
from raftlog.records.builder import BatchBuilder, ProducerStamp
from raftlog.records.control import LeaderChange
from raftlog.storage.local import WritableLocalStorage
from raftlog.wire import (
    ApiKey,
    FrameDecoder,
    Listener,
    ReceivedRequest,
    RequestHeader,
    decode_produce_request,
    encode_produce_request,
    encode_produce_response,
    encode_request_header,
    encode_response_header,
    frame,
    receive_request,
)

VERSION: Final = 11
IN_FLIGHT: Final = 64
VALUE: Final = bytes(range(100))
KINDS: Final = ("plain", "idempotent", "conditional")
LOG: Final = TopicIdentity("raftlog", topic_id=None, cluster_id=None, is_controller=False)
_EPOCH: Final = 1


def produced(
    producer: ProducerStamp | None = None, condition: tuple[int, int] = (0, -1), ordinal: int = 0
) -> bytes:
    """Return the frame, with its length, of a request with one record."""
    builder = BatchBuilder(
        base_timestamp_ms=1_700_000_000_000 + ordinal,
        producer=producer or ProducerStamp(-1, -1, -1),
    )
    builder.append([VALUE])
    base_offset, epoch = condition
    built = builder.build(max(base_offset, 0), max(epoch, 0)).data
    batch = struct.pack(">q", base_offset) + built[8:12] + struct.pack(">i", epoch) + built[16:]
    header = RequestHeader(
        api_key=ApiKey.PRODUCE, api_version=VERSION, correlation_id=ordinal, client_id="benchmark"
    )
    body = encode_produce_request(VERSION, produce_request(LOG, batch, timeout_ms=30_000))
    return frame(encode_request_header(header), body)


def frames_of(kind: str, count: int, next_offset: int, epoch: int) -> list[list[bytes]]:
    """Return the frames of each connection."""
    if kind == "conditional":
        found = [produced(None, (next_offset + at, epoch), at) for at in range(count)]
        return [found]
    each = count // IN_FLIGHT
    if kind == "plain":
        return [[produced(None, (0, -1), at) for at in range(each)] for _ in range(IN_FLIGHT)]
    return [
        [
            produced(ProducerStamp((next_offset << 20) + one, 0, at), (0, -1), at)
            for at in range(each)
        ]
        for one in range(IN_FLIGHT)
    ]


# --- whole ----------------------------------------------------------------------------------------


def send_all(port: int, frames: list[list[bytes]]) -> None:
    """Send all frames and receive their responses, in rounds of ``IN_FLIGHT`` requests."""
    width = IN_FLIGHT // len(frames)
    with contextlib.ExitStack() as opened:
        peers = [
            opened.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in frames
        ]
        decoders = [FrameDecoder(2**20, "the node") for _ in frames]
        for at in range(0, len(frames[0]), width):
            for peer, own in zip(peers, frames, strict=True):
                peer.sendall(b"".join(own[at : at + width]))
            for peer, own, decoder in zip(peers, frames, decoders, strict=True):
                left = len(own[at : at + width])
                while left:
                    data = peer.recv(2**16)
                    if not data:
                        raise SystemExit("the node closed the connection")
                    left -= len(decoder.feed(data))


async def whole_us(home: Path, kind: str, count: int) -> float:
    """Return the microseconds of CPU time of the event loop for one request."""
    home.mkdir()
    async with served_node(home) as served:
        replica, loop = served.node.raft_node.replica, asyncio.get_running_loop()
        spent = 0.0
        with ThreadPoolExecutor(1) as client:
            for each in (count // 4, count):  # the first requests are a warm-up
                each -= each % IN_FLIGHT
                log = replica.log
                frames = frames_of(kind, each, log.end_offset, log.epoch)
                before, start = log.end_offset, time.thread_time()
                await loop.run_in_executor(client, send_all, served.port, frames)
                spent = time.thread_time() - start
                if log.end_offset - before != each:
                    raise SystemExit(f"{kind}: {log.end_offset - before} of {each} appended")
        return 1e6 * spent / each


# --- by stage -------------------------------------------------------------------------------------


def timed(work: Callable[[Any], object], values: list[Any]) -> float:
    """Return the microseconds of CPU time of one call."""
    start = time.process_time()
    for value in values:
        work(value)
    return 1e6 * (time.process_time() - start) / len(values)


class Stages:
    """Stages of a Produce request over a log of its own."""

    def __init__(self, home: Path) -> None:
        self.log = QuorumLog.open_or_create(
            WritableLocalStorage(),
            str(home),
            config=LogConfig(),
            topic_id="AAAAAAAAAAAAAAAAAAAAZw",
            now_ms=0,
        )
        self.log.begin_epoch(_EPOCH, [LeaderChange(leader_id=1)], now_ms=0)
        self._session = session(caller())
        cache: Any = type("Cache", (), {})()
        cache.raft_node = type("RaftNode", (), {})()
        cache.raft_node.replica = type("Replica", (), {"log": self.log})()
        self._cache = cast("MetadataCache", cache)

    def measure(self, kind: str, count: int) -> dict[str, float]:
        """Return the microseconds of each stage."""
        frames = [one for own in frames_of(kind, count, self.log.end_offset, _EPOCH) for one in own]
        bodies: list[Request[Any]] = []
        appends: list[Any] = []
        spent: dict[str, float] = {}

        def receive(data: bytes) -> None:
            (found,) = decoder.feed(data)
            received = receive_request(found, Listener.CLIENTS)
            assert isinstance(received, ReceivedRequest)
            bodies.append(
                Request(self._session, received.header, found, received.body_start, no_connection)
            )

        decoder, no_connection = FrameDecoder(2**20, "a client"), cast("Any", None)
        spent["frame and header"] = timed(receive, frames)

        def decode_body(request: Request[Any]) -> None:
            request.body = decode_produce_request(
                request.version, request.frame, start=request.body_start
            )

        spent["decode the request"] = timed(decode_body, bodies)
        gate, config = InOrderGate(), self.log.config

        def validate(request: Request[Any]) -> None:
            data = request.body.topics[0].batches[0].records or b""
            header = read_header(data, byte_count_max=config.batch_bytes_max)
            appends.append(
                append_request(
                    data,
                    header,
                    config,
                    deadline_ms=0,
                    gate=gate,
                    decompressed_bytes_max=produce.READ_AT_ONCE_BYTES_MAX,
                )
            )

        spent["validate the batch"] = timed(validate, bodies)
        groups = [appends[at : at + IN_FLIGHT] for at in range(0, len(appends), IN_FLIGHT)]
        results: list[Any] = []

        def append(group: list[Any]) -> None:
            batch = AppendBatch(self.log, 1_700_000_000_000)
            results.extend([batch.process(one) for one in group])
            batch.write()

        spent["append"] = timed(append, groups) / IN_FLIGHT
        assert all(isinstance(one, Done) for one in results), results[:1]

        def respond(pair: tuple[Request[Any], Done]) -> None:
            request, done = pair
            result = produce.DelayedProduce(self._cache, request)._result(0, done)
            body = encode_produce_response(VERSION, request.body, [result])
            header = request.header
            head = encode_response_header(header.correlation_id, header.api_key, VERSION)
            frame(head, body)

        spent["encode the response"] = timed(respond, list(zip(bodies, results, strict=True)))
        return spent


def measure(home: Path, count: int, rounds: int) -> Iterator[Row]:
    """Yield the rows: medians of the rounds."""
    for kind in KINDS:
        whole = [asyncio.run(whole_us(home / f"{kind}-{at}", kind, count)) for at in range(rounds)]
        stages = Stages(home / f"{kind}-stages")
        stages.measure(kind, count // 4 - count // 4 % IN_FLIGHT)
        found = [stages.measure(kind, count - count % IN_FLIGHT) for _ in range(rounds)]
        total = statistics.median(whole)
        yield row(f"Produce at a leader, {kind}", total, "us CPU")
        for stage in found[0]:
            spent = statistics.median(one[stage] for one in found)
            yield row(f"Produce at a leader, {kind}: {stage}", spent, "us CPU", total, "the whole")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=6400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="parent of the logs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as home:
        for one in measure(Path(home), options.requests, options.rounds):
            print_row(one, as_json=options.json, decimals=1)


if __name__ == "__main__":
    main()
