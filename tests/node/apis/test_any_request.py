"""Any request gets a response of its type or is malformed, and leaves the log undamaged."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any, Final

import pytest

from raftlog.node.access import Rights
from raftlog.node.apis.produce import UnacknowledgedAppendError
from raftlog.records.batch import Compression, Header, NewRecord, iter_batches
from raftlog.wire import APIS, ApiKey, Listener, decode, encode
from raftlog.wire.errors import MalformedMessageError
from raftlog.wire.log_identity import uuid_or_none
from tests.support.hostile_bytes import mutations
from tests.support.wire_messages import message_kinds, random_message, with_values

from .batches import batch, commit_header
from .cluster import TIME_MS, TOPIC, TOPIC_ID, Cluster, Node, asked, caller, run, session, settle

SERVED: Final = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.METADATA,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.LIST_GROUPS,
    ApiKey.FIND_COORDINATOR,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    ApiKey.DELETE_RECORDS,
    ApiKey.DELETE_GROUPS,
    ApiKey.OFFSET_DELETE,
    ApiKey.UPDATE_FEATURES,
)
RIGHTS: Final = (
    Rights.NONE,
    Rights.DESCRIBE,
    Rights.READ,
    Rights.APPEND,
    Rights.READ | Rights.APPEND,
    ~Rights.NONE,
)
SMALL_NUMBERS: Final = {
    "partition": (0, 0, 0, 1, -1),
    "partition_index": (0, 0, 0, 1),
    "index": (0, 0, 0, 1),
    "acks": (-1, -1, 0, 1, 2),
    "leader_epoch": (-1, 0, 1, 2),
    "current_leader_epoch": (-1, -1, -1, 0, 1, 2),
    "last_fetched_epoch": (-1, -1, 0, 1, 2),
    "offset": (-1, 0, 1, 2, 5, 1000, -2),
    "fetch_offset": (0, 1, 3, 5, 9, 1000, -1),
    "timestamp": (-7, -6, -5, -4, -3, -2, -1, 0, TIME_MS, TIME_MS + 5, 2**62),
    "min_bytes": (0, 1, 100, 2**31 - 1),
    "session_epoch": (-1, -1, 0, 1),
    "resource_type": (2, 2, 4, 8),
    "key_type": (0, 0, 1, 2),
    "endpoint_type": (1, 2, 3),
}
NAMES: Final = ("topic", "name", "topic_name", "resource_name")
KINDS: Final = [
    (api.key, kind, version)
    for api, kind, version in message_kinds()
    if api.key in SERVED and kind.__name__.endswith("Request")
]
ANSWERS: Final = {
    (api.key, version): kind
    for api, kind, version in message_kinds()
    if api.key in SERVED and kind.__name__.endswith("Response")
}


def aimed(message: Any, rng: random.Random) -> Any:
    """Return the request with most of its fields set to those of the existing log."""
    return with_values(message, _aimed, rng, share=0.85)


def _aimed(name: str, value: Any, rng: random.Random) -> Any:
    if name in SMALL_NUMBERS:
        return rng.choice(SMALL_NUMBERS[name])
    if name in NAMES and value is not None:
        return TOPIC
    if name == "topic_id":
        return uuid_or_none(TOPIC_ID)
    if name == "partition_indexes":
        return (0,)
    if name == "transactional_id":
        return None
    if name == "records":
        return some_batch(rng)
    if isinstance(value, timedelta):
        return timedelta(milliseconds=rng.randrange(1000))
    return value


def some_batch(rng: random.Random) -> bytes:
    """Return a batch, valid or not."""
    headers = rng.choice([(), (Header("h", b"x"),), (commit_header("app", "q", rng.randrange(4)),)])
    records = [
        NewRecord(rng.choice([None, b"k"]), rng.randbytes(rng.randrange(30)), TIME_MS + at, headers)
        for at in range(rng.choice([0, 1, 3, 100]))
    ]
    data = batch(
        *records,
        condition=rng.choice([(0, -1), (0, 0), (-1, 1), (rng.randrange(30), 1), (5, 9), (-5, 1)]),
        compression=rng.choice(list(Compression)),
        producer=rng.choice([(-1, -1, -1), (7, 0, rng.randrange(5)), (7, 1, 0), (8, -1, 0)]),
    )
    return next(mutations(data, rng)) if rng.random() < 0.3 else data


async def answer(
    node: Node, cluster: Cluster, key: ApiKey, version: int, frame: bytes, principal: Any
) -> Any:
    """Return the response to a request, or its error, however long it takes."""
    task = asked(node.apis, key, version, frame, 0, session(principal))
    await settle()
    for _ in range(8):
        if task.done():
            break
        cluster.pass_time(1_000)
        await settle()
    assert task.done(), "it is delayed forever"
    return task


def check_log(node: Node) -> None:
    """Check that every byte of the log belongs to a valid batch."""
    log = node.replica.log
    offset = 0
    while offset < log.end_offset:
        for one in iter_batches(log.read_stored_bytes(offset, 1 << 24)):
            assert one.base_offset == offset
            offset = one.next_offset
            list(one.records())


@pytest.mark.parametrize("seed", range(4))
def test_any_request_has_a_response_of_its_type(seed: int) -> None:
    rng = random.Random(seed)

    async def work() -> None:
        cluster = Cluster(3 if seed % 2 else 1)
        cluster.elect()
        nodes = list({id(one): one for one in (cluster.leader, cluster.nodes[-1])}.values())
        for key, kind, version in KINDS:
            message = aimed(random_message(kind, version, rng), rng)
            listener = rng.choice([Listener.CLIENTS, Listener.CLIENTS | Listener.VOTERS])
            principal = caller(rng.choice(RIGHTS), listener)
            frame = encode(message, version)
            task = await answer(rng.choice(nodes), cluster, key, version, frame, principal)
            if isinstance(task.exception(), UnacknowledgedAppendError):
                assert key is ApiKey.PRODUCE
                continue
            body = task.result()
            if body is None:
                assert key is ApiKey.PRODUCE
            else:
                decode(ANSWERS[key, version], version, bytes(body))
        check_log(cluster.leader)

    run(work())


@pytest.mark.parametrize("seed", range(4))
def test_bytes_that_are_no_request_are_malformed_or_answered(seed: int) -> None:
    rng = random.Random(seed)

    async def work() -> None:
        cluster = Cluster()
        leader = cluster.elect()
        for key, kind, version in KINDS:
            valid = encode(aimed(random_message(kind, version, rng), rng), version)
            frame = next(mutations(valid, rng))
            task = await answer(leader, cluster, key, version, frame, caller())
            error = task.exception()
            assert error is None or isinstance(
                error, MalformedMessageError | UnacknowledgedAppendError
            )
        check_log(leader)

    run(work())


def test_a_node_with_a_closed_log_answers_that_it_does_not_lead() -> None:
    rng = random.Random(1)

    async def work() -> None:
        cluster = Cluster()
        leader = cluster.elect()
        leader.replica.log.close()
        for key, kind, version in KINDS:
            if key is ApiKey.PRODUCE:
                continue  # the driver refuses requests to a node that has failed
            frame = encode(aimed(random_message(kind, version, rng), rng), version)
            task = await answer(leader, cluster, key, version, frame, caller())
            assert isinstance(task.result(), bytes)

    run(work())


def test_all_client_requests_are_tried_here() -> None:
    listened = {key for key, api in APIS.items() if api.on(Listener.CLIENTS) is not None}
    elsewhere = {ApiKey.API_VERSIONS, ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER}
    assert set(SERVED) == listened - elsewhere
