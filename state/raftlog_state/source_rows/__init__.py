"""Rows of a log as Arrow: the columns of the Spark source, without Spark.

``reading`` is the entry point for rows of a log's range or of a snapshot. The data source and the
tables both use it, so that a record has the same row in both.
"""
