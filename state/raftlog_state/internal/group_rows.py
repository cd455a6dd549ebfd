"""Groups and their members, from the records of the group coordinator.

Rules of this file:

1. A classic group is one record that contains its members. Groups of other protocols have records
   for the group, its target assignment, each member and each member's assignment. After a
   compaction, these are in any order, so fields without a record yet are unknown.
2. A group that has committed or pending offsets but no record of its own is a simple group: an
   empty classic group without a protocol type.
3. The state is derived from the rows, as the coordinator does after each record.

Source: Kafka ``GroupMetadataManager.replay``, ``ConsumerGroup.maybeUpdateGroupState``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from raftlog_state.enums import MEMBER_STATES, STREAMS_MEMBER_STATES, enum_name
from raftlog_state.image import MetadataImage
from raftlog_state.image.delta import MetadataDelta
from raftlog_state.image.rows import Entity, GroupMemberRow, GroupRow, MemberPartitions
from raftlog_state.records import Message
from raftlog_state.records.consumer_protocol import PROTOCOL_TYPE, parse_protocol
from raftlog_state.records.schema_groups import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    GroupKey,
    GroupMemberKey,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)
from raftlog_state.records.schema_streams import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
)

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
SHARE: Final = "share"
STREAMS: Final = "streams"
_PROTOCOL_TYPES: Final = {CONSUMER: PROTOCOL_TYPE, SHARE: "share", STREAMS: "streams"}
_STABLE: Final = MEMBER_STATES[0]
_TYPES: Final[Mapping[type[Message], str]] = {
    ConsumerGroupMetadataKey: CONSUMER,
    ConsumerGroupTargetAssignmentMetadataKey: CONSUMER,
    ConsumerGroupMemberMetadataKey: CONSUMER,
    ConsumerGroupCurrentMemberAssignmentKey: CONSUMER,
    ShareGroupMetadataKey: SHARE,
    ShareGroupTargetAssignmentMetadataKey: SHARE,
    ShareGroupMemberMetadataKey: SHARE,
    ShareGroupCurrentMemberAssignmentKey: SHARE,
    StreamsGroupMetadataKey: STREAMS,
    StreamsGroupTargetAssignmentMetadataKey: STREAMS,
    StreamsGroupMemberMetadataKey: STREAMS,
    StreamsGroupCurrentMemberAssignmentKey: STREAMS,
}
"""Group type by the class of a record's key."""
_GROUP_KEYS: Final = (ConsumerGroupMetadataKey, ShareGroupMetadataKey, StreamsGroupMetadataKey)
_MEMBER_KEYS: Final = (
    ConsumerGroupMemberMetadataKey,
    ShareGroupMemberMetadataKey,
    StreamsGroupMemberMetadataKey,
)

_Group: TypeAlias = ConsumerGroupMetadataValue | ShareGroupMetadataValue | StreamsGroupMetadataValue
_Target: TypeAlias = (
    ConsumerGroupTargetAssignmentMetadataValue
    | ShareGroupTargetAssignmentMetadataValue
    | StreamsGroupTargetAssignmentMetadataValue
)
_Member: TypeAlias = (
    ConsumerGroupMemberMetadataValue
    | ShareGroupMemberMetadataValue
    | StreamsGroupMemberMetadataValue
)
_Assignment: TypeAlias = (
    ConsumerGroupCurrentMemberAssignmentValue
    | ShareGroupCurrentMemberAssignmentValue
    | StreamsGroupCurrentMemberAssignmentValue
)


