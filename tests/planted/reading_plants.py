"""Bugs of readers: which log is read, what is shown of it, and where a read ends."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

LOG: Final = "connector/raftlog/log"
FAILS_CLOSED: Final = "tests/state/cli/test_redaction_fails_closed.py"


READING_PLANTS: Final = (
    Plant(
        bug="the end of a range is compared with a segment that a cleaner has merged since",
        path="connector/raftlog/log/reading/files.py",
        old="        if following is not None and following <= last_offset:\n",
        new="        if False:\n",
        tests=(
            "tests/log/test_offset_gaps.py"
            "::test_ranges_are_read_whole_by_the_names_of_segments_that_have_become_one",
        ),
    ),
    # --- secrets ------------------------------------------------------------------------------
    Plant(
        bug="a directory's name overrides framed records",
        path="connector/raftlog/log/reading/opening.py",
        old="""    if content is _Content.FRAMED or values == _KRAFT:
""",
        new="""    if values == _KRAFT:
""",
        tests=(f"{FAILS_CLOSED}::test_no_layout_shows_a_secret",),
    ),
    Plant(
        bug='format "bytes" declared for the cluster metadata log disables redaction',
        path="connector/raftlog/log/reading/opening.py",
        old="""    is_named = named is not None and named.topic == CLUSTER_METADATA_TOPIC
    return is_named or files.topic_id() == CLUSTER_METADATA_TOPIC_ID
""",
        new="""    is_named = named is not None and named.topic == CLUSTER_METADATA_TOPIC
    is_named = is_named and not files.listing.is_embedded
    return is_named or files.topic_id() == CLUSTER_METADATA_TOPIC_ID
""",
        tests=(f"{FAILS_CLOSED}::test_no_property_overrides_the_topic_of_cluster_metadata",),
    ),
    Plant(
        bug="records after a damaged first batch are not read",
        path="connector/raftlog/log/reading/opening.py",
        old="""            batch = read_batch_at(file, found)
            assert batch is not None, "find_valid_batch validated it"
""",
        new="""            return
""",
        tests=(f"{FAILS_CLOSED}::test_no_layout_shows_a_secret",),
    ),
    Plant(
        bug="a log with damaged properties is read as bytes",
        path="connector/raftlog/log/reading/opening.py",
        old="""        if has_other:
            raise _unknown(files, f"its {RAFTLOG_PROPERTIES_NAME} is damaged or has no 'values'")
""",
        new="""        if has_other:
            return LogKind.PARTITION
