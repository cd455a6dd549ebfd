"""Columns of row versions as numbers for their values, which numpy compares and fills."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from raftlog.types import ZERO_UUID

pc: Any = pyarrow.compute  # pyarrow creates its functions at import, unseen by type checkers

Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

NULL: Final = -1
"""Code of a null."""
_INT_BYTES: Final = 4
_UUID_CHARS: Final = len(ZERO_UUID)
_BYTES_MAX: Final = 2**31 - 1
"""Largest size of the bytes of a text array."""


class NotPlainError(Exception):
    """Records or rows that are not replayed by columns."""


def require(*, is_plain: bool | np.bool) -> None:
    """Raise ``NotPlainError`` unless a condition holds."""
    if not is_plain:
        raise NotPlainError


def distinct(keys: Int64s) -> Int64s:
    """Return distinct numbers in ascending order; ``np.unique`` hashes them, which takes longer."""
    found = np.sort(keys)
    is_first = np.ones(len(found), np.bool_)
    is_first[1:] = found[1:] != found[:-1]
    return found[is_first]


def are_among(keys: Int64s, others: Int64s) -> Bools:
    """Return which numbers are among others; ``np.isin`` takes longer for large ones."""
    if not len(others):
        return np.zeros(len(keys), np.bool_)
    ordered = np.sort(others)
    at = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
    found: Bools = ordered[at] == keys
    return found


class Coded(NamedTuple):
    """Column as codes of its distinct values: equal values have equal codes."""

    values: pa.Array
    codes: Int64s

    def at(self, rows: Int64s) -> Coded:
        """Return the column at these rows."""
        return Coded(self.values, self.codes[rows])

    def in_order(self) -> Coded:
        """Return the column with codes in the order of their values."""
        order = pc.sort_indices(self.values)
        ranks = np.empty(len(order), dtype=np.int64)
        ranks[order.to_numpy()] = np.arange(len(order))
        return Coded(self.values.take(order), ranks[self.codes])


Column: TypeAlias = Coded | pa.Array
"""An array contains 32-bit numbers and no null."""


def text(value: str) -> pa.Scalar:
    """Return an argument for Arrow's functions. For an untyped one, Arrow imports ``dateutil``.

    Where that is not installed, each such import searches all of Python's path.
    """
    return pa.scalar(value, pa.string())


def coded(*parts: pa.Array | pa.ChunkedArray) -> Coded:
    """Return the joined parts of a text column; nulls have the code ``NULL``."""
    chunks = [chunk for part in parts for chunk in _chunks(part)]
    encoded = pa.chunked_array(chunks, pa.string()).combine_chunks().dictionary_encode()
    return Coded(encoded.dictionary, _codes(encoded))


def numbers(*parts: pa.Array | pa.ChunkedArray) -> Int64s:
    """Return the joined parts of a column of whole numbers.

    Raises:
        NotPlainError: one of them is null.
    """
    require(is_plain=not any(part.null_count for part in parts))
    return np.concatenate([np.asarray(part.to_numpy(), dtype=np.int64) for part in parts])


class Lists(NamedTuple):
    """Column of lists as codes of its distinct lists, with each list's number of elements."""

    lists: Coded
    lengths: Int64s

    def with_codes(self, codes: Int64s) -> Lists:
        """Return a column of its values."""
        return Lists(Coded(self.lists.values, codes), self.lengths)

    def with_lists(self, added: Sequence[Sequence[Any]]) -> tuple[Lists, Int64s]:
        """Return the column with more values, which must not be among its own, and their codes."""
        more = pa.array(added, self.lists.values.type)
        values = pa.concat_arrays([self.lists.values, more])
        codes = np.arange(len(self.lengths), len(values), dtype=np.int64)
        lengths = np.concatenate([self.lengths, np.array([*map(len, added)], dtype=np.int64)])
        return Lists(Coded(values, self.lists.codes), lengths), codes

    def with_empty(self) -> tuple[Lists, int]:
        """Return the column with the empty list among its values, and that list's code."""
        [found] = np.nonzero(self.lengths == 0)
        if len(found):
            return self, int(found[0])
        added, [code] = self.with_lists([()])
        return added, int(code)

    def consist_of(self, element: Any) -> Bools:
        """Return which distinct lists contain no other element."""
        values = self.lists.values
        element = pa.scalar(element, values.type.value_type)
        sums = np.cumsum(pc.equal(values.flatten(), element).to_numpy(zero_copy_only=False))
        sums = np.concatenate([[0], sums])
        ends = np.cumsum(self.lengths)
        found: Bools = sums[ends] - sums[ends - self.lengths] == self.lengths
        return found


