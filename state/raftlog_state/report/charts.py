"""Charts of a cluster's history, as one Vega-Lite specification.

All charts share one time axis: moving or zooming one of them moves all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from raftlog.printable import printable

from .history import (
    ACTIVE,
    CONFIGS_CHANGED,
    ELECTIONS,
    FENCED,
    ISR_EXPANDS,
    ISR_SHRINKS,
    QUORUM_ELECTIONS,
    SHUTTING_DOWN,
    TOPICS_CREATED,
    TOPICS_DELETED,
    ClusterHistory,
    Gauge,
    Lanes,
)

Json: TypeAlias = dict[str, Any]

WIDTH: Final = 960
TOPICS_SHOWN_MAX: Final = 30
BROKERS_SHOWN_MAX: Final = 60
LABEL_PIXELS: Final = 170
_ROW_PIXELS: Final = 18
_DAY_MS: Final = 86_400_000
_BLUE, _ORANGE, _RED, _GREEN, _YELLOW, _GRAY = (
    "#4c78a8",
    "#f58518",
    "#d6423f",
    "#54a24b",
    "#e8b923",
    "#9aa5b1",
)
_UNDER_REPLICATED: Final = "under-replicated"
_LEADERLESS: Final = "without a leader"


def specification(history: ClusterHistory) -> Json:
    """Return the charts of a history as a Vega-Lite specification."""
    charts = list(_charts(history))
    for ordinal, chart in enumerate(charts):
        chart |= {"name": f"chart_{ordinal}", "width": WIDTH}
        chart["encoding"]["x"] = _time(history, is_last=ordinal == len(charts) - 1)
    zoom = {
        "name": "time",
        "select": {
            "type": "interval",
            "encodings": ["x"],
            "zoom": "wheel![event.shiftKey]",
        },
        "bind": "scales",
        "views": [chart["name"] for chart in charts],
    }
    return {
        "background": "white",
        "spacing": 14,
        "params": [zoom],
        "vconcat": charts,
        "resolve": {"scale": {"color": "independent", "y": "independent"}},
        "config": {
            "view": {"stroke": "#d5dbe1"},
            "axis": {"gridColor": "#edf0f3", "domainColor": "#c3cad1", "tickColor": "#c3cad1"},
            "axisY": {
                "minExtent": LABEL_PIXELS,
                "maxExtent": LABEL_PIXELS,
                "labelLimit": LABEL_PIXELS - 10,
            },
            "title": {"anchor": "start", "fontSize": 13, "frame": "group", "offset": 8},
            "legend": {"orient": "right", "title": None, "offset": 12},
            "font": "system-ui, sans-serif",
        },
    }


def _charts(history: ClusterHistory) -> Iterator[Json]:
    """Yield the charts that have data."""
    if history.leaders.intervals:
        yield _leaders(history)
    if history.brokers.intervals:
        yield _brokers(history.brokers)
    yield _unavailable(history)
    topics = history.most_under_replicated(TOPICS_SHOWN_MAX)
    cells = list(_cells(history, topics))
    if cells:
        yield _heat_map(cells, len({cell["topic"] for cell in cells}), len(history.by_topic))
    each = f"in each {duration_text(history.width_ms)}"
    for title, names, colors in (
        (
            f"Changes of ISRs, {each}",
            (ISR_SHRINKS, ISR_EXPANDS),
            (_RED, _GREEN),
        ),
        (f"Elections of the quorum's leader, {each}", (QUORUM_ELECTIONS,), (_ORANGE,)),
        (f"Elections of partition leaders, {each}", (ELECTIONS,), (_BLUE,)),
        (
            f"Topics and configs, {each}",
            (TOPICS_CREATED, TOPICS_DELETED, CONFIGS_CHANGED),
            (_GREEN, _RED, _BLUE),
        ),
    ):
        bars = list(_bars(history, names))
        if bars:
            yield _bar_chart(title, bars, names, colors)


# --- Intervals ------------------------------------------------------------------------------------


def _leaders(history: ClusterHistory) -> Json:
    values = [row | {"epoch": row["state"]} for row in _intervals(history.leaders)]
    lanes = sorted({row["lane"] for row in values})
    chart = _lanes_chart("Leader of the quorum, by epoch", "node", values, lanes)
    chart["mark"] |= {"stroke": "white", "strokeWidth": 1}
    chart["encoding"]["color"] = {
        "field": "lane",
        "type": "nominal",
        "scale": {"scheme": "tableau10"},
        "legend": None,
    }
    return chart


def _brokers(brokers: Lanes) -> Json:
    changes: dict[int, int] = {}
    for interval in brokers.intervals:
        changes[interval.lane] = changes.get(interval.lane, 0) + 1
    shown = sorted(sorted(changes, key=lambda lane: (-changes[lane], lane))[:BROKERS_SHOWN_MAX])
    values = [row for row in _intervals(brokers) if row["lane"] in shown]
    title = "Brokers"
    if len(shown) < len(changes):
        title += f": the {len(shown)} of {len(changes)} with the most changes"
    if brokers.omitted_count:
        title += f" ({brokers.omitted_count} short intervals are omitted)"
    chart = _lanes_chart(title, "broker", values, shown)
    chart["encoding"]["color"] = _colors(
        (ACTIVE, SHUTTING_DOWN, FENCED), (_BLUE, _YELLOW, _RED), "state"
    )
    return chart


def _intervals(lanes: Lanes) -> list[Json]:
    return [
        {
            "lane": interval.lane,
            "state": interval.state,
            "start": interval.start_ms,
            "end": interval.end_ms,
            "offset": interval.offset,
            "duration": duration_text(interval.end_ms - interval.start_ms),
        }
        for interval in lanes.intervals
    ]


def _lanes_chart(title: str, what: str, values: Sequence[Json], lanes: Sequence[int]) -> Json:
    return {
        "title": title,
        "height": max(len(lanes), 1) * _ROW_PIXELS,
        "data": {"values": list(values)},
        "mark": {"type": "bar", "height": {"band": 0.75}, "clip": True},
        "encoding": {
            "x2": {"field": "end"},
            "y": {
                "field": "lane",
                "type": "nominal",
                "title": None,
                "sort": list(lanes),
                "axis": {"labelExpr": f"'{what} ' + datum.label"},
            },
            "tooltip": [
                _text("lane", what),
                _text("state", "state"),
                _moment("start", "from"),
                _moment("end", "to"),
                _text("duration", "duration"),
                _text("offset", "offset of the record"),
            ],
        },
    }


# --- Gauges ---------------------------------------------------------------------------------------


def _unavailable(history: ClusterHistory) -> Json:
    count = history.bucket_count
    gauges = (
        (_UNDER_REPLICATED, history.under_replicated),
        (_LEADERLESS, history.leaderless),
    )
    values = [
        row | {"kind": kind, "base": 0, "top": row["count"]}
        for kind, gauge in gauges
        for row in _runs(history, gauge.by_bucket(count))
    ]
    return {
        "title": "Partitions that are under-replicated or without a leader "
        f"(maximum in each {duration_text(history.width_ms)})",
        "height": 120,
        "data": {"values": values},
        "mark": {"type": "rect", "clip": True, "opacity": 0.8},
        "encoding": {
            "x2": {"field": "end"},
            **_HEIGHT,
            "color": _colors((_UNDER_REPLICATED, _LEADERLESS), (_ORANGE, _RED), "kind"),
            "tooltip": [
                _text("kind", "partitions"),
                _text("count", "count"),
                _moment("start", "from"),
                _moment("end", "to"),
            ],
        },
    }


def _cells(history: ClusterHistory, topics: Iterable[tuple[str, Gauge]]) -> Iterator[Json]:
    for topic, gauge in topics:
        for row in _runs(history, gauge.by_bucket(history.bucket_count)):
            yield row | {"topic": printable(topic)}


def _heat_map(cells: Sequence[Json], shown: int, total: int) -> Json:
    title = "Under-replicated partitions of each topic"
    if shown < total:
        title += f": the {shown} that were under-replicated for the longest"
    return {
        "title": title,
        "height": shown * 13,
        "data": {"values": list(cells)},
        "mark": {"type": "bar", "height": {"band": 1}, "clip": True},
        "encoding": {
            "x2": {"field": "end"},
            "y": {
                "field": "topic",
                "type": "nominal",
                "title": None,
                "axis": {"labelFontSize": 9, "grid": True, "labelExpr": _SHORT_NAME},
            },
            "color": {
                "field": "count",
                "type": "quantitative",
                "scale": {"scheme": "orangered", "domainMin": 0},
                "legend": {"gradientLength": 100, "tickMinStep": 1, "format": "d"},
            },
            "tooltip": [
                _text("topic", "topic"),
                _text("count", "under-replicated"),
                _moment("start", "from"),
                _moment("end", "to"),
            ],
        },
    }


def _runs(history: ClusterHistory, values: Iterable[int]) -> Iterator[Json]:
    """Yield adjacent buckets of equal values as one row, without those of value 0."""
    start, last = 0, 0
    for bucket, value in enumerate([*values, 0]):
        if value != last:
            if last:
                yield _span(history, start, bucket) | {"count": last}
            start, last = bucket, value


def _span(history: ClusterHistory, first: int, end: int) -> Json:
    """Return the times of the buckets from ``first`` to ``end`` (exclusive)."""
    origin, width = history.start_ms, history.width_ms
    return {"start": origin + first * width, "end": min(origin + end * width, _end(history))}


# --- Counts ---------------------------------------------------------------------------------------


def _bars(history: ClusterHistory, names: Sequence[str]) -> Iterator[Json]:
    """Yield the counts as stacked bars; shrinks of ISRs are below the axis."""
    tops: dict[int, int] = {}
    for name in names:
        for bucket, count in sorted(history.counters[name].by_bucket.items()):
            base = 0 if name == ISR_SHRINKS else tops.get(bucket, 0)
            top = base - count if name == ISR_SHRINKS else base + count
            tops[bucket] = max(top, 0)
            yield _span(history, bucket, bucket + 1) | {
                "kind": name,
                "count": count,
                "a_minute": round(count * 60_000 / history.width_ms, 1),
                "base": base,
                "top": top,
            }


def _bar_chart(
    title: str, values: Sequence[Json], names: Sequence[str], colors: Sequence[str]
) -> Json:
    return {
        "title": title,
        "height": 40 if len(names) == 1 else 80,
        "data": {"values": list(values)},
        "mark": {"type": "rect", "clip": True},
        "encoding": {
            "x2": {"field": "end"},
            **_HEIGHT,
            "color": _colors(names, colors, "kind") | ({"legend": None} if len(names) == 1 else {}),
            "tooltip": [
                _text("kind", "what"),
                _text("count", "count"),
                _text("a_minute", "a minute"),
                _moment("start", "from"),
                _moment("end", "to"),
            ],
        },
    }


# --- Parts of charts ------------------------------------------------------------------------------

_HEIGHT: Final[Json] = {
    "y": {
        "field": "top",
        "type": "quantitative",
        "title": None,
        "axis": {
            "format": "~s",
            "tickCount": 4,
            "labelExpr": "datum.value === round(datum.value) ? datum.label : ''",
        },
    },
    "y2": {"field": "base"},
}
"""Height of a rectangle, from ``base`` to ``top``."""
_SHORT_NAME: Final = (
    "length(datum.label) <= 32 ? datum.label "
    ": slice(datum.label, 0, 13) + '...' + slice(datum.label, -16)"
)
"""Label of a topic, shortened in the middle if there is no space.

