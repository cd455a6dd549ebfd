"""Tables of a quorum's log, and of an embedded one, by the same calls."""

from __future__ import annotations

import threading

import pytest
from tests.client.remote.conftest import LogOpener

from raftlog.errors import KeyChangedError, OptionError

pytestmark = pytest.mark.slow


def test_a_table_follows_the_log_and_its_conditions_hold(opener: LogOpener) -> None:
    with (
        opener.open() as log,
        opener.open() as other,
        log.table() as table,
        other.table(follow=False) as rival,
    ):
        before = table.end_offset
        result = log.append([(b"table a", b"1"), (b"table b", b"1"), (b"table a", b"2")])
        table.wait_for(result.last_offset)
        assert table.offset(b"table a") == result.last_offset
        assert {key: table[key] for key in (b"table a", b"table b")} == {
            b"table a": b"2",
            b"table b": b"1",
        }
        assert b"table a" not in rival
        assert b"table a" not in table.as_of(before)
        assert table.as_of(result.base_offset + 1)[b"table a"] == b"1"
        won = rival.append([(b"table a", b"3")], unchanged={b"table a": result.last_offset})
        with pytest.raises(KeyChangedError) as caught:
            table.append([(b"table a", b"4")], unchanged={b"table a": result.last_offset})
        assert caught.value.offset == won.base_offset
        table.append(
            [(b"table a", None), (b"table b", None)],
            unchanged={b"table a": won.base_offset, b"table b": result.base_offset + 1},
        )
        rival.refresh()
        assert {b"table a", b"table b"} & rival.keys() == set()


def test_writers_of_a_shared_key_lose_no_update(opener: LogOpener) -> None:
    """Each thread has a handle and a table of its own; all count in one key."""
    rounds = 5
    with opener.open() as first, first.table(follow=False) as table:
        start = int(table.get(b"table total", b"0"))

    def count() -> None:
        with opener.open() as log, log.table(follow=False) as table:
            done = 0
            while done < rounds:
                table.refresh()
                state = table.state()
                value = b"%d" % (int(state.get(b"table total", b"0")) + 1)
                unchanged = {b"table total": state.offset(b"table total")}
                try:
                    table.append([(b"table total", value)], unchanged=unchanged, timeout_ms=60_000)
                except KeyChangedError:
                    continue
                done += 1

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with opener.open() as last, last.table() as table:
        assert int(table[b"table total"]) == start + 3 * rounds


def test_a_log_of_metadata_has_no_table(opener: LogOpener) -> None:
    with opener.open("kraft") as log, pytest.raises(OptionError, match="no keys"):
        log.table()
