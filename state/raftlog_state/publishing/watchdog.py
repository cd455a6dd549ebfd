"""``MetadataVersionWatchdog``: reports a metadata.version that this release does not support.

While it is unsupported, the active controller refuses writes, and no snapshot is written. (In
Kafka, the replay of such a level is a fatal fault.)
"""

from __future__ import annotations

from typing import Final

from raftlog_state.image import METADATA_VERSION, MetadataImage
from raftlog_state.image.record_versions import LEVEL_MAX, LEVEL_MIN

from .publisher import LeaderAndEpoch, LoaderListener, Manifest, MetadataUpdate


class UnsupportedMetadataVersionError(Exception):
    """Level of metadata.version that this release does not support."""


class MetadataVersionWatchdog:
    """Publisher that reports each unsupported level of metadata.version as a fault, once."""

    def __init__(self, listener: LoaderListener) -> None:
        self._listener: Final = listener
        self._reported: int | None = None

    @property
    def name(self) -> str:
        return "MetadataVersionWatchdog"

    def on_metadata_update(
        self, update: MetadataUpdate, image: MetadataImage, manifest: Manifest
    ) -> None:
        """Report an image's level if it is unsupported and new."""
        del update, manifest
        reason = unsupported_reason(image)
        level = image.metadata_version
        if reason is not None and level != self._reported:
            self._listener.handle_fault(reason, UnsupportedMetadataVersionError(reason))
        self._reported = level

    def on_controller_change(self, leader: LeaderAndEpoch) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def unsupported_reason(image: MetadataImage) -> str | None:
    """Return why this release does not support the metadata.version of an image, or None."""
    level = image.metadata_version
    if level is None or LEVEL_MIN <= level <= LEVEL_MAX:
        return None
    return (
        f"{METADATA_VERSION} {level} is not supported: this release supports {LEVEL_MIN} to "
        f"{LEVEL_MAX}; use a release that supports it"
    )
