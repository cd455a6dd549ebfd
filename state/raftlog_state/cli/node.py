"""``raftlog node`` and its commands: format, run and recover a node of a quorum."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Final

from .output import Console, Output
from .parser import Commands, Parser
from .rescue import add_old_voters_stopped, check_survivor

if TYPE_CHECKING:
    from raftlog.node.config import NodeConfig
    from raftlog.node.service import CreateService, NodeContext, Service
    from raftlog.quorum.voters import VoterSet

USAGE: Final = "raftlog node COMMAND [OPTION ...]"
ABOUT: Final = """
Set up and run the nodes of a quorum. Three or five nodes replicate one log with KRaft;
acknowledged records survive the loss of any minority of the nodes. Clients are `raftlog.connect`
and the producers and consumers of Apache Kafka.

commands:
  format       format the directory of a new node
  start        run a node until SIGTERM
  recover      let a stopped node with a damaged log or quorum-state vote again
  random-uuid  print a random id for a cluster or a directory

minimal node.toml:
  [node]
  id = 1
  directory = "data"
  [listeners.both]
  address = "127.0.0.1:9192"

one of three nodes on a network (TLS is required except on loopback):
  [node]
  id = 1
  directory = "/var/lib/raftlog"
  bootstrap_servers = ["10.0.0.1:9193", "10.0.0.2:9193", "10.0.0.3:9193"]
  [listeners.clients]
  address = "10.0.0.1:9192"
  tls = { certificate = "log-1.pem", key = "log-1.key", ca = "clients-ca.pem" }
  [listeners.voters]
  address = "10.0.0.1:9193"
  tls = { certificate = "log-1.pem", key = "log-1.key", ca = "voters-ca.pem" }
  [access]
  read = ["reports-*"]
  append = ["jobs-*"]
  admin = ["operator"]
  nodes = "log-{id}.example"

examples:
  raftlog node format --config node.toml --standalone
  raftlog node start --config node.toml

`raftlog node COMMAND --help` describes a command; `pydoc raftlog.node.config` describes all keys of
node.toml.
"""


def add_node(commands: Commands) -> None:
    """Add ``raftlog node`` with its commands, in the order of the help text."""
    node = commands.add_parser("node", usage=USAGE, about=ABOUT)
    node_commands = node.add_commands()
    for add_command in (_add_format, _add_start, _add_recover, _add_random_uuid):
        add_command(node_commands)


def _add_config(command: Parser) -> None:
    command.add_argument(
        "-c", "--config", metavar="FILE", required=True, help="configuration of the node (TOML)"
    )


# --- raftlog node format --------------------------------------------------------------------------

FORMAT_ABOUT = """
Format the directory named in FILE, like Kafka's kafka-storage, and print its cluster id, node id
and directory id. Unless FILE contains static_voters, one of these options selects the initial
voters:

  --standalone         this node alone, as a new cluster. To add another node later, format it with
                       the same cluster id and --no-initial-voters, then run `raftlog quorum
                       --add-voter` or kafka-metadata-quorum add-controller
  --initial-voters     the listed nodes; format each of them with the same list
  --no-initial-voters  other nodes; this node starts as an observer and can be added later

--from continues a log after a majority of a quorum's disks was lost. SURVIVOR is the directory of a
stopped node, or a copy of it. Format all initial voters from the same SURVIVOR, with the same list.
They continue its log in a later epoch, and keep its cluster id, required offsets, commit names and
producer ids. What may be lost is printed. The command fails while a majority of the old voters
accepts connections, because two quorums of one cluster would diverge.

A node with [controller] enabled also gets the features of a new Kafka cluster: those of
--release-version, with the levels of --feature. The first active controller writes them to its log.

With --initial-voters, the other voters that are running are first asked for their records. If the
quorum already has records, this node may have lost a directory with records that it had
acknowledged, so nothing is formatted. Format the node as an observer instead, and add it to the
voters.

