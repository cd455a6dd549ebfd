"""A field of a row is declared once; record, row and column derive from the declaration."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from raftlog_state.image.column_types import BIGINT, column_type, row_columns
from raftlog_state.image.column_types import STRING as TEXT
from raftlog_state.image.row_schema import (
    column,
    row,
    row_reader,
    row_schema,
    row_updater,
    row_writer,
)
from raftlog_state.image.rows import RECORD_ROW_TYPES, PartitionRow, row_json
from raftlog_state.records.declare import BYTES, INT64, STRING, MetadataRecord, field, record
from raftlog_state.records.reader import record_reader
from raftlog_state.records.schema_topics import PartitionChangeRecord, PartitionRecord
from raftlog_state.records.writer import record_writer

STATE = Path(__file__).parents[3] / "state"
FRAME_BYTES = 3


@record(api_key=3, latest_version=3)
class NewPartitionRecord(PartitionRecord):
    """PartitionRecord with the field of a later Kafka."""

    tiered_epoch: int = field(INT64, since=3, tag=3, default=-1)


@record(api_key=5, latest_version=3)
class NewPartitionChangeRecord(PartitionChangeRecord):
    """PartitionChangeRecord with the field of a later Kafka."""

    tiered_epoch: int = field(INT64, since=3, tag=9, default=-2)


@row
class NewPartitionRow(PartitionRow):
    """PartitionRow with the field of a later Kafka."""

    RECORD: ClassVar = NewPartitionRecord
    tiered_epoch: int = column()


RECORD = NewPartitionRecord(
    topic_id="wP1XW_XDTjOcp3STS81TJA",
    partition_id=1,
    replicas=(1, 2),
    isr=(1,),
    leader=1,
    eligible_leader_replicas=(2,),
    tiered_epoch=7,
)
read_row = row_reader(NewPartitionRow, NewPartitionRecord, "topic_name")


@pytest.mark.parametrize(
    "name",
    ["cordoned_log_dirs", "is_migrating_zk_broker", "last_known_elr", "zk_migration_ready"],
)
def test_a_field_is_named_in_four_files_at_most(name: str) -> None:
    """Not counted are the decoder of ``verify()``, which names all fields in order to share no
    declaration, and the controller, which names those that it acts on."""
    head, *tail = name.split("_")
    json_name = head + "".join(word.capitalize() for word in tail)
    paths = [
        path
        for path in sorted(STATE.rglob("*.py"))
        if path.name != "verify_decoder.py" and not path.parent.name.startswith("controller")
    ]
    texts = {path.relative_to(STATE): path.read_text() for path in paths}
    named = [path for path, text in texts.items() if name in text or json_name in text]
    assert Path("raftlog_state/image/rows.py") in named
    assert len(named) <= 4, named


def test_a_new_field_needs_its_declarations_only() -> None:
    data = record_writer(NewPartitionRecord, 3, b"\x01\x03\x03")(RECORD)
    decoded, _ = record_reader(NewPartitionRecord, 3)(data, FRAME_BYTES)
    assert decoded == RECORD
    built = read_row(decoded, "t")
    assert (built.tiered_epoch, built.elr, built.last_known_elr) == (7, (2,), ())
    assert row_writer(NewPartitionRow, NewPartitionRecord)(built) == RECORD
    assert row_json(built)["tiered_epoch"] == 7
    columns = list(row_columns(NewPartitionRow).items())
    assert columns[:-1] == list(row_columns(PartitionRow).items())
    assert columns[-1] == ("tiered_epoch", BIGINT)


def test_a_new_field_of_a_partial_update_keeps_or_changes_the_row() -> None:
    update = row_updater(NewPartitionRow, NewPartitionChangeRecord, "partition_epoch")
    built = read_row(RECORD, "t")
    kept = update(built, NewPartitionChangeRecord(isr=()), 5)
    assert (kept.isr, kept.tiered_epoch, kept.partition_epoch) == ((), 7, 5)
    changed = update(built, NewPartitionChangeRecord(tiered_epoch=8), 6)
    assert (changed.isr, changed.tiered_epoch, changed.elr) == ((1,), 8, (2,))


def test_a_field_of_a_partial_update_that_no_row_has_is_refused() -> None:
    with pytest.raises(KeyError, match="tiered_epoch"):
        row_updater(PartitionRow, NewPartitionChangeRecord)


def test_a_field_that_the_record_lacks_is_refused() -> None:
    for declared in (column(), column(STRING, record="nmae")):
        namespace = {
            "RECORD": PartitionRecord,
            "nmae": declared,
            "__annotations__": {"nmae": "str"},
        }
        with pytest.raises(AssertionError, match="its record has no such field"):
            row(type("WrongRow", (), namespace))


def test_a_row_is_read_from_its_record_and_what_is_given() -> None:
    with pytest.raises(AssertionError, match=r"PartitionRow\.topic_name is not given"):
        row_reader(PartitionRow, PartitionRecord)


@record(api_key=99)
class PasswordRecord(MetadataRecord):
    """Record with a secret."""

    user: str = field(STRING, default="")
    password: bytes = field(BYTES, default=b"", shown=False)


@row
class PasswordRow:
    """Row with a secret."""

    RECORD: ClassVar = PasswordRecord
    user: str = column()
    key: bytes = column(record="password")


def test_what_a_record_hides_its_row_hides() -> None:
    built = row_reader(PasswordRow, PasswordRecord)(PasswordRecord(user="u", password=b"secret"))
    assert built.key == b"secret"
    assert repr(built) == "PasswordRow(user='u')"
    assert [entry.name for entry in row_schema(PasswordRow) if entry.is_secret] == ["key"]


def test_every_field_of_a_record_is_in_its_row() -> None:
    others = {"ClientQuotaRecord": {"remove"}}
    for kind in RECORD_ROW_TYPES:
        known = {entry.record_field for entry in row_schema(kind)}
        schema = kind.RECORD.schema
        lost = {entry.attribute for entry in schema.fields} - known
        assert lost == others.get(schema.name, set()), schema.name


def test_the_type_of_a_column_is_that_of_the_records_field() -> None:
    columns = {entry.name: column_type(entry.kind) for entry in row_schema(PartitionRow)}
    assert columns["topic_name"] == columns["topic_id"] == TEXT
    assert str(columns["isr"]) == "list<item: int32>"
    assert str(columns["leader_recovery_state"]) == "int32"
