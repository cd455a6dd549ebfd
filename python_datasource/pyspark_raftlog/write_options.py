"""Options of the sink: names, defaults and validation, as in ``options``.

Options of the source are errors. Contradictions are errors before any task runs: a stream's
transaction version is its batch id, so it accepts neither a version nor a required offset.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from raftlog import CommitName
from raftlog.client.location import QuorumNodes
from raftlog.errors import OptionError

from .connection import CONNECTION_OPTIONS, take_location
from .option_values import Parse, byte_count, integer, text
from .options import OPTIONS, WRITE_ONLY_OPTIONS, is_spark_option, unknown_option

_EPOCH_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Validated options of a write; None if an option is not set.

    ``RaftlogDataSource`` documents each option.
    """

    path: str
    nodes: QuorumNodes | None = None
    required_base_offset: int | None = None
    required_end_offset: int | None = None
    required_epoch: int | None = None
    txn_app_id: str | None = None
    txn_version: int | None = None
    txn_take_over_from: str | None = None
    max_bytes_per_commit: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """Parse Spark's options, with an absolute path.

        Raises ``OptionError``: a name is unknown or for reads only, a value is invalid, two options
        contradict each other, or there is no path.
        """
        given: dict[str, Any] = {}
        for raw_name, value in options.items():
            if is_spark_option(raw_name):
                continue
            name, attribute, parse = _find(raw_name)
            given[attribute] = parse(name, value)
        location = take_location(given, "call save(path) or start(path)")
        path = location.path
        if location.nodes is None:
            path = os.path.abspath(path.removeprefix("file:"))
        return cls(path=path, nodes=location.nodes, **given)

    def __post_init__(self) -> None:
        if self.txn_app_id is not None:
            _check_id("txnAppId", self.txn_app_id)
        if self.txn_take_over_from is not None:
            _check_id("txnTakeOverFrom", self.txn_take_over_from)
            if self.txn_app_id is None:
                raise OptionError(
                    option="txnTakeOverFrom", reason="requires txnAppId, which is not set"
                )

    def check_batch(self) -> None:
        """Raise ``OptionError`` for options that are invalid in a batch."""
        if (self.txn_app_id is None) != (self.txn_version is None):
            missing, given = ("txnVersion", "txnAppId")
            if self.txn_app_id is None:
                missing, given = given, missing
            raise OptionError(option=missing, reason=f"is missing: {given} requires it")

    def check_stream(self) -> None:
        """Raise ``OptionError`` for options that are invalid in a stream."""
        for name, value in (
            ("requiredBaseOffset", self.required_base_offset),
            ("requiredEndOffset", self.required_end_offset),
        ):
            if value is not None:
                raise OptionError(
                    option=name,
                    reason="is allowed in batch writes only: micro-batches have different offsets; "
                    "use foreachBatch to set it for each of them",
                )
        if self.txn_version is not None:
            raise OptionError(
                option="txnVersion",
                reason="is allowed in batch writes only: in a stream it is the batch id",
            )

    def batch_commit(self) -> CommitName | None:
        """Return the commit name of a batch write, whose query id is its ``txnAppId``."""
        if self.txn_app_id is None or self.txn_version is None:
            return None
        return CommitName(self.txn_app_id, self.txn_app_id, self.txn_version)

    def stream_commit(self, query_id: str, batch_id: int) -> CommitName:
        """Return the commit name of a micro-batch."""
        return CommitName(self.txn_app_id or query_id, query_id, batch_id)


def _check_id(option: str, value: str) -> None:
    try:
        CommitName(value, value, 0)
    except OptionError as error:
        raise OptionError(option=option, reason=error.reason) from None


_WRITE_OPTIONS: Final[Mapping[str, tuple[str, Parse]]] = {
    **CONNECTION_OPTIONS,
    "requiredBaseOffset": ("required_base_offset", integer(0)),
    "requiredEndOffset": ("required_end_offset", integer(0)),
    "requiredEpoch": ("required_epoch", integer(1, _EPOCH_MAX)),
    "txnAppId": ("txn_app_id", text),
    "txnVersion": ("txn_version", integer(0)),
    "txnTakeOverFrom": ("txn_take_over_from", text),
    "maxBytesPerCommit": ("max_bytes_per_commit", byte_count),
}
"""Documented name to field of ``WriteOptions`` and parser."""

assert {*CONNECTION_OPTIONS, *WRITE_ONLY_OPTIONS} == set(_WRITE_OPTIONS)

_BY_KEY: Final = {name.lower(): name for name in _WRITE_OPTIONS}
_READING_KEYS: Final = {name.lower(): name for name in OPTIONS}


def _find(raw_name: str) -> tuple[str, str, Callable[[str, str], Any]]:
    key = raw_name.lower()
    if key in _BY_KEY:
        name = _BY_KEY[key]
        attribute, parse = _WRITE_OPTIONS[name]
        return name, attribute, parse
    if key in _READING_KEYS:
        raise OptionError(option=_READING_KEYS[key], reason="is allowed in reads only")
    raise unknown_option(raw_name, _WRITE_OPTIONS)
