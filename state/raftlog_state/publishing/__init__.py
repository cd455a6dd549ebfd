"""Publication of a quorum's metadata to subscribers: snapshots, metrics, and user-defined ones.

``PublishingLoader`` is a listener of a node's log. It builds an image of the committed state, and
passes each new image to its publishers:

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

A user-defined publisher has four members:

    class OfflinePartitions:
        name = "offline partitions"

        def on_metadata_update(self, update, image, manifest):
            for change in update.row_changes():     # rows before and after
                if isinstance(change.after, PartitionRow) and change.after.leader == -1:
                    print(manifest.provenance.last_contained_offset, change.after)

        def on_controller_change(self, leader): ...

        def close(self): ...

The Delta tables have a publisher, too: ``raftlog_state.tables.TablesPublisher``. An update only
states how far it may read the log. The tables are written from the log, as by ``raftlog tables
follow`` in a separate process. Their table ``changes`` contains exactly what publishers receive, in
the same order. Updates lack other things that the tables need:

1. Table ``log`` contains every record with its bytes, including control records, NoOps and aborted
   records.
2. Secrets are redacted before a row is created. An image contains them in clear text.
3. The tables continue after their last offset by reading the log from there. A publisher's first
   update is the whole image, without the changes that led to it.
4. An append to tables takes longer than a commit and may fail for hours. The log keeps on disk what
   is not written yet; updates would be kept in memory, without a bound.

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
