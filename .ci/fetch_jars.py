"""Download Delta's jars into Ivy's cache, so that later sessions start without its output."""

from __future__ import annotations

from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
configure_spark_with_delta_pip(builder).getOrCreate().stop()
