"""State of an active controller without a log, for cases of Kafka's own tests of its managers.

``ReplicationControlTestContext`` of Kafka: brokers are registered and unfenced, operations are run,
and their records are replayed at the offsets that they would have.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar, overload

import pytest

from raftlog_state.controller import ApiException, ChangeRequest
from raftlog_state.controller.controller_state import ControllerState, PartitionsInSteps
from raftlog_state.controller.pending_state import (
    KRaftVersionAccessor,
    Operation,
    OperationInSteps,
    PendingState,
    write_in_steps,
)
from raftlog_state.image import MetadataImage, PartitionRow, Row
from raftlog_state.records import DecodedRecord, FeatureLevelRecord, MetadataRecord
from raftlog_state.steps import complete
from tests.support.cluster_changes import cluster

T = TypeVar("T")


def write(change: ChangeRequest, state: PendingState) -> None:
    """Write all records of a change, which may be refused."""
    for _ in write_in_steps(change, state) or ():
        pass


class ControllerContext:
    """Controller of a cluster with unfenced brokers 1 to ``brokers``, each with one log directory.

    ``written``: the records of the last operation. ``next_offset``: that of the next record.
    """

    def __init__(
        self,
        *rows: Row,
        brokers: int = 0,
        level: int = 30,
        elr: bool = False,
        seed: int = 1,
        image: MetadataImage | None = None,
    ) -> None:
        found = cluster(*rows, brokers=brokers, level=level, elr=elr) if image is None else image
        self.state = ControllerState.from_image(found)
        self.next_offset = found.offset + 1
        self.leader_epoch = found.leader_epoch
        self.rng = random.Random(seed)
        self.decoded: list[DecodedRecord] = []

    @property
    def written(self) -> list[MetadataRecord]:
        """The records of the last operation."""
        return [one.record for one in self.decoded if isinstance(one.record, MetadataRecord)]

    @overload
    def run(
        self,
        operation: OperationInSteps[T],
        *,
        limit: int | None = None,
        quorum: KRaftVersionAccessor | None = None,
    ) -> T: ...

    @overload
    def run(
        self,
        operation: Operation[T],
        *,
        limit: int | None = None,
        quorum: KRaftVersionAccessor | None = None,
    ) -> T: ...

    def run(
        self,
        operation: Callable[[PendingState], Any],
        *,
        limit: int | None = None,
        quorum: KRaftVersionAccessor | None = None,
    ) -> Any:
        """Run an operation of the controller; its records are replayed."""
        pending = PendingState(
            self.state,
            first_offset=self.next_offset,
            leader_epoch=self.leader_epoch,
            rng=self.rng,
            record_count_max=limit,
            quorum=quorum,
        )
        self.decoded = pending.records
        with pending.atomic():
            found = operation(pending)
            response = complete(found) if isinstance(found, Generator) else found
        self.next_offset = pending.next_offset
        return response

    def apply(self, *changes: ChangeRequest) -> list[MetadataRecord]:
        """Apply changes, each of which must be valid; return their records."""

        def operation(state: PendingState) -> None:
            for change in changes:
                self.write(change, state)

        self.run(operation)
        return self.written

    def apply_feature(self, name: str, level: int) -> None:
        """Finalize a feature at a level."""
        self.replay(FeatureLevelRecord(name=name, feature_level=level))

    def write(self, change: ChangeRequest, state: PendingState) -> None:
        """Write the records of a change, which may be refused."""
        write(change, state)

    def replay(self, *records: MetadataRecord) -> None:
        """Replay records that another controller wrote."""

        def operation(state: PendingState) -> None:
            for record in records:
                state.write(record)

        self.run(operation)

    def refused(self, operation: Callable[[PendingState], object]) -> tuple[int, str]:
        """Run an operation that is refused as a whole; return Kafka's error code and message."""
        with pytest.raises(ApiException) as caught:
            self.run(operation)
        assert not self.decoded, "nothing is written"
        return error_of(caught.value)

    def partition(self, topic: str, number: int = 0) -> PartitionRow:
        """Return a partition by its topic's name."""
        row = self.state.topic(topic)
        assert row is not None
        found = self.state.find(PartitionRow, row.topic_id, number)
        assert found is not None
        return found


def found(search: PartitionsInSteps) -> list[PartitionRow]:
    """Run all steps of a search, and return its rows."""
    return list(complete(search))


def error_of(refused: object) -> tuple[int, str]:
    """Return Kafka's error code and message; (0, "") for None."""
    if refused is None:
        return (0, "")
    assert isinstance(refused, ApiException)
    assert refused.remedy
    return (refused.kafka_code, refused.reason)


def codes_of(errors: Iterable[object]) -> list[int]:
    """Return Kafka's error codes, 0 without an error."""
    return [error_of(one)[0] for one in errors]
