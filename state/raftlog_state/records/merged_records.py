"""Records that change some fields of a row, such as a partition, merged into one per row.

A busy cluster changes a partition's leader and in-sync replicas many times in a few megabytes of
its log. The state after these changes depends only on the last value of each field and on the
number of changes::

    offset   partition   isr     leader          first   last   isr   leader   changes   leaders
    7        3           1,2                ->   7       9      1     2        3         1
    8        3                   2
    9        3           1
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from raftlog import compiled

from .declare import MetadataRecord, Scalar
from .native_program import program, value_buffers
from .typed_columns import Int32s

_BYTES: Final = {Scalar.INT32: 4, Scalar.INT64: 8, Scalar.UUID: 16}


class MergedRecords(NamedTuple):
    """Records after a merge: their values, and the rows of the first and last record of each.

    ``counts`` are the numbers of records, ``set_counts`` the numbers of those that set the first
    field. For a record that is not merged, with a count of 1, the latter is unknown.
    """

    values: pa.BinaryArray
    first_rows: Int32s
    last_rows: Int32s
    counts: Int32s
    set_counts: Int32s


def merged_records(
    values: pa.BinaryArray,
    rows: Int32s,
    kind: type[MetadataRecord],
    fields: Mapping[str, tuple[int, int]],
) -> MergedRecords | None:
    """Merge the records of ``kind`` in ``rows``: adjacent records of a key into one.

    The key is the fields without a tag. The ``rows``, which ascend, may contain records of other
    types that begin with a key, which end the merge of that key. A record is merged if it sets only
    ``fields``, each to a number within its bounds or to a list of any numbers, and none to its
    default. All other records are in the result unchanged.

    None without the compiled core, and if the core returns the records unmerged.
    """
    if not compiled.is_native or not len(rows):
        return None
    schema = {field.attribute: place for place, field in enumerate(kind.fields_schema)}
    key = [field.kind for field in kind.fields_schema if field.tag is None]
    found = program().merged(
        *value_buffers(values),
        rows.view(np.uint8).data,
        kind.schema.api_key,
        sum(_BYTES[one] for one in key if isinstance(one, Scalar)),
        [(schema[name], *bounds) for name, bounds in fields.items()],
    )
    if found is None:
        return None
    ends, data, *numbers = found
    count = len(numbers[0]) // np.dtype(np.int32).itemsize
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return MergedRecords(
        pa.Array.from_buffers(pa.binary(), count, buffers),
        *(np.frombuffer(memoryview(column), np.int32) for column in numbers),
    )
