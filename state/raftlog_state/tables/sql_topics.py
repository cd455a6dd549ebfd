"""The second replay of topics and partitions.

Source: Kafka ``TopicsDelta``, ``PartitionRegistration``; KIP-966 (ELR), KIP-858 (directories).
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from .sql_parts import META, Records, origin, words

MIGRATING: Final = "AAAAAAAAAAAAAAAAAAAAAA"

_FIELDS: Final = (
    "partitionId INT, topicId STRING, replicas ARRAY<INT>, isr ARRAY<INT>, "
    "removingReplicas ARRAY<INT>, addingReplicas ARRAY<INT>, leader INT, leaderRecoveryState INT, "
    "leaderEpoch INT, partitionEpoch INT, directories ARRAY<STRING>, "
    "eligibleLeaderReplicas ARRAY<INT>, lastKnownElr ARRAY<INT>"
)
_STATE: Final = (
    "STRUCT<replicas: ARRAY<INT>, isr: ARRAY<INT>, adding: ARRAY<INT>, removing: ARRAY<INT>, "
    "elr: ARRAY<INT>, known: ARRAY<INT>, directories: ARRAY<STRING>, leader: INT, "
    "leader_epoch: INT, partition_epoch: INT, recovery: INT, created: BIGINT, offset: BIGINT, "
    "visible: BIGINT, epoch: INT, time: TIMESTAMP>"
)
_NO_INTS: Final = "CAST(array() AS ARRAY<INT>)"
_PLACE: Final = "'offset', e.offset, 'visible', e.visible, 'epoch', e.epoch, 'time', e.time"


def lifetimes(records: Records) -> DataFrame:
    """Every topic that there was: ``META`` of its record, ``topic_id``, ``name``, ``died`` (the
    ``ord`` of its removal, null while it lives)."""
    topics = records.of("TOPIC_RECORD", "name STRING, topicId STRING")
    removals = records.of("REMOVE_TOPIC_RECORD", "topicId STRING")
    died = removals.select("topicId", sf.col("ord").alias("died"))
    return topics.join(died, "topicId", "left").withColumnRenamed("topicId", "topic_id")


def topics(of: DataFrame) -> DataFrame:
    """The topics that live."""
    living = of.where("died IS NULL").withColumn("created", sf.col("offset"))
    return origin(living.drop("died"))


def partitions(records: Records, of: DataFrame) -> DataFrame:
    """The partitions of living topics: every partition's records folded in order, in SQL."""
    whole = records.of("PARTITION_RECORD", _FIELDS).withColumn("kind", sf.lit("whole"))
    change = records.of("PARTITION_CHANGE_RECORD", _FIELDS).withColumn("kind", sf.lit("change"))
    events = whole.unionByName(change)
    events = events.unionByName(_clearances(records, of, whole), allowMissingColumns=True)
    names = [name for name in events.columns if name not in ("topicId", "partitionId", "ord")]
    folded = (
        events.groupBy("topicId", "partitionId")
        .agg(sf.array_sort(sf.collect_list(sf.struct("ord", *names))).alias("events"))
        .select("topicId", "partitionId", sf.expr(_fold()).alias("p"))
        .where("p IS NOT NULL")
    )
    living = of.where("died IS NULL").select(
        sf.col("topic_id").alias("topicId"), sf.col("name").alias("topic_name")
    )
    return folded.join(living, "topicId").select(
        sf.col("topicId").alias("topic_id"),
        sf.col("partitionId").alias("partition_id"),
        "topic_name",
        sf.col("p.replicas"),
        sf.col("p.isr"),
        sf.col("p.adding").alias("adding_replicas"),
        sf.col("p.removing").alias("removing_replicas"),
        sf.col("p.elr"),
        sf.col("p.known").alias("last_known_elr"),
        sf.col("p.directories"),
        sf.col("p.leader"),
        sf.col("p.leader_epoch"),
        sf.col("p.partition_epoch"),
        sf.col("p.recovery").alias("leader_recovery_state"),
        words(sf.col("p.recovery"), {0: "RECOVERED", 1: "RECOVERING"}).alias(
            "leader_recovery_state_name"
        ),
        sf.col("p.offset").alias("_offset"),
        sf.col("p.visible").alias("_visible_offset"),
        sf.col("p.epoch").alias("_leader_epoch"),
        sf.col("p.time").alias("_log_time"),
        sf.col("p.created").alias("_created_offset"),
    )


