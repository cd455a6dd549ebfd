"""The second replay of topics and partitions.

Source: Kafka ``TopicsDelta``, ``PartitionRegistration``; KIP-966 (ELR), KIP-858 (directories).
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from .sql_parts import META, WRITTEN, Records, computed, origin, struct_type, words

MIGRATING: Final = "AAAAAAAAAAAAAAAAAAAAAA"

_FIELDS: Final = (
    "partitionId INT, topicId STRING, replicas ARRAY<INT>, isr ARRAY<INT>, "
    "removingReplicas ARRAY<INT>, addingReplicas ARRAY<INT>, leader INT, leaderRecoveryState INT, "
    "leaderEpoch INT, partitionEpoch INT, directories ARRAY<STRING>, "
    "eligibleLeaderReplicas ARRAY<INT>, lastKnownElr ARRAY<INT>"
)
_STATE_TYPES: Final = {
    **dict.fromkeys(
        ("replicas", "isr", "adding_replicas", "removing_replicas", "elr", "last_known_elr"),
        "ARRAY<INT>",
    ),
    "directories": "ARRAY<STRING>",
    **dict.fromkeys(("leader", "leader_epoch", "partition_epoch", "leader_recovery_state"), "INT"),
    **WRITTEN,
}
_STATE: Final = struct_type(_STATE_TYPES)
_IDS: Final = {"topic_id": "topicId", "partition_id": "partitionId"}
_KEY: Final = tuple(_IDS.values())
_NO_INTS: Final = "CAST(array() AS ARRAY<INT>)"
_PLACE: Final = "'offset', e.offset, 'visible', e.visible, 'epoch', e.epoch, 'time', e.time"


def lifetimes(records: Records) -> DataFrame:
    """Return every topic that ever existed.

    Columns: ``META`` of the topic's record, ``topic_id``, ``name``, ``created``, and ``died``: the
    ``ord`` of its removal, null while it exists.
    """
    topics = records.of("TOPIC_RECORD", "name STRING, topicId STRING")
    topics = topics.withColumnRenamed("topicId", "topic_id").withColumn("created", sf.col("offset"))
    if records.has_base:
        topics = topics.unionByName(records.base("topics"))
    if not records.has("REMOVE_TOPIC_RECORD"):
        return topics.withColumn("died", sf.lit(None).cast(topics.schema["ord"].dataType))
    removals = records.of("REMOVE_TOPIC_RECORD", "topicId STRING")
    died = removals.select(sf.col("topicId").alias("topic_id"), sf.col("ord").alias("died"))
    return topics.join(died, "topic_id", "left")


def topics(records: Records, of: DataFrame) -> DataFrame:
    """Return the existing topics."""
    touched = of
    if records.has_base:
        changed = records.changed("topics").select("topic_id", sf.lit(True).alias("is_changed"))
        is_touched = (
            (sf.col("ord.offset") >= 0) | sf.col("is_changed") | sf.expr("died IS NOT NULL")
        )
        touched = of.join(changed.distinct(), "topic_id", "left").where(is_touched)
        touched = touched.drop("is_changed")
    living = touched.where("died IS NULL").drop("died")
    return origin(records.with_deleted(living, ["topic_id"], touched))


def partitions(records: Records, of: DataFrame) -> DataFrame:
    """Return the existing topics' partitions: each one's records folded in order, in SQL."""
    whole = records.of("PARTITION_RECORD", _FIELDS).withColumn("kind", sf.lit("whole"))
    change = records.of("PARTITION_CHANGE_RECORD", _FIELDS).withColumn("kind", sf.lit("change"))
    known = whole.select(*_KEY)
    base = None
    if records.has_base:
        base = records.base("partitions").withColumnsRenamed(_IDS)
        known = known.unionByName(base.select(*_KEY))
    events = whole.unionByName(change)
    if records.has("CLEAR_ELR_RECORD"):
        clearances = _clearances(records, of, known.distinct())
        events = events.unionByName(clearances, allowMissingColumns=True)
    touched = events.select(*_KEY)
    if base is None:
        events = events.withColumn("base", sf.lit(None).cast(_STATE))
    else:
        removed = of.where("died IS NOT NULL").select(sf.col("topic_id").alias("topicId"))
        changed = records.changed("partitions").withColumnsRenamed(_IDS)
        touched = touched.unionByName(changed.select(*_KEY))
        if records.has("REMOVE_TOPIC_RECORD"):
            of_removed = base.select(*_KEY).join(removed, "topicId", "left_semi")
            touched = touched.unionByName(of_removed)
        touched = computed(touched.distinct())
        state = sf.struct(*_STATE_TYPES).cast(_STATE).alias("base")
        held = base.join(touched, [*_KEY], "left_semi")
        held = held.select(*META, *_KEY, sf.lit("base").alias("kind"), state)
        events = events.unionByName(held, allowMissingColumns=True)
    names = [name for name in events.columns if name not in (*_KEY, "ord")]
    folded = (
        events.groupBy(*_KEY)
        .agg(sf.array_sort(sf.collect_list(sf.struct("ord", *names))).alias("events"))
        .select(*_KEY, sf.expr(_fold()).alias("p"))
        .where("p IS NOT NULL")
    )
    living = of.where("died IS NULL").select(
        sf.col("topic_id").alias("topicId"), sf.col("name").alias("topic_name")
    )
    rows = folded.join(living, "topicId").select(*_KEY, "topic_name", "p.*")
    rows = rows.withColumnsRenamed({"topicId": "topic_id", "partitionId": "partition_id"})
    recovery = sf.col("leader_recovery_state")
    rows = rows.withColumn(
        "leader_recovery_state_name", words(recovery, {0: "RECOVERED", 1: "RECOVERING"})
    )
    ids = touched.select(*(sf.col(old).alias(new) for new, old in _IDS.items()))
    return origin(records.with_deleted(rows, [*_IDS], ids))


def _clearances(records: Records, of: DataFrame, keys: DataFrame) -> DataFrame:
    """Return each ClearElr once for each then existing partition of the topics it names."""
    clear = records.of("CLEAR_ELR_RECORD", "topicName STRING").alias("c")
    lives = of.select("topic_id", "name", sf.col("ord").alias("born"), "died").alias("l")
    named = (sf.col("c.topicName") == "") | (sf.col("c.topicName") == sf.col("l.name"))
    lived = (sf.col("l.born") < sf.col("c.ord")) & (
        sf.col("l.died").isNull() | (sf.col("c.ord") < sf.col("l.died"))
    )
    return (
        clear.join(lives, named & lived)
        .join(keys, sf.col("l.topic_id") == keys["topicId"])
        .select(*(f"c.{name}" for name in META), keys["topicId"], keys["partitionId"])
        .withColumn("kind", sf.lit("clear"))
    )


def _fold() -> str:
    """Return a left fold of a partition's ordered events; the state is null before a "whole"."""
    return f"""aggregate(events, CAST(NULL AS {_STATE}), (p, e) -> CASE
        WHEN e.kind = 'base' THEN e.base
        WHEN e.kind = 'whole' THEN {_whole()}
        WHEN p IS NULL THEN p
        WHEN e.kind = 'change' THEN {_change()}
        WHEN size(p.elr) > 0 OR size(p.last_known_elr) > 0 THEN {_clear()}
        ELSE p END)"""


