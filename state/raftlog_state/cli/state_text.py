"""Cluster state as JSON, one row per line, and as tables.

Columns that are not in snapshots (the broker that allocated the last block of producer ids) are
omitted, so that the state at an offset does not depend on the snapshot that was loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, fields
from functools import partial
from typing import Final, TypeAlias

from raftlog.client.offset_spec import time_text
from raftlog.errors import OptionError
from raftlog.printable import compact_json, did_you_mean
from raftlog_state.image import (
    ROW_TYPES,
    STATE_ENTITIES,
    Entity,
    MetadataImage,
    table_of,
)
from raftlog_state.image.change_text import change_json, compared_json, what_changed
from raftlog_state.image.delta import Op, RowChange
from raftlog_state.image.differences import IGNORABLE
from raftlog_state.image.entity_names import name_of, row_filters
from raftlog_state.image.image_writer import image_records
from raftlog_state.image.rows import AclRow, PartitionRow, Row, TopicRow
from raftlog_state.records import to_json_text

from .output import Console, Output
from .text_table import (
    BAD,
    GOOD,
    WARNING,
    Cell,
    cell_width,
    columns_that_fit,
    cut,
    cut_middle,
    table_width,
    write_table,
)

VALUE_WIDTH_MAX: Final = 40
"""Width of a value in a table; longer values are cut."""
NAME_WIDTH_MAX: Final = 80
"""Width of a name in a table; longer names lack their middle."""
_NAME_WIDTH_MIN: Final = 30
"""Width of a name on a terminal that is too narrow."""
TextOf: TypeAlias = Callable[[str, object], str]
"""Text of a value of a column."""
CHANGE_WIDTH_MAX: Final = 120
"""Width of what changed in a row, in a table of differences."""
_OPS: Final = {
    Op.CREATE: "created",
    Op.READ: "created",
    Op.UPDATE: "changed",
    Op.DELETE: "deleted",
}
_OP_STYLES: Final = {"created": GOOD, "changed": WARNING, "deleted": BAD}
_EMPTY: Final[tuple[object, ...]] = (None, "", [], {})
_NAMES: Final = frozenset({"name", "topic_name", "resource_name", "principal", "user"})
_UNCUT_ENDS: Final = _NAMES | {"group", "topic", "transactional_id"}
"""Columns whose long values are cut in the middle: names often differ only at their ends."""
_ALWAYS: Final = frozenset({"isr"})
"""Columns that tables show even if all their values are empty: all partitions are offline."""
_NO_LEADER: Final = -1
_UNUSUAL: Final = ("fenced", "in_controlled_shutdown")
"""Columns of a broker that serves no partitions, or soon will not."""
_DETAILS: Final = frozenset(
    {
        *("adding_replicas", "removing_replicas", "features"),
        *("leader_recovery_state", "is_migrating_zk_broker", "zk_migration_ready"),
    }
)
"""Columns that are first left out on a narrow terminal, after ids and epochs."""


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
    end = compact_json(head)[:-1]
    for entity in STATE_ENTITIES:
        output.line(f"{end},")
        rows = [compact_json(compared_json(row)) for row in image.rows(entity)]
        output.line(f'"{table_of(entity)}":[')
        output.lines(f"{row}," for row in rows[:-1])
        output.lines(rows[-1:])
        end = "]"
    output.line("]}")


def print_table(
    image: MetadataImage,
    kind: str | None,
    columns: Sequence[str] | None,
    output: Output,
    console: Console,
    *,
    topic: str | None = None,
) -> None:
    """Print the rows of one kind as a table, or one table for each kind that has rows, by name.

    ``columns``: the columns of a kind, in order, with whole values; None: those that have values
    and for which the terminal has space. ``topic``: print only this topic's rows.
    """
    if kind is not None:
        found = partial(_rows_by_name, image, _entity_of(kind), topic)
        left_out = print_row_table(found, output, columns)
        log_left_out(left_out, console)
        return
    is_narrow = False
    at = f"end offset {image.offset + 1}, leader epoch {image.leader_epoch}"
    output.line(f"{at}, {time_text(image.timestamp_ms)}" if image.timestamp_ms >= 0 else at)
    for entity in STATE_ENTITIES:
        count = len(image.map(entity))
        if count:
            output.line("")
            output.line(f"{table_of(entity)}: {count}")
            is_narrow |= bool(print_row_table(partial(_rows_by_name, image, entity), output))
    if is_narrow:
        console.log(
            "some columns are left out on this terminal: a table of one KIND names them, and "
            "--format table in a pipe has all"
        )


def _rows_by_name(
    image: MetadataImage, entity: Entity, topic: str | None = None
) -> Iterable[dict[str, object]]:
    return map(compared_json, sorted(_selected(image, entity, topic), key=_place))


def _selected(image: MetadataImage, entity: Entity, topic: str | None) -> list[Row]:
    """Return the rows of an entity; if ``topic`` is specified, only those of this topic."""
    rows = image.rows(entity)
    if topic is None:
        return rows
    filters = row_filters(str(Entity.TOPIC), topic, partitions=True)
    return [row for row in rows if any(one.matches(row) for one in filters)]


def _place(row: Row) -> tuple[object, ...]:
    """Return the sort key of a row in a table, as the key of some rows begins with a random id."""
    match row:
        case TopicRow(name=name):
            return (name,)
        case PartitionRow(topic_name=name, partition_id=partition_id):
            return name, partition_id
        case AclRow():
            return row.principal, row.resource_type, row.resource_name, row.operation, row.acl_id
    return row.key


def _columns_of(entity: Entity) -> list[str]:
    columns = [entry.name for entry in fields(ROW_TYPES[entity]) if entry.compare]
    return columns + [name for name in dir(ROW_TYPES[entity]) if name.endswith("_name")]


def check_kind_columns(kind: str, columns: Sequence[str]) -> None:
    """Raise ``OptionError`` if rows of a kind of the metadata have no such column."""
    check_columns(kind, _columns_of(_entity_of(kind)), columns)


def check_columns(kind: str, known: Sequence[str], columns: Sequence[str] | None) -> None:
    """Raise ``OptionError`` if rows of a kind, whose columns are ``known``, have no such column."""
    for name in columns or ():
        if name not in known:
            hint = did_you_mean(name, known) or f"{kind} have {', '.join(known)}"
            raise OptionError(option="--columns", reason=f"unknown column {name!r}; {hint}")


def print_row_table(
    rows: Callable[[], Iterable[dict[str, object]]],
    output: Output,
    columns: Sequence[str] | None = None,
) -> list[str]:
    """Print rows as a table of the columns that have values, or of the chosen ones, uncut.

    ``rows`` is called twice. Returns the columns for which the terminal has no space. Names are cut
    to fit into the remaining space.
    """
    text_of: TextOf = _cell_text if columns is None else _whole_text
    headings, widths = _headings_and_widths(rows(), columns, text_of)
    terminal = output.width()
    if terminal is not None and columns is None:
        may_lack = [name for name in reversed(widths) if _lack_order(name)]
        may_lack.sort(key=_lack_order, reverse=True)
        widths = columns_that_fit(widths, may_lack, terminal)
        cut = [widths[name] for name in widths if name in _UNCUT_ENDS]
        over = table_width(widths.values()) - terminal
        if cut and over > 0:
            longest = max(max(cut) - over, _NAME_WIDTH_MIN)
            widths |= {name: min(widths[name], longest) for name in widths if name in _UNCUT_ENDS}
            text_of = partial(_cell_text, name_width_max=longest)

    def cells() -> Iterable[list[Cell]]:
        for row in rows():
            styles = _styles(row)
            yield [(text_of(name, row.get(name)), styles.get(name, "")) for name in widths]

    if widths:
        head = [headings[name] for name in widths]
        write_table(head, cells, output, widths=list(widths.values()))
    return [name for name in headings if name not in widths]


def _styles(row: dict[str, object]) -> dict[str, str]:
    """Return the styles of the columns of a row that need attention."""
    styles = {name: WARNING for name in _UNUSUAL if row.get(name) is True}
    if row.get("leader") == _NO_LEADER:
        styles["leader"] = BAD
    match row:
        case {"isr": list(isr), "replicas": list(replicas)} if len(isr) < len(replicas):
            styles["isr"] = WARNING
    return styles


def _headings_and_widths(
    rows: Iterable[dict[str, object]], columns: Sequence[str] | None, text_of: TextOf
) -> tuple[dict[str, str], dict[str, int]]:
    """Return the headings and the widths of the columns of a table, in order.

    ``columns``: those that were chosen; None: those that have values.
    """
    widths = dict.fromkeys(columns or (), 0)
    for row in rows:
        for name, value in row.items():
            if columns is not None:
                if name not in widths:
                    continue
            elif value in _EMPTY and name not in _ALWAYS:
                continue
            widths[name] = max(widths.get(name, 0), cell_width(text_of(name, value)))
    names: Iterable[str] = widths
    if columns is None:
        names = sorted((name for name in widths if f"{name}_name" not in widths), key=_rank)
    headings = {
        name: (name.removesuffix("_name") if name.removesuffix("_name") in widths else name)
        .removesuffix("_ms")
        .replace("_", " ")
        .upper()
        for name in names
    }
    return headings, {name: max(widths[name], len(head)) for name, head in headings.items()}


def log_left_out(columns: Sequence[str], console: Console) -> None:
    """Print the columns that a table leaves out, if any."""
    if columns:
        names = ", ".join(columns)
        console.log(f"columns left out on this terminal: {names}; --columns chooses some")


def log_if_empty(
    output: Output,
    console: Console,
    kind: str | None,
    topic: str | None,
    topics: Iterable[str] = (),
) -> None:
    """Print that a kind or one topic has no rows, if no output was written.

    ``topics``: the topics that have rows, for a hint.
    """
    if not output.is_empty or kind is None:
        return
    hint = None if topic is None else did_you_mean(topic, topics)
    found = f"{kind}: no rows" if topic is None else f"{kind}: no rows of topic {topic!r}"
    console.log(f"{found}; {hint}" if hint else found)


def _lack_order(column: str) -> int:
    """Return when a narrow terminal leaves out a column: higher numbers first, 0 never."""
    column = column.removesuffix("_name")
    if column in IGNORABLE["ids"]:
        return 3
    if column in IGNORABLE["epochs"]:
        return 2
    return 1 if column in _DETAILS or column.endswith("elr") else 0


def _rank(column: str) -> int:
    """Return a column's position in a table: names first, ids that users do not use last."""
    if column in IGNORABLE["ids"]:
        return 2
    return 0 if column in _NAMES else 1


