"""Segments of a log in an object store, with a manifest in Kafka's format: backup and restore."""
