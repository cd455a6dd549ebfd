"""The systemd units: as systemd reads them, and as raftlog reads what they run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from raftlog.node.config import parse_config
from raftlog.node.process import DRAIN_TIMEOUT_MS, EXIT_FAILED, HAND_OVER_MS, descriptors_needed
from raftlog_state.cli.main import EXIT_WRONG_CALL, parser

UNITS = sorted((Path(__file__).parents[2] / "deploy" / "systemd").glob("*.service"))
ANALYZE = shutil.which("systemd-analyze")
EXPOSURE_MAX = 15
"""A tenth of the exposure level of `systemd-analyze security`, whose 'OK' is below 40."""
PROGRAM = "/opt/raftlog/bin/raftlog"


def settings(unit: Path) -> dict[str, str]:
    """Return the last value of each setting."""
    return dict(re.findall(r"^(\w+)=(.*)$", unit.read_text(), re.MULTILINE))


NODE, TABLES = UNITS


def test_there_is_a_unit_for_a_node_and_one_for_tables() -> None:
    assert [unit.name for unit in UNITS] == ["raftlog-node.service", "raftlog-tables@.service"]


@pytest.mark.skipif(ANALYZE is None, reason="there is no systemd")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_a_unit(unit: Path, tmp_path: Path) -> None:
    assert ANALYZE is not None
    copy = tmp_path / unit.name.replace("@", "@eu")
    copy.write_text(unit.read_text().replace(PROGRAM, sys.executable))
    command = [ANALYZE, "verify", "--man=no", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(ANALYZE is None, reason="there is no systemd")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_finds_little_that_a_unit_exposes(unit: Path) -> None:
    assert ANALYZE is not None
    limits = ("--offline=true", "--no-pager", f"--threshold={EXPOSURE_MAX}")
    done = subprocess.run(
        [ANALYZE, "security", *limits, unit], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_raftlog_accepts_the_commands() -> None:
    for unit, source in (
        (NODE, []),
        (TABLES, ["--bootstrap-server", "controller-1:9093"]),
    ):
        program, *words = settings(unit)["ExecStart"].replace("%i", "eu").split()
        assert program == PROGRAM
        given = [one for word in words for one in (source if word.startswith("$") else [word])]
        assert callable(parser().parse(given).run)
    assert settings(NODE)["ExecStart"].endswith("node start --config /etc/raftlog/node.toml")


def test_a_unit_is_restarted_unless_that_cannot_help() -> None:
    for unit in UNITS:
        found = settings(unit)
        assert found["Restart"] == "on-failure"
        assert found["RestartPreventExitStatus"] == str(EXIT_WRONG_CALL) != str(EXIT_FAILED)


def test_a_node_has_time_to_stop_descriptors_and_its_directory() -> None:
    found = settings(NODE)
    assert int(found["TimeoutStopSec"]) * 1_000 > 2 * (HAND_OVER_MS + DRAIN_TIMEOUT_MS)
    text = '[node]\nid = 1\ndirectory = "/var/lib/raftlog/data"\n'
    config = parse_config(text + '[listeners.both]\naddress = "127.0.0.1:9192"\n', "node.toml")
    assert int(found["LimitNOFILE"]) > 4 * descriptors_needed(config)
    assert "@resources" in found["SystemCallFilter"], "the limit above cannot be raised later"
    for unit in UNITS:
        directory = settings(unit)["StateDirectory"]
        assert settings(unit)["ReadWritePaths"] == f"/var/lib/{directory}"
