"""The second replay of brokers, controllers and all entities that are set and removed by key.

Source: Kafka ``BrokerRegistration``, ``ConfigurationsDelta``, ``ClientQuotasDelta``, ``AclsDelta``,
``ScramDelta``, ``DelegationTokenDelta``, ``FeaturesDelta``.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from raftlog_state import enums

from .sql_parts import (
    META,
    WRITTEN,
    Records,
    computed,
    last_writer,
    origin,
    sorted_uuids,
    struct_type,
    words,
)

_ENDPOINTS: Final = (
    "endPoints ARRAY<STRUCT<name: STRING, host: STRING, port: INT, securityProtocol: INT>>"
)
_FEATURES: Final = (
    "features ARRAY<STRUCT<name: STRING, minSupportedVersion: INT, maxSupportedVersion: INT>>"
)
REDACTED: Final = r"^(\[redacted\]|hmac:([0-9a-f]{8}:)?[0-9a-f]{32})\z"
"""``is_redacted`` as a Java expression, where ``$`` also matches before a line terminator."""
_TOPIC: Final = 2

_STATE: Final = {
    "incarnation_id": "STRING",
    "broker_epoch": "BIGINT",
    "rack": "STRING",
    "fenced": "BOOLEAN",
    "in_controlled_shutdown": "BOOLEAN",
    "is_migrating_zk_broker": "BOOLEAN",
    "endpoints": "ARRAY<STRUCT<name: STRING, host: STRING, port: INT, protocol: INT>>",
    "features": "MAP<STRING, STRUCT<min_version: INT, max_version: INT>>",
    "log_dirs": "ARRAY<STRING>",
    "cordoned_log_dirs": "ARRAY<STRING>",
    **WRITTEN,
}
_BROKER_STATE: Final = struct_type(_STATE)


def brokers(records: Records) -> DataFrame:
    """Return broker registrations, with the partial changes after each."""
    events = _broker_events(records)
    touched = events.select("brokerId")
    if records.has_base:
        base = records.base("brokers").withColumnRenamed("broker_id", "brokerId")
        changed = records.changed("brokers").withColumnRenamed("broker_id", "brokerId")
        touched = computed(touched.unionByName(changed).distinct())
        held = base.join(touched, "brokerId", "left_semi").select(
            "ord",
            "brokerId",
            sf.lit("base").alias("kind"),
            sf.struct(*_STATE).cast(_BROKER_STATE).alias("base"),
        )
        events = events.unionByName(held, allowMissingColumns=True)
    else:
        events = events.withColumn("base", sf.lit(None).cast(_BROKER_STATE))
    fields = [name for name in events.columns if name not in ("brokerId", "ord")]
    folded = (
        events.groupBy("brokerId")
        .agg(sf.collect_list(sf.struct("ord", *fields)).alias("events"))
        # maps have no order, so the events are sorted by hand
        .withColumn(
            "events",
            sf.expr(
                "array_sort(events, (a, b) -> "
                "CASE WHEN a.ord < b.ord THEN -1 WHEN a.ord > b.ord THEN 1 ELSE 0 END)"
            ),
        )
        .select("brokerId", sf.expr(_broker_fold()).alias("b"))
        .where("b IS NOT NULL")
        .select(sf.col("brokerId").alias("broker_id"), "b.*")
    )
    touched = touched.withColumnRenamed("brokerId", "broker_id")
    return origin(records.with_deleted(folded, ["broker_id"], touched))


def _broker_events(records: Records) -> DataFrame:
    register = records.of(
        "REGISTER_BROKER_RECORD",
        "brokerId INT, isMigratingZkBroker BOOLEAN, incarnationId STRING, brokerEpoch BIGINT, "
        f"{_ENDPOINTS}, {_FEATURES}, rack STRING, fenced BOOLEAN, inControlledShutdown BOOLEAN, "
        "logDirs ARRAY<STRING>, cordonedLogDirs ARRAY<STRING>",
    ).select(
        *META,
        "brokerId",
        "incarnationId",
        "brokerEpoch",
        "rack",
        sf.coalesce("isMigratingZkBroker", sf.lit(False)).alias("migrating"),
        _endpoints().alias("endpoints"),
        _features().alias("features"),
        sf.when(sf.col("fenced"), 1).otherwise(-1).alias("fenced"),
        sf.when(sf.col("inControlledShutdown"), 1).otherwise(0).alias("shutdown"),
        sorted_uuids(sf.coalesce("logDirs", sf.lit([]).cast("array<string>"))).alias("logDirs"),
        sf.col("cordonedLogDirs").alias("cordoned"),
        sf.lit("register").alias("kind"),
    )
    change = records.of(
        "BROKER_REGISTRATION_CHANGE_RECORD",
        "brokerId INT, fenced INT, inControlledShutdown INT, logDirs ARRAY<STRING>, "
        "cordonedLogDirs ARRAY<STRING>",
    ).select(
        *META,
        "brokerId",
        sf.coalesce("fenced", sf.lit(0)).alias("fenced"),
        sf.coalesce("inControlledShutdown", sf.lit(0)).alias("shutdown"),
        sorted_uuids(sf.coalesce("logDirs", sf.lit([]).cast("array<string>"))).alias("logDirs"),
        sf.col("cordonedLogDirs").alias("cordoned"),
        sf.lit("change").alias("kind"),
    )
    events = register.unionByName(change, allowMissingColumns=True)
    for record_type, fenced in (("FENCE_BROKER_RECORD", 1), ("UNFENCE_BROKER_RECORD", -1)):
        if not records.has(record_type):
            continue
        one = records.of(record_type, "id INT").withColumnRenamed("id", "brokerId")
        one = one.withColumns(
            {
                "fenced": sf.lit(fenced),
                "shutdown": sf.lit(0),
                "logDirs": sf.lit([]).cast("array<string>"),
                "kind": sf.lit("change"),
            }
        )
        events = events.unionByName(one, allowMissingColumns=True)
    if not records.has("UNREGISTER_BROKER_RECORD"):
        return events
    removals = records.of("UNREGISTER_BROKER_RECORD", "brokerId INT")
    return events.unionByName(
        removals.withColumn("kind", sf.lit("unregister")), allowMissingColumns=True
    )


def _broker_fold() -> str:
    place = "'offset', e.offset, 'visible', e.visible, 'epoch', e.epoch, 'time', e.time"
    return f"""aggregate(events, CAST(NULL AS {_BROKER_STATE}), (b, e) -> CASE
        WHEN e.kind = 'base' THEN e.base
        WHEN e.kind = 'unregister' THEN CAST(NULL AS {_BROKER_STATE})
        WHEN e.kind = 'register' THEN named_struct(
            'incarnation_id', e.incarnationId, 'broker_epoch', e.brokerEpoch, 'rack', e.rack,
            'fenced', e.fenced = 1, 'in_controlled_shutdown', e.shutdown = 1,
            'is_migrating_zk_broker', e.migrating, 'endpoints', e.endpoints,
            'features', e.features, 'log_dirs', e.logDirs, 'cordoned_log_dirs', e.cordoned,
            'created', coalesce(b.created, e.offset), {place})
        WHEN b IS NULL THEN b
        ELSE named_struct(
            'incarnation_id', b.incarnation_id, 'broker_epoch', b.broker_epoch, 'rack', b.rack,
            'fenced', IF(e.fenced = 0, b.fenced, e.fenced = 1),
            'in_controlled_shutdown', b.in_controlled_shutdown OR e.shutdown = 1,
            'is_migrating_zk_broker', b.is_migrating_zk_broker, 'endpoints', b.endpoints,
            'features', b.features, 'log_dirs', IF(size(e.logDirs) > 0, e.logDirs, b.log_dirs),
            'cordoned_log_dirs', coalesce(e.cordoned, b.cordoned_log_dirs),
            'created', b.created, {place}) END)"""


def controllers(records: Records) -> DataFrame:
    """Return controller registrations."""
    puts = records.of(
        "REGISTER_CONTROLLER_RECORD",
        f"controllerId INT, incarnationId STRING, zkMigrationReady BOOLEAN, {_ENDPOINTS}, "
        f"{_FEATURES}",
    ).select(
        *META,
        sf.col("controllerId").alias("controller_id"),
        sf.col("incarnationId").alias("incarnation_id"),
        sf.col("zkMigrationReady").alias("zk_migration_ready"),
        _endpoints().alias("endpoints"),
        _features().alias("features"),
    )
    removals = records.removals(
        "UNREGISTER_CONTROLLER_RECORD", "controllerId INT", {"controllerId": "controller_id"}
    )
    return origin(last_writer(records, "controllers", puts, removals, ["controller_id"]))


def configs(records: Records, lifetimes: DataFrame) -> DataFrame:
    """Return configs; removing a topic removes its configs, too."""
    keys = ["resource_type", "resource_name", "name"]
    rows = records.of(
        "CONFIG_RECORD", "resourceType INT, resourceName STRING, name STRING, value STRING"
    ).withColumnsRenamed({"resourceType": "resource_type", "resourceName": "resource_name"})
    removed = rows.where("value IS NULL").select(*keys, "ord")
    puts = rows.where("value IS NOT NULL")
    if records.has("REMOVE_TOPIC_RECORD"):
        dead = lifetimes.where("died IS NOT NULL").select(
            sf.col("name").alias("resource_name"), sf.col("died").alias("ord")
        )
        known = puts.select(*keys)
        if records.has_base:
            known = known.unionByName(records.base("configs").select(*keys))
        of_topics = known.where(sf.col("resource_type") == _TOPIC).distinct()
        cascaded = of_topics.join(dead, "resource_name").select(*keys, "ord")
        removed = removed.unionByName(cascaded)
    found = origin(last_writer(records, "configs", puts, removed, keys))
    kinds = words(sf.col("resource_type"), enums.CONFIG_RESOURCE_TYPES)
    return found.withColumns(
        {"resource_type_name": kinds, "redacted": sf.col("value").rlike(REDACTED)}
    )


def quotas(records: Records) -> DataFrame:
    """Return client quotas, by the set of entities that they are for."""
    rows = records.of(
        "CLIENT_QUOTA_RECORD",
        "entity ARRAY<STRUCT<entityType: STRING, entityName: STRING>>, key STRING, value DOUBLE, "
        "remove BOOLEAN",
    ).select(
        *META,
        sf.array_sort("entity").alias("entity"),
        sf.col("key").alias("quota"),
        "value",
        "remove",
    )
    keys = ["entity", "quota"]
    puts = rows.where("NOT remove").drop("remove")
    found = last_writer(records, "quotas", puts, rows.where("remove"), keys, _as_records)
    return origin(found).withColumn("entity", sf.map_from_entries("entity"))


def _as_records(quotas: DataFrame) -> DataFrame:
    """Return the table's rows with their entities as in records, sorted."""
    pairs = sf.transform(
        sf.map_entries("entity"),
        lambda pair: sf.struct(pair["key"].alias("entityType"), pair["value"].alias("entityName")),
    )
    return quotas.withColumn("entity", sf.array_sort(pairs))