def coded_lists(kind: pa.DataType, parts: Iterable[pa.Array | pa.ChunkedArray]) -> Lists:
    """Return the joined parts of a column of lists of 32-bit numbers or uuids.

    Raises:
        NotPlainError: an element is null.
    """
    lists = [chunk for part in parts for chunk in _chunks(part)]
    if not any(map(_has_elements, lists)):  # hardly any partition is being moved
        return _empty_lists(kind, lists)
    is_text = pa.types.is_string(kind.value_type)
    size = _UUID_CHARS if is_text else _INT_BYTES
    chunks = [_as_bytes(chunk, size, is_text=is_text) for chunk in lists]
    encoded = pa.chunked_array(chunks, pa.large_binary()).combine_chunks().dictionary_encode()
    ends, data = _bounds(encoded.dictionary, np.int64)
    require(is_plain=ends[-1] <= _BYTES_MAX)
    count = int(ends[-1]) // size
    if is_text:
        text_ends = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * size)
        elements = pa.Array.from_buffers(pa.string(), count, [None, text_ends, data])
    else:
        elements = pa.Array.from_buffers(pa.int32(), count, [None, data])
    list_ends = pa.array((ends // size).astype(np.int32))
    values = pa.ListArray.from_arrays(list_ends, elements, type=kind)
    return Lists(Coded(values, _codes(encoded)), np.diff(ends) // size)


def _has_elements(lists: pa.ListArray) -> bool:
    return bool(lists.null_count < len(lists) and lists.offsets[-1] != lists.offsets[0])


def _empty_lists(kind: pa.DataType, parts: Sequence[pa.ListArray]) -> Lists:
    """Return lists that are all null or without elements."""
    is_valid = [part.is_valid().to_numpy(zero_copy_only=False) for part in parts]
    codes = np.where(np.concatenate([np.zeros(0, np.bool_), *is_valid]), 0, NULL)
    return Lists(Coded(pa.array([[]], kind), codes.astype(np.int64)), np.zeros(1, np.int64))


def _as_bytes(lists: pa.ListArray, size: int, *, is_text: bool) -> pa.Array:
    """Return the bytes of each list's elements, which have a fixed size."""
    elements = lists.values
    require(is_plain=elements.null_count == 0)
    bounds = np.asarray(lists.offsets.to_numpy(), dtype=np.int64)
    if is_text:
        ends, data = _bounds(elements, np.int32)
        require(is_plain=np.all(np.diff(ends) == size))
        first = int(ends[0])
    else:
        first, data = elements.offset * size, elements.buffers()[1]
    is_valid = pa.array(lists.is_valid().to_numpy(zero_copy_only=False)).buffers()[1]
    ends = pa.py_buffer(first + bounds * size)
    return pa.Array.from_buffers(pa.large_binary(), len(lists), [is_valid, ends, data])


def _bounds(texts: pa.Array, kind: type[np.signedinteger[Any]]) -> tuple[Int64s, pa.Buffer]:
    """Return the bounds of a text array's values in its data, and the data."""
    _, bounds, data = texts.buffers()
    if not len(texts):
        return np.zeros(1, dtype=np.int64), pa.py_buffer(b"")
    ends = np.frombuffer(bounds, kind)[texts.offset : texts.offset + len(texts) + 1]
    return ends.astype(np.int64), data


def _chunks(part: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return list(part.chunks) if isinstance(part, pa.ChunkedArray) else [part]


def _codes(encoded: pa.DictionaryArray) -> Int64s:
    filled = encoded.indices.fill_null(NULL)
    return np.asarray(filled.to_numpy(), dtype=np.int64)
