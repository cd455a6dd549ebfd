"""Bugs of the tables, of the stream into them, and of what the command line says of a log."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

MATERIALIZE: Final = "state/raftlog_state/tables/materialize.py"
SCHEDULE: Final = "tests/tables/test_publish_schedule.py"
MATERIALIZED: Final = "tests/tables/test_tables_materialize_spark.py"

TABLES_PLANTS: Final = (
    Plant(
        bug="a run that holds back a tail publishes every batch",
        path=MATERIALIZE,
        old="TAIL_HOLDBACK_MS_DEFAULT if given is None else duration_ms(_HOLDBACK, given),",
        new="TAIL_HOLDBACK_MS_DEFAULT if given is None else 2**60,",
        tests=(SCHEDULE,),
    ),
    Plant(
        bug="a batch is published before its time",
        path=MATERIALIZE,
        old="        return max(0, self._published_at_s + self._every_s - now_s)\n",
        new="        return 0\n",
        tests=(SCHEDULE,),
    ),
    Plant(
        bug="a run's last batch is not published",
        path=MATERIALIZE,
        old="next_offset >= target)",
        new="next_offset > target)",
        tests=(SCHEDULE,),
    ),
    Plant(
        bug="what a quiet log leaves unpublished is never published",
        path=MATERIALIZE,
        old="            else:\n                self._set_timer()\n",
        new="",
        tests=(MATERIALIZED,),
    ),
)
