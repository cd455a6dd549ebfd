"""Comparison of a running node's state, read by ``Admin.java``, with a metadata image."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from raftlog_state.image import AclRow, MetadataImage, QuotaRow, ScramRow


def ordered(found: Iterable[Iterable[Any]]) -> list[list[Any]]:
    """Return rows sorted, whatever order Kafka keeps them in."""
    return sorted((list(one) for one in found), key=repr)


def assert_same_access(described: dict[str, Any], image: MetadataImage) -> None:
    """Check that the node has exactly the ACLs, quotas and SCRAM credentials."""
    assert ordered(described["acls"]) == ordered(
        [
            row.resource_type,
            row.resource_name,
            row.pattern_type,
            row.principal,
            row.host,
            row.operation,
            row.permission,
        ]
        for row in image.rows_of(AclRow)
    )
    assert ordered(described["quotas"]) == ordered(
        [dict(row.entity), row.quota, row.value] for row in image.rows_of(QuotaRow)
    )
    assert ordered(described["scram"]) == ordered(
        [row.user, row.mechanism, row.iterations] for row in image.rows_of(ScramRow)
    )