Names often differ only at their ends. A tooltip shows the whole name.
"""


def _end(history: ClusterHistory) -> int:
    return max(history.now_ms, history.start_ms + history.width_ms)


def _time(history: ClusterHistory, *, is_last: bool) -> Json:
    axis: Json = {"grid": True, "tickCount": 10} if is_last else {"labels": False, "ticks": False}
    return {
        "field": "start",
        "type": "temporal",
        "title": "time (UTC)" if is_last else None,
        "scale": {
            "type": "utc",
            "domain": [history.start_ms, _end(history)],
            "nice": False,
        },
        "axis": {"format": _time_format(history)} | axis,
    }


def _time_format(history: ClusterHistory) -> str:
    return "%H:%M:%S" if _end(history) - history.start_ms < _DAY_MS else "%d %b %H:%M"


def _colors(names: Sequence[str], colors: Sequence[str], field: str) -> Json:
    return {
        "field": field,
        "type": "nominal",
        "scale": {"domain": list(names), "range": list(colors)},
    }


def _text(field: str, title: str) -> Json:
    return {"field": field, "type": "nominal", "title": title}


def _moment(field: str, title: str) -> Json:
    return {
        "field": field,
        "type": "temporal",
        "title": title,
        "timeUnit": "utcyearmonthdatehoursminutesseconds",
        "format": "%Y-%m-%d %H:%M:%S",
    }


def duration_text(milliseconds: int) -> str:
    """Return a duration as text, in the two largest units."""
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:g} s"
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            whole, rest = divmod(round(seconds), length)
            smaller = {"d": ("h", 3600), "h": ("min", 60), "min": ("s", 1)}[unit]
            part = rest // smaller[1]
            return f"{whole} {unit} {part} {smaller[0]}" if part else f"{whole} {unit}"
    raise AssertionError("at least a minute")
