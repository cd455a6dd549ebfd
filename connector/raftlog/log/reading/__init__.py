"""Reading a log: its files, its end, batches in chunks, transactions, plans, snapshots."""
