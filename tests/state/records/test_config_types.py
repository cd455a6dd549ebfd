"""Secret configs, according to Kafka's definitions."""

from __future__ import annotations

import pytest

from raftlog_state.records import config_type, is_secret_config

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32

KNOWN = [
    (TOPIC, "retention.ms", "LONG"),
    (TOPIC, "cleanup.policy", "LIST"),
    (TOPIC, "leader.replication.throttled.replicas", "LIST"),
    (TOPIC, "message.format.version", "STRING"),  # until 3.9
    (BROKER, "log.retention.ms", "LONG"),
    (BROKER, "leader.replication.throttled.rate", "LONG"),
    (BROKER, "zookeeper.connect", "STRING"),  # until 3.9
    (BROKER, "ssl.keystore.password", "PASSWORD"),
    (BROKER, "sasl.jaas.config", "PASSWORD"),
    (BROKER, "delegation.token.master.key", "PASSWORD"),  # until 3.9
    (BROKER, "listener.name.external.ssl.key.password", "PASSWORD"),
    (BROKER, "listener.name.external.ssl.keystore.location", "STRING"),
    (BROKER, "listener.name.external.plain.sasl.jaas.config", "PASSWORD"),
    (BROKER, "listener.name.external.scram-sha-256.sasl.jaas.config", "PASSWORD"),
    (BROKER, "listener.name.external.sasl.jaas.config", "PASSWORD"),
    (BROKER, "listener.name.external.plain.connections.max.reauth.ms", "LONG"),
    (CLIENT_METRICS, "interval.ms", "INT"),
    (GROUP, "consumer.session.timeout.ms", "INT"),
]

UNKNOWN = [
    (TOPIC, "ssl.key.password"),
    (TOPIC, "log.retention.ms"),
    (TOPIC, "listener.name.a.ssl.keystore.location"),
    (TOPIC, ""),
    (BROKER, "retention.ms"),
    (BROKER, "rsm.config.bucket"),
    (BROKER, "listener.name.external.plain.ssl.key.password"),
    (BROKER, "listener.name.external."),
    (BROKER, "listener.name.ssl.key.password"),
    (BROKER, "my.listener.name.external.ssl.keystore.location"),
    (BROKER, "SSL.KEYSTORE.LOCATION"),
    (BROKER_LOGGER, "kafka.server.KafkaApis"),
    (GROUP, "retention.ms"),
    (CLIENT_METRICS, "retention.ms"),
    (0, "retention.ms"),
    (-1, "retention.ms"),
]


@pytest.mark.parametrize(("resource_type", "name", "kafka_type"), KNOWN)
def test_config_types_equal_kafkas(resource_type: int, name: str, kafka_type: str) -> None:
    assert config_type(resource_type, name) == kafka_type
    assert is_secret_config(resource_type, name) == (kafka_type == "PASSWORD")


@pytest.mark.parametrize(("resource_type", "name"), UNKNOWN)
def test_a_config_unknown_to_kafka_is_secret(resource_type: int, name: str) -> None:
    assert config_type(resource_type, name) is None
    assert is_secret_config(resource_type, name)