""",
        tests=(f"{FAILS_CLOSED}::test_a_log_of_other_records_is_refused_without_a_declaration",),
    ),
    # --- offsets by time ----------------------------------------------------------------------
    Plant(
        bug="the zone of a time is ignored",
        path="connector/raftlog/client/offset_spec.py",
        old="""(moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _ZERO
""",
        new="""moment.replace(tzinfo=UTC) - _ZERO
""",
        tests=("tests/client/test_offset_spec.py::test_each_form_is_parsed",),
    ),
    Plant(
        bug="a time may be after the committed end",
        path="connector/raftlog/client/offset_spec.py",
        old="""    if found > end_offset:
""",
        new="""    if found > log.log_end_offset:
""",
        tests=("tests/client/test_offset_spec.py::test_a_time_is_never_after_the_committed_end",),
    ),
    Plant(
        bug="a state at a time before the log's start is that at its start",
        path="connector/raftlog/client/offset_spec.py",
        old="""    if 0 < found == start and is_state:
""",
        new="""    if found is None:
""",
        tests=(
            "tests/client/test_offset_spec.py"
            "::test_a_state_at_a_time_whose_records_were_deleted_is_refused",
        ),
    ),
    # --- histories by name --------------------------------------------------------------------
    Plant(
        bug="the changes of a history begin with the next scan",
        path="state/raftlog_state/loader/image_reader.py",
        old="            yield from changes\n",
        new="            next(changes, None)\n            yield from changes\n",
        tests=(
            "tests/state/cli/test_cli_log.py"
            "::test_all_changes_from_an_offset_lead_to_the_state_at_the_end",
        ),
    ),
    Plant(
        bug="a topic that has existed before the first offset is not found by its id",
        path="state/raftlog_state/cli/record_filter.py",
        old="""        if self._topic is None or start_offset == 0""",
        new="""        if self._topic is None or start_offset >= 0""",
        tests=(
            "tests/state/cli/test_cli_log.py"
            "::test_records_of_a_topic_are_those_with_its_name_or_id",
        ),
    ),
    # --- following ----------------------------------------------------------------------------
    Plant(
        bug="the end of a read that failed counts as printed",
        path="state/raftlog_state/cli/follow.py",
        old="""                print_up_to(end.offset)
            followed.read_up_to, last_problem = end, ""
""",
        new="""                followed.read_up_to = end
                print_up_to(end.offset)
            last_problem = ""
""",
        tests=("tests/state/cli/test_cli_follow.py::test_a_quorum_without_a_leader_is_waited_for",),
    ),
    Plant(
        bug="a follower of one directory prints its youngest records",
        path="state/raftlog_state/cli/follow.py",
        old="holdback_ms=TAIL_HOLDBACK_MS_DEFAULT)",
        new="holdback_ms=0)",
        tests=(
            "tests/state/cli/test_cli_follow.py"
            "::test_records_that_a_new_leader_truncates_are_not_printed",
        ),
    ),
    Plant(
        bug="a follower repeats the first scan of each read",
        path="state/raftlog_state/cli/cat_log.py",
        old="""                next_offset = min(int(scan.batches.next_offset[-1]), end_offset)
""",
        new="""                next_offset = min(int(scan.batches.base_offset[-1]), end_offset)
""",
        tests=(
            "tests/state/cli/test_cli_follow.py::test_records_are_printed_once_while_segments_roll",
        ),
    ),
    Plant(
        bug="a followed read begins again after an error that passes",
        path="connector/raftlog/client/followed_records.py",
        old="                    next_offset = last_offset(chunk) + 1\n",
        new="                    pass\n",
        tests=(
            "tests/client/remote/test_followed_records.py"
            "::test_a_read_without_a_leader_continues_where_it_was",
        ),
    ),
    Plant(
        bug="a followed read does not notice that what it returned was truncated",
        path="connector/raftlog/client/followed_records.py",
        old="            previous=self.read_up_to,\n",
        new="",
        tests=(
            "tests/client/remote/test_followed_records.py"
            "::test_a_returned_record_that_is_truncated_is_an_error",
        ),
    ),
    # --- differences of two clusters ------------------------------------------------------------
    Plant(
        bug="topics of two clusters are compared by their ids",
        path="state/raftlog_state/image/differences.py",
        old="""            return (row.name,)
""",
        new="""            return row.key
""",
        tests=(
            "tests/state/cli/test_cli_diff.py"
            "::test_clusters_that_differ_in_ids_and_elections_alone_are_equal",
        ),
    ),
    # --- snapshots ----------------------------------------------------------------------------
    Plant(
        bug="every snapshot is checked as one of metadata",
        path="connector/raftlog/log/reading/opening.py",
        old="""        if is_other and _content(files) is not _Content.FRAMED:
            kind = LogKind.PARTITION
""",
        new="",
        tests=(
            "tests/state/cli/test_cli_embedded_logs.py::test_a_complete_snapshot_of_any_values_is_undamaged",
        ),
    ),
    Plant(
        bug="snapshots with values of the application are not checked",
        path="state/raftlog_state/check/log_check.py",
        old="""            yield from self._check_snapshots()
""",
        new="",
        tests=(
            "tests/state/cli/test_cli_embedded_logs.py::test_every_flipped_byte_of_a_snapshot_is_damage",
        ),
    ),
    # --- state of a reader --------------------------------------------------------------------
    Plant(
        bug="the explanation of an end grows with every refresh",
        path="connector/raftlog/log/reading/log_reader.py",
        old="""    return replace(previous, lower_offset=found.offset)
""",
        new="""    return replace(previous, reason=previous.explanation, lower_offset=found.offset)
""",
        tests=(
            "tests/log/test_running_node.py"
            "::test_a_decreased_end_is_kept_until_the_log_exceeds_it_again",
        ),
    ),
    Plant(
        bug="a reader of a metadata log keeps every ended transaction",
        path="connector/raftlog/log/reading/replay.py",
        old="""            retained_max=ENDED_RETAINED_MAX,
""",
        new="""            retained_max=None if is_metadata else ENDED_RETAINED_MAX,
""",
        tests=(
            "tests/log/test_transactions.py"
            "::test_ended_metadata_transactions_are_cached_up_to_a_limit_and_read_again",
        ),
    ),
    Plant(
        bug="a plan reads every transaction that ended before it",
        path="connector/raftlog/log/reading/transactions.py",
        old="""            if kept.span.ended_before(offset):
                return
            yield kept
""",
        new="""            if not kept.span.ended_before(offset):
                yield kept
""",
        tests=(
            "tests/log/test_transactions.py::test_a_plan_at_the_end_reads_no_older_transaction",
        ),
    ),
    Plant(
        bug="a transaction that ends after the middle of a batch is taken for open",
        path="connector/raftlog/log/reading/replay.py",
        old="            whole_batches=True,\n",
        new="",
        tests=(
            "tests/log/test_transactions.py"
            "::test_ended_metadata_transactions_are_cached_up_to_a_limit_and_read_again",
        ),
    ),
    # --- arguments ----------------------------------------------------------------------------
    Plant(
        bug="Kafka's name of an isolation level is refused",
        path="connector/raftlog/client/log_handle.py",
        old="""    if value == READ_UNCOMMITTED_NAME:
        return Isolation.READ_UNCOMMITTED
""",
        new="",
        tests=("tests/client/embedded/test_arguments.py", "tests/spark/test_source_options.py"),
    ),
    # --- untrusted text -----------------------------------------------------------------------
    Plant(
        bug="lines of output have a terminal's escape sequences",
        path="state/raftlog_state/cli/output.py",
        old="""        if not "".join(lines).isprintable():
            lines = [printable(line) for line in lines]
""",
        new="",
        tests=("tests/state/cli/test_terminal_output.py",),
    ),
    Plant(
        bug="messages on stderr have a terminal's escape sequences",
        path="state/raftlog_state/cli/output.py",
        old="""        text = "\\n".join(printable(line) for line in text.split("\\n"))
""",
        new="",
        tests=("tests/state/cli/test_terminal_output.py",),
    ),
    Plant(
        bug="a node's log lines have a terminal's escape sequences",
        path="connector/raftlog/node/log_lines.py",
        old='self._stream.write(printable(text) + "\\n")',
        new='self._stream.write(text + "\\n")',
        tests=("tests/state/cli/test_terminal_output.py",),
    ),
    Plant(
        bug="a password in an address is echoed",
        path="connector/raftlog/client/remote/nodes.py",
        old="""    if "@" in text:
""",
        new="""    if "@" in text and "@" not in text:
""",
        tests=("tests/state/cli/test_terminal_output.py",),
    ),
    Plant(
        bug="a key in a URL is echoed",
        path="connector/raftlog/client/log_handle.py",
        old="    if may_be_objects and has_keys(paths):\n",
        new="    if may_be_objects and has_keys(paths) and not paths:\n",
        tests=("tests/state/cli/test_terminal_output.py",),
    ),
    Plant(
        bug="an address in place of a path is the name of a new log",
        path="connector/raftlog/client/log_handle.py",
        old="    if address is not None:\n",
        new="    if address is not None and not paths:\n",
        tests=("tests/golden_errors/test_golden_errors.py",),
    ),
    Plant(
        bug="cat prints uncommitted records without a note",
        path="state/raftlog_state/cli/cat_log.py",
        old='        console.log(f"reading up to offset {log_end_offset} (exclusive): '
        '{found.explanation}")\n',
        new="        if log.source is SourceKind.VOTERS:\n"
        "            console.log(found.explanation)\n",
        tests=("tests/state/cli/test_cli_cat.py::test_the_kind_of_end_offset_is_logged",),
    ),
    Plant(
        bug="the synced end of a raftlog node is called committed",
        path="connector/raftlog/log/reading/directory_log.py",
        old="""        if self.files.listing.is_embedded and not self._is_quorum_replica():
""",
        new="""        if self.files.listing.is_embedded:
""",
        tests=(
            "tests/state/cli/test_cli_cat.py::test_the_end_of_a_raftlog_nodes_log_is_not_called_committed",
        ),
    ),
    # --- copies of a log ----------------------------------------------------------------------
    Plant(
        bug="copies are compared by their epochs only",
        path="connector/raftlog/log/reading/quorum_copies.py",
        old="""        batch.byte_count,
        batch.crc,
    )
