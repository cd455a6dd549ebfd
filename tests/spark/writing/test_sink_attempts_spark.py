"""Tasks that a cluster runs twice write once: failed, lost with their executor, speculated."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.spark.writing.attempts_driver import TROUBLES, UNLUCKY, WAYS, ended_directory
from tests.support.kill_points import run_driver
from tests.support.spark_session import has_java

import raftlog

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not has_java(), reason="Spark needs Java 17 or newer"),
    pytest.mark.skipif(sys.platform != "linux", reason="a second local host needs setting up"),
]


@pytest.mark.nightly
def test_a_task_that_is_run_twice_writes_once(tmp_path: Path) -> None:
    """In a batch and in a stream; the first attempt fails after all its rows.

    It takes three JVMs. In ``make test`` the first attempt of each task of a stream fails in
    ``test_sink_kill_points_spark.py``, and a worker of a batch in ``test_sink_batch_spark.py``.
    """
    names = [f"{way}-{trouble}" for trouble in TROUBLES for way in WAYS]
    sent = [str(number).encode() for number in range(30)]
    source = tmp_path / "source"
    with raftlog.open(source) as log:
        for start in range(0, len(sent), 5):
            log.append(sent[start : start + 5], atomic=True)
    sinks = [tmp_path / name for name in names]
    for sink in sinks:
        raftlog.open(sink).close()
    said = tmp_path / "said"
    status = run_driver(said, "tests.spark.writing.attempts_driver", source, tmp_path, *names)
    assert status == 0, said.read_text(errors="replace")[-4000:]
    for sink in sinks:
        with raftlog.open(sink, create=False) as log:
            assert [record.value for record in log.read()] == sent, sink.name
        ended = [file.name for file in ended_directory(sink).glob(f"{UNLUCKY}.*")]
        assert len(ended) >= 2, (sink.name, ended)
