"""Dispatch of a record to the replay function of its type.

The replay of a record that may change many rows has steps.
"""

from __future__ import annotations

import functools

from raftlog_state.records import MetadataRecord
from raftlog_state.steps import Steps

from .position import Position, contradiction
from .state import ReplayState


@functools.singledispatch
def replay(record: MetadataRecord, state: ReplayState, at: Position) -> None:
    """Apply a record to ``state``.

    Raises ``ReplayError``, without writing, if the record contradicts the state before it: an
    unknown topic, partition or broker, or another broker epoch.

    Source: Kafka ``MetadataDelta.replay``, with the controller's stricter checks where the broker's
    code would hide a contradiction.
    """
    raise contradiction(record, at, "it is a transaction marker, which changes no row by itself")


@functools.singledispatch
def replay_in_steps(record: MetadataRecord, state: ReplayState, at: Position) -> Steps:
    """Apply a record as ``replay`` does, or return the steps that do so, before the first one runs.

    Only the first step raises ``ReplayError``.
    """
    replay(record, state, at)
    return None
