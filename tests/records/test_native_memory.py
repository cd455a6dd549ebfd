"""The compiled core gives a call back where memory is exhausted, and no process ends."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.batch_encoding import NewRecordBatch, encode_batch
from tests.support.batch_strategies import resealed
from tests.support.both_implementations import differences, in_both, pure_python
from tests.support.exhausted_memory import outcomes

from raftlog import compiled
from raftlog.limits import MIB
from raftlog.records.batch import Header, NewRecord
from raftlog.records.scan import Column, Stop, scan

pytestmark = pytest.mark.skipif(not compiled.is_native, reason="the compiled core is not built")

CALLS = """
from raftlog import compiled

def prepared(data):
    return (data,)

def call(data):
    limits = (2**40, 2**40, 2**20, 2**20)
    scanned = compiled.core.scan(data, 63, (), None, None, 0, limits, lambda *_: None)
    walked = compiled.core.walk(data, None, None, 0, True)
    return scanned is not None and walked is not None
"""


def batch_of(records: tuple[NewRecord, ...], offset: int = 0) -> bytes:
    new = NewRecordBatch(records=records, base_timestamp_ms=5)
    return encode_batch(new, base_offset=offset, leader_epoch=1)


def buffers() -> list[bytes]:
    """Return a batch of many small records, one of many headers, and many batches of one record."""
    header = Header("k", b"v")
    sparse = tuple(NewRecord(None if n % 3 else b"k", b"v") for n in range(100_000))
    return [
        batch_of(sparse),
        batch_of((NewRecord(b"k", b"v", None, (header,) * 1000),) * 100),
        b"".join(batch_of((NewRecord(None, b""),), offset) for offset in range(20_000)),
    ]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/statm is Linux's")
def test_an_exhausted_memory_is_given_back_and_ends_no_process(tmp_path: Path) -> None:
    files = [tmp_path / str(n) for n in range(3)]
    for file, data in zip(files, buffers(), strict=True):
        file.write_bytes(data)
    for counted in outcomes(CALLS, files):
        assert set(counted) <= {"done", "given back", "MemoryError"}
        assert counted["done"] > 0
        assert counted.get("given back", 0) > 2


REPEATED = """
import sys
from pathlib import Path
from raftlog import compiled

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

data = Path(sys.argv[1]).read_bytes()
limits = (2**40, 2**40, 2**20, 2**20)
calls = {
    "walk": lambda: compiled.core.walk(data, None, None, 0, True),
    "scan": lambda: compiled.core.scan(data, 1, (), None, None, 0, limits, lambda *_: None),
}
for _ in range(3):
    calls[sys.argv[2]]()
before = resident_bytes()
for _ in range(30):
    calls[sys.argv[2]]()
print(resident_bytes() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/statm is Linux's")
@pytest.mark.parametrize("call", ["walk", "scan"])
def test_repeated_calls_keep_the_memory_of_one(call: str, tmp_path: Path) -> None:
    """Of each call the headers were kept beside those of the others, up to 16 MiB."""
    file = tmp_path / "log"
    file.write_bytes(buffers()[2])
    words = (sys.executable, "-c", REPEATED, file, call)
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 4 * MIB


def test_scans_in_the_memory_of_earlier_ones_return_what_python_does() -> None:
    """Columns of released scans are filled again, those in use are not; in several threads."""
    chance = random.Random(11)
    logs = [
        b"".join(
            batch_of(tuple(NewRecord(None, chance.randbytes(40)) for _ in range(count)), offset)
            for offset in range(0, 200 * count, count)
        )
        for count in (1, 7, 40, 90)
    ]
    with pure_python():
        expected = [scan(log) for log in logs]
    order = [chance.randrange(len(logs)) for _ in range(200)]
    with ThreadPoolExecutor(4) as threads:
        found = []
        for which, scanned in zip(order, threads.map(lambda n: scan(logs[n]), order), strict=True):
            found.append((which, scanned))
            if len(found) > 20:  # the older ones are released in any order
                found.pop(chance.randrange(len(found)))
    assert len(found) == 20
    for which, scanned in found:
        assert differences(scanned, expected[which]) == []


@pytest.mark.parametrize("count", [3, 2**20, 2**31 - 1, -1])
def test_a_header_that_names_more_records_than_there_are_is_damage_in_both(count: int) -> None:
    """No memory is reserved for records that the bytes cannot hold: 2^31 would be 80 GiB."""
    valid = batch_of((NewRecord(None, b"v"), NewRecord(b"k", None)))
    damaged = bytearray(valid)
    struct.pack_into(">i", damaged, 57, count)
    data = valid + resealed(bytes(damaged)) + valid
    native, python = in_both(lambda: scan(data, columns=Column.ALL))
    assert differences(native, python) == []
    assert native.stop is Stop.DAMAGED
    assert native.end_position == len(valid)
