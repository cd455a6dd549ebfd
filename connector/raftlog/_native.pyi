"""The compiled core (``connector/native``). None: the call is given back to Python."""

from collections.abc import Callable, Sequence

INTERFACE: int
SOURCES: str
"""Hash of the sources that it was built from."""

class Block:
    """Frozen vector of numbers, readable as a buffer."""

    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...

Headers = tuple[int, int, int, tuple[Block, Block, Block]]
"""Stop, end position, number of batches; their header fields of 64, of 32 and of 16 bits."""

Strings = tuple[Block | None, Block, Block] | None
"""Validity, offsets and bytes of an Arrow column; None if all its rows are null."""

Numbers = tuple[int, Block, Block, Block, Block, Block]
"""Number of records; their batch ordinals, control flags, offsets, timestamps, leader epochs."""

Part = tuple[Block | None, Block | None, Block]
"""Validity, ends and data of an Arrow column; booleans are a bitmap."""

def walk(
    data: bytes,
    start_offset: int | None,
    end_offset: int | None,
    file_position: int,
    crcs: bool,
) -> Headers | None: ...
def scan(
    data: bytes,
    columns: int,
    prefixes: tuple[bytes, ...],
    start_offset: int | None,
    end_offset: int | None,
    file_position: int,
    limits: tuple[int, int, int, int],
    decompress: Callable[[int, int, int], bytes | None],
) -> tuple[Headers, Numbers, tuple[Strings, Strings], tuple[Block, Strings, Strings]] | None: ...
def frames(offsets: memoryview, data: memoryview, /) -> tuple[Block, Block] | None: ...
def distinct_values(ends: memoryview, data: memoryview, element_bytes: int, /) -> Values | None: ...
def encode_records(
    records: Sequence[object],
    types: tuple[type, type],
    first_delta: int,
    base_timestamp_ms: int,
    byte_count_max: int,
    header_count_max: int,
    /,
) -> tuple[bytes, int, int] | None: ...
def fitting_record_count(
    records: Sequence[object],
    start: int,
    types: tuple[type, type],
    first_delta: int,
    base_timestamp_ms: int,
    byte_count_max: int,
    header_count_max: int,
    /,
) -> int | None: ...
def build_batch(
    records: Sequence[object],
    types: tuple[type, type],
    byte_count_max: int,
    header_count_max: int,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    /,
) -> tuple[bytes, int] | None: ...
def seal_batch(
    payload: bytes,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp_ms: int,
    max_timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    record_count: int,
    /,
) -> bytes | None: ...
def produce_request(
    data: bytes, start: int, has_ids: bool, name_bytes_max: int, /
) -> tuple[int, int, bytes, str, int, bytes] | None: ...
def produced_batch(
    data: bytes, limits: tuple[int, int, int, int], name: bytes | None, /
) -> tuple[int, int, int, int, int, int, int, bytes | None] | None: ...
def followed_batches(
    data: bytes,
    end_offset: int,
    epoch: int,
    leader_epoch: int,
    name: tuple[bytes, int, int] | None,
    /,
) -> list[tuple[int, int, int, int, int, int, int, int, int, bool, bytes | None]] | None: ...

class Program:
    """Decoder of metadata records, compiled from their declarations."""

    def __new__(
        cls,
        fields: list[int],
        structs: list[int],
        records: list[int],
        texts: list[bytes],
        public: list[tuple[int, bytes]],
    ) -> Program: ...
    def json(
        self,
        offsets: memoryview,
        data: memoryview,
        given: memoryview,
        reveal: bool,
        takes: bytes | None,
        noop: bool,
        places: tuple[memoryview, ...] | None,
    ) -> tuple[Block, Block, Block] | None: ...
    def columns(
        self,
        offsets: memoryview,
        data: memoryview,
        kinds: list[tuple[memoryview, int, int]],
        reveal: bool,
        spread: bool,
    ) -> list[tuple[list[Part | None], Block | None, Block] | None] | None: ...
    def merged(
        self,
        offsets: memoryview,
        data: memoryview,
        which: memoryview,
        api_key: int,
        key_bytes: int,
        fields: list[tuple[int, int, int]],
        /,
    ) -> tuple[Block, Block, Block, Block, Block, Block] | None: ...

class Values:
    """Distinct values of a column."""

    def gather(self, codes: memoryview, /) -> Strings: ...

Place = tuple[int, int, int | None, int | None, int, int]
"""Position in the data, base offset of the batch there, the leader epoch and its end offset if they
are known, limits of the headers of a record and of a batch."""

Dropped = tuple[int, int, int, int]
"""First and last offset, leader epoch and greatest timestamp of adjacent batches."""

class Retention:
    """What a compaction retains; ``given_back``: last offsets of batches that Python handles."""

    def __new__(cls, now_ms: int, horizon_ms: int, given_back: list[int], /) -> Retention: ...

class OffsetMap:
    """Last offset of each key."""

    end_offset: int

    def __new__(cls, start_offset: int, entry_bytes: int, byte_count_max: int, /) -> OffsetMap: ...
    def __len__(self) -> int: ...
    def get(self, key: bytes, /) -> int | None: ...
    def put(self, key: bytes, offset: int, /) -> bool | None: ...
    def add(
        self, data: bytes, place: Place, decompress: Callable[[int, int, int], bytes | None], /
    ) -> tuple[int, int, bool] | None: ...
    def filter(
        self,
        data: bytes,
        place: Place,
        retention: Retention,
        dropped: Dropped | None,
        decompress: Callable[[int, int, int], bytes | None],
        compress: Callable[[bytes, int], bytes],
        /,
    ) -> tuple[Block, int, int, tuple[int, int, int, int], Dropped | None] | None: ...

def panic() -> None: ...
