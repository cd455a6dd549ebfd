"""The list of docs/spark.md, against a real Connect server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.connect_server import HOME, run_connected

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

NODE = HOME / "tests/data/kraft-logs/three-nodes-4.3.1/node-100"


def test_each_line_of_the_list_works_over_spark_connect(tmp_path: Path) -> None:
    page = (HOME / "docs/spark.md").read_text()
    section = page.partition("## Spark Connect")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| ([^|]+) \| yes \|", section, re.MULTILINE)
    refused = re.findall(r"^\| ([^|]+) \| no: ", section, re.MULTILINE)
    assert len(listed) >= 8
    output = run_connected("-m", "tests.spark.connect_driver", str(tmp_path), str(NODE))
    worked = re.findall("^works: (.+)$", output, re.MULTILINE)
    assert worked == [*listed, *(f"{name}: not over Connect" for name in refused)]
