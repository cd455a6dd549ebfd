# Databricks notebook source
# MAGIC %md
# MAGIC # A lease: one of several jobs works, and a slow one does no harm
# MAGIC
# MAGIC Two schedulers start the same job. Only one may work, and if it hangs, another must
# MAGIC continue. A lease is a record `job until` in the log of a quorum that both hosts can reach.
# MAGIC It is appended **at the end offset that the job has read**, so that exactly one of two
# MAGIC rivals succeeds. A job that hangs and resumes late still trusts its lease. Therefore each
# MAGIC write carries a **fencing token** that only grows: the offset of the lease.

# COMMAND ----------

import atexit
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import raftlog
from pyspark_raftlog import NewRecords, commit_loop

dbutils.widgets.text("servers", "", "nodes of a quorum (empty: a quorum of this machine)")
results = f"{tempfile.mkdtemp(prefix='raftlog-')}/results"

# COMMAND ----------

# MAGIC %md
# MAGIC ## A quorum
# MAGIC For a trial, `raftlog dev` starts three nodes on this machine. A real quorum has its nodes
# MAGIC on three hosts; set the widget `servers` to their addresses.

# COMMAND ----------

servers = dbutils.widgets.get("servers")
quorum = None
if not servers:
    command = [sys.executable, "-m", "raftlog_state.cli", "dev"]
    quorum = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    atexit.register(quorum.terminate)
    printed = map(re.compile(r'raftlog.connect\("(.+)"\)').search, quorum.stdout)
    servers = next(found[1] for found in printed if found)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Acquire
# MAGIC The decision is a function of the records and the time. Times are from the jobs' clocks: a
# MAGIC wrong clock may take a lease too early, but the token still orders the writes.

# COMMAND ----------


def acquire(job: str, *, now: int, seconds: int) -> int | None:
    """Return the token of a new lease; None if another job has one."""

    def decide(new_records: NewRecords) -> list[bytes] | None:
        for record in new_records.records:
            decide.holder, until = record.value.decode().rsplit(" ", 1)
            decide.until = int(until)
        if decide.until > now and decide.holder != job:
            return None
        return [f"{job} {now + seconds}".encode()]

    decide.holder, decide.until = "", 0
    with raftlog.connect(servers) as log:
        result = commit_loop(log, decide)
    return None if result is None else result.base_offset


with ThreadPoolExecutor() as rivals:
    tokens = list(rivals.map(lambda job: acquire(job, now=100, seconds=60), ("monday", "tuesday")))
print(f"{sum(token is not None for token in tokens)} of 2 rivals has the lease")
assert sum(token is not None for token in tokens) == 1

# COMMAND ----------

# MAGIC %md
# MAGIC ## A job that hangs
# MAGIC The holder hangs for two minutes. Its lease ends, and the other job gets a lease with a
# MAGIC greater token and writes. Delta ignores a write whose `txnVersion` is not greater than the
# MAGIC last one of the same `txnAppId`, so the late write of the first job has no effect.

# COMMAND ----------

holder, other = ("monday", "tuesday") if tokens[0] is not None else ("tuesday", "monday")
first = max(token for token in tokens if token is not None)


def write(job: str, token: int) -> None:
    """Append a result to the Delta table, fenced by the token of the lease."""
    frame = spark.createDataFrame([(job, token)], "job STRING, token BIGINT")
    options = {"txnAppId": "nightly", "txnVersion": str(token)}
    frame.write.format("delta").mode("append").options(**options).save(results)


assert acquire(other, now=120, seconds=60) is None, "the lease has not ended"
second = acquire(other, now=220, seconds=60)
write(other, second)
write(holder, first)  # wakes up late
assert first < second

rows = spark.read.format("delta").load(results).collect()
assert [(row.job, row.token) for row in rows] == [(other, second)]
print("the late write was fenced")

# COMMAND ----------

# MAGIC %md
# MAGIC ## The leases as a table
# MAGIC The token of a lease is its offset.

# COMMAND ----------

display(
    spark.read.format("raftlog")
    .option("bootstrap.servers", servers)
    .load()
    .selectExpr("offset AS token", "split_part(cast(value AS STRING), ' ', 2) AS until_second")
)

# COMMAND ----------

if quorum is not None:
    quorum.terminate()
    quorum.wait()
