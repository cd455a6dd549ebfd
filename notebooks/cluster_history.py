# Databricks notebook source
# MAGIC %md
# MAGIC # What happened to this cluster?
# MAGIC
# MAGIC Three controllers' directories of an Apache Kafka 4.3.1 cluster go into Delta tables, and
# MAGIC questions are asked in SQL. Point the widget `path` at a directory of your own: a node's log
# MAGIC directory, a metadata directory, a checkpoint, or several voters separated by commas.

# COMMAND ----------

import tempfile
from pathlib import Path

from raftlog_state.tables import open_cluster

dbutils.widgets.text("path", "", "directory of a Kafka node, or several voters")
dbutils.widgets.text("tables", "", "where the Delta tables go (empty: a temporary folder)")


def bundled() -> str:
    """The directories of the three voters that come with the project."""
    cluster = Path.cwd() / "tests/data/kraft-logs/three-nodes-4.3.1"
    return ",".join(str(cluster / f"node-{node}") for node in (100, 101, 102))


path = dbutils.widgets.get("path") or bundled()
tables_path = dbutils.widgets.get("tables") or f"{tempfile.mkdtemp(prefix='raftlog-')}/cluster"

# COMMAND ----------

# MAGIC %md
# MAGIC ## From the log to tables
# MAGIC `materialize` is a Spark stream over `format("raftlog")`. Here it takes what there is and
# MAGIC ends; without `availableNow` it follows the log for as long as it runs.

# COMMAND ----------

cluster = open_cluster(spark, tables_path)
query = cluster.materialize(path, checkpoint=f"{tables_path}-checkpoint", trigger="availableNow")
query.awaitTermination()

now = cluster.latest()
now.create_views()
print(f"Delta tables hold the cluster as of offset {now.offset}: all that a majority has.")

# COMMAND ----------

# MAGIC %md
# MAGIC ## What is there?

# COMMAND ----------


def ask(question: str, sql: str) -> None:
    """Put a question above its answer."""
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
# MAGIC ## What happened, and when?
# MAGIC `changes` has every row before and after each record that changed it.

# COMMAND ----------

ask(
    "Who led the quorum, from which record on?",
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
    "Which topics are gone, since when, and how many partitions went with them?",
    """
    SELECT topic.log_time, topic.offset, topic.before.topic.name, count(*) AS partitions
    FROM changes topic JOIN changes gone
      ON gone.offset = topic.offset AND gone.entity = 'partition' AND gone.op = 'd'
    WHERE topic.entity = 'topic' AND topic.op = 'd'
    GROUP BY ALL ORDER BY topic.offset LIMIT 5
    """,
)
ask(
    "Which partitions changed their leader most often?",
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
    "How much of the log is heartbeat?",
    """
    SELECT record_type, count(*) AS records, round(100 * count(*) / sum(count(*)) OVER (), 1)
           AS percent
    FROM log WHERE NOT is_control GROUP BY record_type ORDER BY records DESC LIMIT 5
    """,
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## What differs between two moments?

# COMMAND ----------

then = cluster.at(offset=1500)
then.create_views("then_")
ask(
    f"Which configs differ between offset {then.offset} and now?",
    """
    SELECT coalesce(c.resource_type_name, t.resource_type_name) AS kind,
           coalesce(c.resource_name, t.resource_name) AS resource, coalesce(c.name, t.name) AS name,
           t.value AS then_value, c.value AS now_value
    FROM configs c FULL JOIN then_configs t
      ON c.resource_type = t.resource_type AND c.resource_name = t.resource_name
     AND c.name = t.name
    WHERE c.value IS DISTINCT FROM t.value ORDER BY 1, 2, 3 LIMIT 8
    """,
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Is it true?
# MAGIC `verify` folds the raw records a second time, in SQL, and compares every table.

# COMMAND ----------

report = cluster.verify()
print(f"\n{report}")
assert report.ok, report
