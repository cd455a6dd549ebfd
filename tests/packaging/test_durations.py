"""Recorded durations: files that grew are printed, and the longest tests start first."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support import durations
from tests.support.durations import (
    grown_files,
    read_durations,
    sort_longest_first,
    write_durations,
)

pytest_plugins = ("pytester",)


def test_durations_round_trip_without_the_shortest_files(tmp_path: Path) -> None:
    write_durations(tmp_path / "quick.tsv", {"a.py": 1.0, "b.py": 2.5, "c.py": 0.01})
    assert list(read_durations(tmp_path / "quick.tsv").items()) == [("b.py", 2.5), ("a.py", 1.0)]


def test_no_file_has_grown_where_the_whole_machine_is_slower() -> None:
    before = {"a.py": 10.0, "b.py": 20.0, "c.py": 30.0}
    assert not grown_files(before, {name: 2 * seconds for name, seconds in before.items()})


def test_a_file_that_grew_relative_to_the_others_is_reported() -> None:
    before = {"a.py": 10.0, "b.py": 20.0, "c.py": 30.0}
    now = {"a.py": 20.0, "b.py": 60.0, "c.py": 60.0}
    assert grown_files(before, now) == ["b.py: 60.0 s, expected 40.0 s"]


def test_the_longest_group_and_file_start_first(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = pytester.path / "recorded"
    write_durations(recorded / "long.tsv", {"test_a.py": 3.0, "test_b.py": 2.0, "test_c.py": 2.0})
    monkeypatch.setattr(durations, "RECORDED", recorded)
    monkeypatch.setenv("RAFTLOG_DURATIONS", "long.tsv")
    body = "def test_it(): pass"
    mark = "import pytest\npytestmark = pytest.mark.xdist_group('shared')\n"
    pytester.makepyfile(test_a=body, test_b=mark + body, test_c=mark + body, test_new=body)
    items, _ = pytester.inline_genitems()
    sort_longest_first(items)
    assert [item.path.stem for item in items] == ["test_b", "test_c", "test_a", "test_new"]
