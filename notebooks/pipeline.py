# Databricks notebook source
# MAGIC %md
# MAGIC # A declarative pipeline: a log as source and as sink
# MAGIC
# MAGIC Spark Declarative Pipelines (Spark 4.1, Databricks Lakeflow) keep tables up to date that are
# MAGIC declared as queries. Here the records of a metadata log are a streaming table, and a summary
# MAGIC of them is a materialized view. Decisions about brokers are written to a raftlog log, from
# MAGIC which other jobs read them. Run it with `spark-pipelines run --spec
# MAGIC notebooks/spark-pipeline.yml`. On Databricks, use it as the source of a pipeline: add the
# MAGIC wheel to the pipeline's environment, and `raftlog.path` and `raftlog.decisions` to its
# MAGIC configuration.

# COMMAND ----------

from pathlib import Path

from pyspark import pipelines as dp

import raftlog

home = Path.cwd().parent if Path.cwd().name == "notebooks" else Path.cwd()
bundled = home / "tests/data/kraft-logs/three-nodes-4.3.1/node-100"
path = spark.conf.get("raftlog.path", str(bundled))
decisions = spark.conf.get("raftlog.decisions")
raftlog.open(decisions).close()  # creates the log if it does not exist: a sink does not

# COMMAND ----------

# MAGIC %md
# MAGIC ## The log as a source
# MAGIC Each update of the pipeline reads the records since the previous one. `tailHoldback` is 0,
# MAGIC since the bundled log has ended. For a running node, leave it out, or name the controllers
# MAGIC with `bootstrap.servers` instead of a path.

# COMMAND ----------


@dp.table(comment="records of the metadata log, with secrets redacted")
def metadata_records():
    options = {"startingOffset": "earliest", "tailHoldback": "0"}
    return (
        spark.readStream.format("raftlog")
        .options(**options)
        .load(path)
        .select("offset", "timestamp", "leaderEpoch", "recordType", "record")
    )


@dp.materialized_view(comment="number of records of each type")
def record_types():
    return spark.read.table("metadata_records").groupBy("recordType").count()


# COMMAND ----------

# MAGIC %md
# MAGIC ## A log as a sink
# MAGIC A flow appends to a sink in micro-batches. Each is one record batch that names the query and
# MAGIC the batch id, so a batch that Spark repeats is not written again. The pipeline does not
# MAGIC track the records of a sink: after a full refresh, the flow is a new query with the same
# MAGIC `txnAppId`. The log refuses it (RAFTLOG_FOREIGN_COMMIT) instead of writing all decisions
# MAGIC twice. A sink accepts streaming flows only.

# COMMAND ----------

dp.create_sink("decisions", "raftlog", {"path": decisions, "txnAppId": "pipeline"})


@dp.append_flow(target="decisions")
def examine_fenced_brokers():
    broker, fenced = (f"get_json_object(record, '$.{name}')" for name in ("brokerId", "fenced"))
    changes = spark.readStream.table("metadata_records").where(
        f"recordType = 'BROKER_REGISTRATION_CHANGE_RECORD' AND {fenced} = '1'"
    )
    return changes.selectExpr(f"concat('examine broker ', {broker}, ', offset ', offset) AS value")
