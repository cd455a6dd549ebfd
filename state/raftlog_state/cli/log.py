"""``raftlog log``: print what happened to a topic, a broker, a config or another entity."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

from raftlog.printable import compact_json, did_you_mean

from .output import Console, Output, Part
from .parser import OFFSET_FORMS, Commands, add_color, add_redaction, offset_spec, redactor
from .source import (
    add_decompression_limit,
    add_source,
    offset_in,
    open_source,
    open_states,
    states_in_range,
)
from .text_table import BAD, GOOD, HEADING

if TYPE_CHECKING:
    from raftlog.client import LogReader
    from raftlog.client.offset_spec import OffsetSpec
    from raftlog.clock import Clock
    from raftlog_state.authorizer_log import RequestJoin
    from raftlog_state.image import Entity, MetadataImage
    from raftlog_state.image.entity_names import RowFilter
    from raftlog_state.loader.image_reader import ImageReader
    from raftlog_state.log_changes import LoggedChange

ABOUT = f"""
Print the history of an entity of a cluster, one line per change: time, offset, leader epoch of the
quorum, name, and the values before and after.

WHAT is one of the following. Fewer parts select more; without WHAT, everything is printed:

  topic/orders                        a topic and its configs, with --partitions its partitions
  partition/orders/0                  one partition
  broker/3, controller/100            a registration, and the configs of a broker
  config/topic/orders/retention.ms    one config
  acl/User:alice                      the ACLs of a principal
  quota/user/alice, scram/alice       quotas; credentials
  token/ID, feature/NAME, epoch/N     a delegation token; a feature; an election of the quorum

A topic that was deleted and created again has a single history. If the log begins with a snapshot,
the snapshot's rows are printed first. The history ends at the same offset as `raftlog state`, so
the records of an open metadata transaction are not printed. PATH can also be a directory of Delta
tables (pip install "raftlog[delta]"), which retain changes that were deleted from the log.
{OFFSET_FORMS}
"""

EXAMPLES = """
raftlog log /var/lib/kafka topic/orders --partitions
raftlog log /var/lib/kafka broker/3 --from -2h
raftlog log /var/lib/kafka --from '2026-11-21 10:02' --to '2026-11-21 10:05' --partitions
raftlog log /var/lib/kafka broker --partitions --from end --follow
raftlog log --bootstrap-server controller-1:9093 config/topic/orders/retention.ms --json
raftlog log /var/lib/kafka acl --from -1d --authorizer-log kafka-authorizer.log
"""

_NAMES_SHOWN_MAX: Final = 5
"""Names that the message about an unknown name contains."""


def add_log(commands: Commands) -> None:
    """Add ``raftlog log``."""
    command = commands.add_parser("log", about=ABOUT, examples=EXAMPLES)
    command.set_defaults(run=run_log)
    add_source(command)
    command.add_argument(
        "what", metavar="WHAT", nargs="?", help="the entity whose history is printed"
    )
    command.add_argument(
        "--partitions", action="store_true", help="also print the changes of a topic's partitions"
    )
    command.add_argument(
        "--from",
        dest="start_offset",
        metavar="OFFSET",
        type=offset_spec,
        help="print changes from this offset on; default: the log start offset",
    )
    command.add_argument(
        "--to",
        dest="end_offset",
        metavar="OFFSET",
        type=offset_spec,
        help="print changes below this offset; default: the end of the log",
    )
    command.add_argument(
        "--follow",
        action="store_true",
        help="keep printing changes as they happen, until Ctrl-C. From a single directory, a "
        "change is printed once it is 5 s old, because a younger one may still be truncated",
    )
    command.add_argument("--json", action="store_true", help="print one JSON object per change")
    add_color(command)
    command.add_argument(
        "--authorizer-log",
        dest="authorizer_logs",
        metavar="FILE",
        action="append",
        default=[],
        help="log of Kafka's authorizer (kafka.authorizer.logger at level DEBUG): also print the "
        "principal whose request may have caused a change. Repeat it for several nodes. Use "
        "whole files: in an excerpt, such as the output of grep or tail, forged lines may not "
        "be marked",
    )
    command.add_argument(
        "--authorizer-log-zone",
        metavar="ZONE",
        default="UTC",
        help="time zone of the nodes that wrote --authorizer-log, such as Europe/Paris; default: "
        "UTC",
    )
    command.add_argument(
        "--authorizer-log-escaped",
        action="store_true",
        help="the layout of --authorizer-log escapes line ends: it has %%enc{%%m}{CRLF} in place "
        "of %%m. Kafka's default layout does not, so that the name of a resource can contain "
        "a forged line; without this option, requests that another client may have forged "
        "this way are marked",
    )
    add_redaction(command)
    add_decompression_limit(command)


def run_log(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print the changes; return the exit code."""
    if arguments.bootstrap_server is not None and arguments.what is None:
        arguments.what, arguments.path = arguments.path, None
    hide = redactor(arguments)

    from raftlog.client.offset_spec import EARLIEST
    from raftlog.clock import Clock
    from raftlog_state.image.entity_names import row_filters, split_name
    from raftlog_state.loader.image_reader import ImageReader
    from raftlog_state.log_changes import logged
    from raftlog_state.state_sources import is_tables

    from .signals import StopSignals, TerminatedError

    if arguments.follow and (arguments.end_offset is not None or arguments.authorizer_logs):
        arguments.parser.error("--follow cannot be combined with --to or --authorizer-log")
    entity, name = (None, None) if arguments.what is None else split_name(arguments.what)
    filters = row_filters(entity, name, partitions=arguments.partitions, text_option="WHAT")
    start = arguments.start_offset
    if start == EARLIEST:
        start = None  # of a log that begins with a snapshot there is no state at its start offset
    if output.is_terminal():
        console.disable_progress_bar()
    line = json_line if arguments.json else text_line
    join = _request_join(arguments)
    if join is not None:
        line = partial(_line_with_requests, join, as_json=arguments.json)
    if arguments.follow:
        if arguments.path is not None and is_tables(arguments.path):
            arguments.parser.error("--follow requires a log: PATH is a directory of Delta tables")
        with (
            open_source(arguments) as log,
            StopSignals() as signals,
            suppress(TerminatedError),
        ):
            images = ImageReader(log, hide, console, from_oldest=start is None)
            follow_changes(
                *(log, images, start, filters, line, output, console),
                clock=Clock(),
                raise_if_stopped=signals.raise_received,
            )
        return 0
    with open_states(arguments, hide, console, from_oldest=start is None) as states:
        start_offset, end_offset = states_in_range(states, start, arguments.end_offset, console)
        if start is not None:
            states.image_at(start_offset)
        change = None
        for change in logged(states.changes(end_offset, filters)):
            output.styled(*line(change))
        if change is None:
            where = f"in the offsets from {start_offset} to {end_offset} (exclusive)"
            console.log(f"no changes of {arguments.what or 'anything'} {where}")
            if name is not None:
                _log_if_absent(states.image_at(end_offset), filters, arguments.what, console)
    if join is not None:
        _log_without_change(join, console)
    return 0


