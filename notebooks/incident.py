# Databricks notebook source
# MAGIC %md
# MAGIC # An incident: what happened between two times?
# MAGIC
# MAGIC A partition had no leader for some seconds, for an unknown reason. The metadata log contains
# MAGIC every change with its time. This notebook reads it with SQL and needs no tables. The bundled
# MAGIC log is from a controller of a Kafka 4.3.1 cluster whose brokers were stopped one after
# MAGIC another. Set `path` to the log directory of a controller or broker, and `from` and `to` to
# MAGIC times in UTC.

# COMMAND ----------

from pathlib import Path

import pyspark_raftlog
from raftlog_state import read_report

pyspark_raftlog.register(spark)

dbutils.widgets.text("path", "", "log directory of a Kafka node (empty: the bundled log)")
dbutils.widgets.text("from", "2026-11-21 08:04:15", "first time, UTC")
dbutils.widgets.text("to", "2026-11-21 08:05", "end, UTC")
home = Path.cwd().parent if Path.cwd().name == "notebooks" else Path.cwd()
bundled = home / "tests/data/kraft-logs/three-nodes-4.3.1/node-100"
path = dbutils.widgets.get("path") or str(bundled)
first, end = dbutils.widgets.get("from"), dbutils.widgets.get("to")
between = f"from => '{first}', to => '{end}'"

# COMMAND ----------

# MAGIC %md
# MAGIC ## A picture
# MAGIC The charts of `raftlog report` show leaders, brokers, partitions without a leader or with
# MAGIC too few replicas, and elections. They require `pip install "raftlog[report]"`.
# MAGIC `report.html()` returns the whole report, to save as a file.

# COMMAND ----------

report = read_report(path, since=first, until=end)
displayHTML(report.svg())

# COMMAND ----------

# MAGIC %md
# MAGIC ## Which kinds of things changed, and how often

# COMMAND ----------

spark.sql(f"SELECT * FROM raftlog_changes('{path}', {between})").createOrReplaceTempView("changes")
display(
    spark.sql("""
    SELECT date_format(_commit_timestamp, 'HH:mm:ss') AS second,
           count_if(entity = 'broker') AS brokers, count_if(entity = 'partition') AS partitions,
           count_if(entity = 'topic') AS topics, count_if(entity = 'config') AS configs,
           count_if(entity = 'acl') AS acls, count_if(entity = 'epoch') AS quorum
    FROM changes WHERE _change_type <> 'update_preimage' GROUP BY second ORDER BY second
    """)
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## What happened to the brokers
# MAGIC An update has two rows: the row before it and the row after it.

# COMMAND ----------

display(
    spark.sql(f"""
    SELECT _commit_timestamp AS time, _commit_version AS offset, broker_id, _change_type,
           fenced, in_controlled_shutdown
    FROM raftlog_changes('{path}', 'brokers', {between}) ORDER BY offset, _change_type DESC
    """)
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Which partitions lost their leader, and for how long
# MAGIC `leader` is -1 while a partition has no leader. A comparison of the two states would miss a
# MAGIC partition that had a leader again before the end.

# COMMAND ----------

partitions = spark.sql(f"SELECT * FROM raftlog_changes('{path}', 'partitions', {between})")
partitions.where("_change_type LIKE 'update%'").createOrReplaceTempView("updates")
outages = spark.sql("""
    WITH leaders AS (
        SELECT topic_name, partition_id, _offset, _commit_timestamp AS since,
               max(CASE WHEN _change_type = 'update_preimage' THEN leader END) AS old,
               max(CASE WHEN _change_type = 'update_postimage' THEN leader END) AS new
        FROM updates GROUP BY ALL
    ), elections AS (
        SELECT *, lead(since) OVER (PARTITION BY topic_name, partition_id ORDER BY _offset) AS until
        FROM leaders WHERE old <> new
    )
    SELECT left(topic_name, 20) AS topic, partition_id AS partition, old AS last_leader, since,
           coalesce(cast(until AS STRING), 'still without') AS until
    FROM elections WHERE new = -1
""")
outages.createOrReplaceTempView("outages")
display(
    spark.sql("SELECT last_leader, since, until, count(*) AS partitions FROM outages GROUP BY ALL")
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## What was still wrong at the end
# MAGIC `raftlog_state` returns the state before the first record whose time is at or after `at`.

# COMMAND ----------

display(
    spark.sql(f"""
    SELECT leader = -1 AS has_no_leader, size(isr) < size(replicas) AS is_under_replicated,
           count(*) AS partitions
    FROM raftlog_state('{path}', 'partitions', at => '{end}')
    GROUP BY ALL ORDER BY ALL
    """)
)

# COMMAND ----------

# MAGIC %md
# MAGIC **Principals.** No record of the log contains the principal of a request. Topic, config and
# MAGIC ACL changes can be joined with the authorizer's log by resource and time. A broker that is
# MAGIC fenced, as here, has stopped sending heartbeats: look at that broker.
