"""Changes of feature levels, metadata.version among them.

A level must be supported by every registered broker and controller and by this release. A downgrade
requires ``allow_downgrade``; metadata.version cannot be downgraded below a level that changed
records. kraft.version cannot be set: it is in control records, which the quorum writes.

When ELR is enabled, min.insync.replicas is set for the cluster and deleted for single brokers.

Source: Kafka 4.3 ``FeatureControlManager``, ``ConfigurationControlManager.updateFeatures``,
``Feature``, ``MetadataVersion``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from raftlog_state.image import (
    METADATA_VERSION,
    BrokerRow,
    ConfigRow,
    ControllerRow,
    FeatureRow,
)
from raftlog_state.image.record_versions import (
    ELR_FEATURE,
    LEVEL_CONTROLLERS,
    LEVEL_ELR,
    LEVEL_MAX,
    LEVEL_MIN,
)
from raftlog_state.records import ConfigRecord, FeatureLevelRecord
from raftlog_state.replay.cluster import KRAFT_VERSION

from .api_exception import INVALID_UPDATE_VERSION, ApiException
from .change_requests import SetFeature
from .configs import MIN_ISR
from .controller_state import BROKER
from .dispatch import write
from .pending_state import PendingState

KNOWN_FEATURES: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        METADATA_VERSION: (LEVEL_MIN, LEVEL_MAX),
        KRAFT_VERSION: (0, 1),
        "transaction.version": (0, 2),
        "group.version": (0, 1),
        ELR_FEATURE: (0, 1),
        "share.version": (0, 1),
        "streams.version": (0, 1),
    }
)
"""Levels that Kafka 4.3.1 supports, both inclusive."""

_CHANGED_LEVELS: Final = (8, 11, 13, 14, 15, 17, 23, 30)
"""Levels of metadata.version above the lowest that added records or fields."""

_MIN_ISR_DEFAULT: Final = "1"


@write.register
def set_feature(change: SetFeature, state: PendingState) -> None:
    """Finalize a feature at a level, or remove it."""
    _check(change, state)
    if change.feature == ELR_FEATURE and change.level > 0:
        write_elr_safety_records(state)
    state.write(FeatureLevelRecord(name=change.feature, feature_level=change.level))


def unsupported_reason(level: int, node: str, low: int, high: int) -> str | None:
    """Return why a node does not support a level, or None; every node supports level 0."""
    if level == 0 or low <= level <= high:
        return None
    if high == 0:
        return f"{node} does not support this feature"
    return f"{node} only supports versions {low}-{high}"


def _check(change: SetFeature, state: PendingState) -> None:
    name, level = change.feature, change.level
    reason = _unknown_feature_reason(name, level) or _unsupported_level_reason(name, level, state)
    row = state.current.find(FeatureRow, name)
    current = 0 if row is None else row.level
    remedy = "choose a level that all nodes support"
    if reason is None and level < current and not change.allow_downgrade:
        reason = f"Can't downgrade from version {current} without setting allow_downgrade"
        remedy = "set allow_downgrade to downgrade"
    elif reason is None and name == METADATA_VERSION and level < current:
        lost = [one for one in _CHANGED_LEVELS if level < one <= current]
        if lost:
            reason = (
                "Refusing to perform the requested downgrade because it might delete metadata "
                f"information of version {lost[-1]}"
            )
            remedy = f"stay at {lost[-1]} or above"
    elif reason is None and name != METADATA_VERSION:
        reason = _unmet_dependency_reason(name, level, state.current.metadata_version)
        remedy = f"upgrade {METADATA_VERSION} first"
    if reason is not None:
        reason = f"Invalid update version {level} for feature {name}. {reason}"
        raise ApiException(f"feature {name!r}", reason, remedy, INVALID_UPDATE_VERSION)


def _unknown_feature_reason(name: str, level: int) -> str | None:
    if name == KRAFT_VERSION:
        return "The quorum sets it in control records"
    if name not in KNOWN_FEATURES:
        return f"Feature {name} not found; known features are {', '.join(KNOWN_FEATURES)}"
    low, high = KNOWN_FEATURES[name]
    if low <= level <= high:
        return None
    return f"This release only supports versions {low}-{high}"


def _unsupported_level_reason(name: str, level: int, state: PendingState) -> str | None:
    nodes: list[tuple[str, BrokerRow | ControllerRow]] = [
        (f"Broker {row.broker_id}", row) for row in state.current.rows_of(BrokerRow)
    ]
    if state.current.level >= LEVEL_CONTROLLERS:
        nodes += [
            (f"Controller {row.controller_id}", row) for row in state.current.rows_of(ControllerRow)
        ]
    for node, row in nodes:
        ranges = {of.name: (of.min_version, of.max_version) for of in row.features}
        reason = unsupported_reason(level, node, *ranges.get(name, (0, 0)))
        if reason is not None:
            return reason
    return None


def _unmet_dependency_reason(name: str, level: int, metadata_version: int | None) -> str | None:
    if level == 0:
        return None
    needed = LEVEL_ELR if name == ELR_FEATURE else LEVEL_MIN
    if metadata_version is not None and metadata_version >= needed:
        return None
    return (
        f"{name} could not be set to {level} because it depends on {METADATA_VERSION} level "
        f"{needed}"
    )


def write_elr_safety_records(state: PendingState) -> None:
    """Set min.insync.replicas for the cluster, and delete it for single brokers."""
    if state.current.config(BROKER, "", MIN_ISR) is None:
        state.write(ConfigRecord(resource_type=BROKER, name=MIN_ISR, value=_MIN_ISR_DEFAULT))
    for row in state.current.rows_of(ConfigRow):
        if (row.resource_type, row.name) == (BROKER, MIN_ISR) and row.resource_name:
            state.write(
                ConfigRecord(
                    resource_type=BROKER, resource_name=row.resource_name, name=MIN_ISR, value=None
                )
            )
