"""Bugs of the controller's managers: epochs, brokers, requests with several changes, filters."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

HOME: Final = "state/raftlog_state/controller"
CASES: Final = "tests/state/controller/test_kafkas"
ACCESS: Final = f"{CASES}_access_cases.py"
BROKERS: Final = f"{CASES}_broker_cases.py"
CONFIGS: Final = f"{CASES}_config_cases.py"
OFFSETS: Final = f"{CASES}_offset_cases.py"
PARTITIONS: Final = f"{CASES}_partition_cases.py"
TOPICS: Final = f"{CASES}_topic_cases.py"

MANAGER_PLANTS: Final = (
    Plant(
        bug="managers: an AlterPartition with an older partition epoch is accepted",
        path=f"{HOME}/partitions.py",
        old="    if request.partition_epoch < row.partition_epoch:\n",
        new="    if request.partition_epoch < 0:\n",
        tests=(PARTITIONS,),
    ),
    Plant(
        bug="managers: a change row with a stale partition epoch is accepted",
        path=f"{HOME}/partitions.py",
        old="if expected is not None and expected != row.partition_epoch:",
        new="if expected is not None and expected > row.partition_epoch:",
        tests=(PARTITIONS,),
    ),
    Plant(
        bug="managers: a broker of an earlier incarnation joins an ISR",
        path=f"{HOME}/partitions.py",
        old="elif epoch not in (ANY_BROKER_EPOCH, broker.broker_epoch):",
        new="elif epoch < ANY_BROKER_EPOCH:",
        tests=(PARTITIONS,),
    ),
    Plant(
        bug="managers: a broker is unfenced before it has replayed its registration",
        path=f"{HOME}/heartbeats.py",
        old="is_caught_up = heartbeat.current_metadata_offset >= registration_offset",
        new="is_caught_up = heartbeat.current_metadata_offset >= registration_offset - 1",
        tests=(BROKERS,),
    ),
    Plant(
        bug="managers: the offset of a registration is the broker's epoch",
        path=f"{HOME}/controller_state.py",
        old="            self._registration_offsets[record.broker_id] = at.offset\n",
        new="            self._registration_offsets[record.broker_id] = record.broker_epoch\n",
        tests=(BROKERS,),
    ),
    Plant(
        bug="managers: a registration in a snapshot has no offset after it",
        path=f"{HOME}/controller_state.py",
        old="{row.broker_id: image.offset for row in",
        new="{row.broker_id: row.broker_epoch for row in",
        tests=(OFFSETS,),
    ),
    Plant(
        bug="managers: another incarnation of a live broker registers",
        path=f"{HOME}/broker_control.py",
        old="and heartbeats.tracker.has_valid_session(broker_id, row.broker_epoch, now_us)",
        new="and heartbeats.tracker.has_valid_session(broker_id, -1, now_us)",
        tests=(BROKERS,),
    ),
    Plant(
        bug="managers: sessions do not begin again with a new epoch",
        path=f"{HOME}/broker_control.py",
        old="if self.heartbeats is None or self._epoch != state.leader_epoch:",
        new="if self.heartbeats is None:",
        tests=(BROKERS,),
    ),
    Plant(
        bug="managers: a broker shuts down before the active ones know its new leaders",
        path=f"{HOME}/heartbeats.py",
        old="if has_leaderships or shutdown_offset > self.lowest_active_offset():",
        new="if has_leaderships:",
        tests=(BROKERS,),
    ),
    Plant(
        bug="managers: a controlled shutdown that was not written is not repeated",
        path=f"{HOME}/broker_control.py",
        old="        if not row.in_controlled_shutdown:\n",
        new="        if row.in_controlled_shutdown is None:\n",
        tests=(BROKERS,),
    ),
    Plant(
        bug="managers: a fencing that was not written is not repeated",
        path=f"{HOME}/broker_control.py",
        old="                heartbeats.fence(broker_id)\n",
        new="                heartbeats.tracker.remove(broker_id, epoch)\n",
        tests=(BROKERS,),
    ),
    Plant(
        bug="managers: a clean shutdown is handled as an unclean one",
        path=f"{HOME}/brokers.py",
        old="row.broker_epoch == registration.previous_broker_epoch",
        new="row.broker_epoch < registration.previous_broker_epoch",
        tests=(BROKERS,),
    ),
    Plant(
        bug="managers: a refused part of a request keeps its records",
        path=f"{HOME}/pending_state.py",
        old="            with self.atomic():\n                part()\n",
        new="            part()\n",
        tests=(ACCESS, CONFIGS),
    ),
    Plant(
        bug="managers: a validated request is written",
        path=f"{HOME}/pending_state.py",
        old="                raise _NotWrittenError\n",
        new="                return found[0]\n",
        tests=(CONFIGS, TOPICS),
    ),
    Plant(
        bug="managers: an element is appended to a list that has it",
        path=f"{HOME}/configs.py",
        old="elif kind is ConfigOperation.APPEND and part not in parts:",
        new="elif kind is ConfigOperation.APPEND:",
        tests=(CONFIGS,),
    ),
    Plant(
        bug="managers: an element is appended without the default",
        path=f"{HOME}/configs.py",
        old="(default if current is None else current)",
        new='("" if current is None else current)',
        tests=(CONFIGS,),
    ),
    Plant(
        bug="managers: a filter for a resource misses prefixed ACLs",
        path=f"{HOME}/acls.py",
        old="return self.resource_name.startswith(row.resource_name)",
        new="return row.resource_name.startswith(self.resource_name)",
        tests=(ACCESS,),
    ),
    Plant(
        bug="managers: a strict filter of quotas ignores other types",
        path=f"{HOME}/quotas.py",
        old="if self._strict and len(parts) != len(self._exact) + len(self._types):",
        new="if self._strict and len(parts) < len(self._exact) + len(self._types):",
        tests=(ACCESS,),
    ),
    Plant(
        bug="managers: a token is renewed beyond its maximum",
        path=f"{HOME}/tokens.py",
        old="        expiry_ms = min(row.max_timestamp_ms, _sum(now_ms, period_ms))\n",
        new="        expiry_ms = _sum(now_ms, period_ms)\n",
        tests=(ACCESS,),
    ),
    Plant(
        bug="managers: a feature needs the metadata.version before its request",
        path=f"{HOME}/features.py",
        old="proposed.get(METADATA_VERSION), state)",
        new="state.current.metadata_version, state)",
        tests=(TOPICS,),
    ),
    Plant(
        bug="managers: kraft.version is raised although another update is refused",
        path=f"{HOME}/features.py",
        old="        state.validate_only(update_all)\n",
        new="        pass\n",
        tests=(TOPICS,),
    ),
    Plant(
        bug="the records after an upgrade of kraft.version are replayed at the offsets of it",
        path=f"{HOME}/pending_state.py",
        old="            self._first_offset = next_offset\n",
        new="",
        tests=(TOPICS, "tests/state/controller/test_kraft_version_upgrade.py"),
    ),
    Plant(
        bug="managers: a last known leader without a replica is elected",
        path=f"{HOME}/partition_change.py",
        old="if len(known) != 1 or known[0] not in self._replicas:",
        new="if len(known) != 1:",
        tests=(f"{CASES}_partition_changes.py",),
    ),
    Plant(
        bug="managers: partitions with other leaders stay in their index",
        path=f"{HOME}/controller_state.py",
        old="if row.replicas and row.leader != row.replicas[0]:",
        new="if row.replicas and row.leader != row.replicas[-1]:",
        tests=(PARTITIONS,),
    ),
)