def _clearances(records: Records, of: DataFrame, whole: DataFrame) -> DataFrame:
    """ClearElr, once for every partition of the topics that it names and that lived then."""
    clear = records.of("CLEAR_ELR_RECORD", "topicName STRING").alias("c")
    lives = of.select("topic_id", "name", sf.col("ord").alias("born"), "died").alias("l")
    named = (sf.col("c.topicName") == "") | (sf.col("c.topicName") == sf.col("l.name"))
    lived = (sf.col("l.born") < sf.col("c.ord")) & (
        sf.col("l.died").isNull() | (sf.col("c.ord") < sf.col("l.died"))
    )
    keys = whole.select("topicId", "partitionId").distinct()
    return (
        clear.join(lives, named & lived)
        .join(keys, sf.col("l.topic_id") == keys["topicId"])
        .select(*(f"c.{name}" for name in META), keys["topicId"], keys["partitionId"])
        .withColumn("kind", sf.lit("clear"))
    )


def _fold() -> str:
    """A left fold over a partition's ordered events; the state is null before the first whole."""
    return f"""aggregate(events, CAST(NULL AS {_STATE}), (p, e) -> CASE
        WHEN e.kind = 'whole' THEN {_whole()}
        WHEN p IS NULL THEN p
        WHEN e.kind = 'change' THEN {_change()}
        WHEN size(p.elr) > 0 OR size(p.known) > 0 THEN {_clear()}
        ELSE p END)"""


def _whole() -> str:
    return f"""named_struct(
        'replicas', e.replicas, 'isr', e.isr,
        'adding', e.addingReplicas, 'removing', e.removingReplicas,
        'elr', coalesce(e.eligibleLeaderReplicas, {_NO_INTS}),
        'known', coalesce(e.lastKnownElr, {_NO_INTS}),
        'directories', {_directories("e.directories", "e.replicas")},
        'leader', e.leader, 'leader_epoch', e.leaderEpoch, 'partition_epoch', e.partitionEpoch,
        'recovery', coalesce(e.leaderRecoveryState, 0),
        'created', coalesce(p.created, e.offset), {_PLACE})"""


def _change() -> str:
    named = "(e.leader IS NOT NULL AND e.leader != -2)"
    recovers = "(e.leaderRecoveryState IS NOT NULL AND e.leaderRecoveryState != -1)"
    directories = _directories(
        "coalesce(e.directories, p.directories)", "coalesce(e.replicas, p.replicas)"
    )
    return f"""named_struct(
        'replicas', coalesce(e.replicas, p.replicas), 'isr', coalesce(e.isr, p.isr),
        'adding', coalesce(e.addingReplicas, p.adding),
        'removing', coalesce(e.removingReplicas, p.removing),
        'elr', coalesce(e.eligibleLeaderReplicas, p.elr),
        'known', coalesce(e.lastKnownElr, p.known),
        'directories', {directories},
        'leader', IF({named}, e.leader, p.leader),
        'leader_epoch', p.leader_epoch + IF({named}, 1, 0),
        'partition_epoch', p.partition_epoch + 1,
        'recovery', IF({recovers}, e.leaderRecoveryState, p.recovery),
        'created', p.created, {_PLACE})"""


def _clear() -> str:
    return f"""named_struct(
        'replicas', p.replicas, 'isr', p.isr, 'adding', p.adding, 'removing', p.removing,
        'elr', {_NO_INTS}, 'known', {_NO_INTS}, 'directories', p.directories,
        'leader', p.leader, 'leader_epoch', p.leader_epoch,
        'partition_epoch', p.partition_epoch + 1, 'recovery', p.recovery,
        'created', p.created, {_PLACE})"""


def _directories(directories: str, replicas: str) -> str:
    """While no directory is known there is one "migrating" for each replica."""
    unknown = f"NOT exists(coalesce({directories}, array()), d -> d != '{MIGRATING}')"
    return f"IF({unknown}, array_repeat('{MIGRATING}', size({replicas})), {directories})"