def _cell_text(column: str, value: object, *, name_width_max: int = NAME_WIDTH_MAX) -> str:
    """Return a value as text of at most ``VALUE_WIDTH_MAX``, or of the width of a name."""
    text = _whole_text(column, value)
    if column in _UNCUT_ENDS:
        return cut_middle(text, name_width_max)
    return cut(text, VALUE_WIDTH_MAX)


def _whole_text(column: str, value: object) -> str:
    if column.endswith("timestamp_ms") and isinstance(value, int):
        return time_text(value)
    return _plain(value)


def _plain(value: object) -> str:
    if value in _EMPTY:
        return "-"
    if isinstance(value, str):
        return value
    if type(value) is int:
        return str(value)
    match value:
        case [{"partitions": _}, *_]:  # of a member, as kafka-consumer-groups prints them
            return ";".join(map(_plain, value))
        case {"partitions": numbers, **names}:
            (name,) = (one for one in names.values() if one is not None)
            return f"{_plain(name)}:{_plain(numbers)}"
        case list():
            return ",".join(map(_plain, value))
        case {"name": name, "host": host, "port": port}:
            return f"{name} {host}:{port}"
    return compact_json(value)


def print_rows(
    image: MetadataImage,
    kind: str,
    columns: Sequence[str] | None,
    output: Output,
    *,
    topic: str | None = None,
) -> None:
    """Print the rows of one kind, one line each; arguments are those of ``print_table``."""
    rows = _selected(image, _entity_of(kind), topic)
    print_row_lines(map(compared_json, rows), output, columns)