""",
        new="""    )
""",
        tests=("tests/state/cli/test_cli_copies.py::test_the_divergence_of_replicas_is_reported",),
    ),
    Plant(
        bug="records compacted in one replica are reported as a divergence",
        path="connector/raftlog/log/reading/quorum_copies.py",
        old="""            if is_dense and batch.delete_horizon_ms is None:
""",
        new="""            if batch.delete_horizon_ms is None:
""",
        tests=(
            "tests/state/cli/test_cli_copies.py"
            "::test_records_compacted_in_one_replica_are_no_divergence",
        ),
    ),
    Plant(
        bug="replicas are read up to the end of the longest one",
        path="connector/raftlog/log/reading/quorum_copies.py",
        old="""        offset = min(offset, agreed)
        if agreed""",
        new="""        if agreed""",
        tests=("tests/state/cli/test_cli_copies.py",),
    ),
    Plant(
        bug="an uncommitted tail of a quorum is reported as damage",
        path="state/raftlog_state/check/copies.py",
        old="""        make = note if is_normal else damage
""",
        new="""        make = damage
""",
        tests=(
            "tests/state/cli/test_cli_copies.py"
            "::test_an_uncommitted_tail_of_a_quorum_is_a_note_and_differing_bytes_are_damage",
        ),
    ),
    # --- bounds of a search -------------------------------------------------------------------
    Plant(
        bug="a sparse file is searched to its end",
        path="connector/raftlog/log/reading/chunks.py",
        old="""BATCH_HEADER_BYTES or at >= SEGMENT_BYTES_MAX
""",
        new="""BATCH_HEADER_BYTES or at >= SEGMENT_BYTES_MAX * 2
""",
        tests=(
            "tests/log/test_oversized_files.py"
            "::test_the_search_for_a_batch_ends_at_the_maximum_size_of_a_segment",
        ),
    ),
)
