"""The compiled core writes the JSON of a record as Python does, or gives it back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.both_implementations import in_both
from tests.support.cli import run
from tests.support.metadata_values import (
    EVERY_VERSION,
    golden_vectors,
    metadata_logs,
    mutated_values,
    structs,
    values_of,
    version_name,
)

from raftlog import compiled
from raftlog_state.errors import MetadataParseError
from raftlog_state.records import (
    NO_OP_VALUE,
    ConfigRecord,
    DecodedRecord,
    MetadataRecord,
    PartitionChangeRecord,
    Redactor,
    TopicRecord,
    UserScramCredentialRecord,
    decode,
    encode,
    is_secret_config,
    to_json_text,
)
from raftlog_state.records.config_types import public_config_names
from raftlog_state.records.native_json import TYPES_MAX, LineStart, NativeJson, write_json
from raftlog_state.source_rows.metadata_columns import MetadataColumns

pytestmark = pytest.mark.skipif(not compiled.is_native, reason="the compiled core is not built")

LOGS = metadata_logs()
LOG = next(path for path in LOGS if path.suffix == ".log" and "three-nodes" in str(path))
KEYED = Redactor(key=b"0123456789abcdef")
REDACTORS = (Redactor(), Redactor(reveal=True))


def written(values: Sequence[bytes | None], reveal: bool, **options: object) -> NativeJson:
    column = pa.array([b"x", *values, b"y"], pa.binary())[1:-1]  # a column inside another one
    marks = np.array([value is None for value in values])
    found = write_json(column, marks, reveal=reveal, **options)  # type: ignore[arg-type]
    assert found is not None
    return found


def texts(found: NativeJson) -> list[str | None]:
    """Return the text of each row, None for those that were given back."""
    whole = bytes(found.text).decode()
    assert whole.isprintable() or "\n" in whole
    data = bytes(found.text)
    ends = found.ends.tolist()
    given_back = set(found.rows.tolist())
    return [
        None if row in given_back else data[ends[row] : ends[row + 1]].decode()
        for row in range(len(ends) - 1)
    ]


def in_python(value: bytes, redactor: Redactor) -> str | None:
    """Return the JSON of the data, None for a damaged value."""
    try:
        text = to_json_text(redactor.redact(decode(value)))
    except MetadataParseError:
        return None
    return text[text.index('"data":') + len('"data":') : -1]


def assert_same(values: Sequence[bytes]) -> int:
    """Compare the texts with Python's; return how many rows the core wrote."""
    count = 0
    for redactor in REDACTORS:
        native = texts(written(values, redactor.reveal))
        for value, text in zip(values, native, strict=True):
            if text is not None:
                assert text == in_python(value, redactor), value.hex()
                count += 1
    return count


def test_records_of_real_logs_are_written_alike_and_nearly_all_are_plain() -> None:
    values = [value for log in LOGS for value in values_of(log)]
    assert assert_same(values) > 2 * 0.95 * len(values)


def test_kafka_s_golden_records_are_written_alike() -> None:
    values = [value for _, _, value, _ in golden_vectors()]
    assert assert_same(values) > len(values)


@pytest.mark.parametrize(("kind", "version"), EVERY_VERSION, ids=version_name)
@settings(max_examples=8)
@given(data=st.data())
def test_random_records_of_every_version_are_written_alike(
    kind: type[MetadataRecord], version: int, data: st.DataObject
) -> None:
    record = data.draw(structs(kind, version))
    assert isinstance(record, MetadataRecord)
    assert_same([encode(DecodedRecord(version, record))])


def test_tagged_fields_are_written_in_the_order_of_their_declaration() -> None:
    """Their bytes are in the order of the tags: directories have 8, the replicas after them 6."""
    directories = ("A" * 22, "B" * 21 + "A")
    records = [
        PartitionChangeRecord(isr=(1, 2), directories=directories, eligible_leader_replicas=(3,)),
        PartitionChangeRecord(isr=(1, 2), leader=3, last_known_elr=(), leader_recovery_state=1),
        PartitionChangeRecord(replicas=(), directories=directories),
        PartitionChangeRecord(),
    ]
    assert assert_same([encode(record) for record in records]) == 2 * len(records)


def test_a_tagged_field_at_its_default_is_not_written() -> None:
    """Kafka does not write such a field; another program may."""
    plain = encode(PartitionChangeRecord())
    assert plain[-1] == 0  # the number of tagged fields
    no_leader = plain[:-1] + b"\x01\x01\x04\xff\xff\xff\xfe"
    assert decode(no_leader) == decode(plain)
    assert assert_same([no_leader]) == 2


def test_mutated_values_are_written_alike_or_given_back() -> None:
    assert assert_same(mutated_values(range(5_000))) > 500


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(10**6, 2 * 10**6, 10**5))
def test_a_million_mutated_values_are_written_alike_or_given_back(first: int) -> None:
    assert_same(mutated_values(range(first, first + 10**5)))


