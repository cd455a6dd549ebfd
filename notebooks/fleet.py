# Databricks notebook source
# MAGIC %md
# MAGIC # A fleet: the metadata of many clusters in one set of tables
# MAGIC
# MAGIC One streaming query writes the logs of all clusters to Delta tables, with `cluster_id` as
# MAGIC their first column. A single query then answers a question about the whole fleet. The
# MAGIC bundled logs are from two clusters, with Kafka 4.3.1 and 3.9.2.

# COMMAND ----------

import json
import tempfile
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame

from raftlog_state import read_report
from raftlog_state.tables import list_clusters, open_cluster, open_group

home = Path.cwd().parent if Path.cwd().name == "notebooks" else Path.cwd()
logs = home / "tests/data/kraft-logs"
bundled = [str(logs / name) for name in ("three-nodes-4.3.1/node-100", "trimmed-3.9.2/node-1")]
dbutils.widgets.text("sources", "", "JSON array of logs (empty: two bundled logs)")
dbutils.widgets.text("tables", "", "location of the Delta tables (empty: a temporary directory)")
sources = json.loads(dbutils.widgets.get("sources") or "null") or [
    {"path": path, "tailHoldback": "0"} for path in bundled
]
place = dbutils.widgets.get("tables") or f"{tempfile.mkdtemp(prefix='raftlog-')}/fleet"

# COMMAND ----------

# MAGIC %md
# MAGIC ## One query for all logs
# MAGIC A log that cannot be reached does not stop the others. Without `trigger`, the query runs
# MAGIC continuously.

# COMMAND ----------

group = open_group(spark, place, "fleet")
query = group.materialize(sources, checkpoint=f"{place}-checkpoint", trigger="availableNow")
query.awaitTermination()
clusters = list_clusters(spark, place)
display(clusters.select("cluster_id", "offset", "metadata_version").orderBy("offset"))

# COMMAND ----------


def fleet(table: str) -> DataFrame:
    """Return a table of all clusters, each at its newest state."""
    names = [row.cluster_id for row in clusters.collect()]
    views = [open_cluster(spark, place, cluster_id=name).latest().table(table) for name in names]
    return reduce(DataFrame.unionByName, views)


for table in ("partitions", "configs"):
    fleet(table).createOrReplaceTempView(f"fleet_{table}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Which clusters have partitions without a leader, or too few replicas

# COMMAND ----------

display(
    spark.sql("""
    SELECT cluster_id, count(DISTINCT topic_id) AS topics, count(*) AS partitions,
           count_if(leader = -1) AS without_leader, count_if(size(replicas) = 1) AS one_replica
    FROM fleet_partitions GROUP BY cluster_id ORDER BY partitions
    """)
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Which configs do clusters set differently

# COMMAND ----------

display(
    spark.sql("""
    SELECT name, count(DISTINCT cluster_id) AS clusters, count(DISTINCT value) AS values
    FROM fleet_configs GROUP BY name HAVING clusters > 1 ORDER BY values DESC, name LIMIT 5
    """)
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## A picture of each cluster
# MAGIC The charts of `raftlog report`, which require `pip install "raftlog[report]"`.

# COMMAND ----------

for source in sources:
    if "path" in source:
        displayHTML(read_report(source["path"]).svg())
