"""Parsers and encoders of a log's file names, small files, producer snapshots and leader epochs."""
