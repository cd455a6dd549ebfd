# Databricks notebook source
# MAGIC %md
# MAGIC # History and time travel
# MAGIC
# MAGIC A KRaft log is a history: the state of a cluster at any time results from its newest
# MAGIC snapshot before that time and the records after it. The functions `raftlog_state` and
# MAGIC `raftlog_changes` replay it. Kafka deletes old records; Delta tables keep them (see
# MAGIC cluster_history).

# COMMAND ----------

from pathlib import Path

import pyspark_raftlog
from raftlog_state import read_report

pyspark_raftlog.register(spark)

dbutils.widgets.text("path", "", "log directory of a Kafka node (empty: the bundled log)")
dbutils.widgets.text("topic", "orders-0", "topic")
home = Path.cwd().parent if Path.cwd().name == "notebooks" else Path.cwd()
bundled = home / "tests/data/kraft-logs/three-nodes-4.3.1/node-100"
path = dbutils.widgets.get("path") or str(bundled)
topic = dbutils.widgets.get("topic")

# COMMAND ----------

# MAGIC %md
# MAGIC ## A picture of the whole history
# MAGIC The charts of `raftlog report`, which require `pip install "raftlog[report]"`.

# COMMAND ----------

displayHTML(read_report(path).svg())

# COMMAND ----------

# MAGIC %md
# MAGIC ## One table at three times
# MAGIC `at` is an offset, a time in UTC, an age such as `'-15m'`, `'epoch:2'`, `'snapshot'` or
# MAGIC `'end'`. The default is the committed end.

# COMMAND ----------

times = ("2026-11-21 08:03:30", "2026-11-21 08:04", "end")
counts = [
    f"""SELECT '{time}' AS at, count(*) AS partitions, count_if(leader = -1) AS without_leader,
        count_if(size(isr) < size(replicas)) AS under_replicated
        FROM raftlog_state('{path}', 'partitions', at => '{time}')"""
    for time in times
]
display(spark.sql(" UNION ALL ".join(counts)))

# COMMAND ----------

# MAGIC %md
# MAGIC ## The life of one topic
# MAGIC `name` has the same form as in `raftlog log`: here the topic with its configs and
# MAGIC partitions. The rows are JSON, since they are from several tables.

# COMMAND ----------

display(
    spark.sql(f"""
    SELECT _commit_version AS offset, date_format(_commit_timestamp, 'HH:mm:ss.SSS') AS time,
           _change_type, name, get_json_object(row, '$.value') AS value
    FROM raftlog_changes('{path}', name => 'topic/{topic}')
    WHERE entity <> 'partition' ORDER BY offset, _change_type DESC
    """)
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## What differs between two times
# MAGIC A full outer join of two states. NULL on one side means that the config was not set.

# COMMAND ----------

display(
    spark.sql(f"""
    SELECT resource_type_name AS kind, left(resource_name, 12) AS resource, name,
           earlier.value AS earlier, later.value AS later
    FROM raftlog_state('{path}', 'configs', at => '2026-11-21 08:04') AS earlier
    FULL OUTER JOIN raftlog_state('{path}', 'configs', at => '2026-11-21 08:04:50') AS later
    USING (cluster_id, resource_type_name, resource_name, name)
    WHERE earlier.value IS DISTINCT FROM later.value ORDER BY ALL
    """)
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The versions of a row
# MAGIC Each row after a change is valid until the next change.

# COMMAND ----------

versions = spark.sql(f"""
    SELECT partition_id AS partition, _commit_version AS valid_from,
           lead(_commit_version) OVER (PARTITION BY partition_id ORDER BY _commit_version)
           AS valid_to,
           _commit_timestamp AS since, leader, isr, size(isr) AS in_sync
    FROM raftlog_changes('{path}', 'partitions', name => 'topic/{topic}')
    WHERE _change_type IN ('insert', 'update_postimage')
""")
display(versions.where("partition = 0").orderBy("valid_from"))
