"""Cases of Kafka's ``ConfigurationControlManagerTest``; the docstrings name them."""

from __future__ import annotations

from functools import partial

import pytest
from tests.support.controller_context import ControllerContext, error_of, write

from raftlog_state.controller import CreateTopic, FenceBroker, SetFeature
from raftlog_state.controller.configs import (
    AlterConfig,
    ConfigOperation,
    ConfigResource,
    incremental_alter_configs,
    legacy_alter_configs,
    resource_configs,
)
from raftlog_state.records import ClearElrRecord, ConfigRecord

TOPIC = ConfigResource(2, "orders")
BROKER = ConfigResource(4, "1")
SET, DELETE, APPEND, SUBTRACT = ConfigOperation
POLICY, RETENTION, REPORTERS = "cleanup.policy", "retention.ms", "metric.reporters"
LAGS = "min.compaction.lag.ms", "max.compaction.lag.ms"
MIN_ISR = "min.insync.replicas"
NO_ERROR = (0, "")


def context(*, elr: bool = False) -> ControllerContext:
    found = ControllerContext(brokers=2, elr=elr)
    found.apply(CreateTopic(topic="orders", assignment=((1, 2),)))
    return found


def alter(
    at: ControllerContext, resource: ConfigResource, *operations: AlterConfig
) -> tuple[int, str]:
    (result,) = at.run(
        lambda state: incremental_alter_configs({resource: operations}, state)
    ).items()
    assert result[0] == resource
    return error_of(result[1])


def record(resource: ConfigResource, name: str, value: str | None) -> ConfigRecord:
    kind, resource_name = resource
    return ConfigRecord(resource_type=kind, resource_name=resource_name, name=name, value=value)


def test_configs_of_resources_are_replayed() -> None:
    """ConfigurationControlManagerTest.testReplay"""
    at = context()
    assert resource_configs(BROKER, at.state) == {}
    at.replay(record(BROKER, REPORTERS, "a,b"))
    assert resource_configs(BROKER, at.state) == {REPORTERS: "a,b"}
    at.replay(record(BROKER, REPORTERS, None))
    assert resource_configs(BROKER, at.state) == {}
    at.replay(record(TOPIC, POLICY, "compact"), record(TOPIC, RETENTION, "7"))
    assert resource_configs(TOPIC, at.state) == {POLICY: "compact", RETENTION: "7"}
    assert at.state.topic_config("orders", POLICY) == "compact"


def test_a_refused_config_leaves_the_other_resources_of_a_request() -> None:
    """ConfigurationControlManagerTest.testIncrementalAlterConfigs"""
    at = context()
    changes = {
        BROKER: [AlterConfig("log.dir", SET, "/a"), AlterConfig("num.io.threads", SUBTRACT, "1")],
        TOPIC: [AlterConfig(POLICY, APPEND, "compact")],
    }
    result = at.run(lambda state: incremental_alter_configs(changes, state))
    reason = "Can't SUBTRACT to key num.io.threads because its type is not LIST"
    assert {key: error_of(one) for key, one in result.items()} == {
        BROKER: (40, reason),
        TOPIC: NO_ERROR,
    }
    assert at.written == [record(TOPIC, POLICY, "delete,compact")]
    assert alter(at, TOPIC, AlterConfig(POLICY, DELETE, "ignored")) == NO_ERROR
    assert at.written == [record(TOPIC, POLICY, None)]


def test_an_appended_element_follows_the_default() -> None:
    """ConfigurationControlManagerTest.testIncrementalAlterConfig"""
    at = context()
    throttled = "leader.replication.throttled.replicas"
    assert alter(at, TOPIC, AlterConfig(throttled, APPEND, "0:1")) == NO_ERROR
    assert at.written == [record(TOPIC, throttled, "0:1")]
    assert alter(at, BROKER, AlterConfig("sasl.enabled.mechanisms", APPEND, "PLAIN")) == NO_ERROR
    assert at.written == [record(BROKER, "sasl.enabled.mechanisms", "GSSAPI,PLAIN")]


def test_several_elements_are_appended_and_removed() -> None:
    """ConfigurationControlManagerTest.testIncrementalAlterMultipleConfigValues"""
    at = context()
    throttled = "follower.replication.throttled.replicas"
    for operation, value, written in (
        (APPEND, "0:1,1:1,2:1", "0:1,1:1,2:1"),
        (APPEND, "1:1,0:1", None),
        (SUBTRACT, "0:1,1:1", "2:1"),
        (SUBTRACT, "9:9", None),
        (SUBTRACT, "2:1", ""),
    ):
        assert alter(at, TOPIC, AlterConfig(throttled, operation, value)) == NO_ERROR
        assert at.written == ([] if written is None else [record(TOPIC, throttled, written)])


