"""What docs/spark.md lists for Spark Connect: ``connect_driver DIRECTORY LOG``.

Prints the name of each feature of the list after it has worked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from notebooks.run import local_session
from pyspark.errors import PySparkException

import pyspark_raftlog
import raftlog
from pyspark_raftlog import NewRecords, append, commit_loop, conflict, lag
from raftlog_state import apply_changes
from raftlog_state.tables.stores.spark import is_connect, session_for_tables

CREATE = "SELECT 'create_topic' AS change, 'payments' AS topic, 3 AS partitions, 1 AS replication"


def features(spark: Any, directory: str, log: str) -> Iterator[tuple[str, Callable[[], bool]]]:
    """Yield the names of features, and functions that use them and return whether they worked."""
    ids, checkpoint = f"{directory}/ids-0", f"{directory}/checkpoint"
    raftlog.open(ids).close()
    rows = spark.createDataFrame([("a",)], "value STRING")

    def read() -> bool:
        narrow = spark.read.format("raftlog").schema("offset BIGINT").load(log)
        return bool(narrow.count() == 3125)

    yield "batch reads, projection by a schema", read

    def view() -> bool:
        options = f"OPTIONS (path '{log}', endingOffset '20')"
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW first USING raftlog {options}")
        return bool(spark.sql("SELECT max(offset) FROM first").first()[0] == 19)

    yield "temporary views USING raftlog", view

    def table_functions() -> bool:
        pyspark_raftlog.register(spark)
        broker = "name => 'broker/3'"
        state = spark.sql(f"SELECT * FROM raftlog_state('{log}', 'brokers', at => 1232)")
        changes = spark.sql(f"SELECT * FROM raftlog_changes('{log}', 'brokers', {broker})")
        return bool(state.where("fenced").count() == 1 and changes.count() > 3)

    yield "`register`, `raftlog_state`, `raftlog_changes`", table_functions

    def write() -> bool:
        save = rows.write.format("raftlog").mode("append").option("requiredBaseOffset", 1)
        save.save(ids)
        try:
            save.save(ids)
        except PySparkException as problem:
            found = conflict(problem)
            return found is not None and found.log_end_offset == 2
        return False

    yield "writes with a required offset, `conflict`", write

    def call() -> bool:
        result = append(rows, to=ids)
        return result is not None and result.base_offset == 2

    yield "`append`", call

    def decide(new: NewRecords) -> Any:
        return rows if new.attempt == 1 else None

    def loop() -> bool:
        result = commit_loop(ids, decide)
        return result is not None and result.base_offset == 3

    yield "`commit_loop`", loop

    def stream() -> bool:
        options = {"startingOffset": "earliest", "tailHoldback": "0"}
        source = spark.readStream.format("raftlog").options(**options).load(ids)
        copy = f"{directory}/copy-0"
        raftlog.open(copy).close()
        writer = source.select("value").writeStream.format("raftlog")
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query = writer.start(copy)
        query.awaitTermination()
        found = lag(query)
        with raftlog.open(copy) as target:
            values = [record.value for record in target.read(0)]
        return values == [b"a"] * 3 and found is not None and found.offsets_behind_latest == 0

    yield "streams from a log and into a log, `lag`", stream

    def changes_of_a_cluster() -> bool:
        with raftlog.open(f"{directory}/cluster-0", values="kraft") as cluster:
            begin = [
                {"change": "set_feature", "feature": "metadata.version", "level": 30},
                {"change": "register_broker", "broker_id": 1, "endpoints": {"C": "localhost:9092"}},
                {"change": "unfence_broker", "broker_id": 1},
            ]
            apply_changes(cluster, begin)
            frame = spark.sql(CREATE.replace("replication", "replication_factor"))
            return apply_changes(cluster, frame).record_count == 4

    yield "`apply_changes` of a DataFrame", changes_of_a_cluster
    yield (
        "a session of its own for tables: not over Connect",
        lambda: is_connect(spark) and session_for_tables(spark) is spark,
    )


def main(directory: str, log: str) -> None:
    spark = local_session()
    for name, works in features(spark, directory, log):
        assert works(), name
        sys.stdout.write(f"works: {name}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
