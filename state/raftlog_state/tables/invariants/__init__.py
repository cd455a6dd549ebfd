"""Invariants: rules of Kafka that a cluster's rows satisfy, as queries of the typed views.

Rules of this file:

1. Each ``*.sql`` file is one query that returns the rows that violate one rule. It reads
   ``topics``, ``partitions_history`` and so on by these names, so it also runs on a schema's views.
2. Every Kafka log satisfies a rule at every offset, not just a healthy cluster. The file names the
   rule's source in Kafka.
3. No query returns a column that may contain a secret.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from pyspark.sql import DataFrame

from raftlog_state.tables.stores.spark import shuffle_partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """Rows that violate a rule. ``first`` is one of them as JSON."""

    rule: str
    row_count: int
    first: str

    def __str__(self) -> str:
        more = f" ({self.row_count} rows)" if self.row_count > 1 else ""
        return f"{self.rule}: {self.first}{more}"


@cache
def rules() -> Mapping[str, str]:
    """Return the queries by file name, sorted."""
    found = (entry for entry in files(__name__).iterdir() if entry.name.endswith(".sql"))
    texts = {entry.name.removesuffix(".sql"): entry.read_text("utf-8") for entry in found}
    return dict(sorted(texts.items()))


def violations(
    views: Mapping[str, DataFrame], queries: Mapping[str, str] | None = None
) -> tuple[Violation, ...]:
    """Return the violations of the rules, found by one query.

    The session's views are unchanged: ``WITH`` maps the names in the rules to temporary views with
    other names.

    Args:
        views: the typed tables and their histories, by name. queries: some of the rules; None: all
            of them.
    """
    queries = rules() if queries is None else queries
    prefix = f"raftlog_{uuid.uuid4().hex}_"
    used = [name for name in views if any(reads(query, name) for query in queries.values())]
    named = ", ".join(f"{name} AS (SELECT * FROM {prefix}{name})" for name in used)
    rows = " UNION ALL ".join(
        f"SELECT '{rule}' AS rule, to_json(struct(*), map('ignoreNullFields', 'false')) AS row "
        f"FROM (\n{query}\n)"
        for rule, query in queries.items()
    )
    session = views[used[0]].sparkSession
    # Each task receives the plans of all rules, so one task per rule would take longer to start
    # than to run.
    few = f"SELECT /*+ COALESCE({shuffle_partitions(session)}) */ * FROM ({rows})"
    grouped = f"SELECT rule, count(*) AS row_count, min(row) AS first FROM ({few}) GROUP BY rule"
    try:
        for name in used:
            views[name].createOrReplaceTempView(prefix + name)
        found = session.sql(f"WITH {named} {grouped}").collect()
    finally:
        for name in used:
            session.catalog.dropTempView(prefix + name)
    return tuple(Violation(**row.asDict()) for row in sorted(found))


def reads(query: str, view: str) -> bool:
    """Return whether a rule reads a view."""
    return re.search(rf"\b{view}\b", query) is not None
