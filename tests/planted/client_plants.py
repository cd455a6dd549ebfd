"""Bugs of clients: expired deadlines, and quorums and disks that fail meanwhile."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

SENT: Final = "tests/client/remote/test_sent_batches.py"
PRODUCER: Final = "tests/client/remote/test_producer.py"
BROKERS: Final = "tests/client/remote/test_broker_client.py"
BATCHES: Final = "tests/client/remote/test_producer_batches.py"
TABLE: Final = "tests/client/embedded/test_table.py"
GROUPS: Final = "tests/client/embedded/test_group_commit.py"
CLIENT: Final = "connector/raftlog/client"
REMOTE: Final = "connector/raftlog/client/remote"

CLIENT_PLANTS: Final = (
    Plant(
        bug="a conditional append of a table has no condition",
        path=f"{CLIENT}/table.py",
        old="batch, unchanged=expected, unchanged_since=end_offset, timeout_ms=left_ms",
        new="batch, atomic=True, timeout_ms=left_ms",
        tests=(f"{TABLE}::test_of_rivals_for_one_key_one_succeeds_and_others_are_no_rivals", TABLE),
    ),
    Plant(
        bug="a table returns a state from which a compaction has removed keys",
        path=f"{CLIENT}/table.py",
        old="        if offset < log.compacted_offset:\n",
        new="        if False:\n",
        tests=(f"{TABLE}::test_a_compaction_changes_no_table_and_ends_the_states_before_it",),
    ),
    Plant(
        bug="a table whose log was truncated returns its last state",
        path=f"{CLIENT}/table.py",
        old="                table._failure = error\n",
        new="                pass\n",
        tests=(f"{TABLE}::test_a_truncated_log_ends_the_table",),
    ),
    Plant(
        bug="a table whose thread has ended with a bug returns its last state",
        path=f"{CLIENT}/table.py",
        old="            table._failure = bug",
        new="            table.path = table.path",
        tests=(f"{TABLE}::test_a_bug_that_ends_the_thread_is_raised_by_reads",),
    ),
    Plant(
        bug="a refresh of a table looks for the log's end again and again",
        path=f"{CLIENT}/table.py",
        old="            while self._apply(end):\n",
        new="            while self._apply(self._end.look()):\n",
        tests=(f"{TABLE}::test_a_refresh_and_a_wait_end_although_the_log_grows_at_each_look",),
    ),
    Plant(
        bug="a reader misses the epoch of a leader that was elected again",
        path=f"{REMOTE}/leader_client.py",
        old="leader_epoch=leader.epoch,  # an earlier one",
        new="leader_epoch=-1,  # an earlier one",
        tests=("tests/client/remote/test_reelected_leader.py",),
    ),
    Plant(
        bug="groups of a coordinator that is loading them are left out",
        path=f"{REMOTE}/broker_client.py",
        old="            raise self._unavailable(last.problem)\n",
        new="            pass\n",
        tests=(f"{BROKERS}::test_groups_of_a_broker_that_does_not_respond_are_not_left_out",),
    ),
    Plant(
        bug="the offsets of deleted topics are left out, as OffsetFetch with topic ids does",
        path=f"{REMOTE}/broker_client.py",
        old="            version_max=_OFFSET_FETCH_VERSION_MAX,\n",
        new="",
        tests=(f"{BROKERS}::test_each_coordinator_returns_the_offsets_of_its_groups",),
    ),
    Plant(
        bug="a partition without a leader has no lag and no warning",
        path=f"{REMOTE}/broker_client.py",
        old='                    this.fail("it has no leader", [one])\n',
        new="                    continue\n",
        tests=(f"{BROKERS}::test_a_partition_without_leader_is_missing_after_the_timeout",),
    ),
    Plant(
        bug="a producer id is used again after its last epoch",
        path=f"{REMOTE}/producer.py",
        old="            self._producer_id = None\n",
        new="            self._producer_epoch = 0\n",
        tests=(PRODUCER,),
    ),
    Plant(
        bug="a request whose response has an invalid header never ends",
        path=f"{REMOTE}/connection.py",
        old="        request, body_start = self._in_flight.match(data)\n",
        new="        try:\n            request, body_start = self._in_flight.match(data)\n"
        "        except WireError:\n            self._in_flight.clear()\n            raise\n",
        tests=("tests/client/remote/test_invalid_responses.py",),
    ),
    Plant(
        bug="an append is refused at its deadline and written with its batch later",
        path=f"{REMOTE}/producer.py",
        old="""        is_removed = not batch.may_be_appended and remove_requests(
            batch, expired, self._settings, wall_ms
        )
