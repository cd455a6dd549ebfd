"""Appends to one log, for the embedded log and for a node: requests, records, batches."""
