"""Offsets of the source as Spark stores them: one order of keys, one version."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_raftlog.offsets import KnownOffsets, SourcesOffset, StreamOffset
from raftlog.errors import DataLossError
from raftlog.types import SnapshotId

NUMBERS = st.integers(0, 2**62)
OFFSETS = st.builds(
    StreamOffset,
    offset=NUMBERS,
    epoch=st.integers(-1, 2**31 - 1),
    start_offset=NUMBERS,
    cluster_id=st.none() | st.text(max_size=22),
    topic_id=st.none() | st.text(max_size=22),
    snapshot=st.none() | st.builds(SnapshotId, end_offset=NUMBERS, epoch=st.integers(0, 2**31 - 1)),
    initial=st.booleans(),
    lost=st.booleans(),
)


@given(OFFSETS)
def test_an_offset_round_trips_through_json(offset: StreamOffset) -> None:
    text = json.dumps(offset.to_json())
    assert StreamOffset.from_json(json.loads(text), path="p") == offset
    assert json.dumps(StreamOffset.from_json(json.loads(text), path="p").to_json()) == text


def test_the_json_of_version_1_does_not_change() -> None:
    offset = StreamOffset(
        offset=120,
        epoch=3,
        start_offset=100,
        cluster_id="I9iQnKeLSA2lyZwVZic7Xg",
        snapshot=SnapshotId(end_offset=100, epoch=2),
    )
    assert json.dumps(offset.to_json()) == (
        '{"v": 1, "offset": 120, "epoch": 3, "from": 100, '
        '"cluster": "I9iQnKeLSA2lyZwVZic7Xg", "snapshot": "100-2"}'
    )
    other = StreamOffset(
        offset=120,
        epoch=3,
        start_offset=100,
        cluster_id=None,
        lost=True,
        topic_id="lM5-ioZhTBuxdugX5zPTIw",
    )
    assert json.dumps(other.to_json()) == (
        '{"v": 1, "offset": 120, "epoch": 3, "from": 100, "cluster": null, "lost": true, '
        '"topic": "lM5-ioZhTBuxdugX5zPTIw"}'
    )


def test_default_fields_are_omitted() -> None:
    plain = StreamOffset(offset=1, epoch=1, start_offset=0, cluster_id=None)
    assert list(plain.to_json()) == ["v", "offset", "epoch", "from", "cluster"]


@pytest.mark.parametrize(
    "written",
    [
        None,
        [],
        "7",
        {},
        {"v": 1},
        {"v": True, "offset": 1, "epoch": 1, "from": 1, "cluster": None},
        {"v": 1, "offset": "1", "epoch": 1, "from": 1, "cluster": None},
        {"v": 1, "offset": 1, "epoch": 1, "from": 1, "cluster": 5},
        {"v": 1, "offset": 1, "epoch": 1, "from": 1, "cluster": None, "snapshot": "x"},
        {"v": 1, "offset": 1, "epoch": 1, "from": 1, "cluster": None, "topic": 5},
        {"topic": {"0": 5}},
    ],
)
def test_an_unknown_json_is_a_checkpoint_mismatch(written: object) -> None:
    with pytest.raises(DataLossError) as caught:
        StreamOffset.from_json(written, path="/logs")
    assert "[RAFTLOG_DATA_LOSS.CHECKPOINT_MISMATCH] /logs" in str(caught.value)


def test_a_later_version_is_refused() -> None:
    later = {"v": 3, "offset": 1, "epoch": 1, "from": 1, "cluster": None}
    with pytest.raises(DataLossError, match="written by a later version"):
        StreamOffset.from_json(later, path="/logs")
    with pytest.raises(DataLossError, match="written by a later version"):
        SourcesOffset.from_json(later, {}, path="/logs")


# --- several logs ---------------------------------------------------------------------------------


def test_the_json_of_version_2_does_not_change() -> None:
    one = StreamOffset(offset=7, epoch=1, start_offset=5, cluster_id="b")
    other = StreamOffset(offset=9, epoch=2, start_offset=9, cluster_id=None, initial=True)
    assert json.dumps(SourcesOffset({"b": one, "a": other}).to_json()) == (
        '{"v": 2, "logs": {'
        '"a": {"v": 1, "offset": 9, "epoch": 2, "from": 9, "cluster": null, "initial": true}, '
        '"b": {"v": 1, "offset": 7, "epoch": 1, "from": 5, "cluster": "b"}}}'
    )


@given(st.dictionaries(st.text(max_size=22), OFFSETS), st.randoms())
def test_an_offset_of_several_logs_has_one_text(
    logs: dict[str, StreamOffset], random: Random
) -> None:
    shuffled = list(logs.items())
    random.shuffle(shuffled)
    text = json.dumps(SourcesOffset(logs).to_json())
    assert json.dumps(SourcesOffset(dict(shuffled)).to_json()) == text
    assert list(json.loads(text)["logs"]) == sorted(logs)
    known: KnownOffsets = {}
    for _ in range(2):
        assert SourcesOffset.from_json(json.loads(text), known, path="p").logs == logs


def test_a_part_that_was_parsed_is_used_only_for_the_same_text() -> None:
    known: KnownOffsets = {}
    for offset in (5, 6, 6, 5):
        stored = StreamOffset(offset=offset, epoch=1, start_offset=0, cluster_id="a")
        written = SourcesOffset({"a": stored}).to_json()
        assert SourcesOffset.from_json(written, known, path="p").logs == {"a": stored}


@pytest.mark.parametrize(
    "written", [None, {}, {"v": 2}, {"v": 2, "logs": []}, {"v": 2, "logs": {"a": 5}}]
)
def test_another_json_is_no_offset_of_several_logs(written: object) -> None:
    with pytest.raises(DataLossError, match="CHECKPOINT_MISMATCH"):
        SourcesOffset.from_json(written, {}, path="p")


def test_the_offset_of_one_log_is_that_of_its_cluster_if_it_has_one() -> None:
    single = StreamOffset(offset=7, epoch=1, start_offset=5, cluster_id="b")
    assert SourcesOffset.from_json(single.to_json(), {}, path="p").logs == {"b": single}
    anonymous = StreamOffset(offset=7, epoch=1, start_offset=5, cluster_id=None)
    with pytest.raises(DataLossError, match="one log without a cluster id"):
        SourcesOffset.from_json(anonymous.to_json(), {}, path="p")


def test_the_offset_of_several_logs_is_not_that_of_one() -> None:
    several = SourcesOffset({}).to_json()
    with pytest.raises(DataLossError, match="a stream with the option sources"):
        StreamOffset.from_json(several, path="p")
