# Databricks notebook source
# MAGIC %md
# MAGIC # Exactly once, from a stream to a log to Delta
# MAGIC
# MAGIC A stream writes each micro-batch to a log as one record batch that names the query and the
# MAGIC batch id. If Spark repeats a micro-batch after a crash, the log returns the offsets of the
# MAGIC first one. A second stream writes the log to a Delta table, whose checkpoint has the
# MAGIC offsets.

# COMMAND ----------

import tempfile
from pathlib import Path

from pyspark.errors import StreamingQueryException

import raftlog
from pyspark_raftlog import lag, typed_error

place = tempfile.mkdtemp(prefix="raftlog-")
events, decisions, table = f"{place}/events-0", f"{place}/decisions-0", f"{place}/table"
for log in (events, decisions):
    raftlog.open(log).close()


def emit(*values: str) -> None:
    """Append events, as a producer does."""
    with raftlog.open(events) as log:
        log.append([value.encode() for value in values])


# COMMAND ----------

# MAGIC %md
# MAGIC ## Two streams
# MAGIC `availableNow` reads what there is, and ends. `tailHoldback` is 0, since every record of a
# MAGIC log of raftlog's own that can be read is synced.

# COMMAND ----------


def records(path: str):
    """Return a stream of a log from its start."""
    options = {"startingOffset": "earliest", "tailHoldback": "0"}
    return spark.readStream.format("raftlog").options(**options).load(path)


def decide(checkpoint: str):
    """Write a decision for each event to the log."""
    decided = records(events).selectExpr("'accept ' || cast(value AS STRING) AS value")
    options = {"checkpointLocation": f"{place}/{checkpoint}", "txnAppId": "decisions"}
    writer = decided.writeStream.format("raftlog").options(**options).trigger(availableNow=True)
    query = writer.start(decisions)
    query.awaitTermination()
    return query


def publish() -> int:
    """Write the decisions to the Delta table; return its number of rows."""
    published = records(decisions).selectExpr("offset", "cast(value AS STRING) AS decision")
    options = {"checkpointLocation": f"{place}/published"}
    writer = published.writeStream.format("delta").options(**options).trigger(availableNow=True)
    writer.start(table).awaitTermination()
    return spark.read.format("delta").load(table).count()


emit("a", "b", "c")
query = decide("decided")
print(f"{publish()} rows, lag {lag(query).offsets_behind_latest}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## A crash after the append, before the commit of the checkpoint
# MAGIC The file with the commit of the batch is deleted, so that Spark repeats the batch. The log
# MAGIC has its name, and the batch is not appended again.

# COMMAND ----------

(Path(place) / "decided/commits/0").unlink()
for sum_file in (Path(place) / "decided/commits").glob(".0.*"):
    sum_file.unlink()
emit("d")
decide("decided")
rows = publish()
print(f"{rows} rows after the repeated batch")
assert rows == 4

# COMMAND ----------

# MAGIC %md
# MAGIC ## A lost checkpoint
# MAGIC Another checkpoint is another query, and would write all decisions again. The log refuses it
# MAGIC by the application id; `txnTakeOverFrom` is the explicit way for a successor.

# COMMAND ----------

try:
    decide("another")
except StreamingQueryException as error:
    print(f"refused: {type(typed_error(error)).__name__}")
else:
    raise AssertionError("the decisions would be written twice")

# COMMAND ----------

display(spark.read.format("delta").load(table).orderBy("offset"))
