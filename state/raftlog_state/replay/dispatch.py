"""One record into a delta: a single function, with one implementation for each record type."""

from __future__ import annotations

import functools

from raftlog_state.delta import MetadataDelta
from raftlog_state.records import MetadataRecord

from .position import Position, contradiction


@functools.singledispatch
def replay(record: MetadataRecord, delta: MetadataDelta, at: Position) -> None:
    """Write what a record means into ``delta``.

    Raises ``ReplayError``, having written nothing, if the record contradicts the state before it:
    a topic, partition or broker that is not there, an epoch that is not the broker's.

    Source: what brokers see of a record (Kafka: ``MetadataDelta.replay``), with the stricter checks
    of the controller where a contradiction would otherwise be hidden.
    """
    raise contradiction(record, at, "it marks a transaction and is no change by itself")
