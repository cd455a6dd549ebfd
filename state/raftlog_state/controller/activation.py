"""Records of a controller that becomes active on an empty log: the features of a new cluster.

Source: Kafka 4.3 ``ActivationRecordsGenerator.recordsForEmptyLog``, ``BootstrapMetadata``,
``Feature`` (the levels that belong to a metadata.version).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from raftlog_state.image import METADATA_VERSION
from raftlog_state.image.record_versions import ELR_FEATURE, LEVEL_MAX
from raftlog_state.records import FeatureLevelRecord

from .features import write_elr_safety_records
from .pending_state import PendingState

BOOTSTRAP_TRANSACTION: Final = "Bootstrap records"
"""Name of the transaction around the first records, as in Kafka."""

NEW_CLUSTER_FEATURES: Final[Mapping[str, int]] = {
    METADATA_VERSION: LEVEL_MAX,
    ELR_FEATURE: 1,
    "group.version": 1,
    "share.version": 1,
    "streams.version": 1,
    "transaction.version": 2,
}
"""Levels of a new cluster of Kafka 4.3.1."""


def write_bootstrap_records(features: Mapping[str, int], state: PendingState) -> None:
    """Write the features of a new cluster, metadata.version first; they are not validated."""
    names = sorted(features, key=lambda name: (name != METADATA_VERSION, name))
    for name in names:
        if features[name]:
            state.write(FeatureLevelRecord(name=name, feature_level=features[name]))
    if features.get(ELR_FEATURE):
        write_elr_safety_records(state)
