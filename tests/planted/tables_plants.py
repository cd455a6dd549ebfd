"""Bugs of the tables, of the stream into them, and of the command line's reports of a log."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

MATERIALIZE: Final = "state/raftlog_state/tables/materialize.py"
SCHEDULE: Final = "tests/state/tables/test_publish_schedule.py"
MATERIALIZED: Final = "tests/state/tables/test_tables_materialize_spark.py"
RANDOM_LOGS: Final = (
    "tests/state/tables/test_tables_verify_spark.py"
    "::test_a_second_replay_agrees_with_the_loader_on_random_logs"
)
HISTORY: Final = "state/raftlog_state/tables/history.py"
READS: Final = "tests/state/tables/test_tables_reads_spark.py"
CONVERT: Final = "state/raftlog_state/tables/convert.py"
CONVERTED: Final = "tests/state/tables/test_tables_convert.py"

TABLES_PLANTS: Final = (
    Plant(
        bug="a run with a held back tail publishes every batch",
        path=MATERIALIZE,
        old="TAIL_HOLDBACK_MS_DEFAULT if given is None else duration_ms(_HOLDBACK, given),",
        new="TAIL_HOLDBACK_MS_DEFAULT if given is None else 2**60,",
        tests=(SCHEDULE,),
    ),
    Plant(
        bug="a batch is published before the interval",
        path=MATERIALIZE,
        old="        return max(0, self._published_at_s + self._every_s - now_s)\n",
        new="        return 0\n",
        tests=(SCHEDULE,),
    ),
    Plant(
        bug="a run's last batch is not published",
        path=MATERIALIZE,
        old="next_offset >= target)",
        new="next_offset > target)",
        tests=(SCHEDULE,),
    ),
    Plant(
        bug="unpublished batches of an idle log are never published",
        path=MATERIALIZE,
        old="            else:\n                self._set_timer()\n",
        new="",
        tests=(MATERIALIZED,),
    ),
    Plant(
        bug="the tables' stream runs a task for each of 50 snapshot partitions",
        path=MATERIALIZE,
        old="        session_for_tables(spark),\n",
        new="        spark,\n",
        tests=(MATERIALIZED,),
    ),
    Plant(
        bug="a view of the past lacks the record at its offset",
        path="state/raftlog_state/tables/view.py",
        old="versions[CHANGES]), offset, manifest.offset)",
        new="versions[CHANGES]), offset - 1, manifest.offset)",
        tests=(f"{READS}::test_any_past_offset_can_be_viewed",),
    ),
    Plant(
        bug="a change feed has every change of a transaction",
        path=HISTORY,
        old='_net_changes(of_entity, "entity", "key", "visible_offset")',
        new='_net_changes(of_entity, "entity", "key", "visible_offset", "offset")',
        tests=(RANDOM_LOGS,),
    ),
    Plant(
        bug="a version of a row begins with the change before the last",
        path="state/raftlog_state/tables/origins.py",
        old="                    origins[change.key] = after\n",
        new="                    origins.setdefault(change.key, after)\n",
        tests=(f"{READS}::test_the_history_has_each_version_of_each_row_in_its_interval",),
    ),
    Plant(
        bug="a difference has the first values of the later state",
        path=HISTORY,
        old='sf.max_by("after", order)',
        new='sf.min_by("after", order)',
        tests=(f"{READS}::test_the_difference_of_two_states_is_that_of_their_rows",),
    ),
    Plant(
        bug="the state at a time has the first later record",
        path="state/raftlog_state/tables/cluster.py",
        old="int(later) - 1",
        new="int(later)",
        tests=(f"{READS}::test_a_time_is_the_state_before_the_first_later_record",),
    ),
    Plant(
        bug="verify does not compare the intervals of rows",
        path="state/raftlog_state/tables/verify.py",
        old="    differences += _chain_differences(changes)\n",
        new="",
        tests=("tests/state/tables/test_tables_verify_spark.py::test_a_changed_row_is_reported",),
    ),
    Plant(
        bug="a changed row is in the struct of another entity",
        path=CONVERT,
        old="(entities != ordinal)",
        new="(entities != ordinal + 1)",
        tests=(CONVERTED,),
    ),
    Plant(
        bug="a deleted row is the row after its deletion",
        path=CONVERT,
        old="        side([id(change.before) for change in changes]),\n"
        "        side([id(change.after) for change in changes]),\n",
        new="        side([id(change.after and change.before) for change in changes]),\n"
        "        side([id(change.after or change.before) for change in changes]),\n",
        tests=(CONVERTED,),
    ),
    Plant(
        bug="the endpoints of a broker begin where those of another end",
        path=CONVERT,
        old="accumulate(map(len, values))",
        new="accumulate(map(len, reversed(values)))",
        tests=(CONVERTED,),
    ),
    Plant(
        bug="records of a rewritten log that the tables have are skipped",
        path="state/raftlog_state/tables/writer.py",
        old="                if seen_epoch != epoch and at <= min(last, seen_last):\n",
        new="                if False:\n",
        tests=(
            "tests/state/tables/test_tables_writes_spark.py"
            "::test_a_diverged_log_is_resolved_by_rollback_to",
        ),
    ),
    Plant(
        bug="a difference reported by verify shows a secret",
        path="state/raftlog_state/tables/verify.py",
        old="        if _is_secret(table, key, column):\n",
        new="        if False:\n",
        tests=("tests/state/tables/test_tables_verify_spark.py::test_a_changed_row_is_reported",),
    ),
    Plant(
        bug="check of a damaged log exits as if it were valid",
        path="state/raftlog_state/cli/maintenance.py",
        old="    return 1 if damage_count else 0\n",
        new="    return 0\n",
        tests=("tests/state/cli/test_cli_check.py",),
    ),
    Plant(
        bug="cat prints records without content that were not asked for",
        path="state/raftlog_state/cli/cat_log.py",
        old="        if api_key in self.hidden_api_keys:\n            return False\n",
        new="",
        tests=("tests/state/cli/test_cli_cat.py",),
    ),
    Plant(
        bug="verify sorts cordoned directories, which Kafka keeps in the record's order",
        path="state/raftlog_state/tables/sql_cluster.py",
        old='sf.col("cordonedLogDirs").alias("cordoned"),\n        sf.lit("reg',
        new='sorted_uuids(sf.col("cordonedLogDirs")).alias("cordoned"),\n        sf.lit("reg',
        tests=(
            "tests/state/tables/test_tables_verify_spark.py::test_a_second_replay_agrees_with_the_loader_on_random_logs",
        ),
    ),
)
