"""What every test shares: replayable Hypothesis runs and the path of the bundled logs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "replayable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("replayable")


@pytest.fixture(scope="session")
def data() -> Path:
    """Logs written by real Apache Kafka releases, with kafka-dump-log's answers beside them."""
    return Path(__file__).parent / "data"
