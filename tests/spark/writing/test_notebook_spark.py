"""The notebook about ids runs from its first cell to its last, with the output it documents."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.spark

NOTEBOOK = Path(__file__).parents[3] / "notebooks/allocate_ids.py"


def test_two_jobs_allocate_ids_in_the_notebook(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[Row] = []

    def display(frame: DataFrame) -> None:
        rows.extend(frame.orderBy("first").collect())

    widgets = SimpleNamespace(text=lambda *_: None, get=lambda _: str(tmp_path / "ids-0"))
    names = {"spark": spark, "dbutils": SimpleNamespace(widgets=widgets), "display": display}
    runpy.run_path(str(NOTEBOOK), init_globals=names)
    assert [row.end for row in rows][:-1] == [row.first for row in rows][1:]
    assert {row.job for row in rows} == {"orders", "refunds"}
    said = capsys.readouterr().out
    assert "Both rows are in the log, at offsets 7 to 8." in said
    assert "Conflict: the end offset is 9, not 7." in said
