"""Report on a cluster over time: one HTML file that opens offline (``raftlog report``)."""