def print_row_lines(
    rows: Iterable[dict[str, object]], output: Output, columns: Sequence[str] | None
) -> None:
    """Print rows as JSON, one line each, with all columns or the chosen ones."""
    for row in rows:
        output.line(compact_json(row if columns is None else {name: row[name] for name in columns}))


def print_differences(
    differences: Iterable[RowChange], ignored: frozenset[str], output: Output, *, as_table: bool
) -> int:
    """Print rows that differ, as JSON lines or as a table; return their number.

    ``ignored`` columns of rows that are in both states are left out. The table contains each row's
    name, in the form that ``raftlog log`` accepts, and what changed in it. Long texts are cut.
    """
    if not as_table:
        count = 0
        for change in differences:
            output.line(compact_json(change_json(change, ignored)))
            count += 1
        return count
    rows: list[tuple[Cell, ...]] = [
        (
            (op := _OPS[change.op], _OP_STYLES[op]),
            cut_middle(name_of(row), NAME_WIDTH_MAX),
            cut(what_changed(change, ignored), CHANGE_WIDTH_MAX),
        )
        for change in differences
        if (row := change.after or change.before) is not None
    ]
    if rows:
        write_table(("OP", "NAME", "WHAT CHANGED"), lambda: rows, output)
    return len(rows)


def _entity_of(kind: str) -> Entity:
    (entity,) = (entity for entity in Entity if table_of(entity) == kind)
    return entity


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
