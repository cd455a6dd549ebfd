"""Kafka's admin requests to a node, one by one: what they change, return and refuse."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode
from tests.support.controller_nodes import ControllerNodes, controller_nodes, controller_of

from raftlog.wire import ApiKey

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
LITERAL, PREFIXED = 3, 4
READ, WRITE, ALLOW = 3, 4, 3
ANY = 1
SCRAM_SHA_256 = 1
SOURCES = {"topic": 1, "cluster": 3, "default": 5}


def run(home: Path, check: Callable[[ControllerNodes], Awaitable[None]]) -> None:
    async def run_node() -> None:
        async with controller_nodes(home) as nodes:
            await nodes.add_brokers(1, 2)
            await check(nodes)

    asyncio.run(run_node())


def results(response: Any, name: str, key: str = "name") -> dict[Any, tuple[ErrorCode, str | None]]:
    return {
        getattr(one, key): (one.error_code, one.error_message) for one in getattr(response, name)
    }


def topic(name: str, count: int = 1, **more: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": count, "replication_factor": 2, **more}


def end_offset(nodes: ControllerNodes) -> int:
    return nodes.nodes[0].node.raft_node.replica.log.end_offset


def test_topics_are_created_one_by_one_and_all_with_one_commit(tmp_path: Path) -> None:
    async def check(nodes: ControllerNodes) -> None:
        response = await nodes.admin(
            ApiKey.CREATE_TOPICS,
            topics=[
                topic("a", 3, configs=[{"name": "retention.ms", "value": "7"}]),
                topic("b", configs=[{"name": "retention.ms", "value": "no number"}]),
                topic("c"),
                topic("c"),
                topic("d", configs=[{"name": "retention.ms", "value": None}]),
                topic("__cluster_metadata"),
                topic("e", replication_factor=3),
                topic("f", assignments=[{"partition_index": 0, "broker_ids": (1,)}]),
                topic(
                    "g",
                    -1,
                    replication_factor=-1,
                    assignments=[{"partition_index": 1, "broker_ids": (1,)}],
                ),
            ],
        )
        found = {one.name: (one.error_code, one.error_message) for one in response.topics}
        assert [one.name for one in response.topics].count("c") == 1
        assert {name: code for name, (code, _) in found.items()} == {
            "a": ErrorCode.none,
            "b": ErrorCode.invalid_config,
            "c": ErrorCode.invalid_request,
            "d": ErrorCode.invalid_config,
            "__cluster_metadata": ErrorCode.invalid_topic_exception,
            "e": ErrorCode.invalid_replication_factor,
            "f": ErrorCode.invalid_request,
            "g": ErrorCode.invalid_replica_assignment,
        }
        assert found["c"][1] == "Duplicate topic name."
        (created,) = (one for one in response.topics if one.name == "a")
        assert (created.num_partitions, created.replication_factor) == (3, 2)
        configs = {one.name: (one.value, one.config_source) for one in created.configs}
        assert configs["retention.ms"] == ("7", SOURCES["topic"])
        assert configs["min.insync.replicas"] == ("1", SOURCES["cluster"])
        assert configs["segment.bytes"] == ("1073741824", SOURCES["default"])
        state = controller_of(nodes.nodes[0]).state
        assert [name for name in "abcdefg" if state.topic(name) is not None] == ["a"]

    run(tmp_path, check)


def test_too_many_partitions_in_a_request_are_a_policy_violation(tmp_path: Path) -> None:
    async def check(nodes: ControllerNodes) -> None:
        topics = [topic("a", 5_000), topic("b", 5_001)]
        response = await nodes.admin(ApiKey.CREATE_TOPICS, topics=topics)
        codes = {code for code, _ in results(response, "topics").values()}
        assert codes == {ErrorCode.policy_violation}

    run(tmp_path, check)


def test_validation_alone_changes_nothing(tmp_path: Path) -> None:
    async def check(nodes: ControllerNodes) -> None:
        before = end_offset(nodes)
        created = await nodes.admin(ApiKey.CREATE_TOPICS, topics=[topic("a")], validate_only=True)
        assert results(created, "topics")["a"] == (ErrorCode.none, None)
        change = {"name": "log.retention.ms", "config_operation": SET, "value": "1"}
        altered = await nodes.admin(
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            resources=[{"resource_type": BROKER, "resource_name": "", "configs": [change]}],
            validate_only=True,
        )
        assert altered.responses[0].error_code is ErrorCode.none
        feature = {"feature": "group.version", "max_version_level": 0, "upgrade_type": 2}
        updated = await nodes.admin(
            ApiKey.UPDATE_FEATURES, feature_updates=[feature], validate_only=True
        )
        assert updated.error_code is ErrorCode.none
        assert end_offset(nodes) == before

    run(tmp_path, check)


def test_topics_are_deleted_by_name_or_id(tmp_path: Path) -> None:
    async def check(nodes: ControllerNodes) -> None:
        created = await nodes.admin(ApiKey.CREATE_TOPICS, topics=[topic(name) for name in "abcd"])
        ids = {one.name: one.topic_id for one in created.topics}
        response = await nodes.admin(
            ApiKey.DELETE_TOPICS,
            topics=[
                {"name": "a"},
                {"topic_id": ids["b"]},
                {"name": "c"},
                {"topic_id": ids["c"]},
                {"name": "no"},
                {"name": None},
                {"name": "d", "topic_id": ids["d"]},
            ],
        )
        assert [(one.name, one.error_code) for one in response.responses] == [
            ("a", ErrorCode.none),
            ("b", ErrorCode.none),
            ("c", ErrorCode.invalid_request),
            (None, ErrorCode.invalid_request),
            ("no", ErrorCode.unknown_topic_or_partition),
            (None, ErrorCode.invalid_request),
            ("d", ErrorCode.invalid_request),
        ]
        old = await nodes.admin(ApiKey.DELETE_TOPICS, 5, topic_names=["c", "a"])
        assert [(one.name, one.error_code) for one in old.responses] == [
            ("c", ErrorCode.none),
            ("a", ErrorCode.unknown_topic_or_partition),
        ]
        state = controller_of(nodes.nodes[0]).state
        assert [name for name in "abcd" if state.topic(name) is not None] == ["d"]

    run(tmp_path, check)


def test_partitions_are_added(tmp_path: Path) -> None:
    async def check(nodes: ControllerNodes) -> None:
        await nodes.admin(ApiKey.CREATE_TOPICS, topics=[topic("a", 2), topic("b")])
        response = await nodes.admin(
            ApiKey.CREATE_PARTITIONS,
            topics=[
                {"name": "a", "count": 5, "assignments": None},
                {"name": "b", "count": 1, "assignments": None},
                {"name": "no", "count": 2, "assignments": None},
            ],
        )
        assert {name: code for name, (code, _) in results(response, "results").items()} == {
            "a": ErrorCode.none,
            "b": ErrorCode.invalid_partitions,
            "no": ErrorCode.unknown_topic_or_partition,
        }
        state = controller_of(nodes.nodes[0]).state
        assert len(state.partition_keys(state.topic("a").topic_id)) == 5

    run(tmp_path, check)


def test_a_resource_is_described_once_in_a_request(tmp_path: Path) -> None:
    async def check(nodes: ControllerNodes) -> None:
        await nodes.add_brokers(1)
        await nodes.admin(ApiKey.CREATE_TOPICS, topics=[topic("a"), topic("b")])
        resources = [{"resource_type": TOPIC, "resource_name": name} for name in "aba"]
        found = await nodes.admin(ApiKey.DESCRIBE_CONFIGS, resources=resources)
        assert [(one.resource_name, one.error_code) for one in found.results] == [
            ("a", ErrorCode.invalid_request),
            ("b", ErrorCode.none),
        ]

    run(tmp_path, check)


def test_a_message_is_no_longer_than_its_field(tmp_path: Path) -> None:
    """A name from the request is a part of it: the response of valid parts is not lost."""

    async def check(nodes: ControllerNodes) -> None:
        name = "x" * 32_767
        configs = [{"name": name, "value": "1", "config_operation": 0}]
        resource = {"resource_type": TOPIC, "resource_name": "a", "configs": configs}
        altered = await nodes.admin(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=[resource])
        (response,) = altered.responses
        assert response.error_code is ErrorCode.invalid_config
        assert response.error_message.startswith("Unknown config name: xxx")

    run(tmp_path, check)


def test_configs_are_altered_and_described(tmp_path: Path) -> None:
    async def alter(nodes: ControllerNodes, name: str, *changes: tuple[str, int, Any]) -> Any:
        configs = [
            {"name": config, "config_operation": operation, "value": value}
            for config, operation, value in changes
        ]
        resource = {"resource_type": TOPIC, "resource_name": name, "configs": configs}
        response = await nodes.admin(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=[resource])
        return response.responses[0].error_code, response.responses[0].error_message

    async def described(nodes: ControllerNodes, *names: str, **more: Any) -> Any:
        resource = {"resource_type": TOPIC, "resource_name": "a", "configuration_keys": names}
        response = await nodes.admin(ApiKey.DESCRIBE_CONFIGS, resources=[resource], **more)
        return response.results[0].configs

    async def check(nodes: ControllerNodes) -> None:
        await nodes.admin(ApiKey.CREATE_TOPICS, topics=[topic("a")])
        done = ErrorCode.none, None
        assert await alter(nodes, "a", ("cleanup.policy", APPEND, "compact")) == done
        assert await alter(nodes, "a", ("retention.ms", SET, "5")) == done
        (cleanup, retention) = await described(nodes, "cleanup.policy", "retention.ms")
        assert (cleanup.value, cleanup.config_type) == ("delete,compact", 7)
        assert retention.value == "5"
        assert await alter(nodes, "a", ("cleanup.policy", SUBTRACT, "delete")) == done
        assert await alter(nodes, "a", ("retention.ms", DELETE, None)) == done
        await nodes.admin(
            ApiKey.ALTER_CONFIGS,
            resources=[
                {
                    "resource_type": BROKER,
                    "resource_name": "",
                    "configs": [
                        {"name": "min.insync.replicas", "value": "1"},
                        {"name": "log.retention.ms", "value": "9"},
                    ],
                }
            ],
        )
        found = await described(nodes, "cleanup.policy", "retention.ms", include_synonyms=True)
        assert [(one.value, one.config_source) for one in found] == [
            ("compact", SOURCES["topic"]),
            ("9", SOURCES["cluster"]),
        ]
        assert [(one.name, one.value) for one in found[1].synonyms] == [
            ("log.retention.ms", "9"),
            ("log.retention.ms", "604800000"),
        ]
        assert (await alter(nodes, "no", ("retention.ms", SET, "5")))[0] == (
            ErrorCode.unknown_topic_or_partition
        )
        assert (await alter(nodes, "a", ("retention.ms", 9, "5")))[0] == ErrorCode.invalid_request
        unknown = {"resource_type": TOPIC, "resource_name": "no", "configuration_keys": None}
        response = await nodes.admin(ApiKey.DESCRIBE_CONFIGS, resources=[unknown])
        assert response.results[0].error_code is ErrorCode.unknown_topic_or_partition

    run(tmp_path, check)


def test_the_log_itself_is_described_to_its_clients(tmp_path: Path) -> None:
    async def check(nodes: ControllerNodes) -> None:
        log = {
            "resource_type": TOPIC,
            "resource_name": "__cluster_metadata",
            "configuration_keys": ("raftlog.values", "max.message.bytes"),
        }
        response = await nodes.admin(ApiKey.DESCRIBE_CONFIGS, resources=[log])
        assert {one.name: one.value for one in response.results[0].configs} == {
            "raftlog.values": "kraft",
            "max.message.bytes": "8388608",
        }

    run(tmp_path, check)


def test_secrets_are_not_described(tmp_path: Path) -> None:
    async def check(nodes: ControllerNodes) -> None:
        resource = {
            "resource_type": BROKER,
            "resource_name": "1",
            "configs": [
                {"name": "ssl.key.password", "config_operation": SET, "value": "xyzzy-secret"}
            ],
        }
        altered = await nodes.admin(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=[resource])
        assert altered.responses[0].error_code is ErrorCode.none
        wanted = {"resource_type": BROKER, "resource_name": "1", "configuration_keys": None}
        found = await nodes.admin(
            ApiKey.DESCRIBE_CONFIGS, resources=[wanted], include_synonyms=True
        )
        assert "xyzzy" not in repr(found)
        assert [(one.name, one.is_sensitive) for one in found.results[0].configs] == [
            ("ssl.key.password", True)
        ]

    run(tmp_path, check)


def test_acls_are_created_described_and_deleted_by_filters(tmp_path: Path) -> None:
    def acl(principal: str, operation: int, pattern: int = LITERAL) -> dict[str, Any]:
        return {
            "resource_type": TOPIC,
            "resource_name": "orders",
            "resource_pattern_type": pattern,
            "principal": principal,
            "host": "*",
            "operation": operation,
            "permission_type": ALLOW,
        }

    def acl_filter(principal: str | None = None) -> dict[str, Any]:
        return {
            "resource_type_filter": TOPIC,
            "resource_name_filter": "orders",
            "pattern_type_filter": ANY,
            "principal_filter": principal,
            "host_filter": None,
            "operation": ANY,
            "permission_type": ANY,
        }

    async def check(nodes: ControllerNodes) -> None:
        created = await nodes.admin(
            ApiKey.CREATE_ACLS,
            creations=[
                acl("User:a", READ),
                acl("User:b", WRITE),
                acl("User:b", READ, PREFIXED),
                acl("no-colon", READ),
            ],
        )
        codes = [one.error_code for one in created.results]
        assert codes == [ErrorCode.none] * 3 + [ErrorCode.invalid_request]
        found = await nodes.admin(ApiKey.DESCRIBE_ACLS, **acl_filter())
        assert {
            (at.pattern_type, one.principal, one.operation)
            for at in found.resources
            for one in at.acls
        } == {
            (LITERAL, "User:a", READ),
            (LITERAL, "User:b", WRITE),
            (PREFIXED, "User:b", READ),
        }
        deleted = await nodes.admin(
            ApiKey.DELETE_ACLS, filters=[acl_filter("User:b"), acl_filter("no")]
        )
        assert [len(one.matching_acls) for one in deleted.filter_results] == [2, 0]
        left = await nodes.admin(ApiKey.DESCRIBE_ACLS, **acl_filter())
        assert [one.principal for at in left.resources for one in at.acls] == ["User:a"]

    run(tmp_path, check)


def test_quotas_and_credentials_of_users(tmp_path: Path) -> None:
    async def check(nodes: ControllerNodes) -> None:
        entity = [{"entity_type": "user", "entity_name": "a"}]
        ops = [{"key": "producer_byte_rate", "value": 1024.0, "remove": False}]
        bad = [{"key": "no_such_quota", "value": 1.0, "remove": False}]
        altered = await nodes.admin(
            ApiKey.ALTER_CLIENT_QUOTAS,
            entries=[
                {"entity": entity, "ops": ops},
                {"entity": [{"entity_type": "user", "entity_name": None}], "ops": bad},
            ],
        )
        assert [one.error_code for one in altered.entries] == [
            ErrorCode.none,
            ErrorCode.invalid_request,
        ]
        component = {"entity_type": "user", "match_type": 2, "match": None}
        described = await nodes.admin(
            ApiKey.DESCRIBE_CLIENT_QUOTAS, components=[component], strict=True
        )
        assert [
            (one.entity[0].entity_name, one.values[0].key, one.values[0].value)
            for one in described.entries
        ] == [("a", "producer_byte_rate", 1024.0)]

        credential = {
            "name": "a",
            "mechanism": SCRAM_SHA_256,
            "iterations": 8192,
            "salt": b"salt",
            "salted_password": b"salted",
        }
        scram = await nodes.admin(
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
            upsertions=[credential, {**credential, "name": "b", "iterations": 1}],
            deletions=[{"name": "c", "mechanism": SCRAM_SHA_256}],
        )
        assert {one.user: one.error_code for one in scram.results} == {
            "a": ErrorCode.none,
            "b": ErrorCode.unacceptable_credential,
            "c": ErrorCode.resource_not_found,
        }
        users = await nodes.admin(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, users=None)
        assert [
            (one.user, one.credential_infos[0].mechanism, one.credential_infos[0].iterations)
            for one in users.results
        ] == [("a", SCRAM_SHA_256, 8192)]

    run(tmp_path, check)


def test_features_are_updated_all_or_none(tmp_path: Path) -> None:
    async def check(nodes: ControllerNodes) -> None:
        down = {"feature": "group.version", "max_version_level": 0, "upgrade_type": 2}
        refused = await nodes.admin(
            ApiKey.UPDATE_FEATURES,
            feature_updates=[
                down,
                {"feature": "transaction.version", "max_version_level": 9, "upgrade_type": 1},
            ],
        )
        assert refused.error_code is ErrorCode.invalid_update_version
        assert refused.error_message.startswith("The update failed for all features since")
        state = controller_of(nodes.nodes[0]).state
        assert {row.name: row.level for row in features(state)}["group.version"] == 1
        done = await nodes.admin(ApiKey.UPDATE_FEATURES, 1, feature_updates=[down])
        assert done.error_code is ErrorCode.none
        assert [(one.feature, one.error_code) for one in done.results] == [
            ("group.version", ErrorCode.none)
        ]
        assert "group.version" not in {row.name for row in features(state)}

    run(tmp_path, check)


def features(state: Any) -> Any:
    from raftlog_state.image import FeatureRow

    return state.rows_of(FeatureRow)
