"""Headers and messages of the protocol encoded by Kafka's own classes, by name."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kio.schema.api_versions.v4.request import ApiVersionsRequest
from kio.schema.fetch_snapshot.v1.request import FetchSnapshotRequest
from kio.schema.vote.v2.request import VoteRequest

from raftlog.wire import latest_schemas

_FILE = Path(__file__).parents[1] / "data" / "kraft-golden-vectors.tsv"
_KINDS: dict[str, type[Any]] = {
    "Fetch": latest_schemas.FetchRequest,
    "FetchResponse": latest_schemas.FetchResponse,
    "FetchSnapshot": FetchSnapshotRequest,
    "Vote": VoteRequest,
    "ApiVersions": ApiVersionsRequest,
}


@dataclass(frozen=True, slots=True)
class Vector:
    name: str
    version: int
    data: bytes
    kind: type[Any]
    """Return the expected decoded message."""


def _rows(kind: str) -> list[list[str]]:
    with _FILE.open(encoding="utf-8", newline="") as lines:
        rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [row for row in rows if row[0] == kind]


def message_vectors() -> list[Vector]:
    """Return the bodies of requests and responses."""
    return [
        Vector(row[1], int(row[2]), bytes.fromhex(row[3]), _KINDS[row[1].split()[0]])
        for row in _rows("rpc body")
    ]


def message_vector(name: str, version: int) -> bytes:
    return next(one.data for one in message_vectors() if (one.name, one.version) == (name, version))


def header_vectors() -> list[tuple[int, bytes]]:
    """Return versions and bytes of request headers."""
    return [(int(row[2]), bytes.fromhex(row[3])) for row in _rows("request header")]
