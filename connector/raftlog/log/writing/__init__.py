"""Writing a log: segments, indexes, snapshots, producer state, recovery and repair."""
