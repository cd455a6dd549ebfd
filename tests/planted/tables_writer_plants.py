"""Bugs of the writer of the tables, on tables in memory."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

WRITER: Final = "state/raftlog_state/tables/writer.py"
LATEST: Final = "state/raftlog_state/tables/latest.py"
WRITES: Final = "tests/state/tables/test_writer.py"
CLUSTERS: Final = "tests/state/tables/test_clusters.py"

TABLES_WRITER_PLANTS: Final = (
    Plant(
        bug="a crash between the two appends repeats records in log",
        path=WRITER,
        old='            rows = rows.filter(pc.greater(rows["offset"], log_offset))\n',
        new="",
        tests=(f"{WRITES}::test_crashes_between_any_commits_lose_and_repeat_nothing[some]",),
    ),
    Plant(
        bug="two writers with one end both append",
        path=WRITER,
        old="_transaction(table, state.progress, next_offset)",
        new='_transaction(table, state.progress, pc.max(rows["offset"]).as_py())',
        tests=(f"{WRITES}::test_two_writers_write_every_record_once",),
    ),
    Plant(
        bug="what an interrupted truncation reverted is read again",
        path=LATEST,
        old="return rows.filter(pc.or_(is_current, is_kept))",
        new="return rows",
        tests=(f"{WRITES}::test_an_interrupted_truncation_is_completed[truncate]",),
    ),
    Plant(
        bug="a truncation into a transaction keeps its first records",
        path=WRITER,
        old="            if row.begin_offset <= found < row.end_offset - 1:\n",
        new="            if False:\n",
        tests=(f"{WRITES}::test_a_truncation_into_a_transaction_ends_before_it",),
    ),
    Plant(
        bug="a truncation forgets the changes that state does not include",
        path=WRITER,
        old="min(state.base_offset, target)",
        new="target",
        tests=(f"{WRITES}::test_a_truncation_gives_the_tables_of_that_offset[11-None]",),
    ),
    Plant(
        bug="a truncation keeps the incarnation",
        path=WRITER,
        old="incarnation = progress.incarnation + 1",
        new="incarnation = progress.incarnation",
        tests=(f"{WRITES}::test_a_truncation_gives_the_tables_of_that_offset[11-None]",),
    ),
    Plant(
        bug="a key that is new after a truncation's offset stays",
        path=LATEST,
        old='        "is_deleted": is_new,\n',
        new='        "is_deleted": pc.is_valid(first["before"]),\n',
        tests=(f"{WRITES}::test_a_truncation_gives_the_tables_of_that_offset[11-None]",),
    ),
    Plant(
        bug="a truncation reverts the last change of a key alone",
        path=LATEST,
        old="first = later.take(_last_of_each_key(later, is_first=True)).combine_chunks()",
        new="first = later.take(_last_of_each_key(later)).combine_chunks()",
        tests=(f"{WRITES}::test_a_truncation_gives_the_tables_of_that_offset[11-None]",),
    ),
    Plant(
        bug="changes that state does not include expire",
        path=WRITER,
        old="        self._merge_state()\n        is_expired",
        new="        is_expired",
        tests=(f"{WRITES}::test_expired_changes_are_in_the_state[None]",),
    ),
    Plant(
        bug="a writer of an earlier incarnation commits",
        path=WRITER,
        old="(progress.incarnation << _OFFSET_BITS) + next_offset",
        new="next_offset",
        tests=(f"{WRITES}::test_a_writer_of_an_earlier_incarnation_commits_nothing",),
    ),
    Plant(
        bug="a state whose changes have expired can be truncated to",
        path="state/raftlog_state/tables/progress.py",
        old="max(self.first_offset or 0, self.expired_to or 0)",
        new="self.first_offset or 0",
        tests=(f"{WRITES}::test_expired_changes_are_in_the_state[None]",),
    ),
    Plant(
        bug="a truncation uses the cached end of the tables",
        path=WRITER,
        old="        self._state = None\n        state = self._ready()\n        progress, target",
        new="        state = self._ready()\n        progress, target",
        tests=(f"{WRITES}::test_a_truncation_reads_the_tables_again",),
    ),
    Plant(
        bug="a truncation forgets gaps",
        path=WRITER,
        old="gaps=tuple(gap for gap in newest.gaps if gap[1] <= offset)",
        new="gaps=()",
        tests=(f"{WRITES}::test_a_gap_remains_after_a_truncation",),
    ),
    Plant(
        bug="records that a crash left in log stay although the source has others",
        path=WRITER,
        old="if not _is_same(known, repeated.select(RECORD_IDENTITY)):",
        new="if False:",
        tests=(f"{WRITES}::test_records_that_a_crash_left_in_log_alone_give_way_to_others[40]",),
    ),
    Plant(
        bug="a gap over a change of leaders is a divergence",
        path=WRITER,
        old="last = first if row.end_offset is None else row.end_offset - 1",
        new="last = progress.offset if row.end_offset is None else row.end_offset - 1",
        tests=(f"{WRITES}::test_a_gap_over_a_change_of_leaders_is_no_divergence",),
    ),
    Plant(
        bug="the rows of state hide later ones",
        path=LATEST,
        old="return pa.concat_tables([state.filter(kept), later])",
        new="return pa.concat_tables([later, state])",
        tests=(f"{WRITES}::test_a_new_writer_has_the_state_of_the_one_before",),
    ),
    Plant(
        bug="a deleted row is there after a restart",
        path=LATEST,
        old='pc.equal(changes["op"], "d")',
        new='pc.equal(changes["op"], "x")',
        tests=(f"{WRITES}::test_a_new_writer_has_the_state_of_the_one_before",),
    ),
    Plant(
        bug="records of a rewritten log that the tables have are skipped",
        path=WRITER,
        old="                if seen_epoch != epoch and at <= min(last, seen_last):\n",
        new="                if False:\n",
        tests=(f"{WRITES}::test_refused_batches_write_nothing",),
    ),
    Plant(
        bug="an expiry reverts what another process appends meanwhile",
        path=WRITER,
        old="_transaction(CHANGES_TABLE, state.progress, state.progress.next_offset)",
        new="_transaction(CHANGES_TABLE, after, after.offset)",
        tests=(
            f"{WRITES}::test_an_expiry_reverts_nothing_that_another_process_does_meanwhile[append]",
        ),
    ),
    Plant(
        bug="the second of two concurrent expiries is not recorded",
        path=WRITER,
        old="if found.progress != after:",
        new="if False:",
        tests=(
            f"{WRITES}::test_an_expiry_reverts_nothing_that_another_process_does_meanwhile[expiry]",
        ),
    ),
    Plant(
        bug="records of an earlier incarnation in log become those of a later one",
        path=WRITER,
        old="        if state.progress.is_start_of_incarnation:  # now",
        new="        if False:  # now",
        tests=(f"{WRITES}::test_records_of_an_earlier_incarnation_in_log_are_not_read",),
    ),
    Plant(
        bug="records of an earlier incarnation in log count as appended",
        path=WRITER,
        old='rows.filter(pc.greater_equal(rows["incarnation"], progress.incarnation))',
        new="rows",
        tests=(f"{WRITES}::test_records_of_an_earlier_incarnation_in_log_are_not_read",),
    ),
    Plant(
        bug="changes that an interrupted expiry left stay",
        path=WRITER,
        old="self._delete_expired(progress)  # an",
        new="pass  # an",
        tests=(f"{WRITES}::test_an_interrupted_expiry_is_completed[fence]",),
    ),
    Plant(
        bug="the time of expired changes is forgotten by the next expiry",
        path=WRITER,
        old="times = [progress.expired_time_us, ",
        new="times = [",
        tests=(f"{WRITES}::test_the_latest_time_of_expired_changes_is_known",),
    ),
    Plant(
        bug="a merge does not find that readers ignore what is appended",
        path=WRITER,
        old="found.incarnation > progress.incarnation",
        new="found.incarnation < progress.incarnation",
        tests=(f"{WRITES}::test_rows_that_readers_do_not_see_are_found_by_the_next_merge",),
    ),
    Plant(
        bug="writers append during a truncation",
        path=WRITER,
        old="        state = self._fence(state, self._next_incarnation(progress))\n"
        "        progress = state.progress\n",
        new="        progress = self._next_incarnation(progress)\n",
        tests=(f"{WRITES}::test_a_truncation_that_has_only_begun_changes_no_rows",),
    ),
    Plant(
        bug="a truncation deletes rows of other clusters",
        path=WRITER,
        old='(_of_cluster(progress.cluster_id), ("incarnation", "<", progress.incarnation))',
        new='(("incarnation", "<", progress.incarnation),)',
        tests=(f"{CLUSTERS}::test_a_truncation_leaves_the_rows_of_other_clusters",),
    ),
    Plant(
        bug="a writer reads the rows of all clusters",
        path=WRITER,
        old="(_of_cluster(cluster_id), *where)",
        new="where",
        tests=(
            f"{CLUSTERS}::test_clusters_have_the_rows_that_each_has_in_tables_of_its_own[1-15]",
        ),
    ),
    Plant(
        bug="clusters share a transaction",
        path=WRITER,
        old='f"raftlog-{table.name}-{progress.cluster_id}"',
        new='f"raftlog-{table.name}"',
        tests=(
            f"{CLUSTERS}::test_clusters_have_the_rows_that_each_has_in_tables_of_its_own[1-15]",
        ),
    ),
    Plant(
        bug="a crash before the first publication ends all writes",
        path=WRITER,
        old="state = self._state = self._read_state(cluster_id or UNKNOWN_CLUSTER)",
        new="state.progress = replace(state.progress, cluster_id=cluster_id or UNKNOWN_CLUSTER)",
        tests=(
            f"{CLUSTERS}::test_records_that_a_crash_left_in_log_are_those_of_their_cluster[alone]",
        ),
    ),
    Plant(
        bug="a log of another cluster is written to a named one",
        path=WRITER,
        old="Progress(cluster_id=cluster_id, log_cluster_id=self._cluster_id)",
        new="Progress(cluster_id=cluster_id)",
        tests=(f"{CLUSTERS}::test_a_log_of_another_cluster_is_refused_unless_that_is_named",),
    ),
)