def acls(records: Records) -> DataFrame:
    """Return access rules by id."""
    puts = records.of(
        "ACCESS_CONTROL_ENTRY_RECORD",
        "id STRING, resourceType INT, resourceName STRING, patternType INT, principal STRING, "
        "host STRING, operation INT, permissionType INT",
    ).withColumnsRenamed(
        {
            "id": "acl_id",
            "resourceType": "resource_type",
            "resourceName": "resource_name",
            "patternType": "pattern_type",
            "permissionType": "permission",
        }
    )
    removals = records.removals("REMOVE_ACCESS_CONTROL_ENTRY_RECORD", "id STRING", {"id": "acl_id"})
    found = origin(last_writer(records, "acls", puts, removals, ["acl_id"]))
    words_of = {
        "resource_type": enums.ACL_RESOURCE_TYPES,
        "pattern_type": enums.PATTERN_TYPES,
        "operation": enums.ACL_OPERATIONS,
        "permission": enums.ACL_PERMISSIONS,
    }
    return found.withColumns(
        {f"{name}_name": words(sf.col(name), known) for name, known in words_of.items()}
    )


def scram(records: Records) -> DataFrame:
    """Return SCRAM credentials, redacted like ``log``."""
    secrets = {"salt": "salt", "storedKey": "stored_key", "serverKey": "server_key"}
    rows = records.of(
        "USER_SCRAM_CREDENTIAL_RECORD",
        "name STRING, mechanism INT, iterations INT, salt STRING, storedKey STRING, "
        "serverKey STRING",
    )
    puts = rows.select(
        *META,
        sf.col("name").alias("user"),
        "mechanism",
        "iterations",
        *(sf.unbase64(name).alias(column) for name, column in secrets.items()),
    )
    removals = records.removals(
        "REMOVE_USER_SCRAM_CREDENTIAL_RECORD", "name STRING, mechanism INT", {"name": "user"}
    )
    found = origin(last_writer(records, "scram", puts, removals, ["user", "mechanism"]))
    mechanisms = words(sf.col("mechanism"), enums.SCRAM_MECHANISMS)
    return found.withColumn("mechanism_name", mechanisms)


