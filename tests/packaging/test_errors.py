"""Errors keep their fields when they are pickled, and have their code in their text."""

from __future__ import annotations

import inspect
import pickle
import re
from dataclasses import fields

import pytest

from pyspark_raftlog import errors as spark_errors
from raftlog import errors
from raftlog.client import errors as client_errors
from raftlog.log.writing import quorum_log
from raftlog.node import errors as node_errors
from raftlog.node import survivor
from raftlog.storage import errors as storage_errors
from raftlog.wire import errors as wire_errors
from raftlog_state import errors as state_errors

KINDS = [
    kind
    for module in (
        *(errors, storage_errors, client_errors, wire_errors, node_errors, survivor, state_errors),
        *(quorum_log, spark_errors),
    )
    for _, kind in inspect.getmembers(module, inspect.isclass)
    if issubclass(kind, errors.RaftlogError) and kind.__module__ == module.__name__
]


def instance(kind: type[errors.RaftlogError]) -> errors.RaftlogError:
    """Fill every field by its declared type."""
    refused = state_errors.RefusedChange(
        row=1, change="words", what="words", reason="words", remedy="words", kafka_code=7
    )
    examples = {
        "int": 7,
        "str": "words",
        "bool": True,
        "tuple[int, ...]": (1, 2),
        "tuple[RefusedChange, ...]": (refused,),
        "Mapping[str, RaftlogError]": {"a": errors.OptionError(option="words", reason="words")},
    }
    facts = {
        field.name: examples[str(field.type).removesuffix(" | None")] for field in fields(kind)
    }
    return kind(**facts)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_survives_pickling(kind: type[errors.RaftlogError]) -> None:
    error = instance(kind)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_errors_text_starts_with_its_stable_code(kind: type[errors.RaftlogError]) -> None:
    assert re.match(r"\[RAFTLOG_[A-Z_]+(\.\w+)?\] ", str(instance(kind)))


def test_codes_are_unique() -> None:
    codes = [kind.code for kind in KINDS]
    assert len(codes) == len(set(codes))


def test_every_error_has_its_origin_in_its_docstring() -> None:
    assert all(kind.__doc__ and not kind.__doc__.startswith(f"{kind.__name__}(") for kind in KINDS)
