"""Following of a log by `raftlog cat --follow` and `raftlog log --follow`: each record once.

What is printed is committed where that can be determined: voters' directories, running nodes, logs
of raftlog. Of one directory of Kafka, records are printed when they are older than the holdback, as
a leader change may truncate younger ones. A printed record that is truncated nevertheless, or one
that is deleted before it was printed, ends the command with an error: no record is lost or repeated
silently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NoReturn

from raftlog.client import Isolation, LogReader, SourceKind
from raftlog.clock import Clock
from raftlog.errors import OptionError, RaftlogError
from raftlog.limits import TAIL_HOLDBACK_MS_DEFAULT

from .output import Console, Output

if TYPE_CHECKING:
    from raftlog.client.followed_records import FollowedEnd

POLL_S: Final = 0.2


def check_can_grow(log: LogReader) -> None:
    """Raise ``OptionError`` if the source is a single file."""
    if log.source in (SourceKind.CHECKPOINT, SourceKind.SEGMENT):
        reason = "a single file is not continued: give the directory that contains it"
        raise OptionError(option="--follow", reason=reason)


def followed_end(log: LogReader, isolation: Isolation, clock: Clock) -> FollowedEnd:
    """Return the end up to which records are printed."""
    from raftlog.client.followed_records import FollowedEnd  # with asyncio

    return FollowedEnd(log, isolation, clock, holdback_ms=TAIL_HOLDBACK_MS_DEFAULT)


def follow(
    log: LogReader,
    isolation: Isolation,
    print_up_to: Callable[[int], None],
    output: Output,
    console: Console,
    *,
    clock: Clock,
    raise_if_stopped: Callable[[], None],
) -> NoReturn:
    """Print the log up to its end, and again each time it has grown; never return.

    Temporary errors, such as a quorum without a leader, are logged, and the read is repeated.

    Args:
        print_up_to: prints the records after its last call, up to an end offset. If it raises, it
            is called again and continues after the last record that it has printed.
        raise_if_stopped: raises the exception of a signal.

    Raises:
        DivergedLogError: records that were printed are not in the log any more.
        DataLossError: records were deleted before they were printed.
    """
    followed = followed_end(log, isolation, clock)
    last_problem = ""
    while True:
        raise_if_stopped()
        try:
            end, previous = followed.look(), followed.read_up_to
            if previous is None:
                console.log(f"following the log from offset {end.offset} on: {end.explanation}")
            if previous is None or end.offset > previous.offset:
                print_up_to(end.offset)
            followed.read_up_to, last_problem = end, ""
        except RaftlogError as error:
            if not error.retriable:
                raise
            if str(error) != last_problem:
                last_problem = str(error)
                console.log(f"{error}; still following")
        output.flush()
        output.check_reader()  # a flush without data does not notice it
        clock.pause(POLL_S)