def tokens(records: Records) -> DataFrame:
    """Return delegation tokens by id."""
    times = ("issue", "max", "expiration")
    rows = records.of(
        "DELEGATION_TOKEN_RECORD",
        "owner STRING, requester STRING, renewers ARRAY<STRING>, tokenId STRING, "
        + ", ".join(f"{name}Timestamp BIGINT" for name in times),
    )
    puts = rows.select(
        *META,
        sf.col("tokenId").alias("token_id"),
        "owner",
        "requester",
        "renewers",
        *(sf.timestamp_millis(f"{name}Timestamp").alias(f"{name}_timestamp") for name in times),
    )
    removals = records.removals(
        "REMOVE_DELEGATION_TOKEN_RECORD", "tokenId STRING", {"tokenId": "token_id"}
    )
    return origin(last_writer(records, "tokens", puts, removals, ["token_id"]))


def features(records: Records) -> DataFrame:
    """Return finalized features; kraft.version is in control records."""
    rows = records.of("FEATURE_LEVEL_RECORD", "name STRING, featureLevel INT")
    rows = rows.withColumnRenamed("featureLevel", "level").where("name != 'kraft.version'")
    puts, removals = rows.where("level != 0"), rows.where("level = 0")
    return origin(last_writer(records, "features", puts, removals, ["name"]))


