"""Frozen values with compiled constructors: these behave as those of ``dataclasses``."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from typing import Any

import pytest

from raftlog.append import AppendResult
from raftlog.log.format.directory import Published
from raftlog.log.reading.transactions import BatchMetadata
from raftlog.log.writing.active_segment import PendingSync
from raftlog.quorum.effects import ReplyWithRecords, Send
from raftlog.quorum.messages import FetchRequest, FetchResponse
from raftlog.quorum.request_manager import InFlightRequest
from raftlog.records.batch import RecordBatch

KINDS = (
    AppendResult,
    BatchMetadata,
    FetchRequest,
    FetchResponse,
    InFlightRequest,
    PendingSync,
    Published,
    RecordBatch,
    ReplyWithRecords,
    Send,
)


def declared_again(kind: Any) -> Any:
    """Return a class with the same fields, whose constructor is that of ``dataclasses``."""
    fields = [
        (
            one.name,
            one.type,
            dataclasses.field(default=one.default, repr=one.repr, kw_only=one.kw_only),
        )
        for one in dataclasses.fields(kind)
    ]
    return dataclasses.make_dataclass(kind.__qualname__, fields, frozen=True, slots=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_is_that_of_the_constructor_of_dataclasses(kind: Any) -> None:
    oracle = declared_again(kind)
    fields = dataclasses.fields(kind)
    required = {one.name: 7 for one in fields if one.default is dataclasses.MISSING}
    for given in (required, {one.name: ordinal for ordinal, one in enumerate(fields)}):
        built, expected = kind(**given), oracle(**given)
        assert type(built) is kind
        assert dataclasses.astuple(built) == dataclasses.astuple(expected)
        assert repr(built) == repr(expected)
        assert hash(built) == hash(built if kind is PendingSync else expected)
        for other in (
            copy.copy(built),
            pickle.loads(pickle.dumps(built)),
            dataclasses.replace(built),
        ):
            assert type(other) is kind
            assert dataclasses.astuple(other) == dataclasses.astuple(built)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(built, fields[0].name, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_parameters_are_those_of_the_constructor_of_dataclasses(kind: Any) -> None:
    expected = inspect.signature(declared_again(kind)).parameters
    assert inspect.signature(kind).parameters == expected
    for arguments, names in (((), {}), ((), {"unknown": 1}), (range(30), {})):
        with pytest.raises(TypeError) as raised:
            kind(*arguments, **names)
        assert str(raised.value).startswith(f"{kind.__qualname__}.__init__() ")
