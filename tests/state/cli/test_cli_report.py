"""``raftlog report``: a file that opens offline, escapes what is in the log, and stays small."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.support.cli import run
from tests.support.sweep_size import nightly_except

import raftlog
from raftlog.errors import OptionError
from raftlog_state import read_report
from raftlog_state.image import Entity, MetadataImage, PartitionRow
from raftlog_state.image.delta import Op, RecordChanges, RowChange
from raftlog_state.records import ConfigRecord, PartitionRecord, TopicRecord, encode
from raftlog_state.report.charts import LABEL_PIXELS, TOPICS_SHOWN_MAX, WIDTH, duration_text
from raftlog_state.report.history import ClusterHistory
from raftlog_state.report.page import Report
from raftlog_state.tables import reader

LOGS = Path(__file__).parents[2] / "data" / "kraft-logs"
NODE = LOGS / "three-nodes-4.3.1" / "node-100"
TRIMMED = LOGS / "trimmed-3.9.2" / "node-1"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
EVIL = "</script><script>document.title='EVIL'</script><img src=x onerror=alert(1)>"
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
START_MS = 1_700_000_000_000
HTML_BYTES_MAX = 2_500_000


class Elements(HTMLParser):
    """Elements of a page, and the texts of its scripts and of everything else."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._in_script = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data
        else:
            self.text += data


def report(source: Path | str, output: Path, *options: str) -> str:
    status, out, err = run("report", "--quiet", source, "-o", output, *options)
    assert (status, err) == (0, "")
    assert out == f"{output}\n"
    return output.read_text()


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """Log whose names and values contain HTML, and a secret."""
    path = tmp_path / "cluster-0"
    with raftlog.open(path, values="kraft") as log:
        for record in (
            TopicRecord(name=EVIL, topic_id=TOPIC_ID),
            PartitionRecord(
                partition_id=0,
                topic_id=TOPIC_ID,
                replicas=(1, 2),
                isr=(1,),
                leader=1,
                directories=(),
            ),
            ConfigRecord(resource_type=2, resource_name=EVIL, name="x", value=EVIL),
            ConfigRecord(
                resource_type=4, resource_name="1", name="ssl.key.password", value="hunter2"
            ),
        ):
            log.append([encode(record)])
    return path


