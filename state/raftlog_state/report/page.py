"""The report as one HTML file: charts, tables and the library that draws the charts.

The file makes no requests. Its content security policy forbids every connection, and every script
except those in the file, which the policy names by their hashes. Vega expressions are interpreted,
not compiled, so that ``unsafe-eval`` is not needed. All texts of a log are escaped twice:
characters that are not printable as ``\\uXXXX``, and HTML's special characters.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from types import ModuleType
from typing import Final

from raftlog.client.offset_spec import time_text
from raftlog.errors import OptionError
from raftlog.printable import printable
from raftlog_state.image import STATE_ENTITIES, Entity, MetadataImage, table_of
from raftlog_state.image.change_text import what_changed
from raftlog_state.image.delta import Op
from raftlog_state.image.differences import differences
from raftlog_state.image.entity_names import name_of

from .charts import duration_text, specification
from .history import ClusterHistory, Event, Events

DIFFERENCES_MAX: Final = 200
"""Differing rows of each entity that are listed at most."""
TEXT_CHARACTERS_MAX: Final = 400
_OPS: Final = ((Op.CREATE, "created"), (Op.UPDATE, "changed"), (Op.DELETE, "deleted"))
_PICTURE_PADDING: Final = {"left": 5, "top": 5, "right": 30, "bottom": 5}
"""On the right for the legend: a browser's font may be wider than the measured one."""
_NAMED_EXTRA: Final = 'pip install "raftlog[report]"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Report on a cluster between two states. ``source`` is the path or the nodes of the log."""

    source: str
    cluster_id: str | None
    before: MetadataImage
    after: MetadataImage
    history: ClusterHistory

    def __repr__(self) -> str:
        start, end = self.before.offset + 1, self.after.offset + 1
        return f"Report({self.source!r}, start_offset={start}, end_offset={end})"

    def html(self) -> str:
        """Return the report as one HTML file. Raises ``OptionError`` without ``vl-convert``."""
        bundle = _script()
        digest = base64.b64encode(hashlib.sha256(bundle.encode()).digest()).decode()
        charts = _inline_json(specification(self.history))
        return "\n".join(
            (
                _HEAD.format(title=_text(self._title()), digest=digest),
                *self._sections(),
                f'<script type="application/json" id="charts-data">{charts}</script>',
                f"<script>{bundle}</script>",
                "</body></html>\n",
            )
        )

    def svg(self) -> str:
        """Return the charts as SVG. Raises ``OptionError`` without ``vl-convert``."""
        charts = specification(self.history) | {"padding": _PICTURE_PADDING}
        found: str = chart_library().vegalite_to_svg(charts)
        return found

    def png(self) -> bytes:
        """Return the charts as PNG. Raises ``OptionError`` without ``vl-convert``."""
        found: bytes = chart_library().vegalite_to_png(specification(self.history), scale=1.5)
        return found

    def _title(self) -> str:
        return "Cluster" if self.cluster_id is None else f"Cluster {self.cluster_id}"

    def _sections(self) -> Iterator[str]:
        history = self.history
        start, end = time_text(history.start_ms), time_text(history.now_ms)
        first, last = self.before.offset + 1, self.after.offset + 1
        yield f"<h1>{_text(self._title())}</h1>"
        yield (
            f"<p>{start} to {end} ({duration_text(history.now_ms - history.start_ms)}), offsets "
            f"{first} to {last} (exclusive) of {_text(self.source)}. Times are those of the "
            "records, in UTC.</p>"
        )
        yield from self._numbers()
        yield '<p class="hint">Drag moves all charts in time, Shift and the wheel zoom, a double '
        yield "click shows everything again.</p>"
        yield '<div id="charts"><noscript>The charts need JavaScript.</noscript></div>'
        yield from _differences(self.before, self.after)
        yield from _events("Topics created and deleted", history.topics)
        yield from _events("Changes of configs", history.configs)

    def _numbers(self) -> Iterator[str]:
        """Yield the sizes of the cluster before and after, and the numbers of events."""
        entities = (Entity.BROKER, Entity.TOPIC, Entity.PARTITION, Entity.CONFIG, Entity.ACL)
        sizes = [
            [table_of(entity), *(str(len(one.map(entity))) for one in (self.before, self.after))]
            for entity in entities
        ]
        counts = [[name, str(counter.total)] for name, counter in self.history.counters.items()]
        yield '<div class="side">'
        yield from _table(["", "at the start", "at the end"], sizes, "numbers")
        yield from _table(["", "in between"], counts, "numbers")
        yield "</div>"


