"""Files of one log: segments, indexes, leader epochs, snapshots, transactions, and its readers.

All files are accessed through ``raftlog.storage.protocol``.
"""
