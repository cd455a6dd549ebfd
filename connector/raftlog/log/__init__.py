"""Files and history of one log: segments, indexes, epochs, snapshots, transactions, its reader.

Nothing here touches a real file: files are reached through ``raftlog.storage.protocol``.
"""
