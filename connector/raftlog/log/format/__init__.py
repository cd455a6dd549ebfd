"""Parsers and encoders for a log's file names, small files, index entries and leader epochs."""
