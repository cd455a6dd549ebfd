"""Buckets of a log's records: each record changes rows of one bucket, so buckets replay separately.

Rules of this file:

1. A topic, its partitions and its configs are in the bucket of the topic's name. ``CLUSTER``
   contains everything else, including each record that replay rejects because it does not find the
   topic.
2. Markers of metadata transactions belong to every bucket, NoOps to none.
3. Rows of a topic id have the same key under all of its names, so the buckets of these names are
   joined. Records that were routed before are routed again.
4. A record that changes rows of several buckets cannot be split (``UnsplitRecordError``). It is
   left to a replay of the whole log.
5. Positions of fields derive from the declared schemas. A value with another encoding is decoded.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from raftlog_state.image.rows import Entity
from raftlog_state.records import (
    ClearElrRecord,
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Redactor,
    RemoveTopicRecord,
    TopicRecord,
    decode,
)
from raftlog_state.records.declare import Scalar
from raftlog_state.records.scalars import UUID_BYTES, uuid_bytes
from raftlog_state.records.typed_columns import (
    FRAME_BYTES,
    TypedColumns,
    frames,
    no_ops,
    typed_columns,
)
from raftlog_state.replay.topic_records import MARKER_KEYS
from raftlog_state.replay.topics import CONFIG_OF_TOPIC

from .stored_rows import StateParts
from .stores.protocol import mask_of

pc: Any = pyarrow.compute  # pyarrow creates its functions at import, unseen by type checkers

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NO_BUCKET: Final = -1
EVERY_BUCKET: Final = -2
CLUSTER: Final = -3
"""Bucket of the rows that belong to no topic."""

_WITH_NAMES: Final = (TopicRecord, ConfigRecord, ClearElrRecord)
_NAMES_ONLY: Final = Redactor(reveal=True)
"""Only names and ids of records are read, not values, which may be secret."""
_SIZES: Final = {Scalar.INT32: 4, Scalar.INT64: 8, Scalar.INT16: 2, Scalar.INT8: 1}


class UnsplitRecordError(Exception):
    """Record that changes rows of several buckets; ``row`` is its number among the values."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


class Buckets:
    """Buckets of topics' names, some of which are joined to the first of them."""

    def __init__(self, bucket_count: int) -> None:
        self.joined = list(range(bucket_count))
        """The bucket to which each one is joined: itself if it is not joined."""

    def of_name(self, name: str) -> int:
        """Return the bucket of a topic's name."""
        number = zlib.crc32(name.encode("utf-8", "surrogatepass")) % len(self.joined)
        return self.joined[number]

    def of_names(self, names: pa.ChunkedArray) -> Int32s:
        """Return the bucket of each name."""
        if not len(names):
            return np.empty(0, dtype=np.int32)
        encoded = names.combine_chunks().dictionary_encode()
        buckets = [*map(self.of_name, encoded.dictionary.to_pylist())]
        found: Int32s = np.array(buckets, dtype=np.int32)[encoded.indices.to_numpy()]
        return found

    def join(self, one: int, other: int) -> None:
        """Join two buckets, and those that are joined to them."""
        pair = {self.joined[one], self.joined[other]}
        self.joined = [min(pair) if bucket in pair else bucket for bucket in self.joined]


class TopicBuckets:
    """Buckets of records in log order, starting with the topics before them."""

    def __init__(self, buckets: Buckets, topics: Iterable[tuple[str, str]] = ()) -> None:
        """``topics``: id and name of each topic before the first record."""
        self._buckets = buckets
        self._of_ids = {_id_bytes(id_): buckets.of_name(name) for id_, name in topics}

    def buckets(self, values: pa.BinaryArray, is_control: Bools) -> Int32s:
        """Return the bucket of each record: a topic's, or one of the constants above.

        Raises:
            UnsplitRecordError: a record changes rows of several buckets.
            MetadataParseError: a value is damaged.
        """
        if is_control.any():
            kept = pc.if_else(pa.array(is_control), pa.scalar(None, pa.binary()), values)
            values = kept.combine_chunks() if isinstance(kept, pa.ChunkedArray) else kept
        api_keys, versions = frames(values)
        found = np.full(len(values), CLUSTER, dtype=np.int32)
        found[np.isin(api_keys, MARKER_KEYS)] = EVERY_BUCKET
        found[no_ops(values, api_keys)] = NO_BUCKET
        typed = typed_columns(values, _WITH_NAMES, _NAMES_ONLY)
        for row, topic_id, name in _rows(typed[TopicRecord], "topic_id", "name"):
            found[row] = self._add(topic_id, name)
        # A record before that of its topic is rejected in any bucket.
        rows, ids, which = _topic_ids(values, api_keys, versions)
        of_ids = [self._of_ids.get(topic_id, CLUSTER) for topic_id in ids]
        found[rows] = np.array(of_ids, dtype=np.int32)[which]
        configs = typed[ConfigRecord]
        of_topics = pc.equal(configs.fields.field("resource_type"), CONFIG_OF_TOPIC)
        names = configs.fields.field("resource_name").filter(of_topics)
        of_configs = configs.rows[of_topics.to_numpy(zero_copy_only=False)]
        found[of_configs] = self._buckets.of_names(pa.chunked_array([names]))
        for row, name in _rows(typed[ClearElrRecord], "topic_name"):
            if not name:
                raise UnsplitRecordError(row)
            found[row] = self._buckets.of_name(name)
        return found

    def _add(self, topic_id: str, name: str) -> int:
        """Return the bucket of a new topic, after joining that of an earlier topic with its id."""
        bucket = self._buckets.of_name(name)
        known = self._of_ids.setdefault(_id_bytes(topic_id), bucket)
        if known != bucket:
            self._buckets.join(known, bucket)
        return bucket


