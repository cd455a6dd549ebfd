# Databricks notebook source
# MAGIC %md
# MAGIC # Exactly once, from a stream to a log to Delta
# MAGIC
# MAGIC A stream writes each micro-batch to a quorum's log, as one record batch that names the query
# MAGIC and the batch id. If Spark repeats a micro-batch after a crash, the log returns the offsets
# MAGIC of the first attempt. A second stream writes the log to a Delta table, and its checkpoint
# MAGIC contains the offsets.

# COMMAND ----------

import atexit
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark.errors import StreamingQueryException

import raftlog
from pyspark_raftlog import lag, typed_error

dbutils.widgets.text("servers", "", "nodes of a quorum (empty: a quorum of this machine)")
place = tempfile.mkdtemp(prefix="raftlog-")
events, table = f"{place}/events-0", f"{place}/table"
raftlog.open(events).close()

# COMMAND ----------

# MAGIC %md
# MAGIC ## A log in a directory, and a quorum
# MAGIC The events are in a directory on this machine, the decisions in a quorum. For a trial,
# MAGIC `raftlog dev` starts three nodes on this machine. To use a real quorum, set the widget
# MAGIC `servers` to its addresses.

# COMMAND ----------

servers = dbutils.widgets.get("servers")
quorum = None
if not servers:
    command = [sys.executable, "-m", "raftlog_state.cli", "dev"]
    quorum = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    atexit.register(quorum.terminate)
    printed = map(re.compile(r'raftlog.connect\("(.+)"\)').search, quorum.stdout)
    servers = next(found[1] for found in printed if found)


def emit(*values: str) -> None:
    """Append events, as a producer does."""
    with raftlog.open(events) as log:
        log.append([value.encode() for value in values])


# COMMAND ----------

# MAGIC %md
# MAGIC ## Two streams
# MAGIC `availableNow` reads what is available and stops. `tailHoldback` is 0, since in a directory
# MAGIC log that raftlog created every record is synced before it can be read.

# COMMAND ----------


def records(**source: str):
    """Return a stream of a log from its start."""
    options = {"startingOffset": "earliest", **source}
    return spark.readStream.format("raftlog").options(**options).load()


def decide(checkpoint: str):
    """Write a decision for each event to the log."""
    decided = records(path=events, tailHoldback="0").selectExpr(
        "'accept ' || cast(value AS STRING) AS value"
    )
    options = {
        "bootstrap.servers": servers,
        "checkpointLocation": f"{place}/{checkpoint}",
        "txnAppId": "decisions",
    }
    writer = decided.writeStream.format("raftlog").options(**options).trigger(availableNow=True)
    query = writer.start()
    query.awaitTermination()
    return query


def publish() -> int:
    """Write the decisions to the Delta table; return its number of rows."""
    published = records(**{"bootstrap.servers": servers}).selectExpr(
        "offset", "cast(value AS STRING) AS decision"
    )
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
# MAGIC contains the batch's name, so the batch is not appended again.

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
# MAGIC A new checkpoint means a new query, which would write all decisions again. The log refuses
# MAGIC it because of the application id. `txnTakeOverFrom` lets a successor take over explicitly.

# COMMAND ----------

try:
    decide("another")
except StreamingQueryException as error:
    print(f"refused: {type(typed_error(error)).__name__}")
else:
    raise AssertionError("the decisions would be written twice")

# COMMAND ----------

display(spark.read.format("delta").load(table).orderBy("offset"))

# COMMAND ----------

if quorum is not None:
    quorum.terminate()
    quorum.wait()