def test_only_printable_characters_are_written() -> None:
    names = [f"a{chr(code)}b" for code in [*range(0x3000), 0xFEFF, 0x1F600] if code != 0xD800]
    values = [encode(TopicRecord(name=name)) for name in names]
    native = texts(written(values, False))
    for name, value, text in zip(names, values, native, strict=True):
        if text is not None:
            assert name.isprintable()
            assert text == in_python(value, Redactor())
    assert sum(text is not None for text in native) > 500


def test_a_secret_is_given_back_and_a_public_config_is_written() -> None:
    configs = [
        (2, "retention.ms"),
        (4, "ssl.key.password"),
        (4, "listener.name.x.ssl.key.password"),
    ]
    configs += [(2, "my.own.config"), (8, "root"), (2, "RETENTION.MS"), (4, "log.retention.ms")]
    values = [
        encode(ConfigRecord(resource_type=kind, resource_name="r", name=name, value="v4lue"))
        for kind, name in configs
    ]
    native = texts(written(values, False))
    assert [text is not None for text in native] == [
        not is_secret_config(kind, name) for kind, name in configs
    ]
    removed = [
        encode(ConfigRecord(resource_type=kind, resource_name="r", name=name, value=None))
        for kind, name in configs
    ]
    assert None not in texts(written(removed, False))
    assert None not in texts(written(values, True))
    scram = encode(UserScramCredentialRecord(name="u", salt=b"s", stored_key=b"k", server_key=b"v"))
    assert texts(written([scram], False)) == [None]


def test_a_public_name_of_another_resource_type_is_a_secret() -> None:
    names = public_config_names()
    values = [
        (kind, encode(ConfigRecord(resource_type=kind, name=name, value="v")), name)
        for _, name in names[::5]
        for kind in (1, 2, 4, 8, 16, 32)
    ]
    native = texts(written([value for _, value, _ in values], False))
    assert [text is not None for text in native] == [
        not is_secret_config(kind, name) for kind, _, name in values
    ]


def test_every_config_that_the_core_may_show_is_public() -> None:
    names = public_config_names()
    assert len(names) > 200
    assert not [config for config in names if is_secret_config(*config)]


@pytest.mark.parametrize("reveal", [False, True])
def test_lines_have_the_places_and_only_the_selected_types(reveal: bool) -> None:
    values: list[bytes | None] = [*values_of(LOG)[:200], None, NO_OP_VALUE]
    count = len(values)
    start = LineStart(
        pa.array(range(2**62, 2**62 + count)),
        pa.array([n % 3 - 1 for n in range(count)], pa.int32()),
        pa.array([-n for n in range(count)]),
    )
    taken = bytes(api_key % 2 for api_key in range(TYPES_MAX))
    for takes, noop in ((None, True), (None, False), (taken, False), (taken, True)):
        native = texts(written(values, reveal, start=start, takes=takes, noop=noop))
        for row, (value, text) in enumerate(zip(values, native, strict=True)):
            if value is None:
                assert text is None
            elif text is not None:
                record = Redactor(reveal=reveal).record_json(value)
                place = f'"offset":{2**62 + row},"leaderEpoch":{row % 3 - 1},"timestamp":{-row}'
                shown = noop if value == NO_OP_VALUE else takes is None or takes[value[1]]
                assert text == (f"{{{place},{record[1:]}\n" if shown else "")
        assert sum(text is not None for text in native) > 150


@pytest.mark.parametrize("redactor", [Redactor(), KEYED, Redactor(reveal=True)])
def test_columns_of_records_are_equal_in_both(redactor: Redactor) -> None:
    values = [value for log in LOGS[:6] for value in values_of(log)]
    values += [value for _, _, value, _ in golden_vectors()]
    column = pa.array([None, *values, None], pa.binary())

    def columns() -> list[pa.Array]:
        built = MetadataColumns(column, redactor)
        return [built.record, built.value, built.record_type, built.record_version]

    for native, python in zip(*in_both(columns), strict=True):
        native.validate(full=True)
        assert native.equals(python)


def test_a_damaged_value_raises_the_same_error_in_both() -> None:
    column = pa.array([NO_OP_VALUE, encode(TopicRecord(name="orders"))[:-3]], pa.binary())

    def error_of(name: str) -> Callable[[], str]:
        def call() -> str:
            with pytest.raises(MetadataParseError) as caught:
                getattr(MetadataColumns(column, Redactor()), name)
            return str(caught.value)

        return call

    for name in ("record", "value"):
        native, python = in_both(error_of(name))
        assert native == python


@pytest.mark.parametrize(
    "options",
    [(), ("--noop", "--control", "--reveal"), ("--type", "topic", "--type", "config", "--noop")],
)
@pytest.mark.parametrize("log", [LOG, next(path for path in LOGS if path.suffix == ".checkpoint")])
def test_cat_prints_the_same_in_both(log: Path, options: tuple[str, ...]) -> None:
    native, python = in_both(lambda: run("cat", log, *options))
    assert native == python


def test_a_panic_of_the_core_is_caught_and_python_prints_the_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Panicking:
        def json(self, *_: object) -> None:
            compiled.core.panic()

    expected = run("cat", LOG)
    monkeypatch.setattr("raftlog_state.records.native_json.program", Panicking)
    assert run("cat", LOG) == expected
