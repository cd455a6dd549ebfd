"""Bugs of the directories of a quorum's nodes, and of clients that are given several clusters."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

DIRECTORIES: Final = "tests/client/embedded/test_node_directories.py"
FOREIGN: Final = "tests/node/test_foreign_batches.py"
RESCUE: Final = "tests/state/cli/test_cli_rescue.py"
RESCUED_NODES: Final = "tests/node/test_rescued_nodes.py"
FIRST_FORMAT: Final = "tests/node/test_first_format.py"
DEV: Final = "tests/state/cli/test_cli_dev.py"
NODE: Final = "connector/raftlog/node"
CLUSTERS: Final = "tests/client/remote/test_cluster_ids.py"
TRIMMED: Final = "tests/client/remote/test_trimmed_controller.py"
EMBEDDED: Final = "connector/raftlog/client/embedded"
REMOTE: Final = "connector/raftlog/client/remote"
QUORUM_LOG: Final = "connector/raftlog/log/writing/quorum_log.py"
FOREIGN_BATCHES: Final = "connector/raftlog/log/reading/foreign_batches.py"

NODE_DIRECTORY_PLANTS: Final = (
    # --- the directory of a node ------------------------------------------------------------------
    Plant(
        bug="a voter that lost its directory is formatted with its old id while there are records",
        path=f"{NODE}/first_format.py",
        old="                if not batch.is_control:\n",
        new="                if False:\n",
        tests=(FIRST_FORMAT,),
    ),
    Plant(
        bug="the log of a quorum's node is opened as an embedded log",
        path=f"{EMBEDDED}/handle.py",
        old="    return node_refusal(path) if is_of_node(files, path) else None\n",
        new="    return None\n",
        tests=(DIRECTORIES,),
    ),
    Plant(
        bug="the log of a quorum's node is recovered and truncated as an embedded log",
        path=f"{EMBEDDED}/directory.py",
        old="        raise node_refusal(path)\n    return properties\n",
        new="        pass\n    return properties\n",
        tests=(DIRECTORIES,),
    ),
    Plant(
        bug="an embedded log is created in the directory of a formatted node",
        path=f"{EMBEDDED}/directory.py",
        old="        raise node_refusal(path)\n    return _create(",
        new="        pass\n    return _create(",
        tests=(DIRECTORIES,),
    ),
    Plant(
        bug="an embedded log is opened only if its parent directory can be listed",
        path=f"{EMBEDDED}/directory.py",
        old="        return not storage.is_directory(storage.join(parent, META_PROPERTIES_NAME))\n",
        new="        return META_PROPERTIES_NAME in storage.list_names(parent)\n",
        tests=(DIRECTORIES,),
    ),
    Plant(
        bug="settings of a running node are changed",
        path=f"{EMBEDDED}/directory.py",
        old="    if not is_of_node(files, directory):\n        with FairLock",
        new="    if files is not None:\n        with FairLock",
        tests=(DIRECTORIES,),
    ),
    Plant(
        bug="a snapshot is written into the directory of a log of raftlog",
        path="connector/raftlog/client/location.py",
        old="    if RAFTLOG_PROPERTIES_NAME in names:\n",
        new="    if RAFTLOG_PROPERTIES_NAME == name:\n",
        tests=("tests/state/controller/test_exported_snapshots.py",),
    ),
    # --- batches of other processes ---------------------------------------------------------------
    Plant(
        bug="a node starts with batches that another process wrote",
        path="connector/raftlog/node/replica.py",
        old="    log.check_own_batches()\n",
        new="",
        tests=(FOREIGN,),
    ),
    Plant(
        bug="a batch of an epoch after that of quorum-state is served",
        path=FOREIGN_BATCHES,
        old="            if entry.epoch > state.leader_epoch:\n",
        new="            if entry.epoch > state.leader_epoch + 1:\n",
        tests=(FOREIGN, "tests/state/cli/test_cli_copies.py"),
    ),
    Plant(
        bug="an epoch that another leader began is served",
        path=FOREIGN_BATCHES,
        old="            if state.leader_id not in (None, leader_id):\n",
        new="            if leader_id is None:\n",
        tests=(FOREIGN, "tests/state/cli/test_cli_copies.py"),
    ),
    Plant(
        bug="a node does not start if the first batch of its epoch is damaged",
        path=QUORUM_LOG,
        old="        except CorruptBatchError:\n            return None  # damage",
        new="        except LogReadOnlyError:\n            return None  # damage",
        tests=(FOREIGN,),
    ),
    Plant(
        bug="a running node appends after bytes of another process",
        path=QUORUM_LOG,
        old="        self._check_byte_count()\n        super()._write",
        new="        super()._write",
        tests=(FOREIGN,),
    ),
    Plant(
        bug="a node that closes leaves bytes of another process in its log",
        path=QUORUM_LOG,
        old="        if byte_count > active.byte_count:\n",
        new="        if byte_count > active.byte_count and not self._is_changed:\n",
        tests=(FOREIGN,),
    ),
    Plant(
        bug="a node that cannot save bytes of another process leaves its files open",
        path=QUORUM_LOG,
        old="        finally:\n            super().close()\n",
        new="        finally:\n            pass\n        super().close()\n",
        tests=(FOREIGN,),
    ),
    Plant(
        bug="raftlog check takes batches of another process for the quorum's",
        path="state/raftlog_state/check/log_check.py",
        old='        if found is not None:\n            reason = f"another',
        new='        if found is not None and found.offset == -1:\n            reason = f"another',
        tests=("tests/state/cli/test_cli_copies.py",),
    ),
    Plant(
        bug="raftlog check ends with an error if the node deletes the segment of its epoch's start",
        path="state/raftlog_state/check/log_check.py",
        old="        except SegmentDeletedError:\n            return  #",
        new="        except LogGapError:\n            return  #",
        tests=("tests/state/cli/test_cli_copies.py",),
    ),
    # --- clusters ---------------------------------------------------------------------------------
    Plant(
        bug="a client appends to one of several clusters",
        path=f"{REMOTE}/metadata.py",
        old="        if cluster_id != self._cluster_id:\n",
        new="        if not self._cluster_id:\n",
        tests=(CLUSTERS,),
    ),
    Plant(
        bug="a client does not wait for the cluster ids of the other nodes",
        path=f"{REMOTE}/metadata.py",
        old="best.epoch > epoch and self._has_asked_all:\n",
        new="best.epoch > epoch:\n",
        tests=(CLUSTERS,),
    ),
    Plant(
        bug="a client ignores the cluster id that it was given",
        path=f"{REMOTE}/leader_client.py",
        old="        self._cluster_id = cluster_id\n",
        new="        self._cluster_id = None\n",
        tests=(CLUSTERS,),
    ),
    # --- the start of a controller's log ----------------------------------------------------------
    Plant(
        bug="a controller's log is not read from its start after an election",
        path=f"{REMOTE}/leader_client.py",
        old="        if last_epoch is None and is_controller and",
        new="        if last_epoch is not None and is_controller and",
        tests=(TRIMMED,),
    ),
    Plant(
        bug="the newest snapshot's epoch is taken for that before the log start",
        path=f"{REMOTE}/leader_client.py",
        old="        low, high = 0, fetched.snapshot_id.epoch\n",
        new="        low = high = fetched.snapshot_id.epoch\n",
        tests=(TRIMMED,),
    ),
    Plant(
        bug="each request of a search for the epoch before the log start has the whole timeout",
        path=f"{REMOTE}/leader_client.py",
        old="        pause_s = PAUSE_FIRST_S\n        while True:\n            leader = await",
        new="        pause_s, until = PAUSE_FIRST_S, self._until(None)\n"
        "        while True:\n            leader = await",
        tests=(TRIMMED,),
    ),
    # --- one look at a running node ---------------------------------------------------------------
    Plant(
        bug="the committed end is compared with a log end that was read before it",
        path="state/raftlog_state/loader/image_reader.py",
        old="        self._read_extent()  # of a running",
        new="        # of a running",
        tests=("tests/state/loader/test_base_images.py",),
    ),
    Plant(
        bug="a dead bootstrap server is waited for five times",
        path="state/raftlog_state/source_rows/reading.py",
        old="            is_retriable &= not isinstance(error, QuorumUnavailableError)\n",
        new="",
        tests=("tests/state/source_rows/test_retry.py",),
    ),
    # --- rescue -----------------------------------------------------------------------------------
    Plant(
        bug="a rescued quorum begins in the next epoch, which a lost voter may have led",
        path=f"{NODE}/survivor.py",
        old="return max(known + 1, min(known + step, EPOCH_RESERVED_FROM - 1))",
        new="return known + 1",
        tests=(RESCUE,),
    ),
    Plant(
        bug="the first batch of a rescued quorum is named before it is synced",
        path="connector/raftlog/log/writing/log_copy.py",
        old="            copy.write_at(position, more)\n        copy.sync()\n",
        new="            copy.sync()\n            copy.write_at(position, more)\n",
        tests=("tests/node/test_rescue.py",),
    ),
    Plant(
        bug="an old voter whose address is unknown counts as lost",
        path=f"{NODE}/survivor.py",
        old="    if len(reached) + len(unknown) >",
        new="    if len(reached) >",
        tests=(RESCUE,),
    ),
    Plant(
        bug="a survivor is rescued while its controller is running",
        path=f"{NODE}/rescue.py",
        old="        raise NodeRunningError(path=path)\n    return lock\n",
        new="        pass\n    return lock\n",
        tests=(RESCUE,),
    ),
    Plant(
        bug="a node with a survivor's log votes in the epoch of its last record",
        path=f"{NODE}/rescue.py",
        old="quorum_state(ElectionState(epoch=epoch))",
        new="quorum_state(ElectionState(epoch=survivor.last_epoch))",
        tests=(RESCUED_NODES,),
    ),
    # --- a quorum for trying ----------------------------------------------------------------------
    Plant(
        bug="the nodes of raftlog dev outlive the command",
        path="state/raftlog_state/cli/dev.py",
        old="    threading.Thread(target=wait, daemon=True).start()\n",
        new="    threading.Thread(target=wait, daemon=True)\n",
        tests=(f"{DEV}::test_a_quorum_in_a_directory_is_started_again_with_its_records",),
    ),
    Plant(
        bug="a node is ready without a leader",
        path=f"{NODE}/metrics.py",
        old='            problems.append(f"it has no leader in epoch {core.epoch}")\n',
        new="            pass\n",
        tests=(
            "tests/node/test_metrics.py::test_a_node_without_a_majority_is_healthy_and_not_ready",
        ),
    ),
)
