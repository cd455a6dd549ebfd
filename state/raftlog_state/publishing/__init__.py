"""Publication of a quorum's metadata to its subscribers: snapshots, metrics, and those of a user.

``PublishingLoader`` is a listener of a node's log. It builds the image of what is committed, and
passes each new one to its publishers:

    def create_publishers(node: NodeContext) -> Service:    # raftlog.node.service
        listener = ...                                      # log lines and faults
        generator = SnapshotGenerator(
            node.log,
            time_ms=..., schedule=asyncio.get_running_loop().call_soon, sync=node.sync_snapshot,
            listener=listener,
        )
        metrics, watchdog = ControllerMetadataMetricsPublisher(), MetadataVersionWatchdog(listener)
        return Service(listener=PublishingLoader(listener, [generator, metrics, watchdog]))

    run_node(config, services=[create_controller, create_publishers])

Nothing here depends on the node. Source: Kafka ``image.loader``, ``image.publisher``.
"""

from __future__ import annotations

from .access_publisher import AccessPublisher, AclIndex
from .loader import MetadataLoaderMetrics, PublishingLoader
from .metrics import ControllerMetadataMetrics, ControllerMetadataMetricsPublisher
from .publisher import (
    LoaderListener,
    LogDeltaManifest,
    Manifest,
    MetadataProvenance,
    MetadataPublisher,
    MetadataUpdate,
    RejectedRecords,
    SnapshotManifest,
)
from .snapshot_generator import SnapshotEmitterMetrics, SnapshotGenerator
from .watchdog import MetadataVersionWatchdog

__all__ = [
    "AccessPublisher",
    "AclIndex",
    "ControllerMetadataMetrics",
    "ControllerMetadataMetricsPublisher",
    "LoaderListener",
    "LogDeltaManifest",
    "Manifest",
    "MetadataLoaderMetrics",
    "MetadataProvenance",
    "MetadataPublisher",
    "MetadataUpdate",
    "MetadataVersionWatchdog",
    "PublishingLoader",
    "RejectedRecords",
    "SnapshotEmitterMetrics",
    "SnapshotGenerator",
    "SnapshotManifest",
]