class GroupRows:
    """Replay of groups and their members, continuing the state ``image``."""

    def __init__(self, image: MetadataImage) -> None:
        self._members: dict[str, set[str]] = {}
        self._reached: Counter[tuple[str, str | None, int | None]] = Counter()
        """Number of members by group, state and epoch.

        A group may have thousands of members, and each record changes one of them.
        """
        for member in image.map(Entity.GROUP_MEMBER).values():
            assert isinstance(member, GroupMemberRow), "rows of this entity"
            self._members.setdefault(member.group, set()).add(member.member_id)
            self._reached[_reached(member)] += 1
        self._commits: dict[str, int] = {}
        """Number of each group's offsets, both committed and pending."""
        for group, *_ in image.map(Entity.CONSUMER_OFFSET):
            self._count(str(group), 1)
        for _, group, *_ in image.map(Entity.PENDING_OFFSET):
            self._count(str(group), 1)

    def _count(self, group: str, added: int) -> int:
        count = self._commits.pop(group, 0) + added
        if count:
            self._commits[group] = count
        return count

    def count_commits(self, group: str, added: int, delta: MetadataDelta) -> None:
        """Update the number of a group's offsets, both committed and pending."""
        count = self._count(group, added)
        found = delta.find(GroupRow, group)
        if count and found is None:
            delta.put(_simple_group(group))
        elif not count and found == _simple_group(group):
            delta.delete(Entity.GROUP, (group,))

    def apply(self, key: Message, value: Message | None, delta: MetadataDelta) -> None:
        """Apply a record of a group; other records have no effect."""
        if isinstance(key, GroupMetadataKey):
            if value is None:
                self._remove(key.group, delta)
            elif isinstance(value, GroupMetadataValue):
                self._put_classic(key.group, value, delta)
        elif isinstance(key, GroupKey) and type(key) in _TYPES:
            self._apply(key, value, _TYPES[type(key)], delta)

    def _apply(self, key: GroupKey, value: Message | None, kind: str, delta: MetadataDelta) -> None:
        """Apply a record of a group that is not classic."""
        found = delta.find(GroupRow, key.group_id)
        if found is None or found.type != kind:
            if value is None:
                return
            found = self._begin(key.group_id, kind, delta)
        if isinstance(value, _Group):
            found = replace(found, epoch=value.epoch)
        elif isinstance(value, _Target):
            found = replace(found, assignment_epoch=value.assignment_epoch)
        elif isinstance(key, GroupMemberKey):
            self._apply_to_member(key, value, delta)
        elif isinstance(key, _GROUP_KEYS):
            self._remove(key.group_id, delta)
            return
        else:
            found = replace(found, assignment_epoch=None)
        self._refresh(found, delta)

    def _apply_to_member(
        self, key: GroupMemberKey, value: Message | None, delta: MetadataDelta
    ) -> None:
        if isinstance(value, _Member):
            self._put_member(_with_client(self._member(key, delta), value), delta)
        elif isinstance(value, _Assignment):
            self._put_member(_with_assignment(self._member(key, delta), value), delta)
        elif isinstance(key, _MEMBER_KEYS):
            self._delete_member(key.group_id, key.member_id, delta)
        elif key.member_id in self._members.get(key.group_id, ()):
            self._put_member(_with_assignment(self._member(key, delta), None), delta)

    # --- Groups -----------------------------------------------------------------------------------

    def _begin(self, group: str, kind: str, delta: MetadataDelta) -> GroupRow:
        """Begin a group of a type, replacing a group of another type."""
        self._delete_members(group, delta)
        return replace(
            _simple_group(group), type=kind, protocol_type=_PROTOCOL_TYPES[kind], epoch=0
        )

    def _remove(self, group: str, delta: MetadataDelta) -> None:
        """Delete a group, or replace it with a simple one if it has offsets."""
        self._delete_members(group, delta)
        simple = _simple_group(group)
        has_commits = group in self._commits
        if has_commits and delta.find(GroupRow, group) == simple:
            return
        delta.delete(Entity.GROUP, (group,))
        if has_commits:
            delta.put(simple)

    def _put_classic(self, group: str, value: GroupMetadataValue, delta: MetadataDelta) -> None:
        """Write a classic group, whose record was written when the group was stable or empty."""
        members = {
            one.member_id: _classic_member(group, one, value.protocol_type == PROTOCOL_TYPE)
            for one in value.members
        }
        for member_id in sorted(self._members.get(group, set()) - members.keys()):
            self._delete_member(group, member_id, delta)
        for member in members.values():
            self._put_member(member, delta)
        delta.put(
            GroupRow(
                group=group,
                type=CLASSIC,
                protocol_type=value.protocol_type,
                state="Stable" if members else "Empty",
                epoch=value.generation,
                assignment_epoch=None,
                protocol=value.protocol,
                leader=value.leader,
                member_count=len(members),
            )
        )

    def _refresh(self, group: GroupRow, delta: MetadataDelta) -> None:
        """Write a group that is not classic, with its state, if the row changes."""
        members = self._members.get(group.group, set())
        after = replace(group, member_count=len(members), state=self._state(group, len(members)))
        if delta.find(GroupRow, group.group) != after:
            delta.put(after)

    def _state(self, group: GroupRow, member_count: int) -> str | None:
        """Return a group's state, which for streams groups also depends on the cluster's topics."""
        if not member_count:
            return "Empty"
        if group.type == SHARE:
            return "Stable"
        if group.type == STREAMS:
            return None
        if group.epoch > (group.assignment_epoch or 0):
            return "Assigning"
        reached = self._reached[group.group, _STABLE, group.assignment_epoch]
        return "Stable" if reached == member_count else "Reconciling"

    # --- Members ----------------------------------------------------------------------------------

    def _member(self, key: GroupMemberKey, delta: MetadataDelta) -> GroupMemberRow:
        """Return a member, which has no record yet if it is new."""
        found = delta.find(GroupMemberRow, key.group_id, key.member_id)
        return _new_member(key.group_id, key.member_id) if found is None else found

    def _put_member(self, member: GroupMemberRow, delta: MetadataDelta) -> None:
        before = delta.find(GroupMemberRow, *member.key)
        if before == member:
            return
        delta.put(member)
        if before is None:
            self._members.setdefault(member.group, set()).add(member.member_id)
        else:
            self._left(before)
        self._reached[_reached(member)] += 1

    def _delete_member(self, group: str, member_id: str, delta: MetadataDelta) -> None:
        before = delta.find(GroupMemberRow, group, member_id)
        if before is None:
            return
        delta.delete(Entity.GROUP_MEMBER, before.key)
        self._left(before)
        members = self._members[group]
        members.remove(member_id)
        if not members:
            del self._members[group]

    def _left(self, before: GroupMemberRow) -> None:
        """Record that a member has left this state and epoch."""
        key = _reached(before)
        self._reached[key] -= 1
        if not self._reached[key]:
            del self._reached[key]

    def _delete_members(self, group: str, delta: MetadataDelta) -> None:
        for member_id in sorted(self._members.get(group, ())):
            self._delete_member(group, member_id, delta)


