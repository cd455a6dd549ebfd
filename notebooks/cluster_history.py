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
place = dbutils.widgets.get("tables") or f"{tempfile.mkdtemp(prefix='raftlog-')}/cluster"

# COMMAND ----------

# MAGIC %md
# MAGIC ## From the log to tables
# MAGIC `materialize` is a Spark stream over `format("raftlog")`. Here it takes what there is and ends;
# MAGIC without `availableNow` it follows the log for as long as it runs.

# COMMAND ----------

cluster = open_cluster(spark, place)
query = cluster.materialize(path, checkpoint=f"{place}-checkpoint", trigger="availableNow")
query.awaitTermination()

now = cluster.latest()
now.create_views()
print(f"Every record below offset {now.offset + 1} is in Delta tables. Secrets are not.\n")
