"""Compaction of logs with ``cleanup.policy=compact``: the last record of each key is kept."""
