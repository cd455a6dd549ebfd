"""Changes of feature levels, including metadata.version.

Every registered broker and controller and this release must support a level. A downgrade must be
requested as such. metadata.version cannot be downgraded below a level that changed records.
kraft.version is in control records, which the quorum writes when a request raises it.

When ELR is enabled, min.insync.replicas is set for the cluster and deleted for single brokers.

Source: Kafka 4.3 ``FeatureControlManager``, ``ConfigurationControlManager.updateFeatures``,
``Feature``, ``MetadataVersion``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from raftlog_state.records import ConfigRecord, FeatureLevelRecord, NoOpRecord
from raftlog_state.replay.cluster import KRAFT_VERSION

from .api_exception import INVALID_UPDATE_VERSION, ApiException
from .change_requests import SetFeature
from .configs import MIN_ISR
from .controller_state import BROKER
from .pending_state import PendingState, write_in_steps

KNOWN_FEATURES: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        METADATA_VERSION: (LEVEL_MIN, LEVEL_MAX),
        KRAFT_VERSION: (0, 1),
        "transaction.version": (0, 2),
        "group.version": (0, 1),
        ELR_FEATURE: (0, 1),
        "share.version": (0, 2),
        "streams.version": (0, 1),
    }
)
"""Levels that Kafka 4.4.0 supports, both inclusive."""

_CHANGED_LEVELS: Final = (8, 11, 13, 14, 15, 17, 23, 30, 32, 33)
"""Levels of metadata.version above the lowest one that added records or fields."""

_MIN_ISR_DEFAULT: Final = "1"


class UpgradeType(enum.IntEnum):
    """Direction of a change of a feature's level (Kafka: ``FeatureUpdate.UpgradeType``)."""

    UNKNOWN = 0
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    """Level of a feature to finalize; 0 removes it."""

    feature: str
    level: int
    upgrade_type: int = UpgradeType.UPGRADE


def update_features(updates: Sequence[FeatureUpdate], state: PendingState) -> None:
    """Finalize levels of features. Raises ``ApiException``; the caller then reverts all of them.

    kraft.version is raised after all updates have been validated, because it cannot be reverted.
    (Kafka raises it even if another update of the request is refused.)
    """
    proposed = {row.name: row.level for row in state.current.rows_of(FeatureRow)}
    proposed |= {update.feature: update.level for update in updates}
    ordered = sorted(updates, key=lambda update: update.feature != KRAFT_VERSION)

    def update_all(state: PendingState) -> None:
        for update in ordered:
            _update_feature(update, proposed.get(METADATA_VERSION), state)

    if ordered and ordered[0].feature == KRAFT_VERSION:
        state.validate_only(update_all)
    update_all(state)


@write_in_steps.register
def set_feature(change: SetFeature, state: PendingState) -> None:
    """Finalize a feature at a level, or remove it."""
    downgrades = change.allow_downgrade and change.level < _current_level(change.feature, state)
    kind = UpgradeType.SAFE_DOWNGRADE if downgrades else UpgradeType.UPGRADE
    update_features([FeatureUpdate(change.feature, change.level, kind)], state)


def unsupported_reason(level: int, node: str, low: int, high: int) -> str | None:
    """Return why a node does not support a level, or None; every node supports level 0."""
    if level == 0 or low <= level <= high:
        return None
    if high == 0:
        return f"{node} does not support this feature"
    return f"{node} only supports versions {low}-{high}"


def _current_level(name: str, state: PendingState) -> int:
    if name == KRAFT_VERSION:
        return state.kraft_version
    row = state.current.find(FeatureRow, name)
    return 0 if row is None else row.level


def _update_feature(
    update: FeatureUpdate, metadata_version: int | None, state: PendingState
) -> None:
    """Finalize a level. ``metadata_version``: the one after all updates of the request."""
    name, level = update.feature, update.level
    current = _current_level(name, state)
    if update.upgrade_type not in tuple(UpgradeType)[1:]:
        reason = "The controller does not support the given upgrade type."
        raise _invalid_version(update, reason, "use an upgrade, or a safe or unsafe downgrade")
    reason_not_supported = _unknown_feature_reason(name, level) or _unsupported_level_reason(
        name, level, state
    )
    if reason_not_supported is not None:
        raise _invalid_version(update, reason_not_supported, "choose a level that all nodes have")
    if level < current and update.upgrade_type == UpgradeType.UPGRADE:
        reason = (
            "Can't downgrade the version of this feature without setting the upgrade type to "
            "either safe or unsafe downgrade."
        )
        raise _invalid_version(update, reason, "set allow_downgrade to downgrade")
    if level > current and update.upgrade_type != UpgradeType.UPGRADE:
        raise _invalid_version(update, "Can't downgrade to a newer version.", "use an upgrade")
    if name == KRAFT_VERSION:
        if update.upgrade_type == UpgradeType.UPGRADE:
            state.upgrade_kraft_version(level)
            state.write(NoOpRecord())
        elif level != current:
            reason = "Can't downgrade the version of this feature."
            raise _invalid_version(update, reason, f"stay at {current}")
        return
    if name == METADATA_VERSION:
        _check_metadata_version(update, current)
    else:
        unmet = _unmet_dependency_reason(name, level, metadata_version)
        if unmet is not None:
            raise _invalid_version(update, unmet, f"upgrade {METADATA_VERSION} first")
    if name == ELR_FEATURE and level > 0:
        write_elr_safety_records(state)
    state.write(FeatureLevelRecord(name=name, feature_level=level))


def _check_metadata_version(update: FeatureUpdate, current: int) -> None:
    """Refuse a downgrade below a level that added records or fields, which would be lost."""
    lost = [one for one in _CHANGED_LEVELS if update.level < one <= current]
    if not lost:
        return
    reason = (
        "Unsafe metadata downgrade is not supported in this version"
        if update.upgrade_type == UpgradeType.UNSAFE_DOWNGRADE
        else "Refusing to perform the requested downgrade because it might delete metadata "
        "information"
    )
    reason = (
        f"Unsupported {METADATA_VERSION} downgrade from {current} to {update.level}. {reason} of "
        f"version {lost[-1]}"
    )
    what, remedy = f"feature {update.feature!r}", f"stay at {lost[-1]} or above"
    raise ApiException(what, reason, remedy, INVALID_UPDATE_VERSION)


def _invalid_version(update: FeatureUpdate, reason: str, remedy: str) -> ApiException:
    reason = f"Invalid update version {update.level} for feature {update.feature}. {reason}"
    return ApiException(f"feature {update.feature!r}", reason, remedy, INVALID_UPDATE_VERSION)


def _unknown_feature_reason(name: str, level: int) -> str | None:
    if level < 0:
        return "A feature version cannot be less than 0."
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
