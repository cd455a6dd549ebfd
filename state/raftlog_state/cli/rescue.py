"""``raftlog rescue``: a new quorum of Apache Kafka from what is left of the old one."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from .output import Console, Output
from .parser import Commands, Parser

if TYPE_CHECKING:
    from raftlog.node.survivor import Addresses, Survivor, VoterContact
    from raftlog.quorum.voters import VoterSet

ABOUT: Final = """
Rescue a quorum of Kafka controllers after a majority of their disks was lost: write the
directories of a new quorum from the metadata directory of a controller that survived. The log is
kept, and with it the cluster id, topic ids, configs, credentials and broker registrations.

SURVIVOR is the metadata directory of a stopped controller, a copy of it, or a snapshot. Brokers
have copies, too, which may contain later records. If several are given, the one with the last
leader epoch, then the greatest end offset, is used, and how the others differ is printed.

Records above the last known commit may never have been committed; the new quorum commits them.
Records that the lost controllers committed after the end of SURVIVOR are lost. Both are printed.
Nothing is written without --write.

The command fails while a majority of the old voters accepts connections, because two quorums of one
cluster would diverge. SURVIVOR is not changed. DIR contains one directory for each voter and is
created completely or not at all. The directories contain the secrets of the log in clear text, and
only their owner can access them.

If SURVIVOR has kraft.version 1, the new voters are written to the log. With kraft.version 0, set
them in controller.quorum.voters.
"""

EXAMPLES: Final = """
raftlog rescue /mnt/controller-1 --voters 1@c1:9093,2@c2:9093,3@c3:9093 --out rescued
raftlog rescue /mnt/controller-1 /mnt/broker-7 --voters 4@c4:9093:AAbC... --out rescued --write
"""


def add_rescue(commands: Commands) -> None:
    """Add ``raftlog rescue``."""
    command = commands.add_parser("rescue", about=ABOUT, examples=EXAMPLES)
    command.set_defaults(run=run_rescue)
    command.add_argument(
        "paths", metavar="SURVIVOR", nargs="+", help="surviving metadata directory or snapshot"
    )
    command.add_argument(
        "--voters",
        metavar="ID@HOST:PORT[:DIRECTORY_ID],...",
        required=True,
        help="the new controllers: node id, address of the controller listener, and directory id; "
        "default of the latter: the id of SURVIVOR for its own node id, otherwise a random "
        "one",
    )
    command.add_argument("--out", metavar="DIR", required=True, help="new directory to write")
    command.add_argument(
        "--write", action="store_true", help="write DIR, instead of only printing what is lost"
    )
    command.add_argument(
        "--cluster-id",
        metavar="ID",
        help="id of the cluster, if SURVIVOR has no meta.properties; otherwise fail if the ids "
        "differ",
    )
    add_old_voters_stopped(command)


def run_rescue(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print what would be rescued and lost, and write it if requested; return the exit code."""
    from raftlog.node.rescue import (
        check_is_new,
        open_survivor,
        with_directory_ids,
        write_controllers,
    )

    voters = _parse_voters(arguments.voters)
    check_is_new(arguments.out)
    with open_survivor(arguments.paths) as survivor:
        cluster_id = check_survivor(survivor, arguments, _addresses, output)
        if not arguments.write:
            output.line("nothing was written; --write writes the directories of the new voters")
            return 0
        voters = with_directory_ids(voters, survivor)
        write_controllers(survivor, voters, cluster_id=cluster_id, out=arguments.out)
    output.lines(_next_steps(survivor, voters, arguments.out))
    return 0


def add_old_voters_stopped(command: Parser) -> None:
    """Add ``--old-voters-stopped``; see ``check_survivor``."""
    command.add_argument(
        "--old-voters-stopped",
        action="store_true",
        help="confirm that a majority of the old voters is stopped permanently, instead of trying "
        "to connect to them",
    )


def check_survivor(
    survivor: Survivor,
    arguments: argparse.Namespace,
    addresses: Callable[[Survivor], Addresses],
    output: Output,
) -> str:
    """Print what is rescued and lost, and return the cluster id.

    Raises ``OptionError`` if the cluster is unknown, ``QuorumRunningError`` and
    ``WrongClusterError``.
    """
    from raftlog.node.survivor import check_majority_is_lost, contact_voters

    cluster_id = _cluster_id(survivor, arguments.cluster_id)
    output.lines(describe(survivor, cluster_id))
    if not arguments.old_voters_stopped:
        contacts = contact_voters(addresses(survivor))
        output.lines(_describe_contact(contact) for contact in contacts)
        check_majority_is_lost(contacts)
    return cluster_id


