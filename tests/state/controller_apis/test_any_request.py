"""Any request gets a response of its type, and is no fault: the controller stays active."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from tests.state.controller_apis.test_rights import Asked, principal
from tests.support.controller_nodes import ControllerNodes, controller_nodes, controller_of, hosted
from tests.support.controllers import assert_equals_a_replay
from tests.support.request_builder import request, response_class
from tests.support.wire_messages import random_message, with_values

from raftlog.node.access import Rights
from raftlog.node.raft_client import committed_batches
from raftlog.wire import APIS, CONTROLLER_APIS, ApiKey, decode, encode
from raftlog.wire.log_identity import uuid_or_none
from raftlog_state.controller_apis import HANDLERS

TOPICS: Final = ("a", "b", "c.d", "c_d", "", "\x00", "x" * 300)
SMALL_NUMBERS: Final = {
    "broker_id": (1, 1, 2, 3, -1),
    "controller_id": (1, 2, -1),
    "broker_ids": (1, 2, 3),
    "replicas": (1, 2, 3),
    "new_isr": (1, 2, 3),
    "broker_epoch": (-1, 0, 13, 14, 15, 16, 2**62),
    "partition_index": (0, 0, 1, -1),
    "partition_indexes": (0, 1, -1),
    "partitions": (0, 1, 9),
    "num_partitions": (-1, 0, 1, 3, 20_000),
    "replication_factor": (-1, 0, 1, 2, 9),
    "count": (-1, 2, 5, 20_000),
    "resource_type": (2, 2, 4, 8, 16, 32, 0, 127),
    "config_operation": (0, 1, 2, 3, 4),
    "operation": (0, 1, 3, 99),
    "mechanism": (0, 1, 2, 3),
    "iterations": (0, 4096, 2**31 - 1),
    "max_version_level": (-1, 0, 1, 2, 30),
    "upgrade_type": (0, 1, 2, 3, 4),
    "election_type": (0, 1, 2),
    "match_type": (0, 1, 2, 3),
    "current_metadata_offset": (-1, 0, 20, 2**62),
}
TEXTS: Final = {
    "name": (*TOPICS, "retention.ms", "cleanup.policy", "group.version", "metadata.version"),
    "topic": TOPICS,
    "resource_name": (*TOPICS, "1", "-1", "9999999999999999999"),
    "entity_type": ("user", "client-id", "ip", "", "no"),
    "entity_name": ("ana", "", None, "127.0.0.1"),
    "match": ("ana", "", None),
    "feature": ("group.version", "metadata.version", "kraft.version", "no"),
    "value": ("1", "compact", "", "x" * 32_767, "NaN"),
    "key": ("producer_byte_rate", "no", ""),
    "principal": ("User:ana", "ana", ""),
    "host": ("*", "", "h"),
}
IDS: Final = ("AAAAAAAAAAAAAAAAAAAAxQ", "AAAAAAAAAAAAAAAAAAAAAA")


def aimed(message: Any, rng: random.Random) -> Any:
    """Return the request with most of its fields set to values that controllers know."""
    return with_values(message, _aimed, rng, share=0.9)


def _aimed(name: str, value: Any, rng: random.Random) -> Any:
    known: Any = SMALL_NUMBERS.get(name)
    if isinstance(value, str):
        known = TEXTS.get(name)
    if isinstance(value, timedelta):
        return timedelta(seconds=60)
    if known is not None and value is not None:
        if isinstance(value, tuple):  # an empty one may be of structures
            return tuple(rng.choice(known) for _ in range(rng.randrange(4))) if value else value
        return rng.choice(known)
    if name.endswith("_id") and not isinstance(value, int | str):
        return uuid_or_none(rng.choice(IDS))
    return value


async def attack(nodes: ControllerNodes, rng: random.Random, count: int) -> None:
    node = nodes.nodes[0]
    controller, everyone = controller_of(node), principal(~Rights.NONE)
    for _ in range(count):
        key = rng.choice(list(HANDLERS))
        versions = {**APIS, **CONTROLLER_APIS}[key].versions
        version = rng.randrange(versions.first, versions.last + 1)
        handler = HANDLERS[key]
        body = aimed(random_message(handler.request_class, version, rng), rng)
        read = decode(handler.request_class, version, encode(body, version))
        response = await handler.respond(hosted(node), Asked(read, version, everyone))
        data = encode(response, version)
        decode(response_class(key), version, data)
        assert controller.metrics(0).fault_count == 0, f"{key.name} {version}: {read}"
        assert controller.active_epoch == 1, f"{key.name} {version}: {read}"


def run(home: Path, seed: int, count: int) -> None:
    async def check() -> None:
        async with controller_nodes(home) as nodes:
            await nodes.add_brokers(1, 2)
            names = [{"name": name, "num_partitions": 2, "replication_factor": 2} for name in "ab"]
            await nodes.ask(ApiKey.CREATE_TOPICS, request(ApiKey.CREATE_TOPICS, topics=names))
            await attack(nodes, random.Random(seed), count)
            replica = nodes.nodes[0].node.raft_node.replica
            assert replica.core.high_watermark == replica.log.end_offset > 30
            batches = committed_batches(replica.log, 0, replica.log.end_offset, 1 << 30)
            assert_equals_a_replay(controller_of(nodes.nodes[0]), batches)

    asyncio.run(check())


@pytest.mark.parametrize("seed", range(2))
def test_any_request_is_answered(tmp_path: Path, seed: int) -> None:
    run(tmp_path, seed, 400)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_requests_are_answered(tmp_path: Path, seed: int) -> None:
    run(tmp_path, seed, 3_000)
