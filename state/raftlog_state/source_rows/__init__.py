"""Rows of a log as Arrow: the columns of the Spark source, without Spark.

``reading`` is the entry point: rows of a range of a log or of a snapshot. The data source and the
tables use it, so a record has the same row for both.
"""
