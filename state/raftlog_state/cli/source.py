"""Source of a command, PATH or ``--bootstrap-server``: its options, and the log that they select.

A command that reads a log calls ``add_source``, which adds both; ``open_source`` opens the log.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final, TextIO, TypeAlias

from raftlog.limits import DECOMPRESSED_BYTES_MAX, DECOMPRESSED_BYTES_OPTION_MAX

from .output import Console
from .parser import Parser

if TYPE_CHECKING:
    from raftlog.client import LogKind, LogReader
    from raftlog.client.location import AnyLog
    from raftlog.client.offset_spec import OffsetSpec, Resolved
    from raftlog.client.remote.broker_client import BrokerClient
    from raftlog.client.remote.leader_client import LeaderClient
    from raftlog.client.remote.security import ClientSecurity
    from raftlog_state.image import MetadataImage
    from raftlog_state.records import Redactor
    from raftlog_state.state_sources import StateSource

Options: TypeAlias = "argparse._ActionsContainer"
"""A parser, or a group of its options."""

NODES_TIMEOUT_MS: Final = 30_000
_TWO_SOURCES: Final = "PATH and --bootstrap-server are mutually exclusive"
NODE_OPTIONS: Final = ("config", "tls_ca", "tls_certificate", "tls_key", "timeout_ms")


def add_path(parser: Parser) -> None:
    """Add PATH to a command that reads only files."""
    _add_path(parser, nargs=None)


def add_source(parser: Parser, *, has_cluster_id: bool = False) -> None:
    """Add PATH, ``--bootstrap-server`` and ``--cluster-id``; see ``open_source``.

    ``has_cluster_id``: the command adds ``--cluster-id`` itself.
    """
    _add_path(parser, nargs="?")
    if not has_cluster_id:
        _add_cluster_id(parser)
    parser.add_argument(
        "--quiet",
        action="store_true",
        help="print only warnings and errors to stderr, not the end offset and snapshot in use",
    )
    nodes = parser.add_argument_group("nodes, instead of PATH")
    nodes.add_argument(
        "--bootstrap-server",
        metavar="HOST:PORT,...",
        help="one or more controllers of a running Kafka cluster, or nodes of a raftlog quorum",
    )
    _add_connection(nodes)


def add_nodes(parser: Parser) -> None:
    """Add ``--bootstrap-server`` to a command that reads no files; see ``leader_client``."""
    _add_quorum(parser.add_argument_group("nodes"), is_required=True)


def add_target(parser: Parser) -> None:
    """Add PATH and ``--bootstrap-server`` to a command that appends to a log; see ``open_target``.

    The command adds its own options first.
    """
    parser.add_argument(
        "path",
        metavar="PATH",
        nargs="?",
        help="directory of a log created by raftlog.open, such as decisions-0",
    )
    _add_quorum(parser.add_argument_group("nodes, instead of PATH"), is_required=False)


def _add_quorum(nodes: Options, *, is_required: bool) -> None:
    nodes.add_argument(
        "--bootstrap-server",
        metavar="HOST:PORT,...",
        required=is_required,
        help="one or more nodes of a raftlog quorum",
    )
    _add_connection(nodes)
    _add_cluster_id(nodes)


def _add_cluster_id(options: Options) -> None:
    options.add_argument(
        "--cluster-id",
        metavar="ID",
        help="fail if the log belongs to another cluster. Nodes must all belong to one cluster, "
        "even without this option",
    )


def _add_path(parser: Parser, nargs: str | None) -> None:
    parser.add_argument(
        "path",
        metavar="PATH",
        nargs=nargs,
        help="directory or file to read, see `raftlog --help`",
    )


def _add_connection(options: Options) -> None:
    add_tls(options)
    options.add_argument(
        "--timeout-ms",
        metavar="MS",
        type=int,
        help="how long to retry a request until the leader answers, in milliseconds; default: "
        f"{NODES_TIMEOUT_MS}",
    )


def add_tls(options: Options) -> None:
    """Add the options for the security of connections."""
    options.add_argument(
        "--config",
        metavar="FILE",
        help="properties file with the security options of Kafka's clients, such as "
        "security.protocol and sasl.jaas.config (--command-config of Kafka's tools)",
    )
    options.add_argument(
        "--tls-ca", metavar="FILE", help="PEM file of the CA that signed the nodes' certificates"
    )
    options.add_argument(
        "--tls-certificate", metavar="FILE", help="PEM file of this client's certificate"
    )
    options.add_argument(
        "--tls-key", metavar="FILE", help="PEM file of the private key of --tls-certificate"
    )


def add_kind(parser: Parser) -> None:
    """Add ``--as``, for every command that reads metadata logs and partitions."""
    parser.add_argument(
        "--as",
        dest="record_kind",
        choices=("metadata", "partition"),
        help="the kind of records in PATH, if it cannot be detected from its files: metadata "
        "records, whose secrets are redacted, or a partition's records, which are printed "
        "unchanged",
    )


def add_decryption(parser: Parser) -> None:
    """Add ``--encryption-keys`` and ``--encryption-context``; see ``with_decryption``."""
    parser.add_argument(
        "--encryption-keys",
        metavar="FILE",
        help="file with the keys that decrypt values (see docs/encryption.md). Without it, "
        "encrypted values are printed as base64. Values whose key was deleted are printed as "
        "null",
    )
    parser.add_argument(
        "--encryption-context",
        metavar="NAME",
        help="the context that the log's writer used to encrypt its values",
    )


def with_decryption(arguments: argparse.Namespace, log: LogReader) -> LogReader:
    """Return a reader with decrypted values, or the log itself without ``--encryption-keys``.

    Values that are not encrypted are returned as in the log. Raises ``WrongCallError`` and
    ``OptionError``.
    """
    keys, context = arguments.encryption_keys, arguments.encryption_context
    if keys is None and context is None:
        return log
    if keys is None or not context:
        arguments.parser.error("--encryption-keys and --encryption-context require each other")

    from raftlog import Encryption, KeyFile
    from raftlog.client.location import decrypted

    encryption = Encryption(
        keys=KeyFile(keys), context=context, deleted_keys="null", allow_plaintext=True
    )
    return decrypted(log, encryption)


def add_decompression_limit(parser: Parser) -> None:
    """Add ``--max-decompressed-bytes``, for every command that decodes records."""
    parser.add_argument(
        "--max-decompressed-bytes",
        metavar="BYTES",
        type=_decompressed_bytes,
        default=DECOMPRESSED_BYTES_MAX,
        help="fail on a record batch that decompresses to more bytes than this; default: "
        f"{DECOMPRESSED_BYTES_MAX}, maximum: {DECOMPRESSED_BYTES_OPTION_MAX}",
    )


def _decompressed_bytes(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= len(str(DECOMPRESSED_BYTES_OPTION_MAX)):
        byte_count = int(text)
        if 1 <= byte_count <= DECOMPRESSED_BYTES_OPTION_MAX:
            return byte_count
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a number of bytes from 1 to {DECOMPRESSED_BYTES_OPTION_MAX}"
    )


def kind_of(arguments: argparse.Namespace) -> LogKind | None:
    """Return the kind that ``--as`` declares, None without it."""
    from raftlog.client import LogKind

    name: str | None = getattr(arguments, "record_kind", None)
    return None if name is None else LogKind(name)


@contextmanager
def open_source(arguments: argparse.Namespace) -> Iterator[LogReader]:
    """Open the log that PATH or ``--bootstrap-server`` names.

    Raises ``WrongCallError``, ``OptionError``, ``WrongClusterError`` and the errors of
    ``open_path``.
    """
    error = arguments.parser.error
    if arguments.bootstrap_server is None:
        if arguments.path is None:
            error("PATH or --bootstrap-server is required")
        check_no_node_options(arguments)

        from raftlog.client import open_path

        limit = arguments.max_decompressed_bytes
        log = open_path(arguments.path, kind=kind_of(arguments), decompressed_bytes_max=limit)
        _check_cluster(log, arguments.cluster_id)
        yield log
        return
    if arguments.path is not None:
        error(_TWO_SOURCES)
    if getattr(arguments, "record_kind", None) is not None:
        error("--as requires PATH: nodes report the kind of their log")

    from raftlog.client.remote.log import RemoteLog

    with closing(leader_client(arguments)) as leader:
        yield RemoteLog(leader, decompressed_bytes_max=arguments.max_decompressed_bytes)


@contextmanager
def open_states(
    arguments: argparse.Namespace,
    redactor: Redactor,
    console: Console,
    *,
    from_oldest: bool = False,
) -> Iterator[StateSource]:
    """Open the log, or the Delta tables, that PATH or ``--bootstrap-server`` names.

    Raises ``WrongCallError``, ``TablesError`` and the errors of ``open_source``.
    """
    from raftlog_state.state_sources import LogStates, is_tables, open_table_states

    if arguments.path is None or not is_tables(arguments.path):
        import pyarrow as pa

        pa.set_memory_pool(pa.system_memory_pool())  # a replay keeps 40 MiB more in Arrow's own
        with open_source(arguments) as log:
            yield LogStates(log, redactor, console, from_oldest=from_oldest)
        return
    if arguments.bootstrap_server is not None:
        arguments.parser.error(_TWO_SOURCES)
    check_no_node_options(arguments)
    yield open_table_states(arguments.path, console, cluster_id=arguments.cluster_id)


def state_in(
    states: StateSource, option: str, spec: OffsetSpec | None, console: Console
) -> MetadataImage:
    """Return the state that an option's value specifies; None: the newest one.

    The offset is printed unless it was given as a number.
    """
    from raftlog.clock import Clock

    if spec is None:
        return states.image_at(states.end_offset())
    found = states.resolve(spec, option=option, now_ms=Clock().wall_ms())
    return states.image_at(_printed(option, spec, found, console))


def states_in_range(
    states: StateSource, start: OffsetSpec | None, end: OffsetSpec | None, console: Console
) -> tuple[int, int]:
    """Return the end offsets for ``--from`` and ``--to`` in a source of states.

    They are printed unless they were specified as numbers. Raises ``OptionError`` if the first one
    is after the second, ``OffsetOutOfRangeError`` if it is after the end.
    """
    from raftlog.clock import Clock

    first, last = states.resolve_range(
        start, end, options=("--from", "--to"), now_ms=Clock().wall_ms()
    )
    return _printed("--from", start, first, console), _printed("--to", end, last, console)


@contextmanager
def open_target(arguments: argparse.Namespace, *, create: bool = False) -> Iterator[AnyLog]:
    """Open the log that PATH or ``--bootstrap-server`` names, to append to it.

    Raises ``WrongCallError`` and the errors of ``raftlog.open`` and ``raftlog.connect``.
    """
    import raftlog
    from raftlog.client.remote.handle import open_remote_log
    from raftlog.errors import LogNotFoundError

    if arguments.bootstrap_server is None:
        if arguments.path is None:
            arguments.parser.error("PATH or --bootstrap-server is required")
        check_no_node_options(arguments)
        try:
            opened = raftlog.open(arguments.path, create=create)
        except LogNotFoundError as error:
            if create or not hasattr(arguments, "create"):
                raise
            remedy = "check the path, or create the log with --create"
            raise LogNotFoundError(path=error.path, remedy=remedy) from None
        with opened as log:
            yield log
        return
    if arguments.path is not None:
        arguments.parser.error("PATH and --bootstrap-server are mutually exclusive")
    options = {} if arguments.timeout_ms is None else {"timeout_ms": arguments.timeout_ms}
    with open_remote_log(
        arguments.bootstrap_server,
        client_security(arguments),
        cluster_id=arguments.cluster_id,
        **options,
    ) as connected:
        yield connected


def offset_in(
    log: LogReader,
    option: str,
    spec: OffsetSpec,
    read_end: Callable[[], int],
    console: Console,
    *,
    is_state: bool = False,
) -> int:
    """Return the offset in a log for an option's value; print it unless it is a number.

    Arguments and errors are those of ``raftlog.client.offset_spec.resolve``.
    """
    from raftlog.client.offset_spec import resolve
    from raftlog.clock import Clock

    now_ms = Clock().wall_ms()
    found = resolve(spec, log, now_ms=now_ms, read_end=read_end, is_state=is_state)
    return _printed(option, spec, found, console)


def range_in(
    log: LogReader,
    start: OffsetSpec | None,
    end: OffsetSpec | None,
    read_end: Callable[[], int],
    console: Console,
) -> tuple[int, int]:
    """Return the offsets in a log for ``--from`` and ``--to``, like ``offset_in``.

    Arguments and errors are those of ``raftlog.client.offset_spec.resolve_range``.
    """
    from raftlog.client.offset_spec import resolve_range
    from raftlog.clock import Clock

    first, last = resolve_range(
        *(start, end, log),
        now_ms=Clock().wall_ms(),
        read_end=read_end,
        options=("--from", "--to"),
    )
    return _printed("--from", start, first, console), _printed("--to", end, last, console)


def _printed(option: str, spec: OffsetSpec | None, found: Resolved, console: Console) -> int:
    """Print an offset unless it was specified as a number or not specified; return it."""
    from raftlog.client.offset_spec import OffsetSpecKind

    if spec is not None and spec.kind is not OffsetSpecKind.OFFSET:
        console.log(f"{option} is offset {found.offset}: {found.reason}")
    return found.offset


def stdin() -> TextIO:
    """Return stdin. Raises ``OptionError`` if it is closed."""
    if sys.stdin is None:
        from raftlog.errors import OptionError

        raise OptionError(option="stdin", reason="is closed: the command reads from it")
    return sys.stdin


def check_no_node_options(arguments: argparse.Namespace) -> None:
    """End the command if options for ``--bootstrap-server`` are specified without it."""
    for name in NODE_OPTIONS:
        if getattr(arguments, name) is not None:
            arguments.parser.error(f"--{name.replace('_', '-')} requires --bootstrap-server")


def _check_cluster(log: LogReader, cluster_id: str | None) -> None:
    """Raise ``WrongClusterError`` if files are known to belong to another cluster."""
    if cluster_id is None or log.cluster_id in (None, cluster_id):
        return
    from raftlog.errors import WrongClusterError

    assert log.cluster_id is not None, "compared above"
    raise WrongClusterError(
        path=log.path,
        expected_cluster_id=cluster_id,
        cluster_id=log.cluster_id,
        remedy="correct PATH or --cluster-id",
    )


def leader_client(arguments: argparse.Namespace) -> LeaderClient:
    """Return a client of the leader of the nodes in ``--bootstrap-server``.

    Raises ``OptionError``.
    """
    from raftlog.client.remote.leader_client import LeaderClient
    from raftlog.client.remote.nodes import parse_addresses

    return LeaderClient(
        parse_addresses(arguments.bootstrap_server),
        client_security(arguments),
        timeout_ms=_timeout_ms(arguments),
        cluster_id=arguments.cluster_id,
    )


def broker_client(arguments: argparse.Namespace) -> BrokerClient:
    """Return a client of the brokers in ``--bootstrap-server``. Raises ``OptionError``."""
    from raftlog.client.remote.broker_client import BrokerClient
    from raftlog.client.remote.nodes import parse_addresses

    return BrokerClient(
        parse_addresses(arguments.bootstrap_server),
        client_security(arguments),
        timeout_ms=_timeout_ms(arguments),
        cluster_id=arguments.cluster_id,
    )


def _timeout_ms(arguments: argparse.Namespace) -> float:
    """Return ``--timeout-ms`` or its default. Raises ``OptionError``."""
    from raftlog.client.log_handle import milliseconds

    asked_ms = NODES_TIMEOUT_MS if arguments.timeout_ms is None else arguments.timeout_ms
    return milliseconds(asked_ms, "--timeout-ms")


def client_security(arguments: argparse.Namespace) -> ClientSecurity:
    """Return the security of connections, by ``--config`` and the options of TLS.

    Kafka client options that do not concern security are ignored. Raises ``OptionError``.
    """
    from raftlog.client.remote.security import SECURITY_OPTIONS, parse_security, read_properties
    from raftlog.errors import OptionError

    given: dict[str, str] = {}
    if arguments.config is not None:
        given = dict(read_properties("--config", arguments.config))
    for name in given:
        if name.startswith(("security.", "sasl.", "ssl.")) and name not in SECURITY_OPTIONS:
            reason = f"{arguments.config}: is not supported; see `pydoc raftlog.connect`"
            raise OptionError(option=name, reason=reason)
    flags = {
        "ssl.ca.location": arguments.tls_ca,
        "ssl.certificate.location": arguments.tls_certificate,
        "ssl.key.location": arguments.tls_key,
    }
    given |= {name: value for name, value in flags.items() if value is not None}
    return parse_security(given)
