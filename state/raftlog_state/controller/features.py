"""Features are finalized at a level, metadata.version among them.

Rules of this file:

1. A level is one that every registered broker and controller supports, and this program knows.
2. A lower level has to be asked for. metadata.version goes down only as far as no record changed.
3. kraft.version is the quorum's own affair: it lives in control records, which no change writes.
4. With eligible leader replicas the fewest in-sync replicas are set for the whole cluster, and for
   no single broker.

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
from raftlog_state.record_versions import (
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
from .dispatch import write
from .pending_state import BROKER, PendingState

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
"""The levels, both inclusive, that Kafka 4.3.1 supports."""

_CHANGED_LEVELS: Final = (8, 11, 13, 14, 15, 17, 23, 30)
"""Levels of metadata.version above the lowest that brought records or fields."""

_MIN_ISR_DEFAULT: Final = "1"


@write.register
def set_feature(change: SetFeature, state: PendingState) -> None:
    """A feature goes to a level, or goes."""
    _check(change, state)
    if change.feature == ELR_FEATURE and change.level > 0:
        _make_safe_for_elr(state)
    state.write(FeatureLevelRecord(name=change.feature, feature_level=change.level))


def unsupported_reason(level: int, who: str, low: int, high: int) -> str | None:
    """Why a node does not support a level; 0 is "without", which everybody supports."""
    if level == 0 or low <= level <= high:
        return None
    if high == 0:
        return f"{who} does not support the feature"
    return f"{who} supports levels {low} to {high}"


def _check(change: SetFeature, state: PendingState) -> None:
    name, level = change.feature, change.level
    reason = _unknown_feature_reason(name, level) or _unsupported_level_reason(name, level, state)
    row = state.find(FeatureRow, name)
    current = 0 if row is None else row.level
    remedy = "choose a level that all nodes support"
    if reason is None and level < current and not change.allow_downgrade:
        reason = f"it is finalized at {current}, and {level} would be a downgrade"
        remedy = "set allow_downgrade if that is meant"
    elif reason is None and name == METADATA_VERSION and level < current:
        lost = [one for one in _CHANGED_LEVELS if level < one <= current]
        if lost:
            reason = f"records of level {lost[-1]} would be lost at {level}"
            remedy = f"stay at {lost[-1]} or above"
    elif reason is None and name != METADATA_VERSION:
        reason = _reason_of_dependencies(name, level, state.metadata_version)
        remedy = f"raise {METADATA_VERSION} first"
    if reason is not None:
        raise ApiException(f"feature {name!r}", reason, remedy, INVALID_UPDATE_VERSION)


def _unknown_feature_reason(name: str, level: int) -> str | None:
    if name == KRAFT_VERSION:
        return "it is raised by the quorum itself, in control records"
    if name not in KNOWN_FEATURES:
        return f"there is no such feature; known are {', '.join(KNOWN_FEATURES)}"
    low, high = KNOWN_FEATURES[name]
    if low <= level <= high:
        return None
    return f"level {level} is not known; known are {low} to {high}"


def _unsupported_level_reason(name: str, level: int, state: PendingState) -> str | None:
    nodes: list[tuple[str, BrokerRow | ControllerRow]] = [
        (f"broker {row.broker_id}", row) for row in state.rows_of(BrokerRow)
    ]
    if state.level >= LEVEL_CONTROLLERS:
        nodes += [(f"controller {row.controller_id}", row) for row in state.rows_of(ControllerRow)]
    for who, row in nodes:
        ranges = {of.name: (of.min_version, of.max_version) for of in row.features}
        reason = unsupported_reason(level, who, *ranges.get(name, (0, 0)))
        if reason is not None:
            return reason
    return None


def _reason_of_dependencies(name: str, level: int, metadata_version: int | None) -> str | None:
    if level == 0:
        return None
    needed = LEVEL_ELR if name == ELR_FEATURE else LEVEL_MIN
    if metadata_version is not None and metadata_version >= needed:
        return None
    return f"it depends on {METADATA_VERSION} {needed} or higher"


def _make_safe_for_elr(state: PendingState) -> None:
    if state.config(BROKER, "", MIN_ISR) is None:
        state.write(ConfigRecord(resource_type=BROKER, name=MIN_ISR, value=_MIN_ISR_DEFAULT))
    for row in state.rows_of(ConfigRow):
        if (row.resource_type, row.name) == (BROKER, MIN_ISR) and row.resource_name:
            state.write(
                ConfigRecord(
                    resource_type=BROKER, resource_name=row.resource_name, name=MIN_ISR, value=None
                )
            )
