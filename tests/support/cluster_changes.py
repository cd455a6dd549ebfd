"""Images of small clusters, and short ways to change them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

from raftlog_state.controller import ChangeRequest, ControllerResult, plan_changes
from raftlog_state.controller.controller_state import ControllerState
from raftlog_state.controller.pending_state import PendingState
from raftlog_state.image import (
    BrokerRow,
    Endpoint,
    FeatureRange,
    FeatureRow,
    MetadataImage,
    PartitionRow,
    Row,
)
from raftlog_state.loader.metadata_loader import LogRecord, MetadataLoader
from raftlog_state.records import DecodedRecord

LEVELS = (7, 8, 11, 12, 13, 14, 15, 17, 21, 23, 30)
"""Levels of metadata.version at which the written records change."""


def directory(broker_id: int, number: int = 0) -> str:
    """Return the id of a log directory of a broker."""
    return f"dir{number}ofbroker{broker_id}AAAAAAAAAAAAA"[:21] + "A"


def broker(broker_id: int, level: int = 30, **differing: Any) -> BrokerRow:
    """Return an unfenced broker, with one log directory if the level has them."""
    row: dict[str, Any] = {
        "broker_id": broker_id,
        "incarnation_id": directory(broker_id, 9),
        "broker_epoch": broker_id,
        "rack": None,
        "fenced": False,
        "in_controlled_shutdown": False,
        "is_migrating_zk_broker": False,
        "endpoints": (Endpoint("CLIENT", "localhost", 9092, 0),),
        "features": (
            FeatureRange("eligible.leader.replicas.version", 0, 1),
            FeatureRange("group.version", 0, 1),
            FeatureRange("metadata.version", 7, 30),
        ),
        "log_dirs": (directory(broker_id),) if level >= 17 else (),
        "cordoned_log_dirs": None,
    }
    return BrokerRow(**row | differing)


def cluster(
    *rows: Row, brokers: int = 3, level: int = 30, elr: bool = False, offset: int = 9
) -> MetadataImage:
    """Return the image of a cluster with brokers 1 to ``brokers``."""
    features = [FeatureRow(name="metadata.version", level=level)]
    if elr:
        features.append(FeatureRow(name="eligible.leader.replicas.version", level=1))
    alive = [broker(number, level) for number in range(1, brokers + 1)]
    return MetadataImage.from_rows([*features, *alive, *rows], offset=offset, leader_epoch=3)


def pending(image: MetadataImage, *, first_offset: int = 1, seed: int = 1) -> PendingState:
    """Return the state in which changes of an image are validated."""
    return PendingState(
        ControllerState.from_image(image),
        first_offset=first_offset,
        leader_epoch=image.leader_epoch,
        rng=random.Random(seed),
    )


def planned(
    image: MetadataImage, *changes: Mapping[str, Any] | ChangeRequest, seed: int = 1
) -> ControllerResult:
    return plan_changes(image, changes, rng=random.Random(seed))


def records_of(
    image: MetadataImage, *changes: Mapping[str, Any] | ChangeRequest, seed: int = 1
) -> list[DecodedRecord]:
    """Return the records of changes, without markers."""
    return list(planned(image, *changes, seed=seed).change_records)


def replayed(image: MetadataImage, values: Iterable[bytes], timestamp_ms: int = 5) -> MetadataImage:
    """Return the image after these values are replayed in one batch after the image."""
    loader = MetadataLoader(image)
    loader.append(
        LogRecord(offset, image.leader_epoch, timestamp_ms, value)
        for offset, value in enumerate(values, start=image.offset + 1)
    )
    assert loader.open_transaction_offset is None
    return loader.image


def after(
    image: MetadataImage, *changes: Mapping[str, Any] | ChangeRequest, seed: int = 1
) -> MetadataImage:
    """Return the image after the changes are replayed."""
    return replayed(image, planned(image, *changes, seed=seed).values())


def partition(image: MetadataImage, topic: str, number: int = 0) -> PartitionRow:
    row = image.topic(topic)
    assert row is not None
    found = image.find(PartitionRow, row.topic_id, number)
    assert found is not None
    return found