def _differences(before: MetadataImage, after: MetadataImage) -> Iterator[str]:
    """Yield the differences between the states: a table of numbers, and the first rows."""
    yield "<h2>What differs between the start and the end</h2>"
    numbers, rows = [], []
    for entity in STATE_ENTITIES:
        counts: Counter[Op] = Counter()
        for change in differences(before, after, entity):
            counts[change.op] += 1
            if counts.total() <= DIFFERENCES_MAX:
                row = change.after or change.before
                assert row is not None, "a change has a row"
                rows.append([name_of(row), what_changed(change)])
        if counts:
            numbers.append([table_of(entity), *(str(counts[op]) for op, _ in _OPS)])
            if counts.total() > DIFFERENCES_MAX:
                rows.append([table_of(entity), f"{counts.total() - DIFFERENCES_MAX} more"])
    if not numbers:
        yield "<p>Nothing.</p>"
        return
    yield from _table(["", *(name for _, name in _OPS)], numbers, "numbers")
    yield "<details><summary>Rows that differ</summary>"
    yield from _table(["what", "difference"], rows)
    yield "</details>"


def _events(title: str, events: Events) -> Iterator[str]:
    if not events.count:
        return
    yield f"<h2>{title}: {events.count}</h2><details><summary>List</summary>"
    if events.count > len(events.first):
        yield f"<p>The first {len(events.first)}; <code>raftlog log</code> prints all.</p>"
    yield from _table(["time", "offset", "what", "change"], map(_event, events.first), "events")
    yield "</details>"


def _event(event: Event) -> list[str]:
    return [time_text(event.time_ms), str(event.offset), event.name, event.text]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "rows") -> Iterator[str]:
    yield f'<table class="{kind}"><tr>{"".join(f"<th>{name}</th>" for name in head)}</tr>'
    yield from map(_row, rows)
    yield "</table>"


def _row(cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in cells)}</tr>"


def _text(text: str) -> str:
    """Return a text for HTML, limited in length."""
    if len(text) > TEXT_CHARACTERS_MAX:
        text = f"{text[:TEXT_CHARACTERS_MAX]}..."
    return escape(printable(text))


def _inline_json(data: object) -> str:
    """Return data as JSON in a ``script`` element that no text in the data can end."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


@cache
def _script() -> str:
    """Return the script of the page: Vega-Lite, and what draws the charts."""
    bundle: str = chart_library().javascript_bundle(_EMBED)
    assert "</script" not in bundle.lower(), "it would end its element"
    return bundle


def chart_library() -> ModuleType:
    """Return the library that draws charts, which has 90 MB and is needed only for reports.

    Raises ``OptionError`` if it is not installed.
    """
    try:
        import vl_convert
    except ImportError:
        reason = f"the charts need the package vl-convert-python: {_NAMED_EXTRA}"
        raise OptionError(option="--output", reason=reason) from None
    return vl_convert


_EMBED: Final = """
const spec = JSON.parse(document.getElementById("charts-data").textContent);
vegaEmbed("#charts", spec, {
  mode: "vega-lite", ast: true, renderer: "svg",
  actions: {export: true, source: false, compiled: false, editor: false},
}).then(
  () => { document.body.dataset.charts = "drawn"; },
  (error) => { document.getElementById("charts").textContent = `The charts failed: ${error}`; });
"""

_HEAD: Final = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data: blob:; \
style-src 'unsafe-inline'; script-src 'sha256-{digest}'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 14px/1.45 system-ui, sans-serif; color: #1d2733; max-width: 1320px; \
margin: 24px auto; padding: 0 20px; }}
h1 {{ font-size: 22px; margin: 0 0 4px; }}
h2 {{ font-size: 16px; margin: 28px 0 6px; }}
p {{ margin: 4px 0 10px; }}
.hint {{ color: #5b6875; }}
table {{ border-collapse: collapse; margin: 6px 0 14px; }}
th, td {{ text-align: left; padding: 2px 14px 2px 0; border-bottom: 1px solid #e4e8ec; \
vertical-align: top; }}
th {{ color: #5b6875; font-weight: 600; }}
.numbers td + td, .numbers th + th {{ text-align: right; font-variant-numeric: tabular-nums; }}
.side {{ display: flex; flex-wrap: wrap; gap: 0 60px; align-items: flex-start; }}
.rows td, .events td {{ overflow-wrap: anywhere; }}
.rows td:first-child {{ width: 32%; }}
.events td {{ min-width: 90px; }}
.events td:nth-child(-n+2) {{ white-space: nowrap; }}
details table {{ font-size: 13px; }}
summary {{ cursor: pointer; }}
#charts {{ overflow-x: auto; }}
</style></head><body>"""
