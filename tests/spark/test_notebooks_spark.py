"""The notebooks run from the first cell to the last, on bundled logs and logs of their own."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.delta]

HOME: Final = Path(__file__).parents[2]

EXPECTED: Final = {
    "incident": (
        "picture: ",
        "|08:04:18|1|432|0|0|0|0|",
        "|2026-11-21 08:04:18.007|1231|3|update_postimage|true|false|",
        "|2|2026-11-21 08:04:30.936|2026-11-21 08:04:45.504|1|",
        "|2|2026-11-21 08:04:57.886|still without|441|",
        "|true|true|443|",
    ),
    "leases": (
        "1 of 2 rivals has the lease",
        "the late write was fenced",
        "|280|",
    ),
    "change_topics": (
        "|TOPIC_RECORD|payments|",
        "dry run: 5 records, end offset 10",
        "only 3 broker(s) are registered",
        "|insert|topic|topic/payments|TOPIC_RECORD|",
        "applied: 5 records, end offset 17",
        "snapshot at end offset 17",
    ),
}
"""What a notebook prints; of a table a row without spaces."""

EXPECTED_NIGHTLY: Final = {
    "time_travel": (
        "picture: ",
        "|2026-11-21 08:04|414|0|0|",
        "|end|443|443|443|",
        "|2215|08:04:49.508|update_postimage|config/topic/orders-0/cleanup.policy|compact,delete|",
        "|TOPIC|orders2-3|retention.ms|NULL|14400000|",
        "|0|2419|NULL|2026-11-21 08:04:53.075|-1|[]|0|",
    ),
    "drift": (
        "|acl|25|",
        "|topic|220|",
        "|config|TOPIC/orders-0/retention.ms|3600000|NULL|",
        "297 differences",
    ),
    "rescue": (
        "uncertain: 3 records from offset 3128 on may not have been committed",
        "|3128|2026-11-21 08:04:58.008|update_postimage|broker/2|",
        "3 directories, each valid",
        "|partitions|443|443|",
    ),
    "exactly_once": (
        "3 rows, lag 0",
        "4 rows after the repeated batch",
        "refused: ForeignCommitError",
    ),
    "fleet": (
        "picture: ",
        "|I9iQnKeLSA2lyZwVZic7Xg|3130|30|",
        "|EBdCvGFfRxuQkA0NCMDqLg|1304|21|",
    ),
}
"""The same of notebooks that take longer, or ask similar questions."""


@pytest.mark.parametrize(
    ("notebook", "expected"),
    [
        *(pytest.param(*one, id=one[0]) for one in EXPECTED.items()),
        *(
            pytest.param(*one, id=one[0], marks=pytest.mark.nightly)
            for one in EXPECTED_NIGHTLY.items()
        ),
    ],
)
def test_a_notebook_prints_the_answers_to_its_questions(
    spark: SparkSession,
    notebook: str,
    expected: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(HOME)
    session = spark.newSession()  # its views are not those of other tests
    runpy.run_path("notebooks/run.py")["run"](f"notebooks/{notebook}.py", {}, session)
    printed = re.sub(r" *\| *", "|", capsys.readouterr().out)
    missing = [line for line in expected if line not in printed]
    assert not missing, printed
