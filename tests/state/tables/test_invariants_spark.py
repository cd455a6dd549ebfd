"""Each rule finds rows that violate it alone; real logs satisfy all rules."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.metadata_logs import LOGS, MetadataLog, metadata_log, restored
from tests.support.tables import Feed

from raftlog.records.control import LeaderChange
from raftlog_state.records import TopicRecord, decode
from raftlog_state.tables.invariants import rules, violations
from raftlog_state.tables.schema import BY_NAME, ORIGIN_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Rows = list[dict[str, Any]]

HISTORY_COLUMNS = {"valid_from": pa.int64(), "valid_to": pa.int64()}
SHOP, OTHER = "ZIJvUG7kRnCUclpym7nbPg", "tYeGOEg5ShuK9zHO5T3Pyg"
HERE, THERE = "oEgEPrivuWNp7aKJQ-ndSA", "rnew8ziT9D5U9OIedEcrLA"
SECRETS = {"value", "salt", "stored_key", "server_key"}
DAY = datetime(2026, 11, 21, tzinfo=UTC)


def partition(number: int, **values: Any) -> dict[str, Any]:
    return {
        "topic_id": SHOP,
        "partition_id": number,
        "topic_name": "shop",
        "replicas": [1, 2],
        "isr": [1],
        "adding_replicas": [2],
        "removing_replicas": [],
        "elr": [2],
        "last_known_elr": [],
        "directories": [HERE, THERE],
        "leader": 1,
        "leader_epoch": 3,
        "partition_epoch": 4,
        "leader_recovery_state": 0,
        "_offset": 20,
        **values,
    }


VALID: Mapping[str, Rows] = {
    "features": [{"name": "metadata.version", "level": 30}, {"name": "share.version", "level": 1}],
    "brokers": [
        {"broker_id": 1, "incarnation_id": HERE, "broker_epoch": 5},
        {"broker_id": 2, "incarnation_id": THERE, "broker_epoch": 6},
    ],
    "controllers": [{"controller_id": 100, "incarnation_id": HERE}],
    "topics": [
        {"topic_id": SHOP, "name": "shop", "_offset": 10},
        {"topic_id": OTHER, "name": "begun in this batch", "_offset": 21},
    ],
    "partitions": [
        partition(0),
        partition(1, leader=-1, isr=[2], elr=[], leader_recovery_state=1),
    ],
    "configs": [
        {"resource_type": 2, "resource_name": "shop", "name": "retention.ms", "value": "1"},
        {"resource_type": 4, "resource_name": "", "name": "log.cleaner.threads", "value": "1"},
    ],
    "quotas": [
        {"entity": [("user", None), ("client-id", "a")], "quota": "rate", "value": 1.0},
        {"entity": [("ip", "::1")], "quota": "connection_creation_rate", "value": 1.0},
    ],
    "producer_ids": [{"next_producer_id": 2000}],
    "acls": [
        {
            "acl_id": HERE,
            "resource_type": 2,
            "resource_name": "*",
            "pattern_type": 3,
            "operation": 3,
            "permission": 3,
        }
    ],
    "scram": [{"user": "ann", "mechanism": 1, "iterations": 4096}],
    "tokens": [
        {"issue_timestamp": DAY, "expiration_timestamp": DAY, "max_timestamp": DAY},
    ],
    "epochs": [
        {"leader_epoch": 1, "start_offset": 0, "end_offset": 9},
        {"leader_epoch": 2, "start_offset": 9, "end_offset": None},
        {"leader_epoch": 7, "start_offset": None, "end_offset": 30},
        {"leader_epoch": 9, "start_offset": 30, "end_offset": None},
    ],
    "transactions": [
        {"begin_offset": 3, "end_offset": 12, "outcome": "committed", "record_count": 7},
        {"begin_offset": 12, "end_offset": 14, "outcome": "aborted", "record_count": 0},
    ],
    "partitions_history": [
        partition(0, leader_epoch=3, partition_epoch=3, valid_from=15),
        partition(0, valid_from=20),
        partition(0, valid_from=30),
        partition(1, leader_epoch=0, partition_epoch=0, valid_from=31),
    ],
    "brokers_history": [
        {"broker_id": 1, "incarnation_id": HERE, "broker_epoch": 5, "valid_from": 5},
        {"broker_id": 1, "incarnation_id": HERE, "broker_epoch": 5, "valid_from": 6},
        {"broker_id": 2, "incarnation_id": THERE, "broker_epoch": 3, "valid_from": 7},
    ],
    "producer_ids_history": [
        {"next_producer_id": 1000, "valid_from": 8},
        {"next_producer_id": 1000, "valid_from": 9},
    ],
}
"""Rows that satisfy all rules, close to the limits of each. Columns that are left out are null."""

VIOLATIONS: Mapping[str, Sequence[tuple[str, int, dict[str, Any]]]] = {
    "acl_is_valid": [
        ("acls", 0, {"resource_type": 1}),
        ("acls", 0, {"operation": 1}),
        ("acls", 0, {"pattern_type": 2}),
        ("acls", 0, {"permission": 1}),
        ("acls", 0, {"resource_name": ""}),
    ],
    "broker_epochs_never_fall": [
        ("brokers_history", 1, {"broker_epoch": 4}),
        ("brokers_history", 1, {"incarnation_id": THERE}),
    ],
    "config_has_a_value": [("configs", 0, {"value": None}), ("configs", 0, {"name": ""})],
    "config_of_topic_names_a_topic": [("configs", 0, {"resource_name": "shops"})],
    "epoch_begins_where_the_earlier_one_ended": [
        ("epochs", 0, {"end_offset": 8}),
        ("epochs", 0, {"end_offset": None}),
        ("epochs", 2, {"end_offset": 29}),
        ("epochs", 3, {"end_offset": 31}),
    ],
    "epoch_has_records": [("epochs", 0, {"start_offset": 9})],
    "feature_levels_are_positive": [("features", 1, {"level": 0})],
    "feature_metadata_version_is_known": [("features", 0, {"name": "group.version"})],
    "node_ids_are_not_negative": [
        ("brokers", 1, {"broker_id": -1}),
        ("controllers", 0, {"controller_id": -1}),
    ],
    "partition_adding_replicas_are_replicas": [("partitions", 0, {"adding_replicas": [3]})],
    "partition_directories_match_replicas": [("partitions", 0, {"directories": [HERE]})],
    "partition_epochs_never_fall": [
        ("partitions_history", 1, {"leader_epoch": 2}),
        ("partitions_history", 2, {"partition_epoch": 3}),
    ],
    "partition_has_topic": [("partitions", 0, {"topic_name": "shops"})],
    "partition_isr_and_elr_are_disjoint": [
        ("partitions", 0, {"elr": [2, 1]}),
        ("partitions", 0, {"elr": [2, 2]}),
    ],
    "partition_isr_is_within_replicas": [
        ("partitions", 0, {"isr": [1, 3]}),
        ("partitions", 0, {"isr": [1, 1]}),
    ],
    "partition_leader_is_in_isr": [("partitions", 0, {"leader": 2})],
    "partition_leader_is_registered": [
        ("partitions", 0, {"leader": 3, "isr": [3], "replicas": [3, 2]})
    ],
    "partition_numbers_are_in_range": [
        ("partitions", 1, {"leader_epoch": -1}),
        ("partitions", 1, {"partition_epoch": -1}),
    ],
    "partition_recovering_leader_is_alone": [
        ("partitions", 1, {"isr": [1, 2]}),
        ("partitions", 1, {"leader_recovery_state": 2}),
    ],
    "partition_removing_replicas_are_replicas": [("partitions", 0, {"removing_replicas": [3]})],
    "partition_replicas_are_distinct": [
        ("partitions", 0, {"replicas": [1, 2, 1], "directories": [HERE, THERE, HERE]}),
        (
            "partitions",
            0,
            {
                "replicas": [],
                "directories": [],
                "isr": [],
                "leader": -1,
                "adding_replicas": [],
            },
        ),
    ],
    "producer_ids_never_fall": [
        ("producer_ids_history", 0, {"next_producer_id": 1001}),
        ("producer_ids_history", 0, {"next_producer_id": -1}),
    ],
    "quota_entity_is_valid": [
        ("quotas", 0, {"entity": [("group", "a")]}),
        ("quotas", 0, {"entity": []}),
        ("quotas", 1, {"entity": [("ip", "::1"), ("user", "a")]}),
    ],
    "scram_credential_is_valid": [
        ("scram", 0, {"iterations": 4095}),
        ("scram", 0, {"mechanism": 3}),
    ],
    "token_times_are_in_order": [
        ("tokens", 0, {"issue_timestamp": DAY.replace(hour=1)}),
        ("tokens", 0, {"expiration_timestamp": DAY.replace(hour=1)}),
    ],
    "topic_has_partitions": [("topics", 1, {"_offset": 19}), ("partitions", 0, {"_offset": 22})],
    "topic_ids_are_unique": [("topics", 1, {"topic_id": SHOP, "name": "shop"})],
    "topic_is_named": [("topics", 1, {"name": ""}), ("topics", 1, {"topic_id": "A" * 22})],
    "topic_names_are_unique": [("topics", 1, {"name": "shop"})],
    "topic_partitions_are_numbered_from_0": [
        ("partitions", 0, {"partition_id": 2}),
        ("partitions", 1, {"partition_id": 2}),
    ],
    "transaction_markers_are_in_order": [
        ("transactions", 0, {"end_offset": 11}),
        ("transactions", 1, {"record_count": -1}),
        ("transactions", 0, {"outcome": "open"}),
    ],
    "transactions_do_not_overlap": [("transactions", 1, {"begin_offset": 11})],
}
"""Changes of the valid rows, by the rule that each violates: view, position, and values."""


def frame(spark: SparkSession, name: str, clusters: Mapping[str, Rows]) -> DataFrame:
    """Return the rows of clusters, by their ids, as a typed table."""
    table = BY_NAME[name.removesuffix("_history")]
    others = HISTORY_COLUMNS if name.endswith("_history") else ORIGIN_COLUMNS
    schema = pa.schema({"cluster_id": pa.string(), **table.columns, **others})
    rows = [{**row, "cluster_id": key} for key, rows in clusters.items() for row in rows]
    assert {key for row in rows for key in row} <= {*schema.names, *ORIGIN_COLUMNS}
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=schema))


def case_id(rule: str, number: int) -> str:
    """Return the cluster whose rows have the nth violation of a rule, and are valid otherwise."""
    return f"{rule} {number}"


def rows_of_cases(name: str) -> dict[str, Rows]:
    """Return the rows of a view in the clusters of all violations."""
    found = {}
    for rule, cases in VIOLATIONS.items():
        for number, (changed, position, values) in enumerate(cases):
            rows = [dict(row) for row in VALID[name]]
            if name == changed:
                rows[position].update(values)
            found[case_id(rule, number)] = rows
    return found


def test_valid_rows_satisfy_all_rules(spark: SparkSession) -> None:
    clusters = ("cluster-a", "cluster-b")
    valid = {name: frame(spark, name, dict.fromkeys(clusters, VALID[name])) for name in VALID}
    assert violations(valid) == ()
    brokers = [dict(row) for row in VALID["brokers"]]
    brokers[1]["broker_id"] = -1
    changed = {
        **valid,
        "brokers": frame(spark, "brokers", {"cluster-a": brokers, "cluster-b": VALID["brokers"]}),
    }
    [found] = violations(changed, {rule: rules()[rule] for rule in ("node_ids_are_not_negative",)})
    assert found.row_count == 1
    assert str(found).startswith('node_ids_are_not_negative: {"cluster_id":"cluster-a",')
    assert not spark.catalog.listTables(pattern="raftlog_*")


@pytest.fixture(scope="module")
def violated(spark: SparkSession) -> Mapping[str, list[str]]:
    """Clusters of the rows that each rule finds, of all rules and violations in one query.

    The rules read the views of a session by their names, as those of a schema.
    """
    session = spark.newSession()
    for name in VALID:
        frame(session, name, rows_of_cases(name)).createOrReplaceTempView(name)
    rows = " UNION ALL ".join(
        f"SELECT '{rule}' AS rule, cluster_id FROM (\n{query}\n)" for rule, query in rules().items()
    )
    found: dict[str, list[str]] = {rule: [] for rule in rules()}
    for row in session.sql(f"SELECT /*+ COALESCE(1) */ * FROM ({rows})").collect():
        found[row.rule].append(row.cluster_id)
    return found


@pytest.mark.parametrize("rule", rules())
def test_a_rule_finds_rows_that_violate_it_alone(
    violated: Mapping[str, list[str]], rule: str
) -> None:
    """Each violation is found once, in its cluster; no rule finds that of another."""
    expected = [case_id(rule, number) for number in range(len(VIOLATIONS[rule]))]
    assert expected
    assert sorted(violated[rule]) == sorted(expected)


def test_a_rule_states_its_source_in_kafka() -> None:
    for rule, query in rules().items():
        comment = [line for line in query.splitlines() if line.startswith("--")]
        assert query.splitlines()[: len(comment)] == comment, rule
        assert any(line.startswith("-- Kafka: ") for line in comment), rule
        columns = " ".join(re.findall(r"^ *SELECT(.*?)FROM", query, re.DOTALL | re.MULTILINE))
        assert not set(re.findall(r"\w+", columns)) & SECRETS, rule


def real_log(name: str, directory: Path) -> MetadataLog:
    if not name.endswith(".tar.gz"):
        return metadata_log(restored(name, directory))
    with tarfile.open(LOGS / name) as archive:
        archive.extractall(directory, filter="data")
    return metadata_log(directory / "__cluster_metadata-0")


@pytest.mark.parametrize(
    ("name", "has_more_offsets"),
    [
        ("trimmed-3.9.2/node-1", False),
        *(
            pytest.param(name, True, marks=pytest.mark.nightly)
            for name in (
                "trimmed-3.9.2/node-1",
                "three-nodes-4.3.1/node-1",
                "running-4.3.1/running.tar.gz",
            )
        ),
    ],
)
def test_real_logs_satisfy_all_rules(
    spark: SparkSession, tmp_path: Path, name: str, has_more_offsets: bool
) -> None:
    """After the record of a topic whose partitions follow; at night also after a failover, in the
    middle, and at the end. In ``make test`` each ``verify()`` checks the rules there, too."""
    directory = tmp_path / "log"
    directory.mkdir()
    records = real_log(name, directory).records
    feed = Feed(spark, records)
    tables = feed.open(tmp_path / "tables", engine="delta-rs")
    tables.apply(feed.frame(0, len(records)))
    topics = [
        record.offset
        for record in records
        if isinstance(record.payload, bytes)
        and isinstance(decode(record.payload).record, TopicRecord)
    ]
    leaders = [record.offset for record in records if isinstance(record.payload, LeaderChange)]
    others = (leaders[-1], len(records) // 2, None) if has_more_offsets else ()
    for offset in (*topics[-1:], *others):
        assert tables.check_invariants(offset) == (), offset
