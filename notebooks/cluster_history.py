# Databricks notebook source
# MAGIC %md
# MAGIC # What happened to this cluster?
# MAGIC
# MAGIC This notebook writes the metadata logs of three controllers of an Apache Kafka 4.3.1 cluster
# MAGIC to Delta tables and queries them with SQL. To read another cluster, set the widget `path` to
# MAGIC a log directory, a metadata directory, a `.checkpoint` file, or the directories of several
# MAGIC voters, comma-separated.

# COMMAND ----------

import tempfile
from pathlib import Path

from raftlog_state.tables import open_cluster

dbutils.widgets.text("path", "", "directory of a Kafka node, or of several voters")
dbutils.widgets.text("tables", "", "location of the Delta tables (empty: a temporary directory)")


def bundled() -> str:
    """Return the directories of the three voters that are part of the repository."""
    home = Path.cwd().parent if Path.cwd().name == "notebooks" else Path.cwd()
    cluster = home / "tests/data/kraft-logs/three-nodes-4.3.1"
    return ",".join(str(cluster / f"node-{node}") for node in (100, 101, 102))


path = dbutils.widgets.get("path") or bundled()
tables_path = dbutils.widgets.get("tables") or f"{tempfile.mkdtemp(prefix='raftlog-')}/cluster"

# COMMAND ----------

# MAGIC %md
# MAGIC ## From the log to tables
# MAGIC `materialize` is a Spark stream of `format("raftlog")`. With `availableNow` it reads all
# MAGIC available records and stops; otherwise it follows the log.

# COMMAND ----------

cluster = open_cluster(spark, tables_path)
query = cluster.materialize(path, checkpoint=f"{tables_path}-checkpoint", trigger="availableNow")
query.awaitTermination()

now = cluster.latest()
now.create_views()
print(f"Delta tables contain the cluster state at offset {now.offset}, the committed end.")

# COMMAND ----------

# MAGIC %md
# MAGIC ## The current state

# COMMAND ----------


def ask(question: str, sql: str) -> None:
    """Print a question and the result of its query."""
    print(f"\n{question}")
    display(spark.sql(sql))


ask(
    "What does the cluster consist of?",
    """
    SELECT (SELECT count(*) FROM topics) AS topics,
           (SELECT count(*) FROM partitions) AS partitions,
           (SELECT count(*) FROM brokers) AS brokers,
           (SELECT count(*) FROM configs) AS configs,
           (SELECT count(*) FROM acls) AS acls,
           (SELECT max(level) FROM features WHERE name = 'metadata.version') AS metadata_version
    """,
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The history
# MAGIC `changes` contains the row before and after each change, with the offset of its record.

# COMMAND ----------

ask(
    "Which nodes led the quorum, and from which offset on?",
    """
    SELECT epochs.leader_epoch, leader_id, start_offset, log_time AS since
    FROM epochs JOIN log ON offset = start_offset ORDER BY leader_epoch
    """,
)
ask(
    "What happened to the brokers?",
    """
    SELECT log_time, offset, coalesce(after.broker, before.broker).broker_id AS broker,
           CASE WHEN op = 'd' THEN 'unregistered'
                WHEN before.broker IS NULL THEN 'registered'
                WHEN array_contains(changed, 'broker_epoch') THEN 'registered again'
                WHEN array_contains(changed, 'fenced')
                THEN if(after.broker.fenced, 'fenced', 'unfenced')
                WHEN array_contains(changed, 'in_controlled_shutdown') THEN 'shuts down'
                ELSE array_join(changed, ', ') END AS what
    FROM changes WHERE entity = 'broker' AND (op <> 'u' OR size(changed) > 0)
    ORDER BY offset, seq
    """,
)
ask(
    "Which topics were deleted, when, and how many partitions did they have?",
    """
    SELECT topic.log_time, topic.offset, topic.before.topic.name, count(*) AS partitions
    FROM changes topic JOIN changes deleted
      ON deleted.offset = topic.offset AND deleted.entity = 'partition' AND deleted.op = 'd'
    WHERE topic.entity = 'topic' AND topic.op = 'd'
    GROUP BY ALL ORDER BY topic.offset LIMIT 5
    """,
)
ask(
    "Which partitions had the most leader elections?",
    """
    SELECT after.partition.topic_name AS topic, after.partition.partition_id AS partition,
           count(*) AS elections,
           array_join(collect_list(after.partition.leader), ' > ') AS leaders
    FROM (SELECT * FROM changes WHERE entity = 'partition' ORDER BY offset)
    WHERE array_contains(changed, 'leader') AND op <> 'd'
    GROUP BY ALL ORDER BY elections DESC, topic, partition LIMIT 5
    """,
)
ask(
    "Which record types does the log contain?",
    """
    SELECT record_type, count(*) AS records, round(100 * count(*) / sum(count(*)) OVER (), 1)
           AS percent
    FROM log WHERE NOT is_control GROUP BY record_type ORDER BY records DESC LIMIT 5
    """,
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Between two states
# MAGIC `at` returns the state at an offset or a time; `diff` returns the rows that differ between
# MAGIC two states. Each table has a history: every version of a row, and the offsets at which it
# MAGIC was valid.

# COMMAND ----------

cluster.diff(1500).createOrReplaceTempView("differences")
ask(
    "What differs between offset 1500 and now?",
    """
    SELECT entity, count_if(op = 'c') AS created, count_if(op = 'u') AS updated,
           count_if(op = 'd') AS deleted
    FROM differences GROUP BY entity ORDER BY entity
    """,
)
ask(
    "Which configs were changed in between?",
    """
    SELECT coalesce(after, before).config.resource_type_name AS kind,
           coalesce(after, before).config.resource_name AS resource,
           coalesce(after, before).config.name AS name,
           before.config.value AS then_value, after.config.value AS now_value
    FROM differences WHERE entity = 'config' ORDER BY 1, 2, 3 LIMIT 8
    """,
)
ask(
    "Which leaders has a partition had, and when?",
    """
    SELECT valid_from, valid_to, written_time AS since, leader, isr
    FROM partitions_history WHERE topic_name = 'orders-6' AND partition_id = 5
    ORDER BY valid_from
    """,
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Verification
# MAGIC `verify` computes the state again from the raw records, in SQL, and compares every table.

# COMMAND ----------

report = cluster.verify()
print(f"\n{report}")
assert report.ok, report
