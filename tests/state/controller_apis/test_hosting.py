"""A controller hosted in nodes: claim, bootstrap records, failover, and requests to any node."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode
from tests.support.controller_nodes import (
    ControllerNodes,
    active_epoch,
    ask,
    controller_nodes,
    controller_of,
    eventually,
    hosted,
)
from tests.support.request_builder import request

from raftlog.wire import ApiKey, decode_versions_response, encode_versions_request
from raftlog_state.controller.activation import NEW_CLUSTER_FEATURES


def create(*names: str) -> Any:
    """Return a request for topics with one partition on broker 1."""
    assignment = {"partition_index": 0, "broker_ids": (1,)}
    return request(
        ApiKey.CREATE_TOPICS,
        topics=[
            {
                "name": name,
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [assignment],
            }
            for name in names
        ],
    )


def codes(response: Any) -> dict[str, ErrorCode]:
    return {topic.name: topic.error_code for topic in response.topics}


def test_a_topic_is_on_every_node_after_a_failover(tmp_path: Path) -> None:
    async def check() -> None:
        async with controller_nodes(tmp_path, 3) as nodes:
            await nodes.add_brokers(1)
            first = await nodes.ask(ApiKey.CREATE_TOPICS, create("a", "b"))
            assert codes(first) == {"a": ErrorCode.none, "b": ErrorCode.none}
            old = await nodes.until_active()
            for node in nodes.nodes:
                if node is not old:
                    refused = await ask(node, ApiKey.CREATE_TOPICS, create("c"))
                    assert codes(refused) == {"c": ErrorCode.not_controller}
                    text = f"The active controller appears to be node {old.config.node_id}."
                    assert refused.topics[0].error_message == text

            await old.node.hand_over()
            await eventually(lambda: nodes.active not in (None, old))
            second = await nodes.ask(ApiKey.CREATE_TOPICS, create("a", "c"))
            assert codes(second) == {"a": ErrorCode.topic_already_exists, "c": ErrorCode.none}

            others = ControllerNodes([node for node in nodes.nodes if node is not old])
            await others.until_equal()
            for node in others.nodes:
                state = controller_of(node).state
                assert [state.topic(one) is not None for one in "abc"] == [True] * 3

    asyncio.run(check())


def test_the_first_controller_writes_the_records_of_a_new_cluster(tmp_path: Path) -> None:
    async def check() -> None:
        async with controller_nodes(tmp_path) as nodes:
            node = await nodes.until_active()
            async with await node.connect() as connection:
                body = encode_versions_request(4, software="test", software_version="1")
                connection.ask(ApiKey.API_VERSIONS, 4, body)
                _, answer = await connection.answer(ApiKey.API_VERSIONS, 4)
            versions = decode_versions_response(4, answer).versions
            assert ApiKey.CREATE_TOPICS in versions
            assert ApiKey.PRODUCE not in versions, "only the controller writes"
            finalized = hosted(node).features().finalized
            assert finalized == NEW_CLUSTER_FEATURES
            epoch = active_epoch(node)

            controller_of(node).begin_shutdown()
            assert epoch is not None
            assert active_epoch(node) is None
            refused = await ask(node, ApiKey.CREATE_TOPICS, create("late"))
            assert codes(refused) == {"late": ErrorCode.request_timed_out}

    asyncio.run(check())
