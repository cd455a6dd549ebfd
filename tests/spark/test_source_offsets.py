"""Offsets of the source as Spark stores them: one order of keys, one version."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_raftlog.offsets import StreamOffset
from raftlog.errors import DataLossError
from raftlog.types import SnapshotId

NUMBERS = st.integers(0, 2**62)
OFFSETS = st.builds(
    StreamOffset,
    offset=NUMBERS,
    epoch=st.integers(-1, 2**31 - 1),
    start_offset=NUMBERS,
    cluster_id=st.none() | st.text(max_size=22),
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
        {"topic": {"0": 5}},
    ],
)
def test_an_unknown_json_is_a_checkpoint_mismatch(written: object) -> None:
    with pytest.raises(DataLossError) as caught:
        StreamOffset.from_json(written, path="/logs")
    assert "[RAFTLOG_DATA_LOSS.CHECKPOINT_MISMATCH] /logs" in str(caught.value)


def test_a_later_version_is_refused() -> None:
    later = {"v": 2, "offset": 1, "epoch": 1, "from": 1, "cluster": None}
    with pytest.raises(DataLossError, match="written by a later version"):
        StreamOffset.from_json(later, path="/logs")
