"""Errors passed through Spark: a text with all fields, parsed into the same error."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest

import pyspark_raftlog
from pyspark_raftlog import errors as spark_errors
from pyspark_raftlog.errors import RaftlogWriteError, as_spark_error, spark_text
from raftlog import errors
from raftlog.client import errors as client_errors
from raftlog_state import errors as state_errors

EXAMPLES = {
    "int": 7,
    "str": 'words "<msg>" {} $1 \\ ) \n ä',
    "bool": True,
    "tuple[int, ...]": (1, 2),
}
KINDS = [
    kind
    for module in (errors, client_errors, state_errors, spark_errors)
    for _, kind in inspect.getmembers(module, inspect.isclass)
    if issubclass(kind, errors.RaftlogError)
    and kind.__module__ == module.__name__
    and all(str(field.type).removesuffix(" | None") in EXAMPLES for field in fields(kind))
]
CONFLICT = errors.UnexpectedEndOffsetError(
    required_base_offset=3, record_count=2, log_end_offset=41
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_is_restored_from_sparks_text(kind: type[errors.RaftlogError]) -> None:
    facts = {
        field.name: EXAMPLES[str(field.type).removesuffix(" | None")] for field in fields(kind)
    }
    error = kind(**facts)
    kept = f"[PYTHON_DATA_SOURCE_ERROR] Failed:\n  File x\nE: {spark_text(error)}\n SQLSTATE: 38000"
    found = pyspark_raftlog.typed_error(RuntimeError(kept))
    assert type(found) is kind
    assert {name: getattr(found, name) for name in facts} == facts
    assert str(error) in kept


def test_a_conflict_has_the_end_offset_of_the_log() -> None:
    found = pyspark_raftlog.conflict(RuntimeError(spark_text(CONFLICT)))
    assert found is not None
    assert (found.required_base_offset, found.log_end_offset) == (3, 41)
    assert found.next_available_offset == 42


def test_an_error_that_is_the_cause_of_another_is_found() -> None:
    outer = ValueError("outer")
    outer.__cause__ = CONFLICT
    assert pyspark_raftlog.conflict(outer) is CONFLICT
    assert pyspark_raftlog.typed_error(CONFLICT) is CONFLICT


def test_another_failure_is_no_conflict() -> None:
    closed = errors.LogClosedError(reason="it is over")
    assert pyspark_raftlog.conflict(RuntimeError(spark_text(closed))) is None
    for text in (
        "anything",
        str(CONFLICT),
        "raftlog-facts {",
        "raftlog-facts []",
        'raftlog-facts {"code":"RAFTLOG_OF_A_LATER_RELEASE"}',
        'raftlog-facts {"code":"RAFTLOG_LOG_CLOSED","colour":1}',
    ):
        assert pyspark_raftlog.typed_error(RuntimeError(text)) is None


def test_a_foreign_commit_names_the_option_that_takes_over() -> None:
    error = errors.ForeignCommitError(
        application_id="a", query_id="q2", version=0, last_query_id="q1", last_version=8
    )
    assert "option txnTakeOverFrom=q1" in spark_text(error)


def test_only_raftlogs_own_errors_are_restored() -> None:
    with pytest.raises(RaftlogWriteError, match=r"^\[RAFTLOG_UNEXPECTED_END"), as_spark_error():
        raise CONFLICT
    with pytest.raises(ZeroDivisionError), as_spark_error():
        _ = 1 / 0
