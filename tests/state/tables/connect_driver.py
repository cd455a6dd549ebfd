"""A group of clusters over Spark Connect: ``connect_driver TABLES CHECKPOINT LOG...``.

Prints the offsets of the clusters after each of two runs: the second one continues at their ends.
"""

from __future__ import annotations

import sys

from notebooks.run import local_session

from raftlog.client import open_path
from raftlog_state.tables import open_cluster, open_group


def main(place: str, checkpoint: str, *logs: str) -> None:
    session = local_session()
    sources = [{"path": log, "tailHoldback": "0"} for log in logs]
    cluster_ids = [open_path(log).cluster_id for log in logs]
    for _ in range(2):
        group = open_group(session, place, "fleet")
        query = group.materialize(sources, checkpoint=checkpoint, trigger="availableNow")
        query.awaitTermination()
        assert query.exception() is None
        clusters = [open_cluster(session, place, cluster_id=name) for name in cluster_ids]
        line = " ".join(str(cluster.latest().offset) for cluster in clusters)
        sys.stdout.write(f"offsets {line}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
