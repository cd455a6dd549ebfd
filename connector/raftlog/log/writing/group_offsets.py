"""Committed offsets of consumer groups: a part of a log's producer state.

A commit is a control record of the log itself (``OffsetCommit``). It is therefore replicated,
durable and ordered like all records, and no reader returns it as data. The producer state has the
last commit of each group, and so have producer snapshots and checkpoints. Retention may therefore
delete the record.

A commit of a negative offset deletes its group's commit. Compaction retains it, so that a replica
that has the deleted commit still receives the deletion.

A commit itself occupies an offset. A consumer that has read everything and commits its position
would have to read its own commit and commit again, without end, and its lag would never be 0.
Therefore all offsets after the last batch of data count as one position:

    offset      10     11     12         13         14 = end
    batch       data   data   a commits  b commits
    positions   10     11     12  ==     13  ==     14

Kafka: ``OffsetMetadataManager``, which writes commits to a separate log, ``__consumer_offsets``.
"""

from __future__ import annotations

import itertools
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from raftlog.limits import GROUP_OFFSETS_BYTES_MAX
from raftlog.records.control import OffsetCommit
from raftlog.records.fields import FieldReader, TaggedField, array_bytes, string_bytes

_TAG: Final = 0
"""Tag of the commits in a producer snapshot's trailer (``producer_state``); absent without any."""
_OWNERS_TAG: Final = 1
"""Tag of the groups' owners, in the same order; absent if no group has one."""
_COMMIT: Final = struct.Struct(
    ">"
    "q"  # offset
    "i"  # leader_epoch
    "q"  # commit_timestamp_ms
    "q"  # record_offset
)


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """Last commit of a group, and the offset of its control record."""

    commit: OffsetCommit
    record_offset: int

    @property
    def byte_count(self) -> int:
        """Size of the encoded commit and its owner."""
        return len(self.encode()) + len(self.commit.owner.encode())

    def encode(self) -> bytes:
        """Encode the commit, without its owner."""
        commit = self.commit
        return (
            string_bytes(commit.group)
            + string_bytes(commit.metadata)
            + _COMMIT.pack(
                commit.offset, commit.leader_epoch, commit.commit_timestamp_ms, self.record_offset
            )
        )


class GroupOffsets:
    """Last commit of each group, the least recently written first. Not shared between threads.

    In all methods, ``end_offset`` is the log's end, and ``data_end_offset`` the offset after its
    last batch of data.
    """

    def __init__(self) -> None:
        self._groups: dict[str, GroupOffset] = {}
        self._byte_count = 0
        self._group_counts: Counter[str] = Counter()
        """Number of groups of each owner."""

    def __len__(self) -> int:
        return len(self._groups)

    def copy(self) -> GroupOffsets:
        """Return an independent copy."""
        copied = GroupOffsets()
        copied._groups = self._groups.copy()
        copied._byte_count = self._byte_count
        copied._group_counts = self._group_counts.copy()
        return copied

    def values(self) -> tuple[GroupOffset, ...]:
        """Return the last commits, the least recently written first."""
        return tuple(self._groups.values())

    def commit_of(self, group: str) -> OffsetCommit | None:
        """Return a group's last commit; None if it has none, or if that was evicted."""
        found = self._groups.get(group)
        return None if found is None else found.commit

    def group_count(self, owner: str) -> int:
        """Return the number of groups that a principal has created."""
        return self._group_counts[owner]

    def is_current(self, commit: OffsetCommit, *, data_end_offset: int, end_offset: int) -> bool:
        """Return whether the group has committed this position with this metadata."""
        last = self.commit_of(commit.group)
        if last is None or last.metadata != commit.metadata:
            return False
        if last.offset == commit.offset:
            return last.leader_epoch == commit.leader_epoch
        at = partial(reader_position, data_end_offset=data_end_offset, end_offset=end_offset)
        return at(last.offset) == at(commit.offset)

    # --- batches of the log -----------------------------------------------------------------------

    def add(self, commit: OffsetCommit, record_offset: int) -> None:
        """Apply a commit whose control record has this offset."""
        self._add(GroupOffset(commit, record_offset))

    def _add(self, added: GroupOffset) -> None:
        """Make a commit the most recently written one; evict the oldest while above the bound."""
        self._remove(added.commit.group)
        if added.commit.is_deletion:
            return
        self._byte_count += added.byte_count
        self._group_counts[added.commit.owner] += 1
        self._groups[added.commit.group] = added
        while self._byte_count > GROUP_OFFSETS_BYTES_MAX:
            self._remove(next(iter(self._groups)))

    def _remove(self, group: str) -> None:
        removed = self._groups.pop(group, None)
        if removed is not None:
            self._byte_count -= removed.byte_count
            owner = removed.commit.owner
            self._group_counts[owner] -= 1
            if not self._group_counts[owner]:
                del self._group_counts[owner]

    # --- snapshots --------------------------------------------------------------------------------

    def to_tagged_fields(self, data_end_offset: int) -> tuple[TaggedField, ...]:
        """Return the tagged fields of a producer snapshot's trailer; none without a commit."""
        if not self._groups:
            return ()
        commits = array_bytes(tuple(one.encode() for one in self._groups.values()))
        offsets = TaggedField(_TAG, struct.pack(">q", data_end_offset) + commits)
        if not any(self._group_counts):
            return (offsets,)
        owners = array_bytes(tuple(string_bytes(one.commit.owner) for one in self.values()))
        return offsets, TaggedField(_OWNERS_TAG, owners)

    @classmethod
    def from_tagged_fields(cls, fields: Iterable[TaggedField]) -> tuple[GroupOffsets, int | None]:
        """Parse a trailer's tagged fields; return the commits and the offset after the last batch
        of data, which is None without a commit. Raises ``CorruptBatchError``."""
        found = cls()
        data = {field.tag: field.data for field in fields}
        if _TAG not in data:
            return found, None
        reader = FieldReader(data[_TAG])
        data_end_offset = reader.int64()
        commits = reader.array(_read)
        owners: Iterator[str] = itertools.repeat("")
        if _OWNERS_TAG in data:
            owners = itertools.chain(
                FieldReader(data[_OWNERS_TAG]).array(FieldReader.string), owners
            )
        for one, owner in zip(commits, owners, strict=False):
            found._add(replace(one, commit=one.commit.owned_by(owner)))
        return found, data_end_offset


def reader_position(offset: int, *, data_end_offset: int, end_offset: int) -> int:
    """Return the last offset that is the same position as ``offset`` for a reader: the end of the
    log if no data follows ``offset``, else ``offset`` itself."""
    return end_offset if data_end_offset <= offset <= end_offset else offset


def _read(reader: FieldReader) -> GroupOffset:
    group, metadata = reader.string(), reader.string()
    commit = OffsetCommit(
        group=group,
        metadata=metadata,
        offset=reader.int64(),
        leader_epoch=reader.int32(),
        commit_timestamp_ms=reader.int64(),
    )
    return GroupOffset(commit, reader.int64())