""",
        new="        is_removed = not batch.may_be_appended\n",
        tests=(BATCHES, PRODUCER),
    ),
    Plant(
        bug="an append that may be in the log is refused at its deadline",
        path=f"{REMOTE}/producer.py",
        old="        is_removed = not batch.may_be_appended and remove_requests(",
        new="        is_removed = remove_requests(",
        tests=(PRODUCER, SENT),
    ),
    Plant(
        bug="a check that fails because of records that do not fit is answered as final",
        path="connector/raftlog/append.py",
        old="and error.log_end_offset > end_offset",
        new="and error.next_available_offset > end_offset",
        tests=(GROUPS,),
    ),
    Plant(
        bug="a transaction written in part on a full disk is reported as refused",
        path="connector/raftlog/client/embedded/writer.py",
        old="full:\n                answers += group.interrupted()\n",
        new="full:\n",
        tests=(GROUPS,),
    ),
    Plant(
        bug="a named append whose write failed is reported as refused",
        path="connector/raftlog/client/embedded/writer.py",
        old="            if len(answers) < len(requests):\n",
        new="            if False:\n",
        tests=(GROUPS,),
    ),
    Plant(
        bug="a read that is continued in a callback waits for its own thread",
        path="connector/raftlog/client/remote/connection.py",
        old="        if not future.done():\n            self.check_may_wait()\n",
        new="",
        tests=(
            "tests/client/remote/test_network_thread.py"
            "::test_what_was_started_is_not_waited_for_on_the_thread",
        ),
    ),
    Plant(
        bug="a callback finds no room although nothing else is queued",
        path="connector/raftlog/client/embedded/writer.py",
        old="            if self.is_current:  # in a callback, while",
        new="            if False:  # in a callback, while",
        tests=(
            "tests/client/embedded/test_writer_thread.py"
            "::test_a_callback_may_queue_a_request_in_the_room_of_its_own",
        ),
    ),
    Plant(
        bug="sequences are used again although a batch that has them may be appended",
        path=f"{REMOTE}/producer.py",
        old="        self._producer_epoch += 1\n",
        new="        self._producer_epoch += 0\n",
        tests=(PRODUCER,),
    ),
    Plant(
        bug="a second batch is sent before the log knows the producer id",
        path=f"{REMOTE}/producer.py",
        old="        return self._is_known and self._in_flight_count < IN_FLIGHT_MAX\n",
        new="        return self._in_flight_count < IN_FLIGHT_MAX\n",
        tests=(PRODUCER,),
    ),
    Plant(
        bug="a commit of another process makes the log know a producer id",
        path=f"{REMOTE}/producer.py",
        old="batch.stamp is not None and not result.was_duplicate\n",
        new="batch.stamp is not None\n",
        tests=(BATCHES,),
    ),
    Plant(
        bug="more batches follow a lost one than the log remembers",
        path=f"{REMOTE}/producer.py",
        old="sent_count >= IN_FLIGHT_MAX:\n",
        new="sent_count < 0:\n",
        tests=(BATCHES,),
    ),
    Plant(
        bug="a lost batch before a refused one is sent as another batch",
        path=f"{REMOTE}/producer.py",
        old="        if not all(self._is_after_gap(batch) for batch in stamped):\n",
        new="        if False:\n",
        tests=(PRODUCER,),
    ),
    Plant(
        bug="a batch is sent as another one although the one before it may still be appended",
        path=f"{REMOTE}/producer.py",
        old="            if batch.may_be_appended and self._has_unresolved_gap:\n",
        new="            if False:\n",
        tests=(PRODUCER,),
    ),
    Plant(
        bug="a batch on which later ones depend is dropped at its deadline",
        path=f"{REMOTE}/producer.py",
        old="            if is_unneeded and not (batch.may_be_appended and is_needed):\n",
        new="            if is_unneeded:\n",
        tests=(PRODUCER,),
    ),
    Plant(
        bug="an append is refused for an offset that the log reaches before a late copy of it",
        path=f"{REMOTE}/producer.py",
        old="        return not error.log_end_offset < wanted",
        new="        return True or error.log_end_offset",
        tests=(BATCHES,),
    ),
    Plant(
        bug="an append with a codec that a node does not support is sent again until its deadline",
        path=f"{REMOTE}/messages.py",
        old="16, 74, 75, 100, 103))\n",
        new="16, 74, 75, 76, 100, 103))\n",
        tests=(BATCHES,),
    ),
    Plant(
        bug="appends sent separately follow later ones if the log has evicted their producer",
        path=f"{REMOTE}/producer.py",
        old="            self._fail_earlier(batch)\n",
        new="            pass\n",
        tests=(PRODUCER,),
    ),
    Plant(
        bug="a batch without a sequence is sent beside others",
        path=f"{REMOTE}/producer.py",
        old="        if batch is None or (self._in_flight_count and not batch.has_sequence):\n",
        new="        if batch is None:\n",
        tests=(PRODUCER,),
    ),
    Plant(
        bug="a batch whose appends have all failed at their deadlines is sent later",
        path=f"{REMOTE}/producer.py",
        old="            is_unneeded = batch.is_done and not batch.is_in_flight\n",
        new="            is_unneeded = False\n",
        tests=(PRODUCER,),
    ),
    Plant(
        bug="a closed client keeps searching for a leader that no request needs",
        path=f"{REMOTE}/sender.py",
        old="        if not producer.has_undrained and self._search is not None:\n",
        new="        if False:\n",
        tests=(SENT,),
    ),
    Plant(
        bug="a closed client waits for an unresponsive leader",
        path=f"{REMOTE}/sender.py",
        old="self._is_closing and self._producer.is_idle",
        new="self._is_closing and not self._producer.in_flight_count",
        tests=(SENT,),
    ),
    Plant(
        bug="a call beside the end of a network thread raises an error of its loop",
        path=f"{REMOTE}/connection.py",
        old="""        with self._lock:
            self._running_loop().call_soon_threadsafe(function)
