"""``raftlog bench``: what it appends, and how it counts latencies."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tests.support.cli import run

import raftlog
from raftlog_state.cli.bench import QUANTILES, Latencies


def test_quantiles_are_those_of_the_sorted_latencies_within_a_percent() -> None:
    rng = random.Random(5)
    for count in (1, 2, 10, 3_000):
        drawn = [rng.lognormvariate(1.0, 2.0) for _ in range(count)]
        parts = [Latencies(), Latencies(), Latencies()]
        for at, latency_ms in enumerate(drawn):
            parts[at % 3].add(latency_ms)
        found = Latencies()
        for part in parts:
            found.merge(part)
        assert found.count == count
        assert found.sum_ms == pytest.approx(sum(drawn))
        for share in (*QUANTILES, 1.0):
            exact = sorted(drawn)[max(-(-round(share * 1_000) * count // 1_000) - 1, 0)]
            assert exact <= found.quantile(share) * 1.000_001
            assert found.quantile(share) <= exact * 1.010_001
        assert found.quantile(1.0) == max(drawn)


def test_latencies_of_zero_and_none_at_all_have_quantiles() -> None:
    found = Latencies()
    assert found.quantile(0.5) == 0
    found.add(0.0)
    assert found.quantile(0.99) == found.max_ms == 0


def test_all_records_are_appended_in_batches_by_several_clients(tmp_path: Path) -> None:
    path = tmp_path / "bench-0"
    words = ("--records", "7", "--batch", "3", "--clients", "2", "--size", "50")
    status, out, err = run("bench", path, "--create", *words, "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert (found["records"], found["clients"], found["batch"], found["size"]) == (7, 2, 3, 50)
    assert 0 < found["p50_ms"] <= found["p90_ms"] <= found["p99_ms"] <= found["max_ms"]
    assert found["records_per_second"] > 0
    with raftlog.open(path) as log:
        assert [len(record.value or b"") for record in log.read()] == [50] * 7
    status, out, err = run("bench", path, "--records", "2")
    assert (status, out) == (2, "")
    assert "--existing: must be given: the log has records from offset 1 on" in err
    status, out, err = run("bench", path, "--records", "2", "--existing")
    assert (status, err) == (0, "")
    first, second, third = out.splitlines()
    assert first.startswith("2 records of 100 bytes in ")
    assert first.endswith(" s (clients: 1, records of an append: 1)")
    assert second.startswith("throughput: ")
    assert second.endswith(" bytes/s")
    assert third.startswith("latency of an append: mean ")
    assert ", p99.9 " in third
    with raftlog.open(path) as log:
        assert log.end_offset == 10


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--records", "0"), "--records: must be from 1 to"),
        (("--size", "-1"), "--size: must be from 0 to"),
        (("--clients", "1000"), "--clients: must be from 1 to 256"),
        (("--size", "1000000", "--batch", "100"), "--batch: an append of --batch records"),
        (("--bootstrap-server", "localhost:1", "--create"), "--create requires PATH"),
    ],
)
def test_invalid_numbers_append_nothing(words: tuple[str, ...], reason: str) -> None:
    path = () if "--bootstrap-server" in words else ("/nonexistent/bench-0",)
    status, out, err = run("bench", *path, *words)
    assert (status, out) == (2, "")
    assert reason in err


def test_an_error_of_a_client_ends_the_others(tmp_path: Path) -> None:
    path = tmp_path / "cluster-0"
    raftlog.open(path, values="kraft").close()
    status, out, err = run("bench", path, "--clients", "3")
    assert (status, out) == (1, "")
    assert "RAFTLOG_INVALID_APPEND" in err