def test_resources_must_exist() -> None:
    """ConfigurationControlManagerTest.testIncrementalAlterConfigsWithoutExistence"""
    at = context()
    set_one = AlterConfig(RETENTION, SET, "1")
    missing = ConfigResource(2, "missing")
    result = at.run(
        lambda state: incremental_alter_configs({missing: [set_one], TOPIC: [set_one]}, state)
    )
    assert error_of(result[missing]) == (3, "The topic 'missing' does not exist")
    assert at.written == [record(TOPIC, RETENTION, "1")]
    for name, error in (
        ("7", (102, "No node with id 7 found")),
        ("one", (42, "Unable to parse broker name as a base 10 number")),
        ("-1", (42, "Invalid negative broker ID")),
        ("", NO_ERROR),
    ):
        assert alter(at, ConfigResource(4, name), AlterConfig("log.dir", SET, "/a")) == error


def test_all_configs_of_a_resource_are_replaced() -> None:
    """ConfigurationControlManagerTest.testLegacyAlterConfigs"""
    at = context()

    def replace(**configs: str) -> list[object]:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        result = at.run(lambda state: legacy_alter_configs({TOPIC: named}, state))
        assert error_of(result[TOPIC]) == NO_ERROR
        return list(at.written)

    assert replace(cleanup_policy="compact", retention_ms="1") == [
        record(TOPIC, POLICY, "compact"),
        record(TOPIC, RETENTION, "1"),
    ]
    assert replace(retention_ms="1") == [record(TOPIC, POLICY, None)]
    assert replace(retention_ms="2") == [record(TOPIC, RETENTION, "2")]


def test_a_config_of_a_broker_is_written_even_if_it_is_equal() -> None:
    """ConfigurationControlManagerTest.testIncrementalAlterConfigsWithPolicy"""
    at = context()
    changes = (AlterConfig("log.dir", SET, "/a"), AlterConfig("num.io.threads", DELETE))
    for _ in range(2):
        assert alter(at, BROKER, *changes) == NO_ERROR
        assert at.written == [
            record(BROKER, "log.dir", "/a"),
            record(BROKER, "num.io.threads", None),
        ]


def test_a_config_without_a_value_is_refused() -> None:
    at = context()
    error = alter(at, TOPIC, AlterConfig(RETENTION, SET, "1"), AlterConfig(POLICY, APPEND))
    assert error == (42, f"Null value not supported for : {POLICY}")
    assert at.written == []


def test_a_value_may_have_32767_bytes() -> None:
    at = context()
    assert alter(at, BROKER, AlterConfig("log.dir", SET, "a" * 32_767)) == NO_ERROR
    code, reason = alter(at, BROKER, AlterConfig("log.dir", SET, "a" * 32_768))
    assert code == 40
    assert "exceeds the maximum value size of 32767 bytes" in reason


def test_a_change_of_min_isr_clears_eligible_leader_replicas() -> None:
    """QuorumControllerTest.testMinIsrUpdateWithElr"""
    at = context(elr=True)
    assert alter(at, TOPIC, AlterConfig("min.insync.replicas", SET, "2")) == NO_ERROR
    assert at.written[1:] == [ClearElrRecord(topic_name="orders")]
    default = ConfigResource(4, "")
    assert alter(at, default, AlterConfig("min.insync.replicas", SET, "2")) == NO_ERROR
    assert at.written[1:] == [ClearElrRecord(topic_name="")]


def test_both_compaction_lags_are_changed_together() -> None:
    at = context()
    low, high = LAGS
    assert alter(at, TOPIC, AlterConfig(low, SET, "1"), AlterConfig(high, SET, "2")) == NO_ERROR
    assert alter(at, TOPIC, AlterConfig(low, SET, "5"), AlterConfig(high, SET, "6")) == NO_ERROR
    assert alter(at, TOPIC, AlterConfig(low, SET, "7"))[0] == 40


@pytest.mark.parametrize(
    "name", ["9" * 5000, "-" + "9" * 5000, str(2**31)], ids=["long", "negative", "31 bits"]
)
def test_the_name_of_a_broker_is_a_number_of_32_bits(name: str) -> None:
    at = context()
    reason = "Unable to parse broker name as a base 10 number"
    assert alter(at, ConfigResource(4, name), AlterConfig(RETENTION, SET, "1")) == (42, reason)


def test_numbers_may_have_any_count_of_zeros_but_not_of_digits() -> None:
    at = context()
    zeros, digits = "0" * 5000, "9" * 5000
    lags = [AlterConfig(name, SET, zeros + "7") for name in LAGS]
    assert alter(at, TOPIC, *lags, AlterConfig(MIN_ISR, SET, zeros + "2")) == NO_ERROR
    assert alter(at, ConfigResource(4, zeros + "1"), AlterConfig("x", SET, "1")) == NO_ERROR
    assert at.apply(FenceBroker(broker_id=2)), "min.insync.replicas is valid"
    reason = "Not a number of type LONG: it does not fit into 64 bits"
    assert alter(at, TOPIC, AlterConfig(RETENTION, SET, digits)) == (40, reason)