def producer_ids(records: Records) -> DataFrame:
    """Return the last block of producer ids."""
    rows = records.of(
        "PRODUCER_IDS_RECORD", "brokerId INT, brokerEpoch BIGINT, nextProducerId BIGINT"
    ).withColumnsRenamed(
        {
            "brokerId": "broker_id",
            "brokerEpoch": "broker_epoch",
            "nextProducerId": "next_producer_id",
        }
    )
    return origin(last_writer(records, "producer_ids", rows, None, []))


def zk_migration(records: Records) -> DataFrame:
    """Return the state of the migration from ZooKeeper."""
    rows = records.of("ZK_MIGRATION_STATE_RECORD", "zkMigrationState INT")
    rows = rows.withColumnRenamed("zkMigrationState", "state")
    found = origin(last_writer(records, "zk_migration", rows, None, []))
    return found.withColumn("state_name", words(sf.col("state"), enums.ZK_MIGRATION_STATES))


def _endpoints() -> Column:
    listeners = sf.transform(
        "endPoints",
        lambda at: sf.struct(
            at["name"].alias("name"),
            at["host"].alias("host"),
            at["port"].alias("port"),
            at["securityProtocol"].alias("protocol"),
        ),
    )
    return sf.array_sort(listeners)


def _features() -> Column:
    ranges = sf.transform(
        "features",
        lambda of: sf.struct(
            of["name"],
            sf.struct(
                of["minSupportedVersion"].alias("min_version"),
                of["maxSupportedVersion"].alias("max_version"),
            ),
        ),
    )
    return sf.map_from_entries(ranges)