def rows_of_bucket(parts: StateParts, bucket: int, named: Buckets) -> StateParts:
    """Return the rows of ``state`` that belong to a bucket."""
    others, partitions = parts
    buckets = np.full(others.num_rows, CLUSTER, dtype=np.int32)
    for entity, name in ((Entity.TOPIC, "name"), (Entity.CONFIG, "resource_name")):
        of_topics = mask_of(others, ("entity", "=", str(entity)))
        if entity is Entity.CONFIG:
            kinds = pc.struct_field(others["row"], [str(entity), "resource_type"])
            of_topics = pc.and_(of_topics, pc.equal(kinds, CONFIG_OF_TOPIC))
        which = np.flatnonzero(pc.fill_null(of_topics, fill_value=False).to_numpy())
        names = pc.struct_field(others["row"], [str(entity), name]).take(pa.array(which))
        buckets[which] = named.of_names(names)
    names = pc.struct_field(partitions["row"], [str(Entity.PARTITION), "topic_name"])
    of_partitions = named.of_names(names)
    return StateParts(
        others=others.filter(pa.array(buckets == bucket)),
        partitions=partitions.filter(pa.array(of_partitions == bucket)),
    )


def topics_of(parts: StateParts) -> Iterator[tuple[str, str]]:
    """Return id and name of each topic in rows of ``state``."""
    of_topics = parts.others.filter(mask_of(parts.others, ("entity", "=", str(Entity.TOPIC))))
    columns = (
        pc.struct_field(of_topics["row"], [str(Entity.TOPIC), name]).to_pylist()
        for name in ("topic_id", "name")
    )
    return zip(*columns, strict=True)


def _topic_ids(
    values: pa.BinaryArray, api_keys: Int32s, versions: Int32s
) -> tuple[Int64s, list[bytes], Int64s]:
    """Return the rows whose records name a topic by its id, the ids, and the number of each."""
    kinds = (PartitionRecord, PartitionChangeRecord, RemoveTopicRecord)
    masks = [_is_known(api_keys, versions, kind) for kind in kinds]
    rows = np.flatnonzero(np.logical_or.reduce(masks))
    bounds, data = _buffers(values)
    skipped = np.zeros(len(values), dtype=np.int64)
    for kind, mask in zip(kinds, masks, strict=True):
        skipped[mask] = FRAME_BYTES + _bytes_before(kind, "topic_id")
    begins, skipped = bounds[rows], skipped[rows]
    is_plain = bounds[rows + 1] - begins >= skipped + UUID_BYTES
    at = np.where(is_plain, begins, 0)
    is_plain &= (data[at + 1] == api_keys[rows]) & (data[at + 2] == versions[rows])
    ids = np.zeros((len(rows), UUID_BYTES), dtype=np.uint8)
    ids[is_plain] = data[(begins + skipped)[is_plain, None] + np.arange(UUID_BYTES)]
    for number in np.flatnonzero(~is_plain).tolist():
        record: Any = decode(values[int(rows[number])].as_py()).record
        ids[number] = np.frombuffer(_id_bytes(record.topic_id), dtype=np.uint8)
    column = pa.Array.from_buffers(pa.binary(UUID_BYTES), len(rows), [None, pa.py_buffer(ids)])
    encoded = column.dictionary_encode()
    return rows, encoded.dictionary.to_pylist(), encoded.indices.to_numpy()


def _bytes_before(kind: type[MetadataRecord], attribute: str) -> int:
    """Return the size of the fields before a field, which is fixed in all versions."""
    size = 0
    for entry in kind.schema.fields:
        if entry.attribute == attribute:
            return size
        assert entry.tag is None, "its size is fixed"
        assert entry.since == 0, "it is in all versions"
        assert isinstance(entry.kind, Scalar), "it has a fixed size"
        size += _SIZES[entry.kind]
    raise AssertionError("the record has the field")


def _is_known(api_keys: Int32s, versions: Int32s, kind: type[MetadataRecord]) -> Bools:
    """Return which values are of a type, in a version that is known."""
    schema = kind.schema
    is_kind: Bools = (api_keys == schema.api_key) & (versions <= schema.latest_version)
    return is_kind


def _rows(typed: TypedColumns, *names: str) -> Iterator[tuple[Any, ...]]:
    """Yield each record's row and these fields."""
    columns = (typed.fields.field(name).to_pylist() for name in names)
    return zip(typed.rows.tolist(), *columns, strict=True)


def _buffers(values: pa.BinaryArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int32)[values.offset :][: len(values) + 1]
    return bounds.astype(np.int64), np.frombuffer(data or b"", dtype=np.uint8)


def _id_bytes(topic_id: str) -> bytes:
    found = uuid_bytes(topic_id)
    assert found is not None, "ids are decoded"
    return found