def _whole() -> str:
    return f"""named_struct(
        'replicas', e.replicas, 'isr', e.isr,
        'adding_replicas', e.addingReplicas, 'removing_replicas', e.removingReplicas,
        'elr', coalesce(e.eligibleLeaderReplicas, {_NO_INTS}),
        'last_known_elr', coalesce(e.lastKnownElr, {_NO_INTS}),
        'directories', {_directories("e.directories", "e.replicas")},
        'leader', e.leader, 'leader_epoch', e.leaderEpoch, 'partition_epoch', e.partitionEpoch,
        'leader_recovery_state', coalesce(e.leaderRecoveryState, 0),
        'created', coalesce(p.created, e.offset), {_PLACE})"""


def _change() -> str:
    named = "(e.leader IS NOT NULL AND e.leader != -2)"
    recovers = "(e.leaderRecoveryState IS NOT NULL AND e.leaderRecoveryState != -1)"
    directories = _directories(
        "coalesce(e.directories, p.directories)", "coalesce(e.replicas, p.replicas)"
    )
    return f"""named_struct(
        'replicas', coalesce(e.replicas, p.replicas), 'isr', coalesce(e.isr, p.isr),
        'adding_replicas', coalesce(e.addingReplicas, p.adding_replicas),
        'removing_replicas', coalesce(e.removingReplicas, p.removing_replicas),
        'elr', coalesce(e.eligibleLeaderReplicas, p.elr),
        'last_known_elr', coalesce(e.lastKnownElr, p.last_known_elr),
        'directories', {directories},
        'leader', IF({named}, e.leader, p.leader),
        'leader_epoch', p.leader_epoch + IF({named}, 1, 0),
        'partition_epoch', p.partition_epoch + 1,
        'leader_recovery_state', IF({recovers}, e.leaderRecoveryState, p.leader_recovery_state),
        'created', p.created, {_PLACE})"""


def _clear() -> str:
    return f"""named_struct(
        'replicas', p.replicas, 'isr', p.isr, 'adding_replicas', p.adding_replicas,
        'removing_replicas', p.removing_replicas,
        'elr', {_NO_INTS}, 'last_known_elr', {_NO_INTS}, 'directories', p.directories,
        'leader', p.leader, 'leader_epoch', p.leader_epoch,
        'partition_epoch', p.partition_epoch + 1,
        'leader_recovery_state', p.leader_recovery_state,
        'created', p.created, {_PLACE})"""


def _directories(directories: str, replicas: str) -> str:
    """Return one "migrating" directory per replica while no directory is known."""
    unknown = f"NOT exists(coalesce({directories}, array()), d -> d != '{MIGRATING}')"
    return f"IF({unknown}, array_repeat('{MIGRATING}', size({replicas})), {directories})"