def _parse_voters(text: str) -> VoterSet:
    """Parse ``--voters``. Raises ``OptionError``."""
    from raftlog.errors import OptionError
    from raftlog.node.addresses import parse_voters

    try:
        return parse_voters(text)
    except ValueError as error:
        raise OptionError(option="--voters", reason=str(error)) from None


def describe(survivor: Survivor, cluster_id: str) -> Iterator[str]:
    """Yield lines: the chosen copy, what is certain, what is not, and what is lost."""
    from raftlog.client.offset_spec import time_text

    log, end, certain = survivor.log, survivor.end_offset, survivor.committed_offset
    node = "" if log.node_id is None else f" (node {log.node_id})"
    yield (
        f"survivor: {log.path}{node}, offsets from {log.log_start_offset} to {end} (exclusive), "
        f"last epoch {survivor.last_epoch}, last record at {time_text(survivor.last_time_ms)}"
    )
    yield from (f"not used: {other}" for other in survivor.others)
    ids = ", ".join(map(str, survivor.voters))
    yield f"cluster {cluster_id}, kraft.version {survivor.kraft_version}, old voters {ids}"
    yield f"committed: records below offset {certain}: {survivor.committed_reason}"
    if certain < end:
        yield (
            f"uncertain: {end - certain} records from offset {certain} on may not have been "
            "committed; they are from now on"
        )
    if survivor.damage is not None:
        yield f"damaged: it had lost acknowledged records, and did not vote: {survivor.damage}"
    if survivor.incompleteness is not None:
        yield f"incomplete: {survivor.incompleteness}"
    yield f"lost: records from offset {end} on, if other voters had committed any"


def _cluster_id(survivor: Survivor, expected: str | None) -> str:
    from raftlog.errors import OptionError, WrongClusterError

    found = survivor.log.cluster_id
    if found is None and expected is None:
        reason = f"is missing: {survivor.log.path} has no meta.properties with the cluster id"
        raise OptionError(option="--cluster-id", reason=reason)
    if expected is not None and found not in (None, expected):
        assert found is not None, "compared above"
        raise WrongClusterError(
            path=survivor.log.path,
            expected_cluster_id=expected,
            cluster_id=found,
            remedy="correct SURVIVOR or --cluster-id",
        )
    return found or expected or ""


def _addresses(survivor: Survivor) -> Addresses:
    """Return the addresses of the old voters; of static ones, those that they registered."""
    if survivor.voter_set is not None:
        return survivor.addresses()

    from raftlog_state.image import ControllerRow
    from raftlog_state.loader.image_reader import ImageReader
    from raftlog_state.records import Redactor

    image = ImageReader(survivor.log, Redactor()).image_at(survivor.log.log_end_offset)
    registered = {
        row.controller_id: (row.endpoints[0].host, row.endpoints[0].port)
        for row in image.rows_of(ControllerRow)
        if row.endpoints
    }
    return {node_id: registered.get(node_id) for node_id in survivor.voters}


def _describe_contact(contact: VoterContact) -> str:
    where = "" if contact.address is None else f" at {contact.address}"
    return f"old voter {contact.node_id}{where}: {contact.problem or 'accepts connections'}"


def _next_steps(survivor: Survivor, voters: VoterSet, out: str) -> Iterator[str]:
    from raftlog.node.addresses import address_text
    from raftlog.node.rescue import controller_name

    for voter in voters:
        key = voter.key
        yield (
            f"written: {out}/{controller_name(key.node_id)}: node.id={key.node_id}, "
            f"directory.id={key.directory_id}"
        )
    at = {voter.key.node_id: voter.endpoints[0] for voter in voters}
    addresses = {node_id: address_text(end.host, end.port) for node_id, end in at.items()}
    setting = "controller.quorum.bootstrap.servers=" + ",".join(addresses.values())
    if not survivor.kraft_version:
        listed = (f"{node_id}@{address}" for node_id, address in addresses.items())
        setting = "controller.quorum.voters=" + ",".join(listed)
    yield "next, while all old controllers stay stopped for ever:"
    yield (
        "1. copy what is in each directory to metadata.log.dir (by default the first of log.dirs) "
        "of its controller, owned by the user that runs Kafka"
    )
    yield f"2. set {setting} for all controllers and brokers"
    yield "3. start the controllers, then restart the brokers with their directories"
    yield (
        "a broker that has records after the survivor's end may fail to truncate them: delete its "
        "__cluster_metadata-0, but no other directory, and start it again"
    )
