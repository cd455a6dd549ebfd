"""What every test shares: replayable Hypothesis runs and the path of the bundled logs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.support.report_lines import pytest_terminal_summary as pytest_terminal_summary
from tests.support.spark_session import has_java, shared_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

settings.register_profile(
    "replayable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("replayable")


@pytest.hookimpl(tryfirst=True)  # before xdist writes the groups into the names of tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests of the shared Spark session to one worker: a session costs a JVM."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark session"))


@pytest.fixture(scope="session")
def data() -> Path:
    """Logs written by real Apache Kafka releases, with kafka-dump-log's answers beside them."""
    return Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    """The session that all Spark tests share."""
    if not has_java():
        pytest.skip("Spark needs Java 17 or newer, and no java was found")
    return shared_session()
