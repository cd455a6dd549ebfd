"""Changes that lead from one state of a cluster to another: the inverse of applying changes.

``plan(actual, desired)`` compares two images, of logs, snapshots or tables, and returns change rows
for ``apply_changes``. Applied to ``actual``, they result in a state with the same topics,
partitions and replicas, configs, quotas, ACLs, delegation tokens, features and brokers as
``desired``.

Things that a writer cannot choose are not compared: ids and epochs; leaders, ISRs and directories,
which brokers and elections determine; a broker's controlled shutdown and cordoned directories;
producer ids and registrations of controllers. SCRAM credentials cannot be written from their rows,
which contain only hashes. Those that differ are in ``left_out``.

The rows are in this order: features, then brokers, so that topics can be assigned to them; topics;
configs, quotas, ACLs and tokens; finally the brokers that are fenced or unregistered in
``desired``.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar, cast

from .controller import (
    AddAcl,
    AddPartitions,
    ApiException,
    ChangeRequest,
    CreateTopic,
    DeleteConfig,
    DeleteTopic,
    ElectLeader,
    FenceBroker,
    PendingState,
    ReassignPartition,
    RegisterBroker,
    RemoveAcl,
    RemoveQuota,
    RemoveScram,
    RemoveToken,
    SetConfig,
    SetFeature,
    SetIsr,
    SetQuota,
    SetToken,
    UnfenceBroker,
    UnregisterBroker,
    write_change,
)
from .controller.change_requests import Assignment
from .controller.columns import KIND
from .controller.configs import MAX_LAG, MIN_LAG
from .controller.controller_state import (
    BROKER,
    NO_LEADER,
    TOPIC,
    ControllerState,
)
from .image import (
    METADATA_VERSION,
    AclRow,
    BrokerRow,
    ConfigRow,
    FeatureRow,
    MetadataImage,
    PartitionRow,
    QuotaRow,
    Row,
    ScramRow,
    TokenRow,
    TopicRow,
    acl_content,
)
from .image.delta import RowChange
from .image.differences import differences

R = TypeVar("R", bound=Row)

_LAGS: Final = (MIN_LAG, MAX_LAG)


@dataclass(frozen=True, slots=True)
class PlannedChanges:
    """Rows for ``apply_changes``, and descriptions of differences that they do not change.

    The rows contain secrets in clear text if the states do.
    """

    changes: tuple[ChangeRequest, ...]
    left_out: tuple[str, ...] = ()


def plan(
    actual: MetadataImage, desired: MetadataImage, *, complete_reassignments: bool = False
) -> PlannedChanges:
    """Return the changes from ``actual`` to ``desired``; none if they are equal.

    If a topic has fewer partitions in ``desired``, or none in ``actual``, it is deleted and created
    again, without its records.

    ``complete_reassignments``: whether partitions get their replicas immediately, through a change
    of the ISR, as in a cluster without running brokers. Otherwise the brokers first copy the
    partition, as in Kafka, and the reassignment is in progress until they are done.
    """
    planner = _Planner(actual, desired, complete_reassignments)
    planner.run()
    return PlannedChanges(tuple(planner.changes), tuple(planner.left_out))


class _Planner:
    """Planner whose changes are applied to a copy of the state as they are planned."""

    def __init__(
        self, actual: MetadataImage, desired: MetadataImage, complete_reassignments: bool
    ) -> None:
        self.changes: list[ChangeRequest] = []
        self.left_out: list[str] = []
        self._actual = actual
        self._desired = desired
        self._complete_reassignments = complete_reassignments
        self._brokers = _by_key(actual, BrokerRow), _by_key(desired, BrokerRow)
        self._topics = _partitions_by_topic(actual), _partitions_by_topic(desired)
        self._unfenced = self._brokers_to_unfence()
        self._state = PendingState(
            ControllerState.from_image(actual),
            first_offset=actual.offset + 1,
            leader_epoch=actual.leader_epoch,
            rng=random.Random(0),
        )

    def run(self) -> None:
        for planned in (
            self._features(),
            self._new_brokers(),
            self._topic_changes(),
            self._configs(),
            self._quotas(),
            self._acls(),
            self._removed_credentials(),
            self._tokens(),
            self._old_brokers(),
        ):
            for change in planned:
                try:
                    write_change(change, self._state)
                except ApiException as refusal:
                    self.left_out.append(f"{change.KIND} of {refusal.what}: {refusal.reason}")
                else:
                    self.changes.append(change)
        self.left_out += self._unwritable()

    def _differences(
        self, kind: type[R], key: Callable[[RowChange], Any] | None = None
    ) -> Iterator[tuple[R | None, R | None]]:
        """Yield the rows of one kind that differ, before and after, compared by name."""
        found = differences(self._actual, self._desired, kind.ENTITY, by_name=True)
        for change in found if key is None else sorted(found, key=key):
            yield cast("R | None", change.before), cast("R | None", change.after)

    def _unwritable(self) -> Iterator[str]:
        for _, row in self._differences(ScramRow):
            if row is not None:
                what = f"SCRAM credential {row.mechanism_name} of user {row.user!r}"
                yield f"{what}: set its password"

    # --- features and brokers ---------------------------------------------------------------------

    def _features(self) -> Iterator[ChangeRequest]:
        def after_metadata_version(change: RowChange) -> bool:
            return change.key != (METADATA_VERSION,)

        for before, after in self._differences(FeatureRow, after_metadata_version):
            row = after or before
            assert row is not None, "a difference has a row"
            level, known = (0 if one is None else one.level for one in (after, before))
            yield SetFeature(feature=row.name, level=level, allow_downgrade=level < known)

    def _new_brokers(self) -> Iterator[ChangeRequest]:
        before, after = self._brokers
        for key, row in after.items():
            known = before.get(key)
            if known is None or _registration(known) != _registration(row):
                yield _register(row, known)
            if row.broker_id in self._unfenced:
                yield UnfenceBroker(broker_id=row.broker_id)

    def _old_brokers(self) -> Iterator[ChangeRequest]:
        before, after = self._brokers
        for key, row in after.items():
            known = before.get(key)
            is_fenced = known is None or known.fenced
            if row.fenced and (row.broker_id in self._unfenced or not is_fenced):
                yield FenceBroker(broker_id=row.broker_id)
        for key, row in before.items():
            if key not in after:
                yield UnregisterBroker(broker_id=row.broker_id)

    def _brokers_to_unfence(self) -> set[int]:
        """Return the brokers that are unfenced in ``desired``, or that its new replicas need."""
        before, after = self._brokers
        needed: set[int] = set()
        for name, rows in self._topics[1].items():
            known = [] if self._is_recreated(name) else self._topics[0].get(name, [])
            for row in rows[len(known) :]:
                needed.update(target_replicas(row))
            for was, row in zip(known, rows, strict=False):
                if target_replicas(was) != target_replicas(row):
                    needed.update((*target_replicas(row), *was.isr, *was.elr))
            if len(rows) > len(known):
                needed.update(row.broker_id for row in after.values())  # to fill placeholders
        return {
            row.broker_id
            for key, row in after.items()
            if (key not in before or before[key].fenced)
            and (not row.fenced or row.broker_id in needed)
        }

    # --- topics -----------------------------------------------------------------------------------

    def _topic_changes(self) -> Iterator[ChangeRequest]:
        before, after = self._topics
        for name in sorted(before):
            if name not in after or self._is_recreated(name):
                yield DeleteTopic(topic=name)
        for name in sorted(after):
            rows = after[name]
            if not rows:
                self.left_out.append(f"topic {name!r}: it has no partitions")
            elif name not in before or self._is_recreated(name):
                factor = len(target_replicas(rows[0]))
                yield CreateTopic(topic=name, assignment=self._assignment(rows, factor))
                yield from self._corrections(rows, factor)
            else:
                yield from self._partition_changes(name, before[name], after[name])

    def _is_recreated(self, name: str) -> bool:
        before, after = (topics.get(name, ()) for topics in self._topics)
        is_bare = name in self._topics[0] and not before  # nothing has its replication factor
        return len(after) < len(before) or (is_bare and bool(after))

    def _partition_changes(
        self, topic: str, before: list[PartitionRow], after: list[PartitionRow]
    ) -> Iterator[ChangeRequest]:
        added = after[len(before) :]
        if added:
            factor = len(before[0].replicas)
            assignment = self._assignment(added, factor)
            yield AddPartitions(topic=topic, partitions=len(after), assignment=assignment)
            yield from self._corrections(added, factor)
        for row, desired in zip(before, after, strict=False):
            target = target_replicas(desired)
            if target_replicas(row) != target:
                if self._complete_reassignments:
                    yield from self._cancellation(row)
                yield ReassignPartition(topic=topic, partition=row.partition_id, replicas=target)
            elif row.replicas in (target, desired.replicas):
                continue
            if self._complete_reassignments:
                yield from self._completion(topic, row.partition_id)

    def _cancellation(self, row: PartitionRow) -> Iterator[ChangeRequest]:
        """Cancel a reassignment whose new replicas would still have to join the ISR."""
        row = self._partition(row.topic_name, row.partition_id)
        if row.adding_replicas and {*row.isr} - {*row.adding_replicas}:
            yield ReassignPartition(topic=row.topic_name, partition=row.partition_id, replicas=None)

    def _completion(self, topic: str, number: int) -> Iterator[ChangeRequest]:
        """Put the new replicas into the ISR, which completes a reassignment."""
        row = self._partition(topic, number)
        if row.leader == NO_LEADER:
            yield ElectLeader(topic=topic, partition=number, election="unclean")
            row = self._partition(topic, number)
        if row.adding_replicas or row.removing_replicas:
            active = filter(self._state.current.is_active, row.isr)
            isr = tuple(dict.fromkeys((*active, *target_replicas(row))))
            yield SetIsr(topic=topic, partition=number, isr=isr)

    def _partition(self, topic: str, number: int) -> PartitionRow:
        """Return a partition after the changes planned so far."""
        found = self._state.current.topic(topic)
        assert found is not None, "it exists in both states, or is created"
        row = self._state.current.find(PartitionRow, found.topic_id, number)
        assert row is not None, "it exists in both states, or is created"
        return row

    def _assignment(self, rows: Iterable[PartitionRow], factor: int) -> Assignment:
        """Return the replicas of new partitions, which must all have the same number.

        Partitions with another number get ``_corrections``.
        """
        brokers = [row.broker_id for row in self._brokers[1].values()]
        targets = (target_replicas(row) for row in rows)
        return tuple(tuple(dict.fromkeys((*one, *brokers)))[:factor] for one in targets)

    def _corrections(self, rows: Iterable[PartitionRow], factor: int) -> Iterator[ChangeRequest]:
        for row in rows:
            target = target_replicas(row)
            is_created = self._state.current.topic(row.topic_name) is not None
            if is_created and len(target) != factor:
                topic, number = row.topic_name, row.partition_id
                yield ReassignPartition(topic=topic, partition=number, replicas=target)
                if self._complete_reassignments:
                    yield from self._completion(topic, number)

    # --- configs, quotas, access ------------------------------------------------------------------

    def _configs(self) -> Iterator[ChangeRequest]:
        changed: defaultdict[tuple[int, str], set[str]] = defaultdict(set)
        for before, after in self._differences(ConfigRow):
            row = after or before
            assert row is not None, "a difference has a row"
            changed[row.resource_type, row.resource_name].add(row.name)
        for row in self._desired.rows_of(ConfigRow):
            if row.resource_type == TOPIC and self._is_recreated(row.resource_name):
                changed[TOPIC, row.resource_name].add(row.name)
        for kind, name in sorted(changed):
            if not self._is_deleted(kind, name):
                yield from self._config_changes(kind, name, changed[kind, name])

    def _config_changes(self, kind: int, resource: str, names: set[str]) -> Iterator[ChangeRequest]:
        is_new = kind == TOPIC and self._is_recreated(resource)
        if names & {*_LAGS}:  # the values are valid together, but not one after the other
            names = names | {*_LAGS}
        after = {name: self._desired.find(ConfigRow, kind, resource, name) for name in names}
        for name in sorted(names):
            is_set = self._actual.find(ConfigRow, kind, resource, name) is not None and not is_new
            if is_set and (after[name] is None or name in _LAGS):
                yield DeleteConfig(resource_type=kind, resource_name=resource, name=name)
        for name in sorted(names):
            row = after[name]
            if row is not None:
                yield SetConfig(
                    resource_type=kind, resource_name=resource, name=name, value=row.value
                )

    def _is_deleted(self, kind: int, name: str) -> bool:
        """Return whether a resource is deleted, with its configs or before they could be."""
        if kind == TOPIC:
            return name not in self._topics[1]
        return kind == BROKER and bool(name) and not _has_node(self._desired, name)

    def _quotas(self) -> Iterator[ChangeRequest]:
        found = list(self._differences(QuotaRow))
        for before, after in found:
            if before is not None and after is None:
                yield RemoveQuota(entity=dict(before.entity), quota=before.quota)
        for _, after in found:
            if after is not None:
                yield SetQuota(entity=dict(after.entity), quota=after.quota, limit=after.value)

    def _acls(self) -> Iterator[ChangeRequest]:
        found = list(self._differences(AclRow))
        removed = {acl_content(before) for before, after in found if after is None}
        for row in self._actual.rows_of(AclRow):  # several can have the same content
            if acl_content(row) in removed:
                yield RemoveAcl(acl_id=row.acl_id)
        for before, after in found:
            if before is None and after is not None:
                yield AddAcl(
                    resource_type=after.resource_type,
                    resource_name=after.resource_name,
                    pattern_type=after.pattern_type,
                    principal=after.principal,
                    host=after.host,
                    operation=after.operation,
                    permission=after.permission,
                )

    def _removed_credentials(self) -> Iterator[ChangeRequest]:
        for before, after in self._differences(ScramRow):
            if before is not None and after is None:
                yield RemoveScram(user=before.user, mechanism=before.mechanism)

    def _tokens(self) -> Iterator[ChangeRequest]:
        for before, after in self._differences(TokenRow):
            if after is not None:
                columns = {entry.name: getattr(after, entry.name) for entry in fields(after)}
                yield SetToken(**columns)
            elif before is not None:
                yield RemoveToken(token_id=before.token_id)


def change_row(change: ChangeRequest) -> dict[str, Any]:
    """Return a change as a row of a table of changes, without columns that have their defaults."""
    found: dict[str, Any] = {KIND: change.KIND}
    for entry in fields(change):
        value = getattr(change, entry.name)
        if value != entry.default and value != {}:
            found[entry.name] = value
    return found


def target_replicas(row: PartitionRow) -> tuple[int, ...]:
    """Return the replicas of a partition once its reassignment is complete."""
    return tuple(one for one in row.replicas if one not in row.removing_replicas)


# --- helpers --------------------------------------------------------------------------------------


def _by_key(image: MetadataImage, kind: type[R]) -> dict[tuple[int | str, ...], R]:
    return {row.key: row for row in image.rows_of(kind)}


def _partitions_by_topic(image: MetadataImage) -> dict[str, list[PartitionRow]]:
    """Return the partitions of each topic, by name, in order."""
    found: dict[str, list[PartitionRow]] = {row.name: [] for row in image.rows_of(TopicRow)}
    for row in image.rows_of(PartitionRow):
        found[row.topic_name].append(row)
    return found


def _registration(row: BrokerRow) -> tuple[object, ...]:
    return row.rack, row.endpoints, row.features


def _register(row: BrokerRow, known: BrokerRow | None) -> RegisterBroker:
    return RegisterBroker(
        broker_id=row.broker_id,
        endpoints={
            one.name: f"{one.protocol_name}://{one.host}:{one.port}" for one in row.endpoints
        },
        rack=row.rack,
        features={one.name: (one.min_version, one.max_version) for one in row.features},
        log_dirs=row.log_dirs or None if known is None else None,
        incarnation_id=None if known is None else known.incarnation_id,
    )


def _has_node(image: MetadataImage, name: str) -> bool:
    return name.isdigit() and image.find(BrokerRow, int(name)) is not None
