"""Fixtures of all tests: replayable Hypothesis runs, the bundled logs and the Spark session."""

from __future__ import annotations

import gc
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from raftlog import compiled
from tests.support import forked_nodes
from tests.support.child_processes import hide_hypothesis
from tests.support.durations import sort_longest_first
from tests.support.report_lines import pytest_terminal_summary as pytest_terminal_summary
from tests.support.spark_session import has_java, shared_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GC_THRESHOLD = 7_000
"""Container objects that are allocated between two collections: ten times Python's default.

At the default, thousands of collected tests and reports take a seventh of the time of the quick
tests. The process that starts xdist's workers collects no tests: it has the threshold from here.
"""
gc.set_threshold(GC_THRESHOLD)

SPARK_FILES = "_spark.py"
"""End of the names of files whose tests are all marked ``spark``."""
LONG = "(spark or slow)"
"""Begin of the marker expression of `make long`."""
LONG_MARKS = re.compile(r"mark\.(slow|spark)|slow_except|WHOLE")
"""What a file contains that has tests marked ``slow`` or ``spark``, unless its name says so."""

settings.register_profile(
    "replayable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("replayable")


def pytest_configure() -> None:
    """Verify that `make pure` tests the installed wheel, and not the sources beside the tests."""
    if "RAFTLOG_INSTALLED" in os.environ and not compiled.__file__.startswith(sys.prefix):
        raise pytest.UsageError(f"raftlog is imported from {compiled.__file__}")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore files of which the marker expression selects no test.

    In `make long` they are more than half, and each worker would import them for seconds.
    """
    expression, name = config.option.markexpr, collection_path.name
    if name.endswith(SPARK_FILES):
        return True if "not spark" in expression else None
    if expression.startswith(LONG) and name.startswith("test_") and name.endswith(".py"):
        return None if LONG_MARKS.search(collection_path.read_text()) else True
    return None


@pytest.hookimpl(tryfirst=True)  # before xdist adds the groups to the names of tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of a shared Spark session on one worker, and the longest tests first."""
    marked: set[Path] = set()
    for item in items:
        if item.path.name.endswith(SPARK_FILES):
            item.add_marker(pytest.mark.spark)
        elif any(item.get_closest_marker(name) for name in ("slow", "spark")):
            marked.add(item.path)
        if has_session(item):
            item.add_marker(pytest.mark.xdist_group(session_group(item.path.as_posix())))
    hidden = [str(path) for path in marked if not LONG_MARKS.search(path.read_text())]
    assert not hidden, f"`make long` ignores {', '.join(sorted(hidden))}: it lacks mark.slow"
    sort_longest_first(items)


def pytest_collection_finish() -> None:
    """Take the thousands of collected tests out of all later garbage collections."""
    gc.collect()
    gc.freeze()


def has_session(item: pytest.Item) -> bool:
    """Return whether a test has the Spark session, as a fixture or by a parameter of one."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    is_parameter = any(isinstance(one, str) and one == "spark" for one in parameters.values())
    return is_parameter or "spark" in getattr(item, "fixturenames", ())


def session_group(path: str) -> str:
    """Return the Spark session of a test file: there are two.

    A third one would start, compile its code and write the template of tables once more.
    """
    return "tables" if "/tests/state/table" in path else "spark session"


@pytest.fixture(scope="session", autouse=True)
def nodes_are_forked() -> None:
    """Unlike those of benchmarks."""
    forked_nodes.enable()


@pytest.fixture(scope="session", autouse=True)
def processes_without_hypothesis() -> None:
    """After xdist's workers were started, which need it."""
    hide_hypothesis()


@pytest.fixture(scope="session")
def data() -> Path:
    """Directory of logs written by Apache Kafka releases, with kafka-dump-log's output for each."""
    return Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    """Spark session shared by all Spark tests."""
    if not has_java():
        pytest.skip("Spark needs Java 17 or newer, and no java was found")
    return shared_session()