def _log_if_absent(
    image: MetadataImage, filters: Sequence[RowFilter], what: str, console: Console
) -> None:
    """Print that a state contains nothing of a name, with similar names, if that is so."""
    if any(one.matches(row) for one in filters for row in image.rows(one.entity)):
        return
    hint = _similar_name(what, image, filters[0].entity)
    found = f"the state at end offset {image.offset + 1} has no {what}"
    console.log(f"{found}; {hint}" if hint else found)


def _similar_name(what: str, image: MetadataImage, entity: Entity) -> str | None:
    """Return a hint for a name that no row of an entity has; None if only its end is unknown."""
    from raftlog_state.image import Entity
    from raftlog_state.image.entity_names import name_of

    # of partitions, which are many, only the topics are compared
    part_count = 2 if entity is Entity.PARTITION else 1 + what.count("/")

    def beginning(name: str) -> str:
        return "/".join(name.split("/")[:part_count])

    names = dict.fromkeys(beginning(name_of(row)) for row in image.rows(entity))
    wanted = beginning(what)
    if wanted in names:
        return None
    if not wanted.rpartition("/")[2].isdecimal():
        return did_you_mean(wanted, names)
    some = list(names)[:_NAMES_SHOWN_MAX]  # of numbers none is similar
    more = ", ..." if len(names) > len(some) else ""
    return f"it has {', '.join(some)}{more}" if some else None


def _request_join(arguments: argparse.Namespace) -> RequestJoin | None:
    """Return the requests of ``--authorizer-log``, None without it. Raises ``OptionError``."""
    if not arguments.authorizer_logs:
        return None
    from raftlog_state.authorizer_log import AuthorizerLog, RequestJoin

    return RequestJoin(
        AuthorizerLog(
            _authorizer_lines(arguments.authorizer_logs),
            zone=arguments.authorizer_log_zone,
            zone_option="--authorizer-log-zone",
            are_escaped=arguments.authorizer_log_escaped,
        )
    )