A formatted directory is never overwritten: a node that forgets its vote could elect a second leader
in the same epoch. An interrupted format can be repeated.
"""

FORMAT_EXAMPLES = """
raftlog node format --config node.toml --standalone
raftlog node format --config node.toml --cluster-id 4L6g3nShT-eMCtK--X86sw \\
  --initial-voters 1@10.0.0.1:9193:AAbC...,2@10.0.0.2:9193:BBcD...,3@10.0.0.3:9193:CCdE...
raftlog node format --config node-4.toml --cluster-id 4L6g3nShT-eMCtK--X86sw --no-initial-voters
raftlog node format --config node.toml --standalone --release-version 4.2 --feature share.version=0
raftlog node format --config node-4.toml --from /mnt/node-2 --initial-voters 4@10.0.0.4:9193:DDeF...
"""


def _add_format(commands: Commands) -> None:
    """Add ``raftlog node format``."""
    command = commands.add_parser("format", about=FORMAT_ABOUT, examples=FORMAT_EXAMPLES)
    command.set_defaults(run=_run_format)
    _add_config(command)
    command.add_argument(
        "-t",
        "--cluster-id",
        metavar="ID",
        help="id of the cluster, from `raftlog node random-uuid`, the same for all of its nodes; "
        "default: a random id with --standalone, the id of SURVIVOR with --from",
    )
    ways = command.add_mutually_exclusive_group()
    ways.add_argument(
        "--standalone", action="store_true", help="this node is the only initial voter"
    )
    ways.add_argument(
        "--initial-voters",
        metavar="ID@HOST:PORT:DIRECTORY_ID,...",
        help="the initial voters, with the addresses of their voter listeners",
    )
    ways.add_argument(
        "--no-initial-voters", action="store_true", help="this node is not an initial voter"
    )
    command.add_argument(
        "--from",
        dest="survivor",
        metavar="SURVIVOR",
        help="continue the log in this directory of a node that survived the loss of a majority",
    )
    add_old_voters_stopped(command)
    command.add_argument(
        "--never-formatted",
        action="store_true",
        help="confirm that this voter has never had another directory, instead of asking the other "
        "initial voters whether the quorum already has records",
    )
    command.add_argument(
        "--release-version",
        metavar="VERSION",
        help="metadata.version of the cluster, such as 4.4 or 4.4-IV2; default: 4.3, which Kafka "
        "brokers support from 4.3 on",
    )
    command.add_argument(
        "--feature",
        metavar="NAME=LEVEL",
        action="append",
        default=[],
        help="level of a feature, if it differs from that of the release; can be repeated",
    )
    command.add_argument(
        "--ignore-formatted",
        action="store_true",
        help="do nothing if the directory is already formatted for this node and cluster",
    )


def _run_format(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Format the directory and print its identity; return the exit code."""
    if arguments.cluster_id is None and not (arguments.standalone or arguments.survivor):
        arguments.parser.error(
            "--cluster-id is missing: all nodes of a cluster must have the same id"
        )

    from raftlog.node.config import read_config
    from raftlog.node.errors import AlreadyFormattedError
    from raftlog.node.first_format import check_is_first_format
    from raftlog.node.formatting import format_directory, random_id

    config = read_config(arguments.config)
    if arguments.survivor is not None:
        return _format_from(arguments, config, output)
    cluster_id = arguments.cluster_id or random_id()

    def check_voters(voters: VoterSet) -> None:
        if not (arguments.never_formatted or arguments.standalone):
            check_is_first_format(config, voters, cluster_id)

    try:
        format_directory(
            config,
            cluster_id=cluster_id,
            initial_voters=_initial_voters(arguments.initial_voters),
            is_standalone=arguments.standalone,
            is_observer=arguments.no_initial_voters,
            bootstrap=_bootstrap(arguments, config),
            check_voters=check_voters,
        )
    except AlreadyFormattedError:
        if not arguments.ignore_formatted:
            raise
    output.lines(_identity(config, arguments.cluster_id))
    return 0


