# Databricks notebook source
# MAGIC %md
# MAGIC # Two jobs, one sequence of ids
# MAGIC
# MAGIC Jobs that give out ids must never give out one twice, and leave none out. Here they agree on
# MAGIC a small log: whoever takes a block of ids appends that fact **at the end that he has read**.
# MAGIC If somebody else was first, the append is refused, and he decides again on what came in
# MAGIC between. There is no lock to hold and no service to run: the log is a directory.

# COMMAND ----------

import tempfile
from concurrent.futures import ThreadPoolExecutor

from pyspark.errors import PySparkException

import raftlog
from pyspark_raftlog import NewRecords, append, commit_loop, conflict

dbutils.widgets.text("path", "", "directory of the log (empty: a new one)")
path = dbutils.widgets.get("path") or f"{tempfile.mkdtemp(prefix='raftlog-')}/ids-0"
raftlog.open(path).close()  # makes the log, unless it is there

# COMMAND ----------

# MAGIC %md
# MAGIC ## A job takes blocks of ids
# MAGIC `commit_loop` reads the log, asks the job what it decides, appends that under the token, and
# MAGIC asks again after a conflict, with the records that came in between.

# COMMAND ----------


class Allocator:
    """What a job knows of the log: which id is free, as of which offset."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.free = 0
        self.read_up_to = 0

    def take(self, count: int) -> range:
        """A block of ids that nobody else has, or ever gets."""
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

ids = sorted(one for block in taken for one in block)
assert ids == list(range(246)), "no duplicate, no gap"

# COMMAND ----------

# MAGIC %md
# MAGIC ## What they agreed on is a table
# MAGIC The same log, read by Spark.

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
# MAGIC ## A DataFrame is a decision, too
# MAGIC `append` writes all rows of a frame as one record batch and says where they are. The sink of
# MAGIC `df.write` takes the same token; it cannot answer, but `conflict` reads its refusal.

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
    print(f"Refused: the log ends at {lost.log_end_offset} now, not at {end}. Nothing was written.")
else:
    raise AssertionError("the token was good once")