def _authorizer_lines(paths: Sequence[str]) -> Iterator[str]:
    """Yield the lines of all files. Raises ``OptionError``."""
    from raftlog.errors import OptionError

    for path in paths:
        try:
            # a carriage return in a name ends no line
            with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
                yield from file
        except OSError as error:
            reason = f"{path} cannot be read: {error.strerror or type(error).__name__}"
            raise OptionError(option="--authorizer-log", reason=reason) from None


def _line_with_requests(join: RequestJoin, logged: LoggedChange, *, as_json: bool) -> list[Part]:
    """Return a change together with the requests that may have caused it."""
    from dataclasses import asdict

    requests = join.requested(logged).requests
    if as_json:
        return json_line(logged, requests=[asdict(one) for one in requests])
    causes = (
        f"{one.principal} from {one.host} ({one.request}"
        f"{', may be forged' if one.may_be_forged else ''})"
        for one in requests
    )
    by = " or ".join(dict.fromkeys(causes))
    return [*text_line(logged), (f"  by {by}" if by else "", "")]


def _log_without_change(join: RequestJoin, console: Console) -> None:
    """Print how many requests were denied, or have no change, and how many cannot be read."""
    found = list(join.without_change())
    denied = sum(not one.is_allowed for one in found)
    counts = (
        (denied, "was denied", "were denied"),
        (len(found) - denied, "has no change here", "have no change here"),
        (join.unreadable_count, "cannot be read", "cannot be read"),
    )
    for count, one, several in counts:
        if count:
            noun = "request" if count == 1 else "requests"
            console.log(f"--authorizer-log: {count} {noun} {one if count == 1 else several}")


def follow_changes(
    log: LogReader,
    images: ImageReader,
    start: OffsetSpec | None,
    filters: Sequence[RowFilter],
    line: Callable[[LoggedChange], list[Part]],
    output: Output,
    console: Console,
    *,
    clock: Clock,
    raise_if_stopped: Callable[[], None],
) -> NoReturn:
    """Print the changes as they are committed, until a signal. Raises the errors of ``follow``."""
    from raftlog.client import Isolation
    from raftlog_state.log_changes import logged

    from .follow import check_can_grow, follow, followed_end

    def end() -> int:
        return followed_end(log, Isolation.READ_COMMITTED, clock).look().offset

    check_can_grow(log)
    console.disable_progress_bar()
    if start is not None:
        images.image_at(offset_in(log, "--from", start, end, console, is_state=True))

    def print_up_to(end_offset: int) -> None:
        images.refresh()
        for change in logged(images.changes(end_offset, filters)):
            output.styled(*line(change))

    follow(
        log,
        Isolation.READ_COMMITTED,
        print_up_to,
        output,
        console,
        clock=clock,
        raise_if_stopped=raise_if_stopped,
    )


def json_line(logged: LoggedChange, *, requests: list[dict[str, Any]] | None = None) -> list[Part]:
    """Return a change as a JSON object: its record, then a difference as in ``raftlog diff``.

    If requests are given, those that may have caused it follow.
    """
    from raftlog.client.offset_spec import time_text
    from raftlog_state.image.change_text import change_json

    found: dict[str, Any] = {
        "offset": logged.offset,
        "visible_offset": logged.visible_offset,
        "leader_epoch": logged.leader_epoch,
        "timestamp_ms": logged.timestamp_ms,
        "time": time_text(logged.timestamp_ms),
        "record_type": logged.record_type,
        "name": logged.name,
    }
    found |= change_json(logged.change)
    return [(compact_json(found if requests is None else found | {"requests": requests}), "")]


def text_line(logged: LoggedChange) -> list[Part]:
    """Return a change as text: time, offset, leader epoch, name, and what changed."""
    from raftlog.client.offset_spec import time_text
    from raftlog_state.image.change_text import what_changed
    from raftlog_state.image.delta import Op

    style = {Op.CREATE: GOOD, Op.DELETE: BAD}.get(logged.change.op, "")
    at = f"{time_text(logged.timestamp_ms)}  {logged.offset:>8}  {logged.leader_epoch:>5}"
    return [
        (f"{at}  ", ""),
        (logged.name, HEADING),
        ("  ", ""),
        (what_changed(logged.change), style),
    ]