def _format_from(arguments: argparse.Namespace, config: NodeConfig, output: Output) -> int:
    """Format the directory with the log of the survivor; return the exit code."""
    if arguments.release_version is not None or arguments.feature:
        arguments.parser.error("--release-version and --feature are for new clusters, not --from")

    from raftlog.node.errors import AlreadyFormattedError
    from raftlog.node.rescue import format_from, open_node_survivor
    from raftlog.node.survivor import Survivor

    with open_node_survivor(config, arguments.survivor) as survivor:
        cluster_id = check_survivor(survivor, arguments, Survivor.addresses, output)
        try:
            format_from(
                survivor,
                config,
                cluster_id=cluster_id,
                initial_voters=_initial_voters(arguments.initial_voters),
                is_standalone=arguments.standalone,
                is_observer=arguments.no_initial_voters,
            )
        except AlreadyFormattedError:
            if not arguments.ignore_formatted:
                raise
    output.lines(_identity(config, cluster_id))
    return 0


def _bootstrap(arguments: argparse.Namespace, config: NodeConfig) -> bytes | None:
    """Return the bootstrap records of a node with a controller, None for others.

    Raises ``OptionError``.
    """
    if config.controller is None:
        if arguments.release_version is not None or arguments.feature:
            arguments.parser.error(
                "--release-version and --feature are for nodes with [controller] enabled = true"
            )
        return None

    from raftlog_state.controller_apis.bootstrap import bootstrap_bytes, bootstrap_features

    levels: dict[str, int] = {}
    for text in arguments.feature:
        name, _, level = text.partition("=")
        if not name or not level.isdecimal():
            arguments.parser.error(f"--feature: expected NAME=LEVEL, not {text!r}")
        levels[name] = int(level)
    features = bootstrap_features(arguments.release_version, levels)
    return bootstrap_bytes(features, written_ms=time.time_ns() // 1_000_000)


def _initial_voters(text: str | None) -> VoterSet | None:
    from raftlog.errors import OptionError
    from raftlog.node.addresses import parse_initial_voters

    if text is None:
        return None
    try:
        return parse_initial_voters(text)
    except ValueError as error:
        raise OptionError(option="--initial-voters", reason=str(error)) from None


def _identity(config: NodeConfig, cluster_id: str | None) -> tuple[str, ...]:
    """Return the lines of ``meta.properties`` that identify the directory.

    Raises:
        WrongClusterError: The directory belongs to another cluster.
    """
    from raftlog.errors import WrongClusterError
    from raftlog.node.formatting import read_identity

    meta = read_identity(config)
    assert meta.cluster_id is not None, "checked by read_identity"
    if cluster_id not in (None, meta.cluster_id):
        raise WrongClusterError(
            path=config.directory,
            expected_cluster_id=cluster_id,
            cluster_id=meta.cluster_id,
            remedy="correct the directory or the cluster id",
        )
    return (
        f"cluster.id={meta.cluster_id}",
        f"node.id={meta.node_id}",
        f"directory.id={meta.directory_id}",
    )


# --- raftlog node start ---------------------------------------------------------------------------

START_ABOUT = """
Run the node that FILE configures, in a directory formatted by `raftlog node format`.

SIGTERM and Ctrl-C shut the node down: it resigns leadership, completes requests in progress and
closes its log. A second signal ends the process immediately. SIGHUP reloads certificates, users,
token keys, and [access] and [[quotas]] of FILE. If anything in these files is invalid, nothing is
reloaded, and the reason is logged. Clients whose permissions change are disconnected after their
current request.

The node logs elections and rejected requests with their reasons to stderr, one JSON object per
line, and never records or secrets. The exit code is 1 if the log failed, 2 if FILE or the directory
cannot be used.
"""

START_EXAMPLES = """
raftlog node start --config node.toml
"""


def _add_start(commands: Commands) -> None:
    """Add ``raftlog node start``."""
    command = commands.add_parser("start", about=START_ABOUT, examples=START_EXAMPLES)
    command.set_defaults(run=_run_start)
    _add_config(command)


def _run_start(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Run the node until a signal; return the exit code."""
    from raftlog.node.config import read_config

    config = read_config(arguments.config)

    from raftlog.node.process import run_node

    services: list[CreateService] = [_create_publishers]
    if config.controller is not None:
        from .controller_node import create_controller

        services.insert(0, create_controller)
    return run_node(config, services=services)


def _create_publishers(node: NodeContext) -> Service | None:
    """Return the publishers of a node, None if its log has no metadata.

    Their modules, which import numpy and pyarrow, take more memory than all of such a node.
    """
    from raftlog import ValueKind

    if node.log_config().values is not ValueKind.KRAFT:
        return None
    from .controller_node import create_publishers

    return create_publishers(node)


# --- raftlog node recover -------------------------------------------------------------------------

RECOVER_ABOUT = """
Inspect the directory of a stopped node and print why the node does not vote. Either its log was
damaged below the offset that it had acknowledged: then it votes again once it has fetched the
committed records from a leader. Or its quorum-state is damaged, missing, or has an epoch far above
that of the log.

--allow-data-loss lets the node vote with the log that it has. Use it if too many nodes are damaged
to elect a leader. Acknowledged records that exist only on damaged nodes are lost, so first try to
restore one of these nodes from a backup, and do not recover more nodes than a majority needs. If
quorum-state is damaged, first stop all nodes whose quorum-state is damaged.

The exit code is 1 if the node still cannot vote.
"""

RECOVER_EXAMPLES = """
raftlog node recover --config node.toml
raftlog node recover --config node.toml --allow-data-loss
"""


def _add_recover(commands: Commands) -> None:
    """Add ``raftlog node recover``."""
    command = commands.add_parser("recover", about=RECOVER_ABOUT, examples=RECOVER_EXAMPLES)
    command.set_defaults(run=_run_recover)
    _add_config(command)
    command.add_argument(
        "--allow-data-loss",
        action="store_true",
        help="let the node vote even though acknowledged records may be lost",
    )


def _run_recover(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print what was found and changed; return the exit code."""
    from raftlog.node.config import read_config
    from raftlog.node.recovery import recover_node

    allows_data_loss: bool = arguments.allow_data_loss
    found = recover_node(read_config(arguments.config), allows_data_loss=allows_data_loss)
    output.line(f"the log ends at offset {found.end_offset} (exclusive)")
    if found.out_of_election_reason is not None:
        output.line(f"does not vote: {found.out_of_election_reason}")
    if found.election_problem is not None:
        output.line(f"cannot start or vote: {found.election_problem}")
    if found.votes:
        output.line("the node can vote")
        return 0
    if not allows_data_loss:
        output.line("nothing was changed; with --allow-data-loss the node votes with this log")
        return 1
    if found.new_epoch is not None:
        output.line(f"quorum-state was reset to epoch {found.new_epoch}, without a vote")
    output.line("the node votes after its next start; records that no node has are lost")
    return 0


# --- raftlog node random-uuid ---------------------------------------------------------------------

RANDOM_UUID_ABOUT = """
Print a random id for a cluster or for a node's directory, like `kafka-storage random-uuid`.
"""

RANDOM_UUID_EXAMPLES = """
raftlog node random-uuid
"""


def _add_random_uuid(commands: Commands) -> None:
    """Add ``raftlog node random-uuid``."""
    command = commands.add_parser(
        "random-uuid", about=RANDOM_UUID_ABOUT, examples=RANDOM_UUID_EXAMPLES
    )
    command.set_defaults(run=_run_random_uuid)


def _run_random_uuid(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print an id; return the exit code."""
    from raftlog.node.formatting import random_id

    output.line(random_id())
    return 0