""",
        new="        self._running_loop().call_soon_threadsafe(function)\n",
        tests=("tests/client/remote/test_network_thread.py",),
    ),
    Plant(
        bug="a request stays queued although its thread could not be started",
        path="connector/raftlog/client/embedded/writer.py",
        old="""        thread.start()  # raises if the process has too many threads
        self._thread = thread
""",
        new="""        self._thread = thread
        thread.start()
""",
        tests=("tests/client/embedded/test_writer_thread.py",),
    ),
    Plant(
        bug="a handle queues appends without a bound",
        path="connector/raftlog/append.py",
        old="self._byte_count + byte_count <= self._byte_count_max:\n",
        new="self._byte_count + byte_count >= 0:\n",
        tests=("tests/client/embedded/test_writer_thread.py::test_the_queue_is_bounded",),
    ),
    Plant(
        bug="a closed handle does not wake an append that waits for room",
        path="connector/raftlog/append.py",
        old="self.closed = self.closed or reason\n        self.changed.notify_all()\n",
        new="self.closed = self.closed or reason\n",
        tests=(
            "tests/client/embedded/test_writer_thread.py"
            "::test_closing_wakes_a_caller_blocked_on_a_full_queue",
        ),
    ),
    Plant(
        bug="an append that could not be queued keeps its room",
        path=f"{REMOTE}/sender.py",
        old="""            if not self._new:
                self._wake_up()
            self._pool.allocate(byte_count)
""",
        new="""            self._pool.allocate(byte_count)
            if not self._new:
                self._wake_up()
""",
        tests=(f"{BATCHES}::test_an_append_whose_sender_cannot_be_started_takes_no_room",),
    ),
    Plant(
        bug="raftlog append writes a long stdin with a required offset in several appends",
        path="state/raftlog_state/cli/append.py",
        old="_whole(stream) if is_one_batch else _pieces(stream)",
        new="_pieces(stream)",
        tests=("tests/state/cli/test_cli_append.py::test_a_long_stdin_is_one_batch_or_none",),
    ),
    Plant(
        bug="a header's stored name names a commit of another append",
        path="connector/raftlog/append.py",
        old='stored = name if raw_key is None else raw_key.decode("utf-8", "replace")',
        new="stored = name",
        tests=("tests/append/test_user_records.py::test_invalid_records_are_refused",),
    ),
)
