"""Fixtures of the data source's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.spark_session import java_is_there, shared_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    """The session that all Spark tests share."""
    if not java_is_there():
        pytest.skip("Spark needs Java 17 or newer, and no java was found")
    return shared_session()
