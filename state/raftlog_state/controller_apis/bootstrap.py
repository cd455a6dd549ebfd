"""``bootstrap.checkpoint``: the features of a new cluster, from formatting to the first claim.

Every node has the file, and the first active controller writes its records to the empty log. It
equals byte for byte what ``kafka-storage format`` writes, except for the time.

Source: Kafka 4.3 ``BootstrapDirectory``, ``BootstrapMetadata``, ``Formatter``; KIP-778, KIP-1022.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from raftlog.errors import OptionError
from raftlog_state.controller import ApiException, ControllerState, PendingState
from raftlog_state.controller.activation import (
    METADATA_VERSIONS,
    metadata_version_level,
    new_cluster_features,
)
from raftlog_state.controller.features import FeatureUpdate, update_features
from raftlog_state.image import METADATA_VERSION, Entity, FeatureRow, MetadataImage
from raftlog_state.loader.image_reader import ImageReader
from raftlog_state.records import Redactor
from raftlog_state.snapshots import snapshot_bytes

BOOTSTRAP_NAME: Final = "bootstrap.checkpoint"
RELEASE: Final = "--release-version"
FEATURE: Final = "--feature"


def bootstrap_features(release: str | None, levels: Mapping[str, int]) -> dict[str, int]:
    """Return the features of a new cluster of a release (None: 4.3), with other ``levels``.

    Raises ``OptionError``.
    """
    features = new_cluster_features()
    if release is not None:
        level = metadata_version_level(release)
        if level is None:
            known = f"{METADATA_VERSIONS[0]} to {METADATA_VERSIONS[-1]}"
            reason = f"{release!r} is not a release of Kafka that this release knows: {known}"
            raise OptionError(option=RELEASE, reason=reason)
        features = new_cluster_features(level)
    if METADATA_VERSION in levels:
        reason = f"the level of {METADATA_VERSION} is that of {RELEASE}"
        raise OptionError(option=FEATURE, reason=reason)
    features |= levels
    scratch = PendingState(ControllerState(), first_offset=0, leader_epoch=0, rng=random.Random(0))
    try:
        update_features([FeatureUpdate(name, level) for name, level in features.items()], scratch)
    except ApiException as refused:
        raise OptionError(option=FEATURE, reason=refused.reason) from None
    return features


def bootstrap_bytes(features: Mapping[str, int], *, written_ms: int) -> bytes:
    """Return the content of the file."""
    rows = (FeatureRow(name=name, level=level) for name, level in features.items() if level)
    empty = MetadataImage.empty()
    maps = {**empty.maps, Entity.FEATURE: {row.key: row for row in rows}}
    return snapshot_bytes(replace(empty, timestamp_ms=0, maps=maps), written_ms=written_ms)


def read_bootstrap(directory: str) -> dict[str, int]:
    """Return the features in the file of a node's directory, or a new cluster's without it.

    Raises the errors of reading a snapshot.
    """
    path = os.path.join(directory, BOOTSTRAP_NAME)
    if not Path(path).exists():
        return new_cluster_features()
    reader = ImageReader(path, Redactor(reveal=True))
    image = reader.image_at(reader.log_end_offset)
    return {row.name: row.level for row in image.rows_of(FeatureRow)}
