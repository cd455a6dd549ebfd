# Databricks notebook source
# MAGIC %md
# MAGIC # Drift between two clusters
# MAGIC
# MAGIC Two clusters should have the same topics, configs and ACLs, for example production and its
# MAGIC standby or staging cluster. Topic ids, offsets and leaders always differ, so rows are
# MAGIC compared by name. Each cluster is given as a log directory, a `.checkpoint` file from a
# MAGIC backup, or the directories of several voters.

# COMMAND ----------

from pathlib import Path

import pyspark_raftlog

pyspark_raftlog.register(spark)

home = Path.cwd().parent if Path.cwd().name == "notebooks" else Path.cwd()
logs = home / "tests/data/kraft-logs"
dbutils.widgets.text("one", "", "log of the first cluster (empty: a bundled log of Kafka 4.3.1)")
dbutils.widgets.text("two", "", "log of the second cluster (empty: a bundled log of Kafka 3.9.2)")
one = dbutils.widgets.get("one") or str(logs / "three-nodes-4.3.1/node-100")
two = dbutils.widgets.get("two") or str(logs / "trimmed-3.9.2/node-1")

# COMMAND ----------

# MAGIC %md
# MAGIC ## One list of names and values for each cluster
# MAGIC All kinds of rows have the same columns, so that the comparison is a single join.

# COMMAND ----------


def listed(path: str) -> str:
    """Return a query of the names and values of a cluster."""
    return f"""
    SELECT 'topic' AS kind, topic_name AS name, concat_ws(' ', count(*), 'partitions x',
           max(size(replicas))) AS value
    FROM raftlog_state('{path}', 'partitions') GROUP BY topic_name
    UNION ALL
    SELECT 'config', concat_ws('/', resource_type_name, resource_name, name), value
    FROM raftlog_state('{path}', 'configs')
    UNION ALL
    SELECT 'acl', concat_ws(' ', principal, permission_name, operation_name, 'on',
           resource_type_name, resource_name), concat_ws(' ', pattern_type_name, host)
    FROM raftlog_state('{path}', 'acls')
    UNION ALL
    SELECT 'feature', name, cast(level AS STRING) FROM raftlog_state('{path}', 'features')
    """


drift = spark.sql(f"""
    SELECT kind, name, one.value AS one, two.value AS two
    FROM ({listed(one)}) AS one FULL OUTER JOIN ({listed(two)}) AS two USING (kind, name)
    WHERE one.value IS DISTINCT FROM two.value
""")
rows = drift.toArrow()  # small: what differs; and so the logs are read only once
drift = spark.createDataFrame(rows)

# COMMAND ----------

# MAGIC %md
# MAGIC ## How much differs

# COMMAND ----------

display(
    drift.groupBy("kind")
    .agg({"kind": "count"})
    .withColumnRenamed("count(kind)", "differences")
    .orderBy("kind")
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## What differs
# MAGIC NULL means that the cluster does not have it.

# COMMAND ----------

display(
    drift.where("kind IN ('feature', 'config')")
    .selectExpr("kind", "left(name, 44) AS name", "one", "two")
    .orderBy("kind", "name")
    .limit(12)
)
print(f"{rows.num_rows} differences")

# COMMAND ----------

# MAGIC %md
# MAGIC For a scheduled job, the command `raftlog diff A B --ignore ids,epochs,leaders` compares all
# MAGIC fields, with exit code 1 if they differ. `--as commands` prints the commands of Kafka's
# MAGIC tools that would remove the drift.