def test_the_page_requests_nothing_and_runs_only_its_own_script(tmp_path: Path) -> None:
    page = Elements(report(NODE, tmp_path / "c.html"))
    names = {name for _, attributes in page.tags for name in attributes}
    assert not names & {"src", "href", "action", "srcset", "data"}
    assert not [name for name in names if name.startswith("on")]
    policy = next(
        attributes["content"]
        for tag, attributes in page.tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert re.search(r"script-src 'sha256-[\w+/=]+'$", policy)
    assert [tag for tag, _ in page.tags].count("script") == 2
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert policy.endswith(f"'sha256-{digest}'"), "a browser runs a script with this hash only"


def test_the_log_and_its_end_are_described_once(tmp_path: Path) -> None:
    status, _, err = run("report", NODE, "-o", tmp_path / "c.svg")
    assert status == 0
    assert [line.split(":")[1].strip() for line in err.splitlines()] == [
        "the end offset is 3131 (exclusive)",
        "the state at end offset 3131 is built from the start of the log",
    ]


@pytest.fixture(scope="module")
def tables_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Return the tables of a log, written once."""

    @cache
    def tables(node: Path) -> Path:
        place = tmp_path_factory.mktemp("delta") / "tables"
        assert run("tables", "follow", node, place, "--once", "--tail-holdback-ms", "0")[0] == 0
        return place

    return tables


@pytest.mark.slow
@pytest.mark.parametrize(
    ("node", "span", "replayed"),
    [
        pytest.param(NODE, (), 700, marks=pytest.mark.nightly),
        pytest.param(NODE, ("--from", "1200", "--to", "1300"), 70, marks=pytest.mark.nightly),
        (TRIMMED, (), 70),
    ],
)
def test_tables_give_the_report_of_their_log(
    node: Path,
    span: tuple[str, ...],
    replayed: int,
    tables_of: Callable[[Path], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are read in several parts. ``test_cli_diff.py`` has reports of a range of tables."""
    monkeypatch.setattr(reader, "OFFSETS_REPLAYED", replayed)
    tables = tables_of(node)
    of_log = report(node, tmp_path / "log.html", *span)
    of_tables = report(tables, tmp_path / "tables.html", *span)
    assert of_tables.replace(str(tables), str(node)) == of_log

    status, out, err = run(
        "report", tables, "-o", tmp_path / "c.svg", "--from", "1250", "--to", "1240"
    )
    assert (status, out) == (2, "")
    assert "option --from: offset 1250 is after that of --to, 1240" in err


def test_names_and_values_of_a_log_are_texts_not_markup(tmp_path: Path, evil: Path) -> None:
    html = report(evil, tmp_path / "c.html")
    page = Elements(html)
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert "img" not in {tag for tag, _ in page.tags}
    assert EVIL in page.text, "the list of topics has the name"
    spec = json.loads(page.scripts[0])
    topics = {
        row["topic"]
        for chart in spec["vconcat"]
        for row in chart["data"]["values"]
        if "topic" in row
    }
    assert topics == {EVIL}


def test_secrets_are_redacted_unless_they_are_revealed(tmp_path: Path, evil: Path) -> None:
    assert "hunter2" not in report(evil, tmp_path / "c.html")
    assert "hunter2" in report(evil, tmp_path / "c.html", "--reveal")


def test_a_call_in_python_gives_the_charts_of_the_command(tmp_path: Path) -> None:
    charts = report(NODE, tmp_path / "c.svg", "--from", "1200", "--to", "2026-11-21 08:04:50")
    found = read_report(NODE, since=1200, until="2026-11-21 08:04:50")
    numbered = re.compile(r"(clip|gradient_)\d+")  # by all charts of the process
    assert numbered.sub("", found.svg()) == numbered.sub("", charts)
    assert repr(found) == f"Report({str(NODE)!r}, start_offset=1200, end_offset=2226)"
    with pytest.raises(OptionError, match="option since: offset 1300 is after that of until, 1200"):
        read_report(NODE, since=1300, until=1200)


def test_the_same_log_gives_the_same_file(tmp_path: Path) -> None:
    first = report(NODE, tmp_path / "1.html", "--from", "1200", "--to", "1300")
    assert first == report(NODE, tmp_path / "2.html", "--from", "1200", "--to", "1300")
    assert "offsets 1200 to 1300 (exclusive)" in first


def test_a_log_without_its_first_records_begins_with_its_oldest_snapshot(tmp_path: Path) -> None:
    page = Elements(report(TRIMMED, tmp_path / "c.html"))
    assert re.search(r"offsets [1-9]\d* to 1305", page.text)


def test_the_leader_at_the_start_of_a_range_was_elected_before_it(tmp_path: Path) -> None:
    page = Elements(report(NODE, tmp_path / "c.html", "--from", "2100", "--to", "2700"))
    first, *_ = json.loads(page.scripts[0])["vconcat"]
    (leader,) = first["data"]["values"]
    assert (leader["lane"], leader["epoch"]) == (100, "epoch 2"), "as `raftlog state epochs`"


def test_a_range_without_changes_has_a_report(tmp_path: Path) -> None:
    page = Elements(report(NODE, tmp_path / "c.html", "--from", "1200", "--to", "1200"))
    assert "Nothing." in page.text


def test_labels_of_topics_have_both_ends_of_long_names(tmp_path: Path) -> None:
    names = [f"team-orders.service-of-the-shop.events-of-payments.v{at}" for at in range(2)]
    with raftlog.open(tmp_path / "cluster-0", values="kraft") as log:
        for at, name in enumerate(names):
            topic_id = f"{at}" * 21 + "A"
            partition = PartitionRecord(
                partition_id=0,
                topic_id=topic_id,
                replicas=(1, 2),
                isr=(1,),
                leader=1,
                directories=(),
            )
            log.append([encode(TopicRecord(name=name, topic_id=topic_id))])
            log.append([encode(partition)])
    labels = re.findall(r">(team-[^<]*)<", report(tmp_path / "cluster-0", tmp_path / "c.svg"))
    assert labels == [f"{name[:13]}...{name[-16:]}" for name in names]


def test_charts_alone_are_pictures(tmp_path: Path) -> None:
    svg = report(NODE, tmp_path / "c.svg")
    assert svg.startswith("<svg")
    for title in ("Leader of the quorum", "Brokers", "controlled shutdown", "__consumer_offsets"):
        assert title in svg
    check_bars(svg)
    width = int(re.findall(r'^<svg[^>]* width="([0-9]+)"', svg)[0])
    assert width > LABEL_PIXELS + WIDTH + 150, "a wider font would cut texts of the legend"
    status, _, _ = run("report", "--quiet", NODE, "-o", tmp_path / "c.png")
    assert status == 0
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_wrong_outputs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, _, err = run("report", NODE, "-o", tmp_path / "c.pdf")
    assert status == 2
    assert "must end in .html, .svg, .png" in err
    status, _, err = run("report", "--quiet", NODE, "-o", tmp_path / "none" / "c.html")
    assert status == 2
    assert "no such file or directory" in err
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    status, _, err = run("report", "--quiet", NODE, "-o", tmp_path / "c.svg")
    assert status == 2
    assert 'pip install "raftlog[report]"' in err
    assert not list(tmp_path.iterdir())


def test_an_output_that_cannot_be_written_is_an_error_before_the_log_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "c.svg"
    directory.mkdir()
    for path in (directory, tmp_path / "none" / "c.svg"):
        status, _, err = run("report", NODE, "-o", path)
        assert (status, len(err.splitlines())) == (2, 1), "nothing about the log"
        assert f"option --output: {path}: " in err
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert len(run("report", NODE, "-o", tmp_path / "d.svg")[2].splitlines()) == 1
    assert [*tmp_path.rglob("*")] == [directory]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_an_error_leaves_the_report_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    output = tmp_path / "c.svg"
    output.write_text("before")
    (tmp_path / "c.svg.part").write_text("of a command that was killed")

    def fail(*_: str) -> None:
        raise error

    monkeypatch.setattr(os, "replace", fail)
    status, _, err = run("report", "--quiet", NODE, "-o", output)
    if isinstance(error, OSError):
        assert (status, "no space left" in err) == (2, True)
    else:
        assert status == 130
    assert [*tmp_path.iterdir()] == [output]
    assert output.read_text() == "before"


def test_durations_are_rounded_to_two_units() -> None:
    times = (500, 61_000, 3_600_000, 93_784_000)
    assert [*map(duration_text, times)] == ["0.5 s", "1 min 1 s", "1 h", "1 d 2 h"]


def rows_of_many_topics(count: int, *, isr: int) -> Iterator[PartitionRow]:
    """Yield partitions, fifty of a topic, with names as long as Kafka permits."""
    for at in range(count):
        topic = f"{at // 50:05d}".ljust(249, "x")
        yield PartitionRow(
            topic_id=topic,
            partition_id=at % 50,
            topic_name=topic,
            replicas=(1, 2, 3),
            isr=(1, 2, 3)[:isr],
            directories=(),
            leader=1,
            leader_epoch=0,
            partition_epoch=0,
        )


@pytest.mark.slow
@pytest.mark.parametrize("count", nightly_except([10_000], [10_000, 100_000]))
def test_a_report_on_many_partitions_is_small(count: int) -> None:
    whole = list(rows_of_many_topics(count, isr=3))
    short = list(rows_of_many_topics(count, isr=2))
    before = MetadataImage.from_rows(whole, offset=0, leader_epoch=1, timestamp_ms=START_MS)
    after = MetadataImage.from_rows(short, offset=9, leader_epoch=1, timestamp_ms=START_MS)
    history = ClusterHistory(before, START_MS)
    states = (whole, short, whole, short)
    for turn in range(3):
        for at in range(count):
            old, new = states[turn][at], states[turn + 1][at]
            change = RowChange(Entity.PARTITION, old.key, Op.UPDATE, old, new)
            time_ms = START_MS + (turn * count + (at * 7919) % count) * 40
            history.add(RecordChanges(at, at, 1, time_ms, "PARTITION_CHANGE_RECORD", (change,)))
    history.finish(START_MS + 3 * count * 40)
    found = Report(source="x", cluster_id="c", before=before, after=after, history=history)
    page = found.html()
    assert len(page) < HTML_BYTES_MAX
    spec = json.loads(Elements(page).scripts[0])
    shown = {
        row["topic"] for one in spec["vconcat"] for row in one["data"]["values"] if "topic" in row
    }
    assert len(shown) == TOPICS_SHOWN_MAX


def check_bars(picture: str) -> None:
    """Check the width of one bar: the time for which broker 3 was fenced before it was deleted."""
    fenced_ms = 1_795_248_265_680 - 1_795_248_258_007
    history_ms = 1_795_248_298_899 - 1_795_248_203_359
    widths = [float(width) for width in re.findall(r'd="M[\d.,-]+h([\d.]+)v', picture)]
    assert any(abs(width - WIDTH * fenced_ms / history_ms) < 0.5 for width in widths)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
@pytest.mark.parametrize("is_evil", [False, True])
def test_a_browser_without_a_network_draws_the_charts(
    tmp_path: Path, evil: Path, is_evil: bool
) -> None:
    report(evil if is_evil else NODE, tmp_path / "c.html")
    dom = in_browser(tmp_path)
    assert 'data-charts="drawn"' in dom
    assert "<title>Cluster" in dom, "no script of the log has run"
    if not is_evil:
        check_bars(dom)


def in_browser(place: Path) -> str:
    """Return the document that a headless Chromium has after its scripts have run."""
    assert CHROMIUM is not None
    options = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
        "--disable-background-networking --disable-component-update --virtual-time-budget=20000"
    )
    profile = f"--user-data-dir={place / 'profile'}"
    page = (place / "c.html").as_uri()
    done = subprocess.run(
        [CHROMIUM, *options.split(), profile, "--dump-dom", page],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout
