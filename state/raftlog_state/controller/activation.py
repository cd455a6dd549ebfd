"""Records of a controller that becomes active on an empty log: the features of a new cluster.

Source: Kafka 4.4 ``ActivationRecordsGenerator.recordsForEmptyLog``, ``BootstrapMetadata``,
``Feature`` (the levels that belong to a metadata.version).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from raftlog_state.image import METADATA_VERSION
from raftlog_state.image.record_versions import (
    ELR_FEATURE,
    LEVEL_MAX,
    LEVEL_MIN,
    LEVEL_NEW_CLUSTER,
)
from raftlog_state.records import FeatureLevelRecord

from .features import write_elr_safety_records
from .pending_state import PendingState

BOOTSTRAP_TRANSACTION: Final = "Bootstrap records"
"""Name of the transaction around the first records, as in Kafka."""

METADATA_VERSIONS: Final = (
    "3.3-IV3",
    "3.4-IV0",
    "3.5-IV0",
    "3.5-IV1",
    "3.5-IV2",
    "3.6-IV0",
    "3.6-IV1",
    "3.6-IV2",
    "3.7-IV0",
    "3.7-IV1",
    "3.7-IV2",
    "3.7-IV3",
    "3.7-IV4",
    "3.8-IV0",
    "3.9-IV0",
    "4.0-IV0",
    "4.0-IV1",
    "4.0-IV2",
    "4.0-IV3",
    "4.1-IV0",
    "4.1-IV1",
    "4.2-IV0",
    "4.2-IV1",
    "4.3-IV0",
    "4.4-IV0",
    "4.4-IV1",
    "4.4-IV2",
)
"""Names of the levels of metadata.version from ``LEVEL_MIN`` on."""

_DEFAULT_LEVELS: Final = (
    (ELR_FEATURE, 26, 1),
    ("group.version", 22, 1),
    ("share.version", 28, 1),
    ("share.version", 31, 2),
    ("streams.version", 29, 1),
    ("transaction.version", 24, 2),
)
"""Features of a new cluster: required level of metadata.version, and the feature's own level.

A later line replaces an earlier one.
"""

assert len(METADATA_VERSIONS) == LEVEL_MAX - LEVEL_MIN + 1, "every level has a name"


def new_cluster_features(level: int = LEVEL_NEW_CLUSTER) -> dict[str, int]:
    """Return the features of a new cluster at a level of metadata.version."""
    found = {METADATA_VERSION: level}
    found.update((name, own) for name, first, own in _DEFAULT_LEVELS if level >= first)
    return found


def metadata_version_level(text: str) -> int | None:
    """Return the level of a release, such as ``4.3`` or ``4.3-IV0``; None if it is unknown.

    A release without ``-IV`` means its last level.
    """
    found = [
        level
        for level, name in enumerate(METADATA_VERSIONS, start=LEVEL_MIN)
        if text in (name, name.partition("-")[0])
    ]
    return found[-1] if found else None


def write_bootstrap_records(features: Mapping[str, int], state: PendingState) -> None:
    """Write the features of a new cluster, metadata.version first; they are not validated."""
    names = sorted(features, key=lambda name: (name != METADATA_VERSION, name))
    for name in names:
        if features[name]:
            state.write(FeatureLevelRecord(name=name, feature_level=features[name]))
    if features.get(ELR_FEATURE):
        write_elr_safety_records(state)
