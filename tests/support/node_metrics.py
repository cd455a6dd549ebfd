"""Metrics of a node, read over HTTP with Prometheus' own strict parser."""

from __future__ import annotations

import urllib.request

from prometheus_client.openmetrics.parser import text_string_to_metric_families

Figures = dict[tuple[str, ...], float]
"""Values by metric name, followed by the values of the labels."""


def metrics_at(port: int) -> Figures:
    """Return the metrics served at a loopback port."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/metrics", headers={"Accept": "application/openmetrics-text"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
