"""Invalid arguments are refused by name before they reach the writer thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.client.embedded.conftest import Machine

import raftlog
from raftlog.client.embedded.handle import EmbeddedLog
from raftlog.errors import LogNotFoundError, OptionError
from raftlog.log.reading.reads import Isolation
from raftlog.records.builder import ProducerStamp


@pytest.fixture
def log(machine: Machine) -> EmbeddedLog:
    return machine.open()


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ({"epoch": "1"}, "epoch"),
        ({"epoch": True}, "epoch"),
        ({"commit": ("a", "q", 1), "take_over_from": True}, "take_over_from"),
        ({"required_base_offset": "1"}, "required_base_offset"),
        ({"required_base_offset": 1.0}, "required_base_offset"),
        ({"required_end_offset": 2**70}, "required_end_offset"),
        ({"commit": "app"}, "commit"),
        ({"commit": ("app", "query")}, "commit"),
        ({"commit": ("app", "query", "1")}, "version"),
        ({"commit": ("app", "query", 2**63)}, "version"),
        ({"commit": (1, "query", 1)}, "application id"),
        ({"commit": ("app", None, 1)}, "query id"),
        ({"commit": ("", "query", 1)}, "application id"),
        ({"producer": 7}, "producer"),
        ({"producer": (1, 2)}, "producer"),
        ({"producer": ("1", 0, 0)}, "producer id"),
        ({"producer": (-1, 0, 0)}, "producer id"),
        ({"producer": (1, 2**15, 0)}, "producer epoch"),
        ({"producer": (1, 0, 2**31)}, "producer sequence"),
        ({"producer": ProducerStamp(1, 0, 0, is_transactional=True)}, "producer"),
        ({"timeout_ms": None}, "timeout_ms"),
        ({"timeout_ms": -1}, "timeout_ms"),
        ({"timeout_ms": float("inf")}, "timeout_ms"),
    ],
)
def test_an_invalid_argument_is_named_and_other_appends_continue(
    log: EmbeddedLog, arguments: dict[str, Any], option: str
) -> None:
    with pytest.raises(OptionError) as caught:
        log.append(b"x", **arguments)
    assert caught.value.option == option
    assert log.append(b"y").base_offset == 1


def test_integers_of_other_types_are_accepted(log: EmbeddedLog) -> None:
    epoch: Any = np.int32(1)
    version: Any = np.int64(3)
    base_offset: Any = np.int64(2)
    assert log.append(b"x", epoch=epoch, commit=("app", "query", version)).epoch == 1
    assert log.append(b"x", commit=("app", "query", 3)).was_duplicate
    assert log.append([], required_base_offset=base_offset).base_offset == 2


def test_invalid_isolation_levels_are_refused(machine: Machine) -> None:
    log = machine.open(values="kraft")
    log.append([b"\x01\x17\x00\x00", b"\x01\x14\x00\x00"])
    assert len(list(log.read(isolation="read_committed"))) == 0
    assert len(list(log.read(isolation="high_watermark"))) == 2
    assert len(list(log.read(isolation="read_uncommitted"))) == 2, "as Kafka calls it"
    assert len(list(log.read(isolation=Isolation.READ_UNCOMMITTED))) == 2
    for wrong in ("serializable", 1, None):
        with pytest.raises(OptionError, match="read_committed, high_watermark"):
            log.read(isolation=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["1", 1.5, None, -1])
def test_an_invalid_offset_is_named(log: EmbeddedLog, wrong: Any) -> None:
    if wrong is not None:
        with pytest.raises(OptionError, match="from_offset"):
            log.read(wrong)  # -1 and -2 are not the end and the start, as in Kafka's ListOffsets
        with pytest.raises(OptionError, match="end_offset"):
            log.read(0, wrong)
        with pytest.raises(OptionError, match="end_offset"):
            log.snapshot(end_offset=wrong)
    with pytest.raises(OptionError, match="application_id"):
        log.last_commit(1 if wrong == "1" else wrong)  # type: ignore[arg-type]


def test_repair_requires_an_offset_and_a_directory(tmp_path: Path) -> None:
    raftlog.open(tmp_path / "log").close()
    wrong: Any = "5"
    with pytest.raises(OptionError, match="cut-at"):
        raftlog.repair(tmp_path / "log", cut_at=wrong)
    with pytest.raises(LogNotFoundError):
        raftlog.repair(tmp_path / "nothing", cut_at=5)


def test_an_empty_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError) as caught:
        raftlog.open("")
    assert caught.value.option == "path"
    assert list(tmp_path.iterdir()) == []
