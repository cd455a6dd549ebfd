# Databricks notebook source
# MAGIC %md
# MAGIC # Metadata changes from a batch job, with a dry run
# MAGIC
# MAGIC The topics to create are rows of a DataFrame. `apply_changes` validates them as a Kafka
# MAGIC controller does, against the state at the end of the log. It then appends all of them in one
# MAGIC transaction, or none. A dry run returns the records that would be written. The log is a
# MAGIC raftlog log: either in a directory, or of a quorum that is the controller of a cluster.
# MAGIC Kafka's own controllers have no interface for this.

# COMMAND ----------

import random
import tempfile

import pyspark_raftlog
import raftlog
from raftlog_state import apply_changes, export_snapshot
from raftlog_state.errors import InvalidChangesError
from raftlog_state.records import to_json_text

pyspark_raftlog.register(spark)
directory = tempfile.mkdtemp(prefix="raftlog-")
path = f"{directory}/cluster-0"
log = raftlog.open(path, values="kraft")

# COMMAND ----------

# MAGIC %md
# MAGIC ## A cluster with three brokers
# MAGIC Changes can be dictionaries. The documentation of `raftlog_state.controller` lists the keys.

# COMMAND ----------

begin = [{"change": "set_feature", "feature": "metadata.version", "level": 30}]
for broker in (1, 2, 3):
    endpoints = {"CLIENT": f"broker-{broker}:9092"}
    begin.append({"change": "register_broker", "broker_id": broker, "endpoints": endpoints})
    begin.append({"change": "unfence_broker", "broker_id": broker})
created = apply_changes(log, begin)
print(f"{created.record_count} records for 3 brokers, end offset {log.end_offset}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## The topics, and a dry run
# MAGIC `validate_only=True` writes nothing. Each row has the columns of its kind. Replicas are
# MAGIC chosen at random; with the same seed, the dry run returns the ones that are applied later.

# COMMAND ----------

wanted = spark.sql("""
    SELECT 'create_topic' AS change, topic, partitions, 3 AS replication_factor
    FROM VALUES ('payments', 2), ('refunds', 1) AS wanted (topic, partitions)
""")
dry = apply_changes(log, wanted, validate_only=True, rng=random.Random(2026))
records = [(to_json_text(one),) for one in dry.records]
display(
    spark.createDataFrame(records, "record STRING").selectExpr(
        "get_json_object(record, '$.type') AS type",
        "coalesce(get_json_object(record, '$.data.name'), "
        "get_json_object(record, '$.data.replicas')) AS name_or_replicas",
    )
)
print(f"dry run: {dry.record_count} records, end offset {log.end_offset}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## One wrong row writes nothing
# MAGIC The error names the row, the reason, and Kafka's error code.

# COMMAND ----------

wrong = wanted.unionByName(
    wanted.where("topic = 'refunds'").selectExpr(
        "change", "'too-many' AS topic", "partitions", "9 AS replication_factor"
    )
)
try:
    apply_changes(log, wrong)
except InvalidChangesError as error:
    print(f"refused: {error}")
else:
    raise AssertionError("there are only three brokers")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Apply, and look at what changed

# COMMAND ----------

before = log.end_offset
applied = apply_changes(log, wanted, rng=random.Random(2026))
display(
    spark.sql(f"""
    SELECT _change_type, entity, name, _record_type
    FROM raftlog_changes('{path}', from => {before}) ORDER BY _offset
    """)
)
print(f"applied: {applied.record_count} records, end offset {log.end_offset}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## A snapshot from which Kafka can start

# COMMAND ----------

log.close()
snapshot = export_snapshot(path, directory)
print(f"snapshot at end offset {snapshot.snapshot_id.end_offset}")
