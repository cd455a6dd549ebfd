"""Cluster state and its differences as JSON, one row a line.

Columns that a snapshot does not contain (the broker that allocated the last block of producer ids)
are omitted, so that the state at an offset does not depend on the snapshot that was loaded.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from raftlog_state.image import (
    STATE_ENTITIES,
    Entity,
    MetadataImage,
    PartitionRow,
    Row,
    row_json,
    table_of,
)
from raftlog_state.image.delta import Op, RowChange
from raftlog_state.image.image_writer import image_records
from raftlog_state.image.named_diff import NO_COLUMNS
from raftlog_state.records import to_json_text

from .output import Output, json_text


def print_image(image: MetadataImage, output: Output) -> None:
    """Print one JSON object: offset, epoch and voters, then a list for each kind, a row a line."""
    quorum = image.quorum
    head = {
        "end_offset": image.offset + 1,
        "leader_epoch": image.leader_epoch,
        "timestamp_ms": image.timestamp_ms,
        "kraft_version": quorum.kraft_version,
        "voters": [asdict(voter) for voter in quorum.voters],
    }
    end = json_text(head)[:-1]
    for entity in STATE_ENTITIES:
        output.line(f"{end},")
        rows = [json_text(_row(row)) for row in image.rows(entity)]
        output.line(f'"{table_of(entity)}":[')
        output.lines(f"{row}," for row in rows[:-1])
        output.lines(rows[-1:])
        end = "]"
    output.line("]}")


def print_rows(image: MetadataImage, kind: str, output: Output) -> None:
    """Print the rows of one kind, one line each."""
    (entity,) = (entity for entity in Entity if table_of(entity) == kind)
    for row in image.rows(entity):
        output.line(json_text(_row(row)))


def print_records(image: MetadataImage, output: Output) -> None:
    """Print the records of a snapshot of this image, as ``raftlog cat`` prints a snapshot.

    Offsets begin after those of the snapshot's control records.
    """
    quorum = image.quorum
    offset = 1 + (quorum.kraft_version > 0) + (quorum.kraft_version > 0 and bool(quorum.voters))
    prefix = f'"leaderEpoch":{image.leader_epoch},"timestamp":{image.timestamp_ms},'
    for record in image_records(image):
        output.line(f'{{"offset":{offset},{prefix}{to_json_text(record)[1:]}')
        offset += 1


def change_json(change: RowChange, ignored: frozenset[str] = NO_COLUMNS) -> dict[str, Any]:
    """Return one difference as JSON data, without ``ignored`` columns of a changed row."""
    line: dict[str, Any] = {"entity": change.entity, "key": list(change.key)}
    row = change.after or change.before
    if isinstance(row, PartitionRow):
        line["topic_name"] = row.topic_name
    line["op"] = change.op
    if change.before is not None and change.after is not None:
        assert change.op in (Op.UPDATE, Op.READ), "a row in both states"
        before, after = _row(change.before), _row(change.after)
        line["changed"] = {
            name: {"before": before[name], "after": after[name]}
            for name in change.changed
            if name in after and name not in ignored
        }
    elif change.after is not None:
        line["after"] = _row(change.after)
    elif change.before is not None:
        line["before"] = _row(change.before)
    return line


def _row(row: Row) -> dict[str, object]:
    kept = row_json(row)
    for column in fields(row):
        if not column.compare:
            del kept[column.name]
    return kept
