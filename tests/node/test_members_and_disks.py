"""Real nodes that join, leave, lose their disk or fill it, under a constant load of appends."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.quorum_checks import (
    add,
    grows,
    is_level,
    key_of,
    leader_of,
    remove,
    voter_ids,
)
from tests.support.quorum_load import Load, check_nothing_is_lost
from tests.support.quorum_processes import NodeProcess, QuorumProcesses, eventually

pytestmark = pytest.mark.slow
FORGETFUL = "[log]\nsegment_bytes = 16384\nretention_bytes = 32768\n"
OFTEN = "retention_check_interval_ms = 200\n"
SMALL_DISK = """
set -e
formatted=$1; shift
directory=$1; shift
mount -t tmpfs -o size=4m none "$directory"
cp -a "$formatted/." "$directory/"
dd if=/dev/zero of="$directory/ballast" bs=1k count=3900 2>/dev/null
exec "$@"
"""


def follower_of(quorum: QuorumProcesses) -> NodeProcess:
    leader = eventually(lambda: leader_of(quorum), "a leader")
    return next(node for node in quorum.nodes if node is not leader)


def test_voters_are_added_and_removed_while_users_append(tmp_path: Path) -> None:
    with QuorumProcesses(tmp_path) as quorum, Load(quorum.bootstrap) as load:
        grows(load)
        new = quorum.new_node()
        new.start()
        eventually(lambda: is_level(quorum, new), "the new node has caught up")
        add(quorum, new)
        assert voter_ids(quorum) == [1, 2, 3, 4]
        grows(load)
        leader = eventually(lambda: leader_of(quorum), "a leader")
        remove(quorum, key_of(leader))
        eventually(lambda: leader_of(quorum) not in (None, leader), "another node leads")
        grows(load)
        assert leader.node_id not in voter_ids(quorum)
        assert leader.stop() == 0
        grows(load)
        load.stop()
        check_nothing_is_lost(quorum.bootstrap, load.book)


def test_a_node_that_lost_its_disk_recovers_by_snapshot_and_log(tmp_path: Path) -> None:
    with (
        QuorumProcesses(tmp_path, extra=FORGETFUL, node_keys=OFTEN) as quorum,
        Load(quorum.bootstrap, value_bytes=400) as load,
    ):
        old = follower_of(quorum)
        eventually(
            lambda: all(
                [one for one in node.lines() if one["event"] == "cleaned"] for node in quorum.nodes
            ),
            "every log starts after a snapshot",
        )
        old.kill()
        shutil.rmtree(old.directory)
        grows(load)
        remove(quorum, key_of(old))
        wiped = quorum.new_node(old.node_id)
        wiped.start()
        eventually(lambda: is_level(quorum, wiped), "the wiped node has caught up")
        add(quorum, wiped)
        checkpoints = list((wiped.directory / "raftlog-0").glob("*.checkpoint"))
        assert [one for one in checkpoints if not one.name.startswith("0" * 20)]
        leader = eventually(lambda: leader_of(quorum), "a leader")
        leader.kill()  # from here on its vote is required
        grows(load)
        leader.start()
        load.stop()
        check_nothing_is_lost(quorum.bootstrap, load.book, is_whole=False)


def can_mount_small_disks() -> bool:
    """Return whether this machine can mount a small file system."""
    if shutil.which("unshare") is None:
        return False
    words = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs"]
    done = subprocess.run([*words, "none", "/mnt"], capture_output=True, check=False)
    return done.returncode == 0


@pytest.mark.skipif(not can_mount_small_disks(), reason="needs unshare and user namespaces")
def test_a_full_disk_stops_one_node_and_no_other(tmp_path: Path) -> None:
    quorum = QuorumProcesses(tmp_path)
    full = quorum.nodes[0]
    script = tmp_path / "small-disk.sh"
    script.write_text(SMALL_DISK)
    formatted = full.home / "formatted"
    full.before_launch = lambda: shutil.copytree(full.directory, formatted)
    full.wrapper = (
        *("unshare", "--user", "--map-root-user", "--mount"),
        *("sh", str(script), str(formatted), str(full.directory)),
    )
    with quorum, Load(quorum.bootstrap, value_bytes=2_000) as load:
        grows(load)
        assert full.process is not None
        eventually(
            lambda: [
                one
                for one in full.lines()
                if "no space left" in str(one.get("reason")) or "no room" in str(one.get("reason"))
            ],
            "its disk is full",
        )
        grows(load, by=100)
        assert full.is_running
        ballast = Path(f"/proc/{full.process.pid}/root{full.directory.resolve()}/ballast")
        os.unlink(ballast)
        eventually(lambda: is_level(quorum, full), "it has caught up")
        load.stop()
        check_nothing_is_lost(quorum.bootstrap, load.book)
