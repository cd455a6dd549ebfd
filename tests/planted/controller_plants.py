"""Bugs of the active controller: prediction, claim, renunciation, transactions, purgatory."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

HOME: Final = "state/raftlog_state/controller"
ACTIVE: Final = f"{HOME}/active.py"
OFFSETS: Final = f"{HOME}/offset_control.py"
STATE: Final = f"{HOME}/controller_state.py"
CASES: Final = "tests/state/controller/test_quorum_controller.py"
STATES: Final = "tests/state/controller/test_controller_state.py"
APPLIED: Final = "tests/state/controller/test_applied_changes.py"
RIVALS: Final = "tests/state/controller/test_rival_changes.py::test_rivals_on_an_embedded_log"
DESIRED: Final = "state/raftlog_state/desired_state.py"
DESIRED_CASES: Final = "tests/state/controller/test_desired_state.py"
STEPS: Final = "tests/state/controller/test_replay_in_steps.py"
WRITES: Final = "tests/state/controller/test_writes_in_steps.py"
PUBLISHING: Final = "state/raftlog_state/publishing"
UPDATES: Final = "tests/state/publishing/test_publishing_loader.py"
GENERATED: Final = "tests/state/publishing/test_snapshot_generator.py"
STABLE: Final = "            self.last_stable = self._last_replayed = self.last_committed\n"

CONTROLLER_PLANTS: Final = (
    Plant(
        bug="apply_changes: an election uses up an attempt",
        path="state/raftlog_state/changes.py",
        old="if elections_left and self._is_by_control_records(error):",
        new="if False:",
        tests=("tests/state/controller/test_rival_changes.py",),
    ),
    Plant(
        bug="apply_changes: the records of another writer use up no attempt",
        path="state/raftlog_state/followed_log.py",
        old="return bool(batches) and all(batch.is_control for batch in batches)",
        new="return True",
        tests=("tests/state/controller/test_rival_changes.py",),
    ),
    Plant(
        bug="controller: a record of a write that cannot be replayed is not named",
        path="state/raftlog_state/controller/pending_state.py",
        old="        self.unapplied = record\n",
        new="",
        tests=(CASES,),
    ),
    Plant(
        bug="controller: the leaders of all partitions of a broker are compared in one step",
        path="state/raftlog_state/controller/controller_state.py",
        old="            if not number % SEARCHED_PER_STEP:\n",
        new="            if number < 0:\n",
        tests=(
            "tests/state/controller/test_writes_in_steps.py::"
            "test_the_leaders_of_a_brokers_partitions_are_compared_in_steps",
        ),
    ),
    Plant(
        bug="controller: a large write is generated in one step",
        path="state/raftlog_state/controller/pending_state.py",
        old="        if self._work >= WORK_PER_STEP:\n",
        new="        if False:\n",
        tests=(WRITES,),
    ),
    Plant(
        bug="controller: a write between two steps outlives the leadership",
        path=ACTIVE,
        old="        self._end_current(error)\n        waiting",
        new="        waiting",
        tests=(WRITES,),
    ),
    Plant(
        bug="controller: control records between the steps of a write are not noticed",
        path=ACTIVE,
        old="        if batch.is_control and (self._current is None or self._is_in_step):\n",
        new="        if batch.is_control:\n",
        tests=(WRITES,),
    ),
    Plant(
        bug="controller: a write starts between the steps of another",
        path=ACTIVE,
        old="        if not self._is_scheduled:\n            self._run_events()\n",
        new="        if self._current is not None:\n            self._run_step(self._queue.pop())\n"
        "        elif not self._is_scheduled:\n            self._run_events()\n",
        tests=(WRITES,),
    ),
    Plant(
        bug="controller: a deadline that is reached between two steps is not noticed",
        path=ACTIVE,
        old="        if not write.is_done and write.deadline_us <= self._time_us():\n",
        new="        if False:\n",
        tests=(WRITES,),
    ),
    Plant(
        bug="controller: a standby replays a large batch in one step",
        path=OFFSETS,
        old="            if not (is_active or (index - 1) % RECORDS_PER_STEP) and index > 1:\n",
        new="            if False:\n",
        tests=(STEPS,),
    ),
    Plant(
        bug="controller: a part of a batch is stable while the batch is replayed in steps",
        path=OFFSETS,
        old="                self._last_replayed = RecordPosition(\n",
        new="                self.last_stable = self._last_replayed = RecordPosition(\n",
        tests=(STEPS,),
    ),
    Plant(
        bug="controller: a committed begin marker of its own is not noticed",
        path=ACTIVE,
        old="() if is_transaction or has_markers else starts",
        new="starts",
        tests=(CASES,),
    ),
    Plant(
        bug="controller node: a query of a standby reads a part of a batch",
        path="state/raftlog_state/controller_apis/hosted_controller.py",
        old="        await self._until_replayed(name)\n        if self.controller.active_epoch is "
        "None and not self.controller.is_replaying:",
        new="        if self.controller.active_epoch is None:",
        tests=(STEPS,),
    ),
    Plant(
        bug="controller node: a query is answered from a batch that a shutdown has interrupted",
        path="state/raftlog_state/controller_apis/hosted_controller.py",
        old=" and not self.controller.is_replaying:",
        new=":",
        tests=(STEPS,),
    ),
    Plant(
        bug="controller: the partitions of a topic are deleted in one step",
        path="state/raftlog_state/replay/topics.py",
        old="    yield from for_each_in_steps(keys, partial(state.delete, Entity.PARTITION))\n",
        new="    for key in keys:\n        state.delete(Entity.PARTITION, key)\n",
        tests=(STEPS, WRITES),
    ),
    Plant(
        bug="controller: the records of a transaction are replayed in one step",
        path=OFFSETS,
        old="                if not (is_replayed or number % RECORDS_PER_STEP):\n",
        new="                if False:\n",
        tests=(STEPS,),
    ),
    Plant(
        bug="loader: a record that is replayed in steps is never visible",
        path="state/raftlog_state/loader/metadata_loader.py",
        old="        self._visible = position\n",
        new="        pass\n",
        tests=(STEPS,),
    ),
    Plant(
        bug="controller: the partitions of a broker are sorted in one step",
        path="state/raftlog_state/steps.py",
        old="        if runs:\n            yield\n",
        new="",
        tests=("tests/state/controller/test_controller_state.py",),
    ),
    Plant(
        bug="controller: the partitions of a broker are in order within a step alone",
        path="state/raftlog_state/steps.py",
        old="    return heapq.merge(*runs)\n",
        new="    return iter([key for run in runs for key in run])\n",
        tests=("tests/state/controller/test_controller_state.py",),
    ),
    Plant(
        bug="controller: a change row of a delegation token needs no metadata.version",
        path="state/raftlog_state/controller/tokens.py",
        old='    """Create or replace a delegation token."""\n    _check_level(state)\n',
        new='    """Create or replace a delegation token."""\n',
        tests=("tests/state/controller/test_kafkas_access_cases.py",),
    ),
    Plant(
        bug="a plan of changes has no delegation tokens",
        path="state/raftlog_state/desired_state.py",
        old="            self._tokens(),\n",
        new="",
        tests=("tests/state/controller/test_desired_state.py",),
    ),
    Plant(
        bug="controller: a snapshot is loaded in one step",
        path="state/raftlog_state/steps.py",
        old="        if number and not number % count:\n",
        new="        if False:\n",
        tests=(STEPS,),
    ),
    Plant(
        bug="node: a listener is called before the steps of its last call are done",
        path="connector/raftlog/node/raft_client.py",
        old="        if self._steps is not None:\n            return True\n",
        new="",
        tests=("tests/node/listeners/test_replica_listeners.py",),
    ),
    Plant(
        bug="publishing: a record that replay rejects stops the image",
        path=f"{PUBLISHING}/loader.py",
        old="MetadataLoader(on_rejected=self._reject)\n        self._image",
        new="MetadataLoader()\n        self._image",
        tests=(UPDATES,),
    ),
    Plant(
        bug="publishing: a snapshot loses a record that replay rejects, without permission",
        path=f"{PUBLISHING}/snapshot_generator.py",
        old="rejected is not None and not self._skips_rejected:",
        new="False:",
        tests=(UPDATES,),
    ),
    Plant(
        bug="loader: a rejected begin marker discards the open transaction",
        path="state/raftlog_state/loader/metadata_loader.py",
        old="            else:\n"
        "                self._transaction = OpenTransaction(at.offset, marker.name)\n",
        new="            self._transaction = OpenTransaction(at.offset, marker.name)\n",
        tests=("tests/state/loader/test_rejected_records.py",),
    ),
    Plant(
        bug="publishing: the file of a snapshot is closed while another thread syncs it",
        path=f"{PUBLISHING}/snapshot_generator.py",
        old="if writing is not None and not writing.is_syncing:",
        new="if writing is not None:",
        tests=(GENERATED,),
    ),
    Plant(
        bug="publishing: a snapshot is synced on the thread that drives the log",
        path=f"{PUBLISHING}/snapshot_generator.py",
        old="                writing.is_syncing = True\n",
        new="                writing.writer.freeze()\n",
        tests=(GENERATED,),
    ),
    Plant(
        bug="controller: the predicted offsets ignore the begin marker",
        path=ACTIVE,
        old="first_offset=base_offset + has_markers,",
        new="first_offset=base_offset,",
        tests=(CASES,),
    ),
    Plant(
        bug="controller: an append does not require its predicted offset",
        path=ACTIVE,
        old="required_base_offset=next_offset)",
        new="required_base_offset=None)",
        tests=(CASES,),
    ),
    Plant(
        bug="controller: a leader continues after the log has got a part of a write",
        path=ACTIVE,
        old="                if next_offset > base_offset and not is_transaction:\n",
        new="                if False:\n",
        tests=(CASES,),
    ),
    Plant(
        bug="controller: a renunciation does not revert the state",
        path=OFFSETS,
        old="        self.state.registry.revert_to_snapshot(self.last_stable.offset)\n",
        new="",
        tests=(CASES,),
    ),
    Plant(
        bug="controller: a claim before the log is replayed",
        path=ACTIVE,
        old="last_offset + 1 < end_offset or",
        new="False or",
        tests=(CASES,),
    ),
    Plant(
        bug="controller: a claim leaves an open transaction open",
        path=ACTIVE,
        old="        if self._offsets.open_transaction_offset is not None:\n",
        new="        if False:\n",
        tests=(CASES,),
    ),
    Plant(
        bug="controller: writes are completed before they are committed",
        path=f"{HOME}/deferred_events.py",
        old="            if last_offset > offset:\n",
        new="            if False:\n",
        tests=(CASES,),
    ),
    Plant(
        bug="controller: a response that depends on uncommitted records is not deferred",
        path=ACTIVE,
        old="            write.last_offset = offsets.last_applied_offset\n",
        new="            write.last_offset = self.last_stable_offset\n",
        tests=(CASES,),
    ),
    Plant(
        bug="controller: a refused write stays in the state",
        path=ACTIVE,
        old="            offsets.revert_write(base_offset, base_offset)\n",
        new="            pass\n",
        tests=(CASES,),
    ),
    Plant(
        bug="controller: batches of a later leader are taken for its own",
        path=ACTIVE,
        old="        if batch.leader_epoch > self._epoch:\n",
        new="        if False:\n",
        tests=(CASES,),
    ),
    Plant(
        bug="controller: elections of other nodes are not counted",
        path=ACTIVE,
        old="        self._election_count += leader.leader_id is not None\n",
        new="        self._election_count += is_me\n",
        tests=(CASES,),
    ),
    Plant(
        bug="controller: a committed write fails with the leadership that a later batch ends",
        path=ACTIVE,
        old="            # before the next batch, which may end the leadership\n    ",
        new="",
        tests=(CASES,),
    ),
    Plant(
        bug="controller: records that cannot be encoded stay in the state",
        path=ACTIVE,
        old="            values = yield from _encoded(pending.records, transaction_name)\n"
        "        except BaseException as error:\n"
        "            if self._claim_epoch != epoch:",
        new="            values = yield from _encoded(pending.records, transaction_name)\n"
        "        except BaseException as error:\n"
        "            if self._claim_epoch != epoch or 'InvalidRecord' in type(error).__name__:",
        tests=(CASES,),
    ),
    Plant(
        bug="controller: a record that cannot be encoded ends the leadership",
        path=f"{HOME}/exception_info.py",
        old="    InvalidRecordError,\n    UnsupportedVersionError,\n    DiskFullError,\n)",
        new="    DiskFullError,\n)",
        tests=("tests/state/controller/test_exception_info.py", CASES),
    ),
    Plant(
        bug="changes to a state: brokers that new replicas need stay fenced",
        path=DESIRED,
        old="            and (not row.fenced or row.broker_id in needed)\n",
        new="            and not row.fenced\n",
        tests=(DESIRED_CASES,),
    ),
    Plant(
        bug="changes to a state: a recreated topic lacks the configs that did not change",
        path=DESIRED,
        old="if row.resource_type == TOPIC and self._is_recreated(row.resource_name):",
        new="if False:",
        tests=(DESIRED_CASES,),
    ),
    Plant(
        bug="changes to a state: partitions with other numbers of replicas keep placeholders",
        path=DESIRED,
        old="            if is_created and len(target) != factor:\n",
        new="            if False:\n",
        tests=(DESIRED_CASES,),
    ),
    Plant(
        bug="raftlog apply --dry-run prints secrets",
        path="state/raftlog_state/cli/apply.py",
        old="to_json_text(hide.redact(record))",
        new="to_json_text(record)",
        tests=("tests/state/cli/test_cli_apply.py",),
    ),
    Plant(
        bug="controller: it writes with a metadata.version that it does not support",
        path=ACTIVE,
        old="        check_metadata_version(self.state)\n",
        new="",
        tests=(UPDATES,),
    ),
    Plant(
        bug="publishing: a snapshot of a metadata.version that is not supported",
        path=f"{PUBLISHING}/snapshot_generator.py",
        old="        reason = unsupported_reason(image)\n",
        new="        reason = None\n",
        tests=(UPDATES,),
    ),
    Plant(
        bug="a client of a trimmed quorum does not find its snapshot",
        path="connector/raftlog/node/apis/fetch.py",
        old="            snapshot = newest.epoch, newest.end_offset\n",
        new="            pass\n",
        tests=("tests/state/publishing/test_clients_of_trimmed_quorums.py",),
    ),
    Plant(
        bug="controller: a new leader's state has what the last one did not commit",
        path=OFFSETS,
        old="        self._plain_writes.clear()\n        self.state.registry.revert",
        new="        self._plain_writes.clear()\n        return\n"
        "        self.state.registry.revert",
        tests=("tests/simulation/test_controllers.py",),
    ),
    Plant(
        bug="publishing: a fault of one publisher stops the others",
        path=f"{PUBLISHING}/loader.py",
        old="publisher, error)\n\n    def _notify_leader(",
        new="publisher, error)\n                return\n\n    def _notify_leader(",
        tests=(f"{UPDATES}::test_a_fault_of_one_publisher_does_not_stop_the_others",),
    ),
    Plant(
        bug="publishing: a step of a removed publisher is executed",
        path=f"{PUBLISHING}/loader.py",
        old="steps = begin(steps) if publisher in self._publishers else None",
        new="steps = begin(steps)",
        tests=(UPDATES,),
    ),
    Plant(
        bug="publishing: decisions by a part of the ACLs of a snapshot",
        path=f"{PUBLISHING}/access_publisher.py",
        old="index, quotas = AclIndex(), QuotaIndex()",
        new="index, quotas = AclIndex(), QuotaIndex()\n                self._index = index",
        tests=(UPDATES,),
    ),
    Plant(
        bug="changes: kraft.version is raised although a row is refused",
        path="state/raftlog_state/changes.py",
        old="            self._log.upgrade_kraft_version(version, validate_only=True)\n",
        new="            self._log.upgrade_kraft_version(version)\n",
        tests=("tests/state/controller_apis/test_kraft_version.py",),
    ),
    Plant(
        bug="features: two updates of kraft.version in a request fail the controller",
        path="connector/raftlog/wire/latest_schemas.py",
        old="tuple({update.feature: update for update in self.feature_updates}.values())",
        new="self.feature_updates",
        tests=("tests/state/controller_apis/test_kraft_version.py",),
    ),
    Plant(
        bug="changes: kraft.version is raised for a log that cannot be appended to",
        path="state/raftlog_state/changes.py",
        old="self._log.append((), required_base_offset=base_offset, timeout_ms=timeout_ms)\n",
        new="pass\n",
        tests=("tests/state/controller_apis/test_kraft_version.py",),
    ),
    Plant(
        bug="publishing: a snapshot loses records of a later release",
        path=f"{PUBLISHING}/snapshot_generator.py",
        old="        if reason is None and manifest.skipped_count:\n",
        new="        if False:\n",
        tests=(f"{GENERATED}::test_no_snapshot_loses_records_that_this_release_does_not_support",),
    ),
    Plant(
        bug="publishing: a snapshot is begun inside a transaction",
        path=f"{PUBLISHING}/snapshot_generator.py",
        old="        if not manifest.provenance.is_offset_batch_aligned or",
        new="        if",
        tests=(f"{GENERATED}::test_no_snapshot_ends_inside_a_batch_or_a_transaction",),
    ),
    Plant(
        bug="publishing: a loaded snapshot does not begin a new interval",
        path=f"{PUBLISHING}/snapshot_generator.py",
        old="            self._reset_counters()\n            return\n        self._byte_count",
        new="            return\n        self._byte_count",
        tests=(f"{GENERATED}::test_a_loaded_snapshot_resets_the_counters",),
    ),
    Plant(
        bug="publishing: deleted rows are counted",
        path=f"{PUBLISHING}/metrics.py",
        old="                _count(counted, change.before, -1)\n",
        new="",
        tests=(f"{UPDATES}::test_metrics_count_what_changes_as_the_image_does",),
    ),
    Plant(
        bug="changes: a kept state has the records of a refused or unwritten change",
        path="state/raftlog_state/changes.py",
        old="            followed.revert()\n",
        new="            pass\n",
        tests=(RIVALS, APPLIED),
    ),
    Plant(
        bug="changes: a log with other records continues a kept state",
        path="state/raftlog_state/followed_log.py",
        old="            if found != [last]:\n",
        new="            if False:\n",
        tests=(f"{APPLIED}::test_a_state_is_built_again_if_its_log_is_another_one",),
    ),
    Plant(
        bug="changes: a batch of a transaction does not require the end of the one before",
        path="state/raftlog_state/changes.py",
        old="                    chunk, required_base_offset=next_offset,",
        new="                    chunk, required_base_offset=None,",
        tests=(RIVALS,),
    ),
    Plant(
        bug="changes: a transaction in which another writer appended is left open",
        path="state/raftlog_state/changes.py",
        old="            self._abort(log, begin_offset, timeout_ms)\n            return",
        new="            return",
        tests=(
            "tests/state/controller/test_rival_changes.py"
            "::test_a_transaction_in_which_another_writer_appended_is_aborted",
        ),
    ),
    Plant(
        bug="changes: an open transaction of another writer is continued",
        path="state/raftlog_state/changes.py",
        old="        elif begin_offset is not None:\n",
        new="        elif False:\n",
        tests=(f"{APPLIED}::test_an_open_transaction_at_the_end_is_refused_until_it_is_aborted",),
    ),
    Plant(
        bug="changes: a dry run appends",
        path="state/raftlog_state/changes.py",
        old="                if options.validate_only:\n",
        new="                if False:\n",
        tests=(f"{APPLIED}::test_a_dry_run_returns_the_records_and_writes_nothing",),
    ),
    Plant(
        bug="controller: a full disk ends the leadership",
        path=f"{HOME}/exception_info.py",
        old="    DiskFullError,\n)\n",
        new=")\n",
        tests=(f"{CASES}::test_a_full_disk_refuses_a_write_without_a_failover",),
    ),
    Plant(
        bug="controller: a transaction that could not be aborted stays open under its leader",
        path=ACTIVE,
        old="            if self._claim_epoch == epoch:  # the next",
        new="            if False:  # the next",
        tests=(f"{CASES}::test_a_leader_whose_full_disk_has_no_room_for_an_abort_resigns",),
    ),
    Plant(
        bug="controller: only errors of raftlog in a replay are fatal",
        path=ACTIVE,
        old="        except Exception as error:  # noqa: BLE001 (a replay may",
        new="        except RaftlogError as error:  # noqa: BLE001 (a replay may",
        tests=(f"{CASES}::test_a_controller_whose_replay_fails_in_between_has_no_state_any_more",),
    ),
    Plant(
        bug="controller: a leader of the next epoch keeps its position in a log with other batches",
        path=ACTIVE,
        old="if is_me and is_next and self._current is None:",
        new="if is_me:",
        tests=(
            f"{CASES}::test_a_leader_of_the_next_epoch_claims_again_if_the_log_has_other_batches",
        ),
    ),
    Plant(
        bug="controller: a claim although a later leader has written",
        path=ACTIVE,
        old="            self._claim_end_offset = None\n            if is_active:\n",
        new="            if is_active:\n",
        tests=(CASES,),
    ),
    Plant(
        bug="controller: records that were replayed before the append are replayed again",
        path=OFFSETS,
        old="        elif not is_replayed:\n",
        new="        else:\n",
        tests=(CASES,),
    ),
    Plant(
        bug="controller: an aborted transaction is applied",
        path=OFFSETS,
        old="        if marker.outcome is TransactionOutcome.COMMITTED:\n",
        new="        if True:\n",
        tests=(CASES,),
    ),
    Plant(
        bug="controller: a transaction is stable before its end marker",
        path=OFFSETS,
        old=f"        if self._transaction is None:\n{STABLE}",
        new=f"        if True:\n{STABLE}",
        tests=(CASES,),
    ),
    Plant(
        bug="controller: a part of a failed transaction is not aborted",
        path=ACTIVE,
        old="                if next_offset > base_offset and not info.causes_failover:\n",
        new="                if False:\n",
        tests=(CASES,),
    ),
    Plant(
        bug="controller: an unexpected end offset does not fail over",
        path=f"{HOME}/exception_info.py",
        old="            external = NotControllerError(reason=reason)\n",
        new="            external, causes_failover = NotControllerError(reason=reason), False\n",
        tests=("tests/state/controller/test_exception_info.py", CASES),
    ),
    Plant(
        bug="controller: a partition stays in the index of its former brokers",
        path=STATE,
        old="                self._remove_partition(index_key, key)\n",
        new="                pass\n",
        tests=(STATES,),
    ),
    Plant(
        bug="controller: a copy of a snapshot has values of later ones",
        path="state/raftlog_state/timeline/registry.py",
        old="        for delta in reversed(list(self._deltas_from(snapshot))):\n",
        new="        for delta in self._deltas_from(snapshot):\n",
        tests=(STATES,),
    ),
    Plant(
        bug="apply_changes aborts a rival's transaction after an unknown outcome",
        path="state/raftlog_state/changes.py",
        old="if next_offset == base_offset:\n",
        new="if isinstance(error, UnexpectedEndOffsetError):\n",
        tests=(
            "tests/state/controller/test_rival_changes.py"
            "::test_the_transaction_of_a_rival_is_not_aborted",
        ),
    ),
)
