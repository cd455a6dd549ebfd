# Databricks notebook source
# MAGIC %md
# MAGIC # Rescue: a majority of the controllers' disks is lost
# MAGIC
# MAGIC One metadata directory survived. From it, `raftlog rescue` writes the directories of a new
# MAGIC quorum with the same cluster id, topics and brokers. Before that, this notebook shows what
# MAGIC would be lost. Stop all old controllers first, and read docs/backup-and-rescue.md.

# COMMAND ----------

import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark_raftlog

pyspark_raftlog.register(spark)

dbutils.widgets.text("survivor", "", "metadata directory that survived (empty: the bundled log)")
dbutils.widgets.text("voters", "1@c1:9093,2@c2:9093,3@c3:9093", "the new controllers")
home = Path.cwd().parent if Path.cwd().name == "notebooks" else Path.cwd()
bundled = home / "tests/data/kraft-logs/three-nodes-4.3.1/node-100"
survivor = dbutils.widgets.get("survivor") or str(bundled)
out = f"{tempfile.mkdtemp(prefix='raftlog-')}/rescued"


def raftlog(*arguments: str) -> list[str]:
    """Run the command `raftlog`; return the lines that it prints."""
    command = [sys.executable, "-m", "raftlog_state.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return done.stdout.splitlines()


# COMMAND ----------

# MAGIC %md
# MAGIC ## Dry run
# MAGIC Without `--write`, nothing is written. Records after the last known commit are uncertain:
# MAGIC they may not have been committed, but the rescue commits them.

# COMMAND ----------

rescue = ["rescue", survivor, "--voters", dbutils.widgets.get("voters"), "--out", out]
rescue.append("--old-voters-stopped")  # without it, the command tries to connect to them
plan = raftlog(*rescue)
print("\n".join(plan))

# COMMAND ----------

# MAGIC %md
# MAGIC ## The uncertain changes
# MAGIC Decide whether they may take effect. Here they are the fencing of the last broker and the
# MAGIC election of a controller.

# COMMAND ----------

committed = next(line for line in plan if line.startswith("committed: records below offset"))
uncertain = int(committed.removeprefix("committed: records below offset ").split(":")[0])
display(
    spark.sql(f"""
    SELECT _offset AS offset, _commit_timestamp AS time, _change_type, name
    FROM raftlog_changes('{survivor}', from => {uncertain}) ORDER BY offset, _change_type DESC
    """)
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Write the directories, and verify them
# MAGIC `raftlog check` verifies checksums, offsets and epochs, and compares the snapshots with a
# MAGIC replay.

# COMMAND ----------

steps = raftlog(*rescue, "--write")
controllers = sorted(path for path in Path(out).iterdir() if path.is_dir())
for controller in controllers:
    raftlog("check", str(controller))
print(f"{len(controllers)} directories, each valid")
print("\n".join(steps[-6:]))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Nothing is missing
# MAGIC The state of a new controller equals the survivor's, except for what a new quorum changes.

# COMMAND ----------

counts = [
    f"""SELECT '{table}' AS rows,
        (SELECT count(*) FROM raftlog_state('{survivor}', '{table}')) AS survivor,
        (SELECT count(*) FROM raftlog_state('{controllers[0]}', '{table}')) AS rescued"""
    for table in ("topics", "partitions", "brokers", "configs", "acls", "scram")
]
compared = spark.sql(" UNION ALL ".join(counts))
display(compared)
assert all(row.survivor == row.rescued for row in compared.collect())
