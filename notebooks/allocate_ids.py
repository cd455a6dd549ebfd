# Databricks notebook source
# MAGIC %md
# MAGIC # Two jobs, one sequence of ids
# MAGIC
# MAGIC Jobs that allocate ids must neither allocate an id twice nor leave gaps. Here they share a
# MAGIC small log. To take a block of ids, a job appends a record **at the end offset that it has
# MAGIC read**. If another job has appended first, the append fails, and the job reads the new
# MAGIC records and tries again. No lock and no service is needed: the log is a directory.

# COMMAND ----------

import tempfile
from concurrent.futures import ThreadPoolExecutor

from pyspark.errors import PySparkException

import raftlog
from pyspark_raftlog import NewRecords, append, commit_loop, conflict

dbutils.widgets.text("path", "", "directory of the log (empty: a new log)")
path = dbutils.widgets.get("path") or f"{tempfile.mkdtemp(prefix='raftlog-')}/ids-0"
raftlog.open(path).close()  # creates the log if it does not exist

# COMMAND ----------

# MAGIC %md
# MAGIC ## A job takes blocks of ids
# MAGIC `commit_loop` reads the log, calls the job with the records, and appends its decision if the
# MAGIC end offset is unchanged. After a conflict it calls the job again, with the new records.

# COMMAND ----------


class Allocator:
    """State of a job: the next free id, and the offset up to which the log was read."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.free = 0
        self.read_up_to = 0

    def take(self, count: int) -> range:
        """Take a block of ids that no other job gets."""
        commit_loop(
            path, lambda new_records: self.decide(new_records, count), from_offset=self.read_up_to
        )
        return range(self.free, self.free + count)

    def decide(self, new_records: NewRecords, count: int) -> list[bytes]:
        for record in new_records.records:
            _, _, end = record.value.decode().split()
            self.free = int(end)
        self.read_up_to = new_records.end_offset
        return [f"{self.job} {self.free} {self.free + count}".encode()]


def run(job: str) -> list[range]:
    allocator = Allocator(job)
    return [allocator.take(count) for count in (100, 20, 3)]


with ThreadPoolExecutor() as jobs:
    taken = [block for blocks in jobs.map(run, ("orders", "refunds")) for block in blocks]

ids = sorted(number for block in taken for number in block)
assert ids == list(range(246)), "no duplicate, no gap"

# COMMAND ----------

# MAGIC %md
# MAGIC ## The blocks as a table
# MAGIC Spark reads the same log.

# COMMAND ----------

blocks = (
    spark.read.format("raftlog")
    .load(path)
    .selectExpr("offset", "split(cast(value AS STRING), ' ') AS block", "timestamp")
    .selectExpr("offset", "block[0] AS job", "int(block[1]) AS first", "int(block[2]) AS end")
)
display(blocks)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Appending a DataFrame
# MAGIC `append` writes all rows of a DataFrame as one record batch and returns their offsets.
# MAGIC `df.write` has the same check as an option; `conflict` returns the typed error.

# COMMAND ----------

with raftlog.open(path) as log:
    end = log.end_offset
rows = spark.createDataFrame([("backfill 246 300",), ("backfill 300 400",)], "value STRING")
result = append(rows, to=path, required_base_offset=end)
print(f"Both rows are in the log, at offsets {result.base_offset} to {result.last_offset}.")

try:
    rows.write.format("raftlog").mode("append").option("requiredBaseOffset", end).save(path)
except PySparkException as error:
    lost = conflict(error)
    if lost is None:
        raise
    print(f"Conflict: the end offset is {lost.log_end_offset}, not {end}. Nothing was written.")
else:
    raise AssertionError("the required base offset was used before")
