"""The Spark source and sink with encrypted values, as Spark's processes call them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

import raftlog
from pyspark_raftlog.commit import WritePlan, append_rows, pack_rows
from pyspark_raftlog.options import RaftlogOptions, WriteOptions
from pyspark_raftlog.reader import RaftlogReader
from pyspark_raftlog.sink_rows import InputColumns, RecordForm
from raftlog import KeyFile, ValueKind
from raftlog.client.encryption import is_encrypted
from raftlog.client.errors import EncryptionKeyDeletedError
from raftlog.errors import OptionError

SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary())])
ROWS: dict[str, list[bytes | None]] = {
    "key": [b"alice", b"bob", b"carol"],
    "value": [b"card 1", b"card 2", None],
}
LIMIT = 2**20


def write(path: Path, options: dict[str, str]) -> None:
    plan = WritePlan(
        options=WriteOptions.parse({"path": str(path), **options}),
        values=ValueKind.BYTES,
        columns=InputColumns(("key", "value"), RecordForm.VALUE),
        byte_count_max=LIMIT,
        log_byte_count_max=LIMIT,
    )
    plan = pickle.loads(pickle.dumps(plan))
    batch = pa.RecordBatch.from_pydict(ROWS, schema=SCHEMA)
    append_rows(plan, [pack_rows([batch], SCHEMA, partition=0, byte_count_max=LIMIT)])


def read(
    path: Path, options: dict[str, str], columns: tuple[str, ...]
) -> list[tuple[bytes | None, ...]]:
    reader = RaftlogReader(RaftlogOptions.parse({"path": str(path), **options}), columns)
    reader = pickle.loads(pickle.dumps(reader))
    found: list[tuple[bytes | None, ...]] = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return found


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    created = KeyFile(tmp_path / "keys.properties")
    created.create("2026-11")
    return created


def options_of(keys: KeyFile, **more: str) -> dict[str, str]:
    return {"encryption.key.file": keys.path, "encryption.context": "customers", **more}


def test_rows_are_encrypted_by_the_sink_and_decrypted_by_the_source(
    tmp_path: Path, keys: KeyFile
) -> None:
    path = tmp_path / "customers-0"
    raftlog.open(path).close()
    write(path, options_of(keys))
    columns = ("key", "value")
    assert read(path, options_of(keys), columns) == list(zip(*ROWS.values(), strict=True))
    assert read(path, options_of(keys), ("value",)) == [(value,) for value in ROWS["value"]]
    assert read(path, options_of(keys), ("key",)) == [(key,) for key in ROWS["key"]]
    for _, value in read(path, {}, columns)[:2]:
        assert isinstance(value, bytes)
        assert is_encrypted(value)


def test_a_deleted_key_is_an_error_or_null(tmp_path: Path, keys: KeyFile) -> None:
    path = tmp_path / "customers-0"
    raftlog.open(path).close()
    write(path, options_of(keys))
    keys.create("2026-12", is_current=True)
    keys.delete("2026-11")
    with pytest.raises(EncryptionKeyDeletedError):
        read(path, options_of(keys), ("value",))
    with_nulls = options_of(keys) | {"encryption.deleted.keys": "null"}
    assert read(path, with_nulls, ("value",)) == [(None,)] * 3


def test_no_option_that_spark_sends_has_a_key(tmp_path: Path, keys: KeyFile) -> None:
    options = RaftlogOptions.parse({"path": str(tmp_path), **options_of(keys)})
    secret = Path(keys.path).read_text().split("key.2026-11=")[1].strip()
    assert secret not in repr(options)
    assert secret.encode() not in pickle.dumps(options)


def test_each_of_several_sources_has_its_own_encryption(keys: KeyFile) -> None:
    given = {"sources": '[{"path": "/a", "clusterId": "a"}]', **options_of(keys)}
    with pytest.raises(OptionError, match="each source has its own location"):
        RaftlogOptions.parse(given)
    entry = f'[{{"path": "/a", "encryption.key.file": "{keys.path}", "encryption.context": "c"}}]'
    (source,) = RaftlogOptions.parse({"sources": entry}).sources
    assert source.encryption is not None
    assert source.encryption.context == "c"
