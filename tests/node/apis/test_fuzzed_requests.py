"""Mutated requests at a node, several in turn: each is malformed or has a response of its type.

An input has the frames of requests in turn. The log has only whole batches after it, and its epoch
is not near the last one.
"""

from __future__ import annotations

import pkgutil
import random
import sys
from functools import partial
from importlib import import_module
from typing import Any, Final

import pytest

from raftlog.node import apis, raft_node
from raftlog.node.apis.produce import UnacknowledgedAppendError
from raftlog.quorum.effects import Send
from raftlog.quorum.events import SendFailed
from raftlog.quorum.messages import Response
from raftlog.wire import (
    APIS,
    QUORUM_APIS,
    ApiKey,
    Listener,
    ReceivedRequest,
    RequestError,
    RequestHeader,
    decode,
    decode_request,
    encode,
    encode_request_header,
    encode_response,
    receive_request,
)
from raftlog.wire.errors import MalformedMessageError, UnsupportedApiError
from tests.support.corpora import COUNT, SEED, Input, corpus_of, fuzz
from tests.support.wire_messages import message_kinds, random_message, with_values

from .cluster import CLUSTER_ID, Cluster, Node, asked, run, settle
from .test_any_request import ANSWERS, KINDS, SERVED, aimed, check_log

NAME: Final = "node-requests"
MODULES: Final = {
    raft_node,
    sys.modules[Response.__module__],
    *(import_module(f"{apis.__name__}.{one.name}") for one in pkgutil.iter_modules(apis.__path__)),
}
RESPONSES: Final[dict[tuple[int, int], type[Any]]] = {
    (int(key), version): kind for (key, version), kind in ANSWERS.items()
}
BOTH: Final = Listener.CLIENTS | Listener.VOTERS
EPOCH_MAX: Final = 2**17
WAIT_MS: Final = 10_000


async def request(cluster: Cluster, node: Node, frame: bytes) -> None:
    """Have a node handle one frame, and pass the time until it must have responded."""
    try:
        received = receive_request(frame, BOTH)
    except (MalformedMessageError, UnsupportedApiError):
        return
    if not isinstance(received, ReceivedRequest):
        return
    (key, version, *_), start = received
    if key in QUORUM_APIS and (key != ApiKey.FETCH or version >= 13):
        replicate(cluster, node, ApiKey(key), version, frame, start)
        await settle()
    if key not in SERVED:
        return
    task = asked(node.apis, ApiKey(key), version, frame, start)
    await settle()
    if not task.done():
        cluster.pass_time(WAIT_MS)
        await settle()
    assert task.done(), "it is delayed forever"
    error = task.exception()
    if error is not None:
        assert isinstance(error, MalformedMessageError | UnacknowledgedAppendError), error
        return
    body = task.result()
    if body is not None:
        decode(RESPONSES[key, version], version, bytes(body))


def replicate(
    cluster: Cluster, node: Node, key: ApiKey, version: int, frame: bytes, start: int
) -> None:
    """Have the replica handle a request of the quorum; its response can be written."""
    identity = node.raft_node.identity
    try:
        message = decode_request(key, version, frame, identity, start=start)
    except MalformedMessageError:
        return
    if isinstance(message, RequestError) or (key == ApiKey.FETCH and is_of_client(message)):
        return
    node.raft_node.receive(message, partial(written, key, version, identity))
    cluster.deliver()


def is_of_client(message: Any) -> bool:
    return bool(message.replica.node_id < 0)


def written(key: ApiKey, version: int, identity: Any, response: Response) -> None:
    encode_response(key, version, response, identity)


def run_requests(given: Input) -> None:
    async def work() -> None:
        cluster = OpenCluster()
        node = cluster.elect()
        for frame in given:
            await request(cluster, node, frame)
        check_log(node)
        assert node.replica.core.epoch < EPOCH_MAX

    run(work())


class OpenCluster(Cluster):
    """Cluster that may have voters which do not exist."""

    def carry(self, source: Node, sent: Send) -> None:
        if all(node.node_id != sent.node_id for node in self.nodes):
            self.later(lambda: source.step(SendFailed(sent.correlation_id)))
            return
        super().carry(source, sent)


def of_this_quorum(name: str, value: Any, rng: random.Random) -> Any:
    """Return a value of a replica's request that this quorum may accept."""
    if name == "cluster_id":
        return CLUSTER_ID
    if name in ("voter_id", "replica_id", "leader_id"):
        return rng.choice((1, 2))
    if name.endswith("epoch") and isinstance(value, int):
        return rng.choice((0, 1, 2))
    if name in ("host", "name"):
        return "CONTROLLER"
    if name == "port":
        return 9000
    return value


def framed(key: ApiKey, version: int, body: bytes) -> bytes:
    return encode_request_header(RequestHeader(key, version, 7, "client")) + body


def seeds() -> list[Input]:
    """Return the first corpus: for each API the requests of all versions, after two appends."""
    rng = random.Random(1)
    found: dict[ApiKey, list[bytes]] = {}
    for key, kind, version in KINDS:
        body = encode(aimed(random_message(kind, version, rng), rng), version)
        found.setdefault(key, []).append(framed(key, version, body))
    for api, kind, version in message_kinds():
        if api.key in QUORUM_APIS and api.key not in SERVED and kind.__name__.endswith("Request"):
            message = aimed(random_message(kind, version, rng), rng)
            message = with_values(message, of_this_quorum, rng, share=0.95)
            found.setdefault(api.key, []).append(framed(api.key, version, encode(message, version)))
    appends = found[ApiKey.PRODUCE]
    return [
        tuple(appends),
        *((*appends[-2:], *one) for one in found.values() if one is not appends),
    ]


def test_the_corpus_has_every_request_in_every_version() -> None:
    tried = {frame[:4] for frames in corpus_of(NAME) for frame in frames}
    expected = {frame[:4] for frames in seeds() for frame in frames}
    assert {head[:2] for head in expected} == {
        key.to_bytes(2, "big") for key in APIS if key is not ApiKey.API_VERSIONS
    }
    assert expected <= tried


def test_mutated_requests_have_a_response_or_are_malformed() -> None:
    fuzz(NAME, run_requests, MODULES, seed=1, count=60)


@pytest.mark.nightly
def test_many_mutated_requests_have_a_response_or_are_malformed() -> None:
    fuzz(NAME, run_requests, MODULES, seed=SEED, count=COUNT)