def test_validated_changes_are_not_written() -> None:
    """QuorumControllerTest.testConfigurationOperations"""
    at = context()
    changes = {TOPIC: [AlterConfig(RETENTION, SET, "1")], BROKER: [AlterConfig("x", APPEND, "1")]}

    result = at.run(
        lambda state: state.validate_only_in_steps(partial(incremental_alter_configs, changes))
    )
    assert [error_of(one) for one in result.values()] == [
        NO_ERROR,
        (40, "Can't APPEND to key x because its type is not LIST"),
    ]
    assert at.written == []
    assert resource_configs(TOPIC, at.state) == {}


@pytest.mark.parametrize("removes", [False, True])
def test_min_isr_of_a_broker_is_fixed_while_elr_is_enabled(removes: bool) -> None:
    """ConfigurationControlManagerTest.testRejectMinIsrChangeWhenElrEnabled"""
    at = context(elr=True)
    name = "min.insync.replicas"
    operation = AlterConfig(name, DELETE) if removes else AlterConfig(name, SET, "3")
    reason = f"Broker-level {name} cannot be altered while ELR is enabled"
    assert alter(at, BROKER, operation) == (40, reason)
    reason = f"Cluster-level {name} cannot be removed while ELR is enabled"
    assert alter(at, ConfigResource(4, ""), operation) == ((40, reason) if removes else NO_ERROR)


def test_enabled_elr_has_a_min_isr_of_the_cluster_only() -> None:
    """ConfigurationControlManagerTest.testMaybeGenerateElrSafetyRecords"""
    at = ControllerContext(brokers=2, level=23)
    assert alter(at, BROKER, AlterConfig("min.insync.replicas", SET, "3")) == NO_ERROR
    feature = SetFeature(feature="eligible.leader.replicas.version", level=1)
    default = ConfigResource(4, "")
    assert at.apply(feature)[:-1] == [
        record(default, "min.insync.replicas", "1"),
        record(BROKER, "min.insync.replicas", None),
    ]


@pytest.mark.parametrize("level", [22, 23])
def test_elr_needs_a_metadata_version(level: int) -> None:
    """ConfigurationControlManagerTest.testElrUpgrade"""
    at = ControllerContext(brokers=1, level=level)
    feature = SetFeature(feature="eligible.leader.replicas.version", level=1)
    if level == 23:
        assert at.apply(feature)
        assert at.state.versions.elr
    else:
        code, _ = at.refused(lambda state: write(feature, state))
        assert code == 95


@pytest.mark.parametrize("level", [29, 30])
def test_cordoned_directories_need_a_metadata_version_and_a_broker(level: int) -> None:
    """ConfigurationControlManagerTest.testCordonedLogDirsFeature"""
    at = ControllerContext(brokers=1, level=level)
    assert (alter(at, BROKER, AlterConfig("cordoned.log.dirs", SET, ""))[0] == 0) is (level == 30)
    code, reason = alter(at, BROKER, AlterConfig("cordoned.log.dirs", SET, "*"))
    assert code == 40
    assert ("must be a subset" if level == 30 else "requires metadata.version") in reason


@pytest.mark.parametrize(("level", "is_disabled"), [(29, True), (30, False)])
def test_other_broker_configs_need_no_metadata_version(level: int, is_disabled: bool) -> None:
    """ConfigurationControlManagerTest.testIsCordonedLogDirsDisabled"""
    at = ControllerContext(brokers=1, level=level)
    assert alter(at, BROKER, AlterConfig("log.dirs", SET, "/a")) == NO_ERROR
    assert (alter(at, BROKER, AlterConfig("cordoned.log.dirs", DELETE))[0] == 40) is is_disabled


@pytest.mark.parametrize(
    ("current", "value", "is_refused"),
    [
        (None, "", False),
        (None, "   ", False),
        ("a", "a", False),
        ("a,b", "b,a", False),
        ("a , b", "b", False),
        ("b", "a", True),
        ("", "a", True),
        (None, "a", True),
    ],
)
def test_a_controller_only_uncordons(current: str | None, value: str, is_refused: bool) -> None:
    """ConfigurationControlManagerTest.testIsCordonedLogDirsInvalid"""
    at = context()
    changes = {BROKER: [AlterConfig("cordoned.log.dirs", SET, value)]}
    if current is not None:
        at.replay(record(BROKER, "cordoned.log.dirs", current))
    assert (alter(at, BROKER, *changes[BROKER])[0] == 40) is is_refused
    result = at.run(lambda state: incremental_alter_configs(changes, state, is_forwarded=True))
    assert error_of(result[BROKER]) == NO_ERROR


def test_configs_unknown_to_this_release_do_not_block_others() -> None:
    """ConfigurationControlManagerTest.testValidateAlterConfigWithInvalidExistingConfigs"""
    at = context()
    at.replay(record(TOPIC, "invalid.config", "1"))
    assert alter(at, TOPIC, AlterConfig(RETENTION, SET, "1")) == NO_ERROR
    assert alter(at, TOPIC, AlterConfig("invalid.config", DELETE)) == NO_ERROR