def _reached(member: GroupMemberRow) -> tuple[str, str | None, int | None]:
    return member.group, member.state, member.epoch


def _simple_group(group: str) -> GroupRow:
    return GroupRow(
        group=group,
        type=CLASSIC,
        protocol_type="",
        state="Empty",
        epoch=0,
        assignment_epoch=None,
        protocol=None,
        leader=None,
        member_count=0,
    )


def _new_member(group: str, member_id: str) -> GroupMemberRow:
    return GroupMemberRow(
        group=group,
        member_id=member_id,
        instance_id=None,
        client_id="",
        client_host="",
        rack_id=None,
        epoch=None,
        state=None,
        topics=(),
        topic_regex=None,
        assignment=(),
    )


def _with_client(member: GroupMemberRow, value: _Member) -> GroupMemberRow:
    """Return a member with the data that its client has sent."""
    regex = None
    topics: tuple[str, ...] = ()
    if not isinstance(value, StreamsGroupMemberMetadataValue):
        topics = tuple(sorted(value.subscribed_topic_names))
    if isinstance(value, ConsumerGroupMemberMetadataValue):
        regex = value.subscribed_topic_regex or None
    return replace(
        member,
        instance_id=None if isinstance(value, ShareGroupMemberMetadataValue) else value.instance_id,
        client_id=value.client_id,
        client_host=value.client_host,
        rack_id=value.rack_id,
        topics=topics,
        topic_regex=regex,
    )


def _with_assignment(member: GroupMemberRow, value: _Assignment | None) -> GroupMemberRow:
    """Return a member with its assignment; None: without one."""
    match value:
        case None:
            return replace(member, epoch=None, state=None, assignment=())
        case StreamsGroupCurrentMemberAssignmentValue():
            names = STREAMS_MEMBER_STATES
            assignment = tuple(
                _partitions(one.partitions, subtopology_id=one.subtopology_id)
                for one in value.active_tasks
            )
        case _:
            names = MEMBER_STATES
            assignment = tuple(
                _partitions(one.partitions, topic_id=one.topic_id)
                for one in value.assigned_partitions
            )
    state = enum_name(names, value.state)
    return replace(member, epoch=value.member_epoch, state=state, assignment=assignment)


def _partitions(
    numbers: tuple[int, ...],
    *,
    topic: str | None = None,
    topic_id: str | None = None,
    subtopology_id: str | None = None,
) -> MemberPartitions:
    return MemberPartitions(topic, topic_id, subtopology_id, tuple(sorted(numbers)))


def _classic_member(group: str, member: MemberMetadata, is_consumer: bool) -> GroupMemberRow:
    subscription = parse_protocol("subscription", member.subscription) if is_consumer else None
    assignment = parse_protocol("assignment", member.assignment) if is_consumer else None
    topics: tuple[str, ...] = ()
    rack_id = None
    if subscription is not None and isinstance(subscription[1], ConsumerProtocolSubscription):
        topics, rack_id = tuple(sorted(subscription[1].topics)), subscription[1].rack_id
    partitions: tuple[MemberPartitions, ...] = ()
    if assignment is not None and isinstance(assignment[1], ConsumerProtocolAssignment):
        partitions = tuple(
            _partitions(one.partitions, topic=one.topic)
            for one in assignment[1].assigned_partitions
        )
    return replace(
        _new_member(group, member.member_id),
        instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rack_id=rack_id,
        topics=topics,
        assignment=partitions,
    )
